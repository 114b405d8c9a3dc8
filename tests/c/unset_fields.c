/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Existing programs leave fields unset; every byte that they do not set is 0xAA here. */
#include <signal.h>
#include <sys/mman.h>

#include "check.h"

int main(void)
{
    struct server_cfg server;
    struct client_cfg client;
    int port = free_port(), server_id = 0, id = 0;
    /* The strings lie in memory that cannot be written. */
    char *page = (char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                              -1, 0);
    NEED(page != MAP_FAILED);
    strcpy(page, "0,0-0");
    strcpy(page + 64, HOST);
    NEED(mprotect(page, 4096, PROT_READ) == 0);
    limit_seconds(60);

    memset(&server, 0xAA, sizeof(server));
    server.type = SERVER_PRIMARY;
    server.dev_name = NULL;
    memset(&server.eid, 0, sizeof(server.eid));
    server.log_level = 0;
    server.primary.num_of_replica = 0;
    server.primary.recovery_client_num = 0;
    server.primary.ctrl_cpuset = page;
    server.primary.cmd_cpuset = page;
    server.primary.server_ip_str = page + 64;
    server.primary.server_port = port;
    server.primary.replica_enable = false;
    server.ssl.ssl_enable = false;
    server.tp_mode = UNI_CONN;
    memset(&client, 0xAA, sizeof(client));
    client.dev_name = NULL;
    memset(&client.eid, 0, sizeof(client.eid));
    client.log_level = 0;
    client.primary_port = port;
    client.ssl.ssl_enable = false;
    client.tp_mode = UNI_CONN;

    struct sigaction before, after;
    NEED(sigaction(SIGPIPE, NULL, &before) == 0);
    EQ(dserver_lib_init(1), 0);
    EQ(start_server(&server, &server_id), 0);
    EQ(dclient_lib_init(&client), 0);
    memset(&client, 0x55, sizeof(client)); /* nothing of it is kept */
    EQ(client_init(&id, HOST), 0);
    int lock_id = must_get(id, "lock", DLOCK_ATOMIC);
    EQ(lock_op(id, lock_id, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(id, lock_id), 0);

    /* tp_mode must be the primary's. */
    dclient_lib_deinit();
    EQ(init_client_library(port), 0);
    EQ(client_init(&id, HOST), -1);
    dclient_lib_deinit();

    /* A port not above 0 is the one before, even over a deinit. */
    memset(&client, 0, sizeof(client));
    client.primary_port = -5;
    client.log_level = -3;
    client.tp_mode = UNI_CONN;
    EQ(dclient_lib_init(&client), 0);
    EQ(client_init(&id, HOST), 0);
    EQ(client_heartbeat(id, 5), 0);
    EQ(client_deinit(id), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();

    NEED(sigaction(SIGPIPE, NULL, &after) == 0);
    CHECK(before.sa_handler == after.sa_handler); /* the process's signals are its own */
    EQ(strcmp(page, "0,0-0"), 0);
    return conclusion("unset_fields");
}
