/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The limits of one primary: 1,000 clients, 51,200 locks, 102,400 objects, and one more of each;
 * and who makes room when all clients but one have vanished.
 */
#include "check.h"

#define CLIENTS 1000
#define LOCKS 51200
#define OBJECTS 102400
#define BATCH ((int)MAX_LOCK_BATCH_SIZE)
#define HOLDERS 16 /* of the locks: what one of them leaves behind is undone while it waits */

static void fill_with_locks(const int *holders, int second)
{
    const int first = holders[0];
    static char names[MAX_LOCK_BATCH_SIZE][24];
    struct lock_desc descs[MAX_LOCK_BATCH_SIZE];
    int ids[MAX_LOCK_BATCH_SIZE], got = 0;
    double start = seconds_now();
    while (got < LOCKS) {
        int n = LOCKS - got < BATCH ? LOCKS - got : BATCH;
        for (int i = 0; i < n; ++i) {
            snprintf(names[i], sizeof(names[i]), "lock %d", got + i);
            descs[i].p_desc = names[i];
            descs[i].len = (uint32_t)strlen(names[i]);
            descs[i].lock_type = DLOCK_ATOMIC;
            descs[i].lease_time = 0;
        }
        NEED(batch_get_lock(holders[got * HOLDERS / LOCKS], (unsigned)n, descs, ids) == 0);
        for (int i = 0; i < n; ++i) {
            NEED(ids[i] > 0);
        }
        got += n;
    }
    printf("  %d locks in %.2f s\n", LOCKS, seconds_now() - start);

    int id = 0;
    EQ(get_named(second, "one too many", DLOCK_ATOMIC, &id), DLOCK_SERVER_NO_RESOURCE);
    static char name[] = "one too many", known[] = "lock 7";
    struct lock_desc two[2] = {{name, 12, DLOCK_ATOMIC, 0}, {known, 6, DLOCK_ATOMIC, 0}};
    EQ(batch_get_lock(second, 2, two, ids), 0);
    EQ(ids[0], -8207);
    CHECK(ids[1] > 0);
    EQ(get_named(second, "lock 8", DLOCK_ATOMIC, &id), 0);
    EQ(lock_op(second, id, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(second, id), 0);
    EQ(get_named(first, "lock 9", DLOCK_ATOMIC, &id), -1); /* has it */
    EQ(release_lock(first, id), 0);
    EQ(get_named(second, "one too many", DLOCK_ATOMIC, &id), 0); /* there is room again */
}

static int create(int client, int number, uint64_t value, int *id)
{
    char name[24];
    struct umo_atomic64_desc desc;
    snprintf(name, sizeof(name), "object %d", number);
    desc.p_desc = name;
    desc.len = (uint32_t)strlen(name);
    desc.lease_time = 600;
    return umo_atomic64_create(client, &desc, value, id);
}

static void fill_with_objects(int first, int second)
{
    double start = seconds_now();
    int last = 0, id = -5;
    for (int i = 0; i < OBJECTS; ++i) {
        NEED(create(first, i, (uint64_t)i, &last) == 0);
    }
    printf("  %d objects in %.2f s\n", OBJECTS, seconds_now() - start);
    EQ(create(second, OBJECTS, 1, &id), DLOCK_OBJECT_TOO_MANY);
    EQ(create(first, 7, 1, &id), DLOCK_OBJECT_ALREADY_CREATED);
    EQ(create(second, 7, 1, &id), DLOCK_OBJECT_ALREADY_EXISTED);
    EQ(id, -5);
    EQ(umo_atomic64_destroy(first, last), 0);
    EQ(create(second, OBJECTS, 1, &id), 0); /* there is room again */
    EQ(create(second, OBJECTS + 1, 1, &id), DLOCK_OBJECT_TOO_MANY);
}

/* All clients vanish without a word: the next ones get their places. */
static void places_of_the_vanished(int port)
{
    int client[3], id = 0;
    dclient_lib_deinit();
    EQ(init_client_library(port), 0);
    for (int i = 0; i < 3; ++i) {
        double end = seconds_now() + 20; /* the primary may not have noticed yet */
        int status;
        do {
            status = client_init(&client[i], HOST);
        } while (status == DLOCK_SERVER_NO_RESOURCE && seconds_now() < end);
        EQ(status, 0);
    }
    EQ(get_named(client[0], "lock 3", DLOCK_ATOMIC, &id), 0);
    EQ(client_heartbeat(client[2], 5), 0);
}

int main(void)
{
    static int c[CLIENTS];
    int port = free_port(), extra = -7;
    limit_seconds(120);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    double start = seconds_now();
    for (int i = 0; i < CLIENTS; ++i) {
        c[i] = new_client();
    }
    printf("  %d clients in %.2f s\n", CLIENTS, seconds_now() - start);
    EQ(client_init(&extra, HOST), DLOCK_SERVER_NO_RESOURCE);
    EQ(client_init(&extra, HOST), DLOCK_SERVER_NO_RESOURCE);
    EQ(extra, -7);
    EQ(client_deinit(c[500]), 0);
    EQ(client_init(&c[500], HOST), 0);
    int holders[HOLDERS];
    for (int i = 0; i < HOLDERS; ++i) {
        holders[i] = c[2 * i]; /* they leave, below */
    }
    fill_with_locks(holders, c[1]);
    const char *fabric = getenv("DLOCK_FABRIC");
    if (fabric == NULL || strcmp(fabric, "tcp") == 0) { /* no fabric is in this: once will do */
        fill_with_objects(c[2], c[3]);
    }
    for (int i = 0; i < CLIENTS; i += 2) {
        EQ(client_deinit(c[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i += 2) {
        EQ(client_init(&c[i], HOST), 0);
    }
    EQ(client_init(&extra, HOST), DLOCK_SERVER_NO_RESOURCE);
    places_of_the_vanished(port);
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("limits");
}
