/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dlock: distributed locks, fencing tokens and 64-bit objects for C11 and C++17 (libdlockc).
 *
 *   dlock_client client;
 *   dlock_lock lock;
 *   dlock_hold hold;
 *   uint64_t token;
 *
 *   dlock_select_version(DLOCK_API_VERSION);
 *   dlock_client_open("10.0.0.1", NULL, DLOCK_S(10), DLOCK_NO_CANCEL, &client);
 *   dlock_lock_open(client, "table 7", 7, NULL, DLOCK_S(10), DLOCK_NO_CANCEL, &lock);
 *   if (dlock_acquire(lock, NULL, DLOCK_S(5), DLOCK_NO_CANCEL, &hold, &token) == DLOCK_OK) {
 *       write_with(token);
 *       dlock_release(hold, DLOCK_S(5), DLOCK_NO_CANCEL);
 *   }
 *
 * Errors. A function returns DLOCK_OK or a DLOCK_E_ code; dlock_strerror() has its text, and
 * dlock_last_detail() what this thread's last failed call was about. Results are written on
 * success only. These codes are possible for every function that takes what they speak of, and
 * are not listed below it:
 *   DLOCK_E_API_VERSION  dlock_select_version() was not called
 *   DLOCK_E_HANDLE       no such handle: it was closed, or never made
 *   DLOCK_E_KIND         the handle of something else
 *   DLOCK_E_FORKED       a handle of the parent of this process
 *   DLOCK_E_INVALID      a pointer is NULL, a value or a flag is out of its bounds
 *   DLOCK_E_SIZE         the size of a struct, or bytes behind what the library knows of it
 *   DLOCK_E_INTERNAL     an error of the library, which is in the log
 *
 * Handles are numbers in structs, not pointers. The library looks each one up, and no number is
 * used twice in a process: a handle that was closed by another thread, or that a forked child
 * has inherited, is an error code, where a pointer would be undefined behaviour. {0} is none. A
 * handle that is closed while another thread uses it ends after that call.
 *
 * Time. A call that may wait takes timeout_ns: how long, in nanoseconds from now, or
 * DLOCK_FOREVER. 0 does what needs no waiting. After that time it returns DLOCK_E_TIMED_OUT, and
 * after dlock_cancel_fire() DLOCK_E_CANCELLED, also if the primary stands still. It is not known
 * then whether the operation takes effect, unless its function says more. A call that is given
 * a cancel handle, or no more than DLOCK_S(40), may be made by a thread of the library, which costs
 * some ten microseconds. Leases are in milliseconds.
 *
 * Threads. Every function may be called from every thread at any time. A hold belongs to the
 * client, not to the thread that has acquired it. No function is a cancellation point.
 *
 * Structs begin with their size. DLOCK_INIT(&options) clears one and sets it; 0 is the default of
 * every field. A library takes structs that are smaller or larger than its own: fields that it
 * does not know have to be 0.
 *
 * Nothing here is shared with dlock_client_api.h but the library: their clients, locks and
 * numbers are apart. A program may use both.
 */
#ifndef DLOCK_H
#define DLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- library: version, errors and log ------------------------------------------------------ */

/* The version of this interface that a program is written for. */
#define DLOCK_API_VERSION 1u

