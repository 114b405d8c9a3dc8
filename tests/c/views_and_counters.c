/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is shown of readers inside a fair lock, and what the primary counts of refused calls. */
#include "scenario_locks.h"

#define CLIENTS 4

static int c[CLIENTS];

/* The readers inside, as the view of a call that must have this result shows them. */
static unsigned inside(int client, int id, lock_ops op, int want)
{
    struct lock_request req = request(id, op, 30);
    union seen s = unseen();
    EQ(op == UNLOCK ? unlock(client, id, &s) : trylock(client, &req, &s), want);
    return s.state.fl.bs.rcnt;
}

static int got_by_all(const char *name, dlock_type type)
{
    int id = 0;
    for (int i = 0; i < CLIENTS; ++i) {
        id = must_get(c[i], name, type);
    }
    return id;
}

/* Readers that wait are not inside. */
static void readers_inside(void)
{
    int id = got_by_all("readers inside", DLOCK_FAIR);
    EQ(inside(c[0], id, LOCK_SHARED, 0), 1);
    EQ(inside(c[1], id, LOCK_SHARED, 0), 2);
    EQ(inside(c[2], id, LOCK_EXCLUSIVE, DLOCK_EAGAIN), 2);
    EQ(inside(c[3], id, LOCK_SHARED, DLOCK_EAGAIN), 2); /* behind the writer */
    EQ(inside(c[2], id, LOCK_EXCLUSIVE, DLOCK_EAGAIN), 2);
    EQ(inside(c[0], id, UNLOCK, 0), 1);
    EQ(inside(c[2], id, LOCK_EXCLUSIVE, DLOCK_EAGAIN), 1);
    EQ(inside(c[1], id, UNLOCK, 0), 0);
    EQ(inside(c[2], id, LOCK_EXCLUSIVE, 0), 0);
    EQ(inside(c[3], id, LOCK_SHARED, DLOCK_EAGAIN), 0);
    EQ(inside(c[2], id, UNLOCK, 0), 0);
    EQ(inside(c[3], id, LOCK_SHARED, 0), 1);
    EQ(inside(c[3], id, UNLOCK, 0), 0);
}

/* Readers before a queued writer, whom the lock's numbers do not tell from those behind it. */
static void readers_before_a_writer(void)
{
    int id = got_by_all("readers before a writer", DLOCK_FAIR);
    EQ(inside(c[0], id, LOCK_SHARED, 0), 1);
    EQ(inside(c[1], id, LOCK_SHARED, 0), 2);
    EQ(inside(c[2], id, LOCK_EXCLUSIVE, DLOCK_EAGAIN), 2);
    EQ(inside(c[3], id, LOCK_SHARED, DLOCK_EAGAIN), 2);
    EQ(inside(c[3], id, LOCK_SHARED, DLOCK_EAGAIN), 2); /* asked again */
    EQ(inside(c[0], id, LOCK_SHARED, DLOCK_ALREADY_LOCKED), 2);
    struct lock_request extend = request(id, EXTEND_LOCK_SHARED, 30);
    union seen s = unseen();
    EQ(lock_extend(c[1], &extend, &s), 0);
    EQ(s.state.fl.bs.rcnt, 2);
    EQ(unlock_op(c[0], id), DLOCK_ALREADY_LOCKED);
    EQ(inside(c[1], id, UNLOCK, 0), 1);
    EQ(inside(c[3], id, LOCK_SHARED, DLOCK_EAGAIN), 1);
    EQ(inside(c[0], id, UNLOCK, 0), 0);
    EQ(unlock_op(c[3], id), 0); /* it gives its ticket up */
    EQ(inside(c[2], id, LOCK_EXCLUSIVE, 0), 0);
    EQ(inside(c[2], id, UNLOCK, 0), 0);
}

static uint64_t counted(int server, int code)
{
    struct debug_stats stats;
    EQ(get_server_debug_stats(server, &stats), 0);
    return stats.stats[code];
}

/* Each EAGAIN of a fair lock, the first one of a ticket, too. */
static void eagain_is_counted(int server)
{
    int id = got_by_all("counted", DLOCK_FAIR);
    EQ(clear_server_debug_stats(server), 0);
    EQ(try_op(c[0], id, LOCK_EXCLUSIVE, 30), 0);
    EQ(counted(server, DEBUG_STATS_EAGAIN), 0);
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    EQ(counted(server, DEBUG_STATS_EAGAIN), 1);
    EQ(try_op(c[1], id, LOCK_EXCLUSIVE, 30), DLOCK_EAGAIN);
    EQ(counted(server, DEBUG_STATS_EAGAIN), 2);
    EQ(try_op(c[2], id, LOCK_SHARED, 30), DLOCK_EAGAIN);
    EQ(counted(server, DEBUG_STATS_EAGAIN), 3);
    EQ(unlock_op(c[2], id), 0);
    EQ(unlock_op(c[1], id), 0);
    EQ(unlock_op(c[0], id), 0);
}

