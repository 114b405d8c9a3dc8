/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h: many locks in one call. */
#include "modern.h"

static const uint32_t types[] = {DLOCK_TYPE_FAIR, DLOCK_TYPE_ATOMIC, DLOCK_TYPE_READ_WRITE};

#define MANY 200

/* More locks at once than a message has room for. */
static void many(int port)
{
    static dlock_item items[MANY];
    dlock_client one = open_client(port), two = open_client(port);
    dlock_lock last, seventh;
    dlock_hold hold;
    dlock_cancel cancel;
    for (int i = 0; i < MANY; ++i) {
        char name[16];
        snprintf(name, sizeof(name), "many %d", i);
        DLOCK_INIT(&items[i]);
        items[i].lock = open_lock(one, name, types[i % 3]);
        if (i == 77)
            last = open_lock(two, name, types[i % 3]);
    }
    for (int round = 0; round < 3; ++round) {
        OK(dlock_acquire_many(items, MANY, AMPLE, NONE));
        for (int i = 0; i < MANY; ++i) {
            CHECK(items[i].status == DLOCK_OK && items[i].hold.id != 0 && items[i].token != 0);
        }
        OK(dlock_release_many(items, MANY, AMPLE, NONE));
        OK(dlock_release_many(items, MANY, AMPLE, NONE)); /* nothing is left to release */
    }
    hold = must_hold(last, NULL);
    IS(dlock_acquire_many(items, MANY, DLOCK_S(1), NONE), DLOCK_E_TIMED_OUT);
    CHECK(strstr(dlock_last_detail(), "items[77]") != NULL);
    for (int i = 0; i < MANY; ++i) {
        EQ(items[i].status, i == 77 ? DLOCK_E_TIMED_OUT : DLOCK_OK);
    }
    OK(dlock_release_many(items, MANY, AMPLE, NONE));
    OK(dlock_release(hold, AMPLE, NONE));
    items[5].flags = 8;
    seventh = items[7].lock;
    items[7].lock.id = 77;
    IS(dlock_acquire_many(items, MANY, AMPLE, NONE), DLOCK_E_INVALID);
    for (int i = 0; i < MANY; ++i) {
        EQ(items[i].status, i == 5 ? DLOCK_E_INVALID : i == 7 ? DLOCK_E_HANDLE : DLOCK_E_CANCELLED);
        CHECK(items[i].hold.id == 0 && items[i].token == 0);
    }
    items[5].flags = 0;
    items[7].lock = seventh;
    OK(dlock_cancel_new(&cancel));
    OK(dlock_cancel_fire(cancel));
    IS(dlock_acquire_many(items, MANY, AMPLE, cancel), DLOCK_E_CANCELLED);
    OK(dlock_cancel_close(cancel));
    items[0].status = DLOCK_OK;
    IS(dlock_acquire_many(items, MANY, AMPLE, cancel), DLOCK_E_HANDLE);
    CHECK(items[0].status == DLOCK_E_HANDLE && items[MANY - 1].status == DLOCK_E_HANDLE);
    items[6].size = 8;
    IS(dlock_acquire_many(items, MANY, AMPLE, NONE), DLOCK_E_SIZE);
    IS(dlock_acquire_many(NULL, 1, AMPLE, NONE), DLOCK_E_INVALID);
    OK(dlock_acquire_many(NULL, 0, AMPLE, NONE));
    hold = must_hold(last, NULL); /* no failed call has acquired anything */
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
    IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_LEFT);
    for (int i = 0; i < MANY; ++i) {
        OK(dlock_lock_close(items[i].lock, AMPLE, NONE));
    }
    OK(dlock_lock_close(last, AMPLE, NONE));
}

/* A lease that ends while another of many is waited for. */
static void many_leases(int port)
{
    dlock_item items[2];
    dlock_client one = open_client(port), two = open_client(port);
    for (uint32_t type = DLOCK_TYPE_FAIR; type <= DLOCK_TYPE_ATOMIC; ++type) {
        const char *names[2] = {type == DLOCK_TYPE_FAIR ? "lapses" : "lapses too", "waits"};
        dlock_lock held = open_lock(two, names[1], DLOCK_TYPE_FAIR);
        dlock_acquire_options options = wanted(DLOCK_EXCLUSIVE, 0, 3000);
        dlock_hold hold;
        OK(dlock_acquire(held, &options, AMPLE, NONE, &hold, NULL));
        for (int i = 0; i < 2; ++i) {
            DLOCK_INIT(&items[i]);
            items[i].lock = open_lock(one, names[i], i == 0 ? type : DLOCK_TYPE_FAIR);
            items[i].lease_ms = i == 0 ? 1000 : 60000;
        }
        IS(dlock_acquire_many(items, 2, AMPLE, NONE), DLOCK_E_LOST);
        CHECK(items[0].status == DLOCK_E_LOST && items[0].hold.id == 0 && items[0].token == 0);
        CHECK(items[1].status == DLOCK_OK && items[1].hold.id != 0);
        OK(dlock_release_many(items, 2, AMPLE, NONE));
        IS(dlock_release(hold, AMPLE, NONE), DLOCK_E_LOST);
    }
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
}

int main(void)
{
    int port = free_port();
    limit_seconds(120);
    OK(dlock_select_version(DLOCK_API_VERSION));
    OK(dserver_lib_init(1));
    start_primary(port);
    many(port);
    many_leases(port);
    dserver_lib_deinit();
    return conclusion("modern_many");
}