/* The codes. Their numbers do not change. */
typedef int32_t dlock_error;
enum {
    DLOCK_OK = 0,
    DLOCK_E_HELD = 1,          /* another client, or another hold of this one, has the lock */
    DLOCK_E_TIMED_OUT = 2,     /* the time of the call is over */
    DLOCK_E_CANCELLED = 3,     /* the call's cancel handle was fired */
    DLOCK_E_LOST = 4,          /* the hold is over: its lease ended, or the primary ended it */
    DLOCK_E_NOT_READY = 5,     /* no primary is running there, or it is not ready */
    DLOCK_E_RECOVERING = 6,    /* the primary recovers what clients held before it started */
    DLOCK_E_DISCONNECTED = 7,  /* no answer: it is not known whether the call took effect */
    DLOCK_E_REMOVED = 8,       /* the primary has removed this client */
    DLOCK_E_LEFT = 9,          /* the client has left */
    DLOCK_E_NO_RESOURCE = 10,  /* the primary has no room, or this process no descriptor */
    DLOCK_E_PROTOCOL = 11,     /* client and primary have no protocol version in common */
    DLOCK_E_TOO_MANY = 12,     /* too many requests are in flight */
    DLOCK_E_NO_OBJECT = 13,    /* there is no object of this name, or its lease has ended */
    DLOCK_E_NOT_OWNER = 14,    /* another client owns the object */
    DLOCK_E_DESTROYED = 15,    /* the object was destroyed */
    DLOCK_E_CHANGED = 16,      /* the object has another value than expected */
    DLOCK_E_DENIED = 17,       /* the primary's rules do not allow it to this certificate */
    DLOCK_E_FAILED = 18,       /* any other failure: the reason is in the log */
    DLOCK_E_BUSY = 19,         /* another call with the same hold is under way */
    DLOCK_E_INVALID = 32,      /* an argument is out of its bounds */
    DLOCK_E_SIZE = 33,         /* a struct has a wrong size, or unknown fields that are not 0 */
    DLOCK_E_HANDLE = 34,       /* no such handle */
    DLOCK_E_KIND = 35,         /* a handle of another kind */
    DLOCK_E_FORKED = 36,       /* a handle of this process's parent */
    DLOCK_E_API_VERSION = 37,  /* no version was selected, or another one, or it is unknown */
    DLOCK_E_INTERNAL = 38      /* an error of the library */
};

/* Chooses the version of the interface, once in a process and before everything else; the same
 * again changes nothing. A later library still serves an earlier version.
 *   DLOCK_E_API_VERSION  0, above dlock_max_version(), or another one was selected before */
dlock_error dlock_select_version(uint32_t version);

/* The latest version that this library serves. */
uint32_t dlock_max_version(void);

/* The text of a code, in English; it is never NULL and never ends. */
const char *dlock_strerror(dlock_error error);

/* What the last call of this thread that failed says of its failure, such as the name of the
 * argument; "" if no call failed. It is valid until the thread's next call that fails. */
const char *dlock_last_detail(void);

/* Sets the most detailed level of the log, as syslog counts: 3 errors, 4 warnings (the default),
 * 6 information, 7 everything, 0 nothing. dlock_log.h says where lines go. */
dlock_error dlock_set_log_level(int32_t level);

/* Time, for timeout_ns. */
#define DLOCK_FOREVER UINT64_MAX
#define DLOCK_US(us) ((uint64_t)(us) * UINT64_C(1000))
#define DLOCK_MS(ms) ((uint64_t)(ms) * UINT64_C(1000000))
#define DLOCK_S(s) ((uint64_t)(s) * UINT64_C(1000000000))

/* Clears a struct and sets its size. */
#define DLOCK_INIT(at) ((void)memset((at), 0, sizeof *(at)), (at)->size = (uint32_t)sizeof *(at))

/* ---- cancel: end calls that wait ------------------------------------------------------------ */

/* The handle that ends waiting calls, and requests in flight, that were given it. */
typedef struct dlock_cancel {
    uint64_t id;
} dlock_cancel;

/* For calls that cannot be cancelled. */
#ifdef __cplusplus
#define DLOCK_NO_CANCEL (dlock_cancel{0})
#else
#define DLOCK_NO_CANCEL ((dlock_cancel){0})
#endif

/* Makes a cancel handle. Any number of calls may be given the same. */
dlock_error dlock_cancel_new(dlock_cancel *cancel);

/* Ends all calls and requests that were given this handle, and those that are given it later:
 * DLOCK_E_CANCELLED. What is acquired in the same moment is either returned or released. Not for
 * signal handlers. */
dlock_error dlock_cancel_fire(dlock_cancel cancel);

/* Closes the handle. Calls that were given it go on, and cannot be cancelled any more. */
dlock_error dlock_cancel_close(dlock_cancel cancel);

/* ---- client: the connection to a primary ------------------------------------------------------ */

/* A client of one primary. */
typedef struct dlock_client {
    uint64_t id;
} dlock_client;

/* dlock_client_options.fabric */
enum {
    DLOCK_FABRIC_AUTO = 0,   /* the best that both sides have */
    DLOCK_FABRIC_VERBS = 1,  /* RDMA */
    DLOCK_FABRIC_SHM = 2,    /* shared memory, on the host of the primary */
    DLOCK_FABRIC_TCP = 3
};

