/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A server that forks for every connection: each child is a client of its own, and a read-write
 * lock guards the balance in the memory that all share (start dlock_primary_test first).
 *
 *     connection_server [-i IP] [-p PORT]
 *
 * Visitors ask "+" (add one), "?" (what is it), and close; one of them is cut off.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dlock_client_api.h"

enum { VISITORS = 6, VISITS = 40, LEASE_S = 30 };

/* Not atomic, on purpose: the lock is what keeps it whole. */
static volatile long *balance;

static void expect(const char *what, long long got, long long wanted)
{
    if (got != wanted) {
        fprintf(stderr, "%d: %s: %lld (0x%llx) instead of %lld\n", (int)getpid(), what, got,
                (unsigned long long)got, wanted);
        exit(1);
    }
}

/* lock() gives up after 5 s, and the connection does not. */
static void acquire(int client, int lock_id, enum lock_ops op)
{
    struct lock_request req = {lock_id, op, LEASE_S};
    rw_state state;
    int status;
    do {
        status = lock(client, &req, &state);
    } while (status == DLOCK_FAIL);
    expect("lock", status, DLOCK_SUCCESS);
}

/* A child: serves one connection. */
static void serve(int connection, const char *ip, const struct client_cfg *cfg)
{
    char name[] = "example: balance", asked;
    struct lock_desc desc = {name, sizeof(name) - 1, DLOCK_RW, 0};
    rw_state state;
    int client, lock_id;
    expect("dclient_lib_init", dclient_lib_init(cfg), 0);
    expect("client_init", client_init(&client, ip), 0);
    expect("get_lock", get_lock(client, &desc, &lock_id), 0);
    while (read(connection, &asked, 1) == 1) {
        enum lock_ops op = asked == '+' ? LOCK_EXCLUSIVE : LOCK_SHARED;
        acquire(client, lock_id, op);
        long seen = *balance;
        if (asked == '+') {
            *balance = ++seen;
        }
        expect("unlock", unlock(client, lock_id, &state), DLOCK_SUCCESS);
        if (write(connection, &seen, sizeof(seen)) != sizeof(seen)) {
            break;
        }
    }
    expect("release_lock", release_lock(client, lock_id), 0);
    expect("client_deinit", client_deinit(client), 0);
    dclient_lib_deinit();
    exit(0);
}

/* A visitor, in a process of its own: what it is told never goes down. */
static void visit(const struct sockaddr_in *address)
{
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    long last = 0, told;
    expect("connect", connect(connection, (const struct sockaddr *)address, sizeof(*address)), 0);
    for (int i = 0; i < VISITS; ++i) {
        char asked = i % 2 == 0 ? '+' : '?';
        expect("asked", write(connection, &asked, 1), 1);
        expect("told", read(connection, &told, sizeof(told)), sizeof(told));
        expect("a balance that grows", i % 2 == 0 ? told > last : told >= last, 1);
        last = told;
    }
    exit(0);
}

static pid_t forked(void)
{
    fflush(NULL);
    pid_t pid = fork();
    expect("fork", pid >= 0, 1);
    if (pid == 0) {
        alarm(120); /* also if the parent ends */
    }
    return pid;
}

int main(int argc, char **argv)
{
    const char *ip = "127.0.0.1";
    struct client_cfg cfg;
    struct sockaddr_in address;
    socklen_t len = sizeof(address);
    int letter, failed = 0, how;
    memset(&cfg, 0, sizeof(cfg));
    cfg.log_level = 4;
    while ((letter = getopt(argc, argv, "i:p:")) != -1) {
        switch (letter) {
        case 'i': ip = optarg; break;
        case 'p': cfg.primary_port = atoi(optarg); break;
        default: fprintf(stderr, "%s [-i IP] [-p PORT]\n", argv[0]); return 2;
        }
    }
    balance = mmap(NULL, sizeof(*balance), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect("mmap", balance != MAP_FAILED, 1);
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    expect("bind", bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    expect("listen", listen(listener, VISITORS + 1), 0);
    expect("getsockname", getsockname(listener, (struct sockaddr *)&address, &len), 0);

    for (int i = 0; i < VISITORS; ++i) {
        if (forked() == 0) {
            visit(&address);
        }
    }
    int cut_off = socket(AF_INET, SOCK_STREAM, 0);
    expect("connect", connect(cut_off, (struct sockaddr *)&address, sizeof(address)), 0);
    expect("asked", write(cut_off, "+", 1), 1);
    close(cut_off);
    for (int i = 0; i < VISITORS + 1; ++i) {
        int connection = accept(listener, NULL, NULL);
        expect("accept", connection >= 0, 1);
        if (forked() == 0) {
            signal(SIGPIPE, SIG_IGN); /* of the visitor that does not wait for its answer */
            close(listener);
            serve(connection, ip, &cfg);
        }
        close(connection);
    }
    for (int i = 0; i < 2 * VISITORS + 1; ++i) {
        expect("wait", wait(&how) > 0, 1);
        failed += how != 0;
    }
    expect("processes that failed", failed, 0);
    expect("the balance", *balance, VISITORS * VISITS / 2 + 1);
    printf("connection server: %d connections, balance %ld\n", VISITORS + 1, *balance);
    return 0;
}
