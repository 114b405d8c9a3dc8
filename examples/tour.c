/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A tour of dlock.h, each part in a function: tokens, events, renewal, leases, downgrade, exclusion
 * within a program, many locks at once, objects; and locks that are taken away, or held by commands
 * of a shell.
 *
 *     tour PORT                     a primary at 127.0.0.1 (dlockd --port PORT)
 *     tour PORT DLOCK SOCKET        also with the program `dlock`, and the primary's admin socket
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dlock.h"

#define HOST "127.0.0.1"
#define NONE DLOCK_NO_CANCEL
#define PATIENCE DLOCK_S(60)

enum { LOCKS = 100 };

/* Ends the program unless it is so. */
static void expect(const char *what, int is_so)
{
    if (!is_so) {
        fprintf(stderr, "tour: not so: %s (%s)\n", what, dlock_last_detail());
        exit(1);
    }
}

static void returns(const char *call, dlock_error got, dlock_error wanted)
{
    if (got != wanted) {
        fprintf(stderr, "tour: %s: %s (%s)\n", call, dlock_strerror(got), dlock_last_detail());
        exit(1);
    }
}

#define OK(call) returns(#call, (call), DLOCK_OK)
#define IS(call, wanted) returns(#call, (call), (wanted))

static void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* A client that comes back to the primary by itself, and so is told what became of its holds. */
static dlock_client open_client(const char *port)
{
    dlock_client client;
    dlock_client_options options;
    char primaries[32];
    snprintf(primaries, sizeof primaries, HOST ":%s", port);
    DLOCK_INIT(&options);
    options.primaries = primaries;
    options.port = (uint32_t)strtoul(port, NULL, 10);
    OK(dlock_client_open(HOST, &options, PATIENCE, NONE, &client));
    return client;
}

static dlock_lock open_lock(dlock_client client, const char *name)
{
    dlock_lock lock; /* NULL: a fair lock, with tokens */
    OK(dlock_lock_open(client, name, strlen(name), NULL, PATIENCE, NONE, &lock));
    return lock;
}

static dlock_lock open_read_write(dlock_client client, const char *name)
{
    dlock_lock lock;
    dlock_lock_options options;
    DLOCK_INIT(&options);
    options.type = DLOCK_TYPE_READ_WRITE;
    OK(dlock_lock_open(client, name, strlen(name), &options, PATIENCE, NONE, &lock));
    return lock;
}

static dlock_acquire_options wanted(uint32_t mode, uint32_t flags, uint64_t lease_ms)
{
    dlock_acquire_options options;
    DLOCK_INIT(&options);
    options.mode = mode;
    options.flags = flags;
    options.lease_ms = lease_ms;
    return options;
}

static dlock_event next_event(dlock_queue queue)
{
    dlock_event event;
    DLOCK_INIT(&event);
    OK(dlock_queue_next(queue, PATIENCE, NONE, &event));
    return event;
}

