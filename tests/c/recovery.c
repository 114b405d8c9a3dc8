/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A primary is killed; its successor at the same port takes back the locks of its clients. */
#include "primary_process.h"
#include "scenario_more.h"

#define CLIENTS 4
#define MANY_LOCKS 1116

static int port, c[CLIENTS];

/* Every function says NOT_READY, changes nothing and writes nothing. */
static void not_ready(int client, int atomic, int rw, int fair, int ticket, int object_before)
{
    struct lock_request take = request(atomic, LOCK_EXCLUSIVE, 600);
    struct lock_op_res results[3];
    char name[] = "too early";
    struct lock_desc desc = {name, 9, DLOCK_ATOMIC, 0};
    struct umo_atomic64_desc object = object_desc(name, 60);
    union seen s = unseen();
    int ids[3] = {atomic, rw, fair}, id = 77;
    uint64_t value;
    struct debug_stats stats;
    EQ(client_heartbeat(client, 5), DLOCK_NOT_READY);
    EQ(client_init(&id, HOST), DLOCK_NOT_READY);
    EQ(id, 77);
    EQ(get_lock(client, &desc, &id), DLOCK_NOT_READY);
    CHECK(id != 77); /* the hash is there at once, as ever */
    id = 77;
    EQ(batch_get_lock(client, 1, &desc, &id), DLOCK_NOT_READY);
    EQ(id, 77);
    EQ(umo_atomic64_create(client, &object, 1, &id), DLOCK_NOT_READY);
    EQ(umo_atomic64_get(client, &object, &id), DLOCK_NOT_READY);
    EQ(umo_atomic64_destroy(client, object_before), DLOCK_NOT_READY);
    EQ(id, 77);
    /* Handles of objects have gone with the primary that had the objects. */
    EQ(umo_atomic64_faa(client, object_before, 1, &value), DLOCK_OBJECT_NOT_GET);

    EQ(clear_client_debug_stats(client), 0);
    EQ(unlock(client, atomic, &s), DLOCK_NOT_READY);
    EQ(extend_op(client, atomic, EXTEND_LOCK_EXCLUSIVE, 0), DLOCK_NOT_READY);
    EQ(get_client_debug_stats(client, &stats), 0);
    EQ(stats.stats[DEBUG_STATS_NOT_READY], 2);
    EQ(trylock(client, &take, &s), DLOCK_NOT_READY); /* re-entry asks */
    EQ(unlock(client, rw, &s), DLOCK_NOT_READY);
    EQ(unlock(client, fair, &s), DLOCK_NOT_READY);
    EQ(extend_op(client, fair, EXTEND_LOCK_EXCLUSIVE, 60), DLOCK_NOT_READY);
    take.lock_id = ticket;
    EQ(trylock(client, &take, &s), DLOCK_NOT_READY);
    CHECK(untouched_from(&s, 0));
    EQ(async_op(client, atomic, UNLOCK, 0), 0);
    EQ(async_wait(client, &s), DLOCK_NOT_READY);
    CHECK(untouched_from(&s, 0));
    memset(results, 0xEE, sizeof(results));
    EQ(batch_unlock(client, 3, ids, results), 0);
    for (int i = 0; i < 3; ++i) {
        EQ(results[i].op_ret, DLOCK_NOT_READY);
        EQ(results[i].atomic.client_id, (int)0xEEEEEEEE);
    }
    EQ(release_lock(client, atomic), -1); /* held: decided here */
    EQ(release_lock(client, ticket), DLOCK_TICKET_TO_UNLOCK);
    double start = seconds_now();
    take.lock_id = fair;
    int status = lock(client, &take, &s);
    CHECK(status == DLOCK_NOT_READY);
    CHECK_WITHIN(start, 6.5);
}

