/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the libraries do to the process they live in: nothing. Standard output, signals, locale,
 * descriptors and threads are as before; signals that arrive during calls do them no harm.
 */
#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "check.h"

static volatile sig_atomic_t ticks;

static void tick(int signal_number)
{
    (void)signal_number;
    ++ticks;
}

static int entries_of(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    NEED(dir != NULL);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += entry->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

/* Threads that were told to end may need a moment. */
static int threads_become(int want)
{
    double end = seconds_now() + 10;
    while (entries_of("/proc/self/task") != want && seconds_now() < end) {
        sleep_seconds(0.01);
    }
    return entries_of("/proc/self/task");
}

struct surroundings {
    struct sigaction actions[32];
    sigset_t blocked;
    char locale[64];
    char folder[4096];
    mode_t mask;
};

static void look_around(struct surroundings *s)
{
    memset(s, 0, sizeof(*s));
    for (int i = 1; i < 32; ++i) {
        sigaction(i, NULL, &s->actions[i]);
    }
    pthread_sigmask(SIG_BLOCK, NULL, &s->blocked);
    snprintf(s->locale, sizeof(s->locale), "%s", setlocale(LC_ALL, NULL));
    NEED(getcwd(s->folder, sizeof(s->folder)) != NULL);
    s->mask = umask(022);
    umask(s->mask);
}

static void expect_the_same(const struct surroundings *before)
{
    struct surroundings now;
    look_around(&now);
    for (int i = 1; i < 32; ++i) {
        CHECK(now.actions[i].sa_handler == before->actions[i].sa_handler);
        EQ(sigismember(&now.blocked, i), sigismember(&before->blocked, i));
    }
    EQ(strcmp(now.locale, before->locale), 0);
    EQ(strcmp(now.folder, before->folder), 0);
    EQ(now.mask, before->mask);
}

/* Every kind of call, so that each has its chance to be interrupted. */
static void all_kinds_of_calls(int a, int b, int round)
{
    char name[32];
    struct umo_atomic64_desc desc;
    int object = 0;
    uint64_t value;
    snprintf(name, sizeof(name), "round %d", round);
    int id = must_get(a, name, round % 2 ? DLOCK_ATOMIC : DLOCK_FAIR);
    must_get(b, name, round % 2 ? DLOCK_ATOMIC : DLOCK_FAIR);
    EQ(lock_op(a, id, LOCK_EXCLUSIVE, 20), 0);
    EQ(try_op(b, id, LOCK_EXCLUSIVE, 20), round % 2 ? DLOCK_FAIL : DLOCK_EAGAIN);
    EQ(extend_op(a, id, EXTEND_LOCK_EXCLUSIVE, 20), 0);
    EQ(async_op(a, id, UNLOCK, 0), 0);
    EQ(async_result(a), 0);
    EQ(lock_op(b, id, LOCK_EXCLUSIVE, 20), 0);
    EQ(unlock_op(b, id), 0);
    desc.p_desc = name;
    desc.len = (uint32_t)strlen(name);
    desc.lease_time = 10;
    EQ(umo_atomic64_create(a, &desc, 1, &object), 0);
    EQ(umo_atomic64_get(b, &desc, &object), 0);
    EQ(umo_atomic64_faa(b, object, 1, &value), 0);
    EQ(umo_atomic64_release(b, object), 0);
    EQ(umo_atomic64_destroy(a, object), 0);
    EQ(client_heartbeat(a, 5), 0);
    EQ(release_lock(a, id), 0);
    EQ(release_lock(b, id), 0);
}

struct holder {
    int client, id;
};

static void *unlock_later(void *arg)
{
    struct holder *h = (struct holder *)arg;
    sleep_seconds(0.5);
    EQ(unlock_op(h->client, h->id), 0);
    return NULL;
}

/* A timer that fires a thousand times a second, without SA_RESTART. */
static void under_signals(int port)
{
    struct sigaction action;
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    memset(&action, 0, sizeof(action));
    action.sa_handler = tick;
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    NEED(setitimer(ITIMER_REAL, &often, NULL) == 0);
    int server = start_primary(port); /* its threads get the signals, too */
    int a = new_client(), b = new_client();
    double end = seconds_now() + 1.0;
    int rounds = 0;
    for (; seconds_now() < end || ticks < 100; ++rounds) {
        all_kinds_of_calls(a, b, rounds);
    }
    /* A wait of half a second survives hundreds of interruptions. */
    struct holder h = {a, must_get(a, "waited for", DLOCK_ATOMIC)};
    must_get(b, "waited for", DLOCK_ATOMIC);
    EQ(lock_op(a, h.id, LOCK_EXCLUSIVE, 60), 0);
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, unlock_later, &h) == 0);
    double start = seconds_now();
    EQ(lock_op(b, h.id, LOCK_EXCLUSIVE, 60), 0);
    CHECK_WITHIN(start, 4.5);
    pthread_join(thread, NULL);
    EQ(unlock_op(b, h.id), 0);
    EQ(client_reinit(a, HOST), 0);
    EQ(client_deinit(a), 0);
    EQ(client_deinit(b), 0);
    EQ(server_stop(server), 0);
    NEED(setitimer(ITIMER_REAL, &never, NULL) == 0);
    NEED(signal(SIGALRM, SIG_DFL) != SIG_ERR);
    CHECK(ticks >= 100);
    printf("  %d rounds under %d signals\n", rounds, (int)ticks);
}

int main(void)
{
    struct surroundings before;
    struct stat written;
    char captured[] = "/tmp/dlock-guest-XXXXXX";
    int port = free_port(), file = mkstemp(captured), out = dup(1);
    NEED(file >= 0 && out >= 0);
    unlink(captured);
    setlocale(LC_ALL, "C");
    fflush(stdout);
    dup2(file, 1); /* from here on nothing may appear on standard output */
    look_around(&before);
    int descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");

    for (int round = 0; round < 3; ++round) {
        EQ(dserver_lib_init(1), 0);
        EQ(init_client_library(port), 0);
        int server = start_primary(port), a = new_client(), b = new_client(), refused = 0;
        all_kinds_of_calls(a, b, round);
        expect_the_same(&before);
        /* every kind of end: with and without deinit, the primary before or after its clients */
        if (round == 0) {
            EQ(client_deinit(a), 0);
            EQ(client_deinit(b), 0);
            EQ(server_stop(server), 0);
        } else if (round == 1) {
            EQ(server_stop(server), 0);
            EQ(client_init(&refused, HOST), DLOCK_NOT_READY);
            EQ(client_deinit(a), DLOCK_BAD_RESPONSE);
        }
        dclient_lib_deinit();
        dserver_lib_deinit();
        EQ(threads_become(threads), threads);
        if (round == 0) { /* what is made once in a process */
            CHECK(entries_of("/proc/self/fd") <= descriptors + 2);
            descriptors = entries_of("/proc/self/fd");
        }
        EQ(entries_of("/proc/self/fd"), descriptors);
        expect_the_same(&before);
    }

    EQ(dserver_lib_init(1), 0);
    EQ(init_client_library(port), 0);
    fflush(stdout);
    EQ(fstat(file, &written), 0);
    EQ(written.st_size, 0);
    dup2(out, 1);
    limit_seconds(60);
    alarm(0); /* the timer below is the same one */
    under_signals(port);
    limit_seconds(60);
    /* The process may end with clients and primaries alive. */
    start_primary(port);
    int last = new_client(), id = must_get(last, "held at the end", DLOCK_RW);
    EQ(lock_op(last, id, LOCK_EXCLUSIVE, 600), 0);
    return conclusion("good_guest");
}
