/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* cert_verify_cb as programs of the original have it: OpenSSL's functions on an X509_STORE_CTX. */
#include <limits.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>

#include "certificates.h"
#include "dlock_log.h"

/* What a callback does. */
enum conduct {
    VERIFIES,       /* X509_verify_cert, on what the library has loaded */
    LOADS_LISTS,    /* reads crl_path itself, as the original demands, and verifies */
    IGNORES_LISTS,  /* takes the flags away, and verifies */
    ACCEPTS,        /* every peer */
    RETURNS_RESULT, /* what X509_verify_cert returns: 1, and 0 for a failure */
    REFUSES         /* every peer */
};

/* What a callback was given and found, since the last session began. */
struct seen {
    enum conduct conduct;
    int calls, error, depth, untrusted, chain;
    char subject[64], crl_path[PATH_MAX];
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct seen by_server, by_client; /* written under guard */
static char log_lines[1 << 16];          /* under guard */

static void keep(void *ctx, int level, const char *message)
{
    (void)ctx, (void)level;
    pthread_mutex_lock(&guard);
    size_t len = strlen(log_lines);
    snprintf(log_lines + len, sizeof(log_lines) - len, "%s\n", message);
    pthread_mutex_unlock(&guard);
}

/* A line is delivered a short time after it was logged (dlock_log.h). */
static int was_logged(const char *text)
{
    for (int waited_ms = 0;; waited_ms += 10) {
        pthread_mutex_lock(&guard);
        int found = strstr(log_lines, text) != NULL;
        if (!found && waited_ms >= 5000)
            fprintf(stderr, "not in the log: %s\n%s", text, log_lines);
        pthread_mutex_unlock(&guard);
        if (found || waited_ms >= 5000)
            return found;
        usleep(10 * 1000);
    }
}

static void load_lists(X509_STORE_CTX *ctx, const char *path)
{
    X509_CRL *crl;
    int count = 0;
    FILE *file = fopen(path, "r");
    NEED(file != NULL);
    for (; (crl = PEM_read_X509_CRL(file, NULL, NULL, NULL)) != NULL; ++count) {
        EQ(X509_STORE_add_crl(X509_STORE_CTX_get0_store(ctx), crl), 1);
        X509_CRL_free(crl);
    }
    fclose(file);
    EQ(count, 2);
    X509_STORE_set_flags(X509_STORE_CTX_get0_store(ctx), X509_V_FLAG_CRL_CHECK);
    X509_STORE_CTX_set_flags(ctx, X509_V_FLAG_CRL_CHECK);
}

static int verify(struct seen *seen, X509_STORE_CTX *ctx, const char *crl_path)
{
    int result;
    if (seen->conduct == LOADS_LISTS && crl_path[0] != '\0')
        load_lists(ctx, crl_path);
    if (seen->conduct == IGNORES_LISTS)
        X509_VERIFY_PARAM_clear_flags(X509_STORE_CTX_get0_param(ctx),
                                      X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    ++seen->calls;
    snprintf(seen->crl_path, sizeof(seen->crl_path), "%s", crl_path);
    seen->untrusted = sk_X509_num(X509_STORE_CTX_get0_untrusted(ctx));
    X509_NAME_get_text_by_NID(X509_get_subject_name(X509_STORE_CTX_get0_cert(ctx)), NID_commonName,
                              seen->subject, sizeof(seen->subject));
    if (seen->conduct == ACCEPTS)
        return 7;
    if (seen->conduct == REFUSES)
        return -5;
    result = X509_verify_cert(ctx);
    seen->error = X509_STORE_CTX_get_error(ctx);
    seen->depth = X509_STORE_CTX_get_error_depth(ctx);
    seen->chain = sk_X509_num(X509_STORE_CTX_get0_chain(ctx));
    if (seen->conduct == RETURNS_RESULT)
        return result;
    return result == 1 ? 0 : -1;
}

static int verify_client(void *ctx, const char *crl_path)
{
    pthread_mutex_lock(&guard);
    int result = verify(&by_server, (X509_STORE_CTX *)ctx, crl_path);
    pthread_mutex_unlock(&guard);
    return result;
}

static int verify_server(void *ctx, const char *crl_path)
{
    pthread_mutex_lock(&guard);
    int result = verify(&by_client, (X509_STORE_CTX *)ctx, crl_path);
    pthread_mutex_unlock(&guard);
    return result;
}

static void fill(struct ssl_cfg *ssl, const char *name, int with_crl, int is_server)
{
    char cert[64], key[64];
    snprintf(cert, sizeof(cert), "%s.pem", name);
    snprintf(key, sizeof(key), "%s.key", name);
    ssl->ssl_enable = true;
    ssl->ca_path = in_folder("ca.pem");
    ssl->crl_path = with_crl ? in_folder("crl.pem") : NULL;
    ssl->cert_path = in_folder(cert);
    ssl->prkey_path = in_folder(key);
    ssl->cert_verify_cb = is_server ? verify_client : verify_server;
    ssl->prkey_pwd_cb = tls_ask;
    ssl->erase_prkey_cb = tls_erase;
}

static void begin(enum conduct server, enum conduct client)
{
    pthread_mutex_lock(&guard);
    memset(&by_server, 0, sizeof(by_server));
    memset(&by_client, 0, sizeof(by_client));
    by_server.conduct = server;
    by_client.conduct = client;
    log_lines[0] = '\0';
    pthread_mutex_unlock(&guard);
}

static void start(const char *name, int with_crl, int port)
{
    struct server_cfg cfg;
    int id = 0;
    fill_server_cfg(&cfg, port);
    cfg.log_level = 4;
    fill(&cfg.ssl, name, with_crl, 1);
    NEED(dserver_lib_init(1) == 0 && start_server(&cfg, &id) == 0);
}

static void init_library(const char *name, int with_crl, int port)
{
    struct client_cfg cfg;
    fill_client_cfg(&cfg, port);
    cfg.log_level = 4;
    fill(&cfg.ssl, name, with_crl, 0);
    NEED(dclient_lib_init(&cfg) == 0);
}

/* What client_init gives between these two. A client that gets in takes a lock. */
static int session(const char *server, enum conduct server_conduct, const char *client,
                   enum conduct client_conduct, int with_crl)
{
    int id = 0, port = free_port(), status;
    begin(server_conduct, client_conduct);
    start(server, with_crl, port);
    init_library(client, with_crl, port);
    status = client_init(&id, HOST);
    if (status == 0) {
        int lock_id = must_get(id, "lock", DLOCK_ATOMIC);
        EQ(lock_op(id, lock_id, LOCK_EXCLUSIVE, 600), 0);
        EQ(unlock_op(id, lock_id), 0);
        EQ(client_deinit(id), 0);
    }
    dclient_lib_deinit();
    dserver_lib_deinit();
    return status;
}

static void check_accepted(const struct seen *seen, const char *subject, const char *crl_path)
{
    CHECK(seen->calls >= 1);
    EQ(seen->error, X509_V_OK);
    EQ(seen->untrusted, 2); /* with the leaf, as libssl has it */
    EQ(seen->chain, 3);
    EQ(strcmp(seen->subject, subject), 0);
    EQ(strcmp(seen->crl_path, crl_path), 0);
}

static void accepted_peers(void)
{
    char crl_path[PATH_MAX];
    NEED(realpath(in_folder("crl.pem"), crl_path) != NULL);
    EQ(session("server", VERIFIES, "client", VERIFIES, 1), 0);
    check_accepted(&by_server, "client", crl_path);
    check_accepted(&by_client, "server", crl_path);
    EQ(session("server", LOADS_LISTS, "client", LOADS_LISTS, 1), 0);
    check_accepted(&by_server, "client", crl_path);
    check_accepted(&by_client, "server", crl_path);
    EQ(session("server", RETURNS_RESULT, "client", RETURNS_RESULT, 0), 0);
    check_accepted(&by_server, "client", "");
    check_accepted(&by_client, "server", "");
}

/* The stranger's issuer is in its own file, and in no CA file. */
static void peers_of_another_ca(void)
{
    EQ(session("server", VERIFIES, "stranger", VERIFIES, 0), -1);
    EQ(by_server.error, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
    EQ(by_server.depth, 1);
    /* The primary's first such line; those that follow at once are only counted. */
    CHECK(was_logged("cert_verify_cb refuses it (-1): error 19 at depth 1, self"));
    EQ(session("stranger", VERIFIES, "client", VERIFIES, 0), -1);
    EQ(by_client.error, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
    CHECK(was_logged("cert_verify_cb refuses it (-1): error 19 at depth 1, self"));
    CHECK(was_logged("see what cert_verify_cb of this program checks"));
}

static void revoked_peers(void)
{
    static const enum conduct conducts[] = {VERIFIES, LOADS_LISTS};
    for (int i = 0; i < 2; ++i) {
        /* The one that is revoked has no list, which would be told to it when it starts. */
        int id = 0, port = free_port();
        begin(conducts[i], VERIFIES);
        start("server", 1, port);
        init_library("revoked", 0, port);
        EQ(client_init(&id, HOST), -1);
        EQ(by_server.error, X509_V_ERR_CERT_REVOKED);
        EQ(by_server.depth, 0);
        dclient_lib_deinit();
        /* The primary goes on. */
        init_library("client", 1, port);
        EQ(client_init(&id, HOST), 0);
        dclient_lib_deinit();
        dserver_lib_deinit();

        port = free_port();
        begin(VERIFIES, conducts[i]);
        start("revoked", 0, port);
        init_library("client", 1, port);
        EQ(client_init(&id, HOST), -1);
        EQ(by_client.error, X509_V_ERR_CERT_REVOKED);
        CHECK(was_logged("error 23 at depth 0, certificate revoked"));
        dclient_lib_deinit();
        /* A callback may judge without the lists. */
        by_client.conduct = IGNORES_LISTS;
        init_library("client", 1, port);
        EQ(client_init(&id, HOST), 0);
        EQ(by_client.error, X509_V_OK);
        dclient_lib_deinit();
        dserver_lib_deinit();
    }
}

/* OpenSSL as the peer, on a socket that is connected: with a certificate that the library would
 * not load. Nothing of the application arrives at it. */
static void openssl_peer(int fd, int is_server)
{
    char byte;
    SSL_CTX *ctx = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    NEED(ctx != NULL);
    NEED(SSL_CTX_use_certificate_chain_file(ctx, in_folder("expired.pem")) == 1);
    NEED(SSL_CTX_use_PrivateKey_file(ctx, in_folder("expired.key"), SSL_FILETYPE_PEM) == 1);
    SSL *ssl = SSL_new(ctx);
    NEED(ssl != NULL && SSL_set_fd(ssl, fd) == 1);
    if ((is_server ? SSL_accept(ssl) : SSL_connect(ssl)) == 1)
        CHECK(SSL_read(ssl, &byte, 1) <= 0);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    ERR_clear_error();
}

static void *expired_server(void *listener)
{
    int fd = accept(*(int *)listener, NULL, NULL);
    NEED(fd >= 0);
    openssl_peer(fd, 1);
    return NULL;
}

static int local_socket(struct sockaddr_in *address, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(address, 0, sizeof(*address));
    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)port);
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    NEED(fd >= 0);
    return fd;
}

static void expired_peers(void)
{
    struct sockaddr_in address;
    pthread_t thread;
    int id = 0, on = 1, port = free_port();
    begin(VERIFIES, VERIFIES);
    start("server", 1, port);
    int fd = local_socket(&address, port);
    NEED(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    openssl_peer(fd, 0);
    dserver_lib_deinit();
    EQ(strcmp(by_server.subject, "expired"), 0);
    EQ(by_server.error, X509_V_ERR_CERT_HAS_EXPIRED);

    begin(VERIFIES, VERIFIES);
    port = free_port();
    int listener = local_socket(&address, port);
    NEED(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    NEED(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
    NEED(listen(listener, 1) == 0);
    NEED(pthread_create(&thread, NULL, expired_server, &listener) == 0);
    init_library("client", 1, port);
    EQ(client_init(&id, HOST), -1);
    NEED(pthread_join(thread, NULL) == 0);
    close(listener);
    dclient_lib_deinit();
    EQ(strcmp(by_client.subject, "expired"), 0);
    EQ(by_client.error, X509_V_ERR_CERT_HAS_EXPIRED);
    CHECK(was_logged("cert_verify_cb refuses it (-1): error 10 at depth 0, certificate has expired"));
}

/* What was in the program's own queue of errors stays there, and nothing is added. */
static void error_queue(void)
{
    const unsigned char garbage[] = "garbage", *at = garbage;
    EQ(ERR_peek_error(), 0);
    CHECK(d2i_X509(NULL, &at, sizeof(garbage)) == NULL);
    unsigned long error = ERR_peek_last_error();
    CHECK(error != 0);
    EQ(session("revoked", VERIFIES, "client", VERIFIES, 0), 0);
    EQ(session("stranger", VERIFIES, "client", VERIFIES, 0), -1);
    EQ(ERR_peek_last_error(), error);
    ERR_clear_error();
}

/* 0 and more accept, what the library would have found does not matter; below 0 refuses. */
static void answers(void)
{
    EQ(session("stranger", ACCEPTS, "stranger", ACCEPTS, 0), 0);
    EQ(strcmp(by_server.subject, "stranger"), 0);
    EQ(session("stranger", RETURNS_RESULT, "stranger", RETURNS_RESULT, 0), 0);
    EQ(by_server.error, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
    CHECK(was_logged("0 accepts, also the 0 of X509_verify_cert"));
    EQ(session("server", VERIFIES, "client", REFUSES, 1), -1);
    CHECK(was_logged("cert_verify_cb refuses it (-5);"));
    EQ(session("server", REFUSES, "client", VERIFIES, 1), -1);
    EQ(strcmp(by_server.subject, "client"), 0);
}

int main(void)
{
    limit_seconds(60);
    signal(SIGPIPE, SIG_IGN);
    dlock_log_set_callback(keep, NULL);
    make_certificates();
    accepted_peers();
    peers_of_another_ca();
    revoked_peers();
    expired_peers();
    answers();
    error_queue();
    remove_certificates();
    return conclusion("cert_verify");
}