/* Writers have increasing tokens; readers that hold together have equal ones. */
static void tokens(dlock_client one, dlock_client two)
{
    dlock_lock mine = open_lock(one, "tour: tokens"), other = open_lock(two, "tour: tokens");
    dlock_acquire_options shared = wanted(DLOCK_SHARED, 0, 0);
    dlock_hold hold, second;
    uint64_t writer, reader, reader_too, next;
    OK(dlock_acquire(mine, NULL, PATIENCE, NONE, &hold, &writer));
    OK(dlock_release(hold, PATIENCE, NONE));
    OK(dlock_acquire(mine, &shared, PATIENCE, NONE, &hold, &reader));
    OK(dlock_acquire(other, &shared, PATIENCE, NONE, &second, &reader_too));
    OK(dlock_release(hold, PATIENCE, NONE));
    OK(dlock_release(second, PATIENCE, NONE));
    OK(dlock_acquire(other, NULL, PATIENCE, NONE, &hold, &next));
    OK(dlock_release(hold, PATIENCE, NONE));
    expect("tokens increase", writer > 0 && reader > writer && next > reader);
    expect("readers' tokens are equal", reader == reader_too);
    OK(dlock_lock_close(mine, PATIENCE, NONE));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* A holder is told by a descriptor that another client waits, and gives the lock back to it. */
static void events(dlock_client one, dlock_client two)
{
    dlock_lock mine = open_lock(one, "tour: events"), other = open_lock(two, "tour: events");
    dlock_queue queue, its;
    dlock_hold hold;
    dlock_event event;
    struct pollfd polled = {.events = POLLIN};
    OK(dlock_queue_new(&queue));
    OK(dlock_queue_new(&its));
    OK(dlock_listen_lock(queue, mine, NULL));
    OK(dlock_acquire(mine, NULL, PATIENCE, NONE, &hold, NULL));
    expect("the hold is told", next_event(queue).kind == DLOCK_EVENT_GRANTED);
    OK(dlock_acquire_start(its, other, NULL, PATIENCE, NONE, NULL));
    OK(dlock_queue_get_fd(queue, &polled.fd));
    expect("the descriptor is readable", poll(&polled, 1, 60000) == 1);
    event = next_event(queue);
    expect("one client waits", event.kind == DLOCK_EVENT_CONTENDED && event.count == 1);
    OK(dlock_release(hold, PATIENCE, NONE));
    event = next_event(its);
    expect("it has the lock", event.kind == DLOCK_EVENT_ACQUIRED && event.status == DLOCK_OK);
    OK(dlock_release(event.hold, PATIENCE, NONE));
    OK(dlock_queue_close(queue));
    OK(dlock_queue_close(its));
    OK(dlock_lock_close(mine, PATIENCE, NONE));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* A lease that the library renews lasts as long as its hold, and no longer. */
static void renewal(dlock_client one, dlock_client two)
{
    dlock_lock mine = open_lock(one, "tour: renewal"), other = open_lock(two, "tour: renewal");
    dlock_acquire_options renewed = wanted(DLOCK_EXCLUSIVE, DLOCK_RENEW, 2000);
    dlock_acquire_options try = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    dlock_hold hold, its;
    OK(dlock_acquire(mine, &renewed, PATIENCE, NONE, &hold, NULL));
    sleep_ms(4000);
    IS(dlock_acquire(other, &try, PATIENCE, NONE, &its, NULL), DLOCK_E_HELD);
    OK(dlock_hold_check(hold, PATIENCE, NONE));
    OK(dlock_release(hold, PATIENCE, NONE));
    OK(dlock_acquire(other, NULL, PATIENCE, NONE, &its, NULL));
    OK(dlock_release(its, PATIENCE, NONE));
    OK(dlock_lock_close(mine, PATIENCE, NONE));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* A read-write lock has a lease if one is asked for; when it ends, the next client has the lock. */
static void leases(dlock_client one, dlock_client two)
{
    dlock_lock mine = open_read_write(one, "tour: leases");
    dlock_lock other = open_read_write(two, "tour: leases");
    dlock_acquire_options half_a_second = wanted(DLOCK_SHARED, 0, 500);
    dlock_hold hold, its;
    uint64_t reader, writer;
    OK(dlock_acquire(mine, &half_a_second, PATIENCE, NONE, &hold, &reader));
    OK(dlock_acquire(other, NULL, PATIENCE, NONE, &its, &writer));
    expect("the writer's token is larger", writer > reader);
    IS(dlock_release(hold, PATIENCE, NONE), DLOCK_E_LOST);
    OK(dlock_release(its, PATIENCE, NONE));
    OK(dlock_lock_close(mine, PATIENCE, NONE));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* A writer becomes a reader: others may read what it wrote, and no writer comes in between. */
static void downgrade(dlock_client one, dlock_client two)
{
    dlock_lock mine = open_read_write(one, "tour: downgrade");
    dlock_lock other = open_read_write(two, "tour: downgrade");
    dlock_acquire_options write = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    dlock_acquire_options read = wanted(DLOCK_SHARED, DLOCK_TRY, 0);
    dlock_hold hold, its;
    dlock_hold_info info;
    uint64_t writer, reader;
    DLOCK_INIT(&info);
    OK(dlock_acquire(mine, NULL, PATIENCE, NONE, &hold, &writer));
    IS(dlock_acquire(other, &read, PATIENCE, NONE, &its, NULL), DLOCK_E_HELD);
    OK(dlock_hold_downgrade(hold, PATIENCE, NONE));
    IS(dlock_acquire(other, &write, PATIENCE, NONE, &its, NULL), DLOCK_E_HELD);
    OK(dlock_acquire(other, &read, PATIENCE, NONE, &its, &reader));
    OK(dlock_hold_get_info(hold, &info));
    expect("both read", info.mode == DLOCK_SHARED && info.token == reader && reader > writer);
    OK(dlock_release(hold, PATIENCE, NONE));
    OK(dlock_release(its, PATIENCE, NONE));
    OK(dlock_lock_close(mine, PATIENCE, NONE));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* Threads of a program exclude each other as programs do; no call succeeds for a lost hold. */
static void exclusion(dlock_client one, dlock_client two)
{
    dlock_lock mine = open_lock(one, "tour: exclusion"), same = open_lock(one, "tour: exclusion");
    dlock_lock other = open_lock(two, "tour: exclusion");
    dlock_acquire_options try = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 1000);
    dlock_hold hold, second;
    dlock_hold_info info;
    OK(dlock_acquire(mine, &try, PATIENCE, NONE, &hold, NULL));
    IS(dlock_acquire(same, &try, PATIENCE, NONE, &second, NULL), DLOCK_E_HELD);
    OK(dlock_acquire(other, NULL, PATIENCE, NONE, &second, NULL)); /* when the lease is over */
    IS(dlock_hold_check(hold, PATIENCE, NONE), DLOCK_E_LOST);
    DLOCK_INIT(&info);
    IS(dlock_hold_get_info(hold, &info), DLOCK_E_LOST);
    IS(dlock_release(hold, PATIENCE, NONE), DLOCK_E_LOST);
    OK(dlock_hold_check(second, PATIENCE, NONE));
    OK(dlock_release(second, PATIENCE, NONE));
    OK(dlock_lock_close(mine, PATIENCE, NONE));
    OK(dlock_lock_close(same, PATIENCE, NONE));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* One call for more locks than a message holds. */
static void many(dlock_client one)
{
    static dlock_item items[LOCKS];
    for (int i = 0; i < LOCKS; ++i) {
        char name[32];
        snprintf(name, sizeof name, "tour: many %d", i);
        DLOCK_INIT(&items[i]);
        items[i].lock = open_lock(one, name);
    }
    OK(dlock_acquire_many(items, LOCKS, PATIENCE, NONE));
    for (int i = 0; i < LOCKS; ++i)
        expect("each is held", items[i].status == DLOCK_OK && items[i].token > 0);
    OK(dlock_release_many(items, LOCKS, PATIENCE, NONE));
    for (int i = 0; i < LOCKS; ++i)
        OK(dlock_lock_close(items[i].lock, PATIENCE, NONE));
}

/* A counter that two clients share. */
static void objects(dlock_client one, dlock_client two)
{
    dlock_object mine, other;
    dlock_object_options create;
    uint64_t before, value;
    DLOCK_INIT(&create);
    create.flags = DLOCK_CREATE;
    create.initial = 40;
    OK(dlock_object_open(one, "tour", 4, &create, PATIENCE, NONE, &mine));
    OK(dlock_object_open(two, "tour", 4, NULL, PATIENCE, NONE, &other));
    OK(dlock_object_add(mine, 2, PATIENCE, NONE, &before));
    OK(dlock_object_load(other, PATIENCE, NONE, &value));
    expect("40 and 2", before == 40 && value == 42);
    IS(dlock_object_exchange(other, 40, 0, PATIENCE, NONE), DLOCK_E_CHANGED);
    OK(dlock_object_destroy(mine, PATIENCE, NONE));
    OK(dlock_object_close(mine, PATIENCE, NONE));
    OK(dlock_object_close(other, PATIENCE, NONE));
}

/* Runs a command that prints one line; its exit status. */
static int run(const char *command, char *line, int room)
{
    FILE *output = popen(command, "r");
    expect("a shell", output != NULL);
    if (fgets(line, room, output) == NULL)
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    int status = pclose(output);
    return status >= 0 ? status / 256 : -1;
}

/* An operator takes the lock away: its holder is told, and the next has it with a larger token. */
static void taken_away(const char *port, dlock_client two, const char *dlock, const char *socket)
{
    dlock_client one = open_client(port);
    dlock_lock mine = open_lock(one, "tour: taken"), other = open_lock(two, "tour: taken");
    dlock_queue queue;
    dlock_hold hold, its;
    dlock_event event;
    uint64_t token, next;
    char command[512], line[256];
    OK(dlock_queue_new(&queue));
    OK(dlock_acquire(mine, NULL, PATIENCE, NONE, &hold, &token));
    OK(dlock_listen_lock(queue, mine, NULL));
    expect("it is told", next_event(queue).kind == DLOCK_EVENT_GRANTED);
    snprintf(command, sizeof command, "'%s' break 'tour: taken' --now --socket '%s'", dlock, socket);
    expect(command, run(command, line, sizeof line) == 0);
    event = next_event(queue);
    expect("its loss is told",
           event.kind == DLOCK_EVENT_LOST && event.reason == DLOCK_LOST_TAKEN_AWAY);
    IS(dlock_release(hold, PATIENCE, NONE), DLOCK_E_LOST);
    OK(dlock_acquire(other, NULL, PATIENCE, NONE, &its, &next));
    expect("the token has increased", next > token);
    OK(dlock_release(its, PATIENCE, NONE));
    OK(dlock_queue_close(queue));
    OK(dlock_client_close(one));
    OK(dlock_lock_close(other, PATIENCE, NONE));
}

/* Commands of a shell that hold the lock, one after the other. */
static void commands(const char *port, dlock_client two, const char *dlock)
{
    dlock_lock lock = open_lock(two, "tour: commands");
    dlock_acquire_options try = wanted(DLOCK_EXCLUSIVE, DLOCK_TRY, 0);
    dlock_hold hold;
    uint64_t before, after;
    char command[512], line[256], name[64];
    OK(dlock_acquire(lock, NULL, PATIENCE, NONE, &hold, &before));
    OK(dlock_release(hold, PATIENCE, NONE));
    snprintf(command, sizeof command,
             "'%s' exec --address " HOST ":%s --type fair 'tour: commands' --"
             " sh -c 'echo $DLOCK_TOKEN of $DLOCK_NAME'",
             dlock, port);
    expect(command, run(command, line, sizeof line) == 0);
    unsigned long long token = 0;
    expect("COMMAND has name and token", sscanf(line, "%llu of %63[^\n]", &token, name) == 2 &&
                                             strcmp(name, "tour: commands") == 0);
    snprintf(command, sizeof command, "'%s' hold --address " HOST ":%s --type fair 'tour: commands'",
             dlock, port);
    expect(command, run(command, name, sizeof name) == 0);
    IS(dlock_acquire(lock, &try, PATIENCE, NONE, &hold, NULL), DLOCK_E_HELD);
    snprintf(command, sizeof command, "'%s' release '%s'", dlock, name);
    expect(command, run(command, line, sizeof line) == 0);
    OK(dlock_acquire(lock, &try, PATIENCE, NONE, &hold, &after));
    expect("the tokens of all increase", before < token && token < after);
    OK(dlock_release(hold, PATIENCE, NONE));
    OK(dlock_lock_close(lock, PATIENCE, NONE));
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: tour PORT [DLOCK SOCKET]\n");
        return 2;
    }
    OK(dlock_select_version(DLOCK_API_VERSION));
    dlock_client one = open_client(argv[1]), two = open_client(argv[1]);
    tokens(one, two);
    events(one, two);
    renewal(one, two);
    leases(one, two);
    downgrade(one, two);
    exclusion(one, two);
    many(one);
    objects(one, two);
    if (argc == 4) {
        taken_away(argv[1], two, argv[2], argv[3]);
        commands(argv[1], two, argv[2]);
    }
    OK(dlock_client_leave(one, PATIENCE, NONE));
    OK(dlock_client_leave(two, PATIENCE, NONE));
    puts("tour: all as expected");
    return 0;
}
