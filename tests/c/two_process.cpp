// SPDX-License-Identifier: MIT OR Apache-2.0
// 8 clients against a primary in another process: two_process PROGRAM [ARGUMENTS]
// PROGRAM must serve at the address and port that it finds after -i and -p.
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <vector>

#include "scenario_ladders.h"
#include "scenario_more.h"

// Starts the primary; its end is tied to the pipe on its standard input.
static pid_t start_program(int argc, char **argv, int port, int *leash)
{
    int ends[2];
    std::vector<char *> args(argv + 1, argv + argc);
    static char i[] = "-i", p[] = "-p", host[] = HOST;
    static char number[16];
    snprintf(number, sizeof(number), "%d", port);
    for (char *arg : {i, host, p, number}) {
        args.push_back(arg);
    }
    args.push_back(nullptr);
    NEED(pipe(ends) == 0);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        dup2(ends[0], 0);
        close(ends[0]);
        alarm(300);
        execv(args[0], args.data());
        _exit(127);
    }
    close(ends[0]);
    *leash = ends[1];
    return pid;
}

// A client as soon as the primary listens.
static int first_client()
{
    double end = seconds_now() + 20 * slowness();
    int id = -7, status;
    do {
        status = client_init(&id, HOST);
    } while (status == DLOCK_NOT_READY && seconds_now() < end);
    EQ(status, 0);
    return id;
}

int main(int argc, char **argv)
{
    NEED(argc > 1);
    limit_seconds(120);
    int port = free_port(), leash = -1;
    ladder_without_library();
    ladder_of_library_init(port);
    ladder_without_client();
    pid_t pid = start_program(argc, argv, port, &leash);
    int client = first_client();
    NEED(client > 0);
    ladder_without_lock(client);
    whole_scenario();

    // The primary vanishes: calls end, with the codes for that, and in time.
    int lock_id = must_get(client, "orphan", DLOCK_RW);
    kill(pid, SIGKILL);
    int how = 0;
    NEED(waitpid(pid, &how, 0) == pid);
    close(leash);
    double start = seconds_now();
    EQ(client_heartbeat(client, 2), DLOCK_BAD_RESPONSE);
    EQ(release_lock(client, lock_id), DLOCK_BAD_RESPONSE);
    EQ(client_reinit(client, HOST), DLOCK_NOT_READY);
    int other = -7;
    EQ(client_init(&other, HOST), DLOCK_NOT_READY);
    EQ(client_deinit(client), DLOCK_BAD_RESPONSE);
    EQ(client_deinit(client), -1); // ended with any result
    CHECK_WITHIN(start, 15);
    dclient_lib_deinit();
    return conclusion("two_process");
}
