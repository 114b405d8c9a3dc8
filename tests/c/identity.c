/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Names and ids of locks, objects, clients and primaries; what get and release do to arguments. */
#include "scenario_more.h"

static int hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; ++name) {
        hash = hash * 33 + (unsigned char)*name;
    }
    return (int)hash;
}

/* Two names with equal hashes: 'A' * 33 + 'b' == 'B' * 33 + 'A'. */
static void ids_of_locks(const int *c)
{
    int first = 0, second = 0, again = 0, negative = 0;
    char name[32];
    EQ(hash_of("Ab"), hash_of("BA"));
    EQ(get_named(c[0], "Ab", DLOCK_ATOMIC, &first), 0);
    EQ(first, hash_of("Ab"));
    EQ(get_named(c[0], "BA", DLOCK_RW, &second), 0);
    EQ(second, 2); /* the hash is taken: the first value of a counter */
    EQ(get_named(c[1], "BA", DLOCK_RW, &again), 0);
    EQ(again, second);
    EQ(get_named(c[1], "Ab", DLOCK_ATOMIC, &again), 0);
    EQ(again, first);
    /* A name whose hash is no positive number. */
    for (int i = 0; i < 1000; ++i) {
        snprintf(name, sizeof(name), "a longer name %d", i);
        if (hash_of(name) <= 0) {
            break;
        }
    }
    CHECK(hash_of(name) <= 0);
    EQ(get_named(c[0], name, DLOCK_FAIR, &negative), 0);
    EQ(negative, 3);
    EQ(release_lock(c[0], negative), 0);
    EQ(release_lock(c[0], second), 0);
    /* The id stays while any client refers to the lock. */
    EQ(get_named(c[0], "BA", DLOCK_RW, &again), 0);
    EQ(again, second);
    EQ(release_lock(c[0], first), 0);
    EQ(release_lock(c[0], second), 0);
    EQ(release_lock(c[1], first), 0);
    EQ(release_lock(c[1], second), 0);
    EQ(get_named(c[0], "BA", DLOCK_RW, &again), 0);
    EQ(again, hash_of("BA")); /* now it is free */
    EQ(release_lock(c[0], again), 0);
}

/* The id is overwritten by the hash even when the call fails afterwards. */
static void overwritten_ids(const int *c)
{
    int id = 0, other = 77;
    EQ(get_named(c[0], "one type", DLOCK_ATOMIC, &id), 0);
    EQ(get_named(c[1], "one type", DLOCK_RW, &other), -1);
    EQ(other, hash_of("one type"));
    other = 77;
    EQ(get_named(c[0], "one type", DLOCK_FAIR, &other), -1);
    EQ(other, hash_of("one type"));
    EQ(get_named(c[0], "one type", DLOCK_ATOMIC, &other), -1); /* got already: the id is good */
    EQ(other, id);
    EQ(lock_op(c[0], other, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(c[0], other), 0);
    EQ(release_lock(c[0], id), 0); /* one reference, however often it was asked for */
    EQ(release_lock(c[0], id), -1);
}

static void bytes_of_names(const int *c)
{
    /* Any bytes, zeros among them; length counts, not a terminator. */
    static char raw[] = {'a', 0, 'b', 0, (char)0xFF, 'x'};
    struct lock_desc desc = {raw, 3, DLOCK_ATOMIC, 0};
    int ids[4];
    EQ(get_lock(c[0], &desc, &ids[0]), 0);
    desc.len = 4;
    EQ(get_lock(c[0], &desc, &ids[1]), 0);
    desc.len = 1;
    EQ(get_lock(c[0], &desc, &ids[2]), 0);
    desc.len = 6;
    EQ(get_lock(c[0], &desc, &ids[3]), 0);
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < i; ++j) {
            CHECK(ids[i] != ids[j]);
        }
        EQ(release_lock(c[0], ids[i]), 0);
    }
    EQ(ids[2], 5381 * 33 + 'a');
    /* At an odd address, and with a lease_time that is not read. */
    desc.p_desc = raw + 1;
    desc.len = 5;
    desc.lease_time = UINT32_MAX;
    EQ(get_lock(c[0], &desc, &ids[0]), 0);
    EQ(release_lock(c[0], ids[0]), 0);
}

static void batches_of_names(const int *c)
{
    struct lock_desc descs[3];
    char same[] = "in one batch", other[] = "another";
    int ids[3] = {7, 7, 7};
    for (int i = 0; i < 3; ++i) {
        descs[i].p_desc = i == 1 ? other : same;
        descs[i].len = (uint32_t)strlen(descs[i].p_desc);
        descs[i].lock_type = i == 2 ? DLOCK_RW : DLOCK_ATOMIC;
        descs[i].lease_time = 0;
    }
    EQ(batch_get_lock(c[0], 3, descs, ids), 0);
    CHECK(ids[0] > 0 && ids[1] > 0 && ids[0] != ids[1]);
    EQ(ids[2], -1); /* of another type than item 0 has made it */
    descs[2].lock_type = DLOCK_ATOMIC;
    EQ(batch_get_lock(c[0], 3, descs, ids), 0);
    EQ(ids[2], ids[0]);
    /* One bad description, and nothing is got or written. */
    int untouched[3] = {7, 7, 7};
    descs[2].len = MAX_LOCK_DESC_LEN + 1;
    EQ(batch_get_lock(c[1], 3, descs, untouched), DLOCK_EINVAL);
    EQ(untouched[0], 7);
    EQ(release_lock(c[1], ids[0]), -1);
    /* The same lock twice in a release: only one reference is there to give up. */
    int twice[3] = {ids[0], ids[1], ids[0]};
    EQ(batch_release_lock(c[0], 3, twice), 0);
    EQ(twice[0], ids[0]);
    EQ(twice[1], ids[1]);
    EQ(release_lock(c[0], ids[0]), -1);
    EQ(release_lock(c[0], ids[1]), -1);
}

