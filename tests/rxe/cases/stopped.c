/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Uncontended operations while the primary does not run: stopped HOST PORT PID OPERATIONS
 *
 * PID is the primary's process; it is stopped by SIGSTOP, and its CPU time must not change.
 * Prints the median and the rate; acquires and releases count as one operation each.
 */
#include <signal.h>

#include "check.h"

struct proc {
    char state;
    unsigned long ticks;
};

/* Of /proc/PID/stat, whose second field is a name in parentheses. */
static struct proc proc_of(int pid)
{
    char path[64], text[1024];
    struct proc found = {0};
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    NEED(file != NULL && fgets(text, sizeof(text), file) != NULL);
    fclose(file);
    const char *rest = strrchr(text, ')');
    NEED(rest != NULL);
    NEED(sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &found.state,
                &user, &system) == 3);
    found.ticks = user + system;
    return found;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    NEED(argc == 5);
    int pid = atoi(argv[3]), client = 0;
    long cycles = atol(argv[4]) / 2;
    NEED(pid > 1 && cycles > 0);
    limit_seconds(400);
    float *us = malloc((size_t)cycles * sizeof(*us));
    NEED(us != NULL && init_client_library(atoi(argv[2])) == 0);
    NEED(client_init(&client, argv[1]) == 0);
    int lock_id = must_get(client, "stopped", DLOCK_ATOMIC);

    NEED(kill(pid, SIGSTOP) == 0);
    double until = seconds_now() + 10;
    while (proc_of(pid).state != 'T' && seconds_now() < until) {
        sleep_seconds(0.01);
    }
    struct proc before = proc_of(pid);
    EQ(before.state, 'T');
    double begin = seconds_now();
    long done = 0;
    for (; done < cycles && checks_failed == 0; ++done) {
        double since = seconds_now();
        EQ(try_op(client, lock_id, LOCK_EXCLUSIVE, 36000), 0);
        EQ(unlock_op(client, lock_id), 0);
        us[done] = (float)((seconds_now() - since) * 1e6);
    }
    double seconds = seconds_now() - begin;
    struct proc after = proc_of(pid);
    EQ(after.state, 'T');
    EQ(after.ticks, before.ticks);
    NEED(kill(pid, SIGCONT) == 0);
    EQ(done, cycles);

    qsort(us, (size_t)done, sizeof(*us), by_size);
    printf("  %ld operations in %.1f s, the primary stopped and at %lu ticks of CPU time before and "
           "after; acquire and release: median %.1f us\n",
           2 * done, seconds, after.ticks, (double)us[done / 2]);
    /* It serves again. */
    EQ(client_heartbeat(client, 30), 0);
    EQ(client_deinit(client), 0);
    dclient_lib_deinit();
    free(us);
    return conclusion("stopped");
}
