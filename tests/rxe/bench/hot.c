/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One hot lock, and several client processes that want it: published locks on bare libibverbs, or
 * dlock's through its C API.
 *
 *   hot rate KIND CLIENTS SECONDS [PORT]     operations a second, and who had how many
 *   hot private KIND CLIENTS SECONDS [PORT]  the same with a lock for each client: times of a cycle
 *   hot handover KIND HOLD_US SECONDS [PORT] from a release to the acquire of who waits for it
 *
 *   KIND: cas     compare-and-swap until it succeeds; the processor is given away after a lost try
 *         ticket  fetch-and-add of a number, the word is read until it is served, fetch-and-add
 *         atomic, rw, fair, shared (of rw)        dlock; PORT is that of the primary on 127.0.0.1
 *         message, of a hand-over: no lock; a message there and back between two that sleep on their
 *                 completion channels, HOLD_US after the last
 *
 * The device is $RXE_VM_DEV with $RXE_VM_GID_INDEX; dlock's clients choose by DLOCK_FABRIC.
 * Prints one line: `NAME VALUE ...`; status 1 if two were inside at once, or none ever was.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"

#define CLIENTS_MAX 32
#define LEASE_S 30
#define SAMPLES_MAX 400000
#define TIMEOUT_EXPONENT 14 /* 4.096 us * 2^14 = 67 ms per try */
#define RETRIES 6
#define SERVED ((uint64_t)1)
#define NEXT ((uint64_t)1 << 32)
#define EVERYTHING \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | \
     IBV_ACCESS_REMOTE_ATOMIC)

enum kind { CAS, TICKET, MESSAGE, ATOMIC, RW, FAIR, SHARED, KINDS };
static const char *const names[KINDS] = {"cas",    "ticket", "message", "atomic",
                                           "rw",     "fair",   "shared"};

struct endpoint {
    union ibv_gid gid;
    uint32_t qp_num;
};

/* Between the processes. */
struct arena {
    struct endpoint clients[CLIENTS_MAX], servers[CLIENTS_MAX];
    uint64_t remote;
    uint32_t rkey;
    _Atomic int connected, accepted, ready, go, stop, violations;
    _Atomic unsigned inside;
    _Atomic unsigned long counts[CLIENTS_MAX];
    /* Of hand-overs, and of cycles of private locks. */
    _Atomic int about[2];
    _Atomic int64_t released_ns;
    _Atomic int released_by;
    _Atomic unsigned samples;
    uint32_t ns[SAMPLES_MAX];
};

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint64_t *words;
    union ibv_gid gid;
    int gid_index;
    enum ibv_mtu mtu;
};

struct client {
    enum kind kind;
    unsigned number;
    bool is_private;
    struct arena *arena;
    struct side side;
    struct ibv_qp *qp;
    uint32_t ticket;
    int dlock, lock;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *need(void *p, const char *what)
{
    if (p == NULL) {
        fprintf(stderr, "cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
    return p;
}

/* ---- bare verbs ---- */
static struct side open_side(void)
{
    const char *name = getenv("RXE_VM_DEV"), *index = getenv("RXE_VM_GID_INDEX");
    struct side s = {.gid_index = index ? atoi(index) : 1};
    struct ibv_device **list = need(ibv_get_device_list(NULL), "list the devices");
    struct ibv_device *device = NULL;
    struct ibv_port_attr port;

    for (int i = 0; list[i] != NULL; i++) {
        if (name == NULL || strcmp(ibv_get_device_name(list[i]), name) == 0) {
            device = list[i];
            break;
        }
    }
    errno = ENODEV;
    s.context = need(device ? ibv_open_device(device) : NULL, "open the device");
    ibv_free_device_list(list);
    if (ibv_query_gid(s.context, 1, s.gid_index, &s.gid) || ibv_query_port(s.context, 1, &port)) {
        need(NULL, "query the port");
    }
    s.mtu = port.active_mtu;
    s.pd = need(ibv_alloc_pd(s.context), "allocate a protection domain");
    s.channel = need(ibv_create_comp_channel(s.context), "create a completion channel");
    s.cq = need(ibv_create_cq(s.context, 64, NULL, s.channel, 0), "create a completion queue");
    s.words = need(aligned_alloc(4096, 4096), "allocate memory");
    memset(s.words, 0, 4096);
    s.mr = need(ibv_reg_mr(s.pd, s.words, 4096, EVERYTHING), "register memory");
    return s;
}

static struct ibv_qp *new_qp(struct side *s)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = need(ibv_create_qp(s->pd, &attr), "create a queue pair");
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = EVERYTHING};
    errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                      IBV_QP_ACCESS_FLAGS);
    return need(errno == 0 ? qp : NULL, "initialise a queue pair");
}

