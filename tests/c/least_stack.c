/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The least stack of a thread that calls the libraries (docs/compatibility.md). Every function of
 * the C API is called on a thread with that stack, whose end is a page that cannot be written. */
#include <pthread.h>

#include "check.h"

#define CLIENT_KIB 24
#define CLIENT_KIB_TLS 48
#define SERVER_KIB 32
#define SERVER_KIB_TLS 48
#define LOCKS 3

static void use_locks(int client)
{
    static const dlock_type types[LOCKS] = {DLOCK_ATOMIC, DLOCK_RW, DLOCK_FAIR};
    static const char *const names[LOCKS] = {"atomic", "rw", "fair"};
    for (int i = 0; i < LOCKS; i++) {
        lock_state state;
        int lock_id = must_get(client, names[i], types[i]);
        struct lock_request req = request(lock_id, LOCK_EXCLUSIVE, 30);
        EQ(trylock(client, &req, &state), 0);
        EQ(unlock(client, lock_id, &state), 0);
        EQ(lock(client, &req, &state), 0);
        req.lock_op = EXTEND_LOCK_EXCLUSIVE;
        EQ(lock_extend(client, &req, &state), types[i] == DLOCK_RW ? DLOCK_EINVAL : 0);
        EQ(unlock(client, lock_id, &state), 0);
        EQ(async_op(client, lock_id, LOCK_EXCLUSIVE, 30), 0);
        EQ(async_wait(client, &state), 0);
        EQ(unlock(client, lock_id, &state), 0);
        EQ(release_lock(client, lock_id), 0);
    }
}

static void use_batches(int client)
{
    static struct lock_desc descs[MAX_LOCK_BATCH_SIZE];
    static struct lock_request reqs[MAX_LOCK_BATCH_SIZE];
    static struct lock_op_res results[MAX_LOCK_BATCH_SIZE];
    static char names[MAX_LOCK_BATCH_SIZE][8];
    static int ids[MAX_LOCK_BATCH_SIZE];
    unsigned int n = MAX_LOCK_BATCH_SIZE;
    for (unsigned int i = 0; i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "b%u", i);
        descs[i].p_desc = names[i];
        descs[i].len = (uint32_t)strlen(names[i]);
        descs[i].lock_type = i % 2 == 0 ? DLOCK_ATOMIC : DLOCK_FAIR;
        descs[i].lease_time = 10;
    }
    EQ(batch_get_lock(client, n, descs, ids), 0);
    for (unsigned int i = 0; i < n; i++)
        reqs[i] = request(ids[i], LOCK_EXCLUSIVE, 30);
    EQ(batch_trylock(client, n, reqs, results), 0);
    for (unsigned int i = 0; i < n; i++) {
        EQ(results[i].op_ret, 0);
        reqs[i].lock_op = EXTEND_LOCK_EXCLUSIVE;
    }
    EQ(batch_lock_extend(client, n, reqs, results), 0);
    EQ(batch_unlock(client, n, ids, results), 0);
    EQ(batch_release_lock(client, n, ids), 0);
}

static void use_objects(int client)
{
    static char name[] = "object";
    struct umo_atomic64_desc desc;
    uint64_t value = 0;
    int object = 0;
    memset(&desc, 0, sizeof(desc));
    desc.p_desc = name;
    desc.len = (uint32_t)strlen(name);
    desc.lease_time = 10;
    EQ(umo_atomic64_create(client, &desc, 5, &object), 0);
    EQ(umo_atomic64_get(client, &desc, &object), 0);
    EQ(umo_atomic64_faa(client, object, 1, &value), 0);
    EQ(umo_atomic64_cas(client, object, 6, 7), 0);
    EQ(umo_atomic64_get_snapshot(client, object, &value), 0);
    EQ(value, 7);
    EQ(umo_atomic64_release(client, object), 0);
    EQ(umo_atomic64_destroy(client, object), 0);
}

static struct debug_stats stats;
static int port, server;

static void *begin_server(void *unused)
{
    (void)unused;
    EQ(dserver_lib_init(1), 0);
    server = start_primary(port);
    return NULL;
}

static void *be_client(void *unused)
{
    int refused = 0;
    (void)unused;
    EQ(init_client_library(port), 0);
    int client = new_client();
    use_locks(client);
    use_batches(client);
    use_objects(client);
    EQ(client_heartbeat(client, 5), 0);
    EQ(client_reinit(client, HOST), 0);
    EQ(update_all_locks(client), 0);
    EQ(client_reinit_done(client), 0);
    EQ(client_init(&refused, "no address"), -1); /* a line is logged */
    EQ(get_client_debug_stats(client, &stats), 0);
    EQ(clear_client_debug_stats(client), 0);
    EQ(client_deinit(client), 0);
    dclient_lib_deinit();
    return NULL;
}

static void *end_server(void *unused)
{
    (void)unused;
    EQ(get_server_debug_stats(server, &stats), 0);
    EQ(clear_server_debug_stats(server), 0);
    EQ(server_stop(server), 0);
    dserver_lib_deinit();
    return NULL;
}

static void with_stack(unsigned kib, void *(*calls)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    NEED(pthread_attr_init(&attributes) == 0);
    NEED(pthread_attr_setstacksize(&attributes, kib * 1024) == 0);
    NEED(pthread_create(&thread, &attributes, calls, NULL) == 0);
    NEED(pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attributes);
}

/* Other sizes in KiB, for measurements: of the client's calls, and of the server's. */
int main(int argc, char **argv)
{
    int has_tls = getenv("DLOCK_TEST_TLS") != NULL;
    unsigned of_client = has_tls ? CLIENT_KIB_TLS : CLIENT_KIB;
    unsigned of_server = has_tls ? SERVER_KIB_TLS : SERVER_KIB;
    if (argc == 3) {
        of_client = (unsigned)atoi(argv[1]);
        of_server = (unsigned)atoi(argv[2]);
    }
    limit_seconds(60);
    port = free_port();
    with_stack(of_server, begin_server);
    with_stack(of_client, be_client);
    with_stack(of_server, end_server);
    return conclusion("least_stack");
}
