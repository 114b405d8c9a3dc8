/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Acquire and release of one private atomic lock through the C API, and two bare
 * compare-and-swaps, in turns. `dlock bench --c-program` starts it and reads what it prints:
 * one line per sample, the nanoseconds of one of each, the mean of BLOCK.
 *
 *     cycle IP PORT BLOCK SAMPLES
 */
#define _POSIX_C_SOURCE 199309L
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dlock_client_api.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(const char *what, int code)
{
    fprintf(stderr, "%s: %#x\n", what, (unsigned)code);
    return 1;
}

static double bare_ns(_Atomic uint64_t *word, unsigned block)
{
    uint64_t start = now_ns();
    for (unsigned i = 1; i <= block; i++) {
        uint64_t seen = 0;
        atomic_compare_exchange_strong(word, &seen, i);
        seen = i;
        atomic_compare_exchange_strong(word, &seen, 0);
    }
    return (double)(now_ns() - start) / block;
}

static int measure(int client, int lock_id, unsigned block, unsigned samples)
{
    static _Atomic uint64_t word;
    struct lock_request request;
    atomic_state state;
    memset(&request, 0, sizeof request);
    request.lock_id = lock_id;
    request.lock_op = LOCK_EXCLUSIVE;
    request.expire_time = 3600;
    for (unsigned sample = 0; sample < samples; sample++) {
        uint64_t start = now_ns();
        for (unsigned i = 0; i < block; i++) {
            int code = trylock(client, &request, &state);
            if (code == 0)
                code = unlock(client, lock_id, &state);
            if (code != 0)
                return fail("trylock and unlock", code);
        }
        double cycle = (double)(now_ns() - start) / block;
        printf("%.1f %.1f\n", cycle, bare_ns(&word, block));
    }
    return 0;
}

int main(int argc, char **argv)
{
    static char name[] = "bench C";
    struct client_cfg config;
    struct lock_desc desc;
    int client = 0, lock_id = 0, code;

    if (argc != 5) {
        fprintf(stderr, "usage: cycle IP PORT BLOCK SAMPLES\n");
        return 2;
    }
    unsigned block = (unsigned)strtoul(argv[3], NULL, 10);
    unsigned samples = (unsigned)strtoul(argv[4], NULL, 10);
    if (block == 0)
        return fail("BLOCK must be at least 1", 0);
    memset(&config, 0, sizeof config);
    config.primary_port = atoi(argv[2]);
    config.log_level = 4;
    if ((code = dclient_lib_init(&config)) != 0)
        return fail("dclient_lib_init", code);
    if ((code = client_init(&client, argv[1])) != 0)
        return fail("client_init", code);
    memset(&desc, 0, sizeof desc);
    desc.p_desc = name;
    desc.len = sizeof name - 1;
    desc.lock_type = DLOCK_ATOMIC;
    if ((code = get_lock(client, &desc, &lock_id)) != 0)
        return fail("get_lock", code);
    int result = measure(client, lock_id, block, samples);
    release_lock(client, lock_id);
    client_deinit(client);
    dclient_lib_deinit();
    return result;
}
