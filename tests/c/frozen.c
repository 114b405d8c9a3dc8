/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A primary that is stopped for ten seconds: every call ends in time, and nothing is poisoned. */
#include <pthread.h>

#include "primary_process.h"
#include "scenario_more.h"

static int over_tcp;

struct victim {
    int client, id, object;
    pthread_t thread;
};

static void lasted(double start, double least, double most)
{
    double took = seconds_now() - start;
    if (took < least || own_seconds_since(start) > most) {
        fprintf(stderr, "took %.2f s, not %.1f to %.1f\n", took, least, most);
        CHECK(0);
    }
}

/* Operations on words: over shared memory they need no primary, over tcp and sealed they end
 * after 5 s. */
static void *try_it(void *arg)
{
    struct victim *v = (struct victim *)arg;
    double start = seconds_now();
    EQ(try_op(v->client, v->id, LOCK_EXCLUSIVE, 60), over_tcp ? DLOCK_BAD_RESPONSE : 0);
    lasted(start, over_tcp ? 4.5 : 0, over_tcp ? 9 : 4);
    return NULL;
}

static void *try_many(void *arg)
{
    struct victim *v = (struct victim *)arg;
    struct lock_request req[2] = {request(v->id, LOCK_EXCLUSIVE, 60), request(7, LOCK_SHARED, 1)};
    struct lock_op_res results[2];
    double start = seconds_now();
    EQ(batch_trylock(v->client, 2, req, results), 0);
    EQ(results[0].op_ret, over_tcp ? DLOCK_BAD_RESPONSE : 0);
    EQ(results[1].op_ret, DLOCK_LOCK_NOT_GET); /* settled here */
    lasted(start, over_tcp ? 4.5 : 0, over_tcp ? 9 : 4);
    return NULL;
}

static void *try_async(void *arg)
{
    struct victim *v = (struct victim *)arg;
    union seen s = unseen();
    double start = seconds_now();
    EQ(async_op(v->client, v->id, LOCK_EXCLUSIVE, 60), 0);
    EQ(async_wait(v->client, &s), over_tcp ? DLOCK_ETIMEOUT : 0);
    lasted(start, over_tcp ? 4.5 : 0, over_tcp ? 9 : 4);
    EQ(lock_result_check(v->client, &s), DLOCK_NO_ASYNC); /* given up */
    struct debug_stats stats;
    EQ(get_client_debug_stats(v->client, &stats), 0);
    EQ(stats.stats[DEBUG_STATS_ETIMEOUT], over_tcp);
    return NULL;
}

static void *add_to_object(void *arg)
{
    struct victim *v = (struct victim *)arg;
    uint64_t value = 0;
    double start = seconds_now();
    EQ(umo_atomic64_faa(v->client, v->object, 1, &value), over_tcp ? DLOCK_BAD_RESPONSE : 0);
    lasted(start, over_tcp ? 4.5 : 0, over_tcp ? 9 : 4);
    return NULL;
}

/* A wait for a lock that is held needs the primary on every fabric. */
static void *wait_for_it(void *arg)
{
    struct victim *v = (struct victim *)arg;
    double start = seconds_now();
    int status = lock_op(v->client, v->id, LOCK_EXCLUSIVE, 60);
    CHECK(status == DLOCK_BAD_RESPONSE || status == DLOCK_FAIL);
    lasted(start, 4.5, 10);
    return NULL;
}

static void *beat(void *arg)
{
    struct victim *v = (struct victim *)arg;
    double start = seconds_now();
    EQ(client_heartbeat(v->client, 2), DLOCK_BAD_RESPONSE);
    lasted(start, 1.8, 6);
    return NULL;
}

static void *get_one(void *arg)
{
    struct victim *v = (struct victim *)arg;
    int id = 0;
    double start = seconds_now();
    EQ(get_named(v->client, "got too late", DLOCK_ATOMIC, &id), DLOCK_BAD_RESPONSE);
    lasted(start, 9, 15);
    return NULL;
}

