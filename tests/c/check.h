/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the C and C++ test programs share: checks that count, a deadline for the whole program,
 * free ports, and starting primaries and clients. Works as C11 and as C++11.
 */
#ifndef DLOCK_TESTS_CHECK_H
#define DLOCK_TESTS_CHECK_H

#include <arpa/inet.h>
#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dlock_client_api.h"
#include "dlock_server_api.h"
#include "dlock_types.h"

#ifdef __cplusplus
using namespace dlock;
#endif

#define HOST "127.0.0.1"

static unsigned checks_done, checks_failed;

static inline void check_true(int ok, const char *what, const char *file, int line)
{
    ++checks_done;
    if (!ok) {
        ++checks_failed;
        fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
    }
}

static inline void check_equal(long long got, long long want, const char *what, const char *file,
                               int line)
{
    ++checks_done;
    if (got != want) {
        ++checks_failed;
        fprintf(stderr, "%s:%d: %s is %lld (0x%llx), not %lld (0x%llx)\n", file, line, what, got,
                (unsigned long long)got, want, (unsigned long long)want);
    }
}

#define CHECK(condition) check_true((condition) ? 1 : 0, #condition, __FILE__, __LINE__)
#define EQ(got, want) check_equal((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
/* Checks that cannot go on without the condition. */
#define NEED(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: needed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

/* DLOCK_TEST_SLOWNESS: what bounds are multiplied by, under valgrind or in an emulator. */
static inline unsigned slowness(void)
{
    const char *given = getenv("DLOCK_TEST_SLOWNESS");
    int factor = given != NULL ? atoi(given) : 1;
    return factor > 0 ? (unsigned)factor : 1;
}

/* Ends the program by SIGALRM if it takes longer. */
static inline void limit_seconds(unsigned seconds)
{
    alarm(seconds * slowness());
}

/* The exit status, after a closing line. */
static inline int conclusion(const char *name)
{
    printf("%s: %u checks, %u failed\n", name, checks_done, checks_failed);
    return checks_failed == 0 && checks_done > 0 ? 0 : 1;
}

static inline double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* How long the threads of this process have waited for a processor so far, all together. Next to
 * nothing on a quiet machine, but for a process with many busy threads. */
static inline double starved_seconds(void)
{
    double sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char path[sizeof("/proc/self/task//schedstat") + sizeof(task->d_name)];
        unsigned long long ran, waited;
        snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", task->d_name);
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            sum += fscanf(file, "%llu %llu", &ran, &waited) == 2 ? (double)waited / 1e9 : 0;
            fclose(file);
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return sum;
}

/* Since then, without what the machine was busy with other work: for upper bounds. */
static inline double own_seconds_since(double start)
{
    return seconds_now() - start - starved_seconds();
}

/* It has not waited for something else: what it takes, not how fast the machine is. */
#define CHECK_WITHIN(start, seconds) CHECK(own_seconds_since(start) < (seconds))

/* Sleeps, also if signals arrive. */
static inline void sleep_seconds(double seconds)
{
    double end = seconds_now() + seconds;
    for (double left = seconds; left > 0; left = end - seconds_now()) {
        struct timespec pause;
        pause.tv_sec = (time_t)left;
        pause.tv_nsec = (long)((left - (double)pause.tv_sec) * 1e9);
        nanosleep(&pause, NULL);
    }
}

