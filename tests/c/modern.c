/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h: locks of all types with tokens, deadlines, cancelling, errors, sizes, objects. */
#include <pthread.h>

#include "modern.h"

static const uint32_t types[] = {DLOCK_TYPE_FAIR, DLOCK_TYPE_ATOMIC, DLOCK_TYPE_READ_WRITE};

static void versions(void)
{
    dlock_cancel cancel = {0};
    CHECK(strcmp(dlock_last_detail(), "") == 0);
    IS(dlock_cancel_new(&cancel), DLOCK_E_API_VERSION);
    IS(dlock_select_version(0), DLOCK_E_API_VERSION);
    IS(dlock_select_version(dlock_max_version() + 1), DLOCK_E_API_VERSION);
    OK(dlock_select_version(DLOCK_API_VERSION));
    OK(dlock_select_version(DLOCK_API_VERSION));
    CHECK(DLOCK_API_VERSION <= dlock_max_version());
    IS(dlock_set_log_level(8), DLOCK_E_INVALID);
    CHECK(strstr(dlock_last_detail(), "dlock_set_log_level: level 8") != NULL);
    OK(dlock_set_log_level(0));
    CHECK(strstr(dlock_last_detail(), "level 8") != NULL); /* of the last one that failed */
    for (dlock_error error = 0; error <= DLOCK_E_INTERNAL; ++error) {
        CHECK(strlen(dlock_strerror(error)) > 5);
        CHECK(error == DLOCK_OK || strcmp(dlock_strerror(error), dlock_strerror(0)) != 0);
    }
    CHECK(strcmp(dlock_strerror(-1), dlock_strerror(1 << 30)) == 0);
}

/* A lease is not rounded to seconds: the second hold is for so much longer, and began later. */
static void short_leases(int port, uint32_t type)
{
    dlock_client one = open_client(port);
    dlock_lock locks[] = {open_lock(one, "short lease", type), open_lock(one, "long lease", type)};
    const unsigned short_ms = slowness() > 1 ? 2250 : 250;
    dlock_acquire_options options = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, short_ms);
    dlock_hold holds[2];
    dlock_hold_info infos[2];
    int i;

    for (i = 0; i < 2; i++) {
        OK(dlock_acquire(locks[i], &options, AMPLE, NONE, &holds[i], NULL));
        DLOCK_INIT(&infos[i]);
        OK(dlock_hold_get_info(holds[i], &infos[i]));
        options.lease_ms = 60000;
    }
    CHECK(infos[1].lease_end_unix_ms >= infos[0].lease_end_unix_ms + 60000 - short_ms - 63);
    OK(dlock_release(holds[1], AMPLE, NONE));
    options.lease_ms = 99;
    IS(dlock_acquire(locks[1], &options, AMPLE, NONE, &holds[1], NULL), DLOCK_E_INVALID);
    OK(dlock_client_leave(one, AMPLE, NONE));
}

