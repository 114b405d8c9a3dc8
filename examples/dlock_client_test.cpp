// SPDX-License-Identifier: MIT OR Apache-2.0
// Locks of each type, shared by a few clients of one primary (start dlock_primary_test first).
#include <cstring>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"

using namespace dlock;

static int get(int client, const char *name, dlock_type type)
{
    std::string text = name;
    lock_desc desc = {&text[0], uint32_t(text.size()), uint32_t(type), 10};
    int lock_id = 0;
    expect("get_lock", get_lock(client, &desc, &lock_id), 0);
    return lock_id;
}

// One client at a time: the others are refused, and the lease shows who has it.
static void atomic_rounds(const std::vector<int> &clients, int rounds)
{
    int lock_id = 0;
    for (int client : clients) {
        lock_id = get(client, "example: atomic", DLOCK_ATOMIC);
    }
    lock_request req = {lock_id, LOCK_EXCLUSIVE, 10};
    atomic_state state;
    for (int i = 0; i < rounds; ++i) {
        for (int holder : clients) {
            expect("lock", lock(holder, &req, &state), 0);
            for (int other : clients) {
                if (other != holder) {
                    expect("trylock of another", trylock(other, &req, &state), DLOCK_FAIL);
                }
            }
            lock_request more = {lock_id, EXTEND_LOCK_EXCLUSIVE, 20};
            expect("lock_extend", lock_extend(holder, &more, &state), 0);
            expect("unlock", unlock(holder, lock_id, &state), 0);
        }
    }
    for (int client : clients) {
        expect("release_lock", release_lock(client, lock_id), 0);
    }
    std::printf("atomic lock: ok\n");
}

// All clients read together; one writes alone.
static void rw_rounds(const std::vector<int> &clients, int rounds)
{
    int lock_id = 0;
    for (int client : clients) {
        lock_id = get(client, "example: read-write", DLOCK_RW);
    }
    lock_request share = {lock_id, LOCK_SHARED, 10}, own = {lock_id, LOCK_EXCLUSIVE, 10};
    rw_state state;
    for (int i = 0; i < rounds; ++i) {
        for (int client : clients) {
            expect("lock for reading", lock(client, &share, &state), 0);
        }
        for (int client : clients) {
            expect("unlock after reading", unlock(client, lock_id, &state), 0);
        }
        expect("lock for writing", lock(clients[0], &own, &state), 0);
        expect("unlock after writing", unlock(clients[0], lock_id, &state), 0);
    }
    for (int client : clients) {
        expect("release_lock", release_lock(client, lock_id), 0);
    }
    std::printf("read-write lock: ok\n");
}

// Whoever asks first is served first.
static void fair_rounds(const std::vector<int> &clients, int rounds)
{
    int lock_id = 0;
    for (int client : clients) {
        lock_id = get(client, "example: fair", DLOCK_FAIR);
    }
    lock_request req = {lock_id, LOCK_EXCLUSIVE, 10};
    fairlock_state state;
    for (int i = 0; i < rounds; ++i) {
        for (size_t c = 0; c < clients.size(); ++c) {
            expect("queue", trylock(clients[c], &req, &state), c == 0 ? 0 : DLOCK_EAGAIN);
        }
        for (size_t c = 0; c < clients.size(); ++c) {
            if (c > 0) {
                expect("lock in turn", lock(clients[c], &req, &state), 0);
            }
            expect("unlock", unlock(clients[c], lock_id, &state), 0);
        }
    }
    for (int client : clients) {
        expect("release_lock", release_lock(client, lock_id), 0);
    }
    std::printf("fair lock: ok\n");
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv, "uses locks of a dlock primary");
    client_cfg cfg;
    std::memset(&cfg, 0, sizeof(cfg));
    cfg.dev_name = o.device.empty() ? nullptr : &o.device[0];
    cfg.log_level = o.log_level;
    cfg.primary_port = o.port;
    cfg.tp_mode = o.uni_conn ? UNI_CONN : SEPERATE_CONN;
    expect("dclient_lib_init", dclient_lib_init(&cfg), 0);
    std::vector<int> clients(size_t(o.clients > 0 ? o.clients : 1));
    for (int &client : clients) {
        expect("client_init", client_init(&client, o.ip.c_str()), 0);
        expect("client_heartbeat", client_heartbeat(client, 5), 0);
    }
    atomic_rounds(clients, o.rounds);
    rw_rounds(clients, o.rounds);
    fair_rounds(clients, o.rounds);
    for (int client : clients) {
        expect("client_deinit", client_deinit(client), 0);
    }
    dclient_lib_deinit();
    return 0;
}
