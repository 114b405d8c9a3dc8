/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What an acquire and release of a private lock costs, and that on shared memory it allocates
 * nothing and makes no system call, and over verbs allocates nothing. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

#define ROUNDS 200000

static unsigned long allocations;
static int counting;

/* The program's malloc is also the libraries'. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
    allocations += (unsigned long)counting;
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    allocations += (unsigned long)counting;
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    allocations += (unsigned long)counting;
    return __libc_realloc(old, size);
}

struct cycles {
    int client, lock_id, done;
};

/* From here on the kernel ends this thread at any system call but exit. (The strict mode of
 * seccomp would also take the clock register away, which the vDSO reads without a call.) */
static int forbid_system_calls(void)
{
    static struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
    };
    struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static void *without_system_calls(void *arg)
{
    struct cycles *c = arg;
    struct lock_request req = request(c->lock_id, LOCK_EXCLUSIVE, 30);
    atomic_state state;
    int bad = 0;
    for (int i = 0; i < ROUNDS; ++i) {
        if (i == 10 && !forbid_system_calls()) {
            return NULL;
        }
        bad |= trylock(c->client, &req, &state);
        bad |= unlock(c->client, c->lock_id, &state);
    }
    __atomic_store_n(&c->done, bad == 0, __ATOMIC_SEQ_CST);
    syscall(SYS_exit, 0);
    return NULL;
}

static void check_system_calls(int client, int lock_id)
{
    struct cycles c = {client, lock_id, 0};
    pthread_t thread;
    EQ(pthread_create(&thread, NULL, without_system_calls, &c), 0);
    EQ(pthread_join(thread, NULL), 0);
    EQ(__atomic_load_n(&c.done, __ATOMIC_SEQ_CST), 1);
}

int main(void)
{
    const char *fabric = getenv("DLOCK_FABRIC");
    int port = free_port(), shm = fabric == NULL || strcmp(fabric, "shm") == 0;
    int rounds = (shm ? ROUNDS : ROUNDS / 100) / (slowness() > 1 ? 10 : 1);
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    int client = new_client();
    int lock_id = must_get(client, "private", DLOCK_ATOMIC);
    struct lock_request req = request(lock_id, LOCK_EXCLUSIVE, 30);
    atomic_state state;
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
        int bad = 0;
        counting = repeat > 0;
        double start = seconds_now();
        for (int i = 0; i < rounds; ++i) {
            bad |= trylock(client, &req, &state);
            bad |= unlock(client, lock_id, &state);
        }
        double cost = (seconds_now() - start) * 1e9 / rounds;
        counting = 0;
        EQ(bad, 0);
        best = cost < best ? cost : best;
    }
    printf("  acquire + release: %.0f ns\n", best);
    if (shm || strcmp(fabric, "verbs") == 0) {
        EQ(allocations, 0);
    }
    if (shm) {
        check_system_calls(client, lock_id);
    }
    EQ(client_deinit(client), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("cost");
}