/* Exclusive and shared holds, and what their tokens are. */
static void holds(int port, uint32_t type)
{
    dlock_client one = open_client(port), two = open_client(port);
    dlock_lock a = open_lock(one, "holds", type), b = open_lock(two, "holds", type);
    dlock_acquire_options options = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    dlock_hold hold, other;
    dlock_hold_info info;
    uint64_t first, second, third;

    hold = must_hold(a, &first);
    CHECK(first > 0 && first <= INT64_MAX);
    IS(dlock_acquire(b, &options, AMPLE, NONE, &other, NULL), DLOCK_E_HELD);
    IS(dlock_acquire(a, &options, AMPLE, NONE, &other, NULL), DLOCK_E_HELD);
    DLOCK_INIT(&info);
    OK(dlock_hold_get_info(hold, &info));
    CHECK(info.token == first && info.mode == DLOCK_EXCLUSIVE);
    CHECK((info.lease_end_unix_ms == 0) == (type == DLOCK_TYPE_READ_WRITE));
    OK(dlock_hold_check(hold, AMPLE, NONE));
    IS(dlock_hold_extend(hold, 60000, AMPLE, NONE),
       type == DLOCK_TYPE_READ_WRITE ? DLOCK_E_INVALID : DLOCK_OK);
    if (type != DLOCK_TYPE_READ_WRITE) {
        uint64_t before = info.lease_end_unix_ms, generation = info.generation;
        OK(dlock_hold_get_info(hold, &info));
        CHECK(info.lease_end_unix_ms >= before + 20000 && info.generation == generation);
    }
    OK(dlock_release(hold, AMPLE, NONE));
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_HANDLE);
    other = must_hold(b, &second);
    CHECK(second > first);
    OK(dlock_release(other, AMPLE, NONE));

    options.mode = DLOCK_SHARED;
    if (type == DLOCK_TYPE_ATOMIC) {
        IS(dlock_acquire(a, &options, AMPLE, NONE, &hold, &first), DLOCK_E_INVALID);
    } else {
        options.flags = 0;
        OK(dlock_acquire(a, &options, AMPLE, NONE, &hold, &first));
        OK(dlock_acquire(b, &options, AMPLE, NONE, &other, &second));
        CHECK(first == second);
        OK(dlock_release(hold, AMPLE, NONE));
        OK(dlock_release(other, AMPLE, NONE));
        other = must_hold(b, &third);
        CHECK(third > second);
        OK(dlock_release(other, AMPLE, NONE));
    }
    if (type == DLOCK_TYPE_READ_WRITE) { /* a lease, and a share of it */
        options = wanted(DLOCK_EXCLUSIVE, DLOCK_RENEW, 0);
        IS(dlock_acquire(a, &options, AMPLE, NONE, &hold, NULL), DLOCK_E_INVALID);
        options = wanted(DLOCK_SHARED, DLOCK_TRY, 60000);
        OK(dlock_acquire(a, &options, AMPLE, NONE, &hold, &first));
        OK(dlock_acquire(b, &options, AMPLE, NONE, &other, &second));
        CHECK(first == second);
        OK(dlock_hold_extend(hold, 90000, AMPLE, NONE));
        OK(dlock_hold_get_info(hold, &info));
        CHECK(info.lease_end_unix_ms > 0 && info.token == first && info.mode == DLOCK_SHARED);
        OK(dlock_release(other, AMPLE, NONE));
        options = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 60000);
        IS(dlock_acquire(b, &options, AMPLE, NONE, &other, NULL), DLOCK_E_HELD);
        OK(dlock_release(hold, AMPLE, NONE));
        OK(dlock_acquire(b, &options, AMPLE, NONE, &other, &third));
        CHECK(third > second);
        OK(dlock_release(other, AMPLE, NONE));
    }
    OK(dlock_lock_close(a, AMPLE, NONE));
    OK(dlock_lock_close(b, AMPLE, NONE));
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
}

/* A lease that ends, and what its holder is told. */
static void lost(int port, uint32_t type)
{
    dlock_client one = open_client(port), two = open_client(port);
    /* A client that does not leave may still be giving the lock back when the next one comes. */
    const char *const names[] = {"lost, fair", "lost, atomic", "lost, read-write"};
    const char *name = names[type];
    dlock_lock a = open_lock(one, name, type), b = open_lock(two, name, type);
    dlock_acquire_options options = wanted(DLOCK_EXCLUSIVE, 0, 500);
    dlock_hold hold, other;
    dlock_hold_info info;
    uint64_t first, second;
    double start = seconds_now();
    OK(dlock_acquire(a, &options, AMPLE, NONE, &hold, &first));
    OK(dlock_acquire(b, NULL, AMPLE, NONE, &other, &second)); /* waits for the end of the lease */
    CHECK(seconds_now() - start > 0.5);
    CHECK(second > first);
    IS(dlock_hold_check(hold, AMPLE, NONE), DLOCK_E_LOST);
    DLOCK_INIT(&info);
    IS(dlock_hold_get_info(hold, &info), DLOCK_E_LOST);
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_LOST);
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_HANDLE);
    OK(dlock_release(other, AMPLE, NONE));

    /* A hold whose event is taken when its lease is over is not handed out. */
    dlock_queue queue;
    dlock_event event;
    DLOCK_INIT(&event);
    OK(dlock_queue_new(&queue));
    OK(dlock_acquire_start(queue, a, &options, AMPLE, NONE, NULL));
    sleep_seconds(1.2);
    other = must_hold(b, NULL);
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    CHECK(event.status == DLOCK_E_LOST && event.hold.id == 0 && event.token == 0);
    OK(dlock_release(other, AMPLE, NONE));
    OK(dlock_queue_close(queue));

    OK(dlock_client_close(one)); /* the lock keeps the connection */
    hold = must_hold(a, NULL);
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_lock_close(a, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
    IS(dlock_acquire(b, NULL, AMPLE, NONE, &hold, NULL), DLOCK_E_LEFT);
    OK(dlock_lock_close(b, AMPLE, NONE));
}