/* Whether a fair hold has survived is up to the primary; that two hold the lock is not. */
static void one_of_two_holds(int holder, int other, int id, lock_ops mode)
{
    lock_ops keep = mode == LOCK_SHARED ? EXTEND_LOCK_SHARED : EXTEND_LOCK_EXCLUSIVE;
    int told = extend_op(holder, id, keep, 0), kept = told == 0;
    CHECK(kept || told == DLOCK_FAIL); /* not in silence */
    EQ(try_op(other, id, LOCK_EXCLUSIVE, 100), kept ? DLOCK_EAGAIN : 0);
    EQ(extend_op(holder, id, keep, 0) == 0, kept);
    EQ(unlock_op(holder, id) == 0, kept);
    if (kept) {
        EQ(lock_op(other, id, LOCK_EXCLUSIVE, 100), 0);
    }
    EQ(unlock_op(other, id), 0);
}

/* All that four clients hold and wait for comes back, with ids and numbers of holds. */
static void everything_comes_back(void)
{
    char name[] = "an object";
    struct umo_atomic64_desc desc = object_desc(name, 60);
    struct primary_process primary = spawn_primary(port, 0);
    int atomic = 0, free_one = 0, own = 0, shared = 0, fair = 0, fair_shared = 0, object = 0;
    uint64_t value = 0;
    lock_state state;
    for (int i = 0; i < CLIENTS; ++i) {
        c[i] = new_client();
        atomic = must_get(c[i], "r atomic", DLOCK_ATOMIC);
        free_one = must_get(c[i], "r free", DLOCK_ATOMIC);
        own = must_get(c[i], "r rw own", DLOCK_RW);
        shared = must_get(c[i], "r rw shared", DLOCK_RW);
        fair = must_get(c[i], "r fair", DLOCK_FAIR);
        fair_shared = must_get(c[i], "r fair shared", DLOCK_FAIR);
    }
    int queued_on = must_get(c[0], "r queued", DLOCK_FAIR);
    must_get(c[3], "r queued", DLOCK_FAIR);
    EQ(umo_atomic64_create(c[0], &desc, 5, &object), 0);
    EQ(umo_atomic64_get(c[0], &desc, &object), 0);
    EQ(try_op(c[0], atomic, LOCK_EXCLUSIVE, 100), 0);
    EQ(try_op(c[0], atomic, LOCK_EXCLUSIVE, 100), DLOCK_ALREADY_LOCKED);
    EQ(try_op(c[0], own, LOCK_EXCLUSIVE, 100), 0);
    EQ(try_op(c[1], shared, LOCK_SHARED, 100), 0);
    EQ(try_op(c[2], shared, LOCK_SHARED, 100), 0);
    EQ(try_op(c[0], fair, LOCK_EXCLUSIVE, 100), 0);
    EQ(try_op(c[1], fair, LOCK_EXCLUSIVE, 100), DLOCK_EAGAIN);
    EQ(try_op(c[2], fair_shared, LOCK_SHARED, 100), 0);
    EQ(try_op(c[3], fair_shared, LOCK_SHARED, 100), 0);
    EQ(try_op(c[3], queued_on, LOCK_EXCLUSIVE, 100), 0);
    EQ(try_op(c[0], queued_on, LOCK_EXCLUSIVE, 100), DLOCK_EAGAIN);
    EQ(client_reinit_done(c[0]), -1);
    kill_primary(primary);

    /* There is no primary: codes for that, at once, and nothing is given up. */
    double start = seconds_now();
    EQ(unlock_op(c[0], atomic), DLOCK_ALREADY_LOCKED); /* decided here */
    EQ(unlock_op(c[0], atomic), DLOCK_BAD_RESPONSE); /* may have been carried out: asked again below */
    EQ(client_reinit(c[0], HOST), DLOCK_NOT_READY);
    CHECK_WITHIN(start, 8);

    primary = spawn_primary(port, CLIENTS);
    EQ(client_reinit_done(c[0]), DLOCK_BAD_RESPONSE); /* the old connection */
    for (int i = 0; i < CLIENTS; ++i) {
        EQ(client_reinit(c[i], HOST), 0);
        EQ(client_heartbeat(c[i], 5), DLOCK_NOT_READY);
    }
    not_ready(c[0], atomic, own, fair, queued_on, object);
    for (int i = 0; i < CLIENTS; ++i) {
        EQ(update_all_locks(c[i]), 0);
        EQ(try_op(c[i], free_one, LOCK_EXCLUSIVE, 5), DLOCK_NOT_READY); /* still */
        EQ(client_reinit_done(c[i]), 0);
        EQ(client_reinit_done(c[i]), -1);
    }
    /* Ready. */
    EQ(client_heartbeat(c[0], 5), 0);
    EQ(must_get(new_client(), "r atomic", DLOCK_ATOMIC), atomic); /* the same ids */
    EQ(get_named(c[1], "r fair shared", DLOCK_FAIR, &object), -1);
    EQ(object, fair_shared);

    EQ(try_op(c[1], atomic, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(try_op(c[1], own, LOCK_SHARED, 5), DLOCK_FAIL);
    EQ(try_op(c[0], shared, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(unlock_op(c[0], atomic), 0);
    EQ(try_op(c[1], atomic, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(c[0], own), 0);
    EQ(try_op(c[1], own, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock(c[1], shared, &state), 0);
    EQ(state.rw.rcount, 1);
    EQ(try_op(c[0], shared, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(unlock_op(c[2], shared), 0);
    EQ(try_op(c[0], shared, LOCK_EXCLUSIVE, 600), 0);
    EQ(try_op(c[1], free_one, LOCK_EXCLUSIVE, 600), 0);
    /* Who was queued may have to queue again, but is served. */
    one_of_two_holds(c[3], c[0], queued_on, LOCK_EXCLUSIVE);
    unlock_op(c[1], fair); /* its ticket, if it has one still */
    one_of_two_holds(c[0], c[2], fair, LOCK_EXCLUSIVE);
    unlock_op(c[3], fair_shared);
    one_of_two_holds(c[2], c[1], fair_shared, LOCK_SHARED);

    /* Objects are made anew by the application. */
    EQ(umo_atomic64_get(c[0], &desc, &object), DLOCK_OBJECT_NOT_CREATE);
    EQ(umo_atomic64_create(c[0], &desc, 6, &object), 0);
    EQ(umo_atomic64_get(c[1], &desc, &object), 0);
    EQ(umo_atomic64_get_snapshot(c[1], object, &value), 0);
    EQ(value, 6);
    end_primary(primary);
    dclient_lib_deinit();
}

/* A primary waits for so many clients, not for so many messages; strangers do not count. */
static void counts_clients(void)
{
    struct primary_process primary = spawn_primary(port, 0);
    int a, b, id;
    EQ(init_client_library(port), 0);
    a = new_client();
    b = new_client();
    id = must_get(a, "counted", DLOCK_ATOMIC);
    EQ(try_op(a, id, LOCK_EXCLUSIVE, 100), 0);
    kill_primary(primary);
    primary = spawn_primary(port, 2);
    for (int i = 0; i < 3; ++i) { /* one client without a lock, again and again */
        EQ(client_reinit(b, HOST), 0);
        EQ(client_reinit_done(b), 0);
        EQ(client_reinit_done(b), -1);
        EQ(client_heartbeat(b, 5), DLOCK_NOT_READY);
    }
    EQ(client_reinit(a, HOST), 0);
    EQ(update_all_locks(a), 0);
    EQ(update_all_locks(a), 0); /* may be repeated */
    EQ(client_reinit_done(a), 0);
    EQ(client_heartbeat(b, 5), 0);
    EQ(must_get(b, "counted", DLOCK_ATOMIC), id);
    EQ(try_op(b, id, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    EQ(extend_op(a, id, EXTEND_LOCK_EXCLUSIVE, 0), 0);
    EQ(unlock_op(a, id), 0);
    EQ(try_op(b, id, LOCK_EXCLUSIVE, 600), 0);
    /* Ready: an update is refused, and strands nothing. */
    EQ(update_all_locks(b), -1);
    EQ(extend_op(b, id, EXTEND_LOCK_EXCLUSIVE, 0), 0);

    /* A client deinit is refused while the primary recovers, but ends the client. */
    kill_primary(primary);
    primary = spawn_primary(port, 2);
    EQ(client_reinit(a, HOST), 0);
    EQ(client_deinit(a), DLOCK_NOT_READY);
    EQ(client_deinit(a), -1);
    end_primary(primary);
    dclient_lib_deinit();
}

/* A lock that was not updated is free; one that expires during the recovery can be stolen. */
static void forgotten_and_expired(void)
{
    struct primary_process primary = spawn_primary(port, 0);
    int a, b, expiring, forgotten;
    EQ(init_client_library(port), 0);
    a = new_client();
    b = new_client();
    expiring = must_get(a, "expiring", DLOCK_ATOMIC);
    forgotten = must_get(b, "forgotten", DLOCK_ATOMIC);
    uint32_t lease = slowness() > 1 ? 20 : 5;
    EQ(try_op(a, expiring, LOCK_EXCLUSIVE, lease), 0);
    EQ(try_op(b, forgotten, LOCK_EXCLUSIVE, 100), 0);
    EQ(async_op(a, expiring, EXTEND_LOCK_EXCLUSIVE, lease), 0); /* never asked for its result */
    kill_primary(primary);
    primary = spawn_primary(port, 1);
    EQ(client_reinit(a, HOST), 0);
    EQ(async_result(a), DLOCK_NO_ASYNC);
    EQ(update_all_locks(a), 0);
    sleep_seconds(lease + 2.2); /* what was left of the lease is told in whole seconds, rounded up */
    EQ(client_reinit_done(a), 0);
    EQ(client_reinit(b, HOST), DLOCK_CLIENT_REMOVED_BY_SERVER); /* too late */
    EQ(client_deinit(b), DLOCK_BAD_RESPONSE);
    b = new_client();
    EQ(must_get(b, "expiring", DLOCK_ATOMIC), expiring);
    EQ(must_get(b, "forgotten", DLOCK_ATOMIC), forgotten);
    EQ(try_op(b, forgotten, LOCK_EXCLUSIVE, 600), 0);
    EQ(try_op(b, expiring, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(a, expiring), DLOCK_FAIL);
    end_primary(primary);
    dclient_lib_deinit();
}

/* The number of short names at which the original hangs for two minutes. */
static void many_locks(void)
{
    static const dlock_type types[2] = {DLOCK_ATOMIC, DLOCK_RW};
    static int ids[MANY_LOCKS];
    int many = slowness() > 1 ? MANY_LOCKS / 9 : MANY_LOCKS;
    struct primary_process primary = spawn_primary(port, 0);
    EQ(init_client_library(port), 0);
    int a = new_client(), b, lost = 0, wrong = 0;
    for (int i = 0; i < many; ++i) {
        char name[16];
        snprintf(name, sizeof(name), "m%d", i);
        ids[i] = must_get(a, name, types[i % 2]);
        NEED(try_op(a, ids[i], LOCK_EXCLUSIVE, 100) == 0);
    }
    kill_primary(primary);
    primary = spawn_primary(port, 1);
    double start = seconds_now();
    EQ(client_reinit(a, HOST), 0);
    EQ(update_all_locks(a), 0);
    EQ(client_reinit_done(a), 0);
    double took = seconds_now() - start;
    CHECK_WITHIN(start, 10);
    b = new_client();
    for (int i = 0; i < many; ++i) {
        char name[16];
        snprintf(name, sizeof(name), "m%d", i);
        wrong += must_get(b, name, types[i % 2]) != ids[i];
        wrong += try_op(b, ids[i], LOCK_EXCLUSIVE, 100) != DLOCK_FAIL;
        lost += unlock_op(a, ids[i]) != 0;
    }
    EQ(lost, 0);
    EQ(wrong, 0);
    printf("  %d locks recovered in %.3f s\n", many, took);
    end_primary(primary);
    dclient_lib_deinit();
}

int main(int argc, char **argv)
{
    be_primary_if_asked(argc, argv);
    limit_seconds(90);
    port = free_port();
    EQ(init_client_library(port), 0);
    everything_comes_back();
    counts_clients();
    forgotten_and_expired();
    many_locks();
    return conclusion("recovery");
}
