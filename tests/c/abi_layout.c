/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sizes, alignments, offsets and values of the interface; compiled as C11 and as C++11. */
#ifndef __cplusplus
#include <assert.h>
#define ALIGN_OF _Alignof
#else
#define ALIGN_OF alignof
#endif
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "dlock_client_api.h"
#include "dlock_log.h"
#include "dlock_server_api.h"

#ifdef __cplusplus
using namespace dlock;
#endif

#define SIZE(type, size, align)                         \
    static_assert(sizeof(type) == (size), #type);       \
    static_assert(ALIGN_OF(type) == (align), #type)
#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)
#define VALUE(name, value) static_assert((name) == (value), #name)

SIZE(debug_stats, 360, 8);
AT(debug_stats, stats, 0);
SIZE(err_event, 1, 1);
SIZE(lock_desc, 24, 8);
AT(lock_desc, p_desc, 0);
AT(lock_desc, len, 8);
AT(lock_desc, lock_type, 12);
AT(lock_desc, lease_time, 16);
SIZE(lock_request, 12, 4);
AT(lock_request, lock_id, 0);
AT(lock_request, lock_op, 4);
AT(lock_request, expire_time, 8);
SIZE(atomic_state, 8, 4);
AT(atomic_state, client_id, 0);
AT(atomic_state, time_out, 4);
SIZE(rw_state, 16, 4);
AT(rw_state, time_out, 0);
AT(rw_state, client_id, 4);
AT(rw_state, rcount, 8);
AT(rw_state, rsvd, 12);
SIZE(fairlock_state, 16, 4);
AT(fairlock_state, n_exclusive, 0);
AT(fairlock_state, n_shared, 2);
AT(fairlock_state, m_exclusive, 4);
AT(fairlock_state, m_shared, 6);
AT(fairlock_state, time_out, 8);
AT(fairlock_state, t_value, 12);
SIZE(lock_state, 16, 8);
AT(lock_state, atomic, 0);
AT(lock_state, rw, 0);
AT(lock_state, fl, 0);
AT(lock_state, base, 0);
SIZE(lock_op_res, 20, 4);
AT(lock_op_res, atomic, 0);
AT(lock_op_res, rw, 0);
AT(lock_op_res, fl, 0);
AT(lock_op_res, op_ret, 16);
SIZE(lock_context, 32, 8);
AT(lock_context, lock_type, 0);
AT(lock_context, lock_id, 4);
AT(lock_context, lease_time, 8);
AT(lock_context, ref_count, 12);
AT(lock_context, ls, 16);
SIZE(ssl_cfg, 64, 8);
AT(ssl_cfg, ssl_enable, 0);
AT(ssl_cfg, ca_path, 8);
AT(ssl_cfg, crl_path, 16);
AT(ssl_cfg, cert_path, 24);
AT(ssl_cfg, prkey_path, 32);
AT(ssl_cfg, cert_verify_cb, 40);
AT(ssl_cfg, prkey_pwd_cb, 48);
AT(ssl_cfg, erase_prkey_cb, 56);
SIZE(dlock_eid_t, 16, 8);
AT(dlock_eid_t, raw, 0);
AT(dlock_eid_t, in4.reserved, 0);
AT(dlock_eid_t, in4.prefix, 8);
AT(dlock_eid_t, in4.addr, 12);
AT(dlock_eid_t, in6.subnet_prefix, 0);
AT(dlock_eid_t, in6.interface_id, 8);
SIZE(client_cfg, 104, 8);
AT(client_cfg, dev_name, 0);
AT(client_cfg, eid, 8);
AT(client_cfg, log_level, 24);
AT(client_cfg, primary_port, 28);
AT(client_cfg, ssl, 32);
AT(client_cfg, tp_mode, 96);
AT(client_cfg, ub_token_disable, 100);
SIZE(primary_cfg, 48, 8);
AT(primary_cfg, num_of_replica, 0);
AT(primary_cfg, recovery_client_num, 4);
AT(primary_cfg, ctrl_cpuset, 8);
AT(primary_cfg, cmd_cpuset, 16);
AT(primary_cfg, server_ip_str, 24);
AT(primary_cfg, server_port, 32);
AT(primary_cfg, replica_port, 36);
AT(primary_cfg, replica_enable, 40);
SIZE(replica_cfg, 16, 8);
AT(replica_cfg, primary_ip_str, 0);
AT(replica_cfg, primary_port, 8);
SIZE(server_cfg, 160, 8);
AT(server_cfg, type, 0);
AT(server_cfg, dev_name, 8);
AT(server_cfg, eid, 16);
AT(server_cfg, log_level, 32);
AT(server_cfg, sleep_mode_enable, 36);
AT(server_cfg, primary, 40);
AT(server_cfg, replica, 40);
AT(server_cfg, ssl, 88);
AT(server_cfg, tp_mode, 152);
AT(server_cfg, ub_token_disable, 156);
SIZE(umo_atomic64_desc, 16, 8);
AT(umo_atomic64_desc, p_desc, 0);
AT(umo_atomic64_desc, len, 8);
AT(umo_atomic64_desc, lease_time, 12);

VALUE(MAX_LOCK_DESC_LEN, 512);
VALUE(MAX_UMO_ATOMIC64_DESC_LEN, 512);
VALUE(MAX_LOCK_BATCH_SIZE, 31);
VALUE(SLEEP_INTERVAL, 100000);
VALUE(DLOCK_EID_SIZE, 16);
VALUE(LOCK_EXCLUSIVE, 0);
VALUE(LOCK_SHARED, 1);
VALUE(UNLOCK, 2);
VALUE(EXTEND_LOCK_EXCLUSIVE, 3);
VALUE(EXTEND_LOCK_SHARED, 4);
VALUE(LOCK_OPS_MAX, 5);
VALUE(DLOCK_ATOMIC, 0);
VALUE(DLOCK_RW, 1);
VALUE(DLOCK_FAIR, 2);
VALUE(DLOCK_MAX, 3);
VALUE(SERVER_PRIMARY, 0);
VALUE(SERVER_REPLICA, 1);
VALUE(SERVER_MAX, 2);
VALUE(CTRL_THREAD, 0);
VALUE(CMD_THREAD, 1);
VALUE(SEPERATE_CONN, 0);
VALUE(UNI_CONN, 1);
VALUE(CLIENT, 0);
VALUE(CLIENT_PRIMARY, 1);
VALUE(REPLICA_PRIMARY, 2);
VALUE(DLOCK_SUCCESS, 0);
VALUE(DLOCK_DONE, 1);
VALUE(DLOCK_EAGAIN, 0x1000);
VALUE(DLOCK_ENOMEM, 0x1001);
VALUE(DLOCK_ETIMEOUT, 0x1002);
VALUE(DLOCK_EINVAL, 0x1003);
VALUE(DLOCK_ETICKET, 0x1004);
VALUE(DLOCK_EASYNC, 0x1005);
VALUE(DLOCK_CLIENT_NOT_INIT, 0x2000);
VALUE(DLOCK_LOCK_NOT_GET, 0x2001);
VALUE(DLOCK_ALREADY_LOCKED, 0x2002);
VALUE(DLOCK_ALREADY_UNLOCKED, 0x2003);
VALUE(DLOCK_TICKET_TO_UNLOCK, 0x2004);
VALUE(DLOCK_BAD_RESPONSE, 0x2005);
VALUE(DLOCK_FAIL, 0x2006);
VALUE(DLOCK_CLIENTMGR_NOT_INIT, 0x2007);
VALUE(DLOCK_NOT_READY, 0x2008);
VALUE(DLOCK_NO_ASYNC, 0x2009);
VALUE(DLOCK_ASYNC_AGAIN, 0x200A);
VALUE(DLOCK_REPLICA_INIT_FAIL, 0x200B);
VALUE(DLOCK_SERVER_NOT_INIT, 0x200C);
VALUE(DLOCK_CLIENT_REMOVED_BY_SERVER, 0x200D);
VALUE(DLOCK_PROTO_VERSION_NEGOTIATION_FAIL, 0x200E);
VALUE(DLOCK_SERVER_NO_RESOURCE, 0x200F);
VALUE(DLOCK_OBJECT_ALREADY_EXISTED, 0x3000);
VALUE(DLOCK_OBJECT_ALREADY_CREATED, 0x3001);
VALUE(DLOCK_OBJECT_NOT_CREATE, 0x3002);
VALUE(DLOCK_OBJECT_INVALID_OWNER, 0x3003);
VALUE(DLOCK_OBJECT_NOT_GET, 0x3004);
VALUE(DLOCK_OBJECT_ALREADY_DESTROYED, 0x3005);
VALUE(DLOCK_OBJECT_TOO_MANY, 0x3006);
VALUE(DLOCK_OBJECT_CAS_FAILED, 0x3007);
VALUE(DEBUG_STATS_EAGAIN, 0);
VALUE(DEBUG_STATS_NO_URMA_BUF, 1);
VALUE(DEBUG_STATS_ENOMEM, 2);
VALUE(DEBUG_STATS_ETIMEOUT, 3);
VALUE(DEBUG_STATS_EINVAL_LOCK_OP, 4);
VALUE(DEBUG_STATS_EINVAL_LOCK_TYPE, 5);
VALUE(DEBUG_STATS_EINVAL_LOCK_OFFSET, 6);
VALUE(DEBUG_STATS_EINVAL_LOCK_RET, 7);
VALUE(DEBUG_STATS_ETICKET, 8);
VALUE(DEBUG_STATS_EASYNC, 9);
VALUE(DEBUG_STATS_CLIENT_NOT_INIT, 10);
VALUE(DEBUG_STATS_LOCK_NOT_GET, 11);
VALUE(DEBUG_STATS_ALREADY_LOCKED, 12);
VALUE(DEBUG_STATS_ALREADY_UNLOCKED, 13);
VALUE(DEBUG_STATS_ATOMIC_TRYLOCK_FAIL, 14);
VALUE(DEBUG_STATS_ATOMIC_UNLOCK_FAIL, 15);
VALUE(DEBUG_STATS_ATOMIC_EXTEND_FAIL, 16);
VALUE(DEBUG_STATS_RW_TRYLOCK_EX_FAIL, 17);
VALUE(DEBUG_STATS_RW_UNLOCK_EX_FAIL, 18);
VALUE(DEBUG_STATS_RW_TRYLOCK_SH_FAIL, 19);
VALUE(DEBUG_STATS_RW_UNLOCK_SH_FAIL, 20);
VALUE(DEBUG_STATS_FAIR_QUEUE_LIMIT, 21);
VALUE(DEBUG_STATS_FAIR_UNLOCK_EX_FAIL, 22);
VALUE(DEBUG_STATS_FAIR_UNLOCK_SH_FAIL, 23);
VALUE(DEBUG_STATS_FAIR_EX_TICKET_PASSED, 24);
VALUE(DEBUG_STATS_FAIR_SH_TICKET_PASSED, 25);
VALUE(DEBUG_STATS_INVALID_LOCK_STATE, 26);
VALUE(DEBUG_STATS_TICKET_TO_UNLOCK, 27);
VALUE(DEBUG_STATS_NETWORK_FAIL, 28);
VALUE(DEBUG_STATS_SEND_FAIL, 29);
VALUE(DEBUG_STATS_BAD_RESPONSE, 30);
VALUE(DEBUG_STATS_CLIENT_DISCONNECT, 31);
VALUE(DEBUG_STATS_FAIL, 32);
VALUE(DEBUG_STATS_CLIENTMGR_NOT_INIT, 33);
VALUE(DEBUG_STATS_NOT_READY, 34);
VALUE(DEBUG_STATS_NO_ASYNC, 35);
VALUE(DEBUG_STATS_ASYNC_AGAIN, 36);
VALUE(DEBUG_STATS_REPLICA_INIT_FAIL, 37);
VALUE(DEBUG_STATS_SERVER_NOT_INIT, 38);
VALUE(DEBUG_STATS_ENCRYPT_FAIL, 39);
VALUE(DEBUG_STATS_DECRYPT_FAIL, 40);
VALUE(DEBUG_STATS_CLIENT_ID_VERIFY_FAIL, 41);
VALUE(DEBUG_STATS_BAD_REQUEST, 42);
VALUE(DEBUG_STATS_OBJECT_NOT_GET, 43);
VALUE(DEBUG_STATS_OBJECT_CAS_FAILED, 44);
VALUE(DEBUG_STATS_MAX, 45);

/* Types of fields and of callbacks that programs assign to without a cast. */
static int verify(void *ctx, const char *crl_path)
{
    return ctx != NULL && crl_path != NULL;
}
static void password(char **pwd, int *len)
{
    *pwd = NULL;
    *len = 0;
}
static void erase(void *pwd, int len)
{
    (void)pwd;
    (void)len;
}
static int event(const struct err_event *e)
{
    return e->err_type;
}

static int fields_can_be_assigned(void)
{
    static char text[] = "text";
    struct server_cfg server;
    struct client_cfg client;
    struct lock_context context;
    callback_func_t callback = event;
    tls_cert_verify_callback_func_t cert = verify;
    memset(&server, 0, sizeof(server));
    memset(&client, 0, sizeof(client));
    memset(&context, 0, sizeof(context));
    server.type = SERVER_REPLICA;
    server.replica.primary_ip_str = text;
    server.replica.primary_port = 21616;
    server.ssl.cert_verify_cb = cert;
    server.ssl.prkey_pwd_cb = password;
    server.ssl.erase_prkey_cb = erase;
    server.ssl.ca_path = server.ssl.crl_path = server.ssl.cert_path = text;
    server.ssl.prkey_path = client.dev_name = text;
    server.eid.in4.addr = client.eid.in4.prefix = 7;
    server.eid.raw[15] = (uint8_t)client.eid.in6.interface_id;
    client.tp_mode = server.tp_mode = UNI_CONN;
    client.ssl = server.ssl;
    context.ls.fl.bs.rcnt = 63;
    context.ls.fl.bs.rsvd = 0x1ff;
    return callback != NULL && context.ls.rw.rsvd == 0xfffe0000 && client.ssl.ca_path == text &&
           (void *)&server.replica == (void *)&server.primary;
}

/* A function of another type is no initialiser, in neither language. */
#define SIGNATURE(name, result, ...)            \
    do {                                        \
        result (*function)(__VA_ARGS__) = name; \
        found += function != NULL;              \
    } while (0)

static int functions_found(void)
{
    int found = 0;
    SIGNATURE(dserver_lib_init, int, unsigned);
    SIGNATURE(dserver_lib_deinit, void, void);
#ifdef __cplusplus
    SIGNATURE(server_start, int, const server_cfg &, int &);
#else
    SIGNATURE(server_start, int, const struct server_cfg *, int *);
#endif
    SIGNATURE(server_stop, int, int);
    SIGNATURE(get_server_debug_stats, int, int, debug_stats *);
    SIGNATURE(clear_server_debug_stats, int, int);
    SIGNATURE(dclient_lib_init, int, const client_cfg *);
    SIGNATURE(dclient_lib_deinit, void, void);
    SIGNATURE(client_init, int, int *, const char *);
    SIGNATURE(client_reinit, int, int, const char *);
    SIGNATURE(client_deinit, int, int);
    SIGNATURE(client_heartbeat, int, int, unsigned);
    SIGNATURE(client_reinit_done, int, int);
    SIGNATURE(update_all_locks, int, int);
    SIGNATURE(get_client_debug_stats, int, int, debug_stats *);
    SIGNATURE(clear_client_debug_stats, int, int);
    SIGNATURE(get_lock, int, int, const lock_desc *, int *);
    SIGNATURE(release_lock, int, int, int);
    SIGNATURE(batch_get_lock, int, int, unsigned, const lock_desc *, int *);
    SIGNATURE(batch_release_lock, int, int, unsigned, int *);
    SIGNATURE(trylock, int, int, const lock_request *, void *);
    SIGNATURE(lock, int, int, const lock_request *, void *);
    SIGNATURE(unlock, int, int, int, void *);
    SIGNATURE(lock_extend, int, int, const lock_request *, void *);
    SIGNATURE(batch_trylock, int, int, unsigned, const lock_request *, void *);
    SIGNATURE(batch_unlock, int, int, unsigned, const int *, void *);
    SIGNATURE(batch_lock_extend, int, int, unsigned, const lock_request *, void *);
    SIGNATURE(lock_request_async, int, int, const lock_request *);
    SIGNATURE(lock_result_check, int, int, void *);
    SIGNATURE(umo_atomic64_create, int, int, const umo_atomic64_desc *, uint64_t, int *);
    SIGNATURE(umo_atomic64_destroy, int, int, int);
    SIGNATURE(umo_atomic64_get, int, int, const umo_atomic64_desc *, int *);
    SIGNATURE(umo_atomic64_release, int, int, int);
    SIGNATURE(umo_atomic64_faa, int, int, int, uint64_t, uint64_t *);
    SIGNATURE(umo_atomic64_cas, int, int, int, uint64_t, uint64_t);
    SIGNATURE(umo_atomic64_get_snapshot, int, int, int, uint64_t *);
    return found;
}

int main(void)
{
    /* Where the bit-fields lie can only be seen at run time. */
    fairlock_state fair;
    memset(&fair, 0, sizeof(fair));
    fair.bs.rms = 0x1234;
    fair.bs.rflag = 1;
    fair.bs.rcnt = 0x2A;
    if (fair.t_value != (0x1234u | 1u << 16 | 0x2Au << 26)) {
        fprintf(stderr, "bit-fields of fairlock_state: 0x%x\n", (unsigned)fair.t_value);
        return 1;
    }
    if (!fields_can_be_assigned()) {
        fprintf(stderr, "fields do not hold what was assigned\n");
        return 1;
    }
    if (functions_found() != 36) {
        fprintf(stderr, "not 36 functions\n");
        return 1;
    }
    printf("abi_layout: as specified\n");
    return 0;
}
