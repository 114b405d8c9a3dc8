/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What clients leave behind that end, cleanly or by kill -9: nothing that holds others up. */
#include "primary_process.h"
#include "scenario_more.h"

static const dlock_type types[] = {DLOCK_ATOMIC, DLOCK_RW, DLOCK_FAIR};

/* Held locks are free, and names without references too, of every type. */
static void clean_end(int other)
{
    char name[24];
    int id = 0;
    for (int round = 0; round < 20; ++round) {
        int client = new_client();
        for (int i = 0; i < 3; ++i) {
            snprintf(name, sizeof(name), "left %d", i);
            id = must_get(client, name, types[(i + round) % 3]); /* another type each time */
            EQ(try_op(client, id, LOCK_EXCLUSIVE, 1000), 0);
        }
        snprintf(name, sizeof(name), "shared %d", round);
        id = must_get(client, name, DLOCK_RW);
        EQ(must_get(other, name, DLOCK_RW), id);
        EQ(try_op(client, id, LOCK_SHARED, 1000), 0);
        EQ(try_op(other, id, LOCK_EXCLUSIVE, 1000), DLOCK_FAIL);
        EQ(client_deinit(client), 0);
        EQ(lock_op(other, id, LOCK_EXCLUSIVE, 1000), 0);
        EQ(unlock_op(other, id), 0);
        EQ(release_lock(other, id), 0);
    }
}

static void clean_end_of_a_waiter(int holder, int other)
{
    int client = new_client(), id = must_get(client, "queue", DLOCK_FAIR);
    must_get(holder, "queue", DLOCK_FAIR);
    must_get(other, "queue", DLOCK_FAIR);
    EQ(try_op(holder, id, LOCK_EXCLUSIVE, 60), 0);
    EQ(try_op(client, id, LOCK_EXCLUSIVE, 60), DLOCK_EAGAIN);
    EQ(try_op(other, id, LOCK_EXCLUSIVE, 60), DLOCK_EAGAIN);
    EQ(client_deinit(client), 0); /* with its ticket */
    EQ(unlock_op(holder, id), 0);
    EQ(lock_op(other, id, LOCK_EXCLUSIVE, 60), 0);
    EQ(unlock_op(other, id), 0);
}

/* A process with a client that takes locks, says so, and waits for its end. */
static void victim(int port, int say)
{
    char byte = 'v';
    alarm(60);
    EQ(init_client_library(port), 0);
    int me = new_client();
    EQ(try_op(me, must_get(me, "of the dead, leased", DLOCK_ATOMIC), LOCK_EXCLUSIVE, 3), 0);
    EQ(try_op(me, must_get(me, "of the dead, fair", DLOCK_FAIR), LOCK_EXCLUSIVE, 3), 0);
    EQ(try_op(me, must_get(me, "of the dead, read", DLOCK_FAIR), LOCK_SHARED, 3), 0);
    EQ(try_op(me, must_get(me, "queue", DLOCK_FAIR), LOCK_EXCLUSIVE, 60), DLOCK_EAGAIN);
    EQ(try_op(me, must_get(me, "of the dead, rw", DLOCK_RW), LOCK_EXCLUSIVE, 3), 0);
    if (checks_failed != 0 || write(say, &byte, 1) != 1) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

/* A hold passes on when its lease is over; a ticket soon after its turn has come. */
static void killed(pid_t pid, int listen, int holder, int other)
{
    static const char *const leased[] = {"of the dead, leased", "of the dead, fair",
                                         "of the dead, read"};
    char byte;
    int queue = 0, how = 0;
    get_named(holder, "queue", DLOCK_FAIR, &queue);
    NEED(read(listen, &byte, 1) == 1);
    EQ(try_op(other, queue, LOCK_EXCLUSIVE, 60), DLOCK_EAGAIN); /* behind the dead */
    NEED(kill(pid, SIGKILL) == 0 && waitpid(pid, &how, 0) == pid);
    EQ(unlock_op(holder, queue), 0);
    double start = seconds_now();
    EQ(lock_op(other, queue, LOCK_EXCLUSIVE, 60), 0);
    EQ(unlock_op(other, queue), 0);
    for (int i = 0; i < 3; ++i) {
        int id = must_get(other, leased[i], i == 0 ? DLOCK_ATOMIC : DLOCK_FAIR);
        EQ(lock_op(other, id, LOCK_EXCLUSIVE, 60), 0);
        EQ(unlock_op(other, id), 0);
    }
    CHECK_WITHIN(start, 10);
    const char *fabric = getenv("DLOCK_FABRIC");
    if (fabric == NULL || strcmp(fabric, "shm") == 0) {
        /* Over shared memory it is known that no process comes back for it. */
        int id = must_get(other, "of the dead, rw", DLOCK_RW);
        EQ(lock_op(other, id, LOCK_EXCLUSIVE, 60), 0);
        EQ(unlock_op(other, id), 0);
    }
}

int main(int argc, char **argv)
{
    int port = free_port(), go[2], told[2];
    char byte = 'g';
    be_primary_if_asked(argc, argv);
    limit_seconds(60);
    NEED(pipe(go) == 0 && pipe(told) == 0);
    fflush(NULL);
    pid_t pid = fork(); /* before there are threads */
    NEED(pid >= 0);
    if (pid == 0) {
        close(go[1]);
        if (read(go[0], &byte, 1) != 1) {
            _exit(0);
        }
        victim(port, told[1]);
    }
    fcntl(go[1], F_SETFD, FD_CLOEXEC);
    close(told[1]);
    struct primary_process primary = spawn_primary(port, 0);
    EQ(init_client_library(port), 0);
    int holder = new_client(), other = new_client();
    clean_end(other);
    clean_end_of_a_waiter(holder, other);
    EQ(try_op(holder, must_get(new_client(), "queue", DLOCK_FAIR), LOCK_EXCLUSIVE, 60), 0);
    NEED(write(go[1], &byte, 1) == 1);
    killed(pid, told[0], holder, other);
    end_primary(primary);
    dclient_lib_deinit();
    return conclusion("endings");
}
