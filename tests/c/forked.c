/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A forked child: its inherited client is of no use and does no harm; one of its own works. */
#include <sys/wait.h>

#include "check.h"

static int child(int inherited, int lock_id, int port)
{
    double start = seconds_now();
    limit_seconds(60);
    EQ(try_op(inherited, lock_id, LOCK_EXCLUSIVE, 5), DLOCK_CLIENT_NOT_INIT);
    EQ(unlock_op(inherited, lock_id), DLOCK_CLIENT_NOT_INIT);
    EQ(client_heartbeat(inherited, 1), DLOCK_EINVAL);
    EQ(client_deinit(inherited), -1);
    dclient_lib_deinit();
    EQ(init_client_library(port), 0);
    int own = new_client();
    CHECK(own != inherited);
    EQ(must_get(own, "held by the parent", DLOCK_ATOMIC), lock_id);
    EQ(try_op(own, lock_id, LOCK_EXCLUSIVE, 5), DLOCK_FAIL);
    int other = must_get(own, "the child's", DLOCK_ATOMIC);
    EQ(lock_op(own, other, LOCK_EXCLUSIVE, 600), 0);
    EQ(unlock_op(own, other), 0);
    EQ(client_deinit(own), 0);
    dclient_lib_deinit();
    CHECK_WITHIN(start, 20);
    return conclusion("forked (child)");
}

int main(void)
{
    int port = free_port(), how = 0;
    limit_seconds(60);
    EQ(dserver_lib_init(1), 0);
    start_primary(port);
    EQ(init_client_library(port), 0);
    int client = new_client();
    int lock_id = must_get(client, "held by the parent", DLOCK_ATOMIC);
    EQ(lock_op(client, lock_id, LOCK_EXCLUSIVE, 60), 0);
    fflush(NULL);
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        int status = child(client, lock_id, port);
        fflush(NULL);
        _exit(status);
    }
    NEED(waitpid(pid, &how, 0) == pid);
    EQ(how, 0);
    EQ(extend_op(client, lock_id, EXTEND_LOCK_EXCLUSIVE, 0), 0);
    EQ(unlock_op(client, lock_id), 0);
    EQ(client_heartbeat(client, 5), 0);
    EQ(client_deinit(client), 0);
    dclient_lib_deinit();
    dserver_lib_deinit();
    return conclusion("forked");
}