/* dlock_client_options.flags */
enum {
    DLOCK_NO_TLS = 1,            /* no TLS; the environment does not matter */
    DLOCK_SHARED_QUEUE_PAIR = 2  /* one queue pair, as the primary is configured */
};

/* How to reach a primary. NULL where the options are asked for: all defaults. Strings are copied.
 * Where a field is 0 or NULL the environment decides (dlock(3)), else the default. */
typedef struct dlock_client_options {
    uint32_t size;
    uint32_t flags;
    uint32_t port;         /* the primary's control port (21616) */
    uint32_t fabric;
    uint64_t horizon_ms;   /* how long holds are relied on without an answer, whole seconds
                            * rounded up, a day at most; DLOCK_FOREVER: as long as connected */
    uint64_t silence_ms;   /* a primary silent for so long is looked for elsewhere, 100..60000 */
    const char *primaries; /* where its successor may be: "A:PORT,B"; the client comes back by
                            * itself, and calls that wait go on. "": it does not come back */
    const char *device;    /* RDMA device, as `rdma link` prints it */
    const char *tls_ca;    /* PEM files; if one of ca, cert and key is given, all three are */
    const char *tls_cert;
    const char *tls_key;
    const char *tls_crl;
    const char *tls_key_password_file;
    const char *label;     /* what operators see of the client (dlock clients): UTF-8, 64 bytes at
                            * most, no control characters */
} dlock_client_options;

typedef struct dlock_client_info {
    uint32_t size;
    uint32_t client_id;       /* the number of the client at its primary */
    uint64_t epoch;           /* the incarnation of the primary: it grows */
    uint64_t horizon_left_ns; /* how long holds may be relied on without another answer */
    uint32_t fabric;          /* DLOCK_FABRIC_AUTO: none, it looks for its primary */
    uint32_t reserved;
} dlock_client_info;

/* Connects a client to the primary at host: an address in digits or a name, also with a port, as in
 * "A:PORT" and "[A6]:PORT". Within the time it waits for a primary that recovers.
 *   DLOCK_E_NOT_READY, DLOCK_E_RECOVERING, DLOCK_E_NO_RESOURCE, DLOCK_E_PROTOCOL,
 *   DLOCK_E_DISCONNECTED, DLOCK_E_DENIED, DLOCK_E_FAILED, DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED,
 *   DLOCK_E_TOO_MANY */
dlock_error dlock_client_open(const char *host, const dlock_client_options *options,
                              uint64_t timeout_ns, dlock_cancel cancel, dlock_client *client);

/* What the client knows of itself; info->size is set by the caller. It does not wait. */
dlock_error dlock_client_get_info(dlock_client client, dlock_client_info *info);

/* Asks the primary whether it knows this client. The library sends heartbeats by itself.
 *   DLOCK_E_DISCONNECTED, DLOCK_E_NOT_READY, DLOCK_E_LEFT, DLOCK_E_REMOVED, DLOCK_E_FAILED,
 *   DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED, DLOCK_E_TOO_MANY */
dlock_error dlock_client_ping(dlock_client client, uint64_t timeout_ns, dlock_cancel cancel);

/* Tells the primary that the client leaves, which releases all that it holds, and closes the
 * handle, also if it fails. Its other handles are to be closed, too: their calls return
 * DLOCK_E_LEFT.
 *   DLOCK_E_DISCONNECTED, DLOCK_E_NOT_READY, DLOCK_E_LEFT, DLOCK_E_FAILED, DLOCK_E_TIMED_OUT,
 *   DLOCK_E_CANCELLED, DLOCK_E_TOO_MANY */
dlock_error dlock_client_leave(dlock_client client, uint64_t timeout_ns, dlock_cancel cancel);

/* Closes the handle and tells the primary nothing. The connection ends with the client's last
 * lock, hold and object. */
dlock_error dlock_client_close(dlock_client client);

/* ---- lock: locks by name ------------------------------------------------------------------------ */

/* A lock that a client has got. */
typedef struct dlock_lock {
    uint64_t id;
} dlock_lock;

