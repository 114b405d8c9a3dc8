/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h across the end of a primary: holds, tokens and requests outlast it. */
#include "modern.h"
#include "primary_process.h"

int main(int argc, char **argv)
{
    int port = free_port();
    char address[32];
    dlock_client clients[2];
    dlock_lock locks[2];
    dlock_client_options options;
    dlock_client_info before, after;
    dlock_hold_info info;
    dlock_queue queue;
    dlock_event event;
    dlock_hold hold;
    uint64_t token, next;
    be_primary_if_asked(argc, argv);
    limit_seconds(120);
    MUST(dlock_select_version(DLOCK_API_VERSION));
    OK(dlock_set_log_level(0));
    struct primary_process primary = spawn_primary(port, 0);
    DLOCK_INIT(&options);
    options.port = (uint32_t)port;
    snprintf(address, sizeof(address), "%s:%d", HOST, port);
    options.primaries = address;
    options.silence_ms = 300;
    options.label = "a\033[2J"; /* a terminal would not show it */
    IS(dlock_client_open(HOST, &options, AMPLE, NONE, &clients[0]), DLOCK_E_INVALID);
    options.label = "failover";
    for (int i = 0; i < 2; ++i) {
        MUST(dlock_client_open(HOST, &options, AMPLE, NONE, &clients[i]));
        locks[i] = open_lock(clients[i], "failover", DLOCK_TYPE_FAIR);
    }
    hold = must_hold(locks[0], &token);
    OK(dlock_queue_new(&queue));
    OK(dlock_acquire_start(queue, locks[1], NULL, DLOCK_FOREVER, NONE, NULL));
    DLOCK_INIT(&before);
    OK(dlock_client_get_info(clients[0], &before));

    kill_primary(primary);
    DLOCK_INIT(&event);
    IS(dlock_queue_next(queue, DLOCK_MS(500), NONE, &event), DLOCK_E_TIMED_OUT);
    primary = spawn_primary(port, 2);
    dlock_error code;
    do {
        code = dlock_hold_check(hold, AMPLE, NONE);
        CHECK(code == DLOCK_OK || code == DLOCK_E_NOT_READY || code == DLOCK_E_DISCONNECTED);
        sleep_seconds(0.05);
    } while (code == DLOCK_E_NOT_READY || code == DLOCK_E_DISCONNECTED);
    DLOCK_INIT(&after);
    OK(dlock_client_get_info(clients[0], &after));
    CHECK(after.epoch > before.epoch && after.horizon_left_ns > 0);
    DLOCK_INIT(&info);
    OK(dlock_hold_get_info(hold, &info));
    CHECK(info.token == token);
    IS(dlock_queue_next(queue, 0, NONE, &event), DLOCK_E_TIMED_OUT); /* it still waits */
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_queue_next(queue, AMPLE, NONE, &event));
    CHECK(event.status == DLOCK_OK && event.token > token);
    OK(dlock_release(event.hold, AMPLE, NONE));
    hold = must_hold(locks[0], &next);
    CHECK(next > event.token);
    OK(dlock_release(hold, AMPLE, NONE));
    OK(dlock_client_leave(clients[0], AMPLE, NONE));
    OK(dlock_client_leave(clients[1], AMPLE, NONE));
    end_primary(primary);
    return conclusion("modern_failover");
}
