/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of checks of every client function: arguments, library, client, lock. */
#ifndef DLOCK_TESTS_SCENARIO_LADDERS_H
#define DLOCK_TESTS_SCENARIO_LADDERS_H

#include "check.h"

/* What every function of a kind returns at one rung of the ladder. */
struct rung {
    int control;      /* client_*: the library's or client's fault */
    int reinit;       /* client_reinit, client_heartbeat */
    int reinit_done;  /* client_reinit_done, update_all_locks */
    int data;         /* lock operations, objects, counters */
};

static char ladder_name[] = "a ladder's lock";

static inline struct lock_desc good_desc(void)
{
    struct lock_desc desc;
    desc.p_desc = ladder_name;
    desc.len = (uint32_t)strlen(ladder_name);
    desc.lock_type = DLOCK_ATOMIC;
    desc.lease_time = 1;
    return desc;
}

static inline struct umo_atomic64_desc good_object(void)
{
    struct umo_atomic64_desc desc;
    desc.p_desc = ladder_name;
    desc.len = (uint32_t)strlen(ladder_name);
    desc.lease_time = 60;
    return desc;
}

static inline void descriptions_refused(int client)
{
    struct lock_desc desc = good_desc();
    int id = 77;
    EQ(get_lock(client, NULL, &id), DLOCK_EINVAL);
    EQ(get_lock(client, &desc, NULL), DLOCK_EINVAL);
    desc.len = 0;
    EQ(get_lock(client, &desc, &id), DLOCK_EINVAL);
    desc.len = MAX_LOCK_DESC_LEN + 1;
    EQ(get_lock(client, &desc, &id), DLOCK_EINVAL);
    desc.len = UINT32_MAX;
    EQ(get_lock(client, &desc, &id), DLOCK_EINVAL);
    desc = good_desc();
    desc.p_desc = NULL;
    EQ(get_lock(client, &desc, &id), DLOCK_EINVAL);
    desc = good_desc();
    desc.lock_type = DLOCK_MAX;
    EQ(get_lock(client, &desc, &id), DLOCK_EINVAL);
    desc.lock_type = UINT32_MAX;
    EQ(get_lock(client, &desc, &id), DLOCK_EINVAL);
    EQ(id, 77);
}

static inline void batch_arguments_refused(int client)
{
    struct lock_desc descs[32];
    struct lock_request reqs[32];
    struct lock_op_res results[32];
    int ids[32];
    for (int i = 0; i < 32; ++i) {
        descs[i] = good_desc();
        reqs[i] = request(1, LOCK_EXCLUSIVE, 1);
        ids[i] = 1;
    }
    memset(results, 0xEE, sizeof(results));
    EQ(batch_get_lock(client, 1, NULL, ids), DLOCK_EINVAL);
    EQ(batch_get_lock(client, 1, descs, NULL), DLOCK_EINVAL);
    EQ(batch_get_lock(client, 0, descs, ids), DLOCK_EINVAL);
    EQ(batch_get_lock(client, 32, descs, ids), DLOCK_EINVAL);
    EQ(batch_get_lock(client, UINT32_MAX, descs, ids), DLOCK_EINVAL);
    descs[30].len = 0;
    EQ(batch_get_lock(client, 31, descs, ids), DLOCK_EINVAL);
    EQ(batch_release_lock(client, 1, NULL), DLOCK_EINVAL);
    EQ(batch_release_lock(client, 0, ids), DLOCK_EINVAL);
    EQ(batch_release_lock(client, 32, ids), DLOCK_EINVAL);
    EQ(ids[0], 1);
    EQ(batch_trylock(client, 1, NULL, results), DLOCK_EINVAL);
    EQ(batch_trylock(client, 1, reqs, NULL), DLOCK_EINVAL);
    EQ(batch_trylock(client, 0, reqs, results), DLOCK_EINVAL);
    EQ(batch_trylock(client, 32, reqs, results), DLOCK_EINVAL);
    EQ(batch_lock_extend(client, 1, reqs, results), DLOCK_EINVAL); /* not an EXTEND_… */
    reqs[30].lock_op = UNLOCK;
    EQ(batch_trylock(client, 31, reqs, results), DLOCK_EINVAL); /* one bad one spoils all */
    reqs[0].lock_op = EXTEND_LOCK_SHARED;
    EQ(batch_trylock(client, 1, reqs, results), DLOCK_EINVAL);
    EQ(batch_lock_extend(client, 1, NULL, results), DLOCK_EINVAL);
    EQ(batch_lock_extend(client, 1, reqs, NULL), DLOCK_EINVAL);
    EQ(batch_lock_extend(client, 0, reqs, results), DLOCK_EINVAL);
    EQ(batch_lock_extend(client, 32, reqs, results), DLOCK_EINVAL);
    EQ(batch_unlock(client, 1, NULL, results), DLOCK_EINVAL);
    EQ(batch_unlock(client, 1, ids, NULL), DLOCK_EINVAL);
    EQ(batch_unlock(client, 0, ids, results), DLOCK_EINVAL);
    EQ(batch_unlock(client, 32, ids, results), DLOCK_EINVAL);
    CHECK(((unsigned char *)results)[0] == 0xEE);
}

