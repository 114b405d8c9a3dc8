/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The three lock types, one operation at a time: codes, states, and what is written. */
#ifndef DLOCK_TESTS_SCENARIO_LOCKS_H
#define DLOCK_TESTS_SCENARIO_LOCKS_H

#include "check.h"

/* A result whose bytes can be seen to be untouched. */
union seen {
    lock_state state;
    unsigned char bytes[16];
};

static inline union seen unseen(void)
{
    union seen s;
    memset(&s, 0xEE, sizeof(s));
    return s;
}

/* Whether exactly the bytes from `from` on are untouched. */
static inline int untouched_from(const union seen *s, size_t from)
{
    for (size_t i = from; i < sizeof(s->bytes); ++i) {
        if (s->bytes[i] != 0xEE) {
            return 0;
        }
    }
    return 1;
}

static inline int about_now(uint32_t seconds, long after)
{
    long want = (long)time(NULL) + after;
    long late = 2 + (long)starved_seconds() + (slowness() > 1 ? 5 : 0); /* the call was made before */
    return (long)seconds >= want - late && (long)seconds <= want + 2;
}

static inline void lock_life_cycle(const int *c)
{
    int id = 0, again = 0, other = 0;
    EQ(get_named(c[0], "lock desc 1", DLOCK_ATOMIC, &id), 0);
    EQ(id, 1252963582);
    EQ(get_named(c[1], "lock desc 1", DLOCK_ATOMIC, &other), 0);
    EQ(other, id); /* the same for all clients */
    EQ(get_named(c[0], "lock desc 1", DLOCK_ATOMIC, &again), -1);
    EQ(again, id); /* got already, and usable */
    EQ(get_named(c[2], "lock desc 1", DLOCK_FAIR, &other), -1);
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 10), 0);
    EQ(release_lock(c[0], id), -1); /* held */
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 10), DLOCK_ALREADY_LOCKED);
    EQ(release_lock(c[0], id), -1);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    EQ(unlock_op(c[0], id), 0);
    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[0], id), -1);
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 10), DLOCK_LOCK_NOT_GET);
    EQ(release_lock(c[1], id), 0);
    /* No client refers to it any more: the name is free for another type. */
    EQ(get_named(c[2], "lock desc 1", DLOCK_RW, &other), 0);
    EQ(other, id);
    EQ(release_lock(c[2], other), 0);

    /* The name may lie where the id goes to, and need not be aligned. */
    union {
        int id;
        char name[16];
    } both;
    struct lock_desc desc;
    memset(&both, 0, sizeof(both));
    memcpy(both.name, "aliased name", 12);
    desc.p_desc = both.name;
    desc.len = 12;
    desc.lock_type = DLOCK_ATOMIC;
    desc.lease_time = 0;
    EQ(get_lock(c[0], &desc, &both.id), 0);
    EQ(get_named(c[1], "aliased name", DLOCK_ATOMIC, &other), 0);
    EQ(other, both.id); /* the caller's bytes name the lock */
    EQ(release_lock(c[0], both.id), 0);
    EQ(release_lock(c[1], other), 0);

    /* The longest name, and names of any bytes. */
    static char longest[MAX_LOCK_DESC_LEN];
    memset(longest, 'x', sizeof(longest));
    desc.p_desc = longest;
    desc.len = MAX_LOCK_DESC_LEN;
    EQ(get_lock(c[0], &desc, &id), 0);
    memset(longest, 0, sizeof(longest));
    desc.len = 1;
    EQ(get_lock(c[0], &desc, &other), 0);
    CHECK(id != other && id > 0 && other > 0);
    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[0], other), 0);
}