/* Two and a half times its lease. */
static void renewed(int port, uint32_t type)
{
    dlock_client one = open_client(port), two = open_client(port);
    const char *const names[] = {"renewed, fair", "renewed, atomic", "renewed, read-write"};
    const char *name = names[type];
    dlock_lock a = open_lock(one, name, type), b = open_lock(two, name, type);
    dlock_acquire_options options = wanted(DLOCK_EXCLUSIVE, DLOCK_RENEW, 2000);
    dlock_hold hold, other;
    MUST(dlock_acquire(a, &options, AMPLE, NONE, &hold, NULL));
    options.flags = DLOCK_TRY;
    sleep_seconds(5.0);
    OK(dlock_hold_check(hold, AMPLE, NONE));
    IS(dlock_acquire(b, &options, AMPLE, NONE, &other, NULL), DLOCK_E_HELD);
    OK(dlock_release(hold, AMPLE, NONE));
    MUST(dlock_acquire(b, NULL, AMPLE, NONE, &other, NULL));
    OK(dlock_release(other, AMPLE, NONE));
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
}

struct firing {
    dlock_cancel cancel;
    pthread_t thread;
};

static void *fires_soon(void *argument)
{
    sleep_seconds(0.2);
    OK(dlock_cancel_fire(*(dlock_cancel *)argument));
    return NULL;
}

static void fire_soon(struct firing *firing)
{
    OK(dlock_cancel_new(&firing->cancel));
    NEED(pthread_create(&firing->thread, NULL, fires_soon, &firing->cancel) == 0);
}

static void fired(struct firing *firing)
{
    NEED(pthread_join(firing->thread, NULL) == 0);
    OK(dlock_cancel_close(firing->cancel));
    IS(dlock_cancel_fire(firing->cancel), DLOCK_E_HANDLE);
}

/* Deadlines and cancelling of an acquire: at the primary, behind a hold of its own client, before
 * it begins, and beside requests of a queue. Nothing is held or queued afterwards. */