/* dlock_lock_options.type: a name has one type as long as any client has the lock. */
enum {
    DLOCK_TYPE_FAIR = 0,       /* readers or one writer in the order of arrival, a lease */
    DLOCK_TYPE_ATOMIC = 1,     /* one holder, a lease, no order */
    DLOCK_TYPE_READ_WRITE = 2  /* readers or one writer, a lease if an acquire asks for one */
};

/* dlock_lock_options.flags */
enum {
    DLOCK_NO_TOKENS = 1, /* holds have no fencing tokens: an acquire of an atomic or read-write
                          * lock takes one word operation less */
    DLOCK_CACHED = 2     /* the client keeps the lock after a release until another client wants
                          * it: acquire and release then take no message. An exclusive hold is
                          * kept with DLOCK_NO_TOKENS only */
};

typedef struct dlock_lock_options {
    uint32_t size;
    uint32_t flags;
    uint32_t type;
    uint32_t reserved;
} dlock_lock_options;

/* Gets the lock of this name, 1 to 512 bytes of any values. The same name again is the same lock,
 * with a handle of its own.
 *   DLOCK_E_FAILED  (a lock of another type has this name), DLOCK_E_NOT_READY,
 *   DLOCK_E_NO_RESOURCE, DLOCK_E_DISCONNECTED, DLOCK_E_LEFT, DLOCK_E_REMOVED, DLOCK_E_DENIED,
 *   DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED, DLOCK_E_TOO_MANY */
dlock_error dlock_lock_open(dlock_client client, const void *name, size_t name_len,
                            const dlock_lock_options *options, uint64_t timeout_ns,
                            dlock_cancel cancel, dlock_lock *lock);

/* Closes the handle. With its last handle and hold the lock is given back to the primary; if the
 * time does not suffice for that, a thread of the library goes on with it.
 *   DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED, DLOCK_E_TOO_MANY: the handle is closed */
dlock_error dlock_lock_close(dlock_lock lock, uint64_t timeout_ns, dlock_cancel cancel);

/* ---- hold: acquire and release -------------------------------------------------------------------- */

/* A lock that is held. A client holds a lock by one hold at a time, or by several shared ones. */
typedef struct dlock_hold {
    uint64_t id;
} dlock_hold;

/* dlock_acquire_options.mode */
enum {
    DLOCK_EXCLUSIVE = 0,
    DLOCK_SHARED = 1 /* not of an atomic lock */
};

/* dlock_acquire_options.flags */
enum {
    DLOCK_TRY = 1,  /* do not wait for other holders: DLOCK_E_HELD */
    DLOCK_RENEW = 2 /* the library renews the lease until the hold is released; of shared holds of
                     * this client that overlap, until the last of them is. Also over a failover. If
                     * it cannot, the hold is DLOCK_E_LOST shortly before the lease ends. A lease that
                     * is renewed says nothing of whether the program goes on */
};

typedef struct dlock_acquire_options {
    uint32_t size;
    uint32_t flags;
    uint32_t mode;
    uint32_t reserved;
    uint64_t lease_ms; /* from the grant on; when it ends others may get the lock. 0: 30 s, and
                        * none of a read-write lock, where DLOCK_RENEW is DLOCK_E_INVALID then. At
                        * least 100 ms; rounded up to sixteenths of a second. DLOCK_FOREVER: it does
                        * not end */
} dlock_acquire_options;

typedef struct dlock_hold_info {
    uint32_t size;
    uint32_t mode;
    uint64_t token;             /* the fencing token; 0: none, or the hold is known to be over */
    uint64_t generation;        /* differs from that of earlier and later holds of the lock by this
                                 * client; shared holds that overlap have the same */
    uint64_t lease_end_unix_ms; /* on the primary's clock, as last granted or renewed: when the last
                                 * sixteenth of a second of the lease begins. 0: no lease;
                                 * UINT64_MAX: it does not end */
} dlock_hold_info;