static inline void atomic_lock(const int *c)
{
    int id = must_get(c[0], "atomic", DLOCK_ATOMIC);
    EQ(must_get(c[1], "atomic", DLOCK_ATOMIC), id);
    struct lock_request take = request(id, LOCK_EXCLUSIVE, 20);
    struct lock_request look = request(id, LOCK_EXCLUSIVE, 0);
    struct lock_request keep = request(id, EXTEND_LOCK_EXCLUSIVE, 40);
    union seen s = unseen();

    EQ(trylock(c[0], &look, &s), 0); /* only reports what is known, though nothing is held */
    CHECK(untouched_from(&s, 8));
    EQ(try_op(c[0], id, LOCK_SHARED, 20), DLOCK_EINVAL);
    EQ(try_op(c[0], id, LOCK_SHARED, 0), DLOCK_EINVAL);
    EQ(lock_op(c[0], id, LOCK_SHARED, 20), DLOCK_EINVAL);
    s = unseen();
    EQ(unlock(c[0], id, &s), DLOCK_ALREADY_UNLOCKED);
    CHECK(untouched_from(&s, 0));
    EQ(lock_extend(c[0], &keep, &s), DLOCK_EINVAL);
    CHECK(untouched_from(&s, 0));

    EQ(trylock(c[0], &take, &s), 0);
    EQ(s.state.atomic.client_id, c[0]);
    CHECK(about_now(s.state.atomic.time_out, 20));
    CHECK(untouched_from(&s, 8));
    s = unseen();
    EQ(trylock(c[1], &take, &s), DLOCK_FAIL);
    CHECK(untouched_from(&s, 0));
    EQ(trylock(c[0], &look, &s), 0);
    EQ(s.state.atomic.client_id, c[0]);

    s = unseen();
    EQ(trylock(c[0], &take, &s), DLOCK_ALREADY_LOCKED);
    EQ(s.state.atomic.client_id, c[0]);
    CHECK(untouched_from(&s, 8));
    EQ(lock_extend(c[0], &keep, &s), 0);
    CHECK(about_now(s.state.atomic.time_out, 40));
    keep.expire_time = 1; /* never shortens */
    EQ(lock_extend(c[0], &keep, &s), 0);
    CHECK(about_now(s.state.atomic.time_out, 40));
    keep.expire_time = 0; /* only asks */
    EQ(lock_extend(c[0], &keep, &s), 0);
    CHECK(about_now(s.state.atomic.time_out, 40));
    EQ(extend_op(c[0], id, EXTEND_LOCK_SHARED, 5), DLOCK_EINVAL);
    EQ(lock_extend(c[1], &keep, &s), DLOCK_EINVAL);
    EQ(unlock_op(c[1], id), DLOCK_ALREADY_UNLOCKED);

    s = unseen();
    EQ(unlock(c[0], id, &s), DLOCK_ALREADY_LOCKED);
    CHECK(untouched_from(&s, 0));
    EQ(unlock(c[0], id, &s), 0);
    EQ(s.state.atomic.client_id, 0);
    EQ(s.state.atomic.time_out, 0);
    CHECK(untouched_from(&s, 8));
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);

    /* Expiry saturates: the longest lease is not over at once. */
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, UINT32_MAX), 0);
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(unlock_op(c[1], id), 0);
    EQ(lock_op(c[0], id, LOCK_EXCLUSIVE, 600), 0);
    double start = seconds_now();
    EQ(lock_op(c[0], id, LOCK_EXCLUSIVE, 5), DLOCK_ALREADY_LOCKED);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    for (int i = 0; i < 100 && seconds_now() - start >= 0.09; ++i) {
        start = seconds_now(); /* the machine was busy */
        EQ(lock_op(c[0], id, LOCK_EXCLUSIVE, 5), DLOCK_ALREADY_LOCKED);
        EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    }
    CHECK(seconds_now() - start < 0.09); /* re-entry does not sleep */
    EQ(unlock_op(c[0], id), 0);
    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[1], id), 0);
}

