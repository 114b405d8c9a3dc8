// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs a primary until SIGINT, SIGTERM, or the end of its standard input if that is a pipe.
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include "dlock_server_api.h"
#include "options.h"

using namespace dlock;

static void wait_for_the_end(int signals)
{
    struct stat input;
    bool leashed = fstat(0, &input) == 0 && S_ISFIFO(input.st_mode);
    struct pollfd events[2] = {{signals, POLLIN, 0}, {leashed ? 0 : -1, POLLIN, 0}};
    for (;;) {
        if (poll(events, 2, -1) < 0) {
            continue;
        }
        char rest[64];
        if (events[0].revents != 0 || (events[1].revents != 0 && read(0, rest, sizeof(rest)) <= 0)) {
            return;
        }
    }
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv, true);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, nullptr); // before there are threads
    int signals = signalfd(-1, &ends, SFD_CLOEXEC);

    server_cfg cfg;
    std::memset(&cfg, 0, sizeof(cfg));
    cfg.type = SERVER_PRIMARY;
    cfg.dev_name = o.device_or_null();
    cfg.eid = o.eid;
    cfg.log_level = o.log_level;
    cfg.sleep_mode_enable = true;
    cfg.primary.recovery_client_num = unsigned(o.recovery_clients);
    cfg.primary.server_ip_str = &o.ip[0];
    cfg.primary.server_port = o.port;
    cfg.tp_mode = o.tp_mode;

    int server_id = 0;
    expect("dserver_lib_init", dserver_lib_init(1), 0);
    expect("server_start", server_start(cfg, server_id), 0);
    std::printf("primary %d listens at %s:%d\n", server_id, o.ip.c_str(), o.port);
    std::fflush(stdout);
    wait_for_the_end(signals);

    debug_stats stats;
    expect("get_server_debug_stats", get_server_debug_stats(server_id, &stats), 0);
    for (int i = 0; i < DEBUG_STATS_MAX; ++i) {
        if (stats.stats[i] != 0) {
            std::printf("counter %d: %llu\n", i, (unsigned long long)stats.stats[i]);
        }
    }
    expect("server_stop", server_stop(server_id), 0);
    dserver_lib_deinit();
    return 0;
}
