/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every lock type in every state, under every operation, by single call, batch and async call:
 * the code, the state afterwards, how many bytes of the result are written, and the counter.
 */
#include "scenario_locks.h"

enum state { FREE, UNLOCKED, HELD, HELD_TWICE, SHARED, SHARED_TWICE, QUEUED, QUEUED_SHARED, LOST };
enum path { SINGLE, WAITING, BATCH, ASYNC, PATHS };
static const char *const state_names[] = {"free",   "unlocked",     "held",   "held twice",
                                          "shared", "shared twice", "queued", "queued shared"};
static const char *const path_names[] = {"single", "lock()", "batch", "async"};
static const char *const type_names[] = {"atomic", "rw", "fair"};
static const char *const op_names[] = {"LOCK_EXCLUSIVE", "LOCK_SHARED", "UNLOCK",
                                       "EXTEND_LOCK_EXCLUSIVE", "EXTEND_LOCK_SHARED"};

#define EI DLOCK_EINVAL
#define AL DLOCK_ALREADY_LOCKED
#define AU DLOCK_ALREADY_UNLOCKED
#define ET DLOCK_ETICKET
#define EA DLOCK_EAGAIN

/* The code of each operation, and the state after it (LOST: as before). */
struct row {
    dlock_type type;
    enum state state;
    int code[5];
    enum state after[5];
};

static const struct row rows[] = {
    {DLOCK_ATOMIC, FREE, {0, EI, AU, EI, EI}, {HELD, LOST, LOST, LOST, LOST}},
    {DLOCK_ATOMIC, UNLOCKED, {0, EI, AU, EI, EI}, {HELD, LOST, LOST, LOST, LOST}},
    {DLOCK_ATOMIC, HELD, {AL, EI, 0, 0, EI}, {HELD_TWICE, LOST, FREE, LOST, LOST}},
    {DLOCK_ATOMIC, HELD_TWICE, {AL, EI, AL, 0, EI}, {LOST, LOST, HELD, LOST, LOST}},
    {DLOCK_RW, FREE, {0, 0, AU, EI, EI}, {HELD, SHARED, LOST, LOST, LOST}},
    {DLOCK_RW, UNLOCKED, {0, 0, AU, EI, EI}, {HELD, SHARED, LOST, LOST, LOST}},
    {DLOCK_RW, HELD, {AL, EI, 0, EI, EI}, {HELD_TWICE, LOST, FREE, LOST, LOST}},
    {DLOCK_RW, HELD_TWICE, {AL, EI, AL, EI, EI}, {LOST, LOST, HELD, LOST, LOST}},
    {DLOCK_RW, SHARED, {EI, AL, 0, EI, EI}, {LOST, SHARED_TWICE, FREE, LOST, LOST}},
    {DLOCK_RW, SHARED_TWICE, {EI, AL, AL, EI, EI}, {LOST, LOST, SHARED, LOST, LOST}},
    {DLOCK_FAIR, FREE, {0, 0, AU, EI, EI}, {HELD, SHARED, LOST, LOST, LOST}},
    {DLOCK_FAIR, UNLOCKED, {0, 0, AU, EI, EI}, {HELD, SHARED, LOST, LOST, LOST}},
    {DLOCK_FAIR, HELD, {AL, EI, 0, 0, EI}, {HELD_TWICE, LOST, FREE, LOST, LOST}},
    {DLOCK_FAIR, HELD_TWICE, {AL, EI, AL, 0, EI}, {LOST, LOST, HELD, LOST, LOST}},
    {DLOCK_FAIR, SHARED, {EI, AL, 0, EI, 0}, {LOST, SHARED_TWICE, FREE, LOST, LOST}},
    {DLOCK_FAIR, SHARED_TWICE, {EI, AL, AL, EI, 0}, {LOST, LOST, SHARED, LOST, LOST}},
    {DLOCK_FAIR, QUEUED, {EA, ET, 0, EI, EI}, {LOST, LOST, FREE, LOST, LOST}},
    {DLOCK_FAIR, QUEUED_SHARED, {ET, EA, 0, EI, EI}, {LOST, LOST, FREE, LOST, LOST}},
};

static int me, holder, cells;

static int is_queued(enum state state)
{
    return state == QUEUED || state == QUEUED_SHARED;
}