static inline void operation_arguments_refused(int client)
{
    static const int bad_for_lock[] = {UNLOCK, EXTEND_LOCK_EXCLUSIVE, EXTEND_LOCK_SHARED,
                                       LOCK_OPS_MAX, -1, 1 << 30};
    static const int bad_for_extend[] = {LOCK_EXCLUSIVE, LOCK_SHARED, UNLOCK, LOCK_OPS_MAX, -1};
    struct lock_request req = request(1, LOCK_EXCLUSIVE, 1);
    lock_state state;
    EQ(trylock(client, NULL, &state), DLOCK_EINVAL);
    EQ(trylock(client, &req, NULL), DLOCK_EINVAL);
    EQ(lock(client, NULL, &state), DLOCK_EINVAL);
    EQ(lock(client, &req, NULL), DLOCK_EINVAL);
    EQ(unlock(client, 1, NULL), DLOCK_EINVAL);
    EQ(lock_result_check(client, NULL), DLOCK_EINVAL);
    for (size_t i = 0; i < sizeof(bad_for_lock) / sizeof(*bad_for_lock); ++i) {
        req.lock_op = bad_for_lock[i];
        EQ(trylock(client, &req, &state), DLOCK_EINVAL);
        EQ(lock(client, &req, &state), DLOCK_EINVAL);
    }
    for (size_t i = 0; i < sizeof(bad_for_extend) / sizeof(*bad_for_extend); ++i) {
        req.lock_op = bad_for_extend[i];
        EQ(lock_extend(client, &req, &state), DLOCK_EINVAL);
    }
    req.lock_op = EXTEND_LOCK_EXCLUSIVE;
    EQ(lock_extend(client, NULL, &state), DLOCK_EINVAL);
    EQ(lock_extend(client, &req, NULL), DLOCK_EINVAL);
    EQ(lock_request_async(client, NULL), DLOCK_EINVAL);
    req.lock_op = LOCK_OPS_MAX;
    EQ(lock_request_async(client, &req), DLOCK_EINVAL);
    req.lock_op = -1;
    EQ(lock_request_async(client, &req), DLOCK_EINVAL);
    EQ(async_op(client, 1, LOCK_EXCLUSIVE, 0), DLOCK_EINVAL);
    EQ(async_op(client, 1, LOCK_SHARED, 0), DLOCK_EINVAL);
}

static inline void object_arguments_refused(int client)
{
    struct umo_atomic64_desc desc = good_object();
    int id = 77;
    EQ(umo_atomic64_create(client, NULL, 0, &id), DLOCK_EINVAL);
    EQ(umo_atomic64_create(client, &desc, 0, NULL), DLOCK_EINVAL);
    EQ(umo_atomic64_get(client, NULL, &id), DLOCK_EINVAL);
    EQ(umo_atomic64_get(client, &desc, NULL), DLOCK_EINVAL);
    for (int fault = 0; fault < 4; ++fault) {
        desc = good_object();
        desc.len = fault == 0 ? 0 : fault == 1 ? MAX_UMO_ATOMIC64_DESC_LEN + 1 : desc.len;
        desc.p_desc = fault == 2 ? NULL : desc.p_desc;
        desc.lease_time = fault == 3 ? 0 : desc.lease_time;
        EQ(umo_atomic64_create(client, &desc, 0, &id), DLOCK_EINVAL);
        EQ(umo_atomic64_get(client, &desc, &id), DLOCK_EINVAL);
    }
    EQ(umo_atomic64_faa(client, 1, 1, NULL), DLOCK_EINVAL);
    EQ(umo_atomic64_get_snapshot(client, 1, NULL), DLOCK_EINVAL);
    EQ(id, 77);
}