/* lock() waits for 5 s, no more. */
static inline void lock_is_bounded(const int *c)
{
    int id = must_get(c[0], "bounded", DLOCK_ATOMIC);
    must_get(c[1], "bounded", DLOCK_ATOMIC);
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 100), 0);
    double start = seconds_now();
    EQ(lock_op(c[1], id, LOCK_EXCLUSIVE, 10), DLOCK_FAIL);
    double waited = seconds_now() - start;
    CHECK(waited > 4.5);
    CHECK_WITHIN(start, 5.0 + 1.5 * slowness());
    EQ(unlock_op(c[0], id), 0);
    EQ(lock_op(c[1], id, LOCK_EXCLUSIVE, 10), 0);
    EQ(unlock_op(c[1], id), 0);
    EQ(release_lock(c[0], id), 0);
    EQ(release_lock(c[1], id), 0);
}

static inline void rw_lock(const int *c)
{
    int id = must_get(c[0], "rw", DLOCK_RW);
    must_get(c[1], "rw", DLOCK_RW);
    must_get(c[2], "rw", DLOCK_RW);
    struct lock_request share = request(id, LOCK_SHARED, 10);
    struct lock_request own = request(id, LOCK_EXCLUSIVE, 10);
    union seen s = unseen();

    EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);
    EQ(trylock(c[0], &share, &s), 0);
    EQ(s.state.rw.rcount, 1);
    EQ(s.state.rw.client_id, 0);
    CHECK(about_now(s.state.rw.time_out, 0));
    CHECK(untouched_from(&s, 12));
    EQ(trylock(c[1], &share, &s), 0);
    EQ(s.state.rw.rcount, 2);
    s = unseen();
    EQ(trylock(c[2], &own, &s), DLOCK_FAIL);
    CHECK(untouched_from(&s, 0));
    EQ(trylock(c[0], &own, &s), DLOCK_EINVAL); /* no upgrade */
    EQ(trylock(c[0], &share, &s), DLOCK_ALREADY_LOCKED);
    CHECK(untouched_from(&s, 12));
    EQ(extend_op(c[0], id, EXTEND_LOCK_SHARED, 10), DLOCK_EINVAL);
    s = unseen();
    EQ(unlock(c[0], id, &s), DLOCK_ALREADY_LOCKED);
    CHECK(untouched_from(&s, 0));
    EQ(unlock(c[0], id, &s), 0);
    EQ(s.state.rw.rcount, 1);
    CHECK(untouched_from(&s, 12));
    EQ(release_lock(c[1], id), -1);
    EQ(unlock(c[1], id, &s), 0);
    EQ(s.state.rw.rcount, 0);

    s = unseen();
    EQ(trylock(c[2], &own, &s), 0);
    EQ(s.state.rw.client_id, c[2]);
    EQ(s.state.rw.rcount, 0);
    CHECK(untouched_from(&s, 12));
    EQ(trylock(c[0], &own, &s), DLOCK_FAIL);
    EQ(trylock(c[0], &share, &s), DLOCK_FAIL);
    EQ(trylock(c[2], &share, &s), DLOCK_EINVAL); /* no downgrade */
    EQ(trylock(c[2], &own, &s), DLOCK_ALREADY_LOCKED);
    EQ(extend_op(c[2], id, EXTEND_LOCK_EXCLUSIVE, 10), DLOCK_EINVAL);
    EQ(unlock_op(c[2], id), DLOCK_ALREADY_LOCKED);
    EQ(unlock(c[2], id, &s), 0);
    EQ(s.state.rw.client_id, 0);
    for (int i = 0; i < 3; ++i) {
        EQ(release_lock(c[i], id), 0);
    }
}

