/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Leases of one second: two seconds later somebody else may have the lock. */
#include "check.h"

#define CLIENTS 3

int main(void)
{
    int c[CLIENTS], port = free_port();
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
    double begin = seconds_now();
    EQ(try_op(c[0], atomic, LOCK_EXCLUSIVE, 1), 0);
    EQ(try_op(c[0], idle, LOCK_EXCLUSIVE, 1), 0);
    EQ(try_op(c[0], fair, LOCK_EXCLUSIVE, 1), 0);
    EQ(try_op(c[0], shared, LOCK_SHARED, 1), 0);
    EQ(try_op(c[0], rw, LOCK_EXCLUSIVE, 1), 0);
    EQ(try_op(c[1], atomic, LOCK_EXCLUSIVE, 30), DLOCK_FAIL);
    EQ(try_op(c[1], fair, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    EQ(try_op(c[2], fair, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    EQ(try_op(c[1], shared, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    sleep_seconds(0.8);
    int stolen = try_op(c[1], atomic, LOCK_EXCLUSIVE, 30) != DLOCK_FAIL;
    stolen |= try_op(c[1], fair, LOCK_EXCLUSIVE, 30) != DLOCK_EAGAIN;
    CHECK(!stolen || seconds_now() - begin > 0.99); /* a second is a second */
    sleep_seconds(1.4);

    /* atomic: stolen, and the former holder learns it */
    EQ(try_op(c[1], atomic, LOCK_EXCLUSIVE, 30), 0);
    EQ(extend_op(c[0], atomic, EXTEND_LOCK_EXCLUSIVE, 0), DLOCK_FAIL);
    EQ(extend_op(c[0], atomic, EXTEND_LOCK_EXCLUSIVE, 0), DLOCK_EINVAL); /* not held any more */
    EQ(unlock_op(c[0], atomic), DLOCK_ALREADY_UNLOCKED);
    EQ(try_op(c[0], atomic, LOCK_EXCLUSIVE, 1), DLOCK_FAIL);
    EQ(unlock_op(c[1], atomic), 0);

    /* fair: the next in the queue, and nobody else, has taken over or may do so */
    EQ(try_op(c[2], fair, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    EQ(try_op(c[1], fair, LOCK_EXCLUSIVE, 30), 0);
    EQ(unlock_op(c[0], fair), DLOCK_FAIL);
    EQ(unlock_op(c[0], fair), DLOCK_ALREADY_UNLOCKED);
    EQ(unlock_op(c[1], fair), 0);
    EQ(try_op(c[2], fair, LOCK_EXCLUSIVE, 30), 0);
    EQ(unlock_op(c[2], fair), 0);
    EQ(try_op(c[1], shared, LOCK_EXCLUSIVE, 30), 0);
    EQ(unlock_op(c[0], shared), DLOCK_FAIL);
    EQ(unlock_op(c[1], shared), 0);

    /* read-write: no lease, whatever expire_time says */
    EQ(try_op(c[1], rw, LOCK_SHARED, 1), DLOCK_FAIL);
    EQ(unlock_op(c[0], rw), 0);
    EQ(try_op(c[1], rw, LOCK_SHARED, 1), 0);
    EQ(unlock_op(c[1], rw), 0);

    /* atomic, expired but not stolen: still the holder's */
    EQ(extend_op(c[0], idle, EXTEND_LOCK_EXCLUSIVE, 1), 0);
    sleep_seconds(2);
    EQ(unlock_op(c[0], idle), 0);
    EQ(try_op(c[0], idle, LOCK_EXCLUSIVE, 1), 0);

    /* lock() gets what expires while it waits; a stolen lock's unlock() says so */
    EQ(try_op(c[1], idle, LOCK_EXCLUSIVE, 30), DLOCK_FAIL);
    double start = seconds_now();
    EQ(lock_op(c[1], idle, LOCK_EXCLUSIVE, 30), 0);
    CHECK(seconds_now() - start < 3);
    EQ(unlock_op(c[0], idle), DLOCK_FAIL);
    EQ(unlock_op(c[0], idle), DLOCK_ALREADY_UNLOCKED);
    EQ(unlock_op(c[1], idle), 0);

    /* a batch tells each item's loss, and the next call knows it */
    struct lock_request req[2] = {request(atomic, LOCK_EXCLUSIVE, 1), request(fair, LOCK_SHARED, 1)};
    struct lock_op_res results[2];
    int ids[2] = {atomic, fair};
    EQ(batch_trylock(c[0], 2, req, results), 0);
    EQ(results[0].op_ret, 0);
    EQ(results[1].op_ret, 0);
    EQ(try_op(c[1], fair, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    sleep_seconds(2);
    EQ(try_op(c[1], atomic, LOCK_EXCLUSIVE, 30), 0);
    EQ(try_op(c[1], fair, LOCK_EXCLUSIVE, 30), 0);
    EQ(batch_unlock(c[0], 2, ids, results), 0);
    EQ(results[0].op_ret, DLOCK_FAIL);
    EQ(results[1].op_ret, DLOCK_FAIL);
    EQ(batch_unlock(c[0], 2, ids, results), 0);
    EQ(results[0].op_ret, DLOCK_ALREADY_UNLOCKED);
    EQ(results[1].op_ret, DLOCK_ALREADY_UNLOCKED);
    EQ(release_lock(c[0], fair), 0);
    for (int i = 0; i < CLIENTS; ++i) {
        EQ(client_deinit(c[i]), 0);
    }
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("leases");
}
