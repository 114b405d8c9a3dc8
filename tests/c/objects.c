/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* State objects: owners, leases, references, and what ends with a client. */
#include "scenario_more.h"

static int c[4];

/* Results by name; ids that must not be written stay -5. */
static int create(int client, char *name, uint32_t lease, uint64_t value, int *id)
{
    struct umo_atomic64_desc desc = object_desc(name, lease);
    *id = -5;
    int status = umo_atomic64_create(client, &desc, value, id);
    CHECK(status == 0 ? *id > 0 : *id == -5);
    return status;
}

static int get(int client, char *name, uint32_t lease, int *id)
{
    struct umo_atomic64_desc desc = object_desc(name, lease);
    *id = -5;
    int status = umo_atomic64_get(client, &desc, id);
    CHECK(status == 0 ? *id > 0 : *id == -5);
    return status;
}

static uint64_t value_of(int client, int id)
{
    uint64_t value = 0xDEAD;
    EQ(umo_atomic64_get_snapshot(client, id, &value), 0);
    return value;
}

static void ids_and_owners(void)
{
    char name[] = "owned", first[] = "Ab", second[] = "BA";
    int id, other, lock_id = 0;
    uint32_t hash = 5381;
    for (const char *p = first; *p != '\0'; ++p) {
        hash = hash * 33 + (unsigned char)*p;
    }
    EQ(create(c[0], first, 60, 1, &id), 0);
    EQ(id, (int)hash);
    EQ(create(c[0], second, 60, 2, &other), 0);
    CHECK(other != id); /* the same hash, another object */
    EQ(get_named(c[0], "Ab", DLOCK_ATOMIC, &lock_id), 0);
    EQ(lock_id, (int)hash); /* locks and objects are counted apart */
    EQ(release_lock(c[0], lock_id), 0);
    EQ(get(c[1], first, 60, &id), 0);
    EQ(get(c[1], second, 60, &other), 0);
    EQ(value_of(c[1], id), 1);
    EQ(value_of(c[1], other), 2);
    EQ(umo_atomic64_release(c[1], id), 0);
    EQ(umo_atomic64_release(c[1], other), 0);
    EQ(umo_atomic64_destroy(c[0], id), 0); /* no client has got it: gone at once */
    EQ(umo_atomic64_destroy(c[0], id), DLOCK_OBJECT_NOT_CREATE);
    EQ(umo_atomic64_destroy(c[0], other), 0);

    EQ(create(c[0], name, 60, 7, &id), 0);
    int kept = id;
    EQ(create(c[0], name, 60, 8, &id), DLOCK_OBJECT_ALREADY_CREATED);
    EQ(create(c[1], name, 60, 9, &id), DLOCK_OBJECT_ALREADY_EXISTED);
    EQ(umo_atomic64_destroy(c[1], kept), DLOCK_OBJECT_INVALID_OWNER);
    EQ(get(c[1], name, 60, &id), 0);
    EQ(id, kept);
    EQ(value_of(c[1], id), 7); /* neither of the others has set it */
    EQ(umo_atomic64_destroy(c[0], kept), 0);
    EQ(umo_atomic64_destroy(c[1], kept), DLOCK_OBJECT_INVALID_OWNER);
    EQ(umo_atomic64_destroy(c[0], kept), DLOCK_OBJECT_ALREADY_DESTROYED);
    EQ(umo_atomic64_get(c[1], NULL, &id), DLOCK_EINVAL);
    EQ(umo_atomic64_release(c[1], kept), 0);
    EQ(umo_atomic64_destroy(c[0], kept), DLOCK_OBJECT_NOT_CREATE);
}