/* Acquires the lock. *token, if token is not NULL, is the hold's fencing token, from 1 to
 * 2^63 - 1: pass it with each write to what the lock protects, which refuses a token below the
 * largest that it has seen. Exclusive tokens of a name strictly increase.
 *   DLOCK_E_HELD  (DLOCK_TRY), DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED: nothing is held or queued
 *   DLOCK_E_LOST  (the lease was over before it could be returned), DLOCK_E_NOT_READY,
 *   DLOCK_E_DISCONNECTED, DLOCK_E_LEFT, DLOCK_E_REMOVED, DLOCK_E_DENIED, DLOCK_E_TOO_MANY */
dlock_error dlock_acquire(dlock_lock lock, const dlock_acquire_options *options,
                          uint64_t timeout_ns, dlock_cancel cancel, dlock_hold *hold,
                          uint64_t *token);

/* What the client knows of the hold; info->size is set by the caller. No message is sent.
 *   DLOCK_E_LOST  the client knows that the hold is over, or its lease may be
 *   DLOCK_E_BUSY  another call with the same hold has taken 5 s */
dlock_error dlock_hold_get_info(dlock_hold hold, dlock_hold_info *info);

/* Moves the end of the lease to lease_ms from now, never back; as dlock_acquire_options.lease_ms.
 *   DLOCK_E_LOST, DLOCK_E_NOT_READY, DLOCK_E_DISCONNECTED, DLOCK_E_LEFT, DLOCK_E_REMOVED,
 *   DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED, DLOCK_E_TOO_MANY
 *   DLOCK_E_INVALID  a hold of a read-write lock without a lease */
dlock_error dlock_hold_extend(dlock_hold hold, uint64_t lease_ms, uint64_t timeout_ns,
                              dlock_cancel cancel);

/* Makes an exclusive hold of a read-write or fair lock a shared one, and no other client gets the
 * lock exclusively in between. Readers come in as the lock lets them, a writer waits on. Lease,
 * renewal, generation and events go on; the token becomes that of the readers
 * (dlock_hold_get_info()). A shared hold stays one.
 *   As dlock_hold_extend(); DLOCK_E_INVALID  an atomic lock has no shares
 *   DLOCK_E_DISCONNECTED, DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED: it counts as shared from then on,
 *   unless dlock_hold_get_info() says exclusive: it had not begun. The next call with the hold asks
 *   what became of it */
dlock_error dlock_hold_downgrade(dlock_hold hold, uint64_t timeout_ns, dlock_cancel cancel);

/* Asks whether the lock is still held; without a lease the client knows it until its horizon.
 *   As dlock_hold_extend(). */
dlock_error dlock_hold_check(dlock_hold hold, uint64_t timeout_ns, dlock_cancel cancel);

/* Releases the lock and closes the handle, with every result but DLOCK_E_BUSY. After
 * DLOCK_E_TIMED_OUT and DLOCK_E_CANCELLED the library goes on with the release.
 *   DLOCK_E_BUSY  another call with the same hold has not ended in time: the hold stays
 *   DLOCK_E_LOST  (it was not held any more), DLOCK_E_NOT_READY, DLOCK_E_DISCONNECTED,
 *   DLOCK_E_LEFT, DLOCK_E_REMOVED, DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED */
dlock_error dlock_release(dlock_hold hold, uint64_t timeout_ns, dlock_cancel cancel);

/* One of many: what to acquire, and what became of it. */
typedef struct dlock_item {
    uint32_t size;      /* the same in all items */
    uint32_t flags;     /* as in dlock_acquire_options, also mode and lease_ms */
    uint32_t mode;
    dlock_error status; /* result */
    uint64_t lease_ms;
    dlock_lock lock;
    dlock_hold hold;    /* result of an acquire, argument of a release */
    uint64_t token;     /* result; 0: none */
} dlock_item;

/* Acquires many locks at the same time, as dlock_acquire() does; count is not bounded by what one
 * message holds. Each item has its status. An item that was acquired stays acquired if another one
 * fails: two programs that wait for locks of each other wait until the time is over.
 *   DLOCK_OK  all items are held
 *   else the status of the first item that is not; but if items are invalid, that of the first of
 *   them: nothing was begun, and the others have DLOCK_E_CANCELLED. With a wrong size no item is
 *   changed */
dlock_error dlock_acquire_many(dlock_item *items, size_t count, uint64_t timeout_ns,
                               dlock_cancel cancel);