static void join(struct side *s, struct ibv_qp *qp, const struct endpoint *peer)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR, .dest_qp_num = peer->qp_num, .min_rnr_timer = 12,
        .path_mtu = s->mtu, .max_dest_rd_atomic = 4,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)s->gid_index,
                            .hop_limit = 64}}};
    int tries = 0;
    do { /* it can fail while ARP is under way */
        errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                          IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    } while (errno == ETIMEDOUT && ++tries < 10);
    need(errno == 0 ? qp : NULL, "connect a queue pair");
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = TIMEOUT_EXPONENT,
                             .retry_cnt = RETRIES, .rnr_retry = RETRIES, .max_rd_atomic = 4};
    errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
    need(errno == 0 ? qp : NULL, "start a queue pair");
}

/* Executes one operation on the word, waits for it, and gives the value from before. */
static uint64_t execute(struct client *c, enum ibv_wr_opcode opcode, uint64_t a, uint64_t swap)
{
    struct ibv_sge sge = {.addr = (uintptr_t)c->side.words, .length = 8,
                          .lkey = c->side.mr->lkey};
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = 1,
                             .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc;
    uint64_t remote = c->arena->remote + (c->is_private ? c->number * sizeof(uint64_t) : 0);
    int n;

    if (opcode == IBV_WR_RDMA_READ) {
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = c->arena->rkey;
    } else {
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = c->arena->rkey;
        wr.wr.atomic.compare_add = a;
        wr.wr.atomic.swap = swap;
    }
    errno = ibv_post_send(c->qp, &wr, &bad);
    need(errno == 0 ? c : NULL, "post");
    while ((n = ibv_poll_cq(c->side.cq, 1, &wc)) == 0) {
        sched_yield(); /* the device of this machine needs the processor, too */
    }
    errno = EIO;
    need(n == 1 && wc.status == IBV_WC_SUCCESS ? c : NULL, "execute");
    return c->side.words[0];
}

