/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What dlock asks of an RDMA device, in plain verbs, before any line of dlock runs on it.
 *
 *   verbs_smoke DEVICE GID_INDEX [DEVICE2 GID_INDEX2]
 *
 *   requester on DEVICE  -- one reliable connection -->  responder on DEVICE2 (or DEVICE)
 *
 * Prints a line per check; exit status 0 if all hold, 1 if not, 2 if the device cannot be used.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORDS 512             /* of the responder's region: one page */
#define QUEUE_DEPTH 16        /* requests a queue pair can hold */
#define WAIT_S 10             /* for a completion; a dead peer is seen in 0.5 s */
#define CONNECT_TRIES 10      /* a transition to RTR can fail while ARP is under way */
#define TIMEOUT_EXPONENT 14   /* 4.096 us * 2^14 = 67 ms per try */
#define RETRIES 6             /* 7 would be for ever on rxe */
#define EVERYTHING \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | \
     IBV_ACCESS_REMOTE_ATOMIC)

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint64_t *words;
    union ibv_gid gid;
    int gid_index;
    enum ibv_mtu mtu;
};

static int checks, failures;

static void check(bool holds, const char *what)
{
    printf("%s %s\n", holds ? "ok    " : "FAILED", what);
    checks++;
    failures += !holds;
}

static void *need(void *p, const char *what)
{
    if (!p) {
        printf("cannot %s: %s\n", what, strerror(errno));
        exit(2);
    }
    return p;
}

static void create_qp(struct side *s)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = QUEUE_DEPTH, .max_recv_wr = 1, .max_send_sge = 1,
                .max_recv_sge = 1},
    };
    s->qp = need(ibv_create_qp(s->pd, &attr), "create a queue pair");
}

static void open_side(struct side *s, const char *name, int gid_index)
{
    struct ibv_device **list = need(ibv_get_device_list(NULL), "list the devices");
    struct ibv_device *device = NULL;
    struct ibv_port_attr port;

    for (int i = 0; list[i]; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0)
            device = list[i];
    errno = ENODEV;
    s->context = need(device ? ibv_open_device(device) : NULL, "open the device");
    ibv_free_device_list(list);
    s->gid_index = gid_index;
    if (ibv_query_gid(s->context, 1, gid_index, &s->gid) || ibv_query_port(s->context, 1, &port))
        need(NULL, "query the port");
    s->mtu = port.active_mtu;
    s->pd = need(ibv_alloc_pd(s->context), "allocate a protection domain");
    s->cq = need(ibv_create_cq(s->context, 2 * QUEUE_DEPTH, NULL, NULL, 0),
                 "create a completion queue");
    s->words = need(aligned_alloc(4096, WORDS * sizeof(uint64_t)), "allocate memory");
    memset(s->words, 0, WORDS * sizeof(uint64_t));
    s->mr = need(ibv_reg_mr(s->pd, s->words, WORDS * sizeof(uint64_t), EVERYTHING),
                 "register memory");
    create_qp(s);
}

static void close_side(struct side *s)
{
    if (s->qp)
        check(ibv_destroy_qp(s->qp) == 0, "the queue pair can be destroyed");
    check(ibv_dereg_mr(s->mr) == 0, "the region can be deregistered");
    check(ibv_destroy_cq(s->cq) == 0, "the completion queue can be destroyed");
    check(ibv_dealloc_pd(s->pd) == 0, "the protection domain can be freed");
    check(ibv_close_device(s->context) == 0, "the device can be closed");
    free(s->words);
}

/* RESET -> INIT -> RTR -> RTS of one end; an errno. */
static int join(struct side *s, const struct side *peer)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
    int error, tries = 0;

    error = ibv_modify_qp(s->qp, &a, IBV_QP_STATE);
    if (error)
        return error;
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1,
                             .qp_access_flags = EVERYTHING};
    error = ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                         IBV_QP_ACCESS_FLAGS);
    if (error)
        return error;
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .dest_qp_num = peer->qp->qp_num, .min_rnr_timer = 12,
        .path_mtu = s->mtu < peer->mtu ? s->mtu : peer->mtu, .max_dest_rd_atomic = 4,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)s->gid_index,
                            .hop_limit = 64}},
    };
    do {
        error = ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                             IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    } while (error == ETIMEDOUT && ++tries < CONNECT_TRIES);
    if (error)
        return error;
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = TIMEOUT_EXPONENT,
                             .retry_cnt = RETRIES, .rnr_retry = RETRIES, .max_rd_atomic = 4};
    return ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                        IBV_QP_MAX_QP_RD_ATOMIC);
}

static void connect_sides(struct side *a, struct side *b)
{
    errno = join(a, b);
    if (!errno)
        errno = join(b, a);
    if (errno)
        need(NULL, "connect");
}