/* Releases the holds of many items at the same time, as dlock_release() does. Items without a hold
 * ({0}) are left out, and their status is DLOCK_OK. */
dlock_error dlock_release_many(dlock_item *items, size_t count, uint64_t timeout_ns,
                               dlock_cancel cancel);

/* ---- queue: requests in flight, and events ------------------------------------------------------- */

/* The queue of the results of requests. One thread may have thousands in flight (16384 a client),
 * and wait for them by poll() of one descriptor. */
typedef struct dlock_queue {
    uint64_t id;
} dlock_queue;

/* dlock_event.kind. Completions of requests are below 64; above is what dlock_listen_lock() and
 * dlock_listen_client() ask for. Later versions may have more of these. */
enum {
    DLOCK_EVENT_ACQUIRED = 1,         /* a dlock_acquire_start() is over: hold and token, or status */
    DLOCK_EVENT_RELEASED = 2,         /* a dlock_release_start() is over */
    DLOCK_EVENT_GRANTED = 64,         /* a hold has begun: generation, token */
    DLOCK_EVENT_LOST = 65,            /* it is over, not released: reason, token; DLOCK_E_LOST */
    DLOCK_EVENT_CONTENDED = 66,       /* it keeps others waiting: count, left_ms */
    DLOCK_EVENT_RENEWAL_FAILING = 67, /* a renewal was not answered: left_ms */
    DLOCK_EVENT_RECOVERING = 68,      /* the client is at a primary that recovers: count, of */
    DLOCK_EVENT_SERVING = 69,         /* the client has a primary that serves again */
    DLOCK_EVENT_MISSED = 70           /* so many events had no room: count */
};

/* dlock_event.reason of DLOCK_EVENT_LOST */
enum {
    DLOCK_LOST_EXPIRED = 1,    /* the lease is over, or is about to be */
    DLOCK_LOST_SESSION = 2,    /* the session is over that the hold depended on */
    DLOCK_LOST_TAKEN_AWAY = 3, /* an operator has taken it away (a client without primaries does not
                                * hear so: it is told 1 or 2, at the end of the lease or horizon) */
    DLOCK_LOST_CONFLICT = 4,   /* a successor of the primary has refused it */
    DLOCK_LOST_UNKNOWN = 5     /* the lock was found to be held by another, or free */
};

typedef struct dlock_event {
    uint32_t size;
    uint32_t kind;
    dlock_error status;
    uint32_t reserved;
    void *user_data;     /* as it was given with the request */
    dlock_lock lock;     /* the lock that was named in the call that asked for the event, else {0} */
    dlock_hold hold;     /* of a hold that was acquired, and of the one that was released */
    uint64_t generation; /* as in dlock_hold_info */
    uint64_t token;      /* as in dlock_hold_info */
    int32_t lock_id;     /* the number of the lock, as `dlock locks` prints it, of kinds from 64 */
    uint32_t reason;
    uint64_t count;      /* clients that wait, or have told what they hold; or missing events */
    uint64_t left_ms;    /* until the hold is lost, or an operator has the client removed;
                          * DLOCK_FOREVER: no operator wants the lock back */
    uint64_t of;         /* clients that a recovery waits for; 0: that is not known yet */
} dlock_event;

/* Makes a queue.
 *   DLOCK_E_NO_RESOURCE  no descriptor */
dlock_error dlock_queue_new(dlock_queue *queue);

/* The descriptor of the queue, which is readable while an event is there: for poll(), epoll and
 * event loops. Do not read, write or close it; it is closed with the queue. */
dlock_error dlock_queue_get_fd(dlock_queue queue, int *fd);

/* Begins to acquire the lock, as dlock_acquire() does, and returns. The result comes as an event,
 * also if the request is cancelled (the handle may have been fired before) or its time is over;
 * then up to 5 s later if the primary stands still.
 *   DLOCK_E_TOO_MANY  nothing was begun, and no event comes; so with the codes of all calls */
dlock_error dlock_acquire_start(dlock_queue queue, dlock_lock lock,
                                const dlock_acquire_options *options, uint64_t timeout_ns,
                                dlock_cancel cancel, void *user_data);