/* A port without a listener now. */
static inline int free_port(void)
{
    struct sockaddr_in address;
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    NEED(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    NEED(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* A mutable copy of a literal: the configuration structs have plain char pointers. */
static inline char *mutable_text(const char *text, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", text);
    return buffer;
}

/* A file of the folder that DLOCK_TEST_TLS names. */
static inline char *tls_file(const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", getenv("DLOCK_TEST_TLS"), name);
    return path;
}

static char tls_password[] = "correct horse";

static inline void tls_ask(char **password, int *len)
{
    *password = tls_password;
    *len = (int)strlen(tls_password);
}

/* A program wipes its copy here; this one is needed again. */
static inline void tls_erase(void *password, int len)
{
    NEED(password == tls_password && len == (int)strlen(tls_password));
}

/* With DLOCK_TEST_TLS in the environment everything speaks TLS; keys may be encrypted. */
static inline void fill_ssl_cfg(struct ssl_cfg *ssl)
{
    static char ca[512], cert[512], key[512];
    if (getenv("DLOCK_TEST_TLS") == NULL)
        return;
    ssl->ssl_enable = true;
    ssl->ca_path = tls_file("ca.pem", ca, sizeof(ca));
    ssl->cert_path = tls_file("cert.pem", cert, sizeof(cert));
    ssl->prkey_path = tls_file("key.pem", key, sizeof(key));
    ssl->prkey_pwd_cb = tls_ask;
    ssl->erase_prkey_cb = tls_erase;
}

static inline void fill_server_cfg(struct server_cfg *cfg, int port)
{
    static char host[] = HOST;
    memset(cfg, 0, sizeof(*cfg));
    cfg->type = SERVER_PRIMARY;
    cfg->log_level = getenv("DLOCK_TEST_LOG") != NULL ? atoi(getenv("DLOCK_TEST_LOG")) : 0;
    cfg->sleep_mode_enable = true;
    cfg->primary.server_ip_str = host;
    cfg->primary.server_port = port;
    cfg->tp_mode = SEPERATE_CONN;
    fill_ssl_cfg(&cfg->ssl);
}

static inline void fill_client_cfg(struct client_cfg *cfg, int port)
{
    memset(cfg, 0, sizeof(*cfg));
    cfg->log_level = getenv("DLOCK_TEST_LOG") != NULL ? atoi(getenv("DLOCK_TEST_LOG")) : 0;
    cfg->primary_port = port;
    cfg->tp_mode = SEPERATE_CONN;
    fill_ssl_cfg(&cfg->ssl);
}

/* server_start in both languages. */
static inline int start_server(const struct server_cfg *cfg, int *server_id)
{
#ifdef __cplusplus
    return server_start(*cfg, *server_id);
#else
    return server_start(cfg, server_id);
#endif
}

static inline int start_primary(int port)
{
    struct server_cfg cfg;
    int id = -7;
    fill_server_cfg(&cfg, port);
    NEED(start_server(&cfg, &id) == 0);
    NEED(id > 0 && id <= 0xFFFFF);
    return id;
}

static inline int init_client_library(int port)
{
    struct client_cfg cfg;
    fill_client_cfg(&cfg, port);
    return dclient_lib_init(&cfg);
}

static inline int new_client(void)
{
    int id = -7;
    int status = client_init(&id, HOST);
    if (status != 0) {
        fprintf(stderr, "client_init: 0x%x\n", (unsigned)status);
    }
    NEED(status == 0 && id > 0);
    return id;
}

/* get_lock by a terminated name. */
static inline int get_named(int client, const char *name, dlock_type type, int *lock_id)
{
    char buffer[MAX_LOCK_DESC_LEN + 1];
    struct lock_desc desc;
    memset(&desc, 0, sizeof(desc));
    desc.p_desc = mutable_text(name, buffer, sizeof(buffer));
    desc.len = (uint32_t)strlen(name);
    desc.lock_type = type;
    desc.lease_time = 10;
    return get_lock(client, &desc, lock_id);
}

static inline int must_get(int client, const char *name, dlock_type type)
{
    int id = 0;
    NEED(get_named(client, name, type, &id) == 0 && id > 0);
    return id;
}

static inline struct lock_request request(int lock_id, lock_ops op, uint32_t expire)
{
    struct lock_request req;
    req.lock_id = lock_id;
    req.lock_op = op;
    req.expire_time = expire;
    return req;
}

/* Operations whose state the caller does not look at. */
static inline int try_op(int client, int lock_id, lock_ops op, uint32_t expire)
{
    struct lock_request req = request(lock_id, op, expire);
    lock_state state;
    return trylock(client, &req, &state);
}

static inline int lock_op(int client, int lock_id, lock_ops op, uint32_t expire)
{
    struct lock_request req = request(lock_id, op, expire);
    lock_state state;
    return lock(client, &req, &state);
}

static inline int extend_op(int client, int lock_id, lock_ops op, uint32_t expire)
{
    struct lock_request req = request(lock_id, op, expire);
    lock_state state;
    return lock_extend(client, &req, &state);
}

static inline int unlock_op(int client, int lock_id)
{
    lock_state state;
    return unlock(client, lock_id, &state);
}

static inline int async_op(int client, int lock_id, lock_ops op, uint32_t expire)
{
    struct lock_request req = request(lock_id, op, expire);
    return lock_request_async(client, &req);
}

/* The result of a pending operation; bounded, because the library gives up after 5 s. */
static inline int async_wait(int client, void *result)
{
    int status;
    do {
        status = lock_result_check(client, result);
    } while (status == DLOCK_ASYNC_AGAIN);
    return status;
}

static inline int async_result(int client)
{
    lock_state state;
    return async_wait(client, &state);
}

#endif