static void ends(int port, uint32_t type)
{
    dlock_client one = open_client(port), two = open_client(port);
    dlock_lock a = open_lock(one, "ends", type), b = open_lock(two, "ends", type);
    dlock_hold hold = must_hold(a, NULL), other;
    dlock_acquire_options try_it = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    dlock_lock behind[] = {b, a};
    struct firing firing;
    dlock_queue queue;
    dlock_event event;
    int there = 0;

    for (size_t i = 0; i < 2; ++i) {
        double start = seconds_now();
        IS(dlock_acquire(behind[i], NULL, DLOCK_MS(200), NONE, &other, NULL), DLOCK_E_TIMED_OUT);
        CHECK(seconds_now() - start >= 0.2);
        CHECK_WITHIN(start, 3);
        IS(dlock_acquire(behind[i], NULL, 0, NONE, &other, NULL), DLOCK_E_TIMED_OUT);
        fire_soon(&firing);
        start = seconds_now();
        IS(dlock_acquire(behind[i], NULL, DLOCK_FOREVER, firing.cancel, &other, NULL),
           DLOCK_E_CANCELLED);
        CHECK_WITHIN(start, 3);
        IS(dlock_acquire(behind[i], NULL, AMPLE, firing.cancel, &other, NULL), DLOCK_E_CANCELLED);
        fired(&firing);
        IS(dlock_acquire(behind[i], NULL, AMPLE, firing.cancel, &other, NULL), DLOCK_E_HANDLE);
    }

    DLOCK_INIT(&event);
    OK(dlock_queue_new(&queue));
    IS(dlock_queue_next(queue, DLOCK_MS(1), NONE, &event), DLOCK_E_TIMED_OUT);
    fire_soon(&firing);
    IS(dlock_queue_next(queue, DLOCK_FOREVER, firing.cancel, &event), DLOCK_E_CANCELLED);
    fired(&firing);
    fire_soon(&firing);
    OK(dlock_acquire_start(queue, b, NULL, DLOCK_FOREVER, firing.cancel, &there));
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    EQ(event.status, DLOCK_E_CANCELLED);
    CHECK(event.user_data == &there && event.kind == DLOCK_EVENT_ACQUIRED);
    CHECK(event.lock.id == b.id && event.hold.id == 0 && event.token == 0);
    OK(dlock_acquire_start(queue, b, NULL, AMPLE, firing.cancel, &there)); /* it was fired before */
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    CHECK(event.status == DLOCK_E_CANCELLED && event.user_data == &there && event.hold.id == 0);
    fired(&firing);
    OK(dlock_acquire_start(queue, b, NULL, DLOCK_MS(50), NONE, NULL));
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    EQ(event.status, DLOCK_E_TIMED_OUT);
    OK(dlock_acquire_start(queue, b, &try_it, AMPLE, NONE, NULL));
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    EQ(event.status, DLOCK_E_HELD);
    OK(dlock_acquire_start(queue, b, NULL, AMPLE, NONE, NULL)); /* ends with the queue */
    OK(dlock_queue_close(queue));
    IS(dlock_queue_next(queue, 0, NONE, &event), DLOCK_E_HANDLE);

    OK(dlock_release(hold, AMPLE, NONE));
    sleep_seconds(0.2);
    hold = must_hold(a, NULL); /* of all that was cancelled nothing is in the way */
    OK(dlock_release(hold, AMPLE, NONE));

    /* A release goes on, also if its caller does not wait for it. */
    OK(dlock_cancel_new(&firing.cancel));
    OK(dlock_cancel_fire(firing.cancel));
    hold = must_hold(a, NULL);
    dlock_error code = dlock_release(hold, AMPLE, firing.cancel);
    CHECK(code == DLOCK_OK || code == DLOCK_E_CANCELLED);
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_HANDLE);
    hold = must_hold(a, NULL);
    code = dlock_release(hold, 0, NONE);
    CHECK(code == DLOCK_OK || code == DLOCK_E_TIMED_OUT);
    hold = must_hold(b, NULL);
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_cancel_close(firing.cancel));
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
    OK(dlock_lock_close(a, AMPLE, NONE));
    OK(dlock_lock_close(b, AMPLE, NONE));
}

