/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Descriptors: a program without standard input, output and error has none of the library's in
 * their places, and a primary serves more clients than the soft limit of open files allows. */
#include "check.h"

#include <fcntl.h>
#include <sys/resource.h>

/* Whether this descriptor is closed, or /dev/null. */
static int is_nothing(int fd)
{
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(path, target, sizeof target - 1);
    return len < 0 || strcmp(target, "/dev/null") == 0;
}

int main(void)
{
    limit_seconds(60);
    int saved = fcntl(2, F_DUPFD_CLOEXEC, 100);
    for (int fd = 0; fd <= 2; fd++)
        close(fd);
    struct rlimit before, limit = {0, 0};
    getrlimit(RLIMIT_NOFILE, &before);
    limit.rlim_max = before.rlim_max;
    limit.rlim_cur = 200;
    setrlimit(RLIMIT_NOFILE, &limit);

    int port = free_port(), ids[100];
    NEED(dserver_lib_init(1) == 0);
    start_primary(port);
    NEED(init_client_library(port) == 0);
    for (int i = 0; i < 100; i++)
        ids[i] = new_client();
    int nothing[3], id = -1;
    for (int fd = 0; fd <= 2; fd++)
        nothing[fd] = is_nothing(fd);
    int refused = client_init(&id, "no address"); /* a line is logged */
    for (int i = 0; i < 100; i++)
        EQ(client_deinit(ids[i]), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();

    dup2(saved, 1);
    dup2(saved, 2);
    EQ(refused, -1);
    for (int fd = 0; fd <= 2; fd++)
        CHECK(nothing[fd]);
    return conclusion("descriptors");
}
