/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h: an exclusive hold that becomes a shared one, beside a reader and a writer that wait. */
#include <pthread.h>

#include "modern.h"

/* A client that waits for a lock. */
struct waiter {
    dlock_lock lock;
    uint32_t mode;
    dlock_hold hold;
    uint64_t token;
    dlock_error result;
    pthread_t thread;
};

static void *waits(void *at)
{
    struct waiter *waiter = at;
    dlock_acquire_options options = wanted(waiter->mode, 0, 0);
    waiter->result = dlock_acquire(waiter->lock, &options, AMPLE, NONE, &waiter->hold,
                                   &waiter->token);
    return NULL;
}

static void begin(struct waiter *waiter)
{
    EQ(pthread_create(&waiter->thread, NULL, waits, waiter), 0);
    sleep_seconds(0.2); /* it is queued, most likely */
}

static void joined(struct waiter *waiter)
{
    EQ(pthread_join(waiter->thread, NULL), 0);
    OK(waiter->result);
}

static void downgrade(int port, uint32_t type)
{
    dlock_client clients[3];
    dlock_lock locks[3];
    dlock_hold hold, other;
    dlock_hold_info info;
    uint64_t first, generation;
    dlock_acquire_options at_once = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    struct waiter reader = {.mode = DLOCK_SHARED}, writer = {.mode = DLOCK_EXCLUSIVE};

    for (int i = 0; i < 3; ++i) {
        clients[i] = open_client(port);
        locks[i] = open_lock(clients[i], "downgrade", type);
    }
    (reader.lock = locks[1], writer.lock = locks[2]);
    hold = must_hold(locks[0], &first);
    DLOCK_INIT(&info);
    OK(dlock_hold_get_info(hold, &info));
    generation = info.generation;
    begin(&reader);
    begin(&writer);
    OK(dlock_hold_downgrade(hold, AMPLE, NONE));
    joined(&reader); /* the writer waits on */
    OK(dlock_hold_get_info(hold, &info));
    CHECK(info.mode == DLOCK_SHARED && info.generation == generation);
    CHECK(info.token > first && info.token == reader.token);
    OK(dlock_hold_downgrade(hold, AMPLE, NONE));
    OK(dlock_hold_check(hold, AMPLE, NONE));
    IS(dlock_acquire(locks[1], &at_once, AMPLE, NONE, &other, NULL), DLOCK_E_HELD);
    OK(dlock_release(reader.hold, AMPLE, NONE));
    OK(dlock_release(hold, AMPLE, NONE));
    IS(dlock_hold_downgrade(hold, AMPLE, NONE), DLOCK_E_HANDLE);
    joined(&writer);
    CHECK(writer.token > reader.token);
    OK(dlock_release(writer.hold, AMPLE, NONE));
    for (int i = 0; i < 3; ++i)
        OK(dlock_client_leave(clients[i], AMPLE, NONE));
}

/* An atomic lock has no shares, and the hold stays as it is. */
static void of_an_atomic_lock(int port)
{
    dlock_client client = open_client(port);
    dlock_hold hold = must_hold(open_lock(client, "atomic", DLOCK_TYPE_ATOMIC), NULL);

    IS(dlock_hold_downgrade(hold, AMPLE, NONE), DLOCK_E_INVALID);
    CHECK(strstr(dlock_last_detail(), "no shares") != NULL);
    OK(dlock_hold_check(hold, AMPLE, NONE));
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
}

/* The mode that is told after a downgrade whose time is over stays: it does not begin later. */
static void out_of_time(int port)
{
    dlock_client client = open_client(port);
    dlock_lock lock = open_lock(client, "late", DLOCK_TYPE_READ_WRITE);
    dlock_hold_info then, later;

    DLOCK_INIT(&then);
    DLOCK_INIT(&later);
    for (int us = 0; us < 300; ++us) {
        dlock_hold hold = must_hold(lock, NULL);

        if (dlock_hold_downgrade(hold, DLOCK_US(us / 2), NONE) == DLOCK_E_TIMED_OUT) {
            OK(dlock_hold_get_info(hold, &then));
            sleep_seconds(0.005);
            OK(dlock_hold_get_info(hold, &later));
            EQ(later.mode, then.mode);
        }
        OK(dlock_release(hold, AMPLE, NONE));
    }
    OK(dlock_client_leave(client, AMPLE, NONE));
}

int main(void)
{
    int port = free_port();
    limit_seconds(60);
    OK(dlock_select_version(DLOCK_API_VERSION));
    OK(dserver_lib_init(1));
    start_primary(port);
    downgrade(port, DLOCK_TYPE_READ_WRITE);
    downgrade(port, DLOCK_TYPE_FAIR);
    of_an_atomic_lock(port);
    out_of_time(port);
    dserver_lib_deinit();
    return conclusion("modern_downgrade");
}
