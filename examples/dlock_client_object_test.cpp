// SPDX-License-Identifier: MIT OR Apache-2.0
// A counter kept by the primary and shared by a few clients (start dlock_primary_test first).
#include <cstring>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"

using namespace dlock;

int main(int argc, char **argv)
{
    options o = read_options(argc, argv, "uses a state object of a dlock primary");
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
    }

    char name[] = "example: counter";
    umo_atomic64_desc desc = {name, uint32_t(std::strlen(name)), 600};
    int object = 0;
    expect("create", umo_atomic64_create(clients[0], &desc, 100, &object), 0);
    for (int client : clients) {
        expect("get", umo_atomic64_get(client, &desc, &object), 0);
    }
    uint64_t value = 0, expected = 100;
    for (int i = 0; i < o.rounds; ++i) {
        for (int client : clients) {
            expect("faa", umo_atomic64_faa(client, object, 1, &value), 0);
            expect("the value before", value == expected, 1);
            ++expected;
        }
    }
    expect("cas", umo_atomic64_cas(clients[0], object, expected, 7), 0);
    expect("cas with the old value", umo_atomic64_cas(clients[0], object, expected, 8),
           DLOCK_OBJECT_CAS_FAILED);
    expect("snapshot", umo_atomic64_get_snapshot(clients.back(), object, &value), 0);
    expect("the value now", value == 7, 1);
    for (int client : clients) {
        expect("release", umo_atomic64_release(client, object), 0);
    }
    expect("destroy", umo_atomic64_destroy(clients[0], object), 0);
    for (int client : clients) {
        expect("client_deinit", client_deinit(client), 0);
    }
    dclient_lib_deinit();
    std::printf("state object: ok\n");
    return 0;
}
