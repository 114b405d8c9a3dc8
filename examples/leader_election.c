/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Candidates in processes of their own elect a leader: who holds an atomic lock leads, and keeps
 * its lease alive. The leader is killed twice, and a successor takes over when the lease is over.
 * Every reign has a number from a state object (start dlock_primary_test first).
 *
 *     leader_election [-i IP] [-p PORT]
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock_client_api.h"

enum { CANDIDATES = 3, REIGNS = 3, LEASE_S = 2, PATIENCE_MS = 30000 };

static void expect(const char *what, long long got, long long wanted)
{
    if (got != wanted) {
        fprintf(stderr, "%s: %lld (0x%llx) instead of %lld\n", what, got, (unsigned long long)got,
                wanted);
        exit(1);
    }
}

static void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* What a candidate tells: its process, and the number of its reign. */
struct news {
    pid_t leader;
    uint64_t reign;
};

/* Leads until it is killed, or until an extension says that the lease is lost. */
static void lead(int client, int lock_id, int object, int news)
{
    struct lock_request more = {lock_id, EXTEND_LOCK_EXCLUSIVE, LEASE_S};
    struct news told = {getpid(), 0};
    atomic_state state;
    expect("umo_atomic64_faa", umo_atomic64_faa(client, object, 1, &told.reign), 0);
    if (write(news, &told, sizeof(told)) != sizeof(told)) {
        _exit(0); /* the reader is gone */
    }
    while (lock_extend(client, &more, &state) == DLOCK_SUCCESS) {
        expect("the holder", state.client_id, client);
        pause_ms(LEASE_S * 1000 / 4);
    }
}

static void candidate(const char *ip, const struct client_cfg *cfg, int news)
{
    char name[] = "example: leader", counter[] = "example: reigns";
    struct lock_desc desc = {name, sizeof(name) - 1, DLOCK_ATOMIC, 0};
    struct umo_atomic64_desc reigns = {counter, sizeof(counter) - 1, 600};
    int client, lock_id, object;
    expect("dclient_lib_init", dclient_lib_init(cfg), 0);
    expect("client_init", client_init(&client, ip), 0);
    expect("get_lock", get_lock(client, &desc, &lock_id), 0);
    int made = umo_atomic64_create(client, &reigns, 1, &object);
    if (made != DLOCK_SUCCESS && made != DLOCK_OBJECT_ALREADY_EXISTED) {
        expect("umo_atomic64_create", made, 0);
    }
    expect("umo_atomic64_get", umo_atomic64_get(client, &reigns, &object), 0);
    for (;;) {
        struct lock_request take = {lock_id, LOCK_EXCLUSIVE, LEASE_S};
        atomic_state state;
        int status = lock(client, &take, &state); /* waits for 5 s */
        if (status == DLOCK_SUCCESS) {
            lead(client, lock_id, object, news);
        } else {
            expect("lock", status, DLOCK_FAIL);
        }
    }
}

static struct news next_news(int news)
{
    struct pollfd event = {news, POLLIN, 0};
    struct news told;
    expect("news in time", poll(&event, 1, PATIENCE_MS), 1);
    expect("whole news", read(news, &told, sizeof(told)), sizeof(told));
    return told;
}

int main(int argc, char **argv)
{
    const char *ip = "127.0.0.1";
    struct client_cfg cfg;
    pid_t candidates[CANDIDATES];
    int ends[2], letter;
    memset(&cfg, 0, sizeof(cfg));
    cfg.log_level = 4;
    while ((letter = getopt(argc, argv, "i:p:")) != -1) {
        switch (letter) {
        case 'i': ip = optarg; break;
        case 'p': cfg.primary_port = atoi(optarg); break;
        default: fprintf(stderr, "%s [-i IP] [-p PORT]\n", argv[0]); return 2;
        }
    }
    expect("pipe", pipe(ends), 0);
    for (int i = 0; i < CANDIDATES; ++i) {
        candidates[i] = fork();
        if (candidates[i] == 0) {
            close(ends[0]);
            alarm(120); /* also if the parent ends */
            candidate(ip, &cfg, ends[1]);
        }
    }
    close(ends[1]);
    uint64_t last = 0;
    for (int i = 0; i < REIGNS; ++i) {
        struct news told = next_news(ends[0]);
        expect("a reign after the one before", told.reign > last, 1);
        last = told.reign;
        printf("reign %llu: process %d\n", (unsigned long long)told.reign, (int)told.leader);
        /* While it is alive it stays: longer than a lease without news. */
        struct pollfd event = {ends[0], POLLIN, 0};
        expect("a second leader", poll(&event, 1, i == 0 ? LEASE_S * 1000 + 1500 : 0), 0);
        kill(told.leader, SIGKILL);
    }
    for (int i = 0; i < CANDIDATES; ++i) {
        kill(candidates[i], SIGKILL);
        expect("waitpid", waitpid(candidates[i], NULL, 0), candidates[i]);
    }
    printf("leader election: ok\n");
    return 0;
}
