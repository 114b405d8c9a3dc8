/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Many workers on one lock: contention [-t threads] [-p processes] [-d seconds] [-k kind]
 *
 * kind: atomic, rw, fair, faa or all (the seconds are shared by the kinds). Every process has
 * its own client library, every thread its own client. What the locks protect is plain memory
 * shared by all: an overlap shows as a lost update, a bad reading or a turn out of order.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"

#define WORKERS_MAX 64
#define CELLS 16

enum kind { ATOMIC, RW, FAIR, FAA, KINDS };

static const char *const kind_names[KINDS] = {"atomic", "rw", "fair", "faa"};

/* One round's shared memory. */
struct arena {
    int port;
    _Atomic int stop;
    _Atomic int ready;
    _Atomic unsigned long violations;
    _Atomic unsigned long errors;
    /* Plain on purpose: only the lock keeps these right. */
    volatile unsigned long count;
    volatile unsigned long cells[CELLS];
    volatile unsigned turn;
    volatile int turn_known;
    _Atomic int writers_inside, readers_inside;
    _Atomic unsigned long exclusive[WORKERS_MAX], shared[WORKERS_MAX];
};

struct worker {
    struct arena *arena;
    enum kind kind;
    int number;
};

static void violation(struct arena *a, const char *what)
{
    if (atomic_fetch_add(&a->violations, 1) < 5) {
        fprintf(stderr, "violation: %s\n", what);
    }
}

/* Takes a lock, however often lock() has to be called for it; false when the round is over. */
static int acquire(struct arena *a, int client, struct lock_request *req, lock_state *state)
{
    int status;
    do {
        status = lock(client, req, state);
    } while ((status == DLOCK_EAGAIN || status == DLOCK_FAIL) && !atomic_load(&a->stop));
    if (status != 0 && status != DLOCK_EAGAIN && status != DLOCK_FAIL) {
        fprintf(stderr, "lock: 0x%x\n", (unsigned)status);
        atomic_fetch_add(&a->errors, 1);
    }
    return status == 0;
}

static void write_inside(struct arena *a, enum kind kind, const lock_state *state)
{
    if (atomic_fetch_add(&a->writers_inside, 1) != 0 || atomic_load(&a->readers_inside) != 0) {
        violation(a, "a writer is not alone");
    }
    if (kind == FAIR) {
        uint16_t mine = state->fl.n_exclusive;
        /* Numbers may be left out where the lane starts again, but none comes twice or too late. */
        if (a->turn_known && (uint16_t)(mine - a->turn - 1) >= 0x8000) {
            violation(a, "a turn out of order");
        }
        a->turn = mine;
        a->turn_known = 1;
    }
    unsigned long next = a->count + 1;
    for (int i = 0; i < CELLS; ++i) {
        a->cells[i] = next;
    }
    a->count = next;
    atomic_fetch_sub(&a->writers_inside, 1);
}

static void read_inside(struct arena *a)
{
    atomic_fetch_add(&a->readers_inside, 1);
    if (atomic_load(&a->writers_inside) != 0) {
        violation(a, "a reader beside a writer");
    }
    unsigned long seen = a->count;
    for (int i = 0; i < CELLS; ++i) {
        if (a->cells[i] != seen) {
            violation(a, "a reader saw half a write");
            break;
        }
    }
    atomic_fetch_sub(&a->readers_inside, 1);
}

static void lock_rounds(struct worker *w, int client)
{
    static const dlock_type types[] = {DLOCK_ATOMIC, DLOCK_RW, DLOCK_FAIR};
    struct arena *a = w->arena;
    int lock_id = must_get(client, "contended", types[w->kind]);
    atomic_fetch_add(&a->ready, 1);
    unsigned long round = (unsigned long)w->number;
    while (!atomic_load(&a->stop)) {
        /* Fair locks have writers alone here, so that turns follow one another. */
        int reads = w->kind == RW && round++ % 4 != 0;
        struct lock_request req = request(lock_id, reads ? LOCK_SHARED : LOCK_EXCLUSIVE, 60);
        lock_state state;
        if (!acquire(a, client, &req, &state)) {
            break;
        }
        if (reads) {
            read_inside(a);
            atomic_fetch_add(&a->shared[w->number], 1);
        } else {
            write_inside(a, w->kind, &state);
            atomic_fetch_add(&a->exclusive[w->number], 1);
        }
        int status = unlock(client, lock_id, &state);
        if (status != 0) {
            fprintf(stderr, "unlock: 0x%x\n", (unsigned)status);
            atomic_fetch_add(&a->errors, 1);
            break;
        }
    }
    unlock(client, lock_id, &(lock_state){.base = 0}); /* gives a ticket up, if there is one */
}

static struct umo_atomic64_desc sum_desc(void)
{
    static char name[] = "sum";
    struct umo_atomic64_desc desc = {.p_desc = name, .len = 3, .lease_time = 3600};
    return desc;
}

