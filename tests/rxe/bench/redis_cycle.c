/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What people use instead: a lock as a key of Redis, over TCP. redis_cycle HOST PORT CYCLES
 *
 * A cycle is SET key value NX PX ttl and DEL key, each awaited. Prints the median of the cycle and
 * of its first half, in microseconds.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char SET[] = "*6\r\n$3\r\nSET\r\n$4\r\nlock\r\n$6\r\nholder\r\n$2\r\nNX\r\n"
                          "$2\r\nPX\r\n$8\r\n36000000\r\n";
static const char DEL[] = "*2\r\n$3\r\nDEL\r\n$4\r\nlock\r\n";

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void ask(int fd, const char *question, const char *answer)
{
    char found[64];
    size_t have = 0, wanted = strlen(answer);
    if (write(fd, question, strlen(question)) != (ssize_t)strlen(question)) {
        perror("write");
        exit(1);
    }
    while (have < wanted) {
        ssize_t n = read(fd, found + have, sizeof(found) - have);
        if (n <= 0) {
            perror("read");
            exit(1);
        }
        have += (size_t)n;
    }
    if (have != wanted || memcmp(found, answer, wanted) != 0) {
        fprintf(stderr, "redis says %.*s\n", (int)have, found);
        exit(1);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 4 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1) {
        return 2;
    }
    at.sin_port = htons((uint16_t)atoi(argv[2]));
    size_t cycles = strtoul(argv[3], NULL, 10);
    double *whole = calloc(cycles, sizeof(*whole)), *half = calloc(cycles, sizeof(*half));
    if (fd < 0 || cycles == 0 || whole == NULL || half == NULL ||
        connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0) {
        perror("redis_cycle");
        return 1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (size_t i = 0; i < cycles; ++i) {
        double begin = now_us();
        ask(fd, SET, "+OK\r\n");
        half[i] = now_us() - begin;
        ask(fd, DEL, ":1\r\n");
        whole[i] = now_us() - begin;
    }
    qsort(whole, cycles, sizeof(*whole), by_size);
    qsort(half, cycles, sizeof(*half), by_size);
    printf("%.2f %.2f\n", whole[cycles / 2], half[cycles / 2]);
    return 0;
}
