/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client of the C library that does one step for each line of its standard input, and says
 * `STEP STATUS` when the step is done: init, take, keep, drop, end.
 *
 *     client IP PORT FILE [FOLDER]
 *
 * While it believes that it holds the lock it holds a flock on FILE too; where another has that,
 * it ends with 99. With FOLDER, which has ca.crt, app.crt and app.key, it speaks TLS.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "dlock_client_api.h"

enum { BESIDE = 99, LEASE_S = 10, PATIENCE_S = 15 };

static int client_id, lock_id, file;
static bool is_got;

/* What is denied once to this program itself, and not to the library, is done again. */
static int insists(int (*call)(int, int), int first, int second)
{
    int status = -1;
    for (int tries = 0; status != 0 && tries < 3; ++tries) {
        status = call(first, second);
    }
    return status;
}

static void believe(int status)
{
    if (status == DLOCK_SUCCESS && insists(flock, file, LOCK_EX | LOCK_NB) != 0) {
        _exit(BESIDE);
    }
}

static int next_step(char *step, size_t room)
{
    ssize_t length = -1;
    for (int tries = 0; length < 0 && tries < 3; ++tries) {
        length = read(STDIN_FILENO, step, room - 1);
    }
    step[length > 0 ? length - 1 : 0] = 0; /* a line has come whole */
    return length > 0;
}

static void tell(const char *step, int status)
{
    char line[64];
    int length = snprintf(line, sizeof(line), "%s %d\n", step, status);
    for (int tries = 0; tries < 3 && write(STDOUT_FILENO, line, length) != length; ++tries) {
    }
}

/* The key has no password. */
static void password(char **pwd, int *len)
{
    *pwd = NULL;
    *len = 0;
}

static void erase(void *pwd, int len)
{
    (void)pwd;
    (void)len;
}

static int init(const struct client_cfg *cfg, const char *ip)
{
    int status = dclient_lib_init(cfg);
    if (status == DLOCK_SUCCESS) {
        status = client_init(&client_id, ip);
    }
    if (status != DLOCK_SUCCESS) {
        dclient_lib_deinit();
    }
    return status;
}

static int take(void)
{
    char name[] = "fault";
    struct lock_desc desc = {name, sizeof(name) - 1, DLOCK_ATOMIC, LEASE_S};
    if (!is_got) {
        int status = get_lock(client_id, &desc, &lock_id);
        if (status != DLOCK_SUCCESS) {
            return status;
        }
        is_got = true;
    }
    struct lock_request take = {lock_id, LOCK_EXCLUSIVE, LEASE_S};
    atomic_state state;
    int status = trylock(client_id, &take, &state);
    if (status == DLOCK_ALREADY_LOCKED) {
        status = DLOCK_SUCCESS;
    }
    believe(status);
    return status;
}

/* Is the lock still held? A primary that recovers is waited for, half as long as it waits itself. */
static int keep(void)
{
    struct lock_request more = {lock_id, EXTEND_LOCK_EXCLUSIVE, LEASE_S};
    atomic_state state;
    time_t until = time(NULL) + PATIENCE_S;
    int status;
    do {
        struct timespec pause = {0, 20000000};
        status = lock_extend(client_id, &more, &state);
        if (status != DLOCK_NOT_READY && status != DLOCK_BAD_RESPONSE) {
            break;
        }
        nanosleep(&pause, NULL);
    } while (time(NULL) < until);
    if (status != DLOCK_SUCCESS) {
        insists(flock, file, LOCK_UN);
    }
    return status;
}

static int drop(void)
{
    atomic_state state;
    insists(flock, file, LOCK_UN);
    int status = unlock(client_id, lock_id, &state);
    return status == DLOCK_ALREADY_UNLOCKED ? DLOCK_SUCCESS : status;
}

static int end(void)
{
    int status = client_deinit(client_id);
    dclient_lib_deinit();
    return status;
}

int main(int argc, char **argv)
{
    static char ca[4096], cert[4096], key[4096];
    struct client_cfg cfg;
    char step[16];
    if (argc < 4) {
        return 2;
    }
    memset(&cfg, 0, sizeof(cfg));
    cfg.log_level = 4;
    cfg.primary_port = atoi(argv[2]);
    file = open(argv[3], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (argc > 4) {
        snprintf(ca, sizeof(ca), "%s/ca.crt", argv[4]);
        snprintf(cert, sizeof(cert), "%s/app.crt", argv[4]);
        snprintf(key, sizeof(key), "%s/app.key", argv[4]);
        cfg.ssl = (struct ssl_cfg){.ssl_enable = true, .ca_path = ca, .cert_path = cert,
                                   .prkey_path = key, .prkey_pwd_cb = password,
                                   .erase_prkey_cb = erase};
    }
    while (next_step(step, sizeof(step))) {
        int status = -1;
        switch (step[0]) {
        case 'i': status = init(&cfg, argv[1]); break;
        case 't': status = take(); break;
        case 'k': status = keep(); break;
        case 'd': status = drop(); break;
        case 'e': status = end(); break;
        }
        tell(step, status);
    }
    return 0;
}