static void arithmetic(void)
{
    static char longest[MAX_UMO_ATOMIC64_DESC_LEN];
    memset(longest, 'o', sizeof(longest));
    struct umo_atomic64_desc desc = {longest, sizeof(longest), 1};
    int id = 0;
    uint64_t old = 0;
    EQ(umo_atomic64_create(c[0], &desc, UINT64_MAX, &id), 0);
    EQ(umo_atomic64_get(c[0], &desc, &id), 0);
    EQ(umo_atomic64_get(c[1], &desc, &id), 0);
    EQ(value_of(c[1], id), -1);
    EQ(umo_atomic64_faa(c[0], id, 0, &old), 0);
    CHECK(old == UINT64_MAX);
    EQ(umo_atomic64_faa(c[0], id, 2, &old), 0);
    CHECK(old == UINT64_MAX);
    EQ(value_of(c[1], id), 1);
    EQ(umo_atomic64_cas(c[1], id, 1, 1ULL << 63), 0);
    EQ(umo_atomic64_cas(c[0], id, 1, 5), DLOCK_OBJECT_CAS_FAILED);
    EQ(umo_atomic64_cas(c[0], id, 1ULL << 63, 1ULL << 63), 0);
    EQ(umo_atomic64_faa(c[1], id, 1ULL << 63, &old), 0);
    CHECK(old == 1ULL << 63);
    EQ(value_of(c[0], id), 0);
    EQ(umo_atomic64_release(c[0], id), 0);
    EQ(umo_atomic64_faa(c[0], id, 1, &old), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_cas(c[0], id, 0, 1), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_get_snapshot(c[0], id, &old), DLOCK_OBJECT_NOT_GET);
    EQ(umo_atomic64_release(c[1], id), 0);
    EQ(umo_atomic64_destroy(c[0], id), 0);
}

/* An object got for a second and destroyed: its name is free once that lease is over. */
static void leases(void)
{
    char brief[] = "brief", lasting[] = "lasting", unused[] = "unused";
    int id, brief_id, lasting_id;
    uint64_t value = 0;
    EQ(create(c[0], brief, 1, 10, &brief_id), 0);
    EQ(get(c[1], brief, 1, &id), 0);
    EQ(umo_atomic64_destroy(c[0], brief_id), 0);
    EQ(create(c[0], lasting, 1, 20, &lasting_id), 0);
    EQ(get(c[1], lasting, 60, &id), 0); /* the longest of all leases counts */
    EQ(umo_atomic64_destroy(c[0], lasting_id), 0);
    EQ(create(c[0], unused, 1, 30, &id), 0);
    EQ(create(c[2], brief, 60, 11, &id), DLOCK_OBJECT_ALREADY_DESTROYED);
    EQ(get(c[2], brief, 60, &id), DLOCK_OBJECT_ALREADY_DESTROYED);
    sleep_seconds(2.2);
    /* Nothing expires by itself: existing handles go on working. */
    EQ(umo_atomic64_faa(c[1], lasting_id, 1, &value), 0);
    EQ(value, 20);
    EQ(create(c[2], lasting, 60, 21, &id), DLOCK_OBJECT_ALREADY_DESTROYED);
    EQ(get(c[3], unused, 60, &id), 0); /* alive, with any lease */
    EQ(umo_atomic64_release(c[3], id), 0);
    EQ(umo_atomic64_destroy(c[0], id), 0);
    /* The name's new owner, with a value of its own; the old handle does not reach it. */
    EQ(create(c[2], brief, 60, 12, &id), 0);
    int reborn = id;
    EQ(get(c[3], brief, 60, &id), 0);
    EQ(value_of(c[3], id), 12);
    /* Over verbs an addition is one verb, which cannot see that the object is gone: it reaches the
       old place, which is nobody else's while there are handles to it. */
    const char *fabric = getenv("DLOCK_FABRIC");
    int verbs = fabric && !strcmp(fabric, "verbs");
    CHECK(umo_atomic64_faa(c[1], brief_id, 100, &value) != 0 || verbs);
    EQ(value_of(c[3], id), 12);
    EQ(umo_atomic64_destroy(c[0], reborn), DLOCK_OBJECT_INVALID_OWNER);
    EQ(umo_atomic64_destroy(c[2], reborn), 0);
    EQ(umo_atomic64_release(c[3], id), 0);
    EQ(umo_atomic64_release(c[1], brief_id), 0); /* over, of an object that is gone: given back */
    EQ(umo_atomic64_release(c[1], lasting_id), 0);
    EQ(get(c[1], brief, 60, &id), DLOCK_OBJECT_NOT_CREATE);
    EQ(get(c[1], lasting, 60, &id), DLOCK_OBJECT_NOT_CREATE);
}