/* A new lock that is in this state for `me`. */
static int lock_in(dlock_type type, enum state state)
{
    char name[40];
    snprintf(name, sizeof(name), "cell %d", ++cells);
    int id = must_get(me, name, type);
    if (is_queued(state)) {
        must_get(holder, name, type);
        NEED(try_op(holder, id, LOCK_EXCLUSIVE, 60) == 0);
        lock_ops op = state == QUEUED ? LOCK_EXCLUSIVE : LOCK_SHARED;
        NEED(try_op(me, id, op, 60) == DLOCK_EAGAIN);
        return id;
    }
    lock_ops op = state == SHARED || state == SHARED_TWICE ? LOCK_SHARED : LOCK_EXCLUSIVE;
    if (state != FREE) {
        NEED(try_op(me, id, op, 60) == 0);
    }
    if (state == UNLOCKED) {
        NEED(unlock_op(me, id) == 0);
    }
    if (state == HELD_TWICE || state == SHARED_TWICE) {
        NEED(try_op(me, id, op, 60) == DLOCK_ALREADY_LOCKED);
    }
    return id;
}

/* Looks at a lock's state by operations, and leaves it released. */
static void expect_state(int id, dlock_type type, enum state state)
{
    union seen s = unseen();
    if (is_queued(state)) {
        EQ(release_lock(me, id), DLOCK_TICKET_TO_UNLOCK);
        EQ(unlock(me, id, &s), 0);
        CHECK(untouched_from(&s, 0));
    } else if (state != FREE && state != UNLOCKED) {
        int shared = state == SHARED || state == SHARED_TWICE;
        EQ(release_lock(me, id), -1);
        if (type != DLOCK_RW) {
            EQ(extend_op(me, id, EXTEND_LOCK_EXCLUSIVE, 0), shared ? DLOCK_EINVAL : 0);
            EQ(extend_op(me, id, EXTEND_LOCK_SHARED, 0), shared ? 0 : DLOCK_EINVAL);
        } else {
            EQ(try_op(me, id, shared ? LOCK_EXCLUSIVE : LOCK_SHARED, 5), DLOCK_EINVAL);
        }
        if (state == HELD_TWICE || state == SHARED_TWICE) {
            EQ(unlock_op(me, id), DLOCK_ALREADY_LOCKED);
        }
        EQ(unlock_op(me, id), 0);
    }
    EQ(unlock_op(me, id), DLOCK_ALREADY_UNLOCKED);
    EQ(release_lock(me, id), 0);
}

static enum state state_after(const struct row *row, lock_ops op)
{
    enum state after = row->after[op];
    return after == LOST ? row->state : after;
}

/* How many re-entries more than `state` says (HELD_TWICE locked once more). */
static int third_hold(const struct row *row, lock_ops op)
{
    return row->code[op] == AL && op != UNLOCK && state_after(row, op) == row->state;
}

/* The bytes of the result that an operation with this code writes. */
static size_t extent(const struct row *row, lock_ops op, int code)
{
    static const size_t sizes[] = {8, 12, 16};
    int nothing = code == EI || code == ET || code == AU || (op == UNLOCK && code == AL) ||
                  (op == UNLOCK && is_queued(row->state));
    return nothing ? 0 : sizes[row->type];
}

/* Whether an asynchronous call answers at once instead of beginning an operation. */
static int is_local(const struct row *row, lock_ops op, int code)
{
    return code == EI || code == ET || code == AU || (op == UNLOCK && code == AL) ||
           (row->type == DLOCK_RW && code == AL) || (op == UNLOCK && is_queued(row->state));
}

static int perform(enum path path, const struct row *row, int id, lock_ops op, union seen *s)
{
    struct lock_request req = request(id, op, 60);
    struct lock_op_res res;
    int status;
    if (path == BATCH) {
        memset(&res, 0xEE, sizeof(res));
        status = op == UNLOCK   ? batch_unlock(me, 1, &id, &res)
                 : op >= UNLOCK ? batch_lock_extend(me, 1, &req, &res)
                                : batch_trylock(me, 1, &req, &res);
        EQ(status, 0);
        memcpy(s, &res, sizeof(*s));
        return res.op_ret;
    }
    if (path == ASYNC) {
        status = lock_request_async(me, &req);
        if (is_local(row, op, row->code[op])) {
            EQ(lock_result_check(me, s), DLOCK_NO_ASYNC);
            return status;
        }
        EQ(status, 0);
        return async_wait(me, s);
    }
    return op == UNLOCK   ? unlock(me, id, s)
           : op > UNLOCK  ? lock_extend(me, &req, s)
           : path != WAITING ? trylock(me, &req, s)
                             : lock(me, &req, s);
}

