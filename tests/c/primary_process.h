/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A primary in a process of its own, which can be stopped, continued and killed. */
#ifndef DLOCK_TESTS_PRIMARY_PROCESS_H
#define DLOCK_TESTS_PRIMARY_PROCESS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

struct primary_process {
    pid_t pid;
    int leash; /* the process ends when this is closed, however the test ends */
};

static char *this_program; /* not /proc/self/exe, which under valgrind is valgrind */

/* For main(): runs a primary if the arguments are those of spawn_primary(), and then exits. */
static inline void be_primary_if_asked(int argc, char **argv)
{
    struct server_cfg cfg;
    int id = 0;
    char byte = 'r';
    this_program = argv[0];
    if (argc != 4 || strcmp(argv[1], "primary") != 0) {
        return;
    }
    fill_server_cfg(&cfg, atoi(argv[2]));
    cfg.primary.recovery_client_num = (uint32_t)atoi(argv[3]);
    if (dserver_lib_init(1) != 0 || start_server(&cfg, &id) != 0 || write(1, &byte, 1) != 1) {
        _exit(3);
    }
    while (read(0, &byte, 1) > 0) {
    }
    dserver_lib_deinit();
    exit(0);
}

/* Starts this program again as a primary and waits until it serves. */
static inline struct primary_process spawn_primary(int port, unsigned recovery_client_num)
{
    struct primary_process primary;
    int leash[2], ready[2];
    char byte, port_text[16], number_text[16];
    char mode[] = "primary";
    char *args[] = {this_program, mode, port_text, number_text, NULL};
    snprintf(port_text, sizeof(port_text), "%d", port);
    snprintf(number_text, sizeof(number_text), "%u", recovery_client_num);
    NEED(pipe(leash) == 0 && pipe(ready) == 0);
    fcntl(leash[1], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    primary.pid = fork();
    NEED(primary.pid >= 0);
    if (primary.pid == 0) {
        dup2(leash[0], 0);
        dup2(ready[1], 1);
        for (int fd = 3; fd < 1024; ++fd) {
            close(fd);
        }
        alarm(0);
        execv(args[0], args);
        _exit(127);
    }
    close(leash[0]);
    close(ready[1]);
    primary.leash = leash[1];
    NEED(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    return primary;
}

/* Returns when all of its threads stand still. */
static inline void stop_primary(struct primary_process primary)
{
    int how = 0;
    NEED(kill(primary.pid, SIGSTOP) == 0);
    NEED(waitpid(primary.pid, &how, WUNTRACED) == primary.pid && WIFSTOPPED(how));
}

static inline void continue_primary(struct primary_process primary)
{
    NEED(kill(primary.pid, SIGCONT) == 0);
}

/* kill -9, and the funeral. */
static inline void kill_primary(struct primary_process primary)
{
    int how = 0;
    NEED(kill(primary.pid, SIGKILL) == 0);
    NEED(waitpid(primary.pid, &how, 0) == primary.pid);
    EQ(WTERMSIG(how), SIGKILL);
    close(primary.leash);
}

/* An orderly end. */
static inline void end_primary(struct primary_process primary)
{
    int how = -1;
    close(primary.leash);
    NEED(waitpid(primary.pid, &how, 0) == primary.pid);
    EQ(how, 0);
}

#endif
