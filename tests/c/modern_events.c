/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h: what a queue tells of holds and of the primary, if it was asked for that. */
#include <poll.h>

#include "modern.h"
#include "primary_process.h"

enum { WAITING_MAX = 1024 };

static dlock_event next(dlock_queue queue)
{
    dlock_event event;
    DLOCK_INIT(&event);
    MUST(dlock_queue_next(queue, AMPLE, NONE, &event));
    return event;
}

/* The next event, of this kind; with a hold, it is about that. */
static dlock_event of_kind(dlock_queue queue, uint32_t kind, uint64_t generation)
{
    dlock_event event = next(queue);
    if (event.kind != kind || event.generation != generation)
        fprintf(stderr, "kind %u, not %u; generation %llu, not %llu\n", event.kind, kind,
                (unsigned long long)event.generation, (unsigned long long)generation);
    CHECK(event.kind == kind && event.generation == generation);
    return event;
}

static uint64_t generation_of(dlock_hold hold)
{
    dlock_hold_info info;
    DLOCK_INIT(&info);
    OK(dlock_hold_get_info(hold, &info));
    return info.generation;
}

static uint64_t token_of(dlock_hold hold)
{
    dlock_hold_info info;
    DLOCK_INIT(&info);
    OK(dlock_hold_get_info(hold, &info));
    CHECK(info.token != 0);
    return info.token;
}

static dlock_hold hold_for(dlock_lock lock, uint32_t flags, uint64_t lease_ms)
{
    dlock_hold hold;
    dlock_acquire_options options = wanted(DLOCK_EXCLUSIVE, flags, lease_ms);
    MUST(dlock_acquire(lock, &options, AMPLE, NONE, &hold, NULL));
    return hold;
}

/* A holder hears that another client waits, and gives the lock back to it. */
static void contended(dlock_client client, dlock_client other, const char *name, uint32_t type)
{
    int mine, marks[2];
    dlock_queue queue, its;
    dlock_lock lock = open_lock(client, name, type), others = open_lock(other, name, type);
    MUST(dlock_queue_new(&queue));
    MUST(dlock_queue_new(&its));
    OK(dlock_listen_lock(queue, lock, &marks[0]));
    OK(dlock_listen_lock(its, others, &marks[1]));
    dlock_hold hold = hold_for(lock, 0, 0);
    uint64_t generation = generation_of(hold);
    dlock_event event = of_kind(queue, DLOCK_EVENT_GRANTED, generation);
    CHECK(event.lock.id == lock.id && event.user_data == &marks[0] && event.lock_id != 0);
    CHECK(event.status == DLOCK_OK && event.hold.id == 0 && event.token == token_of(hold));
    OK(dlock_acquire_start(its, others, NULL, AMPLE, NONE, &mine));
    event = of_kind(queue, DLOCK_EVENT_CONTENDED, generation);
    CHECK(event.count == 1 && event.left_ms == DLOCK_FOREVER);
    OK(dlock_release(hold, AMPLE, NONE));
    dlock_event first = next(its), second = next(its);
    dlock_event acquired = first.kind == DLOCK_EVENT_ACQUIRED ? first : second;
    dlock_event granted = first.kind == DLOCK_EVENT_ACQUIRED ? second : first;
    CHECK(granted.kind == DLOCK_EVENT_GRANTED && granted.user_data == &marks[1]);
    CHECK(acquired.kind == DLOCK_EVENT_ACQUIRED && acquired.user_data == &mine);
    CHECK(acquired.generation == granted.generation && acquired.token == granted.token);
    OK(dlock_release(acquired.hold, AMPLE, NONE));
    DLOCK_INIT(&event);
    IS(dlock_queue_next(queue, 0, NONE, &event), DLOCK_E_TIMED_OUT); /* a release is no event */
    OK(dlock_queue_close(queue));
    OK(dlock_queue_close(its));
    OK(dlock_lock_close(lock, AMPLE, NONE));
    OK(dlock_lock_close(others, AMPLE, NONE));
}

