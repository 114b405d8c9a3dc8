/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A primary that speaks TLS if DLOCK_TEST_TLS says so, until its standard input ends: -i HOST -p
 * PORT. For two_process, whose usual primary is an example, and has no TLS. */
#include "check.h"

int main(int argc, char **argv)
{
    char rest[64];
    NEED(argc == 5 && strcmp(argv[1], "-i") == 0 && strcmp(argv[3], "-p") == 0);
    EQ(dserver_lib_init(1), 0);
    printf("primary %d listens at %s:%s\n", start_primary(atoi(argv[4])), HOST, argv[4]);
    fflush(stdout);
    while (read(0, rest, sizeof(rest)) > 0) {
    }
    dserver_lib_deinit();
    return conclusion("tls_primary");
}
