// SPDX-License-Identifier: MIT OR Apache-2.0
// Clients that are shared, ended, and dropped under the calls of other threads.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

// One thread's calls until its client is gone; every code must be one that the calls have.
static void use(int client, int lock_id, std::atomic<bool> *gone)
{
    while (!gone->load()) {
        int status = try_op(client, lock_id, LOCK_EXCLUSIVE, 5);
        if (status == 0 || status == DLOCK_ALREADY_LOCKED) {
            unlock_op(client, lock_id);
        } else if (status != DLOCK_FAIL && status != DLOCK_BAD_RESPONSE &&
                   status != DLOCK_LOCK_NOT_GET) {
            if (status != DLOCK_CLIENT_NOT_INIT && status != DLOCK_CLIENTMGR_NOT_INIT) {
                fprintf(stderr, "trylock: 0x%x\n", unsigned(status));
                gone->store(true);
                CHECK(false);
            }
            return;
        }
    }
}

static void ended_under_calls(int how)
{
    std::atomic<bool> gone(false);
    std::vector<std::thread> threads;
    int client = new_client();
    int lock_id = must_get(client, "shared by threads", DLOCK_ATOMIC);
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back(use, client, lock_id, &gone);
    }
    sleep_seconds(0.05);
    if (how == 0) {
        int status = client_deinit(client);
        CHECK(status == 0 || status == DLOCK_BAD_RESPONSE);
    } else {
        dclient_lib_deinit();
    }
    double start = seconds_now();
    for (std::thread &thread : threads) {
        thread.join();
    }
    CHECK_WITHIN(start, 6);
    EQ(try_op(client, lock_id, LOCK_EXCLUSIVE, 5),
       how == 0 ? DLOCK_CLIENT_NOT_INIT : DLOCK_CLIENTMGR_NOT_INIT);
}

// A waiting lock() of another thread is no obstacle to ending the client.
static void ended_under_a_wait()
{
    int holder = new_client(), waiter = new_client();
    int lock_id = must_get(holder, "waited for", DLOCK_ATOMIC);
    must_get(waiter, "waited for", DLOCK_ATOMIC);
    EQ(lock_op(holder, lock_id, LOCK_EXCLUSIVE, 60), 0);
    std::atomic<int> status(-7);
    std::thread thread([&] { status = lock_op(waiter, lock_id, LOCK_EXCLUSIVE, 60); });
    sleep_seconds(0.2);
    double start = seconds_now();
    dclient_lib_deinit();
    CHECK_WITHIN(start, 6);
    thread.join();
    CHECK_WITHIN(start, 7);
    CHECK(status != -7 && status != 0);
}

int main()
{
    limit_seconds(90);
    int port = free_port();
    EQ(dserver_lib_init(1), 0);
    int server = start_primary(port);
    EQ(init_client_library(port), 0);
    for (int round = 0; round < 5; ++round) {
        ended_under_calls(0);
    }
    ended_under_calls(1);
    EQ(init_client_library(port), 0);
    ended_under_a_wait();

    // The primary stops under the calls of its clients.
    EQ(init_client_library(port), 0);
    std::atomic<bool> gone(false);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        int client = new_client();
        int lock_id = must_get(client, i == 0 ? "one" : "two", DLOCK_ATOMIC);
        threads.emplace_back(use, client, lock_id, &gone);
    }
    sleep_seconds(0.05);
    double start = seconds_now();
    EQ(server_stop(server), 0);
    CHECK_WITHIN(start, 10.0 * slowness());
    gone = true;
    for (std::thread &thread : threads) {
        thread.join();
    }
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("threads");
}
