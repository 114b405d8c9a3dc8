/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A primary whose prkey_pwd_cb has no password yet, or a wrong one, starts, and asks at each
 * connection; a client asks at each client_init. Needs DLOCK_TEST_TLS, with an encrypted key. */
#include "check.h"

/* What the callbacks of a side give, and how often. */
struct side {
    const char *gives; /* NULL: nothing */
    char copy[64];
    int asked, erased;
};

static struct side primary, client;

static void give(struct side *side, char **password, int *len)
{
    __atomic_add_fetch(&side->asked, 1, __ATOMIC_SEQ_CST);
    const char *gives = __atomic_load_n(&side->gives, __ATOMIC_SEQ_CST);
    if (gives == NULL)
        return;
    snprintf(side->copy, sizeof(side->copy), "%s", gives);
    *password = side->copy;
    *len = (int)strlen(side->copy);
}

static void primary_gives(char **password, int *len)
{
    give(&primary, password, len);
}

static void client_gives(char **password, int *len)
{
    give(&client, password, len);
}

static void erase(void *password, int len)
{
    struct side *side = password == primary.copy ? &primary : &client;
    CHECK(password == side->copy && len == (int)strlen(side->copy));
    memset(side->copy, 0, sizeof(side->copy));
    __atomic_add_fetch(&side->erased, 1, __ATOMIC_SEQ_CST);
}

static void set(struct side *side, const char *password)
{
    __atomic_store_n(&side->gives, password, __ATOMIC_SEQ_CST);
}

static int try_client(void)
{
    int id = 0, status = client_init(&id, HOST);
    if (status == 0) {
        int lock_id = must_get(id, "lock", DLOCK_ATOMIC);
        EQ(lock_op(id, lock_id, LOCK_EXCLUSIVE, 600), 0);
        EQ(unlock_op(id, lock_id), 0);
        EQ(client_deinit(id), 0);
    }
    return status;
}

int main(void)
{
    struct server_cfg server;
    struct client_cfg cfg;
    int id = 0, port = free_port(), asked;
    limit_seconds(120);
    fill_server_cfg(&server, port);
    fill_client_cfg(&cfg, port);
    NEED(server.ssl.ssl_enable && cfg.ssl.ssl_enable);
    server.ssl.prkey_pwd_cb = primary_gives;
    cfg.ssl.prkey_pwd_cb = client_gives;
    server.ssl.erase_prkey_cb = cfg.ssl.erase_prkey_cb = erase;
    set(&client, tls_password);

    /* The primary has none, then a wrong one, then the right one, and then asks no more. */
    EQ(dserver_lib_init(1), 0);
    EQ(start_server(&server, &id), 0);
    CHECK(id > 0 && primary.asked == 1 && primary.erased == 0);
    EQ(dclient_lib_init(&cfg), 0);
    EQ(try_client(), -1);
    CHECK(primary.asked > 1 && primary.erased == 0);
    set(&primary, "another");
    asked = primary.asked;
    EQ(try_client(), -1);
    CHECK(primary.asked > asked && primary.erased > 0);
    set(&primary, tls_password);
    EQ(try_client(), 0);
    EQ(try_client(), 0);

    /* The client alike: client_init fails, and the next one asks anew. */
    dclient_lib_deinit();
    set(&client, NULL);
    EQ(dclient_lib_init(&cfg), 0);
    EQ(try_client(), -1);
    set(&client, "another");
    EQ(try_client(), -1);
    set(&client, tls_password);
    EQ(try_client(), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();

    /* What is no question of the password fails at the start, as ever. */
    set(&primary, NULL);
    server.ssl.prkey_path = server.ssl.cert_path;
    EQ(dserver_lib_init(1), 0);
    EQ(start_server(&server, &id), -1);
    dserver_lib_deinit();
    return conclusion("key_password");
}
