/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What programs see of a fair lock: numbers, tickets, times, limits of readers and of the queue. */
#include "scenario_locks.h"

#define READERS_MAX 63
#define CLIENTS (READERS_MAX + 2)
/* Long enough for every call of this program. */
#define LONG 3600

static int c[CLIENTS];

static fairlock_state try_view(int client, int id, lock_ops op, uint32_t expire, int want)
{
    struct lock_request req = request(id, op, expire);
    union seen s = unseen();
    EQ(trylock(client, &req, &s), want);
    return s.state.fl;
}

static fairlock_state unlock_view(int client, int id, int want)
{
    union seen s = unseen();
    EQ(unlock(client, id, &s), want);
    return s.state.fl;
}

static fairlock_state async_view(int client, int id, lock_ops op, uint32_t expire, int want)
{
    union seen s = unseen();
    EQ(async_op(client, id, op, expire), 0);
    EQ(async_wait(client, &s), want);
    return s.state.fl;
}

static int fair_for(int clients, const char *name)
{
    int id = 0;
    for (int i = 0; i < clients; ++i) {
        id = must_get(c[i], name, DLOCK_FAIR);
    }
    return id;
}

static void release_all(int clients, int id)
{
    for (int i = 0; i < clients; ++i) {
        EQ(release_lock(c[i], id), 0);
    }
}

#define NUMBERS(v, nx, ns, mx, ms)               \
    do {                                         \
        EQ((v).n_exclusive, (uint16_t)(nx));     \
        EQ((v).n_shared, (uint16_t)(ns));        \
        EQ((v).m_exclusive, (uint16_t)(mx));     \
        EQ((v).m_shared, (uint16_t)(ms));        \
    } while (0)

/* A new lock's numbers are 0; each grant and unlock shows the whole word after it. */
static void numbers_of_holders(void)
{
    int id = fair_for(3, "numbers");
    fairlock_state v = try_view(c[0], id, LOCK_EXCLUSIVE, 0, 0); /* nothing is known yet */
    NUMBERS(v, 0, 0, 0, 0);
    EQ(v.time_out, 0);
    EQ(v.t_value, 0xEEEEEEEE); /* not written */
    v = try_view(c[0], id, LOCK_EXCLUSIVE, 20, 0);
    NUMBERS(v, 0, 0, 1, 0);
    CHECK(about_now(v.time_out, 20));
    EQ(v.bs.rcnt, 0);
    EQ(v.bs.rflag, 0);
    uint32_t first = v.time_out;
    v = try_view(c[0], id, LOCK_EXCLUSIVE, 5, DLOCK_ALREADY_LOCKED); /* never shortens */
    EQ(v.time_out, first);
    v = try_view(c[0], id, LOCK_EXCLUSIVE, 40, DLOCK_ALREADY_LOCKED);
    CHECK(about_now(v.time_out, 40));
    uint32_t extended = v.time_out;
    v = try_view(c[0], id, LOCK_EXCLUSIVE, 0, 0); /* what is known, without asking */
    NUMBERS(v, 0, 0, 1, 0);
    EQ(v.time_out, extended);
    EQ(v.t_value, 0xEEEEEEEE);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    v = unlock_view(c[0], id, 0);
    NUMBERS(v, 1, 0, 1, 0);
    CHECK(about_now(v.time_out, 2)); /* the next one's grace */

    v = try_view(c[0], id, LOCK_SHARED, 30, 0);
    NUMBERS(v, 1, 0, 1, 1);
    EQ(v.bs.rcnt, 1);
    CHECK(about_now(v.time_out, 30));
    v = try_view(c[1], id, LOCK_SHARED, 10, 0);
    NUMBERS(v, 1, 0, 1, 2);
    EQ(v.bs.rcnt, 2);
    CHECK(about_now(v.time_out, 10) || about_now(v.time_out, 30)); /* its own, or the longest */
    v = try_view(c[2], id, LOCK_SHARED, 50, 0);
    EQ(v.bs.rcnt, 3);
    CHECK(about_now(v.time_out, 50));
    v = unlock_view(c[2], id, 0);
    NUMBERS(v, 1, 1, 1, 3);
    EQ(v.bs.rcnt, 2);
    v = unlock_view(c[0], id, 0);
    NUMBERS(v, 1, 2, 1, 3);
    v = unlock_view(c[1], id, 0);
    NUMBERS(v, 1, 3, 1, 3);
    EQ(v.bs.rcnt, 0);
    CHECK(about_now(v.time_out, 2));
    release_all(3, id);
}