/* A hold that is renewed lasts however late its event, or its batch, is taken. */
static void taken_late(dlock_client client, dlock_client other, const char *name, uint32_t type)
{
    dlock_queue queue;
    dlock_lock lock = open_lock(client, name, type), others = open_lock(other, name, type);
    const unsigned lease_ms = slowness() > 1 ? 3000 : 500;
    dlock_acquire_options renewed = wanted(DLOCK_EXCLUSIVE, DLOCK_RENEW, lease_ms);
    dlock_acquire_options once = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    dlock_hold its;
    MUST(dlock_queue_new(&queue));
    OK(dlock_acquire_start(queue, lock, &renewed, AMPLE, NONE, NULL));
    usleep(2000 * lease_ms);
    IS(dlock_acquire(others, &once, AMPLE, NONE, &its, NULL), DLOCK_E_HELD);
    dlock_event event = next(queue);
    CHECK(event.kind == DLOCK_EVENT_ACQUIRED && event.status == DLOCK_OK);
    OK(dlock_hold_check(event.hold, AMPLE, NONE));
    OK(dlock_release(event.hold, AMPLE, NONE));
    /* one that is not renewed is lost, and says so without a message */
    renewed.flags = 0;
    dlock_hold hold;
    dlock_hold_info info;
    DLOCK_INIT(&info);
    MUST(dlock_acquire(lock, &renewed, AMPLE, NONE, &hold, NULL));
    OK(dlock_hold_get_info(hold, &info));
    usleep(2000 * lease_ms);
    IS(dlock_hold_get_info(hold, &info), DLOCK_E_LOST);
    dlock_error released = dlock_release(hold, AMPLE, NONE); /* no other client has taken it */
    CHECK(released == DLOCK_OK || released == DLOCK_E_LOST);
    OK(dlock_queue_close(queue));
    OK(dlock_lock_close(lock, AMPLE, NONE));
    OK(dlock_lock_close(others, AMPLE, NONE));
}

/* A lock that was given back and is got again: the number of the first hold does not come again. */
static void anew(dlock_client client)
{
    uint64_t generations[2];
    for (int i = 0; i < 2; ++i) {
        dlock_lock lock = open_lock(client, "anew", DLOCK_TYPE_ATOMIC);
        dlock_hold hold = hold_for(lock, 0, 0);
        generations[i] = generation_of(hold);
        OK(dlock_release(hold, AMPLE, NONE));
        OK(dlock_lock_close(lock, AMPLE, NONE));
    }
    CHECK(generations[0] != generations[1]);
}

/* A loss, with its reason; a hold that there is already is told as granted. */
static void lost(dlock_client client)
{
    dlock_queue queue;
    dlock_lock lock = open_lock(client, "lost", DLOCK_TYPE_ATOMIC);
    dlock_hold hold = hold_for(lock, 0, slowness() > 1 ? 3000 : 1000);
    uint64_t generation = generation_of(hold), token = token_of(hold);
    MUST(dlock_queue_new(&queue));
    OK(dlock_listen_client(queue, client, NULL));
    dlock_event event = of_kind(queue, DLOCK_EVENT_GRANTED, generation);
    CHECK(event.lock.id == 0 && event.lock_id != 0 && event.token == token);
    event = of_kind(queue, DLOCK_EVENT_LOST, generation);
    CHECK(event.status == DLOCK_E_LOST && event.reason == DLOCK_LOST_EXPIRED);
    CHECK(event.token == token);
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_LOST);
    OK(dlock_queue_close(queue));
    OK(dlock_lock_close(lock, AMPLE, NONE));
}

/* A queue that begins to listen while a renewal is under way is told of the hold, too; its
 * descriptor is readable while an event is there, and not else. */
static void late(dlock_client client, struct primary_process primary)
{
    struct pollfd its = { .events = POLLIN };
    dlock_queue first, second;
    dlock_lock lock = open_lock(client, "late", DLOCK_TYPE_ATOMIC);
    MUST(dlock_queue_new(&first));
    MUST(dlock_queue_new(&second));
    OK(dlock_queue_get_fd(first, &its.fd));
    OK(dlock_listen_lock(first, lock, NULL));
    CHECK(poll(&its, 1, 0) == 0);
    dlock_hold hold = hold_for(lock, DLOCK_RENEW, 3000);
    CHECK(poll(&its, 1, 0) == 1);
    of_kind(first, DLOCK_EVENT_GRANTED, generation_of(hold));
    CHECK(poll(&its, 1, 0) == 0);
    usleep(900000);
    stop_primary(primary);
    usleep(200000); /* a renewal begins after a second */
    OK(dlock_listen_lock(second, lock, NULL));
    continue_primary(primary);
    of_kind(second, DLOCK_EVENT_GRANTED, generation_of(hold));
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_queue_close(first));
    OK(dlock_queue_close(second));
    OK(dlock_lock_close(lock, AMPLE, NONE));
}

