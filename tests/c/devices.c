/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dev_name and eid: which RDMA port is meant, and when that does not matter. */
#include <glob.h>

#include "check.h"

static char no_device[] = "no_such_device";

/* An address of TEST-NET-1, which no port has. */
static dlock_eid_t no_ports_address(void)
{
    dlock_eid_t eid;
    memset(&eid, 0, sizeof(eid));
    eid.in4.prefix = htonl(0x0000ffff);
    eid.in4.addr = htonl(0xC0000201);
    return eid;
}

/* The results of dclient_lib_init() and server_start(), both with this device and eid. */
static void both_give(const char *fabric, char *device, dlock_eid_t eid, int want)
{
    struct client_cfg client;
    struct server_cfg server;
    int id = 0, port = free_port();
    NEED(setenv("DLOCK_FABRIC", fabric, 1) == 0);
    fill_client_cfg(&client, port);
    client.dev_name = device;
    client.eid = eid;
    EQ(dclient_lib_init(&client), want);
    dclient_lib_deinit();
    fill_server_cfg(&server, port);
    server.dev_name = device;
    server.eid = eid;
    EQ(dserver_lib_init(1), 0);
    EQ(start_server(&server, &id), want);
    dserver_lib_deinit();
}

/* Where a fabric without devices is demanded, sessions are made with any device name. */
static void session_on(const char *fabric)
{
    struct client_cfg client;
    struct server_cfg server;
    int id = 0, port = free_port();
    NEED(setenv("DLOCK_FABRIC", fabric, 1) == 0);
    fill_server_cfg(&server, port);
    server.dev_name = no_device;
    EQ(dserver_lib_init(1), 0);
    EQ(start_server(&server, &id), 0);
    fill_client_cfg(&client, port);
    client.dev_name = no_device;
    client.eid = no_ports_address();
    EQ(dclient_lib_init(&client), 0);
    int c = new_client();
    int lock_id = must_get(c, "without a device", DLOCK_ATOMIC);
    EQ(lock_op(c, lock_id, LOCK_EXCLUSIVE, 5), 0);
    EQ(unlock_op(c, lock_id), 0);
    EQ(client_deinit(c), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();
}

int main(void)
{
    const dlock_eid_t address = no_ports_address();
    dlock_eid_t none;
    glob_t found;
    int has_ports = glob("/sys/class/infiniband/*", 0, NULL, &found) == 0;
    memset(&none, 0, sizeof(none));
    limit_seconds(60);

    both_give("auto", NULL, none, 0);
    both_give("auto", no_device, none, -1);
    both_give("auto", no_device, address, -1);
    /* A host without RDMA serves without it; one that has ports is told which. */
    both_give("auto", NULL, address, has_ports ? -1 : 0);
    /* The operator has decided. */
    both_give("tcp", no_device, none, 0);
    both_give("shm", no_device, none, 0);
    both_give("tcp", no_device, address, 0);
    both_give("shm", NULL, address, 0);
    session_on("shm");
    session_on("tcp");
    if (has_ports) {
        globfree(&found);
    }
    return conclusion("devices");
}
