// SPDX-License-Identifier: MIT OR Apache-2.0
// Clients of one primary, a thread each, with an object of their own and a counter that they
// share, and how long their calls take (start dlock_primary_test first).
#include <cstring>
#include <thread>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"
#include "timing.h"

using namespace dlock;

// Seconds that an object is kept for.
const uint32_t LEASE_S = 600;

enum operation { CREATE, GET, FAA, CAS, SNAPSHOT, RELEASE, DESTROY, OPERATIONS };

static std::vector<timing> no_calls()
{
    const char *names[OPERATIONS] = {"create",   "get",     "faa",    "cas",
                                     "snapshot", "release", "destroy"};
    return std::vector<timing>(names, names + OPERATIONS);
}

static umo_atomic64_desc description(std::string &name)
{
    umo_atomic64_desc desc = {&name[0], uint32_t(name.size()), LEASE_S};
    return desc;
}

// Measures a call that must succeed.
template <class Call> static void must(timing &operation, Call call)
{
    expect(operation.operation, operation.measure(call), DLOCK_SUCCESS);
}

static void rounds(int client, int count, std::string name, int shared, std::vector<timing> &t)
{
    umo_atomic64_desc desc = description(name);
    for (int i = 0; i < count; ++i) {
        int object = 0;
        uint64_t value = 0, first = uint64_t(i);
        must(t[CREATE], [&] { return umo_atomic64_create(client, &desc, first, &object); });
        must(t[GET], [&] { return umo_atomic64_get(client, &desc, &object); });
        must(t[FAA], [&] { return umo_atomic64_faa(client, object, 5, &value); });
        expect("the value before", value == first, 1);
        must(t[CAS], [&] { return umo_atomic64_cas(client, object, first + 5, 7); });
        must(t[SNAPSHOT], [&] { return umo_atomic64_get_snapshot(client, object, &value); });
        expect("the value now", value == 7, 1);
        must(t[RELEASE], [&] { return umo_atomic64_release(client, object); });
        must(t[DESTROY], [&] { return umo_atomic64_destroy(client, object); });
        must(t[FAA], [&] { return umo_atomic64_faa(client, shared, 1, &value); });
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

    // Names of this run alone: its first client's id is unique at this primary.
    std::string run = "example: objects of " + std::to_string(clients[0]);
    umo_atomic64_desc counter = description(run);
    int shared = 0;
    expect("create", umo_atomic64_create(clients[0], &counter, 0, &shared), DLOCK_SUCCESS);
    for (int client : clients) {
        expect("get", umo_atomic64_get(client, &counter, &shared), DLOCK_SUCCESS);
    }
    std::vector<std::vector<timing>> timings(clients.size(), no_calls());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < clients.size(); ++i) {
        threads.emplace_back(rounds, clients[i], o.rounds, run + ", " + std::to_string(i), shared,
                             std::ref(timings[i]));
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    uint64_t value = 0;
    expect("snapshot", umo_atomic64_get_snapshot(clients[0], shared, &value), DLOCK_SUCCESS);
    expect("every addition counted", value == uint64_t(o.clients) * uint64_t(o.rounds), 1);
    for (int client : clients) {
        expect("release", umo_atomic64_release(client, shared), DLOCK_SUCCESS);
    }
    expect("destroy", umo_atomic64_destroy(clients[0], shared), DLOCK_SUCCESS);
    for (int client : clients) {
        expect("client_deinit", client_deinit(client), DLOCK_SUCCESS);
    }
    dclient_lib_deinit();
    std::printf("%d clients, %d rounds each\n", o.clients, o.rounds);
    print_timings(merged(timings));
    return 0;
}
