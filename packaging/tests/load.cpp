// SPDX-License-Identifier: MIT OR Apache-2.0
// Load for an upgrade: PORT STOP HOLDERS, until there is a file STOP. Each holder has a lock for the whole
// time and extends it, a rival tries to take these locks, and a worker takes and gives back one of its
// own. Ends with what was lost or stolen, and the longest time in which the worker got nothing.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>
#include <unistd.h>
#include "dlock_client_api.h"

using namespace dlock;
using clock_type = std::chrono::steady_clock;

namespace {

struct held {
    int client;
    struct lock_request request;
    lock_state state;
};

bool get(int client, const std::string &name, struct lock_request *request)
{
    std::string bytes = name;
    struct lock_desc desc = {};
    desc.p_desc = &bytes[0];
    desc.len = static_cast<unsigned int>(bytes.size());
    desc.lock_type = DLOCK_ATOMIC;
    request->lock_op = LOCK_EXCLUSIVE;
    request->expire_time = 600;
    return get_lock(client, &desc, &request->lock_id) == 0;
}

// The primary is away, or comes back: nothing is known of the lock.
bool is_passing(int result)
{
    return result == DLOCK_NOT_READY || result == DLOCK_BAD_RESPONSE || result == DLOCK_EAGAIN;
}

bool make(const std::string &name, bool lock, held *lock_of)
{
    *lock_of = held();
    return client_init(&lock_of->client, "127.0.0.1") == 0 && get(lock_of->client, name, &lock_of->request) &&
        (!lock || trylock(lock_of->client, &lock_of->request, &lock_of->state) == 0);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 4) {
        return 2;
    }
    struct client_cfg config = {};
    config.log_level = 4;
    config.primary_port = std::atoi(argv[1]);
    std::vector<held> holders(static_cast<size_t>(std::atoi(argv[3])));
    std::vector<struct lock_request> wanted(holders.size());
    held worker, rival;
    bool ready = dclient_lib_init(&config) == 0 && make("worker", false, &worker) &&
        make("rival", false, &rival);
    for (size_t i = 0; ready && i < holders.size(); i++) {
        const std::string name = "held " + std::to_string(i);
        ready = make(name, true, &holders[i]) && get(rival.client, name, &wanted[i]);
    }
    if (!ready) {
        std::puts("the load cannot begin");
        return 1;
    }
    std::puts("holding");
    std::fflush(stdout);

    int lost = 0, stolen = 0;
    long operations = 0;
    auto last = clock_type::now(), looked = last;
    clock_type::duration pause(0);
    while (access(argv[2], F_OK) != 0) {
        if (trylock(worker.client, &worker.request, &worker.state) == 0 &&
            unlock(worker.client, worker.request.lock_id, &worker.state) == 0) {
            const auto now = clock_type::now();
            pause = now - last > pause ? now - last : pause;
            last = now;
            operations++;
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (clock_type::now() - looked < std::chrono::milliseconds(200)) {
            continue;
        }
        looked = clock_type::now();
        for (size_t i = 0; i < holders.size(); i++) {
            struct lock_request extend = holders[i].request;
            extend.lock_op = EXTEND_LOCK_EXCLUSIVE;
            const int result = lock_extend(holders[i].client, &extend, &holders[i].state);
            if (result != 0 && !is_passing(result)) {
                std::printf("holder %zu: %#x\n", i, static_cast<unsigned int>(result));
                lost++;
            }
            lock_state state = {};
            stolen += trylock(rival.client, &wanted[i], &state) == 0 ? 1 : 0;
        }
    }
    for (size_t i = 0; i < holders.size(); i++) {
        lost += unlock(holders[i].client, holders[i].request.lock_id, &holders[i].state) == 0 ? 0 : 1;
    }
    // Who leaves without a word is waited for by the next recovery.
    for (const held &one : holders) {
        client_deinit(one.client);
    }
    client_deinit(worker.client);
    client_deinit(rival.client);
    dclient_lib_deinit();
    std::printf("held %zu, lost %d, stolen %d, operations %ld, longest pause %lld ms\n", holders.size(),
        lost, stolen, operations,
        static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(pause).count()));
    return lost == 0 && stolen == 0 && operations > 0 ? 0 : 1;
}
