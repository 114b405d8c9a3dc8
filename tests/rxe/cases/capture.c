/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What travels between a client and its primary, for the case of the same name.
 *
 *   capture record FILE               every packet of every interface, until SIGTERM
 *   capture search FILE HEX...        a line for each: how often these bytes are in it; and how many
 *                                     packets were RoCE
 *   capture client NAME HOST PORT [DEVICE]
 *                                     gets the lock and the object NAME, uses both some times, and
 *                                     prints the first half of the words that it writes
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "check.h"

#define ROUNDS 20
#define PACKET_MAX 65536
/* The UDP port of RoCE v2. */
#define ROCE_PORT 4791
/* What is added to the object, in either order of its bytes as unlikely as any. */
#define ADDED 0x5ec7e7a1b2c3d4e6ULL

static volatile sig_atomic_t is_over;

static void over(int signal)
{
    (void)signal;
    is_over = 1;
}

static int record(const char *path)
{
    static unsigned char packet[PACKET_MAX];
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = over; /* without SA_RESTART: it ends recv() */
    NEED(sigaction(SIGTERM, &action, NULL) == 0);
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    FILE *file = fopen(path, "wb");
    NEED(fd >= 0 && file != NULL);
    int room = 64 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
    struct timeval pause = {.tv_sec = 0, .tv_usec = 100000};
    NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof(pause)) == 0);
    printf("recording\n");
    fflush(stdout);
    while (!is_over) {
        ssize_t len = recv(fd, packet, sizeof(packet), 0);
        NEED(len <= 0 || fwrite(packet, 1, (size_t)len, file) == (size_t)len);
    }
    /* What was sent before the signal is in the socket's buffer. */
    ssize_t len;
    while ((len = recv(fd, packet, sizeof(packet), MSG_DONTWAIT)) > 0) {
        NEED(fwrite(packet, 1, (size_t)len, file) == (size_t)len);
    }
    NEED(fclose(file) == 0);
    return 0;
}

static unsigned count(const unsigned char *bytes, size_t len, const unsigned char *what, size_t what_len)
{
    unsigned found = 0;
    const unsigned char *at = bytes, *end = bytes + len;
    while ((at = memmem(at, (size_t)(end - at), what, what_len)) != NULL) {
        ++found;
        ++at;
    }
    return found;
}

static int search(char **argv)
{
    struct stat status;
    int fd = open(argv[2], O_RDONLY);
    NEED(fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0);
    size_t len = (size_t)status.st_size;
    const unsigned char *bytes = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    NEED(bytes != MAP_FAILED);
    for (char **text = argv + 3; *text != NULL; ++text) {
        unsigned char what[64];
        size_t what_len = strlen(*text) / 2;
        NEED(what_len > 0 && what_len <= sizeof(what));
        for (size_t i = 0; i < what_len; ++i) {
            unsigned byte;
            NEED(sscanf(*text + 2 * i, "%2x", &byte) == 1);
            what[i] = (unsigned char)byte;
        }
        printf("%s %u\n", *text, count(bytes, len, what, what_len));
    }
    const unsigned char port[2] = {ROCE_PORT >> 8, ROCE_PORT & 0xff};
    printf("roce %u\n", count(bytes, len, port, sizeof(port)));
    return 0;
}

static int client(char **argv)
{
    struct client_cfg cfg;
    char device[64];
    int id = 0, object = 0;
    limit_seconds(60);
    fill_client_cfg(&cfg, atoi(argv[4]));
    if (argv[5] != NULL) {
        cfg.dev_name = mutable_text(argv[5], device, sizeof(device));
    }
    NEED(dclient_lib_init(&cfg) == 0);
    NEED(client_init(&id, argv[3]) == 0);
    int lock = must_get(id, argv[2], DLOCK_ATOMIC);
    struct umo_atomic64_desc desc = {
        .p_desc = argv[2], .len = (unsigned)strlen(argv[2]), .lease_time = 36000};
    NEED(umo_atomic64_create(id, &desc, 0, &object) == 0);
    NEED(umo_atomic64_get(id, &desc, &object) == 0);
    for (int i = 0; i < ROUNDS; ++i) {
        uint64_t before;
        NEED(try_op(id, lock, LOCK_EXCLUSIVE, 60) == 0);
        NEED(umo_atomic64_faa(id, object, ADDED, &before) == 0);
        NEED(unlock_op(id, lock) == 0);
    }
    printf("%08x\n", (unsigned)id);
    NEED(client_deinit(id) == 0);
    dclient_lib_deinit();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "record") == 0) {
        return record(argv[2]);
    }
    if (argc >= 4 && strcmp(argv[1], "search") == 0) {
        return search(argv);
    }
    if (argc >= 5 && strcmp(argv[1], "client") == 0) {
        return client(argv);
    }
    fprintf(stderr, "usage: see the head of capture.c\n");
    return 2;
}
