/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dlock.h from C++17: 10,000 requests in flight from one thread, which waits on one descriptor. */
#include <poll.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "modern.h"

namespace {

constexpr std::size_t locks_count = 100;
/* Ten thousand in all; under valgrind fewer. */
const std::size_t each = slowness() > 1 ? 5 : 100;
const std::size_t requests = locks_count * each;

struct Request {
    std::size_t lock;
    bool is_over;
};

bool is_readable(int fd, int timeout_ms)
{
    pollfd polled{fd, POLLIN, 0};
    return poll(&polled, 1, timeout_ms) == 1;
}

class Flight {
public:
    explicit Flight(int port) : client(open_client(port)), blocker(open_client(port))
    {
        MUST(dlock_queue_new(&queue));
        MUST(dlock_queue_get_fd(queue, &fd));
        for (std::size_t i = 0; i < locks_count; ++i) {
            const std::string name = "flight " + std::to_string(i);
            const uint32_t type = i % 2 == 0 ? DLOCK_TYPE_FAIR : DLOCK_TYPE_ATOMIC;
            locks.push_back(open_lock(client, name.c_str(), type));
            blocked.push_back(open_lock(blocker, name.c_str(), type));
        }
    }

    /* Another client has all locks: no request can end. */
    void start(dlock_cancel cancel)
    {
        for (const auto lock : blocked)
            held.push_back(must_hold(lock, nullptr));
        state.assign(requests, Request{});
        for (std::size_t i = 0; i < requests; ++i) {
            state[i].lock = i % locks_count;
            MUST(dlock_acquire_start(queue, locks[state[i].lock], nullptr, DLOCK_FOREVER, cancel,
                                     &state[i]));
        }
        CHECK(!is_readable(fd, 0));
    }

    /* As many as there may be, and what is refused then comes to no event. */
    void fill(dlock_cancel cancel)
    {
        dlock_error code = DLOCK_OK;
        std::size_t started = requests;
        while (slowness() == 1 &&
               (code = dlock_acquire_start(queue, locks[0], nullptr, DLOCK_FOREVER, cancel,
                                           nullptr)) == DLOCK_OK)
            ++started;
        EQ(code, slowness() == 1 ? DLOCK_E_TOO_MANY : DLOCK_OK);
        CHECK(slowness() > 1 || started == 16384);
        OK(dlock_cancel_fire(cancel));
        cancelled(started);
    }

    void unblock()
    {
        for (const auto hold : held)
            OK(dlock_release(hold, AMPLE, NONE));
        held.clear();
    }

    /* Each request is granted once, and released; the locks' tokens increase. */
    void land()
    {
        std::array<uint64_t, locks_count> tokens{};
        std::size_t acquired = 0, released = 0;
        while (released < requests) {
            if (!is_readable(fd, 100000)) {
                CHECK(!"no event comes");
                return;
            }
            dlock_event event;
            DLOCK_INIT(&event);
            while (dlock_queue_next(queue, 0, NONE, &event) == DLOCK_OK) {
                auto *const request = static_cast<Request *>(event.user_data);
                EQ(event.status, DLOCK_OK);
                if (event.kind == DLOCK_EVENT_RELEASED) {
                    ++released;
                    continue;
                }
                CHECK(!request->is_over && event.token > tokens[request->lock]);
                CHECK(event.lock.id == locks[request->lock].id);
                tokens[request->lock] = event.token;
                request->is_over = true;
                ++acquired;
                OK(dlock_release_start(queue, event.hold, request));
            }
        }
        EQ(acquired, requests);
        CHECK(!is_readable(fd, 0));
    }

    void cancelled(std::size_t count)
    {
        for (std::size_t i = 0; i < count; ++i) {
            dlock_event event;
            DLOCK_INIT(&event);
            MUST(dlock_queue_next(queue, AMPLE, NONE, &event));
            EQ(event.status, DLOCK_E_CANCELLED);
        }
        dlock_event event;
        DLOCK_INIT(&event);
        IS(dlock_queue_next(queue, DLOCK_MS(10), NONE, &event), DLOCK_E_TIMED_OUT);
    }

    /* Nothing is held, and nothing queued. */
    void end()
    {
        OK(dlock_queue_close(queue));
        for (const auto lock : blocked)
            OK(dlock_release(must_hold(lock, nullptr), AMPLE, NONE));
        OK(dlock_client_leave(client, AMPLE, NONE));
        OK(dlock_client_leave(blocker, AMPLE, NONE));
        for (const auto lock : locks)
            OK(dlock_lock_close(lock, AMPLE, NONE));
        for (const auto lock : blocked)
            OK(dlock_lock_close(lock, AMPLE, NONE));
    }

private:
    dlock_client client, blocker;
    dlock_queue queue{};
    int fd = -1;
    std::vector<dlock_lock> locks, blocked;
    std::vector<dlock_hold> held;
    std::vector<Request> state;
};

} // namespace

int main()
{
    const int port = free_port();
    limit_seconds(240);
    MUST(dlock_select_version(DLOCK_API_VERSION));
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    double start = seconds_now();
    {
        Flight flight(port);
        flight.start(NONE);
        printf("  %zu requests in flight after %.2f s\n", requests, seconds_now() - start);
        start = seconds_now();
        flight.unblock();
        flight.land();
        printf("  granted and released after %.2f s\n", seconds_now() - start);
        start = seconds_now();
        dlock_cancel cancel;
        MUST(dlock_cancel_new(&cancel));
        flight.start(cancel);
        flight.fill(cancel);
        OK(dlock_cancel_close(cancel));
        flight.unblock();
        flight.start(NONE);
        flight.unblock();
        flight.end(); /* with all of them in flight, or granted and not taken */
        printf("  cancelled, and ended, after %.2f s\n", seconds_now() - start);
    }
    dserver_lib_deinit();
    return conclusion("modern_flight");
}