static void faa_rounds(struct worker *w, int client)
{
    struct arena *a = w->arena;
    struct umo_atomic64_desc desc = sum_desc();
    int id = 0;
    uint64_t old;
    NEED(umo_atomic64_get(client, &desc, &id) == 0);
    atomic_fetch_add(&a->ready, 1);
    while (!atomic_load(&a->stop)) {
        if (umo_atomic64_faa(client, id, 1, &old) != 0) {
            atomic_fetch_add(&a->errors, 1);
            break;
        }
        atomic_fetch_add(&a->exclusive[w->number], 1);
    }
}

static void *work(void *arg)
{
    struct worker *w = (struct worker *)arg;
    int client = new_client();
    if (w->kind == FAA) {
        faa_rounds(w, client);
    } else {
        lock_rounds(w, client);
    }
    if (client_deinit(client) != 0) {
        atomic_fetch_add(&w->arena->errors, 1);
    }
    return NULL;
}

/* One process's threads; the library is not initialised yet. */
static void work_in_threads(struct arena *a, enum kind kind, int first, int threads)
{
    pthread_t ids[WORKERS_MAX];
    struct worker workers[WORKERS_MAX];
    NEED(init_client_library(a->port) == 0);
    for (int i = 0; i < threads; ++i) {
        workers[i] = (struct worker){a, kind, first + i};
        NEED(pthread_create(&ids[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < threads; ++i) {
        pthread_join(ids[i], NULL);
    }
    dclient_lib_deinit();
}

/* The primary's process; children wait for its port before they start. */
static void run_kind(enum kind kind, int processes, int threads, double seconds)
{
    struct arena *a = (struct arena *)mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[WORKERS_MAX];
    int gate[2], owner = 0, object = 0;
    NEED(a != MAP_FAILED && pipe(gate) == 0);
    a->port = free_port();
    fflush(NULL);
    for (int p = 0; p < processes; ++p) {
        children[p] = fork();
        NEED(children[p] >= 0);
        if (children[p] == 0) {
            char go;
            close(gate[1]);
            limit_seconds((unsigned)seconds + 30);
            NEED(read(gate[0], &go, 1) == 1);
            work_in_threads(a, kind, p * threads, threads);
            _exit(0);
        }
    }
    NEED(dserver_lib_init(1) == 0);
    start_primary(a->port);
    NEED(init_client_library(a->port) == 0);
    owner = new_client();
    struct umo_atomic64_desc desc = sum_desc();
    NEED(umo_atomic64_create(owner, &desc, 0, &object) == 0);
    NEED(umo_atomic64_get(owner, &desc, &object) == 0);
    for (int p = 0; p < processes; ++p) {
        NEED(write(gate[1], "g", 1) == 1);
    }
    /* Setting clients up takes its time on some fabrics; the alarm bounds it. */
    while (atomic_load(&a->ready) < processes * threads) {
        sleep_seconds(0.001);
    }
    sleep_seconds(seconds);
    atomic_store(&a->stop, 1);
    for (int p = 0; p < processes; ++p) {
        int how = 0;
        NEED(waitpid(children[p], &how, 0) == children[p]);
        EQ(how, 0);
    }
    unsigned long writes = 0, reads = 0, least = ~0ul;
    for (int i = 0; i < processes * threads; ++i) {
        unsigned long mine = atomic_load(&a->exclusive[i]);
        writes += mine;
        reads += atomic_load(&a->shared[i]);
        least = mine < least ? mine : least;
    }
    EQ(atomic_load(&a->violations), 0);
    EQ(atomic_load(&a->errors), 0);
    CHECK(least > 0); /* no client starves */
    if (kind == FAA) {
        uint64_t sum = 0;
        EQ(umo_atomic64_get_snapshot(owner, object, &sum), 0);
        EQ(sum, writes);
    } else {
        EQ(a->count, writes);
    }
    CHECK(kind != RW || reads > 0);
    printf("  %-6s %d processes x %d threads: %lu exclusive, %lu shared in %.1f s, least %lu\n",
           kind_names[kind], processes, threads, writes, reads, seconds, least);
    EQ(client_deinit(owner), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();
    close(gate[0]);
    close(gate[1]);
    munmap(a, sizeof(*a));
}

int main(int argc, char **argv)
{
    int threads = 8, processes = 1, only = -1, option;
    double seconds = 10;
    while ((option = getopt(argc, argv, "t:p:d:k:")) != -1) {
        switch (option) {
        case 't': threads = atoi(optarg); break;
        case 'p': processes = atoi(optarg); break;
        case 'd': seconds = atof(optarg); break;
        case 'k':
            for (int k = 0; k < KINDS; ++k) {
                only = strcmp(optarg, kind_names[k]) == 0 ? k : only;
            }
            NEED(only >= 0 || strcmp(optarg, "all") == 0);
            break;
        default: return 2;
        }
    }
    NEED(threads > 0 && processes > 0 && threads * processes <= WORKERS_MAX && seconds > 0);
    limit_seconds((unsigned)seconds + 60);
    for (int k = 0; k < KINDS; ++k) {
        if (only < 0 || only == k) {
            run_kind((enum kind)k, processes, threads, only < 0 ? seconds / KINDS : seconds);
        }
    }
    return conclusion("contention");
}