/* What has no room is counted, and the count comes though nothing follows. */
static void missed(dlock_client client)
{
    dlock_queue queue;
    dlock_lock lock = open_lock(client, "missed", DLOCK_TYPE_READ_WRITE);
    MUST(dlock_queue_new(&queue));
    OK(dlock_listen_lock(queue, lock, NULL));
    for (int i = 0; i < WAITING_MAX + 3; ++i)
        OK(dlock_release(hold_for(lock, 0, 0), AMPLE, NONE));
    for (int i = 0; i < WAITING_MAX; ++i)
        CHECK(next(queue).kind == DLOCK_EVENT_GRANTED);
    CHECK(of_kind(queue, DLOCK_EVENT_MISSED, 0).count == 3);
    dlock_hold hold = hold_for(lock, 0, 0);
    of_kind(queue, DLOCK_EVENT_GRANTED, generation_of(hold));
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_queue_close(queue));
    OK(dlock_lock_close(lock, AMPLE, NONE));
}

static void refused(dlock_client client)
{
    dlock_queue queue;
    dlock_lock lock = open_lock(client, "refused", DLOCK_TYPE_FAIR);
    dlock_lock no_lock = { client.id };
    dlock_client no_client = { lock.id };
    MUST(dlock_queue_new(&queue));
    IS(dlock_listen_lock(queue, no_lock, NULL), DLOCK_E_KIND);
    IS(dlock_listen_client(queue, no_client, NULL), DLOCK_E_KIND);
    for (int i = 0; i < WAITING_MAX; ++i)
        OK(dlock_listen_lock(queue, lock, NULL));
    IS(dlock_listen_lock(queue, lock, NULL), DLOCK_E_TOO_MANY);
    OK(dlock_queue_close(queue));
    IS(dlock_listen_lock(queue, lock, NULL), DLOCK_E_HANDLE);
    OK(dlock_lock_close(lock, AMPLE, NONE));
}

/* The primary ends, and another one recovers. */
static void failover(dlock_client client, struct primary_process *primary, int port)
{
    dlock_queue queue;
    dlock_lock lock = open_lock(client, "failover", DLOCK_TYPE_FAIR);
    dlock_hold hold = hold_for(lock, DLOCK_RENEW, 30000);
    uint64_t generation = generation_of(hold);
    MUST(dlock_queue_new(&queue));
    OK(dlock_listen_client(queue, client, NULL));
    of_kind(queue, DLOCK_EVENT_GRANTED, generation);
    kill_primary(*primary);
    dlock_event event = of_kind(queue, DLOCK_EVENT_RENEWAL_FAILING, generation);
    CHECK(event.left_ms > 0 && event.left_ms <= 31000);
    *primary = spawn_primary(port, 2);
    event = of_kind(queue, DLOCK_EVENT_RECOVERING, 0);
    CHECK(event.count == 0 && event.of == 0); /* it is not known yet */
    while ((event = next(queue)).kind == DLOCK_EVENT_RECOVERING)
        CHECK(event.count <= event.of && event.of == 2);
    CHECK(event.kind == DLOCK_EVENT_SERVING);
    OK(dlock_hold_check(hold, AMPLE, NONE));
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_queue_close(queue));
    OK(dlock_lock_close(lock, AMPLE, NONE));
}

int main(int argc, char **argv)
{
    int port = free_port();
    char address[32];
    dlock_client clients[2];
    dlock_client_options options;
    be_primary_if_asked(argc, argv);
    limit_seconds(170);
    MUST(dlock_select_version(DLOCK_API_VERSION));
    OK(dlock_set_log_level(0));
    struct primary_process primary = spawn_primary(port, 0);
    DLOCK_INIT(&options);
    options.port = (uint32_t)port;
    snprintf(address, sizeof(address), "%s:%d", HOST, port);
    options.primaries = address;
    options.silence_ms = 300;
    for (int i = 0; i < 2; ++i)
        MUST(dlock_client_open(HOST, &options, AMPLE, NONE, &clients[i]));
    contended(clients[0], clients[1], "fair", DLOCK_TYPE_FAIR);
    contended(clients[0], clients[1], "atomic", DLOCK_TYPE_ATOMIC);
    contended(clients[0], clients[1], "read-write", DLOCK_TYPE_READ_WRITE);
    taken_late(clients[0], clients[1], "late fair", DLOCK_TYPE_FAIR);
    taken_late(clients[0], clients[1], "late atomic", DLOCK_TYPE_ATOMIC);
    anew(clients[0]);
    lost(clients[0]);
    late(clients[0], primary);
    missed(clients[0]);
    refused(clients[0]);
    failover(clients[0], &primary, port);
    for (int i = 0; i < 2; ++i)
        OK(dlock_client_leave(clients[i], AMPLE, NONE));
    end_primary(primary);
    return conclusion("modern_events");
}
