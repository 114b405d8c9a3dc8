/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The libraries loaded at run time, each for itself, and unloaded again: loaded LIBDIR */
#include <dlfcn.h>
#include <pthread.h>

#include "check.h"

static void *library(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
    }
    NEED(handle != NULL);
    return handle;
}

static void *function(void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    NEED(found != NULL);
    return found;
}

#define CALL(handle, type, name) ((type)(uintptr_t)function(handle, name))

static void *one_session(void *client_library)
{
    int id = 0, lock_id = 0;
    char name[] = "loaded";
    struct lock_desc desc = {name, 6, DLOCK_ATOMIC, 0};
    struct lock_request req = {0, LOCK_EXCLUSIVE, 5};
    atomic_state state;
    EQ(CALL(client_library, int (*)(int *, const char *), "client_init")(&id, HOST), 0);
    EQ(CALL(client_library, int (*)(int, const struct lock_desc *, int *), "get_lock")(
           id, &desc, &lock_id),
       0);
    req.lock_id = lock_id;
    EQ(CALL(client_library, int (*)(int, const struct lock_request *, void *), "lock")(id, &req,
                                                                                     &state),
       0);
    EQ(CALL(client_library, int (*)(int, int, void *), "unlock")(id, lock_id, &state), 0);
    EQ(CALL(client_library, int (*)(int), "client_deinit")(id), 0);
    return NULL;
}

int main(int argc, char **argv)
{
    NEED(argc == 2);
    limit_seconds(60);
    for (int round = 0; round < 3; ++round) {
        void *server = library(argv[1], "libdlocks.so.0");
        void *client = library(argv[1], "libdlockc.so.0");
        struct server_cfg server_cfg;
        struct client_cfg client_cfg;
        int port = free_port(), server_id = 0;
        pthread_t thread;
        fill_server_cfg(&server_cfg, port);
        fill_client_cfg(&client_cfg, port);
        EQ(CALL(server, int (*)(unsigned), "dserver_lib_init")(1), 0);
        EQ(CALL(server, int (*)(const struct server_cfg *, int *), "server_start")(&server_cfg,
                                                                                 &server_id),
           0);
        EQ(CALL(client, int (*)(const struct client_cfg *), "dclient_lib_init")(&client_cfg), 0);
        one_session(client);
        NEED(pthread_create(&thread, NULL, one_session, client) == 0);
        pthread_join(thread, NULL);
        CALL(client, void (*)(void), "dclient_lib_deinit")();
        CALL(server, void (*)(void), "dserver_lib_deinit")();
        EQ(dlclose(client), 0);
        EQ(dlclose(server), 0);
    }
    return conclusion("loaded");
}