/* Invalid arguments are found before anything is known of library, client or lock. */
static inline void arguments_come_first(int client)
{
    int id = 77;
    EQ(client_init(NULL, HOST), DLOCK_EINVAL);
    EQ(client_init(&id, NULL), DLOCK_EINVAL);
    EQ(client_init(NULL, NULL), DLOCK_EINVAL);
    EQ(client_reinit(client, NULL), DLOCK_EINVAL);
    EQ(get_client_debug_stats(client, NULL), DLOCK_EINVAL);
    EQ(id, 77);
    descriptions_refused(client);
    batch_arguments_refused(client);
    operation_arguments_refused(client);
    object_arguments_refused(client);
}

static inline void control_rung(int client, struct rung want)
{
    struct lock_desc desc = good_desc();
    struct debug_stats stats;
    int id = 77;
    EQ(client_reinit(client, HOST), want.reinit);
    EQ(client_reinit(client, "no address"), want.reinit);
    EQ(client_heartbeat(client, 5), want.reinit);
    EQ(client_reinit_done(client), want.reinit_done);
    EQ(update_all_locks(client), want.reinit_done);
    EQ(client_deinit(client), want.control);
    EQ(get_lock(client, &desc, &id), want.control);
    EQ(release_lock(client, 1), want.control);
    /* With any result of the call, the id has been overwritten with the name's hash. */
    uint32_t hash = 5381;
    for (const char *c = ladder_name; *c != '\0'; ++c) {
        hash = hash * 33 + (unsigned char)*c;
    }
    EQ(id, (int32_t)hash);
    id = 77;
    EQ(batch_get_lock(client, 1, &desc, &id), want.control);
    EQ(batch_release_lock(client, 1, &id), want.control);
    EQ(id, 77);
    EQ(get_client_debug_stats(client, &stats), want.data);
    EQ(clear_client_debug_stats(client), want.data);
}

static inline void data_rung(int client, struct rung want)
{
    struct lock_request extend = request(1, EXTEND_LOCK_EXCLUSIVE, 1);
    struct lock_request try_one = request(1, LOCK_EXCLUSIVE, 1);
    struct umo_atomic64_desc object = good_object();
    struct lock_op_res result;
    lock_state state;
    uint64_t value = 5;
    int id = 1;
    double start = seconds_now();
    memset(&state, 0xEE, sizeof(state));
    memset(&result, 0xEE, sizeof(result));
    EQ(trylock(client, &try_one, &state), want.data);
    EQ(lock(client, &try_one, &state), want.data);
    EQ(unlock(client, 1, &state), want.data);
    EQ(lock_extend(client, &extend, &state), want.data);
    EQ(lock_request_async(client, &try_one), want.data);
    EQ(lock_result_check(client, &state), want.data);
    EQ(batch_trylock(client, 1, &try_one, &result), want.data);
    EQ(batch_lock_extend(client, 1, &extend, &result), want.data);
    EQ(batch_unlock(client, 1, &id, &result), want.data);
    EQ(umo_atomic64_create(client, &object, 1, &id), want.data);
    EQ(umo_atomic64_get(client, &object, &id), want.data);
    EQ(umo_atomic64_release(client, 1), want.data);
    EQ(umo_atomic64_destroy(client, 1), want.data);
    EQ(umo_atomic64_faa(client, 1, 1, &value), want.data);
    EQ(umo_atomic64_cas(client, 1, 0, 1), want.data);
    EQ(umo_atomic64_get_snapshot(client, 1, &value), want.data);
    EQ(id, 1);
    EQ(value, 5);
    EQ(((unsigned char *)&state)[0], 0xEE);
    EQ(((unsigned char *)&result)[0], 0xEE);
    /* No error that waiting cannot cure is waited for. */
    CHECK_WITHIN(start, 4 * slowness());
}

/* Before dclient_lib_init(). */
static inline void ladder_without_library(void)
{
    struct rung want = {-1, -1, -1, DLOCK_CLIENTMGR_NOT_INIT};
    int id = 77;
    arguments_come_first(5);
    EQ(client_init(&id, HOST), -1);
    EQ(client_init(&id, "no address"), -1);
    EQ(client_heartbeat(5, 0), -1); /* here the library comes before the argument */
    EQ(id, 77);
    control_rung(5, want);
    data_rung(5, want);
    dclient_lib_deinit(); /* harmless */
}

/* With the library, but without the client. */
static inline void ladder_without_client(void)
{
    static const int unknown[] = {1, 0, -1, INT32_MAX, INT32_MIN};
    struct rung want = {-1, DLOCK_EINVAL, DLOCK_CLIENT_NOT_INIT, DLOCK_CLIENT_NOT_INIT};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); ++i) {
        arguments_come_first(unknown[i]);
        EQ(client_heartbeat(unknown[i], 0), DLOCK_EINVAL);
        EQ(client_heartbeat(unknown[i], 301), DLOCK_EINVAL);
        control_rung(unknown[i], want);
        data_rung(unknown[i], want);
    }
}

