/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h from many threads: one client, one hold, one queue; calls cancelled at any moment. */
#include <atomic>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "modern.h"

namespace {

constexpr unsigned threads_count = 8;

template <typename Body>
void together(Body body)
{
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < threads_count; ++i)
        threads.emplace_back(body, i);
    for (auto &thread : threads)
        thread.join();
}

/* The checks of check.h count without locks: results of threads are added up here. */
std::atomic<unsigned> wrong{0};

void expect(bool is_so)
{
    if (!is_so)
        ++wrong;
}

bool is_one_of(dlock_error code, std::initializer_list<dlock_error> codes)
{
    for (const auto one : codes) {
        if (code == one)
            return true;
    }
    fprintf(stderr, "%s (%s)\n", dlock_strerror(code), dlock_last_detail());
    return false;
}

/* Holds exclude each other, also among threads of a client, and tokens grow. */
void exclusion(int port)
{
    const dlock_client client = open_client(port);
    const dlock_lock lock = open_lock(client, "exclusion", DLOCK_TYPE_FAIR);
    int inside = 0;
    uint64_t last = 0;
    together([&](unsigned) {
        for (int round = 0; round < 100; ++round) {
            dlock_hold hold;
            uint64_t token;
            expect(dlock_acquire(lock, nullptr, AMPLE, NONE, &hold, &token) == DLOCK_OK);
            expect(++inside == 1 && token > last);
            last = token;
            --inside;
            expect(dlock_release(hold, AMPLE, NONE) == DLOCK_OK);
        }
    });
    EQ(wrong, 0);
    OK(dlock_lock_close(lock, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
}

/* Of several threads that release one hold, one does; others use it meanwhile. */
void one_hold(int port)
{
    const dlock_client client = open_client(port);
    const dlock_lock lock = open_lock(client, "one hold", DLOCK_TYPE_FAIR);
    for (int round = 0; round < 50; ++round) {
        const dlock_hold hold = must_hold(lock, nullptr);
        std::atomic<unsigned> released{0};
        together([&](unsigned i) {
            dlock_hold_info info;
            DLOCK_INIT(&info);
            dlock_error code;
            switch (i % 4) {
            case 0:
                code = dlock_hold_extend(hold, 30000, AMPLE, NONE);
                break;
            case 1:
                code = dlock_hold_get_info(hold, &info);
                break;
            default:
                code = dlock_release(hold, AMPLE, NONE);
                released += code == DLOCK_OK ? 1 : 0;
            }
            expect(is_one_of(code, {DLOCK_OK, DLOCK_E_HANDLE}));
        });
        EQ(released, 1);
    }
    EQ(wrong, 0);
    OK(dlock_release(must_hold(lock, nullptr), AMPLE, NONE));
    OK(dlock_lock_close(lock, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
}

/* Readers of one client have the same token at a time, and are not told that a hold is lost while
 * another thread acquires or releases the same lock. */
void readers(int port, uint32_t type)
{
    const dlock_client client = open_client(port);
    const dlock_lock lock = open_lock(client, "readers", type);
    together([&](unsigned i) {
        for (unsigned round = 0; round < 100; ++round) {
            const bool is_leased = type != DLOCK_TYPE_READ_WRITE;
            const uint64_t lease_ms = is_leased ? 30000 + 1000 * ((round * 7 + i * 13) % 100) : 0;
            const dlock_acquire_options shared = wanted(DLOCK_SHARED, 0, lease_ms);
            dlock_hold hold;
            dlock_hold_info info;
            uint64_t token = 0;
            DLOCK_INIT(&info);
            if (!is_one_of(dlock_acquire(lock, &shared, AMPLE, NONE, &hold, &token), {DLOCK_OK})) {
                expect(false);
                continue;
            }
            const bool is_told = is_one_of(dlock_hold_get_info(hold, &info), {DLOCK_OK});
            expect(is_told && token != 0 && info.token == token);
            if (is_leased)
                expect(is_one_of(dlock_hold_extend(hold, 90000, AMPLE, NONE), {DLOCK_OK}));
            expect(is_one_of(dlock_release(hold, AMPLE, NONE), {DLOCK_OK}));
        }
    });
    EQ(wrong, 0);
    OK(dlock_lock_close(lock, AMPLE, NONE));
    OK(dlock_client_leave(client, AMPLE, NONE));
}

/* Calls and requests that are cancelled at any moment leave nothing behind. */
void cancelled(int port)
{
    const dlock_client one = open_client(port), two = open_client(port);
    const dlock_lock a = open_lock(one, "cancelled", DLOCK_TYPE_FAIR);
    const dlock_lock b = open_lock(two, "cancelled", DLOCK_TYPE_FAIR);
    std::atomic<bool> is_over{false};
    std::atomic<uint64_t> current{0};
    dlock_queue queue;
    MUST(dlock_queue_new(&queue));
    std::thread firing([&] {
        unsigned random = 1;
        while (!is_over) {
            dlock_cancel cancel;
            expect(dlock_cancel_new(&cancel) == DLOCK_OK);
            current = cancel.id;
            random = random * 1103515245u + 12345u;
            sleep_seconds((random >> 16) % 100 * 0.00002 * slowness());
            expect(dlock_cancel_fire(cancel) == DLOCK_OK);
            expect(dlock_cancel_close(cancel) == DLOCK_OK);
        }
    });
    std::thread taking([&] {
        for (;;) {
            dlock_event event;
            DLOCK_INIT(&event);
            if (dlock_queue_next(queue, DLOCK_FOREVER, NONE, &event) != DLOCK_OK)
                return; /* it was closed */
            expect(is_one_of(event.status, {DLOCK_OK, DLOCK_E_CANCELLED, DLOCK_E_LOST}));
            if (event.status == DLOCK_OK)
                expect(dlock_release(event.hold, AMPLE, NONE) == DLOCK_OK);
        }
    });
    std::atomic<unsigned> taken{0};
    together([&](unsigned i) {
        const dlock_lock lock = i % 2 == 0 ? a : b;
        for (int round = 0; round < 100; ++round) {
            dlock_hold hold;
            dlock_cancel cancel;
            cancel.id = round % 25 == 0 ? 0 : current.load(); /* some cannot be cancelled */
            if (i % 4 == 3) {
                expect(is_one_of(
                    dlock_acquire_start(queue, lock, nullptr, AMPLE, cancel, nullptr),
                    {DLOCK_OK, DLOCK_E_CANCELLED, DLOCK_E_HANDLE}));
                continue;
            }
            const dlock_error code = dlock_acquire(lock, nullptr, AMPLE, cancel, &hold, nullptr);
            expect(is_one_of(code, {DLOCK_OK, DLOCK_E_CANCELLED, DLOCK_E_HANDLE}));
            if (code == DLOCK_OK) {
                ++taken;
                expect(dlock_release(hold, AMPLE, NONE) == DLOCK_OK);
            }
        }
    });
    is_over = true;
    firing.join();
    OK(dlock_queue_close(queue));
    taking.join();
    EQ(wrong, 0);
    CHECK(taken > 0);
    OK(dlock_release(must_hold(a, nullptr), AMPLE, NONE));
    OK(dlock_release(must_hold(b, nullptr), AMPLE, NONE));
    OK(dlock_client_leave(one, AMPLE, NONE));
    OK(dlock_client_leave(two, AMPLE, NONE));
    OK(dlock_lock_close(a, AMPLE, NONE));
    OK(dlock_lock_close(b, AMPLE, NONE));
}

/* Each event is taken once, by whichever thread. */
void one_queue(int port)
{
    constexpr std::size_t count = 1000;
    const dlock_client client = open_client(port);
    dlock_queue queue;
    MUST(dlock_queue_new(&queue));
    std::vector<dlock_lock> locks;
    std::vector<std::atomic<unsigned>> times(count);
    for (std::size_t i = 0; i < 10; ++i) {
        const std::string name = "queue " + std::to_string(i);
        locks.push_back(open_lock(client, name.c_str(), DLOCK_TYPE_ATOMIC));
    }
    for (std::size_t i = 0; i < count; ++i) {
        MUST(dlock_acquire_start(queue, locks[i % 10], nullptr, AMPLE, NONE, &times[i]));
    }
    std::atomic<std::size_t> left{count};
    together([&](unsigned) {
        while (left > 0) {
            dlock_event event;
            DLOCK_INIT(&event);
            const dlock_error code = dlock_queue_next(queue, DLOCK_MS(20), NONE, &event);
            if (code == DLOCK_E_TIMED_OUT)
                continue;
            expect(code == DLOCK_OK && event.status == DLOCK_OK);
            ++*static_cast<std::atomic<unsigned> *>(event.user_data);
            --left;
            expect(dlock_release(event.hold, AMPLE, NONE) == DLOCK_OK);
        }
    });
    EQ(wrong, 0);
    for (const auto &taken : times)
        EQ(taken, 1);
    OK(dlock_queue_close(queue));
    OK(dlock_client_leave(client, AMPLE, NONE));
    for (const auto lock : locks)
        OK(dlock_lock_close(lock, AMPLE, NONE));
}

} // namespace

int main()
{
    const int port = free_port();
    limit_seconds(120);
    MUST(dlock_select_version(DLOCK_API_VERSION));
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    exclusion(port);
    one_hold(port);
    readers(port, DLOCK_TYPE_FAIR);
    readers(port, DLOCK_TYPE_READ_WRITE);
    cancelled(port);
    one_queue(port);
    dserver_lib_deinit();
    return conclusion("modern_threads");
}