/* One completion within WAIT_S; its status, or -1. */
static int completion(struct side *s, uint64_t *wr_id)
{
    struct timespec start, now;
    struct ibv_wc wc;
    int n;

    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        n = ibv_poll_cq(s->cq, 1, &wc);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (n == 0 && now.tv_sec - start.tv_sec < WAIT_S);
    if (n != 1)
        return -1;
    if (wr_id)
        *wr_id = wc.wr_id;
    return (int)wc.status;
}

/* A request whose 8-byte result goes to word `slot` of the requester. */
struct request {
    struct ibv_sge sge;
    struct ibv_send_wr wr;
};

static void fill(struct request *r, struct side *s, int slot, enum ibv_wr_opcode opcode,
                 uint64_t remote, uint32_t rkey)
{
    memset(r, 0, sizeof *r);
    r->sge = (struct ibv_sge){.addr = (uintptr_t)&s->words[slot], .length = 8,
                              .lkey = s->mr->lkey};
    r->wr.wr_id = (uint64_t)slot;
    r->wr.opcode = opcode;
    r->wr.sg_list = &r->sge;
    r->wr.num_sge = 1;
    r->wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_RDMA_READ) {
        r->wr.wr.rdma.remote_addr = remote;
        r->wr.wr.rdma.rkey = rkey;
    } else {
        r->wr.wr.atomic.remote_addr = remote;
        r->wr.wr.atomic.rkey = rkey;
    }
}

static int post(struct side *s, struct request *first)
{
    struct ibv_send_wr *bad;

    return ibv_post_send(s->qp, &first->wr, &bad);
}

/* FAA of `add`; the status of its completion, or -1 if there is none. */
static int faa(struct side *s, uint64_t remote, uint32_t rkey, uint64_t add)
{
    struct request r;

    fill(&r, s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, remote, rkey);
    r.wr.wr.atomic.compare_add = add;
    return post(s, &r) ? -1 : completion(s, NULL);
}

static int cas(struct side *s, uint64_t remote, uint32_t rkey, uint64_t compare, uint64_t swap)
{
    struct request r;

    fill(&r, s, 0, IBV_WR_ATOMIC_CMP_AND_SWP, remote, rkey);
    r.wr.wr.atomic.compare_add = compare;
    r.wr.wr.atomic.swap = swap;
    return post(s, &r) ? -1 : completion(s, NULL);
}

static enum ibv_qp_state state(struct side *s)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    return ibv_query_qp(s->qp, &attr, IBV_QP_STATE, &init) ? IBV_QPS_UNKNOWN : attr.qp_state;
}

static void chain_with_one_completion(struct side *a, struct side *b)
{
    uint64_t word = (uintptr_t)&b->words[0], id = 0;
    struct request faa_r, cas_r, read_r;
    struct ibv_wc wc;

    b->words[0] = 7;
    fill(&faa_r, a, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, word, b->mr->rkey);
    faa_r.wr.wr.atomic.compare_add = 5;
    fill(&cas_r, a, 2, IBV_WR_ATOMIC_CMP_AND_SWP, word, b->mr->rkey);
    cas_r.wr.wr.atomic.compare_add = 12;
    cas_r.wr.wr.atomic.swap = 99;
    fill(&read_r, a, 3, IBV_WR_RDMA_READ, word, b->mr->rkey);
    faa_r.wr.send_flags = cas_r.wr.send_flags = 0;
    faa_r.wr.next = &cas_r.wr;
    cas_r.wr.next = &read_r.wr;
    check(post(a, &faa_r) == 0, "chain: FAA, CAS, READ can be posted at once");
    check(completion(a, &id) == IBV_WC_SUCCESS && id == 3, "chain: the last one completes");
    check(ibv_poll_cq(a->cq, 1, &wc) == 0, "chain: and no other");
    check(a->words[1] == 7, "chain: FAA returns the word of before");
    check(a->words[2] == 12, "chain: CAS sees what FAA wrote");
    check(a->words[3] == 99 && b->words[0] == 99, "chain: READ sees what CAS wrote");
}

static void words_of_64_bits(struct side *a, struct side *b)
{
    uint64_t word = (uintptr_t)&b->words[1];

    b->words[1] = UINT64_MAX;
    check(faa(a, word, b->mr->rkey, 2) == IBV_WC_SUCCESS && a->words[0] == UINT64_MAX &&
              b->words[1] == 1, "FAA wraps at 2^64");
    check(cas(a, word, b->mr->rkey, 5, 6) == IBV_WC_SUCCESS && a->words[0] == 1 &&
              b->words[1] == 1, "CAS that does not match returns the word and leaves it");
    check(cas(a, word, b->mr->rkey, 1, UINT64_C(0x8000000000000001)) == IBV_WC_SUCCESS &&
              b->words[1] == UINT64_C(0x8000000000000001), "CAS swaps all 64 bits");
}

