/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A file store that checks fencing tokens, and writers that may stand still beyond their lease.
 *
 *     fenced_store serve SOCKET FOLDER
 *     fenced_store write SOCKET HOST PORT KEY [LEASE_MS]     (start dlockd first)
 *     dlock exec KEY -- fenced_store put SOCKET KEY VALUE
 *
 * `write` acquires the lock KEY, prints `holds TOKEN`, and then writes each line of its input under
 * this token. Stop it (Ctrl-Z), write by a second writer, and let the first one go on (`fg`): the
 * store refuses its line, although it has not asked whether its lease still runs. A lease alone
 * cannot prevent that write, because a client may be stopped between its last check and the write.
 *
 * The store keeps the token of the last write beside each value, and compares and writes in one
 * step. In PostgreSQL, with a column `token bigint`, this step is
 *
 *     UPDATE store SET value = $2, token = $1 WHERE key = $3 AND token <= $1;
 *
 * and an UPDATE of no row was refused. A new key needs its row first:
 *
 *     INSERT INTO store (key, value, token) VALUES ($3, '', 0) ON CONFLICT DO NOTHING;
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "dlock.h"

enum { KEY_MAX = 64, LINE_MAX_BYTES = 1024 };
#define LEASE_MS "1000"
#define PATIENCE DLOCK_S(60)

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* ---- the store ------------------------------------------------------------------------------ */

/* The token of the last write of this key; 0: it has no value. */
static uint64_t token_of(const char *key)
{
    uint64_t token = 0;
    FILE *file = fopen(key, "r");
    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &token) != 1)
            fail(key, "not a file of this store");
        fclose(file);
    }
    return token;
}

/* Value and token take the place of the old ones together; whether they are on the disk. */
static int replace(const char *key, uint64_t token, const char *value)
{
    char partial[KEY_MAX + 8]; /* a name with a dot is no key: it may be left over from a crash */
    snprintf(partial, sizeof partial, "%s.new", key);
    FILE *file = fopen(partial, "w");
    if (file == NULL)
        return 0;
    int written = fprintf(file, "%" PRIu64 "\n%s\n", token, value) > 0 && fflush(file) == 0 &&
                  fsync(fileno(file)) == 0;
    written = fclose(file) == 0 && written && rename(partial, key) == 0;
    FILE *folder = fopen(".", "r");
    written = folder != NULL && fsync(fileno(folder)) == 0 && written;
    if (folder != NULL)
        fclose(folder);
    return written;
}

static int is_key(const char *key)
{
    for (const char *at = key; *at != '\0'; ++at) {
        if (!isalnum((unsigned char)*at) && *at != '_')
            return 0;
    }
    return *key != '\0';
}

/* Answers one request, `KEY TOKEN VALUE`. The requests come one after the other, so that no other
 * write comes between the comparison and the write. */
static void answer(const char *request, char *said, size_t room)
{
    char key[KEY_MAX + 1];
    uint64_t token;
    int value = 0;
    if (sscanf(request, "%64s %" SCNu64 " %n", key, &token, &value) != 2 || value == 0 ||
        token == 0 || !is_key(key)) {
        snprintf(said, room, "failed: a request is KEY TOKEN VALUE");
        return;
    }
    uint64_t largest = token_of(key);
    if (token < largest)
        snprintf(said, room, "refused: %" PRIu64 " is older than %" PRIu64, token, largest);
    else
        snprintf(said, room, "%s", replace(key, token, request + value) ? "stored" : "failed");
}

/* A socket of datagrams: a request is whole or is not there, however slow its sender is. */
static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        fail(path, "too long for a socket");
    memcpy(address.sun_path, path, strlen(path) + 1);
    return address;
}

static _Noreturn void serve(const char *path, const char *folder)
{
    struct sockaddr_un address = address_of(path), from;
    int store = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (store < 0 || bind(store, (struct sockaddr *)&address, sizeof address) != 0)
        fail(path, "no socket can be made there");
    if (chdir(folder) != 0)
        fail(folder, "not a folder");
    puts("serves");
    fflush(stdout);
    for (;;) {
        char request[LINE_MAX_BYTES], said[128];
        socklen_t length = sizeof from;
        ssize_t got = recvfrom(store, request, sizeof request - 1, 0, (struct sockaddr *)&from,
                               &length);
        if (got < 0)
            fail(path, "the socket has failed");
        request[got] = '\0';
        answer(request, said, sizeof said);
        /* A writer that does not read its answers is not waited for. */
        (void)sendto(store, said, strlen(said), MSG_DONTWAIT, (struct sockaddr *)&from, length);
    }
}