/* What a client that has ended owned or had got holds no other up. */
static void owners_that_end(void)
{
    char used[] = "used by another", unused[] = "used by nobody", got[] = "got by the ended";
    int gone = new_client(), id, used_id, got_id;
    uint64_t value = 0;
    EQ(create(gone, used, 60, 1, &used_id), 0);
    EQ(create(gone, unused, 60, 2, &id), 0);
    EQ(create(c[0], got, 60, 3, &got_id), 0);
    EQ(get(gone, got, 60, &id), 0);
    EQ(get(c[1], used, 60, &id), 0);
    EQ(client_deinit(gone), 0);
    EQ(umo_atomic64_faa(c[1], used_id, 4, &value), 0); /* goes on for who has got it */
    EQ(value, 1);
    /* Every client may take over or destroy what has no owner. */
    int status = create(c[2], unused, 60, 5, &id);
    CHECK(status == 0 || status == DLOCK_OBJECT_ALREADY_CREATED);
    EQ(get(c[2], unused, 60, &id), 0);
    EQ(umo_atomic64_release(c[2], id), 0);
    EQ(umo_atomic64_destroy(c[2], id), 0);
    EQ(umo_atomic64_destroy(c[2], used_id), 0);
    EQ(umo_atomic64_release(c[1], used_id), 0);
    EQ(get(c[1], used, 60, &id), DLOCK_OBJECT_NOT_CREATE);
    /* Its reference has gone with it: destroying frees at once. */
    EQ(umo_atomic64_destroy(c[0], got_id), 0);
    EQ(umo_atomic64_destroy(c[0], got_id), DLOCK_OBJECT_NOT_CREATE);
}

/* A reinit on a primary that is ready keeps handles, and forgets counters. */
static void over_a_reinit(void)
{
    char name[] = "kept";
    struct debug_stats stats;
    int id;
    uint64_t value = 0;
    EQ(create(c[0], name, 60, 5, &id), 0);
    EQ(get(c[0], name, 60, &id), 0);
    EQ(clear_client_debug_stats(c[0]), 0);
    EQ(umo_atomic64_cas(c[0], id, 4, 6), DLOCK_OBJECT_CAS_FAILED);
    EQ(umo_atomic64_cas(c[0], 999, 4, 6), DLOCK_OBJECT_NOT_GET);
    EQ(get_client_debug_stats(c[0], &stats), 0);
    EQ(stats.stats[DEBUG_STATS_OBJECT_CAS_FAILED], 1);
    EQ(stats.stats[DEBUG_STATS_OBJECT_NOT_GET], 1);
    EQ(client_reinit(c[0], HOST), 0);
    EQ(get_client_debug_stats(c[0], &stats), 0);
    EQ(stats.stats[DEBUG_STATS_OBJECT_CAS_FAILED], 0);
    EQ(umo_atomic64_faa(c[0], id, 1, &value), 0);
    EQ(value, 5);
    EQ(client_reinit_done(c[0]), 0);
    EQ(value_of(c[0], id), 6);
    EQ(umo_atomic64_release(c[0], id), 0);
    EQ(umo_atomic64_destroy(c[0], id), 0);
}

int main(void)
{
    int port = free_port();
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    for (int i = 0; i < 4; ++i) {
        c[i] = new_client();
    }
    ids_and_owners();
    arithmetic();
    leases();
    owners_that_end();
    over_a_reinit();
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("objects");
}