static inline void fair_lock(const int *c)
{
    int id = must_get(c[0], "fair", DLOCK_FAIR);
    for (int i = 1; i < 4; ++i) {
        EQ(must_get(c[i], "fair", DLOCK_FAIR), id);
    }
    struct lock_request own = request(id, LOCK_EXCLUSIVE, 30);
    struct lock_request share = request(id, LOCK_SHARED, 30);
    union seen s = unseen();
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);
    EQ(trylock(c[0], &own, &s), 0);
    uint16_t nx = s.state.fl.n_exclusive, mx = s.state.fl.m_exclusive;
    EQ((uint16_t)(mx - nx), 1);
    EQ(s.state.fl.n_shared, s.state.fl.m_shared);
    CHECK(about_now(s.state.fl.time_out, 30));
    EQ(trylock(c[0], &own, &s), DLOCK_ALREADY_LOCKED);
    EQ(trylock(c[0], &share, &s), DLOCK_EINVAL);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);

    /* Three queue: exclusive, shared, exclusive. */
    EQ(trylock(c[1], &own, &s), DLOCK_EAGAIN);
    EQ(s.state.fl.m_exclusive, mx); /* its own ticket */
    CHECK(about_now(s.state.fl.time_out, 0));
    EQ(trylock(c[1], &own, &s), DLOCK_EAGAIN);
    EQ(s.state.fl.m_exclusive, mx); /* still the same */
    EQ(trylock(c[1], &share, &s), DLOCK_ETICKET);
    EQ(extend_op(c[1], id, EXTEND_LOCK_EXCLUSIVE, 5), DLOCK_EINVAL);
    EQ(release_lock(c[1], id), DLOCK_TICKET_TO_UNLOCK);
    EQ(trylock(c[2], &share, &s), DLOCK_EAGAIN);
    EQ(trylock(c[2], &own, &s), DLOCK_ETICKET);
    EQ(trylock(c[3], &own, &s), DLOCK_EAGAIN);
    EQ(s.state.fl.m_exclusive, (uint16_t)(mx + 1));

    EQ(extend_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 60), 0);
    EQ(extend_op(c[0], id, EXTEND_LOCK_SHARED, 60), DLOCK_EINVAL);
    EQ(unlock(c[0], id, &s), 0);
    EQ(s.state.fl.n_exclusive, (uint16_t)(nx + 1));
    EQ(trylock(c[3], &own, &s), DLOCK_EAGAIN); /* not its turn, also if it asks first */
    EQ(trylock(c[2], &share, &s), DLOCK_EAGAIN);
    EQ(trylock(c[1], &own, &s), 0);
    EQ(s.state.fl.n_exclusive, mx);
    EQ(unlock_op(c[1], id), 0);
    EQ(trylock(c[3], &own, &s), DLOCK_EAGAIN);
    EQ(trylock(c[2], &share, &s), 0);
    EQ(s.state.fl.bs.rcnt, 1);
    EQ(unlock_op(c[2], id), 0);
    EQ(trylock(c[3], &own, &s), 0);
    EQ(unlock_op(c[3], id), 0);

    /* Readers together; a place given up is local and holds no other up. */
    EQ(trylock(c[0], &share, &s), 0);
    EQ(trylock(c[1], &share, &s), 0);
    EQ(s.state.fl.bs.rcnt, 2);
    EQ(trylock(c[0], &share, &s), DLOCK_ALREADY_LOCKED);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    EQ(extend_op(c[0], id, EXTEND_LOCK_SHARED, 5), 0);
    EQ(extend_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 5), DLOCK_EINVAL);
    EQ(trylock(c[2], &own, &s), DLOCK_EAGAIN);
    s = unseen();
    EQ(unlock(c[2], id, &s), 0); /* gives its ticket up */
    CHECK(untouched_from(&s, 0));
    EQ(unlock(c[2], id, &s), DLOCK_ALREADY_UNLOCKED);
    EQ(release_lock(c[2], id), 0);
    EQ(must_get(c[2], "fair", DLOCK_FAIR), id);
    EQ(unlock_op(c[0], id), 0);
    EQ(unlock_op(c[1], id), 0);
    EQ(lock_op(c[3], id, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(c[3], id), 0);
    for (int i = 0; i < 4; ++i) {
        EQ(release_lock(c[i], id), 0);
    }
}

#endif