/* While an asynchronous operation is pending, the control functions work. */
static void while_an_operation_is_pending(const int *c)
{
    char name[] = "pending object";
    struct umo_atomic64_desc desc = object_desc(name, 60);
    int id = must_get(c[0], "pending", DLOCK_ATOMIC), other = 0, object = 0;
    int ids[2];
    struct debug_stats stats;
    lock_state state;
    EQ(async_op(c[0], id, LOCK_EXCLUSIVE, 30), 0);
    EQ(get_named(c[0], "got meanwhile", DLOCK_ATOMIC, &other), 0);
    EQ(client_heartbeat(c[0], 5), 0);
    EQ(umo_atomic64_create(c[0], &desc, 0, &object), 0);
    EQ(umo_atomic64_get(c[0], &desc, &object), 0);
    EQ(umo_atomic64_release(c[0], object), 0);
    EQ(umo_atomic64_destroy(c[0], object), 0);
    EQ(umo_atomic64_cas(c[0], object, 0, 1), DLOCK_EASYNC); /* before the object is looked up */
    EQ(umo_atomic64_faa(c[0], object, 1, NULL), DLOCK_EINVAL);
    EQ(get_client_debug_stats(c[0], &stats), 0);
    EQ(unlock(c[0], 12345, &state), DLOCK_EASYNC); /* before the lock is looked up */
    EQ(async_op(c[0], 12345, LOCK_EXCLUSIVE, 1), DLOCK_EASYNC);
    EQ(async_op(c[0], id, LOCK_EXCLUSIVE, 0), DLOCK_EINVAL);
    ids[0] = id;
    ids[1] = other;
    EQ(batch_release_lock(c[0], 2, ids), 0);
    EQ(ids[0], 0); /* not this one */
    EQ(ids[1], other);
    EQ(release_lock(c[0], id), DLOCK_EASYNC);
    EQ(async_result(c[0]), 0);
    /* The last operation of a client that ends may be pending, too. */
    EQ(async_op(c[0], id, UNLOCK, 0), 0);
    EQ(async_result(c[0]), 0);
    EQ(release_lock(c[0], id), 0);
    int brief = new_client();
    id = must_get(brief, "pending", DLOCK_ATOMIC);
    EQ(async_op(brief, id, LOCK_EXCLUSIVE, 1), 0);
    EQ(client_deinit(brief), 0);
    EQ(lock_result_check(brief, &state), DLOCK_CLIENT_NOT_INIT);
}

/* expire_time 0 sends nothing and holds nothing; it writes what is known. */
static void looking_only(const int *c)
{
    static const dlock_type types[] = {DLOCK_ATOMIC, DLOCK_RW, DLOCK_FAIR};
    static const size_t written[] = {8, 12, 12};
    for (int i = 0; i < 3; ++i) {
        char name[16];
        snprintf(name, sizeof(name), "look %d", i);
        int id = must_get(c[0], name, types[i]);
        must_get(c[1], name, types[i]);
        EQ(try_op(c[1], id, LOCK_EXCLUSIVE, 60), 0);
        for (int waiting = 0; waiting < 2; ++waiting) {
            struct lock_request req = request(id, LOCK_EXCLUSIVE, 0);
            union seen s = unseen();
            double start = seconds_now();
            EQ(waiting ? lock(c[0], &req, &s) : trylock(c[0], &req, &s), 0);
            CHECK_WITHIN(start, 3);
            CHECK(untouched_from(&s, written[i]));
            for (size_t at = 0; at < written[i]; ++at) {
                EQ(s.bytes[at], 0);
            }
        }
        struct lock_request req = request(id, LOCK_EXCLUSIVE, 0);
        struct lock_op_res result;
        memset(&result, 0xEE, sizeof(result));
        EQ(batch_trylock(c[0], 1, &req, &result), 0);
        EQ(result.op_ret, 0);
        EQ(result.atomic.client_id, 0);
        EQ(((unsigned char *)&result)[written[i]], 0xEE);
        EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);
        EQ(unlock_op(c[1], id), 0);
        EQ(release_lock(c[0], id), 0);
        EQ(release_lock(c[1], id), 0);
    }
}