/* Begins to release the lock, as dlock_release() does, closes the handle and returns. Without
 * DLOCK_OK no event comes.
 *   DLOCK_E_BUSY      another call with the same hold has taken 5 s: the hold stays
 *   DLOCK_E_TOO_MANY  the hold stays */
dlock_error dlock_release_start(dlock_queue queue, dlock_hold hold, void *user_data);

/* Has the queue tell what becomes of the holds of this lock, from now on until the queue is closed;
 * a hold that there is already is told as granted. Up to 1024 such events wait. While a queue is
 * told, holds are given up shortly before their leases end, so that the loss is told in time, and
 * the client asks its primary once for each hold whether others wait.
 *   DLOCK_E_TOO_MANY  the queue listens 1024 times already */
dlock_error dlock_listen_lock(dlock_queue queue, dlock_lock lock, void *user_data);

/* The same of all locks of this client, and of its primary. */
dlock_error dlock_listen_client(dlock_queue queue, dlock_client client, void *user_data);

/* Takes the next event; event->size is set by the caller.
 *   DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED  no event was taken */
dlock_error dlock_queue_next(dlock_queue queue, uint64_t timeout_ns, dlock_cancel cancel,
                             dlock_event *event);

/* Closes the queue. Its requests are cancelled, releases go on, and holds whose event was not taken
 * are released. */
dlock_error dlock_queue_close(dlock_queue queue);

/* ---- object: 64-bit values at the primary --------------------------------------------------------- */

/* An object that a client has got. */
typedef struct dlock_object {
    uint64_t id;
} dlock_object;

/* dlock_object_options.flags */
enum {
    DLOCK_CREATE = 1 /* if there is none: with the value initial */
};

typedef struct dlock_object_options {
    uint32_t size;
    uint32_t flags;
    uint64_t initial;
    uint64_t lease_ms; /* how long the object may be used after it was destroyed, and stays without
                        * a client; as dlock_acquire_options.lease_ms. 0: 30 s */
} dlock_object_options;

/* Gets the object of this name, 1 to 512 bytes of any values.
 *   DLOCK_E_NO_OBJECT, DLOCK_E_DESTROYED, DLOCK_E_NOT_READY, DLOCK_E_NO_RESOURCE,
 *   DLOCK_E_DISCONNECTED, DLOCK_E_LEFT, DLOCK_E_REMOVED, DLOCK_E_DENIED, DLOCK_E_TIMED_OUT,
 *   DLOCK_E_CANCELLED, DLOCK_E_TOO_MANY */
dlock_error dlock_object_open(dlock_client client, const void *name, size_t name_len,
                              const dlock_object_options *options, uint64_t timeout_ns,
                              dlock_cancel cancel, dlock_object *object);

/* Adds modulo 2^64; *before, if before is not NULL, is the value before.
 *   DLOCK_E_NO_OBJECT, DLOCK_E_NOT_READY, DLOCK_E_LEFT, DLOCK_E_REMOVED, DLOCK_E_TOO_MANY
 *   DLOCK_E_DISCONNECTED, DLOCK_E_TIMED_OUT, DLOCK_E_CANCELLED: it was added or not */
dlock_error dlock_object_add(dlock_object object, uint64_t add, uint64_t timeout_ns,
                             dlock_cancel cancel, uint64_t *before);

/* Sets the value to desired if it is expected.
 *   As dlock_object_add(); DLOCK_E_CHANGED: it has another value */
dlock_error dlock_object_exchange(dlock_object object, uint64_t expected, uint64_t desired,
                                  uint64_t timeout_ns, dlock_cancel cancel);

/* Reads the value.
 *   As dlock_object_add(). */
dlock_error dlock_object_load(dlock_object object, uint64_t timeout_ns, dlock_cancel cancel,
                              uint64_t *value);

/* Destroys the object; clients that have it may use it until its lease ends. The handle stays.
 *   As dlock_object_add(); DLOCK_E_NOT_OWNER, DLOCK_E_DESTROYED */
dlock_error dlock_object_destroy(dlock_object object, uint64_t timeout_ns, dlock_cancel cancel);

/* Closes the handle, as dlock_lock_close() does. */
dlock_error dlock_object_close(dlock_object object, uint64_t timeout_ns, dlock_cancel cancel);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* DLOCK_H */
