/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Programs that know nothing of failovers, while the primary is killed again and again: with nothing
 * but DLOCK_PRIMARIES in their environment they lose no lock, and wait for none in vain. */
#include <sys/mman.h>

#include "primary_process.h"

#define WORKERS 4
#define LOCKS 3
#define FAILOVERS 6
#define CALL_MAX_S 60.0

/* What the locks protect. */
struct shared {
    volatile int inside[LOCKS], turns[WORKERS], over, wrong;
    double longest_s[WORKERS];
};

static struct shared *shared;

/* As a program of the original is written: lock, work, unlock. */
static void work(int n)
{
    static const dlock_type types[LOCKS] = {DLOCK_ATOMIC, DLOCK_RW, DLOCK_FAIR};
    static const char *const names[LOCKS] = {"u atomic", "u rw", "u fair"};
    int ids[LOCKS], client = new_client();
    for (int i = 0; i < LOCKS; ++i) {
        ids[i] = must_get(client, names[i], types[i]);
    }
    for (int turn = 0; !shared->over; ++turn) {
        int which = (turn + n) % LOCKS, status;
        double start = seconds_now();
        do { /* another client has it for longer than a call waits */
            status = lock_op(client, ids[which], LOCK_EXCLUSIVE, 600);
        } while (status == DLOCK_FAIL || status == DLOCK_EAGAIN);
        EQ(status, 0);
        EQ(__sync_fetch_and_add(&shared->inside[which], 1), 0);
        if (turn % 16 == 0) {
            usleep(2000);
        }
        __sync_fetch_and_sub(&shared->inside[which], 1);
        EQ(unlock_op(client, ids[which]), 0);
        shared->turns[n]++;
        if (seconds_now() - start > shared->longest_s[n]) {
            shared->longest_s[n] = seconds_now() - start;
        }
    }
    EQ(client_deinit(client), 0);
}

static int total(void)
{
    int sum = 0;
    for (int n = 0; n < WORKERS; ++n) {
        sum += shared->turns[n];
    }
    return sum;
}

/* Every worker has had a turn since. */
static void all_go_on(const int *before)
{
    double start = seconds_now();
    for (int n = 0; n < WORKERS; ++n) {
        while (shared->turns[n] <= before[n] + LOCKS) {
            CHECK_WITHIN(start, CALL_MAX_S);
            usleep(1000);
        }
    }
}

int main(int argc, char **argv)
{
    char primaries[32];
    pid_t workers[WORKERS];
    int port = free_port(), before[WORKERS] = {0};
    struct primary_process primary;
    be_primary_if_asked(argc, argv);
    limit_seconds(240);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
    snprintf(primaries, sizeof(primaries), "127.0.0.1:%d", port);
    setenv("DLOCK_PRIMARIES", primaries, 1);
    primary = spawn_primary(port, 0);
    for (int n = 0; n < WORKERS; ++n) {
        fflush(NULL);
        workers[n] = fork();
        NEED(workers[n] >= 0);
        if (workers[n] == 0) {
            alarm(0);
            limit_seconds(200);
            NEED(init_client_library(port) == 0);
            work(n);
            dclient_lib_deinit();
            exit(checks_failed == 0 ? 0 : 1);
        }
    }
    all_go_on(before);
    for (int i = 0; i < FAILOVERS; ++i) {
        usleep(30000 + 40000 * i);
        kill_primary(primary);
        for (int n = 0; n < WORKERS; ++n) {
            before[n] = shared->turns[n];
        }
        usleep(i % 2 == 0 ? 0 : 150000);
        primary = spawn_primary(port, WORKERS);
        all_go_on(before);
    }
    shared->over = 1;
    for (int n = 0; n < WORKERS; ++n) {
        int how = 0;
        NEED(waitpid(workers[n], &how, 0) == workers[n]);
        CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        printf("  worker %d: %d turns, the longest %.2f s\n", n, shared->turns[n],
               shared->longest_s[n]);
    }
    CHECK(total() > WORKERS * FAILOVERS);
    kill_primary(primary);
    return conclusion("unchanged");
}
