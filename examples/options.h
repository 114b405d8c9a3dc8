// SPDX-License-Identifier: MIT OR Apache-2.0
// What the examples share: their options, and lines about what happens.
#ifndef DLOCK_EXAMPLES_OPTIONS_H
#define DLOCK_EXAMPLES_OPTIONS_H

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

struct options {
    std::string ip = "127.0.0.1";
    int port = 21616;
    std::string device;      // RDMA device; empty: any
    int log_level = 4;
    int uni_conn = 0;
    int recovery_clients = 0; // primary only
    int clients = 2;          // clients only
    int rounds = 5;           // clients only
};

// Ends the program on options that it does not have.
inline options read_options(int argc, char **argv, const char *about)
{
    options o;
    int letter;
    while ((letter = getopt(argc, argv, "i:p:d:l:ur:c:n:h")) != -1) {
        switch (letter) {
        case 'i': o.ip = optarg; break;
        case 'p': o.port = std::atoi(optarg); break;
        case 'd': o.device = optarg; break;
        case 'l': o.log_level = std::atoi(optarg); break;
        case 'u': o.uni_conn = 1; break;
        case 'r': o.recovery_clients = std::atoi(optarg); break;
        case 'c': o.clients = std::atoi(optarg); break;
        case 'n': o.rounds = std::atoi(optarg); break;
        default:
            std::fprintf(stderr,
                         "%s: %s\n"
                         "  -i IP       address of the primary (127.0.0.1)\n"
                         "  -p PORT     its port (21616)\n"
                         "  -d DEVICE   RDMA device (any)\n"
                         "  -l LEVEL    log level, 0 to 7 (4)\n"
                         "  -u          one connection for both directions\n"
                         "  -r CLIENTS  primary: wait for so many clients of its predecessor (0)\n"
                         "  -c CLIENTS  client: so many clients (2)\n"
                         "  -n ROUNDS   client: so many rounds (5)\n",
                         argv[0], about);
            std::exit(letter == 'h' ? 0 : 2);
        }
    }
    return o;
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
