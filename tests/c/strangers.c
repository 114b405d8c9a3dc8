/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Peers that say nothing or nonsense: clients are served on; and primaries side by side. */
#include <errno.h>
#include <pthread.h>

#include "scenario_more.h"

#define SILENT 200
#define PRIMARIES 32
#define INSTANCES 80

static int connect_to(int port)
{
    struct sockaddr_in address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)port);
    NEED(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    return fd;
}

/* Sends bytes and reads until the primary closes the connection, or a while has passed. */
static int closed_after(int port, const void *bytes, size_t len)
{
    char answer[4096];
    struct timeval patience = {20, 0};
    int fd = connect_to(port);
    NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
    ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
    CHECK(sent > 0);
    ssize_t got;
    do {
        got = recv(fd, answer, sizeof(answer), 0);
    } while (got > 0);
    int closed = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    close(fd);
    return closed;
}

static void a_session(const char *name)
{
    double start = seconds_now();
    int client = new_client();
    int id = must_get(client, name, DLOCK_FAIR);
    EQ(lock_op(client, id, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(client, id), 0);
    EQ(release_lock(client, id), 0);
    EQ(client_deinit(client), 0);
    CHECK_WITHIN(start, 1.5); /* the handshake of a silent peer may take 2 s */
}

static void nonsense(int port, int server)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static unsigned char noise[65536], zeros[4096], huge[64];
    struct debug_stats stats;
    uint32_t seed = 12345;
    for (size_t i = 0; i < sizeof(noise); ++i) {
        seed = seed * 1664525 + 1013904223;
        noise[i] = (unsigned char)(seed >> 24);
    }
    memset(huge, 0xFF, sizeof(huge));
    EQ(clear_server_debug_stats(server), 0);
    CHECK(closed_after(port, http, sizeof(http) - 1));
    CHECK(closed_after(port, noise, sizeof(noise)));
    CHECK(closed_after(port, zeros, sizeof(zeros)));
    CHECK(closed_after(port, huge, sizeof(huge)));
    EQ(get_server_debug_stats(server, &stats), 0);
    CHECK(stats.stats[DEBUG_STATS_BAD_REQUEST] > 0);
    for (int i = 0; i < 50; ++i) { /* a frame that stops in the middle */
        int fd = connect_to(port);
        CHECK(send(fd, noise, 3, MSG_NOSIGNAL) == 3);
        close(fd);
    }
    a_session("after the nonsense");
}

static void silence(int port)
{
    int peers[SILENT];
    for (int i = 0; i < SILENT; ++i) {
        peers[i] = connect_to(port);
    }
    for (int i = 0; i < 5; ++i) {
        a_session("among the silent");
    }
    for (int i = 0; i < SILENT; ++i) {
        close(peers[i]);
    }
}

/* What a peer that is no primary answers, and where it waits for the question. */
struct impostor {
    int listener;
    const void *answer;
    size_t len;
};

static void *impostor_answers(void *argument)
{
    const struct impostor *self = (const struct impostor *)argument;
    char question[4096];
    int fd = accept(self->listener, NULL, NULL);
    NEED(fd >= 0 && recv(fd, question, sizeof(question), 0) > 0);
    CHECK(send(fd, self->answer, self->len, MSG_NOSIGNAL) == (ssize_t)self->len);
    close(fd);
    return NULL;
}

/* A peer that is no primary: -1, by client_init. */
static void impostors(int primary_port)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    static unsigned char zeros[256], noise[256];
    const struct { const void *answer; size_t len; } answers[] = {
        {http, sizeof(http) - 1}, {zeros, sizeof(zeros)}, {noise, sizeof(noise)}, {http, 0}, {http, 3},
    };
    memset(noise, 0xA5, sizeof(noise));
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); ++i) {
        struct sockaddr_in address;
        socklen_t size = sizeof(address);
        struct impostor self = {socket(AF_INET, SOCK_STREAM, 0), answers[i].answer, answers[i].len};
        pthread_t thread;
        int id = -7;
        memset(&address, 0, sizeof(address));
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        NEED(bind(self.listener, (struct sockaddr *)&address, sizeof(address)) == 0);
        NEED(listen(self.listener, 2) == 0);
        NEED(getsockname(self.listener, (struct sockaddr *)&address, &size) == 0);
        NEED(pthread_create(&thread, NULL, impostor_answers, &self) == 0);
        EQ(init_client_library(ntohs(address.sin_port)), 0);
        EQ(client_init(&id, HOST), -1);
        EQ(id, -7);
        NEED(pthread_join(thread, NULL) == 0);
        close(self.listener);
        dclient_lib_deinit();
    }
    EQ(init_client_library(primary_port), 0);
    a_session("after the impostors");
}

