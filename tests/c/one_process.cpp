// SPDX-License-Identifier: MIT OR Apache-2.0
// A primary and 8 clients in one process, through the whole interface, in C++.
#include "server_ladder.h"

int main()
{
    limit_seconds(120);
    int port = free_port();
    int refused = -7;
    ladder_of_servers();
    ladder_without_library();
    ladder_of_library_init(port);
    ladder_without_client();
    EQ(client_init(&refused, HOST), DLOCK_NOT_READY); // no listener
    EQ(refused, -7);
    EQ(dserver_lib_init(2), 0);
    int server = start_primary(port);
    int client = new_client();
    ladder_without_lock(client);
    EQ(client_deinit(client), 0);
    whole_scenario();
    server_counters(server);
    server = unknowing_successor(server, port);
    recovering_primary();
    EQ(server_stop(server), 0);
    EQ(server_stop(server), -1);
    EQ(client_init(&refused, HOST), DLOCK_NOT_READY);
    dclient_lib_deinit();
    ladder_without_library();
    dserver_lib_deinit();
    dserver_lib_deinit(); // harmless
    return conclusion("one_process");
}
