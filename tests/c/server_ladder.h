/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The server functions: their checks, ids, limits, and what clients see of their state. */
#ifndef DLOCK_TESTS_SERVER_LADDER_H
#define DLOCK_TESTS_SERVER_LADDER_H

#include "scenario_ladders.h"
#include "scenario_more.h"

static inline int refuses(struct server_cfg cfg)
{
    int id = -7;
    int status = start_server(&cfg, &id);
    return status == -1;
}

static inline void bad_configurations(void)
{
    static const int bad_ports[] = {1, 1023, 65536, INT32_MAX};
    static char path[] = "/no/such/file", no_ip[] = "no address";
    static char other_ip[] = "192.0.2.1";
    static const char *const bad_cpus[] = {"", "-1", "1-2-3", "a", "0,", "99999", "3-1", "0 - x"};
    struct server_cfg good, cfg;
    char cpus[16], before[16];
    fill_server_cfg(&good, free_port());
    for (int i = 0; i < 4; ++i) {
        cfg = good;
        cfg.primary.server_port = bad_ports[i];
        CHECK(refuses(cfg));
    }
    cfg = good, cfg.type = SERVER_REPLICA;
    CHECK(refuses(cfg));
    cfg = good, cfg.type = SERVER_MAX;
    CHECK(refuses(cfg));
    cfg = good, cfg.primary.replica_enable = true;
    CHECK(refuses(cfg));
    cfg = good, cfg.primary.recovery_client_num = 1001;
    CHECK(refuses(cfg));
    cfg = good, cfg.primary.num_of_replica = 1;
    CHECK(refuses(cfg));
    cfg = good, cfg.tp_mode = (trans_mode_t)2;
    CHECK(refuses(cfg));
    cfg = good;
    memset(&cfg.ssl, 0, sizeof(cfg.ssl));
    cfg.ssl.ssl_enable = true;
    CHECK(refuses(cfg));
    cfg.ssl.ca_path = cfg.ssl.cert_path = cfg.ssl.prkey_path = path;
    CHECK(refuses(cfg));
    cfg = good, cfg.primary.server_ip_str = no_ip;
    CHECK(refuses(cfg));
    cfg = good, cfg.primary.server_ip_str = NULL;
    CHECK(refuses(cfg));
    cfg = good, cfg.primary.server_ip_str = other_ip; /* not of this host */
    CHECK(refuses(cfg));
    for (size_t i = 0; i < sizeof(bad_cpus) / sizeof(*bad_cpus); ++i) {
        cfg = good;
        cfg.primary.cmd_cpuset = mutable_text(bad_cpus[i], cpus, sizeof(cpus));
        memcpy(before, cpus, sizeof(cpus));
        if (!refuses(cfg)) {
            fprintf(stderr, "cpuset '%s' was accepted\n", bad_cpus[i]);
            CHECK(0);
        }
        CHECK(memcmp(before, cpus, strlen(bad_cpus[i]) + 1) == 0); /* left as it was */
        cfg.primary.cmd_cpuset = NULL;
        cfg.primary.ctrl_cpuset = cpus;
        CHECK(refuses(cfg));
    }
}

