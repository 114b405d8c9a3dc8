// SPDX-License-Identifier: MIT OR Apache-2.0
// The options of the examples, which are those of the original's example programs.
#ifndef DLOCK_EXAMPLES_OPTIONS_H
#define DLOCK_EXAMPLES_OPTIONS_H

#include <arpa/inet.h>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

#include "dlock_types.h"

// More threads than clients that one primary has places for are of no use.
const int CLIENTS_MAX = 1000;

struct options {
    std::string ip = "127.0.0.1";
    int port = 21616;
    std::string device;                        // RDMA device; empty: any
    dlock::dlock_eid_t eid = dlock::dlock_eid_t(); // address of an RDMA port; zeros: any
    dlock::trans_mode_t tp_mode = dlock::SEPERATE_CONN;
    int log_level = 4;
    int recovery_clients = 0; // primary only
    int clients = 2;          // clients only
    int rounds = 5;           // clients only

    char *device_or_null() { return device.empty() ? nullptr : &device[0]; }
};

[[noreturn]] inline void usage(const char *program, bool primary)
{
    std::fprintf(stderr,
                 "usage: %s [-i server_ip] [-e eid] [-d dev_name] [-p server_port] [-m tp_mode]\n"
                 "       [-g log_level] %s\n"
                 "  -i server_ip    address of the primary (127.0.0.1)\n"
                 "  -e eid          address of an RDMA port: IPv4, IPv4-mapped or IPv6 (any)\n"
                 "  -d dev_name     RDMA device (any)\n"
                 "  -p server_port  port of the primary (21616)\n"
                 "  -m tp_mode      0: separate connections, 1: one connection (0)\n"
                 "  -g log_level    0 to 7 as in syslog (4)\n",
                 program,
                 primary ? "[-c recovery_client_num]" : "[-c client_num] [-l loop_num]");
    if (primary) {
        std::fprintf(stderr, "  -c recovery_client_num  wait for so many clients of the "
                             "predecessor (0)\n");
    } else {
        std::fprintf(stderr, "  -c client_num   so many clients, a thread each (2)\n"
                             "  -l loop_num     so many rounds of each (5)\n");
    }
    std::exit(2);
}

// A whole number within the limits, and nothing after it.
inline bool read_number(const char *text, int least, int most, int &number)
{
    char *end = nullptr;
    errno = 0;
    long value = std::strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > most) {
        return false;
    }
    number = int(value);
    return true;
}

// An address as it is printed: 10.1.2.3, ::ffff:10.1.2.3 or fe80::1.
inline bool read_eid(const char *text, dlock::dlock_eid_t &eid)
{
    struct in_addr v4;
    if (inet_pton(AF_INET, text, &v4) == 1) {
        eid.in4.reserved = 0;
        eid.in4.prefix = htonl(0x0000ffff);
        eid.in4.addr = v4.s_addr;
        return true;
    }
    return inet_pton(AF_INET6, text, eid.raw) == 1;
}

inline bool read_option(int letter, const char *value, bool primary, options &o)
{
    int mode = 0;
    switch (letter) {
    case 'i': o.ip = value; return true;
    case 'e': return read_eid(value, o.eid);
    case 'd': o.device = value; return true;
    case 'p': return read_number(value, 0, 65535, o.port);
    case 'm':
        if (!read_number(value, 0, 1, mode)) {
            return false;
        }
        o.tp_mode = mode == 0 ? dlock::SEPERATE_CONN : dlock::UNI_CONN;
        return true;
    case 'g': return read_number(value, 0, 7, o.log_level);
    case 'c':
        return primary ? read_number(value, 0, CLIENTS_MAX, o.recovery_clients)
                       : read_number(value, 1, CLIENTS_MAX, o.clients);
    case 'l': return read_number(value, 1, INT_MAX, o.rounds);
    default: return false;
    }
}

// Ends the program with its usage on options that it does not have.
inline options read_options(int argc, char **argv, bool primary)
{
    options o;
    int letter;
    while ((letter = getopt(argc, argv, primary ? "c:i:e:d:p:m:g:" : "i:e:d:p:c:l:m:g:")) != -1) {
        if (letter == '?') {
            usage(argv[0], primary); // getopt has said why
        }
        if (!read_option(letter, optarg, primary, o)) {
            std::fprintf(stderr, "%s: -%c cannot be '%s'\n", argv[0], letter, optarg);
            usage(argv[0], primary);
        }
    }
    if (optind < argc) {
        std::fprintf(stderr, "%s: '%s' is not an option\n", argv[0], argv[optind]);
        usage(argv[0], primary);
    }
    return o;
}

// What the options say of a client's configuration.
inline dlock::client_cfg client_configuration(options &o)
{
    dlock::client_cfg cfg;
    std::memset(&cfg, 0, sizeof(cfg));
    cfg.dev_name = o.device_or_null();
    cfg.eid = o.eid;
    cfg.log_level = o.log_level;
    cfg.primary_port = o.port;
    cfg.tp_mode = o.tp_mode;
    return cfg;
}

// Ends the program with a line if a call did not do what it should have.
inline void expect(const char *what, int status, int wanted)
{
    if (status != wanted) {
        std::fprintf(stderr, "%s: 0x%x instead of 0x%x\n", what, unsigned(status),
                     unsigned(wanted));
        std::exit(1);
    }
}

#endif