/* The connection is accepted by the kernel, but there is no answer. */
static void *come_in(void *arg)
{
    int id = -7;
    double start = seconds_now();
    (void)arg;
    EQ(client_init(&id, HOST), -1);
    EQ(id, -7);
    lasted(start, 9, 15);
    return NULL;
}

/* What each client can do afterwards, without a reinit if it can. */
static void works_again(struct victim *v)
{
    int id = 0, status = client_heartbeat(v->client, 5);
    CHECK(status == 0 || status == DLOCK_BAD_RESPONSE);
    if (status != 0) { /* its control connection is gone: that is what a reinit is for */
        EQ(client_reinit(v->client, HOST), 0);
        EQ(client_heartbeat(v->client, 5), 0);
    }
    EQ(get_named(v->client, "got afterwards", DLOCK_ATOMIC, &id), 0);
    unlock_op(v->client, v->id); /* also if the lost operation took effect */
    EQ(lock_op(v->client, v->id, LOCK_EXCLUSIVE, 60), 0);
    EQ(unlock_op(v->client, v->id), 0);
    EQ(async_op(v->client, v->id, LOCK_EXCLUSIVE, 60), 0);
    EQ(async_result(v->client), 0);
    EQ(unlock_op(v->client, v->id), 0);
    EQ(unlock_op(v->client, v->id), DLOCK_ALREADY_UNLOCKED);
    uint64_t value = 77;
    EQ(umo_atomic64_get_snapshot(v->client, v->object, &value), 0);
    CHECK(value <= 1);
}

int main(int argc, char **argv)
{
    static void *(*const calls[])(void *) = {try_it, try_many,    try_async, add_to_object,
                                             beat,   wait_for_it, get_one,   come_in};
    enum { CALLS = sizeof(calls) / sizeof(*calls) };
    struct victim victims[CALLS];
    char name[16], counter[] = "counter";
    be_primary_if_asked(argc, argv);
    limit_seconds(90);
    const char *fabric = getenv("DLOCK_FABRIC");
    over_tcp = fabric != NULL && (strcmp(fabric, "tcp") == 0 || strcmp(fabric, "sealed") == 0);
    int port = free_port();
    struct primary_process primary = spawn_primary(port, 0);
    EQ(init_client_library(port), 0);
    int holder = new_client(), made = 0;
    struct umo_atomic64_desc desc = object_desc(counter, 600);
    EQ(umo_atomic64_create(holder, &desc, 0, &made), 0);
    for (int i = 0; i < CALLS; ++i) {
        snprintf(name, sizeof(name), "frozen %d", i);
        victims[i].client = new_client();
        victims[i].id = must_get(victims[i].client, name, DLOCK_ATOMIC);
        EQ(umo_atomic64_get(victims[i].client, &desc, &victims[i].object), 0);
        if (calls[i] == wait_for_it) {
            EQ(must_get(holder, name, DLOCK_ATOMIC), victims[i].id);
            EQ(lock_op(holder, victims[i].id, LOCK_EXCLUSIVE, 60), 0);
        }
    }
    stop_primary(primary);
    for (int i = 0; i < CALLS; ++i) {
        NEED(pthread_create(&victims[i].thread, NULL, calls[i], &victims[i]) == 0);
    }
    for (int i = 0; i < CALLS; ++i) {
        pthread_join(victims[i].thread, NULL);
    }
    continue_primary(primary);
    for (int i = 0; i < CALLS; ++i) {
        if (calls[i] == wait_for_it) {
            EQ(unlock_op(holder, victims[i].id), 0);
        }
        works_again(&victims[i]);
    }
    for (int i = 0; i < CALLS; ++i) {
        EQ(client_deinit(victims[i].client), 0);
    }
    EQ(client_deinit(holder), 0);
    end_primary(primary);
    dclient_lib_deinit();
    return conclusion("frozen");
}