/* All checks of the server functions; ends with the library deinitialised. */
static inline void ladder_of_servers(void)
{
    struct server_cfg cfg;
    struct debug_stats stats;
    int first = -7, second = -7, third = -7;
    fill_server_cfg(&cfg, free_port());
    EQ(start_server(&cfg, &first), -1); /* no library */
    EQ(first, -7);
    EQ(server_stop(1), -1);
    EQ(get_server_debug_stats(1, &stats), -1);
    EQ(clear_server_debug_stats(1), -1);
    EQ(dserver_lib_init(0), -1);
    EQ(dserver_lib_init(33), -1);
    EQ(dserver_lib_init(UINT32_MAX), -1);
    EQ(dserver_lib_init(2), 0);
    EQ(dserver_lib_init(2), -1);
    bad_configurations();

    EQ(start_server(&cfg, &first), 0);
    CHECK(first > 0);
    EQ(start_server(&cfg, &second), -1); /* the port is in use */
    CHECK(second != first);              /* but an id was assigned before that was known */
    fill_server_cfg(&cfg, free_port());
    static char cpus[] = " 0 , 0-0";
    cfg.primary.ctrl_cpuset = cpus;
    cfg.primary.cmd_cpuset = cpus;
    cfg.tp_mode = UNI_CONN;
    cfg.sleep_mode_enable = false;
    EQ(start_server(&cfg, &second), 0);
    EQ(strcmp(cpus, " 0 , 0-0"), 0);
    CHECK(second > first);
    fill_server_cfg(&cfg, free_port());
    EQ(start_server(&cfg, &third), DLOCK_SERVER_NO_RESOURCE);
    EQ(third, -1);
    EQ(get_server_debug_stats(first, &stats), 0);
    EQ(get_server_debug_stats(first, NULL), -1);
    EQ(clear_server_debug_stats(second), 0);
    static const int bad_ids[] = {0, -1, 0x100000, 0xFFFFF, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof(bad_ids) / sizeof(*bad_ids); ++i) {
        EQ(server_stop(bad_ids[i]), -1);
        EQ(get_server_debug_stats(bad_ids[i], &stats), -1);
        EQ(clear_server_debug_stats(bad_ids[i]), -1);
    }
    double start = seconds_now();
    EQ(server_stop(first), 0);
    CHECK_WITHIN(start, 1.0);
    EQ(server_stop(first), -1);
    EQ(start_server(&cfg, &third), 0); /* there is room again */
    CHECK(third != second && third != first);
    start = seconds_now();
    dserver_lib_deinit(); /* stops the others */
    CHECK_WITHIN(start, 2.0);
    EQ(server_stop(second), -1);
}

static inline void server_counters(int server)
{
    struct debug_stats stats;
    EQ(get_server_debug_stats(server, &stats), 0);
    EQ(clear_server_debug_stats(server), 0);
    EQ(get_server_debug_stats(server, &stats), 0);
    EQ(stats.stats[DEBUG_STATS_CLIENT_ID_VERIFY_FAIL], 0);
}

/* A primary that waits for a client to come back serves no other. */
static inline void recovering_primary(void)
{
    struct server_cfg cfg;
    struct client_cfg client;
    int server = -7, id = -7, port = free_port();
    fill_server_cfg(&cfg, port);
    cfg.primary.recovery_client_num = 1;
    NEED(start_server(&cfg, &server) == 0);
    dclient_lib_deinit();
    fill_client_cfg(&client, port);
    EQ(dclient_lib_init(&client), 0);
    EQ(client_init(&id, HOST), DLOCK_NOT_READY);
    EQ(client_init(&id, HOST), DLOCK_NOT_READY);
    EQ(id, -7);
    EQ(server_stop(server), 0);
}

/* What clients of a primary see of its end, and of a successor at the same address that does
 * not know them; returns the successor's id. */
static inline int unknowing_successor(int server, int port)
{
    uint64_t value;
    int successor, other = -7, client = new_client();
    int lock_id = must_get(client, "lost with its primary", DLOCK_ATOMIC);
    EQ(server_stop(server), 0);
    double start = seconds_now();
    EQ(client_heartbeat(client, 1), DLOCK_BAD_RESPONSE);
    EQ(get_named(client, "another", DLOCK_ATOMIC, &other), DLOCK_BAD_RESPONSE);
    EQ(client_reinit(client, HOST), DLOCK_NOT_READY); /* no listener */
    EQ(umo_atomic64_faa(client, 1, 1, &value), DLOCK_OBJECT_NOT_GET);
    successor = start_primary(port);
    EQ(client_reinit(client, HOST), DLOCK_CLIENT_REMOVED_BY_SERVER);
    EQ(client_heartbeat(client, 1), DLOCK_BAD_RESPONSE); /* nothing has changed */
    EQ(release_lock(client, lock_id), DLOCK_BAD_RESPONSE);
    EQ(client_deinit(client), DLOCK_BAD_RESPONSE);
    EQ(client_deinit(client), -1);
    CHECK_WITHIN(start, 10);
    return successor;
}

#endif