/* 32 primaries in one process; a client library speaks to one port at a time. */
static void many_primaries(void)
{
    int servers[PRIMARIES], ports[PRIMARIES], extra = 0;
    struct server_cfg cfg;
    for (int i = 0; i < PRIMARIES; ++i) {
        ports[i] = free_port();
        fill_server_cfg(&cfg, ports[i]);
        NEED(start_server(&cfg, &servers[i]) == 0);
        for (int j = 0; j < i; ++j) {
            CHECK(servers[i] != servers[j]);
        }
    }
    fill_server_cfg(&cfg, free_port());
    EQ(start_server(&cfg, &extra), DLOCK_SERVER_NO_RESOURCE);
    EQ(extra, -1);
    int ids[3];
    for (int i = 0; i < 3; ++i) { /* the same name, three locks that know nothing of each other */
        EQ(init_client_library(ports[i * 15]), 0);
        int client = new_client();
        ids[i] = must_get(client, "everywhere", DLOCK_ATOMIC);
        EQ(lock_op(client, ids[i], LOCK_EXCLUSIVE, 60), 0);
        dclient_lib_deinit(); /* without a word to the primary */
    }
    EQ(ids[0], ids[1]);
    for (int i = 0; i < PRIMARIES; i += 3) {
        EQ(server_stop(servers[i]), 0);
    }
    double start = seconds_now();
    dserver_lib_deinit();
    CHECK_WITHIN(start, 5);
}

/* The default port, at an address that only this process uses. */
static void default_port(void)
{
    char ip[32];
    struct server_cfg cfg;
    struct client_cfg client;
    int server = 0, id = -7;
    snprintf(ip, sizeof(ip), "127.%d.%d.77", 1 + getpid() % 250, 1 + getpid() / 250 % 250);
    EQ(dserver_lib_init(1), 0);
    fill_server_cfg(&cfg, 0);
    cfg.primary.server_ip_str = ip;
    EQ(start_server(&cfg, &server), 0);
    fill_client_cfg(&client, 21616);
    EQ(dclient_lib_init(&client), 0);
    EQ(client_init(&id, ip), 0);
    EQ(client_heartbeat(id, 5), 0);
    dclient_lib_deinit();
    client.primary_port = -1; /* the one before */
    EQ(dclient_lib_init(&client), 0);
    EQ(client_init(&id, ip), 0);
    EQ(client_deinit(id), 0);
    /* Exactly that address, no other. */
    ip[strlen(ip) - 1] = '8';
    EQ(client_init(&id, ip), DLOCK_NOT_READY);
    dclient_lib_deinit();
    dserver_lib_deinit();
}

/* More instances than the 32 that the original promises, all at work. */
static void many_instances(void)
{
    int clients[INSTANCES], id = 0;
    struct lock_op_res result;
    for (int i = 0; i < INSTANCES; ++i) {
        clients[i] = new_client();
        id = must_get(clients[i], "of many", DLOCK_ATOMIC);
    }
    for (int i = 0; i < INSTANCES; ++i) {
        struct lock_request req = request(id, LOCK_EXCLUSIVE, 60);
        EQ(batch_trylock(clients[i], 1, &req, &result), 0);
        EQ(result.op_ret, 0);
        EQ(unlock_op(clients[i], id), 0);
    }
    for (int i = 0; i < INSTANCES; ++i) {
        EQ(client_deinit(clients[i]), 0);
    }
}

int main(void)
{
    int port = free_port();
    limit_seconds(100);
    EQ(dserver_lib_init(32), 0);
    int server = start_primary(port);
    EQ(init_client_library(port), 0);
    nonsense(port, server);
    silence(port);
    dclient_lib_deinit();
    impostors(port);
    many_instances();
    EQ(server_stop(server), 0);
    dclient_lib_deinit();
    many_primaries();
    default_port();
    return conclusion("strangers");
}
