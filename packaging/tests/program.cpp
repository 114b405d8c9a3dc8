// SPDX-License-Identifier: MIT OR Apache-2.0
// A program as users of the original write it, built against installed packages: it takes a lock of
// the primary at 127.0.0.1, on the port that its argument names.
#include <cstdio>
#include <cstdlib>
#include "dlock_client_api.h"

using namespace dlock;

int main(int argc, char **argv)
{
    struct client_cfg config = {};
    config.log_level = 4;
    config.primary_port = argc > 1 ? std::atoi(argv[1]) : 0;
    char name[] = "packages";
    struct lock_desc desc = {};
    desc.p_desc = name;
    desc.len = sizeof name;
    desc.lock_type = DLOCK_ATOMIC;
    struct lock_request request = {};
    request.lock_op = LOCK_EXCLUSIVE;
    request.expire_time = 10;
    lock_state state = {};
    int client = 0;

    if (dclient_lib_init(&config) != 0 || client_init(&client, "127.0.0.1") != 0) {
        std::puts("no primary");
        return 1;
    }
    int result = get_lock(client, &desc, &request.lock_id);
    if (result == 0) {
        result = trylock(client, &request, &state);
    }
    if (result == 0) {
        result = unlock(client, request.lock_id, &state);
    }
    client_deinit(client);
    dclient_lib_deinit();
    std::printf("locked and unlocked: %d\n", result);
    return result == 0 ? 0 : 1;
}
