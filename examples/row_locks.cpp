// SPDX-License-Identifier: MIT OR Apache-2.0
// The row locks of a small bank: threads move money between accounts, a transaction locks its
// rows in one batch, and no money is made or lost (start dlock_primary_test first).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"

using namespace dlock;

static const int ROWS = 24, ROWS_OF_A_TRANSACTION = 4, LEASE_S = 30;
static const long BALANCE = 1000;

// The table. Plain numbers: nothing but the row locks keeps the threads apart.
static long balances[ROWS];
static int writers[ROWS];
static std::atomic<unsigned> conflicts(0), intruders(0);

// The locks of one worker: a client of its own, and the ids of all rows.
class row_locks {
public:
    explicit row_locks(const options &o)
    {
        expect("client_init", client_init(&client, o.ip.c_str()), 0);
        std::vector<std::string> names;
        std::vector<lock_desc> descs;
        for (int row = 0; row < ROWS; ++row) {
            names.push_back("bank/accounts/" + std::to_string(row));
        }
        for (std::string &name : names) {
            descs.push_back({&name[0], uint32_t(name.size()), DLOCK_ATOMIC, 0});
        }
        ids.resize(ROWS);
        expect("batch_get_lock", batch_get_lock(client, ROWS, descs.data(), ids.data()), 0);
        for (int id : ids) {
            expect("the id of a row", id > 0, 1);
        }
    }

    ~row_locks()
    {
        expect("batch_release_lock", batch_release_lock(client, ROWS, ids.data()), 0);
        expect("client_deinit", client_deinit(client), 0);
    }

    // Locks all rows or none: at first in one message, at last one after the other in their
    // order, so that no thread starves.
    void acquire(const std::vector<int> &rows, std::mt19937 &random)
    {
        for (int attempt = 0; attempt < 20; ++attempt) {
            if (try_all(rows)) {
                return;
            }
            ++conflicts;
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        }
        for (int row : rows) {
            lock_request req = {ids[size_t(row)], LOCK_EXCLUSIVE, LEASE_S};
            atomic_state state;
            int status;
            do {
                status = lock(client, &req, &state);
            } while (status == DLOCK_FAIL); // 5 s were not enough
            expect("lock", status, 0);
        }
    }

    void release(const std::vector<int> &rows)
    {
        std::vector<int> held;
        for (int row : rows) {
            held.push_back(ids[size_t(row)]);
        }
        lock_op_res results[MAX_LOCK_BATCH_SIZE];
        expect("batch_unlock", batch_unlock(client, unsigned(held.size()), held.data(), results), 0);
        for (size_t i = 0; i < held.size(); ++i) {
            expect("unlock of a row", results[i].op_ret, 0);
        }
    }

private:
    bool try_all(const std::vector<int> &rows)
    {
        std::vector<lock_request> reqs;
        for (int row : rows) {
            reqs.push_back({ids[size_t(row)], LOCK_EXCLUSIVE, LEASE_S});
        }
        lock_op_res results[MAX_LOCK_BATCH_SIZE];
        expect("batch_trylock",
               batch_trylock(client, unsigned(reqs.size()), reqs.data(), results), 0);
        std::vector<int> held;
        for (size_t i = 0; i < rows.size(); ++i) {
            if (results[i].op_ret == DLOCK_SUCCESS) {
                held.push_back(rows[i]);
            } else {
                expect("trylock of a row that is taken", results[i].op_ret, DLOCK_FAIL);
            }
        }
        if (held.size() == rows.size()) {
            return true;
        }
        if (!held.empty()) {
            release(held);
        }
        return false;
    }

    int client;
    std::vector<int> ids;
};

static void worker(const options &o, int number, int transactions)
{
    std::mt19937 random{unsigned(number)};
    row_locks locks(o);
    for (int i = 0; i < transactions; ++i) {
        std::vector<int> rows;
        while (rows.size() < size_t(ROWS_OF_A_TRANSACTION)) {
            int row = int(random() % ROWS);
            if (std::find(rows.begin(), rows.end(), row) == rows.end()) {
                rows.push_back(row);
            }
        }
        std::sort(rows.begin(), rows.end());
        locks.acquire(rows, random);
        long moved = 0;
        for (int row : rows) {
            intruders += writers[row] != 0;
            writers[row] = number + 1;
        }
        for (size_t r = 1; r < rows.size(); ++r) {
            long amount = long(random() % 50);
            balances[rows[r]] -= amount;
            moved += amount;
        }
        balances[rows[0]] += moved;
        for (int row : rows) {
            intruders += writers[row] != number + 1;
            writers[row] = 0;
        }
        locks.release(rows);
    }
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv, false);
    client_cfg cfg = client_configuration(o);
    expect("dclient_lib_init", dclient_lib_init(&cfg), 0);
    std::fill(balances, balances + ROWS, BALANCE);
    std::vector<std::thread> threads;
    for (int i = 0; i < o.clients; ++i) {
        threads.emplace_back(worker, o, i, 100 * o.rounds);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    dclient_lib_deinit();
    long sum = 0;
    for (long balance : balances) {
        sum += balance;
    }
    expect("the sum of all balances", sum == ROWS * BALANCE, 1);
    expect("two writers of one row", int(intruders.load()), 0);
    std::printf("row locks: %d transactions, %u conflicts, no money lost\n",
                100 * o.rounds * o.clients, conflicts.load());
    return 0;
}
