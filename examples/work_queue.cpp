// SPDX-License-Identifier: MIT OR Apache-2.0
// A queue of jobs under a fair lock: producers add, workers take, readers look, each in the
// order of its arrival; every job is done once and in order (start dlock_primary_test first).
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"

using namespace dlock;

static const int LEASE_S = 30;
static const size_t ROOM = 16;

// What the lock protects; nothing else does.
static std::deque<int> jobs;
static int added, taken;
static std::atomic<int> misplaced(0), looks(0);
static std::atomic<bool> over(false);

// One thread's client, with the queue's lock.
class queue_lock {
public:
    explicit queue_lock(const options &o)
    {
        char name[] = "example: job queue";
        lock_desc desc = {name, uint32_t(std::strlen(name)), DLOCK_FAIR, 0};
        expect("client_init", client_init(&client, o.ip.c_str()), 0);
        expect("get_lock", get_lock(client, &desc, &id), 0);
    }
    ~queue_lock()
    {
        expect("release_lock", release_lock(client, id), 0);
        expect("client_deinit", client_deinit(client), 0);
    }
    // lock() gives up after 5 s, but the place in the queue stays: ask again.
    void acquire(lock_ops op)
    {
        lock_request req = {id, op, LEASE_S};
        fairlock_state state;
        int status;
        do {
            status = lock(client, &req, &state);
        } while (status == DLOCK_EAGAIN || status == DLOCK_FAIL);
        expect("lock", status, DLOCK_SUCCESS);
    }
    void release()
    {
        fairlock_state state;
        expect("unlock", unlock(client, id, &state), DLOCK_SUCCESS);
    }

private:
    int client, id;
};

static void producer(const options &o, int count)
{
    queue_lock lock(o);
    while (count > 0) {
        lock.acquire(LOCK_EXCLUSIVE);
        if (jobs.size() < ROOM) {
            jobs.push_back(added++);
            --count;
        }
        lock.release();
    }
}

static void worker(const options &o, int all)
{
    queue_lock lock(o);
    for (bool more = true; more;) {
        lock.acquire(LOCK_EXCLUSIVE);
        if (!jobs.empty()) {
            misplaced += jobs.front() != taken;
            ++taken;
            jobs.pop_front();
        }
        more = taken < all;
        lock.release();
    }
}

static void reader(const options &o)
{
    queue_lock lock(o);
    while (!over) {
        lock.acquire(LOCK_SHARED);
        misplaced += int(jobs.size()) != added - taken;
        ++looks;
        lock.release();
    }
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv, false);
    client_cfg cfg = client_configuration(o);
    expect("dclient_lib_init", dclient_lib_init(&cfg), 0);
    int each = 50 * o.rounds, all = each * o.clients;
    std::vector<std::thread> threads;
    std::thread looking(reader, o);
    for (int i = 0; i < o.clients; ++i) {
        threads.emplace_back(producer, o, each);
        threads.emplace_back(worker, o, all);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    over = true;
    looking.join();
    dclient_lib_deinit();
    expect("jobs out of order", misplaced, 0);
    expect("jobs taken", taken, all);
    std::printf("job queue: %d jobs in order, looked at %d times\n", taken, looks.load());
    return 0;
}
