/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Batches, asynchronous operations, objects, counters, and membership on a ready primary. */
#ifndef DLOCK_TESTS_SCENARIO_MORE_H
#define DLOCK_TESTS_SCENARIO_MORE_H

#include "scenario_locks.h"

#define MANY ((int)MAX_LOCK_BATCH_SIZE)

static inline void describe_many(struct lock_desc *descs, char names[][24], const char *prefix)
{
    for (int i = 0; i < MANY; ++i) {
        snprintf(names[i], 24, "%s %d", prefix, i);
        descs[i].p_desc = names[i];
        descs[i].len = (uint32_t)strlen(names[i]);
        descs[i].lock_type = (uint32_t)(i % 3);
        descs[i].lease_time = 0;
    }
}

static inline int all_are(const struct lock_op_res *results, int want)
{
    for (int i = 0; i < MANY; ++i) {
        if (results[i].op_ret != want) {
            fprintf(stderr, "item %d is 0x%x, not 0x%x\n", i, (unsigned)results[i].op_ret,
                    (unsigned)want);
            return 0;
        }
    }
    return 1;
}

static inline void batches(const int *c)
{
    struct lock_desc descs[MANY];
    char names[MANY][24];
    struct lock_request reqs[MANY];
    struct lock_op_res results[MANY], theirs[MANY];
    int ids[MANY], same[MANY];
    describe_many(descs, names, "batch");
    EQ(batch_get_lock(c[0], MANY, descs, ids), 0);
    EQ(batch_get_lock(c[1], MANY, descs, same), 0);
    CHECK(memcmp(ids, same, sizeof(ids)) == 0);
    EQ(batch_get_lock(c[0], MANY, descs, same), 0); /* got already: no error here */
    CHECK(memcmp(ids, same, sizeof(ids)) == 0);
    descs[0].lock_type = DLOCK_RW; /* was atomic */
    EQ(batch_get_lock(c[2], 2, descs, same), 0);
    EQ(same[0], -1);
    EQ(same[1], ids[1]);
    same[0] = ids[1];
    EQ(batch_release_lock(c[2], 1, same), 0);

    for (int i = 0; i < MANY; ++i) {
        reqs[i] = request(ids[i], LOCK_EXCLUSIVE, 30);
    }
    memset(results, 0xEE, sizeof(results));
    EQ(batch_trylock(c[0], MANY, reqs, results), 0);
    CHECK(all_are(results, 0));
    for (int i = 0; i < MANY; ++i) {
        const unsigned char *bytes = (const unsigned char *)&results[i];
        if (i % 3 == DLOCK_ATOMIC) {
            EQ(results[i].atomic.client_id, c[0]);
            CHECK(about_now(results[i].atomic.time_out, 30));
            EQ(bytes[8], 0xEE);
        } else if (i % 3 == DLOCK_RW) {
            EQ(results[i].rw.client_id, c[0]);
            EQ(bytes[12], 0xEE);
        } else {
            EQ((uint16_t)(results[i].fl.m_exclusive - results[i].fl.n_exclusive), 1);
        }
    }
    EQ(batch_trylock(c[1], MANY, reqs, theirs), 0);
    for (int i = 0; i < MANY; ++i) {
        EQ(theirs[i].op_ret, i % 3 == DLOCK_FAIR ? DLOCK_EAGAIN : DLOCK_FAIL);
    }
    EQ(batch_trylock(c[0], MANY, reqs, results), 0);
    CHECK(all_are(results, DLOCK_ALREADY_LOCKED));
    EQ(batch_unlock(c[0], MANY, ids, results), 0);
    CHECK(all_are(results, DLOCK_ALREADY_LOCKED));
    for (int i = 0; i < MANY; ++i) {
        reqs[i].lock_op = EXTEND_LOCK_EXCLUSIVE;
        reqs[i].expire_time = 60;
    }
    EQ(batch_lock_extend(c[0], MANY, reqs, results), 0);
    for (int i = 0; i < MANY; ++i) {
        EQ(results[i].op_ret, i % 3 == DLOCK_RW ? DLOCK_EINVAL : 0);
    }
    memcpy(same, ids, sizeof(ids));
    EQ(batch_release_lock(c[0], MANY, same), -1); /* all are held */
    for (int i = 0; i < MANY; ++i) {
        EQ(same[i], 0);
    }
    EQ(batch_unlock(c[0], MANY, ids, results), 0);
    CHECK(all_are(results, 0));
    EQ(batch_unlock(c[0], MANY, ids, results), 0);
    CHECK(all_are(results, DLOCK_ALREADY_UNLOCKED));
    /* A ticketed lock can be released by a batch, and holds no other up. */
    memcpy(same, ids, sizeof(ids));
    EQ(batch_release_lock(c[1], MANY, same), 0);
    CHECK(memcmp(ids, same, sizeof(ids)) == 0);
    EQ(lock_op(c[0], ids[DLOCK_FAIR], LOCK_EXCLUSIVE, 600), 0);
    same[0] = ids[DLOCK_FAIR];
    same[1] = ids[0];
    same[2] = 1; /* never got */
    EQ(batch_release_lock(c[0], 3, same), 0);
    EQ(same[0], 0);
    EQ(same[1], ids[0]);
    EQ(same[2], 0);
    EQ(unlock_op(c[0], ids[DLOCK_FAIR]), 0);
    EQ(batch_release_lock(c[0], MANY, ids), 0);
    EQ(ids[0], 0); /* was released before */
}

