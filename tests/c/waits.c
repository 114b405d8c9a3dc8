/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* lock(): its bound of 5 s for every type, what is left after it, and being woken before it. */
#include <pthread.h>

#include "scenario_locks.h"

struct wait {
    const char *name;
    dlock_type type;
    lock_ops held, wanted; /* the holder's mode, and the waiter's */
    int code;              /* after 5 s */
    int holder, waiter, id;
    int woken; /* the holder lets go after a while */
    pthread_t thread;
};

static struct wait waits[] = {
    {"w atomic", DLOCK_ATOMIC, LOCK_EXCLUSIVE, LOCK_EXCLUSIVE, DLOCK_FAIL, 0, 0, 0, 0, 0},
    {"w rw ex", DLOCK_RW, LOCK_EXCLUSIVE, LOCK_EXCLUSIVE, DLOCK_FAIL, 0, 0, 0, 0, 0},
    {"w rw share", DLOCK_RW, LOCK_EXCLUSIVE, LOCK_SHARED, DLOCK_FAIL, 0, 0, 0, 0, 0},
    {"w rw behind", DLOCK_RW, LOCK_SHARED, LOCK_EXCLUSIVE, DLOCK_FAIL, 0, 0, 0, 0, 0},
    {"w fair ex", DLOCK_FAIR, LOCK_EXCLUSIVE, LOCK_EXCLUSIVE, DLOCK_EAGAIN, 0, 0, 0, 0, 0},
    {"w fair share", DLOCK_FAIR, LOCK_EXCLUSIVE, LOCK_SHARED, DLOCK_EAGAIN, 0, 0, 0, 0, 0},
    {"w fair behind", DLOCK_FAIR, LOCK_SHARED, LOCK_EXCLUSIVE, DLOCK_EAGAIN, 0, 0, 0, 0, 0},
};
enum { WAITS = sizeof(waits) / sizeof(*waits) };

static void *wait_for_it(void *arg)
{
    struct wait *w = (struct wait *)arg;
    struct lock_request req = request(w->id, w->wanted, 600);
    union seen s = unseen();
    double start = seconds_now();
    int status = lock(w->waiter, &req, &s);
    double took = seconds_now() - start;
    if (status != (w->woken ? 0 : w->code) || own_seconds_since(start) > 9 || (!w->woken && took < 4.5)) {
        fprintf(stderr, "%s: 0x%x after %.2f s\n", w->name, (unsigned)status, took);
        CHECK(0);
    }
    static const size_t sizes[] = {8, 12, 16};
    CHECK(untouched_from(&s, status == DLOCK_FAIL ? 0 : sizes[w->type]));
    return NULL;
}

static void start_all(int woken)
{
    for (int i = 0; i < WAITS; ++i) {
        waits[i].woken = woken;
        EQ(try_op(waits[i].holder, waits[i].id, waits[i].held, 600), 0);
        NEED(pthread_create(&waits[i].thread, NULL, wait_for_it, &waits[i]) == 0);
    }
}

static void join_all(void)
{
    for (int i = 0; i < WAITS; ++i) {
        pthread_join(waits[i].thread, NULL);
    }
}

/* A fair lock's waiter keeps its place after the 5 s; the others have none. */
static void after_the_bound(struct wait *w)
{
    struct debug_stats stats;
    EQ(get_client_debug_stats(w->waiter, &stats), 0);
    if (w->type != DLOCK_FAIR) {
        EQ(unlock_op(w->waiter, w->id), DLOCK_ALREADY_UNLOCKED);
        EQ(unlock_op(w->holder, w->id), 0);
        EQ(try_op(w->waiter, w->id, w->wanted, 5), 0);
    } else {
        lock_ops other = w->wanted == LOCK_SHARED ? LOCK_EXCLUSIVE : LOCK_SHARED;
        EQ(release_lock(w->waiter, w->id), DLOCK_TICKET_TO_UNLOCK);
        EQ(lock_op(w->waiter, w->id, other, 5), DLOCK_ETICKET);
        EQ(try_op(w->waiter, w->id, w->wanted, 5), DLOCK_EAGAIN);
        EQ(unlock_op(w->holder, w->id), 0);
        EQ(try_op(w->waiter, w->id, w->wanted, 5), 0);
    }
    EQ(unlock_op(w->waiter, w->id), 0);
}

int main(void)
{
    int port = free_port();
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    for (int i = 0; i < WAITS; ++i) {
        waits[i].holder = new_client();
        waits[i].waiter = new_client();
        waits[i].id = must_get(waits[i].holder, waits[i].name, waits[i].type);
        must_get(waits[i].waiter, waits[i].name, waits[i].type);
    }
    start_all(0);
    join_all();
    for (int i = 0; i < WAITS; ++i) {
        after_the_bound(&waits[i]);
    }
    start_all(1);
    sleep_seconds(0.3); /* most of them wait by now; those that do not must get it all the same */
    for (int i = 0; i < WAITS; ++i) {
        EQ(unlock_op(waits[i].holder, waits[i].id), 0);
    }
    double start = seconds_now();
    join_all();
    CHECK_WITHIN(start, 3);
    for (int i = 0; i < WAITS; ++i) {
        EQ(unlock_op(waits[i].waiter, waits[i].id), 0);
        EQ(release_lock(waits[i].waiter, waits[i].id), 0);
        EQ(release_lock(waits[i].holder, waits[i].id), 0);
    }
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("waits");
}