/* Structs of an older and of a newer program. */
static void sizes(int port)
{
    struct newer_options {
        dlock_acquire_options known;
        uint64_t unknown[2];
    } newer;
    struct newer_event {
        dlock_event known;
        uint64_t unknown[2];
    } larger;
    dlock_client client = open_client(port);
    dlock_lock lock = open_lock(client, "sizes", DLOCK_TYPE_FAIR), other;
    dlock_lock_options named;
    dlock_item item;
    dlock_hold hold;
    dlock_queue queue;
    dlock_acquire_options older = wanted(DLOCK_EXCLUSIVE, 0, 0);
    dlock_client_info info;
    older.size = 8;
    older.mode = 77; /* behind its end */
    OK(dlock_acquire(lock, &older, AMPLE, NONE, &hold, NULL));
    OK(dlock_release(hold, AMPLE, NONE));
    memset(&newer, 0, sizeof(newer));
    newer.known.size = sizeof(newer);
    OK(dlock_acquire(lock, &newer.known, AMPLE, NONE, &hold, NULL));
    OK(dlock_release(hold, AMPLE, NONE));
    newer.unknown[1] = UINT64_C(1) << 63;
    IS(dlock_acquire(lock, &newer.known, AMPLE, NONE, &hold, NULL), DLOCK_E_SIZE);
    CHECK(strstr(dlock_last_detail(), "byte 39 of 40") != NULL);
    for (uint32_t size = 0; size < 8; ++size) {
        newer.known.size = size;
        IS(dlock_acquire(lock, &newer.known, AMPLE, NONE, &hold, NULL), DLOCK_E_SIZE);
    }
    newer.known.size = 4104;
    IS(dlock_acquire(lock, &newer.known, AMPLE, NONE, &hold, NULL), DLOCK_E_SIZE);

    OK(dlock_queue_new(&queue));
    memset(&larger, 0xEE, sizeof(larger));
    larger.known.size = 7;
    IS(dlock_queue_next(queue, 0, NONE, &larger.known), DLOCK_E_SIZE);
    larger.known.size = sizeof(larger);
    OK(dlock_acquire_start(queue, lock, NULL, AMPLE, NONE, NULL));
    OK(dlock_queue_next(queue, AMPLE, NONE, &larger.known));
    CHECK(larger.known.size == sizeof(larger) && larger.known.status == DLOCK_OK);
    CHECK(larger.known.hold.id != 0 && larger.known.token != 0);
    CHECK(larger.unknown[0] == 0 && larger.unknown[1] == 0);
    OK(dlock_release_start(queue, larger.known.hold, &queue));
    memset(&larger, 0xEE, sizeof(larger));
    larger.known.size = 32; /* without room for a hold */
    IS(dlock_queue_next(queue, AMPLE, NONE, &larger.known), DLOCK_E_SIZE);
    larger.known.size = 40;
    OK(dlock_queue_next(queue, AMPLE, NONE, &larger.known));
    CHECK(larger.known.kind == DLOCK_EVENT_RELEASED && larger.known.user_data == &queue);
    CHECK(larger.known.generation == UINT64_C(0xEEEEEEEEEEEEEEEE)); /* not in 40 bytes */
    DLOCK_INIT(&item);
    item.lock = lock;
    item.size = 32;
    IS(dlock_acquire_many(&item, 1, AMPLE, NONE), DLOCK_E_SIZE);
    older.size = sizeof(older);
    older.mode = DLOCK_EXCLUSIVE;
    older.flags = DLOCK_TRY;
    OK(dlock_acquire(lock, &older, AMPLE, NONE, &hold, NULL)); /* no hold was lost */
    OK(dlock_release(hold, AMPLE, NONE));
    older.reserved = 1;
    IS(dlock_acquire(lock, &older, AMPLE, NONE, &hold, NULL), DLOCK_E_INVALID);
    DLOCK_INIT(&named);
    named.reserved = 1;
    IS(dlock_lock_open(client, "sizes", 5, &named, AMPLE, NONE, &other), DLOCK_E_INVALID);
    OK(dlock_queue_close(queue));

    memset(&info, 0xEE, sizeof(info));
    info.size = 8;
    OK(dlock_client_get_info(client, &info));
    CHECK(info.client_id > 0 && info.epoch == UINT64_C(0xEEEEEEEEEEEEEEEE));
    info.size = sizeof(info);
    OK(dlock_client_get_info(client, &info));
    CHECK(info.horizon_left_ns > 0 && info.reserved == 0 && info.epoch > 0);
    const char *fabric = getenv("DLOCK_FABRIC");
    if (fabric != NULL && strcmp(fabric, "shm") == 0)
        CHECK(info.fabric == DLOCK_FABRIC_SHM);
    if (fabric != NULL && strcmp(fabric, "tcp") == 0)
        CHECK(info.fabric == DLOCK_FABRIC_TCP);
    OK(dlock_client_ping(client, AMPLE, NONE));
    OK(dlock_lock_close(lock, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
}

/* Arguments that are wrong, and handles that are none. */
static void misuse(int port)
{
    dlock_client client = open_client(port), none = {0}, kind, never, with_port;
    dlock_lock lock = open_lock(client, "misuse", DLOCK_TYPE_FAIR), no_lock;
    dlock_hold hold = must_hold(lock, NULL);
    dlock_acquire_options acquire = wanted(2, 0, 0);
    dlock_lock_options locks;
    dlock_client_options clients, at_port;
    dlock_object object = {0};
    dlock_queue queue = {0};
    dlock_cancel cancel = {7};
    dlock_event event;
    char name[513] = "n", place[32];
    int fd;

    kind.id = lock.id;
    never.id = client.id + (UINT64_C(1) << 40);
    no_lock.id = client.id;
    IS(dlock_client_ping(none, AMPLE, NONE), DLOCK_E_HANDLE);
    IS(dlock_client_ping(kind, AMPLE, NONE), DLOCK_E_KIND);
    CHECK(strstr(dlock_last_detail(), "is a dlock_lock, not a dlock_client") != NULL);
    IS(dlock_client_ping(never, AMPLE, NONE), DLOCK_E_HANDLE);
    IS(dlock_client_ping(client, AMPLE, cancel), DLOCK_E_HANDLE);
    IS(dlock_acquire(no_lock, NULL, AMPLE, NONE, &hold, NULL), DLOCK_E_KIND);
    IS(dlock_lock_close(no_lock, AMPLE, NONE), DLOCK_E_KIND);
    IS(dlock_client_close(kind), DLOCK_E_KIND);
    IS(dlock_client_leave(never, AMPLE, NONE), DLOCK_E_HANDLE);
    IS(dlock_object_close(object, AMPLE, NONE), DLOCK_E_HANDLE);
    IS(dlock_queue_get_fd(queue, &fd), DLOCK_E_HANDLE);
    IS(dlock_queue_get_fd(queue, NULL), DLOCK_E_INVALID);
    IS(dlock_queue_next(queue, 0, NONE, NULL), DLOCK_E_INVALID);
    DLOCK_INIT(&event);
    IS(dlock_queue_next(queue, 0, NONE, &event), DLOCK_E_HANDLE);
    IS(dlock_release_start(queue, hold, NULL), DLOCK_E_HANDLE);
    OK(dlock_hold_check(hold, AMPLE, NONE)); /* it was not released */
    IS(dlock_queue_close(queue), DLOCK_E_HANDLE);
    IS(dlock_cancel_new(NULL), DLOCK_E_INVALID);

    IS(dlock_acquire(lock, &acquire, AMPLE, NONE, &hold, NULL), DLOCK_E_INVALID);
    acquire = wanted(DLOCK_EXCLUSIVE, 4, 0);
    IS(dlock_acquire(lock, &acquire, AMPLE, NONE, &hold, NULL), DLOCK_E_INVALID);
    IS(dlock_acquire(lock, NULL, AMPLE, NONE, NULL, NULL), DLOCK_E_INVALID);
    DLOCK_INIT(&locks);
    locks.type = 3;
    IS(dlock_lock_open(client, name, 1, &locks, AMPLE, NONE, &no_lock), DLOCK_E_INVALID);
    IS(dlock_lock_open(client, name, 0, NULL, AMPLE, NONE, &no_lock), DLOCK_E_INVALID);
    IS(dlock_lock_open(client, name, 513, NULL, AMPLE, NONE, &no_lock), DLOCK_E_INVALID);
    IS(dlock_lock_open(client, NULL, 1, NULL, AMPLE, NONE, &no_lock), DLOCK_E_INVALID);
    locks.type = DLOCK_TYPE_ATOMIC;
    IS(dlock_lock_open(client, "misuse", 6, &locks, AMPLE, NONE, &no_lock), DLOCK_E_FAILED);

    DLOCK_INIT(&clients);
    IS(dlock_client_open(NULL, NULL, AMPLE, NONE, &none), DLOCK_E_INVALID);
    IS(dlock_client_open("no host !", NULL, AMPLE, NONE, &none), DLOCK_E_INVALID);
    snprintf(place, sizeof(place), HOST ":%d", port);
    DLOCK_INIT(&at_port);
    fill_tls(&at_port);
    MUST(dlock_client_open(place, at_port.tls_ca ? &at_port : NULL, AMPLE, NONE, &with_port));
    OK(dlock_client_leave(with_port, AMPLE, NONE));
    at_port.port = (uint32_t)port;
    MUST(dlock_client_open(place, &at_port, AMPLE, NONE, &with_port));
    OK(dlock_client_leave(with_port, AMPLE, NONE));
    clients.port = (uint32_t)free_port();
    IS(dlock_client_open(place, &clients, AMPLE, NONE, &none), DLOCK_E_INVALID);
    CHECK(strstr(dlock_last_detail(), "host says port") != NULL);
    clients.port = 65536;
    IS(dlock_client_open(HOST, &clients, AMPLE, NONE, &none), DLOCK_E_INVALID);
    clients.port = (uint32_t)free_port();
    IS(dlock_client_open(HOST, &clients, DLOCK_MS(300), NONE, &none), DLOCK_E_NOT_READY);
    clients.fabric = 9;
    IS(dlock_client_open(HOST, &clients, AMPLE, NONE, &none), DLOCK_E_INVALID);
    clients.fabric = DLOCK_FABRIC_AUTO;
    clients.tls_ca = "/nowhere";
    IS(dlock_client_open(HOST, &clients, AMPLE, NONE, &none), DLOCK_E_INVALID);
    CHECK(strstr(dlock_last_detail(), "belong together") != NULL);
    clients.tls_cert = clients.tls_key = "/nowhere";
    IS(dlock_client_open(HOST, &clients, AMPLE, NONE, &none), DLOCK_E_INVALID);
    CHECK(strstr(dlock_last_detail(), "/nowhere") != NULL);
    clients.primaries = "one two";
    IS(dlock_client_open(HOST, &clients, AMPLE, NONE, &none), DLOCK_E_INVALID);

    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
    IS(dlock_client_leave(client, AMPLE, NONE), DLOCK_E_HANDLE);
    CHECK(strstr(dlock_last_detail(), "was closed before") != NULL);
    OK(dlock_lock_close(lock, AMPLE, NONE));
    IS(dlock_lock_close(lock, AMPLE, NONE), DLOCK_E_HANDLE);
}

static void objects(int port)
{
    dlock_client one = open_client(port), two = open_client(port);
    dlock_object a, b;
    dlock_object_options options;
    dlock_cancel cancel;
    uint64_t value = 0;
    DLOCK_INIT(&options);
    IS(dlock_object_open(one, "value", 5, &options, AMPLE, NONE, &a), DLOCK_E_NO_OBJECT);
    options.flags = DLOCK_CREATE;
    options.initial = UINT64_MAX;
    OK(dlock_object_open(one, "value", 5, &options, AMPLE, NONE, &a));
    OK(dlock_object_open(two, "value", 5, NULL, AMPLE, NONE, &b));
    OK(dlock_object_add(a, 8, AMPLE, NONE, &value));
    CHECK(value == UINT64_MAX);
    OK(dlock_object_load(b, AMPLE, NONE, &value));
    CHECK(value == 7);
    IS(dlock_object_exchange(b, 8, 9, AMPLE, NONE), DLOCK_E_CHANGED);
    OK(dlock_object_exchange(b, 7, 9, AMPLE, NONE));
    OK(dlock_object_add(b, 1, DLOCK_FOREVER, NONE, NULL));
    OK(dlock_cancel_new(&cancel));
    OK(dlock_object_load(a, DLOCK_S(4), cancel, &value)); /* a thread asks */
    CHECK(value == 10);
    OK(dlock_cancel_fire(cancel));
    IS(dlock_object_add(a, 1, AMPLE, cancel, NULL), DLOCK_E_CANCELLED);
    OK(dlock_cancel_close(cancel));
    OK(dlock_object_load(a, AMPLE, NONE, &value));
    CHECK(value == 10);
    IS(dlock_object_destroy(b, AMPLE, NONE), DLOCK_E_NOT_OWNER);
    OK(dlock_object_destroy(a, AMPLE, NONE));
    OK(dlock_object_close(a, AMPLE, NONE));
    OK(dlock_object_close(b, AMPLE, NONE));
    IS(dlock_object_load(b, AMPLE, NONE, &value), DLOCK_E_HANDLE);
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
}

int main(void)
{
    int port = free_port();
    limit_seconds(120);
    versions();
    OK(dserver_lib_init(1));
    start_primary(port);
    if (getenv("DLOCK_TEST_LOG") != NULL)
        OK(dlock_set_log_level(atoi(getenv("DLOCK_TEST_LOG"))));
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); ++i) {
        holds(port, types[i]);
        ends(port, types[i]);
        short_leases(port, types[i]);
        lost(port, types[i]);
        if (slowness() == 1) /* under valgrind 2 s are short */
            renewed(port, types[i]);
    }
    sizes(port);
    misuse(port);
    objects(port);
    dserver_lib_deinit();
    return conclusion("modern");
}