static inline void asynchronous(const int *c)
{
    int id = must_get(c[0], "async", DLOCK_ATOMIC);
    int second = must_get(c[0], "async 2", DLOCK_ATOMIC);
    int fair = must_get(c[0], "async fair", DLOCK_FAIR);
    int rw = must_get(c[0], "async rw", DLOCK_RW);
    must_get(c[1], "async", DLOCK_ATOMIC);
    must_get(c[1], "async fair", DLOCK_FAIR);
    struct lock_op_res batch;
    struct lock_request req = request(second, LOCK_EXCLUSIVE, 5);
    union seen s = unseen();
    uint64_t value;
    EQ(lock_result_check(c[0], &s), DLOCK_NO_ASYNC);
    CHECK(untouched_from(&s, 0));
    EQ(async_op(c[0], id, LOCK_SHARED, 5), DLOCK_EINVAL);
    EQ(async_op(c[0], id, UNLOCK, 0), DLOCK_ALREADY_UNLOCKED);
    EQ(async_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 5), DLOCK_EINVAL);
    EQ(lock_result_check(c[0], &s), DLOCK_NO_ASYNC);

    EQ(async_op(c[0], id, LOCK_EXCLUSIVE, 20), 0);
    EQ(async_op(c[0], second, LOCK_EXCLUSIVE, 20), DLOCK_EASYNC);
    EQ(trylock(c[0], &req, &s), DLOCK_EASYNC);
    EQ(lock(c[0], &req, &s), DLOCK_EASYNC);
    EQ(unlock(c[0], second, &s), DLOCK_EASYNC);
    EQ(extend_op(c[0], second, EXTEND_LOCK_EXCLUSIVE, 1), DLOCK_EASYNC);
    EQ(batch_trylock(c[0], 1, &req, &batch), DLOCK_EASYNC);
    EQ(batch_unlock(c[0], 1, &second, &batch), DLOCK_EASYNC);
    EQ(umo_atomic64_get_snapshot(c[0], 1, &value), DLOCK_EASYNC);
    EQ(release_lock(c[0], id), DLOCK_EASYNC);
    EQ(trylock(c[0], NULL, &s), DLOCK_EINVAL);
    EQ(async_wait(c[0], &s), 0);
    EQ(s.state.atomic.client_id, c[0]);
    CHECK(untouched_from(&s, 8));
    EQ(lock_result_check(c[0], &s), DLOCK_NO_ASYNC);

    EQ(async_op(c[1], id, LOCK_EXCLUSIVE, 20), 0);
    EQ(async_result(c[1]), DLOCK_FAIL);
    EQ(async_op(c[0], id, LOCK_EXCLUSIVE, 20), 0); /* re-entry */
    EQ(async_result(c[0]), DLOCK_ALREADY_LOCKED);
    EQ(async_op(c[0], id, UNLOCK, 0), DLOCK_ALREADY_LOCKED);
    EQ(async_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 0), 0);
    EQ(async_result(c[0]), 0);
    EQ(async_op(c[0], id, UNLOCK, 0), 0);
    EQ(async_wait(c[0], &s), 0);
    EQ(s.state.atomic.client_id, 0);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);

    EQ(async_op(c[0], rw, LOCK_SHARED, 600), 0);
    EQ(async_result(c[0]), 0);
    EQ(async_op(c[0], rw, LOCK_SHARED, 5), DLOCK_ALREADY_LOCKED); /* local, nothing pending */
    EQ(async_op(c[0], rw, LOCK_EXCLUSIVE, 5), DLOCK_EINVAL);
    EQ(async_op(c[0], rw, UNLOCK, 0), DLOCK_ALREADY_LOCKED);
    EQ(async_op(c[0], rw, UNLOCK, 0), 0);
    EQ(async_result(c[0]), 0);

    EQ(async_op(c[0], fair, LOCK_EXCLUSIVE, 20), 0);
    EQ(async_result(c[0]), 0);
    EQ(async_op(c[1], fair, LOCK_EXCLUSIVE, 20), 0);
    EQ(async_result(c[1]), DLOCK_EAGAIN);
    EQ(async_op(c[1], fair, LOCK_SHARED, 20), DLOCK_ETICKET);
    EQ(async_op(c[1], fair, UNLOCK, 0), 0); /* gives the ticket up; nothing is pending */
    EQ(lock_result_check(c[1], &s), DLOCK_NO_ASYNC);
    EQ(async_op(c[0], fair, UNLOCK, 0), 0);
    EQ(async_result(c[0]), 0);

    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[0], second), 0);
    EQ(release_lock(c[0], fair), 0);
    EQ(release_lock(c[0], rw), 0);
    EQ(release_lock(c[1], id), 0);
    EQ(release_lock(c[1], fair), 0);
}