/* A queued client sees its own ticket, and keeps it. */
static void numbers_of_waiters(void)
{
    int id = fair_for(4, "tickets");
    try_view(c[0], id, LOCK_EXCLUSIVE, LONG, 0); /* ticket 0 */
    fairlock_state v = try_view(c[1], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 1, 0);
    CHECK(about_now(v.time_out, 0)); /* when it queued */
    uint32_t queued_at = v.time_out;
    v = try_view(c[2], id, LOCK_SHARED, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 2, 0);
    CHECK(about_now(v.time_out, 0));
    v = try_view(c[3], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 2, 1);
    v = try_view(c[1], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 1, 0);
    EQ(v.time_out, queued_at);
    v = async_view(c[1], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 1, 0);
    v = try_view(c[1], id, LOCK_EXCLUSIVE, 0, 0); /* holds nothing, but knows its ticket */
    NUMBERS(v, 0, 0, 1, 0);
    EQ(v.time_out, queued_at);
    EQ(v.t_value, 0xEEEEEEEE);
    v = try_view(c[2], id, LOCK_SHARED, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 2, 0);

    v = unlock_view(c[0], id, 0);
    NUMBERS(v, 1, 0, 3, 1);
    v = try_view(c[1], id, LOCK_EXCLUSIVE, 25, 0);
    NUMBERS(v, 1, 0, 3, 1);
    CHECK(about_now(v.time_out, 25));
    v = try_view(c[2], id, LOCK_SHARED, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 1, 0, 2, 0);
    EQ(unlock_op(c[1], id), 0);
    v = async_view(c[2], id, LOCK_SHARED, LONG, 0);
    NUMBERS(v, 2, 0, 3, 1);
    EQ(v.bs.rcnt, 1);
    v = async_view(c[2], id, UNLOCK, 0, 0);
    NUMBERS(v, 2, 1, 3, 1);
    EQ(try_op(c[3], id, LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[3], id), 0);
    release_all(4, id);
}

/* No client gets an expired lock at the first request; the second one takes it over. */
static void expired_holders(void)
{
    int id = fair_for(3, "expired"), shared = fair_for(3, "expired, shared");
    /* Long enough that a slow machine makes its calls meanwhile. */
    uint32_t lease = slowness() > 1 ? 20 : 5;
    try_view(c[0], id, LOCK_EXCLUSIVE, lease, 0);
    try_view(c[0], shared, LOCK_SHARED, lease, 0);
    fairlock_state v = try_view(c[2], shared, LOCK_SHARED, lease, 0); /* readers do not wait */
    EQ(v.bs.rcnt, 2);
    sleep_seconds(lease + 2.3);
    v = try_view(c[1], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    NUMBERS(v, 0, 0, 1, 0);
    v = try_view(c[1], id, LOCK_EXCLUSIVE, LONG, 0);
    EQ(v.n_exclusive, 1);
    CHECK(about_now(v.time_out, LONG));
    EQ(extend_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 0), DLOCK_FAIL);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_UNLOCKED);
    EQ(try_op(c[0], id, LOCK_SHARED, 5), DLOCK_EAGAIN); /* queues afresh */
    EQ(try_op(c[1], shared, LOCK_EXCLUSIVE, LONG), DLOCK_EAGAIN);
    EQ(try_op(c[1], shared, LOCK_EXCLUSIVE, LONG), 0);
    /* Re-entry asks the primary, and so learns of the loss. */
    EQ(try_op(c[0], shared, LOCK_SHARED, 5), DLOCK_FAIL);
    EQ(unlock_op(c[0], shared), DLOCK_ALREADY_UNLOCKED);
    EQ(unlock_op(c[2], shared), DLOCK_FAIL);
    EQ(unlock_op(c[1], shared), 0);
    EQ(unlock_op(c[1], id), 0);
    EQ(try_op(c[0], id, LOCK_SHARED, 5), 0);
    EQ(unlock_op(c[0], id), 0);
    release_all(3, id);
    release_all(3, shared);
}