/* A place for the next message of the peer. */
static void expect(struct client *c)
{
    struct ibv_sge sge = {.addr = (uintptr_t)(c->side.words + 1), .length = 8,
                          .lkey = c->side.mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    errno = ibv_post_recv(c->qp, &wr, &bad);
    need(errno == 0 ? c : NULL, "post a place for a message");
}

static void send_message(struct client *c)
{
    struct ibv_sge sge = {.addr = (uintptr_t)c->side.words, .length = 8,
                          .lkey = c->side.mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
                             .send_flags = IBV_SEND_SIGNALED}, *bad;
    errno = ibv_post_send(c->qp, &wr, &bad);
    need(errno == 0 ? c : NULL, "send");
}

/* Sleeps until such a completion has come. */
static void sleep_for(struct client *c, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *context;
    while (true) {
        errno = ibv_req_notify_cq(c->side.cq, 0);
        need(errno == 0 ? c : NULL, "ask for events");
        while (ibv_poll_cq(c->side.cq, 1, &wc) == 1) {
            errno = EIO;
            need(wc.status == IBV_WC_SUCCESS ? c : NULL, "execute");
            if (wc.opcode == opcode) {
                return;
            }
        }
        NEED(ibv_get_cq_event(c->side.channel, &cq, &context) == 0);
        ibv_ack_cq_events(cq, 1);
    }
}

/* ---- a lock of each kind ---- */
static bool is_bare(enum kind kind) { return kind < ATOMIC; }

static lock_ops how(enum kind kind) { return kind == SHARED ? LOCK_SHARED : LOCK_EXCLUSIVE; }

static void acquire(struct client *c)
{
    uint64_t seen;
    int status;

    switch (c->kind) {
    case CAS:
        while (execute(c, IBV_WR_ATOMIC_CMP_AND_SWP, 0, c->number + 1) != 0) {
            sched_yield();
        }
        break;
    case TICKET:
        seen = execute(c, IBV_WR_ATOMIC_FETCH_AND_ADD, NEXT, 0);
        c->ticket = (uint32_t)(seen >> 32);
        while ((uint32_t)seen != c->ticket) {
            sched_yield();
            seen = execute(c, IBV_WR_RDMA_READ, 0, 0);
        }
        break;
    default:
        while ((status = lock_op(c->dlock, c->lock, how(c->kind), LEASE_S)) != 0) {
            if (status != DLOCK_FAIL && status != DLOCK_EAGAIN) {
                fprintf(stderr, "client %u: lock: 0x%x\n", c->number, (unsigned)status);
                exit(2);
            }
        }
    }
}

static void release(struct client *c)
{
    switch (c->kind) {
    case CAS:
        NEED(execute(c, IBV_WR_ATOMIC_CMP_AND_SWP, c->number + 1, 0) == c->number + 1);
        break;
    case TICKET:
        execute(c, IBV_WR_ATOMIC_FETCH_AND_ADD, SERVED, 0);
        break;
    default:
        NEED(unlock_op(c->dlock, c->lock) == 0);
    }
}

/* The only one inside, or one of several readers. */
static void enter(struct client *c)
{
    if (atomic_fetch_add(&c->arena->inside, 1) != 0 && c->kind != SHARED && !c->is_private) {
        atomic_fetch_add(&c->arena->violations, 1);
    }
}

static void leave(struct client *c) { atomic_fetch_sub(&c->arena->inside, 1); }

/* ---- processes ---- */
static struct client new_client_of(enum kind kind, unsigned number, bool is_private,
                                   struct arena *arena, int port)
{
    struct client c = {.kind = kind, .number = number, .is_private = is_private, .arena = arena};
    if (is_bare(kind)) {
        c.side = open_side();
        c.qp = new_qp(&c.side);
        arena->clients[number] = (struct endpoint){.gid = c.side.gid, .qp_num = c.qp->qp_num};
        atomic_fetch_add(&arena->connected, 1);
        if (kind == MESSAGE) {
            expect(&c);
        }
        while (!atomic_load(&arena->accepted)) {
            usleep(1000);
        }
        join(&c.side, c.qp, kind == MESSAGE ? &arena->clients[1 - number] : &arena->servers[number]);
    } else {
        dlock_type type = kind == ATOMIC ? DLOCK_ATOMIC : kind == FAIR ? DLOCK_FAIR : DLOCK_RW;
        NEED(init_client_library(port) == 0);
        c.dlock = new_client();
        char name[32];
        snprintf(name, sizeof(name), "%s of %u", names[kind], number);
        c.lock = must_get(c.dlock, is_private ? name : names[kind], type);
    }
    atomic_fetch_add(&arena->ready, 1);
    while (!atomic_load(&arena->go)) {
        usleep(1000);
    }
    return c;
}

static void sample(struct arena *arena, int64_t ns)
{
    unsigned at = atomic_fetch_add(&arena->samples, 1);
    if (at < SAMPLES_MAX) {
        arena->ns[at] = (uint32_t)ns;
    }
}

static void cycles(struct client *c)
{
    struct arena *arena = c->arena;
    while (!atomic_load(&arena->stop)) {
        int64_t start = c->is_private ? now_ns() : 0;
        acquire(c);
        enter(c);
        leave(c);
        release(c);
        atomic_fetch_add(&arena->counts[c->number], 1);
        if (c->is_private) {
            sample(arena, now_ns() - start);
        }
    }
}

/* Both in turns: who holds it waits until the other one asks, and HOLD_US more. */
static void hand_overs(struct client *c, long hold_us)
{
    struct arena *arena = c->arena;
    int me = (int)c->number;
    while (!atomic_load(&arena->stop)) {
        atomic_store(&arena->about[me], 1);
        acquire(c);
        int64_t got = now_ns();
        enter(c);
        atomic_store(&arena->about[me], 0);
        if (atomic_load(&arena->released_by) == 2 - me) {
            sample(arena, got - atomic_load(&arena->released_ns));
        }
        while (!atomic_load(&arena->about[1 - me]) && !atomic_load(&arena->stop)) {
            sched_yield();
        }
        int64_t end = now_ns() + hold_us * 1000;
        if (hold_us >= 100) {
            usleep((useconds_t)hold_us);
        }
        while (now_ns() < end) {
            sched_yield();
        }
        leave(c);
        atomic_store(&arena->released_by, me + 1);
        atomic_store(&arena->released_ns, now_ns());
        release(c);
        atomic_fetch_add(&arena->counts[me], 1);
    }
}

/* One asks, the other answers; both sleep in between. The last question says that it is. */
static void messages(struct client *c, long hold_us)
{
    struct arena *arena = c->arena;
    bool is_last = false;
    while (!is_last) {
        int64_t start = 0;
        if (c->number == 0) {
            usleep((useconds_t)hold_us);
            is_last = atomic_load(&arena->stop);
            c->side.words[0] = is_last;
            start = now_ns();
            send_message(c);
        }
        sleep_for(c, IBV_WC_RECV);
        if (c->number == 1) {
            is_last = c->side.words[1] != 0;
        }
        expect(c);
        if (c->number == 1) {
            send_message(c);
            continue;
        }
        sample(arena, now_ns() - start);
        atomic_fetch_add(&arena->counts[0], 1);
    }
    usleep(c->number == 1 ? 200000 : 0); /* its last answer arrives */
}

static void accept_all(struct side *side, struct arena *arena, unsigned clients)
{
    arena->remote = (uintptr_t)side->words;
    arena->rkey = side->mr->rkey;
    while ((unsigned)atomic_load(&arena->connected) < clients) {
        usleep(1000);
    }
    for (unsigned i = 0; i < clients; i++) {
        struct ibv_qp *qp = new_qp(side);
        arena->servers[i] = (struct endpoint){.gid = side->gid, .qp_num = qp->qp_num};
        join(side, qp, &arena->clients[i]);
    }
    atomic_store(&arena->accepted, 1);
}

/* ---- what it costs ---- */
static double busy_seconds(void)
{
    unsigned long long user = 0, nice = 0, system = 0, idle, wait, irq = 0, softirq = 0;
    FILE *file = need(fopen("/proc/stat", "r"), "read /proc/stat");
    NEED(fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
                &wait, &irq, &softirq) == 7);
    fclose(file);
    return (double)(user + nice + system + irq + softirq) / (double)sysconf(_SC_CLK_TCK);
}