/* The counter that a single or asynchronous call increments; -1: none. */
static int counter(enum path path, const struct row *row, lock_ops op, int code)
{
    switch (code) {
    case EI: return DEBUG_STATS_EINVAL_LOCK_OP;
    case ET: return DEBUG_STATS_ETICKET;
    case AU: return DEBUG_STATS_ALREADY_UNLOCKED;
    case AL:
        if (op == UNLOCK) {
            return path == ASYNC && row->type != DLOCK_RW ? -1 : DEBUG_STATS_ALREADY_LOCKED;
        }
        return row->type == DLOCK_ATOMIC ? -1 : DEBUG_STATS_ALREADY_LOCKED;
    default: return -1;
    }
}

static void one_cell(enum path path, const struct row *row, lock_ops op)
{
    unsigned failed = checks_failed;
    struct debug_stats stats;
    union seen s = unseen();
    int id = lock_in(row->type, row->state);
    NEED(clear_client_debug_stats(me) == 0);
    double start = seconds_now();
    int code = perform(path, row, id, op, &s);
    double took = own_seconds_since(start);
    EQ(code, row->code[op]);
    if (is_local(row, op, code) || path != WAITING) {
        CHECK(took < 3); /* waiting would cure nothing */
    }
    size_t written = path == ASYNC && is_local(row, op, code) ? 0 : extent(row, op, code);
    CHECK(untouched_from(&s, written));
    CHECK(written == 0 || !untouched_from(&s, 0));
    NEED(get_client_debug_stats(me, &stats) == 0);
    if (path == SINGLE || path == ASYNC) {
        int extra_no_async = path == ASYNC && is_local(row, op, code);
        for (int i = 0; i < DEBUG_STATS_MAX; ++i) {
            int want = (i == counter(path, row, op, code)) +
                       (i == DEBUG_STATS_NO_ASYNC && extra_no_async);
            if (stats.stats[i] != (uint64_t)want) {
                fprintf(stderr, "counter %d is %d, not %d\n", i, (int)stats.stats[i], want);
                CHECK(0);
            }
        }
    }
    if (third_hold(row, op)) {
        EQ(unlock_op(me, id), DLOCK_ALREADY_LOCKED);
    }
    expect_state(id, row->type, state_after(row, op));
    if (is_queued(row->state)) {
        EQ(unlock_op(holder, id), 0);
        EQ(release_lock(holder, id), 0);
    }
    if (failed != checks_failed) {
        fprintf(stderr, "  in: %s lock, %s, %s by %s\n", type_names[row->type],
                state_names[row->state], op_names[op], path_names[path]);
    }
}

/* A lock that another client holds. */
static void taken_by_another(enum path path)
{
    static const struct row taken[] = {
        {DLOCK_ATOMIC, FREE, {DLOCK_FAIL, EI, AU, EI, EI}, {LOST, LOST, LOST, LOST, LOST}},
        {DLOCK_RW, FREE, {DLOCK_FAIL, DLOCK_FAIL, AU, EI, EI}, {LOST, LOST, LOST, LOST, LOST}},
        {DLOCK_FAIR, FREE, {EA, EA, AU, EI, EI}, {QUEUED, QUEUED_SHARED, LOST, LOST, LOST}},
    };
    for (int type = 0; type < 3; ++type) {
        for (int op = 0; op < LOCK_OPS_MAX; ++op) {
            char name[40];
            struct debug_stats stats;
            union seen s = unseen();
            snprintf(name, sizeof(name), "taken %d", ++cells);
            int id = must_get(me, name, taken[type].type);
            must_get(holder, name, taken[type].type);
            NEED(try_op(holder, id, LOCK_EXCLUSIVE, 60) == 0);
            NEED(clear_client_debug_stats(me) == 0);
            int code = perform(path, &taken[type], id, (lock_ops)op, &s);
            EQ(code, taken[type].code[op]);
            CHECK(untouched_from(&s, code == EA ? 16 : 0));
            NEED(get_client_debug_stats(me, &stats) == 0);
            if (path == SINGLE && code == DLOCK_FAIL) {
                EQ(stats.stats[DEBUG_STATS_EINVAL_LOCK_RET], 1);
            }
            expect_state(id, taken[type].type, state_after(&taken[type], (lock_ops)op));
            EQ(unlock_op(holder, id), 0);
            EQ(release_lock(holder, id), 0);
        }
    }
}

int main(void)
{
    int port = free_port();
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    me = new_client();
    holder = new_client();
    for (int path = 0; path < PATHS; ++path) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); ++i) {
            for (int op = 0; op < LOCK_OPS_MAX; ++op) {
                /* lock() has two operations, and would wait 5 s in a queue */
                int waits = op > LOCK_SHARED || rows[i].code[op] == EA;
                if (path != WAITING || !waits) {
                    one_cell((enum path)path, &rows[i], (lock_ops)op);
                }
            }
        }
        if (path != WAITING) {
            taken_by_another((enum path)path);
        }
    }
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("state_table");
}