static inline struct umo_atomic64_desc object_desc(char *name, uint32_t lease)
{
    struct umo_atomic64_desc desc;
    desc.p_desc = name;
    desc.len = (uint32_t)strlen(name);
    desc.lease_time = lease;
    return desc;
}

static inline void objects(const int *c)
{
    char name[] = "a counter", absent[] = "no such object";
    struct umo_atomic64_desc desc = object_desc(name, 600), unknown = object_desc(absent, 600);
    int made = -5, id = -5, other = -5;
    uint64_t value = 0;
    EQ(umo_atomic64_get(c[0], &unknown, &id), DLOCK_OBJECT_NOT_CREATE);
    EQ(id, -5); /* written on success only */
    EQ(umo_atomic64_create(c[0], &desc, 40, &made), 0);
    CHECK(made > 0);
    EQ(umo_atomic64_create(c[0], &desc, 41, &id), DLOCK_OBJECT_ALREADY_CREATED);
    EQ(umo_atomic64_create(c[1], &desc, 42, &id), DLOCK_OBJECT_ALREADY_EXISTED);
    EQ(id, -5);
    EQ(umo_atomic64_faa(c[0], made, 1, &value), DLOCK_OBJECT_NOT_GET); /* created is not got */
    EQ(umo_atomic64_release(c[0], made), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_get(c[0], &desc, &id), 0);
    EQ(id, made);
    EQ(umo_atomic64_get(c[0], &desc, &id), 0); /* again: the same handle */
    EQ(umo_atomic64_get(c[1], &desc, &other), 0);
    EQ(other, made);

    EQ(umo_atomic64_get_snapshot(c[1], id, &value), 0);
    EQ(value, 40);
    EQ(umo_atomic64_faa(c[0], id, 2, &value), 0);
    EQ(value, 40);
    EQ(umo_atomic64_faa(c[1], id, UINT64_MAX, &value), 0); /* minus 1 */
    EQ(value, 42);
    EQ(umo_atomic64_cas(c[0], id, 42, 7), DLOCK_OBJECT_CAS_FAILED);
    EQ(umo_atomic64_cas(c[0], id, 41, UINT64_MAX), 0);
    EQ(umo_atomic64_faa(c[1], id, 1, &value), 0);
    CHECK(value == UINT64_MAX);
    EQ(umo_atomic64_get_snapshot(c[0], id, &value), 0);
    EQ(value, 0); /* modulo 2^64 */

    EQ(umo_atomic64_destroy(c[1], id), DLOCK_OBJECT_INVALID_OWNER);
    EQ(umo_atomic64_destroy(c[0], id), 0);
    EQ(umo_atomic64_destroy(c[0], id), DLOCK_OBJECT_ALREADY_DESTROYED);
    EQ(umo_atomic64_get(c[2], &desc, &other), DLOCK_OBJECT_ALREADY_DESTROYED);
    EQ(umo_atomic64_create(c[1], &desc, 1, &other), DLOCK_OBJECT_ALREADY_DESTROYED);
    EQ(umo_atomic64_faa(c[0], id, 5, &value), 0); /* handles go on working */
    EQ(value, 0);
    EQ(umo_atomic64_release(c[0], id), 0);
    EQ(umo_atomic64_release(c[0], id), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_faa(c[0], id, 5, &value), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_release(c[1], id), 0); /* the last one */
    EQ(umo_atomic64_get(c[1], &desc, &other), DLOCK_OBJECT_NOT_CREATE);
    EQ(umo_atomic64_destroy(c[0], id), DLOCK_OBJECT_NOT_CREATE);
    EQ(umo_atomic64_create(c[1], &desc, 99, &made), 0);
    EQ(umo_atomic64_get(c[0], &desc, &id), 0);
    EQ(umo_atomic64_get_snapshot(c[0], id, &value), 0);
    EQ(value, 99); /* the new life begins with its own value */
    EQ(umo_atomic64_release(c[0], id), 0);
    EQ(umo_atomic64_destroy(c[1], made), 0);
}

