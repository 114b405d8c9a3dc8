/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h in a forked child: the parent's handles are of no use and come to no harm. */
#include <pthread.h>
#include <sys/wait.h>

#include "modern.h"

static dlock_client client;
static dlock_lock named, other;
static dlock_hold hold;
static dlock_queue queue;
static dlock_cancel cancel;
static dlock_object object;

static int child(int port)
{
    dlock_event event;
    dlock_client_info info;
    dlock_hold mine;
    uint64_t value;
    double start = seconds_now();
    limit_seconds(60);
    DLOCK_INIT(&event);
    DLOCK_INIT(&info);
    IS(dlock_client_get_info(client, &info), DLOCK_E_FORKED);
    IS(dlock_client_ping(client, AMPLE, NONE), DLOCK_E_FORKED);
    IS(dlock_acquire(named, NULL, AMPLE, NONE, &mine, NULL), DLOCK_E_FORKED);
    IS(dlock_hold_extend(hold, 1000, AMPLE, NONE), DLOCK_E_FORKED);
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_FORKED);
    IS(dlock_queue_next(queue, AMPLE, NONE, &event), DLOCK_E_FORKED);
    IS(dlock_queue_close(queue), DLOCK_E_FORKED);
    IS(dlock_cancel_fire(cancel), DLOCK_E_FORKED);
    IS(dlock_object_add(object, 1, AMPLE, NONE, &value), DLOCK_E_FORKED);
    IS(dlock_lock_close(named, AMPLE, NONE), DLOCK_E_FORKED);
    IS(dlock_client_leave(client, AMPLE, NONE), DLOCK_E_FORKED);
    CHECK(strstr(dlock_last_detail(), "parent") != NULL);

    dlock_client own = open_client(port);
    dlock_lock same = open_lock(own, "forked", DLOCK_TYPE_FAIR);
    dlock_acquire_options try_it = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    IS(dlock_acquire(same, &try_it, AMPLE, NONE, &mine, NULL), DLOCK_E_HELD);
    dlock_lock free_one = open_lock(own, "of the child", DLOCK_TYPE_FAIR);
    mine = must_hold(free_one, &value);
    CHECK(mine.id != hold.id && own.id != client.id);
    OK(dlock_release(mine, AMPLE, NONE));
    dlock_queue own_queue;
    OK(dlock_queue_new(&own_queue));
    OK(dlock_acquire_start(own_queue, free_one, NULL, AMPLE, NONE, &mine));
    OK(dlock_queue_next(own_queue, AMPLE, NONE, &event));
    EQ(event.status, DLOCK_OK);
    OK(dlock_client_leave(own, AMPLE, NONE));
    CHECK_WITHIN(start, 20);
    return conclusion("modern_forked (child)");
}

static void *waits(void *unused)
{
    dlock_hold mine;
    IS(dlock_acquire(named, NULL, AMPLE, NONE, &mine, NULL), DLOCK_OK);
    OK(dlock_release(mine, AMPLE, NONE));
    return unused;
}

int main(void)
{
    int port = free_port(), how = 0;
    pthread_t thread;
    dlock_event event;
    dlock_object_options created;
    limit_seconds(60);
    MUST(dlock_select_version(DLOCK_API_VERSION));
    OK(dserver_lib_init(1));
    start_primary(port);
    client = open_client(port);
    named = open_lock(client, "forked", DLOCK_TYPE_FAIR);
    other = open_lock(client, "other", DLOCK_TYPE_FAIR);
    hold = must_hold(named, NULL);
    MUST(dlock_queue_new(&queue));
    MUST(dlock_cancel_new(&cancel));
    DLOCK_INIT(&created);
    created.flags = DLOCK_CREATE;
    MUST(dlock_object_open(client, "o", 1, &created, AMPLE, NONE, &object));
    MUST(dlock_acquire_start(queue, named, NULL, DLOCK_FOREVER, cancel, &port));
    NEED(pthread_create(&thread, NULL, waits, NULL) == 0);
    sleep_seconds(0.2); /* a thread and a request wait while it forks */
    fflush(NULL);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        int status = child(port);
        fflush(NULL);
        _exit(status);
    }
    NEED(waitpid(pid, &how, 0) == pid);
    EQ(how, 0);
    OK(dlock_hold_check(hold, AMPLE, NONE));
    OK(dlock_release(hold, AMPLE, NONE));
    DLOCK_INIT(&event);
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    CHECK(event.status == DLOCK_OK && event.user_data == &port);
    OK(dlock_release(event.hold, AMPLE, NONE));
    NEED(pthread_join(thread, NULL) == 0);
    OK(dlock_client_ping(client, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
    dserver_lib_deinit();
    return conclusion("modern_forked");
}
