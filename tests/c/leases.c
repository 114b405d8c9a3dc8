/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Short leases end, and what another client then may do. The machine may be slow: nothing rests
 * on a call being made before a short lease ends; what must not end has a LONG one. */
#include "check.h"

#define CLIENTS 3
/* Long enough for every call of this program. */
#define LONG 3600
/* Long enough for the calls that take the lock and tell that it was got. */
#define SHORT (slowness() > 1 ? 2 : 1)

static int c[CLIENTS];

/* Takes a free lock for SHORT; when the lease began at the earliest. An acquire whose lease is
 * over when it would return may fail. */
static double take(int client, int lock, lock_ops op)
{
    int status;
    double began;
    do {
        began = seconds_now();
        status = try_op(client, lock, op, SHORT);
    } while (status != 0 && seconds_now() - began > SHORT);
    EQ(status, 0);
    return began;
}

/* Tries until the lock is there: it is not before the lease that began then is over. */
static void take_over(int client, int lock, lock_ops op, int refusal, double began)
{
    int status;
    double bound = began + SHORT + 10 * slowness();
    while ((status = try_op(client, lock, op, LONG)) == refusal && seconds_now() < bound) {
        sleep_seconds(0.02);
    }
    EQ(status, 0);
    CHECK(seconds_now() - began >= SHORT); /* a second is a second */
}

/* The lease that began then is over by any clock: deadlines are whole seconds. */
static void sleep_out(double began)
{
    double left = began + SHORT + 1.2 - seconds_now();
    if (left > 0) {
        sleep_seconds(left);
    }
}

/* Stolen, and the former holder learns it. */
static void atomic_lease(int lock)
{
    double began = take(c[0], lock, LOCK_EXCLUSIVE);
    take_over(c[1], lock, LOCK_EXCLUSIVE, DLOCK_FAIL, began);
    EQ(extend_op(c[0], lock, EXTEND_LOCK_EXCLUSIVE, 0), DLOCK_FAIL);
    EQ(extend_op(c[0], lock, EXTEND_LOCK_EXCLUSIVE, 0), DLOCK_EINVAL); /* not held any more */
    EQ(unlock_op(c[0], lock), DLOCK_ALREADY_UNLOCKED);
    EQ(try_op(c[0], lock, LOCK_EXCLUSIVE, 1), DLOCK_FAIL);
    EQ(unlock_op(c[1], lock), 0);
}

/* The next in the queue, and no other client, takes over. It has asked twice: the primary keeps a
 * place that it was asked for, until the turn and a grace. */
static void fair_lease(int lock)
{
    double began = take(c[0], lock, LOCK_EXCLUSIVE);
    int status = try_op(c[1], lock, LOCK_EXCLUSIVE, LONG);
    if (status == DLOCK_EAGAIN) {
        status = try_op(c[1], lock, LOCK_EXCLUSIVE, LONG);
    }
    CHECK(status == DLOCK_EAGAIN || (status == 0 && seconds_now() - began >= SHORT));
    EQ(try_op(c[2], lock, LOCK_EXCLUSIVE, LONG), DLOCK_EAGAIN);
    sleep_out(began);
    EQ(try_op(c[2], lock, LOCK_EXCLUSIVE, LONG), DLOCK_EAGAIN);
    if (status == DLOCK_EAGAIN) {
        take_over(c[1], lock, LOCK_EXCLUSIVE, DLOCK_EAGAIN, began);
    }
    EQ(unlock_op(c[0], lock), DLOCK_FAIL);
    EQ(unlock_op(c[0], lock), DLOCK_ALREADY_UNLOCKED);
    EQ(unlock_op(c[1], lock), 0);
    EQ(try_op(c[2], lock, LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[2], lock), 0);
}

static void fair_shared_lease(int lock)
{
    double began = take(c[0], lock, LOCK_SHARED);
    take_over(c[1], lock, LOCK_EXCLUSIVE, DLOCK_EAGAIN, began);
    EQ(unlock_op(c[0], lock), DLOCK_FAIL);
    EQ(unlock_op(c[1], lock), 0);
}

