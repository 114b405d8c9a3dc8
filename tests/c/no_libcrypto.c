/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A host without OpenSSL: the libraries find no libcrypto. Without cert_verify_cb they look for it
 * when a key needs it, as that of DLOCK_TEST_TLS may. */
#include <dlfcn.h>
#include <pthread.h>

#include "check.h"
#include "dlock_log.h"

static int asked_for;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char lines[8192]; /* under guard */

/* What the libraries call: this program comes first. A name is asked for that no system has. */
void *dlopen(const char *file, int mode)
{
    static void *(*next)(const char *, int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    if (file != NULL && strstr(file, "libcrypto") != NULL) {
        ++asked_for;
        return next("no-libcrypto-here.so", mode);
    }
    return next(file, mode);
}

static void keep(void *ctx, int level, const char *message)
{
    (void)ctx, (void)level;
    pthread_mutex_lock(&guard);
    size_t len = strlen(lines);
    snprintf(lines + len, sizeof(lines) - len, "%s\n", message);
    pthread_mutex_unlock(&guard);
}

static void forget_lines(void)
{
    pthread_mutex_lock(&guard);
    lines[0] = '\0';
    pthread_mutex_unlock(&guard);
}

/* A line is delivered a short time after it was logged (dlock_log.h). */
static int was_said(const char *text)
{
    for (int waited_ms = 0;; waited_ms += 10) {
        pthread_mutex_lock(&guard);
        int found = strstr(lines, text) != NULL;
        pthread_mutex_unlock(&guard);
        if (found || waited_ms >= 5000)
            return found;
        usleep(10 * 1000);
    }
}

static int verify(void *ctx, const char *crl_path)
{
    (void)ctx, (void)crl_path;
    return 0;
}

static void said_what_to_install(void)
{
    CHECK(was_said("cert_verify_cb needs OpenSSL's libcrypto 3 or 1.1.1"));
    CHECK(was_said("no-libcrypto-here.so: cannot open"));
    CHECK(was_said("install it (Debian, Ubuntu: libssl3"));
    forget_lines();
}

/* Files that are there: they are read when the first client wants them, which is not now. */
static void fill(struct ssl_cfg *ssl, char *file)
{
    memset(ssl, 0, sizeof(*ssl));
    ssl->ssl_enable = true;
    ssl->ca_path = ssl->cert_path = ssl->prkey_path = file;
    ssl->prkey_pwd_cb = tls_ask;
    ssl->erase_prkey_cb = tls_erase;
}

int main(void)
{
    struct client_cfg client;
    struct server_cfg server;
    char file[] = "/proc/self/exe";
    int id = 0, port = free_port();
    limit_seconds(60);
    dlock_log_set_callback(keep, NULL);

    fill_client_cfg(&client, port);
    client.log_level = 4;
    fill(&client.ssl, file);
    EQ(dclient_lib_init(&client), 0);
    dclient_lib_deinit();
    EQ(asked_for, 0);
    client.ssl.cert_verify_cb = verify;
    EQ(dclient_lib_init(&client), -1);
    CHECK(asked_for > 0);
    said_what_to_install();
    /* It was not initialised. */
    EQ(client_init(&id, HOST), -1);

    fill_server_cfg(&server, port);
    server.log_level = 4;
    fill(&server.ssl, file);
    server.ssl.cert_verify_cb = verify;
    EQ(dserver_lib_init(1), 0);
    forget_lines();
    EQ(start_server(&server, &id), -1);
    said_what_to_install();
    if (getenv("DLOCK_TEST_TLS") != NULL) {
        fill_server_cfg(&server, port);
        server.log_level = 4;
        forget_lines();
        asked_for = 0;
        EQ(start_server(&server, &id), -1);
        CHECK(asked_for > 0);
        CHECK(was_said("loaded by OpenSSL's libcrypto 3 or 1.1.1, which cannot be used"));
        CHECK(was_said("install it (Debian, Ubuntu: libssl3"));
    }
    dserver_lib_deinit();
    return conclusion("no_libcrypto");
}
