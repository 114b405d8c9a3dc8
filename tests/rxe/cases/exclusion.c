/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Clients that exclude each other, on networks that lose packets or go away for a while; and who
 * checks them. FILE is mapped by all (one kernel), the primary is anywhere.
 *
 *   exclusion worker FILE NUMBER HOST PORT SECONDS [DEVICE]     SECONDS: at most
 *   exclusion progress FILE WORKERS MORE SECONDS     waits until each has taken each lock MORE times
 *   exclusion check FILE WORKERS HOST PORT [DEVICE]  the workers stop; are the sums right?
 *
 * A worker takes an atomic, a read-write and a fair lock in turn. What they protect is plain
 * memory: an overlap shows as a foreign owner or a lost count. It adds to an object, too, whose
 * value must be the number of additions that were confirmed, and at most those that were lost.
 * A worker whose session breaks comes back by client_reinit().
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "check.h"

#define WORKERS_MAX 16
#define LEASE_S 30
/* No call may take longer: 5 s of waiting and as much for a lost answer, on a slow machine. */
#define CALL_S_MAX 40.0
#define BACK_S_MAX 90.0

enum kind { ATOMIC, RW, FAIR, KINDS };

struct section {
    /* Plain on purpose: only the lock keeps these right. */
    volatile unsigned long owner, count;
};

struct tally {
    _Atomic unsigned long writes[KINDS], reads;
    _Atomic unsigned long added, perhaps_added, sessions_lost;
    _Atomic unsigned long refused_at_once;
    _Atomic int idle;
};

struct arena {
    struct section sections[KINDS];
    _Atomic unsigned long violations;
    _Atomic int stop, checked;
    struct tally tallies[WORKERS_MAX];
};

struct worker {
    struct arena *arena;
    struct tally *tally;
    unsigned long number;
    const char *host;
    int client, locks[KINDS], object;
    double longest_s;
};