/* A lock that occurs twice in one batch ends as its calls one after the other would. */
static void twice_in_a_batch(const int *c)
{
    for (int type = 0; type < DLOCK_MAX; ++type) {
        char name[16];
        snprintf(name, sizeof(name), "twice %d", type);
        int id = must_get(c[0], name, (dlock_type)type);
        must_get(c[1], name, (dlock_type)type);
        lock_ops op = type == DLOCK_ATOMIC ? LOCK_EXCLUSIVE : LOCK_SHARED;
        struct lock_request req[2] = {request(id, op, 60), request(id, op, 60)};
        struct lock_op_res results[3];
        int ids[3] = {id, id, id}, held = 0;
        EQ(batch_trylock(c[0], 2, req, results), 0);
        EQ(results[0].op_ret, 0);
        int second = results[1].op_ret;
        held = 1 + (second == 0 || second == DLOCK_ALREADY_LOCKED);
        CHECK(held == 2 || second == DLOCK_FAIL || second == DLOCK_EAGAIN);
        EQ(batch_unlock(c[0], 3, ids, results), 0);
        EQ(results[0].op_ret, held == 2 ? DLOCK_ALREADY_LOCKED : 0);
        EQ(results[1].op_ret, held == 2 ? 0 : DLOCK_ALREADY_UNLOCKED);
        EQ(results[2].op_ret, DLOCK_ALREADY_UNLOCKED);
        /* No reader and no ticket is left behind. */
        EQ(lock_op(c[1], id, LOCK_EXCLUSIVE, 600), 0);
        EQ(unlock_op(c[1], id), 0);
        EQ(release_lock(c[0], id), 0);
        EQ(release_lock(c[1], id), 0);
    }
}

/* Errors of single items leave the other items alone. */
static void mixed_batch(const int *c)
{
    int atomic = must_get(c[0], "mixed a", DLOCK_ATOMIC), rw = must_get(c[0], "mixed r", DLOCK_RW);
    int fair = must_get(c[0], "mixed f", DLOCK_FAIR);
    struct lock_request req[5] = {request(atomic, LOCK_SHARED, 9), request(999, LOCK_SHARED, 9),
                                  request(rw, LOCK_SHARED, 9), request(fair, LOCK_SHARED, 9),
                                  request(atomic, LOCK_EXCLUSIVE, 9)};
    struct lock_op_res results[5];
    int ids[5] = {atomic, 999, rw, fair, atomic};
    EQ(batch_trylock(c[0], 5, req, results), 0);
    EQ(results[0].op_ret, DLOCK_EINVAL);
    EQ(results[1].op_ret, DLOCK_LOCK_NOT_GET);
    EQ(results[2].op_ret, 0);
    EQ(results[2].rw.rcount, 1);
    EQ(results[3].op_ret, 0);
    EQ(results[3].fl.bs.rcnt, 1);
    EQ(results[4].op_ret, 0);
    EQ(results[4].atomic.client_id, c[0]);
    for (int i = 0; i < 5; ++i) {
        req[i].lock_op = EXTEND_LOCK_SHARED;
    }
    req[4].lock_op = EXTEND_LOCK_EXCLUSIVE;
    req[4].expire_time = 0;
    EQ(batch_lock_extend(c[0], 5, req, results), 0);
    EQ(results[0].op_ret, DLOCK_EINVAL);
    EQ(results[1].op_ret, DLOCK_LOCK_NOT_GET);
    EQ(results[2].op_ret, DLOCK_EINVAL);
    EQ(results[3].op_ret, 0);
    EQ(results[4].op_ret, 0);
    EQ(batch_unlock(c[0], 5, ids, results), 0);
    EQ(results[0].op_ret, 0);
    EQ(results[1].op_ret, DLOCK_LOCK_NOT_GET);
    EQ(results[2].op_ret, 0);
    EQ(results[3].op_ret, 0);
    EQ(results[4].op_ret, DLOCK_ALREADY_UNLOCKED);
    int rest[3] = {atomic, rw, fair};
    EQ(batch_release_lock(c[0], 3, rest), 0);
}

int main(void)
{
    int c[2], port = free_port(), server = 0, second = 0;
    struct server_cfg cfg;
    limit_seconds(60);
    EQ(dserver_lib_init(32), 0);
    fill_server_cfg(&cfg, port);
    EQ(start_server(&cfg, &server), 0);
    EQ(server, 1); /* the first */
    EQ(start_server(&cfg, &second), -1);
    EQ(second, 2); /* numbered before it is known that the port is taken */
    EQ(init_client_library(port), 0);
    c[0] = new_client();
    c[1] = new_client();
    ids_of_locks(c);
    overwritten_ids(c);
    bytes_of_names(c);
    batches_of_names(c);
    while_an_operation_is_pending(c);
    looking_only(c);
    twice_in_a_batch(c);
    mixed_batch(c);
    /* Nothing was left behind: every name can be got with another type. */
    int id = 0;
    EQ(get_named(c[0], "mixed a", DLOCK_RW, &id), 0);
    EQ(get_named(c[0], "twice 1", DLOCK_FAIR, &id), 0);
    EQ(get_named(c[0], "pending", DLOCK_FAIR, &id), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("identity");
}