/* Tries until the lease of the one before is over: on a busy machine a clock is known less well. */
static int try_until_free(int client, int lock)
{
    int got = try_op(client, lock, LOCK_EXCLUSIVE, 30);
    for (int tries = 0; tries < 40 && got != 0; tries++) {
        sleep_seconds(0.25);
        got = try_op(client, lock, LOCK_EXCLUSIVE, 30);
    }
    return got;
}

/* An atomic lock that another client took after its lease: unlock and extend of the first fail. */
static void stolen_locks_are_counted(int server)
{
    int unlocked = got_by_all("stolen, unlocked", DLOCK_ATOMIC);
    int extended = got_by_all("stolen, extended", DLOCK_ATOMIC);
    EQ(try_op(c[0], unlocked, LOCK_EXCLUSIVE, 1), 0);
    EQ(try_op(c[0], extended, LOCK_EXCLUSIVE, 1), 0);
    sleep_seconds(2.3);
    EQ(try_until_free(c[1], unlocked), 0);
    EQ(try_until_free(c[1], extended), 0);
    EQ(clear_server_debug_stats(server), 0);
    EQ(unlock_op(c[0], unlocked), DLOCK_FAIL);
    EQ(counted(server, DEBUG_STATS_ATOMIC_UNLOCK_FAIL), 1);
    EQ(extend_op(c[0], extended, EXTEND_LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(counted(server, DEBUG_STATS_ATOMIC_EXTEND_FAIL), 1);
    EQ(unlock_op(c[1], unlocked), 0);
    EQ(unlock_op(c[1], extended), 0);
    EQ(counted(server, DEBUG_STATS_ATOMIC_UNLOCK_FAIL), 1);
}

/* Failed acquires, which a client decides on the primary's memory by itself; one by one, in a batch,
 * and of a client that has left. */
static void failed_acquires_are_counted(int server)
{
    int atomic = got_by_all("held", DLOCK_ATOMIC), rw = got_by_all("held, read-write", DLOCK_RW);
    EQ(try_op(c[0], atomic, LOCK_EXCLUSIVE, 30), 0);
    EQ(try_op(c[0], rw, LOCK_EXCLUSIVE, 30), 0);
    EQ(clear_server_debug_stats(server), 0);
    EQ(try_op(c[1], rw, LOCK_EXCLUSIVE, 30), DLOCK_FAIL);
    EQ(counted(server, DEBUG_STATS_RW_TRYLOCK_EX_FAIL), 1);
    EQ(try_op(c[1], rw, LOCK_SHARED, 30), DLOCK_FAIL);
    EQ(counted(server, DEBUG_STATS_RW_TRYLOCK_SH_FAIL), 1);
    EQ(try_op(c[1], atomic, LOCK_EXCLUSIVE, 30), DLOCK_FAIL);
    EQ(counted(server, DEBUG_STATS_ATOMIC_TRYLOCK_FAIL), 1);
    struct lock_request both[2];
    both[0] = request(atomic, LOCK_EXCLUSIVE, 30);
    both[1] = request(rw, LOCK_EXCLUSIVE, 30);
    struct lock_op_res results[2];
    EQ(batch_trylock(c[2], 2, both, results), 0);
    EQ(results[0].op_ret, DLOCK_FAIL);
    EQ(counted(server, DEBUG_STATS_ATOMIC_TRYLOCK_FAIL), 2);
    EQ(counted(server, DEBUG_STATS_RW_TRYLOCK_EX_FAIL), 2);
    int leaver = new_client();
    EQ(must_get(leaver, "held", DLOCK_ATOMIC), atomic);
    EQ(try_op(leaver, atomic, LOCK_EXCLUSIVE, 30), DLOCK_FAIL);
    EQ(client_deinit(leaver), 0);
    EQ(counted(server, DEBUG_STATS_ATOMIC_TRYLOCK_FAIL), 3);
    EQ(unlock_op(c[0], atomic), 0);
    EQ(unlock_op(c[0], rw), 0);
    EQ(counted(server, DEBUG_STATS_ATOMIC_UNLOCK_FAIL), 0);
}

int main(void)
{
    int port = free_port();
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    int server = start_primary(port);
    EQ(init_client_library(port), 0);
    for (int i = 0; i < CLIENTS; ++i) {
        c[i] = new_client();
    }
    readers_inside();
    readers_before_a_writer();
    eagain_is_counted(server);
    failed_acquires_are_counted(server);
    stolen_locks_are_counted(server);
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("views_and_counters");
}
