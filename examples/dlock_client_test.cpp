// SPDX-License-Identifier: MIT OR Apache-2.0
// Clients of one primary that share a lock of each type, a thread each, and how long their calls
// take (start dlock_primary_test first).
#include <cstring>
#include <thread>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"
#include "timing.h"

using namespace dlock;

// Seconds a lock is asked for, and extended to.
const uint32_t LEASE_S = 10;

enum operation { HEARTBEAT, GET, LOCK, EXTEND, RELEASE_HOLD, RELEASE, OPERATIONS };

static std::vector<timing> no_calls()
{
    const char *names[OPERATIONS] = {"heartbeat", "get", "lock", "extend", "unlock", "release"};
    return std::vector<timing>(names, names + OPERATIONS);
}

// One lock: get, lock, extend (not a read-write lock: that has no lease), unlock, release.
static void one_lock(int client, const char *name, dlock_type type, std::vector<timing> &timings)
{
    std::string text = name;
    lock_desc desc = {&text[0], uint32_t(text.size()), uint32_t(type), LEASE_S};
    int lock_id = 0;
    int status = timings[GET].measure([&] { return get_lock(client, &desc, &lock_id); });
    expect("get_lock", status, DLOCK_SUCCESS);

    lock_request req = {lock_id, LOCK_EXCLUSIVE, LEASE_S};
    lock_state state;
    status = timings[LOCK].measure([&] { return lock(client, &req, &state); });
    if (status == DLOCK_SUCCESS) {
        if (type != DLOCK_RW) {
            lock_request more = {lock_id, EXTEND_LOCK_EXCLUSIVE, 2 * LEASE_S};
            timings[EXTEND].measure([&] { return lock_extend(client, &more, &state); });
        }
        timings[RELEASE_HOLD].measure([&] { return unlock(client, lock_id, &state); });
    } else if (status == DLOCK_EAGAIN) {
        unlock(client, lock_id, &state); // five seconds were not enough: leave the queue
    }
    status = timings[RELEASE].measure([&] { return release_lock(client, lock_id); });
    expect("release_lock", status, DLOCK_SUCCESS);
}

static void rounds(int client, int count, std::vector<timing> &timings)
{
    for (int i = 0; i < count; ++i) {
        int status = timings[HEARTBEAT].measure([&] { return client_heartbeat(client, 5); });
        expect("client_heartbeat", status, DLOCK_SUCCESS);
        one_lock(client, "example: atomic", DLOCK_ATOMIC, timings);
        one_lock(client, "example: read-write", DLOCK_RW, timings);
        one_lock(client, "example: fair", DLOCK_FAIR, timings);
    }
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv, false);
    client_cfg cfg = client_configuration(o);
    expect("dclient_lib_init", dclient_lib_init(&cfg), DLOCK_SUCCESS);
    std::vector<int> clients(static_cast<size_t>(o.clients));
    for (int &client : clients) {
        expect("client_init", client_init(&client, o.ip.c_str()), DLOCK_SUCCESS);
    }
    std::vector<std::vector<timing>> timings(clients.size(), no_calls());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < clients.size(); ++i) {
        threads.emplace_back(rounds, clients[i], o.rounds, std::ref(timings[i]));
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (int client : clients) {
        expect("client_deinit", client_deinit(client), DLOCK_SUCCESS);
    }
    dclient_lib_deinit();
    std::printf("%d clients, %d rounds each\n", o.clients, o.rounds);
    print_timings(merged(timings));
    return 0;
}