/* No lease, with any expire_time. */
static void rw_has_none(int lock)
{
    double began = seconds_now();
    EQ(try_op(c[0], lock, LOCK_EXCLUSIVE, SHORT), 0);
    sleep_out(began);
    EQ(try_op(c[1], lock, LOCK_SHARED, 1), DLOCK_FAIL);
    EQ(unlock_op(c[0], lock), 0);
    EQ(try_op(c[1], lock, LOCK_SHARED, 1), 0);
    EQ(unlock_op(c[1], lock), 0);
}

/* Expired but not stolen: still the holder's. */
static void nobody_wants_it(int lock)
{
    double began = take(c[0], lock, LOCK_EXCLUSIVE);
    sleep_out(began);
    EQ(extend_op(c[0], lock, EXTEND_LOCK_EXCLUSIVE, LONG), 0);
    EQ(unlock_op(c[0], lock), 0);
    began = take(c[0], lock, LOCK_EXCLUSIVE);
    sleep_out(began);
    EQ(unlock_op(c[0], lock), 0);
}

/* lock() gets what expires while it waits; a stolen lock's unlock() says so. */
static void waited_for(int lock)
{
    double began = take(c[0], lock, LOCK_EXCLUSIVE);
    EQ(lock_op(c[1], lock, LOCK_EXCLUSIVE, LONG), 0);
    CHECK(seconds_now() - began >= SHORT);
    EQ(unlock_op(c[0], lock), DLOCK_FAIL);
    EQ(unlock_op(c[0], lock), DLOCK_ALREADY_UNLOCKED);
    EQ(unlock_op(c[1], lock), 0);
}

/* A batch tells each item's loss, and the next call knows it. */
static void batch(int atomic, int fair)
{
    struct lock_op_res results[2];
    int ids[2] = {atomic, fair};
    double began;
    struct lock_request req[2];
    req[0] = request(atomic, LOCK_EXCLUSIVE, SHORT);
    req[1] = request(fair, LOCK_SHARED, SHORT);
    do {
        began = seconds_now();
        EQ(batch_trylock(c[0], 2, req, results), 0);
    } while ((results[0].op_ret != 0 || results[1].op_ret != 0) && seconds_now() - began > SHORT);
    EQ(results[0].op_ret, 0);
    EQ(results[1].op_ret, 0);
    take_over(c[1], fair, LOCK_EXCLUSIVE, DLOCK_EAGAIN, began);
    take_over(c[1], atomic, LOCK_EXCLUSIVE, DLOCK_FAIL, began);
    EQ(batch_unlock(c[0], 2, ids, results), 0);
    EQ(results[0].op_ret, DLOCK_FAIL);
    EQ(results[1].op_ret, DLOCK_FAIL);
    EQ(batch_unlock(c[0], 2, ids, results), 0);
    EQ(results[0].op_ret, DLOCK_ALREADY_UNLOCKED);
    EQ(results[1].op_ret, DLOCK_ALREADY_UNLOCKED);
    EQ(release_lock(c[0], fair), 0);
}

int main(void)
{
    int port = free_port();
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    int atomic = 0, idle = 0, fair = 0, shared = 0, rw = 0;
    for (int i = 0; i < CLIENTS; ++i) {
        c[i] = new_client();
        atomic = must_get(c[i], "atomic", DLOCK_ATOMIC);
        idle = must_get(c[i], "nobody else wants it", DLOCK_ATOMIC);
        fair = must_get(c[i], "fair", DLOCK_FAIR);
        shared = must_get(c[i], "fair, shared", DLOCK_FAIR);
        rw = must_get(c[i], "rw", DLOCK_RW);
    }
    atomic_lease(atomic);
    fair_lease(fair);
    fair_shared_lease(shared);
    rw_has_none(rw);
    nobody_wants_it(idle);
    waited_for(idle);
    batch(atomic, fair);
    for (int i = 0; i < CLIENTS; ++i) {
        EQ(client_deinit(c[i]), 0);
    }
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("leases");
}