/* A counter of the device, of both ends: `sent_pkts`, or `rdma_sends`, which are messages. */
static unsigned long long counter(const char *name)
{
    const char *device = getenv("RXE_VM_DEV");
    char path[200];
    unsigned long long count = 0;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/%s",
             device ? device : "rxe0", name);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        NEED(fscanf(file, "%llu", &count) == 1);
        fclose(file);
    }
    return count;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    bool is_rate = argc > 4 && strcmp(argv[1], "rate") == 0;
    bool is_private = argc > 4 && strcmp(argv[1], "private") == 0;
    bool is_closed = is_rate || is_private;
    if (argc < 5 || !(is_closed || strcmp(argv[1], "handover") == 0)) {
        fprintf(stderr, "usage: hot rate KIND CLIENTS SECONDS [PORT]\n"
                        "       hot private KIND CLIENTS SECONDS [PORT]\n"
                        "       hot handover KIND HOLD_US SECONDS [PORT]\n");
        return 2;
    }
    enum kind kind = CAS;
    while (kind < KINDS && strcmp(names[kind], argv[2]) != 0) {
        kind++;
    }
    unsigned clients = is_closed ? (unsigned)atoi(argv[3]) : 2;
    long hold_us = is_closed ? 0 : atol(argv[3]);
    int port = argc > 5 ? atoi(argv[5]) : 0;
    NEED(kind < KINDS && !(is_closed && kind == MESSAGE) && clients >= 1 && clients <= CLIENTS_MAX);
    struct arena *arena = mmap(NULL, sizeof(struct arena), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(arena != MAP_FAILED);
    for (unsigned i = 0; i < clients; i++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            struct client c = new_client_of(kind, i, is_private, arena, port);
            if (kind == MESSAGE) {
                messages(&c, hold_us);
            } else if (is_closed) {
                cycles(&c);
            } else {
                hand_overs(&c, hold_us);
            }
            NEED(is_bare(kind) || client_deinit(c.dlock) == 0);
            _exit(0);
        }
    }
    struct side server;
    if (is_bare(kind)) {
        server = open_side();
        accept_all(&server, arena, clients);
    }
    while ((unsigned)atomic_load(&arena->ready) < clients) {
        usleep(1000);
        NEED(waitpid(-1, NULL, WNOHANG) == 0); /* none has failed */
    }
    double busy = busy_seconds(), start = seconds_now();
    unsigned long long packets = counter("sent_pkts"), messages = counter("rdma_sends");
    atomic_store(&arena->go, 1);
    sleep_seconds(atof(argv[4]));
    unsigned long counts[CLIENTS_MAX], all = 0, least = -1UL, most = 0;
    for (unsigned i = 0; i < clients; i++) {
        counts[i] = atomic_load(&arena->counts[i]);
        all += counts[i];
        least = counts[i] < least ? counts[i] : least;
        most = counts[i] > most ? counts[i] : most;
    }
    double seconds = seconds_now() - start;
    busy = busy_seconds() - busy;
    packets = counter("sent_pkts") - packets;
    messages = counter("rdma_sends") - messages;
    atomic_store(&arena->stop, 1);
    int failed = all == 0;
    for (unsigned i = 0; i < clients; i++) {
        int status;
        NEED(wait(&status) > 0);
        failed |= status != 0;
    }
    failed |= atomic_load(&arena->violations) != 0;
    if (is_rate) {
        printf("rate %.0f least %lu most %lu", (double)all / seconds, least, most);
    } else {
        unsigned n = atomic_load(&arena->samples);
        n = n < SAMPLES_MAX ? n : SAMPLES_MAX;
        qsort(arena->ns, n, sizeof(arena->ns[0]), by_size);
        printf("%s_us %.1f p99_us %.1f samples %u", is_private ? "cycle" : "handover",
               n ? arena->ns[n / 2] / 1e3 : 0.0, n ? arena->ns[n * 99 / 100] / 1e3 : 0.0, n);
    }
    double operations = (double)(all ? all : 1);
    printf(" cpu_us %.1f packets %.1f messages %.2f violations %d\n", busy * 1e6 / operations,
           (double)packets / operations, (double)messages / operations,
           atomic_load(&arena->violations));
    return failed;
}