/* A turn that no other client asks for lasts: a slow client has it, an expired holder its lock. */
static void slow_clients(void)
{
    int id = fair_for(3, "slow"), held = fair_for(2, "slow holder");
    int shared = fair_for(2, "slow reader");
    try_view(c[0], id, LOCK_EXCLUSIVE, LONG, 0);
    try_view(c[1], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    try_view(c[2], id, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    uint32_t lease = slowness() > 1 ? 20 : 4;
    try_view(c[0], held, LOCK_EXCLUSIVE, lease, 0);
    try_view(c[1], held, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    try_view(c[0], shared, LOCK_SHARED, lease, 0);
    try_view(c[1], shared, LOCK_EXCLUSIVE, LONG, DLOCK_EAGAIN);
    EQ(unlock_op(c[0], id), 0);
    sleep_seconds(lease + 2.5); /* more than the grace of 2 s, and than the leases */
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, LONG), 0);
    /* A lease that is over can be extended, and its lock released, until another client has it. */
    EQ(extend_op(c[0], held, EXTEND_LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[0], held), 0);
    EQ(try_op(c[1], held, LOCK_EXCLUSIVE, LONG), 0);
    /* But a query of it is not answered as if it still ran. */
    EQ(extend_op(c[0], shared, EXTEND_LOCK_SHARED, 0), DLOCK_FAIL);
    EQ(unlock_op(c[0], shared), DLOCK_ALREADY_UNLOCKED);
    EQ(try_op(c[1], shared, LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[1], shared), 0);
    EQ(unlock_op(c[1], held), 0);
    EQ(unlock_op(c[1], id), 0);
    EQ(try_op(c[2], id, LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[2], id), 0);
    release_all(3, id);
    release_all(2, held);
    release_all(2, shared);
}

/* 63 readers at a time; the next is let in when one leaves. */
static void readers(void)
{
    int id = fair_for(CLIENTS, "readers");
    for (int i = 0; i < READERS_MAX; ++i) {
        EQ(try_op(c[i], id, LOCK_SHARED, LONG), 0);
    }
    EQ(try_op(c[READERS_MAX], id, LOCK_SHARED, LONG), DLOCK_EAGAIN);
    EQ(try_op(c[READERS_MAX], id, LOCK_SHARED, LONG), DLOCK_EAGAIN);
    EQ(try_op(c[READERS_MAX + 1], id, LOCK_EXCLUSIVE, LONG), DLOCK_EAGAIN);
    EQ(unlock_op(c[17], id), 0);
    EQ(try_op(c[READERS_MAX + 1], id, LOCK_EXCLUSIVE, LONG), DLOCK_EAGAIN);
    fairlock_state v = try_view(c[READERS_MAX], id, LOCK_SHARED, LONG, 0);
    EQ(v.bs.rcnt, READERS_MAX);
    for (int i = 0; i <= READERS_MAX; ++i) {
        EQ(unlock_op(c[i], id), i == 17 ? DLOCK_ALREADY_UNLOCKED : 0);
    }
    EQ(try_op(c[READERS_MAX + 1], id, LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[READERS_MAX + 1], id), 0);
    release_all(CLIENTS, id);
}

/* A client that tries and gives up again and again holds no other up in the end. */
static void tickets_given_up(void)
{
    int id = fair_for(3, "given up"), refused = 0, queued = 0;
    int times = slowness() > 1 ? 200 : 2000;
    try_view(c[0], id, LOCK_EXCLUSIVE, LONG, 0);
    for (int i = 0; i < times; ++i) {
        int status = try_op(c[1], id, i % 2 ? LOCK_SHARED : LOCK_EXCLUSIVE, LONG);
        if (status == DLOCK_EAGAIN) {
            ++queued;
            NEED(unlock_op(c[1], id) == 0);
        } else { /* a queue has its limits */
            ++refused;
            NEED(status == DLOCK_FAIL);
            NEED(unlock_op(c[1], id) == DLOCK_ALREADY_UNLOCKED);
        }
    }
    CHECK(queued > 0);
    EQ(extend_op(c[0], id, EXTEND_LOCK_EXCLUSIVE, 0), 0); /* the holder is none the worse */
    EQ(unlock_op(c[0], id), 0);
    double start = seconds_now();
    EQ(lock_op(c[2], id, LOCK_EXCLUSIVE, LONG), 0);
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, LONG), DLOCK_EAGAIN);
    EQ(unlock_op(c[2], id), 0);
    EQ(lock_op(c[1], id, LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[1], id), 0);
    CHECK_WITHIN(start, 5);
    release_all(3, id);
    printf("  %d queued, %d refused\n", queued, refused);
}

int main(void)
{
    int port = free_port();
    limit_seconds(100);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    for (int i = 0; i < CLIENTS; ++i) {
        c[i] = new_client();
    }
    numbers_of_holders();
    numbers_of_waiters();
    expired_holders();
    slow_clients();
    readers();
    tickets_given_up();
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("fair_views");
}