static struct arena *arena_of(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    NEED(fd >= 0 && ftruncate(fd, sizeof(struct arena)) == 0);
    void *memory = mmap(NULL, sizeof(struct arena), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(memory != MAP_FAILED);
    close(fd);
    return (struct arena *)memory;
}

static void violation(struct worker *w, const char *what, unsigned long a, unsigned long b)
{
    atomic_fetch_add(&w->arena->violations, 1);
    fprintf(stderr, "worker %lu: violation: %s: %lu, %lu\n", w->number, what, a, b);
}

static void took(struct worker *w, const char *call, double since)
{
    double seconds = seconds_now() - since;
    if (seconds > CALL_S_MAX) {
        fprintf(stderr, "worker %lu: %s took %.1f s\n", w->number, call, seconds);
        CHECK(seconds <= CALL_S_MAX);
    }
    if (seconds > w->longest_s) {
        w->longest_s = seconds;
    }
}

static void enter_library(const char *port, const char *device)
{
    struct client_cfg cfg;
    char name[64];
    fill_client_cfg(&cfg, atoi(port));
    if (device != NULL) {
        cfg.dev_name = mutable_text(device, name, sizeof(name));
    }
    NEED(dclient_lib_init(&cfg) == 0);
}

static int object_of(int client)
{
    static char name[] = "sum";
    struct umo_atomic64_desc desc = {.p_desc = name, .len = 3, .lease_time = 36000};
    int id = 0, status = umo_atomic64_create(client, &desc, 0, &id);
    if (status != 0 && status != DLOCK_OBJECT_ALREADY_EXISTED) {
        fprintf(stderr, "umo_atomic64_create: 0x%x\n", (unsigned)status);
        exit(1);
    }
    NEED(umo_atomic64_get(client, &desc, &id) == 0);
    return id;
}

static void get_all(struct worker *w)
{
    w->locks[ATOMIC] = must_get(w->client, "atomic", DLOCK_ATOMIC);
    w->locks[RW] = must_get(w->client, "rw", DLOCK_RW);
    w->locks[FAIR] = must_get(w->client, "fair", DLOCK_FAIR);
    w->object = object_of(w->client);
}

/* Tries again while the primary cannot be reached. */
static int begin_session(const char *host, int *client)
{
    int status;
    double until = seconds_now() + BACK_S_MAX;
    while ((status = client_init(client, host)) != 0 && seconds_now() < until) {
        sleep_seconds(0.2);
    }
    return status;
}

/* After an answer that did not come. */
static void come_back(struct worker *w, const char *call, int status)
{
    double until = seconds_now() + BACK_S_MAX;
    if (atomic_fetch_add(&w->tally->sessions_lost, 1) < 3) {
        printf("  %.1f worker %lu: %s: 0x%x, coming back\n", seconds_now(), w->number, call,
               (unsigned)status);
    }
    for (;;) {
        double since = seconds_now();
        status = client_reinit(w->client, w->host);
        took(w, "client_reinit", since);
        if (status == 0) {
            printf("  %.1f worker %lu: is back\n", seconds_now(), w->number);
            break;
        }
        if (status == DLOCK_CLIENT_REMOVED_BY_SERVER) {
            client_deinit(w->client);
            NEED(begin_session(w->host, &w->client) == 0);
            get_all(w);
            return;
        }
        if (seconds_now() > until) {
            fprintf(stderr, "worker %lu: no session again: 0x%x\n", w->number, (unsigned)status);
            exit(1);
        }
        sleep_seconds(0.2);
    }
    /* What is held or queued for from before. */
    for (int k = 0; k < KINDS; ++k) {
        for (int tries = 0; tries < 3 && unlock_op(w->client, w->locks[k]) == DLOCK_ALREADY_LOCKED;) {
            ++tries;
        }
    }
}

static void write_inside(struct worker *w, enum kind kind)
{
    struct section *s = &w->arena->sections[kind];
    if (s->owner != 0) {
        violation(w, "another writer is inside", kind, s->owner);
    }
    s->owner = w->number + 1;
    unsigned long next = s->count + 1;
    sched_yield();
    s->count = next;
    if (s->owner != w->number + 1) {
        violation(w, "another writer came in", kind, s->owner);
    }
    s->owner = 0;
}

static void read_inside(struct worker *w, enum kind kind)
{
    struct section *s = &w->arena->sections[kind];
    unsigned long before = s->count;
    sched_yield();
    if (s->owner != 0 || s->count != before) {
        violation(w, "a writer beside a reader", kind, s->owner);
    }
}

/* One acquire and release, as often as it needs; false if the session had to be taken up again. */
static int turn(struct worker *w, enum kind kind, int reads)
{
    struct lock_request req = request(w->locks[kind], reads ? LOCK_SHARED : LOCK_EXCLUSIVE, LEASE_S);
    lock_state state;
    double since = seconds_now();
    int status = lock(w->client, &req, &state);
    took(w, "lock", since);
    if (status == DLOCK_FAIL || status == DLOCK_EAGAIN) {
        if (seconds_now() - since < 4 && atomic_fetch_add(&w->tally->refused_at_once, 1) < 2) {
            printf("  %.1f worker %lu: lock %d: 0x%x after %.3f s\n", seconds_now(), w->number,
                   (int)kind, (unsigned)status, seconds_now() - since);
        }
        return 1; /* 5 s without a turn: a later turn of this loop asks again */
    }
    if (status != 0) {
        come_back(w, "lock", status);
        return 0;
    }
    if (reads) {
        read_inside(w, kind);
        atomic_fetch_add(&w->tally->reads, 1);
    } else {
        write_inside(w, kind);
        atomic_fetch_add(&w->tally->writes[kind], 1);
    }
    since = seconds_now();
    status = unlock(w->client, w->locks[kind], &state);
    took(w, "unlock", since);
    if (status != 0) {
        come_back(w, "unlock", status);
        return 0;
    }
    return 1;
}

static void add(struct worker *w)
{
    uint64_t old;
    double since = seconds_now();
    int status = umo_atomic64_faa(w->client, w->object, 1, &old);
    took(w, "faa", since);
    if (status == 0) {
        atomic_fetch_add(&w->tally->added, 1);
    } else {
        atomic_fetch_add(&w->tally->perhaps_added, 1);
        come_back(w, "faa", status);
    }
}

static int work(struct arena *arena, char **argv)
{
    struct worker w = {.arena = arena, .number = strtoul(argv[3], NULL, 10), .host = argv[4]};
    double until = seconds_now() + atof(argv[6]);
    NEED(w.number < WORKERS_MAX);
    limit_seconds((unsigned)atof(argv[6]) + 180);
    w.tally = &arena->tallies[w.number];
    enter_library(argv[5], argv[7]);
    NEED(begin_session(w.host, &w.client) == 0);
    get_all(&w);
    for (unsigned long round = w.number; !arena->stop && seconds_now() < until; ++round) {
        enum kind kind = (enum kind)(round % KINDS);
        if (turn(&w, kind, kind == RW && round % 4 == 0) && round % 5 == 0) {
            add(&w);
        }
    }
    /* A place in the queue of the fair lock, if its last turn did not come. */
    unlock_op(w.client, w.locks[FAIR]);
    atomic_store(&w.tally->idle, 1);
    /* The object goes with the client that has made it. */
    while (!arena->checked && seconds_now() < until) {
        sleep_seconds(0.05);
    }
    if (client_deinit(w.client) != 0) {
        fprintf(stderr, "worker %lu: client_deinit fails\n", w.number);
    }
    dclient_lib_deinit();
    printf("  worker %lu: %lu atomic, %lu rw and %lu reads, %lu fair, %lu added; "
           "longest call %.1f s; session lost %lu times, refused at once %lu times\n",
           w.number, w.tally->writes[ATOMIC], w.tally->writes[RW], w.tally->reads,
           w.tally->writes[FAIR], w.tally->added, w.longest_s, w.tally->sessions_lost, w.tally->refused_at_once);
    return checks_failed == 0 ? 0 : 1;
}

static int progress(struct arena *arena, int workers, unsigned long more, double seconds)
{
    unsigned long before[WORKERS_MAX][KINDS];
    double since = seconds_now();
    for (int i = 0; i < workers; ++i) {
        for (int k = 0; k < KINDS; ++k) {
            before[i][k] = arena->tallies[i].writes[k];
        }
    }
    for (int i = 0; i < workers; ++i) {
        for (int k = 0; k < KINDS; ++k) {
            while (arena->tallies[i].writes[k] < before[i][k] + more) {
                if (seconds_now() - since > seconds) {
                    printf("worker %d stands still on lock %d after %lu\n", i, k,
                           arena->tallies[i].writes[k]);
                    return 1;
                }
                sleep_seconds(0.05);
            }
        }
    }
    printf("  all %d clients went on after %.1f s (at %.1f)\n", workers, seconds_now() - since,
           seconds_now());
    return 0;
}

static int check(struct arena *arena, int workers, const char *host, const char *port,
                 const char *device)
{
    unsigned long writes[KINDS] = {0}, added = 0, perhaps = 0;
    uint64_t sum = 0;
    int client = 0;
    limit_seconds(180);
    atomic_store(&arena->stop, 1);
    double until = seconds_now() + BACK_S_MAX;
    for (int i = 0; i < workers; ++i) {
        while (!arena->tallies[i].idle && seconds_now() < until) {
            sleep_seconds(0.05);
        }
        CHECK(arena->tallies[i].idle);
    }
    for (int i = 0; i < workers; ++i) {
        for (int k = 0; k < KINDS; ++k) {
            CHECK(arena->tallies[i].writes[k] > 0);
            writes[k] += arena->tallies[i].writes[k];
        }
        added += arena->tallies[i].added;
        perhaps += arena->tallies[i].perhaps_added;
    }
    EQ(arena->violations, 0);
    for (int k = 0; k < KINDS; ++k) {
        EQ(arena->sections[k].count, writes[k]);
        EQ(arena->sections[k].owner, 0);
    }
    enter_library(port, device);
    NEED(begin_session(host, &client) == 0);
    EQ(umo_atomic64_get_snapshot(client, object_of(client), &sum), 0);
    CHECK(sum >= added && sum <= added + perhaps && added > 0);
    client_deinit(client);
    dclient_lib_deinit();
    atomic_store(&arena->checked, 1);
    printf("  %d clients: %lu atomic, %lu rw, %lu fair, object %" PRIu64 " of %lu to %lu: %s\n",
           workers, writes[ATOMIC], writes[RW], writes[FAIR], sum, added, added + perhaps,
           checks_failed == 0 ? "exact" : "WRONG");
    return checks_failed == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc >= 7 && strcmp(argv[1], "worker") == 0) {
        return work(arena_of(argv[2]), argv);
    }
    if (argc == 6 && strcmp(argv[1], "progress") == 0) {
        return progress(arena_of(argv[2]), atoi(argv[3]), strtoul(argv[4], NULL, 10),
                        atof(argv[5]));
    }
    if (argc >= 6 && strcmp(argv[1], "check") == 0) {
        return check(arena_of(argv[2]), atoi(argv[3]), argv[4], argv[5], argv[6]);
    }
    fprintf(stderr, "usage: see the head of exclusion.c\n");
    return 2;
}
