/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the programs for dlock.h share. Primaries are started through the drop-in interface. */
#ifndef DLOCK_TESTS_MODERN_H
#define DLOCK_TESTS_MODERN_H

#include <fcntl.h>

#include "check.h"
#include "dlock.h"

#define NONE DLOCK_NO_CANCEL
/* The time of calls that are to succeed. */
#define AMPLE DLOCK_S(120)

/* The code of a call, and what the library says of another one. */
static inline void check_code(dlock_error got, dlock_error want, const char *what, int line)
{
    ++checks_done;
    if (got != want) {
        ++checks_failed;
        fprintf(stderr, "line %d: %s: %s (%s), not %s\n", line, what, dlock_strerror(got),
                got == DLOCK_OK ? "" : dlock_last_detail(), dlock_strerror(want));
    }
}

#define IS(call, want) check_code((call), (want), #call, __LINE__)
#define OK(call) IS(call, DLOCK_OK)
/* What the rest of the program is built on. */
#define MUST(call) must((call), #call, __LINE__)

static inline void must(dlock_error got, const char *what, int line)
{
    check_code(got, DLOCK_OK, what, line);
    if (got != DLOCK_OK)
        exit(1);
}

static char password_file[] = "/tmp/dlock-password-XXXXXX";

static inline void remove_password_file(void)
{
    unlink(password_file);
}

/* With DLOCK_TEST_TLS in the environment: the files that fill_ssl_cfg() names. */
static inline void fill_tls(dlock_client_options *options)
{
    static char ca[512], cert[512], key[512];
    static int has_file;
    if (getenv("DLOCK_TEST_TLS") == NULL)
        return;
    if (!has_file) {
        int fd = mkstemp(password_file);
        NEED(fd >= 0 && write(fd, tls_password, strlen(tls_password)) > 0 && close(fd) == 0);
        NEED(atexit(remove_password_file) == 0);
        has_file = 1;
    }
    options->tls_ca = tls_file("ca.pem", ca, sizeof(ca));
    options->tls_cert = tls_file("cert.pem", cert, sizeof(cert));
    options->tls_key = tls_file("key.pem", key, sizeof(key));
    options->tls_key_password_file = password_file;
}

static inline dlock_client open_client(int port)
{
    dlock_client client;
    dlock_client_options options;
    DLOCK_INIT(&options);
    options.port = (uint32_t)port;
    fill_tls(&options);
    MUST(dlock_client_open(HOST, &options, AMPLE, NONE, &client));
    return client;
}

static inline dlock_lock open_lock(dlock_client client, const char *name, uint32_t type)
{
    dlock_lock lock;
    dlock_lock_options options;
    DLOCK_INIT(&options);
    options.type = type;
    MUST(dlock_lock_open(client, name, strlen(name), &options, AMPLE, NONE, &lock));
    return lock;
}

/* An acquire with a lease that outlasts the program; a read-write lock has none. */
static inline dlock_acquire_options wanted(uint32_t mode, uint32_t flags, uint64_t lease_ms)
{
    dlock_acquire_options options;
    DLOCK_INIT(&options);
    options.mode = mode;
    options.flags = flags;
    options.lease_ms = lease_ms;
    return options;
}

static inline dlock_hold must_hold(dlock_lock lock, uint64_t *token)
{
    dlock_hold hold;
    MUST(dlock_acquire(lock, NULL, AMPLE, NONE, &hold, token));
    return hold;
}

#endif