static inline void counters(const int *c)
{
    struct debug_stats stats;
    int id = must_get(c[0], "counted", DLOCK_ATOMIC);
    must_get(c[1], "counted", DLOCK_ATOMIC);
    EQ(clear_client_debug_stats(c[0]), 0);
    EQ(get_client_debug_stats(c[0], &stats), 0);
    for (int i = 0; i < DEBUG_STATS_MAX; ++i) {
        EQ(stats.stats[i], 0);
    }
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, 600), 0);
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);
    EQ(unlock_op(c[0], 1), DLOCK_LOCK_NOT_GET);
    EQ(unlock_op(c[1], id), 0);
    EQ(get_client_debug_stats(c[0], &stats), 0);
    EQ(stats.stats[DEBUG_STATS_EINVAL_LOCK_RET], 1); /* plain contention counts here */
    EQ(stats.stats[DEBUG_STATS_ALREADY_UNLOCKED], 1);
    EQ(stats.stats[DEBUG_STATS_LOCK_NOT_GET], 1);
    EQ(clear_client_debug_stats(c[0]), 0);
    EQ(get_client_debug_stats(c[0], &stats), 0);
    EQ(stats.stats[DEBUG_STATS_LOCK_NOT_GET], 0);
    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[1], id), 0);

    /* More than 10000 calls in a second, all clients together, are refused. Of twice as many in less
     * than a second, as many are in one of the library's seconds, wherever that begins. */
    int refused = 0;
    double start = seconds_now();
    for (int i = 0; i < 20002 && !refused; ++i) {
        refused = get_client_debug_stats(c[i % 8], &stats) == DLOCK_EAGAIN &&
                  get_client_debug_stats(1, &stats) == DLOCK_EAGAIN; /* before the client is looked up */
    }
    if (seconds_now() - start < 0.9) {
        CHECK(refused);
    }
    EQ(get_client_debug_stats(1, NULL), DLOCK_EINVAL);
    sleep_seconds(1.1);
    EQ(get_client_debug_stats(c[0], &stats), 0);
}

/* What the recovery calls do on a primary that is ready. */
static inline void membership(const int *c)
{
    int gone, id = must_get(c[0], "kept over a reinit", DLOCK_FAIR);
    must_get(c[1], "kept over a reinit", DLOCK_FAIR);
    EQ(client_reinit_done(c[0]), -1);
    EQ(client_reinit_done(c[0]), -1);
    EQ(update_all_locks(c[2]), 0); /* nothing cached */
    EQ(lock_op(c[0], id, LOCK_EXCLUSIVE, 30), 0);
    EQ(update_all_locks(c[0]), -1);
    EQ(extend_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 0), 0); /* and nothing is lost by that */
    EQ(client_reinit(c[0], HOST), 0);
    EQ(extend_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 0), 0); /* usable at once, still held */
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 5), DLOCK_ALREADY_LOCKED);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    EQ(client_reinit_done(c[0]), 0);
    EQ(client_reinit_done(c[0]), -1);
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, 5), DLOCK_EAGAIN);
    EQ(unlock_op(c[0], id), 0);
    EQ(lock_op(c[1], id, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(c[1], id), 0);
    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[1], id), 0);

    gone = new_client();
    EQ(client_deinit(gone), 0);
    EQ(client_deinit(gone), -1);
    EQ(unlock_op(gone, id), DLOCK_CLIENT_NOT_INIT);
    EQ(client_heartbeat(gone, 3), DLOCK_EINVAL);
}

/* Everything above, with 8 clients of the primary at HOST; the library is initialised. */
static inline void whole_scenario(void)
{
    int c[8];
    for (int i = 0; i < 8; ++i) {
        c[i] = new_client();
        for (int j = 0; j < i; ++j) {
            CHECK(c[i] != c[j]);
        }
    }
    static void (*const parts[])(const int *) = {
        lock_life_cycle, atomic_lock, rw_lock,  fair_lock, batches,
        asynchronous,    objects,     counters, membership, lock_is_bounded,
    };
    static const char *const names[] = {
        "lock_life_cycle", "atomic_lock", "rw_lock",  "fair_lock", "batches",
        "asynchronous",    "objects",     "counters", "membership", "lock_is_bounded",
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); ++i) {
        unsigned before = checks_failed;
        double start = seconds_now();
        parts[i](c);
        printf("  %-16s %s %.2f s\n", names[i], checks_failed == before ? "ok" : "FAILED",
               seconds_now() - start);
    }
    for (int i = 0; i < 8; ++i) {
        EQ(client_deinit(c[i]), 0);
    }
}

#endif