/* After a request that the responder refused: dead, flushed, nothing written; then alive again. */
static void is_dead_and_comes_back(struct side *a, struct side *b, const char *name)
{
    char text[128];
    uint64_t before = b->words[2];
    int flushed = faa(a, (uintptr_t)&b->words[2], b->mr->rkey, 1);

    snprintf(text, sizeof text, "%s: the queue pair is dead, later requests are flushed", name);
    check(state(a) == IBV_QPS_ERR && flushed == IBV_WC_WR_FLUSH_ERR && b->words[2] == before,
          text);
    connect_sides(a, b);
    snprintf(text, sizeof text, "%s: it works after a reset and a reconnect", name);
    check(faa(a, (uintptr_t)&b->words[2], b->mr->rkey, 1) == IBV_WC_SUCCESS &&
              a->words[0] == before && b->words[2] == before + 1, text);
}

static void refused(struct side *a, struct side *b, const char *name, uint64_t *word,
                    uint32_t rkey)
{
    char text[128];
    uint64_t before = *word;
    int status = faa(a, (uintptr_t)word, rkey, 1);

    snprintf(text, sizeof text, "%s: refused as an access error, nothing written", name);
    check(status == IBV_WC_REM_ACCESS_ERR && *word == before, text);
    is_dead_and_comes_back(a, b, name);
}

static void access_errors(struct side *a, struct side *b)
{
    static uint64_t other[WORDS] __attribute__((aligned(4096)));
    struct ibv_mr *mr;
    uint32_t rkey;

    refused(a, b, "an rkey of nobody", &b->words[3], b->mr->rkey ^ 0xff00);

    mr = need(ibv_reg_mr(b->pd, other, sizeof other / 2, EVERYTHING), "register memory");
    refused(a, b, "past the end of a region", &other[WORDS / 2], mr->rkey);
    rkey = mr->rkey;
    check(ibv_dereg_mr(mr) == 0, "a region can be deregistered while connected");
    refused(a, b, "a region that was deregistered", &other[0], rkey);

    mr = need(ibv_reg_mr(b->pd, other, sizeof other, IBV_ACCESS_REMOTE_READ), "register memory");
    refused(a, b, "a region to read only", &other[0], mr->rkey);
    ibv_dereg_mr(mr);
}

static void misaligned(struct side *a, struct side *b)
{
    uint64_t before = b->words[4];
    struct request r;
    int error;

    fill(&r, a, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)&b->words[4] + 4, b->mr->rkey);
    r.wr.wr.atomic.compare_add = 1;
    error = post(a, &r);
    check((error || completion(a, NULL) != IBV_WC_SUCCESS) && b->words[4] == before,
          "a misaligned FAA is refused, when posted or by the responder");
    connect_sides(a, b);
}

static void dead_peer(struct side *a, struct side *b)
{
    uint64_t before = b->words[5];
    struct timespec start, end;
    int status;

    check(ibv_destroy_qp(b->qp) == 0, "the responder destroys its queue pair");
    b->qp = NULL;
    clock_gettime(CLOCK_MONOTONIC, &start);
    status = faa(a, (uintptr_t)&b->words[5], b->mr->rkey, 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    check(status == IBV_WC_RETRY_EXC_ERR && b->words[5] == before,
          "a dead peer ends the request by its retries");
    printf("       after %.2f s\n", (double)(end.tv_sec - start.tv_sec) +
                                           (double)(end.tv_nsec - start.tv_nsec) / 1e9);
    create_qp(b);
    connect_sides(a, b);
    check(faa(a, (uintptr_t)&b->words[5], b->mr->rkey, 1) == IBV_WC_SUCCESS,
          "a new queue pair of the responder: it works again");
}

int main(int argc, char **argv)
{
    struct side a = {0}, b = {0};

    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: %s DEVICE GID_INDEX [DEVICE2 GID_INDEX2]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_side(&a, argv[1], atoi(argv[2]));
    open_side(&b, argv[argc - 2], atoi(argv[argc - 1]));
    connect_sides(&a, &b);
    chain_with_one_completion(&a, &b);
    words_of_64_bits(&a, &b);
    access_errors(&a, &b);
    misaligned(&a, &b);
    dead_peer(&a, &b);
    close_side(&a);
    close_side(&b);
    printf("  %s to %s: %d of %d checks hold\n", argv[1], argv[argc - 2], checks - failures, checks);
    return failures != 0;
}