/* The checks of dclient_lib_init() itself; leaves the library initialised for this port. */
static inline void ladder_of_library_init(int port)
{
    static char path[] = "/no/such/file";
    struct client_cfg cfg;
    EQ(dclient_lib_init(NULL), DLOCK_EINVAL);
    for (int bad = 0; bad < 4; ++bad) {
        static const int ports[] = {1, 1023, 65536, INT32_MAX};
        fill_client_cfg(&cfg, ports[bad]);
        EQ(dclient_lib_init(&cfg), DLOCK_EINVAL);
    }
    fill_client_cfg(&cfg, port);
    memset(&cfg.ssl, 0, sizeof(cfg.ssl));
    cfg.ssl.ssl_enable = true;
    EQ(dclient_lib_init(&cfg), DLOCK_EINVAL);
    cfg.ssl.ca_path = cfg.ssl.cert_path = cfg.ssl.prkey_path = path;
    EQ(dclient_lib_init(&cfg), DLOCK_EINVAL); /* the callbacks are missing */
    fill_client_cfg(&cfg, port);
    cfg.tp_mode = (trans_mode_t)2;
    EQ(dclient_lib_init(&cfg), -1);
    fill_client_cfg(&cfg, port); /* devices: devices.c */
    cfg.log_level = 99;          /* ignored */
    EQ(dclient_lib_init(&cfg), 0);
    EQ(dclient_lib_init(&cfg), -1);
    fill_client_cfg(&cfg, 80);
    EQ(dclient_lib_init(&cfg), DLOCK_EINVAL); /* before "initialised already" */
    EQ(dclient_lib_init(NULL), DLOCK_EINVAL);
    dclient_lib_deinit();
    EQ(init_client_library(port), 0);
}

/* Client, but no lock; and the addresses that client_init() refuses. */
static inline void ladder_without_lock(int client)
{
    struct lock_request req = request(1, LOCK_EXCLUSIVE, 0);
    struct lock_op_res result;
    lock_state state;
    uint64_t value;
    int id = 1;
    double start = seconds_now();
    EQ(client_init(&id, "no address"), -1);
    EQ(client_init(&id, ""), -1);
    EQ(client_init(&id, "1.2.3"), -1);
    EQ(client_init(&id, "127.0.0.1.5"), -1);
    EQ(client_reinit(client, "no address"), -1);
    EQ(id, 1);
    EQ(client_heartbeat(client, 0), DLOCK_EINVAL);
    EQ(client_heartbeat(client, 301), DLOCK_EINVAL);
    EQ(client_heartbeat(client, 300), 0);
    EQ(client_heartbeat(client, 1), 0);
    EQ(trylock(client, &req, &state), DLOCK_LOCK_NOT_GET);
    req.expire_time = 3;
    EQ(trylock(client, &req, &state), DLOCK_LOCK_NOT_GET);
    req.lock_op = LOCK_SHARED;
    EQ(trylock(client, &req, &state), DLOCK_LOCK_NOT_GET);
    EQ(lock(client, &req, &state), DLOCK_LOCK_NOT_GET);
    EQ(unlock(client, 1, &state), DLOCK_LOCK_NOT_GET);
    EQ(extend_op(client, 1, EXTEND_LOCK_EXCLUSIVE, 1), DLOCK_LOCK_NOT_GET);
    EQ(lock_request_async(client, &req), DLOCK_LOCK_NOT_GET);
    EQ(lock_result_check(client, &state), DLOCK_NO_ASYNC);
    EQ(release_lock(client, 1), -1);
    EQ(batch_trylock(client, 1, &req, &result), 0);
    EQ(result.op_ret, DLOCK_LOCK_NOT_GET);
    EQ(batch_unlock(client, 1, &id, &result), 0);
    EQ(result.op_ret, DLOCK_LOCK_NOT_GET);
    req.lock_op = EXTEND_LOCK_SHARED;
    EQ(batch_lock_extend(client, 1, &req, &result), 0);
    EQ(result.op_ret, DLOCK_LOCK_NOT_GET);
    EQ(batch_release_lock(client, 1, &id), -1);
    EQ(id, 0);
    EQ(umo_atomic64_release(client, 1), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_destroy(client, 1), DLOCK_OBJECT_NOT_CREATE);
    EQ(umo_atomic64_faa(client, 1, 1, &value), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_cas(client, 1, 1, 2), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_get_snapshot(client, 1, &value), DLOCK_OBJECT_NOT_GET);
    CHECK_WITHIN(start, 4);
    arguments_come_first(client);
}

#endif
