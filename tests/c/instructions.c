/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Acquires and releases a lock that no other client has, 1,000 times in the function `cycles`,
 * whose instructions callgrind counts (run.sh). Its argument is a, r or f, an exclusive atomic,
 * read-write or fair lock, or s or h, a shared fair or read-write one. */
#include <string.h>
#include <time.h>

#include "check.h"

#define ROUNDS 1000

__attribute__((noinline)) static int cycles(int client, int lock_id, lock_ops op)
{
    struct lock_request req = request(lock_id, op, 30);
    union {
        atomic_state a;
        rw_state r;
        fairlock_state f;
    } state;
    int bad = 0;
    for (int i = 0; i < ROUNDS; ++i) {
        bad |= trylock(client, &req, &state);
        bad |= unlock(client, lock_id, &state);
    }
    return bad;
}

/* Near the turn of a second of the primary's clock, which is the wall clock as it was at its start,
 * a client reads its exact clock: 8 ticks, up to 80 ms, before. */
static void wait_for_the_first_half_of_a_second(void)
{
    struct timespec now, pause = {0, 1000000};
    do {
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_REALTIME, &now);
    } while (now.tv_nsec < 100000000 || now.tv_nsec > 300000000);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "a";
    lock_ops op = strchr("sh", *kind) ? LOCK_SHARED : LOCK_EXCLUSIVE;
    int type = *kind == 'a' ? DLOCK_ATOMIC : strchr("rh", *kind) ? DLOCK_RW : DLOCK_FAIR;
    int port = free_port();
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    int client = new_client();
    int lock_id = must_get(client, "its own", type);
    wait_for_the_first_half_of_a_second();
    EQ(cycles(client, lock_id, op), 0);
    EQ(client_deinit(client), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("instructions");
}
