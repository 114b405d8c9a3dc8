// SPDX-License-Identifier: MIT OR Apache-2.0
// Links libdlocks: is refused a primary on a port that no client can have.
#include <cstdio>
#include "dlock_server_api.h"

int main()
{
    struct dlock::server_cfg config = {};
    int server = 0;
    config.primary.server_port = 1;
    int result = dlock::dserver_lib_init(1);
    result = result == 0 ? dlock::server_start(config, server) : 1;
    dlock::dserver_lib_deinit();
    std::printf("refused: %d\n", result);
    return result == -1 ? 0 : 1;
}