/* ---- a writer ------------------------------------------------------------------------------- */

static int connect_to(const char *path)
{
    struct sockaddr_un address = address_of(path), own = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 60};
    int store = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (store < 0 || bind(store, (struct sockaddr *)&own, sizeof own.sun_family) != 0 ||
        setsockopt(store, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        connect(store, (struct sockaddr *)&address, sizeof address) != 0)
        fail(path, "no store is there");
    return store;
}

/* Writes one value, and prints the answer; whether it was stored. */
static int put(int store, const char *key, uint64_t token, const char *value)
{
    char request[LINE_MAX_BYTES], said[128];
    int length = snprintf(request, sizeof request, "%s %" PRIu64 " %s", key, token, value);
    if (length < 0 || (size_t)length >= sizeof request)
        fail(key, "the value is too long");
    if (send(store, request, (size_t)length, 0) != length)
        fail(key, "the store is gone");
    ssize_t got = recv(store, said, sizeof said - 1, 0);
    if (got < 0)
        fail(key, "the store does not answer");
    said[got] = '\0';
    puts(said);
    fflush(stdout);
    return strcmp(said, "stored") == 0;
}

static void must(const char *what, dlock_error error)
{
    if (error != DLOCK_OK) {
        fprintf(stderr, "%s: %s (%s)\n", what, dlock_strerror(error), dlock_last_detail());
        exit(1);
    }
}

/* Holds the lock `key`, and writes the lines of the input under its token. */
static int write_lines(const char *path, const char *host, const char *port, const char *key,
                       const char *lease_ms)
{
    dlock_client_options options;
    dlock_acquire_options wanted;
    dlock_client client;
    dlock_lock lock;
    dlock_hold hold;
    uint64_t token;
    char line[LINE_MAX_BYTES], primaries[300];
    int store = connect_to(path);
    must("version", dlock_select_version(DLOCK_API_VERSION));
    DLOCK_INIT(&options);
    options.port = (uint32_t)strtoul(port, NULL, 10);
    /* Stopped for long, it comes back by itself, and learns whether the lock is lost. */
    snprintf(primaries, sizeof primaries, "%s:%s", host, port);
    options.primaries = primaries;
    must("open", dlock_client_open(host, &options, PATIENCE, DLOCK_NO_CANCEL, &client));
    must("lock", dlock_lock_open(client, key, strlen(key), NULL, PATIENCE, DLOCK_NO_CANCEL, &lock));
    DLOCK_INIT(&wanted);
    wanted.lease_ms = strtoull(lease_ms, NULL, 10);
    must("acquire", dlock_acquire(lock, &wanted, PATIENCE, DLOCK_NO_CANCEL, &hold, &token));
    printf("holds %" PRIu64 "\n", token);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        put(store, key, token, line);
    }
    dlock_error error = dlock_release(hold, PATIENCE, DLOCK_NO_CANCEL);
    puts(error == DLOCK_OK ? "released" : dlock_strerror(error));
    must("close", dlock_lock_close(lock, PATIENCE, DLOCK_NO_CANCEL));
    must("leave", dlock_client_leave(client, PATIENCE, DLOCK_NO_CANCEL));
    return error == DLOCK_OK ? 0 : 76;
}

/* Writes one value under the token of the `dlock exec` that has started this process. */
static int put_under_exec(const char *path, const char *key, const char *value)
{
    const char *token = getenv("DLOCK_TOKEN");
    if (token == NULL)
        fail("DLOCK_TOKEN", "not set: start this by dlock exec");
    return put(connect_to(path), key, strtoull(token, NULL, 10), value) ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "serve") == 0)
        serve(argv[2], argv[3]);
    if ((argc == 6 || argc == 7) && strcmp(argv[1], "write") == 0)
        return write_lines(argv[2], argv[3], argv[4], argv[5], argc == 7 ? argv[6] : LEASE_MS);
    if (argc == 5 && strcmp(argv[1], "put") == 0)
        return put_under_exec(argv[2], argv[3], argv[4]);
    fprintf(stderr, "usage: fenced_store serve SOCKET FOLDER\n"
                    "       fenced_store write SOCKET HOST PORT KEY [LEASE_MS]\n"
                    "       fenced_store put SOCKET KEY VALUE\n");
    return 2;
}
