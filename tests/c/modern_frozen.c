/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h with a primary that stands still: every call that waits ends at its time, or when it is
 * cancelled. */
#include <pthread.h>

#include "modern.h"
#include "primary_process.h"

/* A call of 100 ms ends in this time, on a busy machine. */
#define SOON 2.5

/* A call with a cancel handle that was fired, or without time. */
#define AT_ONCE(call, want)          \
    do {                             \
        double begun = seconds_now(); \
        IS(call, want);              \
        CHECK_WITHIN(begun, SOON);   \
    } while (0)

#define ENDS(call)                                   \
    do {                                             \
        double begun = seconds_now();                \
        IS(call, DLOCK_E_TIMED_OUT);                 \
        CHECK(seconds_now() - begun >= 0.1);         \
        CHECK_WITHIN(begun, SOON);                   \
    } while (0)

static void *fires(void *argument)
{
    sleep_seconds(0.1);
    OK(dlock_cancel_fire(*(dlock_cancel *)argument));
    return NULL;
}

static dlock_cancel cancel;
static pthread_t thread;
static double fire_begun;

static dlock_cancel fire_soon(void)
{
    OK(dlock_cancel_new(&cancel));
    NEED(pthread_create(&thread, NULL, fires, &cancel) == 0);
    fire_begun = seconds_now();
    return cancel;
}

static void was_fired(void)
{
    CHECK_WITHIN(fire_begun, SOON);
    NEED(pthread_join(thread, NULL) == 0);
    OK(dlock_cancel_close(cancel));
}

#define FIRED(call)                   \
    do {                              \
        IS(call, DLOCK_E_CANCELLED);  \
        was_fired();                  \
    } while (0)

int main(int argc, char **argv)
{
    const uint64_t short_ns = DLOCK_MS(100);
    int port = free_port();
    uint64_t value;
    be_primary_if_asked(argc, argv);
    limit_seconds(150);
    MUST(dlock_select_version(DLOCK_API_VERSION));
    OK(dlock_set_log_level(0));
    struct primary_process primary = spawn_primary(port, 0);
    dlock_client one = open_client(port), two = open_client(port), late;
    dlock_lock a = open_lock(one, "frozen", DLOCK_TYPE_FAIR);
    dlock_lock b = open_lock(two, "frozen", DLOCK_TYPE_FAIR), opened;
    dlock_hold hold = must_hold(a, NULL), other;
    dlock_object_options created;
    dlock_object object;
    dlock_cancel fired;
    dlock_client_options options;
    DLOCK_INIT(&created);
    created.flags = DLOCK_CREATE;
    MUST(dlock_object_open(one, "frozen", 6, &created, AMPLE, NONE, &object));
    DLOCK_INIT(&options);
    options.port = (uint32_t)port;
    dlock_client leaves = open_client(port);
    dlock_lock closed[2] = {open_lock(two, "closed", DLOCK_TYPE_FAIR),
                            open_lock(two, "closed too", DLOCK_TYPE_ATOMIC)};
    dlock_lock left = open_lock(one, "left", DLOCK_TYPE_READ_WRITE);
    dlock_object closed_object;
    MUST(dlock_object_open(two, "closed", 6, &created, AMPLE, NONE, &closed_object));
    must_hold(open_lock(leaves, "left", DLOCK_TYPE_READ_WRITE), NULL);
    OK(dlock_cancel_new(&fired));
    OK(dlock_cancel_fire(fired));

    stop_primary(primary);
    /* What is closed is given back by a thread of the library. */
    AT_ONCE(dlock_lock_close(closed[0], 0, NONE), DLOCK_E_TIMED_OUT);
    AT_ONCE(dlock_lock_close(closed[1], DLOCK_FOREVER, fired), DLOCK_E_CANCELLED);
    AT_ONCE(dlock_object_close(closed_object, 0, NONE), DLOCK_E_TIMED_OUT);
    ENDS(dlock_acquire(b, NULL, short_ns, NONE, &other, NULL));
    FIRED(dlock_acquire(b, NULL, DLOCK_FOREVER, fire_soon(), &other, NULL));
    ENDS(dlock_lock_open(one, "another", 7, NULL, short_ns, NONE, &opened));
    FIRED(dlock_lock_open(two, "another", 7, NULL, DLOCK_FOREVER, fire_soon(), &opened));
    ENDS(dlock_client_ping(one, short_ns, NONE));
    FIRED(dlock_client_ping(two, DLOCK_FOREVER, fire_soon()));
    ENDS(dlock_client_open(HOST, &options, short_ns, NONE, &late));
    FIRED(dlock_client_open(HOST, &options, DLOCK_FOREVER, fire_soon(), &late));
    dlock_queue queue;
    dlock_event event;
    DLOCK_INIT(&event);
    OK(dlock_queue_new(&queue));
    double start = seconds_now();
    OK(dlock_acquire_start(queue, b, NULL, short_ns, NONE, NULL));
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    CHECK(event.status == DLOCK_E_TIMED_OUT || event.status == DLOCK_E_DISCONNECTED);
    CHECK_WITHIN(start, 10);
    printf("  a request of 0.1 s ended after %.1f s\n", seconds_now() - start);
    OK(dlock_acquire_start(queue, b, NULL, DLOCK_FOREVER, fire_soon(), NULL));
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    EQ(event.status, DLOCK_E_CANCELLED);
    was_fired();
    OK(dlock_queue_close(queue));
    /* What reaches the primary's memory by itself needs no answer. */
    dlock_error added = dlock_object_add(object, 1, short_ns, NONE, &value);
    CHECK(added == DLOCK_OK || added == DLOCK_E_TIMED_OUT);
    dlock_error extended = dlock_hold_extend(hold, 60000, short_ns, NONE);
    CHECK(extended == DLOCK_OK || extended == DLOCK_E_TIMED_OUT);
    start = seconds_now();
    dlock_error released = dlock_release(hold, short_ns, NONE);
    CHECK(released == DLOCK_OK || released == DLOCK_E_TIMED_OUT || released == DLOCK_E_BUSY);
    CHECK_WITHIN(start, SOON);
    AT_ONCE(dlock_client_leave(leaves, 0, NONE), DLOCK_E_TIMED_OUT);

    continue_primary(primary);
    /* All that was given up is undone by the library. */
    OK(dlock_client_ping(one, AMPLE, NONE));
    if (released == DLOCK_E_BUSY) /* the extension went on */
        IS(dlock_release(hold, AMPLE, NONE), DLOCK_OK);
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_HANDLE);
    other = must_hold(b, NULL);
    OK(dlock_release(other, AMPLE, NONE));
    opened = open_lock(one, "another", DLOCK_TYPE_FAIR);
    OK(dlock_release(must_hold(opened, NULL), AMPLE, NONE));
    OK(dlock_acquire(left, NULL, DLOCK_S(30), NONE, &other, NULL)); /* its holder has left */
    OK(dlock_release(other, AMPLE, NONE));
    OK(dlock_object_load(object, AMPLE, NONE, &value));
    CHECK(value <= 1);
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
    end_primary(primary);
    return conclusion("modern_frozen");
}
