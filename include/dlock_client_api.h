/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dlock: the client interface (libdlockc).
 *
 * A process initialises the library once, then any number of clients, each of which talks to
 * one primary. Different clients may be used by different threads at a time; so may one
 * client, whose operations then follow one another. No function is a cancellation point.
 *
 * Under each function stand its results, in the order in which they are decided. In "control"
 * functions, which ask the primary over the control connection, these follow what is listed:
 *   DLOCK_BAD_RESPONSE  no answer within 10 s, connection broken, or nonsense
 *   DLOCK_NOT_READY     the primary is recovering
 *   -1                  the primary refuses
 */
#ifndef __DLOCK_CLIENT_API_H__
#define __DLOCK_CLIENT_API_H__

#include "dlock_types.h"

#ifdef __cplusplus
namespace dlock {
extern "C" {
#endif

/* ---- library ------------------------------------------------------------------------------ */

/* Initialises the library. The strings of cfg are not kept.
 *   DLOCK_EINVAL  cfg is NULL; primary_port is 1..1023 or above 65535; ssl is enabled but
 *                 incomplete
 *   -1            initialised already; tp_mode; no such device; ssl could not be set up
 *   0 */
int dclient_lib_init(const struct client_cfg *cfg);

/* Drops all clients of this process without telling their primaries. */
void dclient_lib_deinit(void);

/* ---- clients ------------------------------------------------------------------------------ */

/* Connects a new client to the primary at ip, an address in digits or the name of a host, and
 * stores its id (> 0) in *client_id. A name is looked up at each connect.
 *   DLOCK_EINVAL     NULL
 *   -1               the library is not initialised; bad ip; no connection; tp_mode differs
 *   DLOCK_NOT_READY  connection refused, or the primary is recovering
 *   DLOCK_SERVER_NO_RESOURCE, DLOCK_PROTO_VERSION_NEGOTIATION_FAIL, DLOCK_BAD_RESPONSE
 *   0 */
int client_init(int *client_id, const char *ip);

/* Connects a client again, to its primary or to that one's successor; its locks stay.
 *   DLOCK_EINVAL     ip is NULL
 *   -1               the library is not initialised
 *   DLOCK_EINVAL     no such client
 *   DLOCK_CLIENT_REMOVED_BY_SERVER  the primary does not know the client
 *   as client_init(); DLOCK_NOT_READY also until its session horizon has passed, if it has kept
 *   others waiting for 10 s in the middle of an operation
 *   0 */
int client_reinit(int client_id, const char *ip);

/* Tells a recovering primary that the client has told all its locks. Control.
 *   -1                     the library is not initialised
 *   DLOCK_CLIENT_NOT_INIT
 *   DLOCK_ENOMEM
 *   -1                     the primary does not wait for it
 *   0 */
int client_reinit_done(int client_id);

/* Tells a recovering primary which locks this client has. Repeat while DLOCK_EAGAIN. Control.
 *   -1                     the library is not initialised
 *   DLOCK_CLIENT_NOT_INIT
 *   0                      also if the client has no locks, and if the primary refuses some:
 *                          what is held by another client now is lost; what it has no room for,
 *                          or does not permit, is not got any more (the log says which)
 *   DLOCK_EAGAIN           some are left: operations on them are under way
 *   DLOCK_ENOMEM, -1       (-1 also if the primary is not recovering) */
int update_all_locks(int client_id);

/* Ends a client, with any result. Control.
 *   -1  the library is not initialised; no such client
 *   0 */
int client_deinit(int client_id);

/* Asks whether the primary is there and knows this client; waits for timeout_s (1 to 300).
 *   -1                  the library is not initialised
 *   DLOCK_EINVAL        timeout_s; no such client
 *   DLOCK_BAD_RESPONSE  no answer in time
 *   DLOCK_NOT_READY     the primary is recovering
 *   -1                  the primary does not know this client
 *   0 */
int client_heartbeat(int client_id, unsigned int timeout_s);

/* Reads a client's counters.
 *   DLOCK_EINVAL              NULL
 *   DLOCK_CLIENTMGR_NOT_INIT
 *   DLOCK_EAGAIN              more than 10000 calls of this and the next within a second
 *   DLOCK_CLIENT_NOT_INIT
 *   0 */
int get_client_debug_stats(int client_id, struct debug_stats *stats);

/* Sets a client's counters to 0. Results as above. */
int clear_client_debug_stats(int client_id);

/* ---- getting and releasing locks ---------------------------------------------------------- */

/* Gets a lock by its name, creating it if need be. *lock_id is overwritten at once, even if
 * the call fails; it may share memory with the name. Control.
 *   DLOCK_EINVAL              NULL; len is not 1..512; lock_type
 *   -1                        the library is not initialised; no such client
 *   DLOCK_SERVER_NO_RESOURCE  the primary has as many locks as locks_max in dlockd.toml permits,
 *                             or as a quota of a rule does; its log says which
 *   -1                        the name has another type; or this client has it already
 *                             (*lock_id is then valid)
 *   0 */
int get_lock(int client_id, const struct lock_desc *desc, int *lock_id);

/* Releases a lock that is neither held nor queued for. Control.
 *   -1                      the library is not initialised; no such client
 *   DLOCK_EASYNC            an asynchronous operation on it is pending
 *   -1                      not got; still held
 *   DLOCK_TICKET_TO_UNLOCK  queued for: unlock() first
 *   DLOCK_BAD_RESPONSE      no answer: it may be released or not; until it is released or got
 *                           again, operations on it are DLOCK_LOCK_NOT_GET
 *   0 */
int release_lock(int client_id, int lock_id);

/* Gets n (1 to 31) locks. Control.
 *   DLOCK_EINVAL  NULL; n; one of the descriptions
 *   -1            the library is not initialised; no such client
 *   0             lock_ids[i] is the id, also if got already; -1: the name has another type;
 *                 -8207 (-DLOCK_SERVER_NO_RESOURCE): no room */
int batch_get_lock(int client_id, unsigned int n, const struct lock_desc *descs, int *lock_ids);

/* Releases n (1 to 31) locks. Those that cannot be released become 0 in lock_ids. Control.
 *   DLOCK_EINVAL  NULL; n
 *   -1            the library is not initialised; no such client; none can be released
 *   0 */
int batch_release_lock(int client_id, unsigned int n, int *lock_ids);

/* ---- lock operations ----------------------------------------------------------------------
 * result points to an atomic_state, rw_state or fairlock_state, after the type of the lock;
 * it is written when the lock's state is known. All begin with:
 *   DLOCK_EINVAL              NULL; an operation that the function does not have
 *   DLOCK_CLIENTMGR_NOT_INIT
 *   DLOCK_CLIENT_NOT_INIT
 *   DLOCK_EASYNC              an asynchronous operation of this client is pending
 *   DLOCK_LOCK_NOT_GET
 * and may end with:
 *   DLOCK_BAD_RESPONSE        no answer within 5 s
 *   DLOCK_NOT_READY           the primary is recovering
 *   DLOCK_ENOMEM */

/* Acquires a lock if it is free: LOCK_EXCLUSIVE or LOCK_SHARED, for expire_time seconds. With
 * expire_time 0 only reports what this client knows of the lock.
 *   DLOCK_EINVAL          LOCK_SHARED on an atomic lock; held in the other mode
 *   DLOCK_ETICKET         fair: queued in the other mode
 *   DLOCK_ALREADY_LOCKED  held already: one more unlock() is needed
 *   DLOCK_EAGAIN          fair: queued; call again to ask for the lock, within 2 s: a place that
 *                         is not asked for may be lost
 *   DLOCK_FAIL            held by another client; fair: the place in the queue was lost
 *   0 */
int trylock(int client_id, const struct lock_request *req, void *result);

/* Acquires a lock as trylock() does, but waits up to 5 s for it. */
int lock(int client_id, const struct lock_request *req, void *result);

/* Gives up a lock, or the place in its queue.
 *   DLOCK_ALREADY_UNLOCKED  not held
 *   DLOCK_ALREADY_LOCKED    held more than once: still held; FAIL if its lease may be over
 *   DLOCK_FAIL              it was lost before; with DLOCK_PRIMARIES also: no answer, and its
 *                           lease or this client's horizon may be over, so that another client
 *                           may have it. It is not held any more
 *   DLOCK_BAD_RESPONSE      no answer: it may be released or not. The next operation on it, by any
 *                           thread, first undoes what is left. unlock() may be repeated, but not
 *                           where other threads of this client use the lock: it would end the
 *                           hold that one of them has got meanwhile. With DLOCK_PRIMARIES
 *                           unlock() does not end so for want of an answer
 *   0                       released; with DLOCK_PRIMARIES also without an answer, while no other
 *                           client can have it: it is undone as soon as there is a primary
 *
 * The horizon: a client of a primary that recovers by itself (dlockd with its state file) has one
 * of 30 s; DLOCK_HORIZON_S in the environment names another, or none by the word "forever". If the
 * primary has answered nothing for so long, every operation is DLOCK_BAD_RESPONSE, and another
 * client may have the locks. If the primary is back, they are as after a loss: DLOCK_FAIL, or
 * DLOCK_CLIENT_REMOVED_BY_SERVER from client_reinit() and client_heartbeat() if it has given this
 * client up. A primary that is started by a program has no such horizon. */
int unlock(int client_id, int lock_id, void *result);

/* Extends the lease to expire_time seconds from now, if that is later than now agreed:
 * EXTEND_LOCK_EXCLUSIVE or EXTEND_LOCK_SHARED. 0 asks: do I still hold it?
 *   DLOCK_EINVAL  not held, or in the other mode; a read-write lock
 *   DLOCK_FAIL    it was lost
 *   0 */
int lock_extend(int client_id, const struct lock_request *req, void *result);

/* The same for n (1 to 31) locks at once; results is an array of lock_op_res.
 *   DLOCK_EINVAL  NULL; n; an operation that the function does not have
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_EASYNC, DLOCK_ENOMEM
 *   0             the items' own results are in op_ret */
int batch_trylock(int client_id, unsigned int n, const struct lock_request *reqs, void *results);
int batch_unlock(int client_id, unsigned int n, const int *lock_ids, void *results);
int batch_lock_extend(int client_id, unsigned int n, const struct lock_request *reqs,
                      void *results);

/* Begins any of the operations above; at most one per client at a time.
 *   DLOCK_EINVAL  NULL; lock_op; LOCK_... with expire_time 0
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_EASYNC, DLOCK_LOCK_NOT_GET
 *   what needs no answer: DLOCK_EINVAL, DLOCK_ETICKET, DLOCK_ALREADY_LOCKED,
 *                 DLOCK_ALREADY_UNLOCKED
 *   DLOCK_BAD_RESPONSE, DLOCK_ENOMEM
 *   0             begun (or: a place in a queue was given up, and nothing is pending) */
int lock_request_async(int client_id, const struct lock_request *req);

/* Asks for the result of the operation begun by lock_request_async().
 *   DLOCK_EINVAL  NULL
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT
 *   DLOCK_NO_ASYNC      none is pending
 *   DLOCK_ASYNC_AGAIN   not finished
 *   DLOCK_ETIMEOUT      not finished after 5 s; it is given up
 *   else the operation's result */
int lock_result_check(int client_id, void *result);

/* ---- state objects: 64-bit integers of the primary ---------------------------------------- */

/* Creates an object. Its creator must get it, too, before using it. Control.
 *   DLOCK_EINVAL  NULL; len is not 1..512; lease_time is 0
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_ENOMEM
 *   DLOCK_OBJECT_ALREADY_CREATED    by this client: its lease is extended
 *   DLOCK_OBJECT_ALREADY_EXISTED    by another
 *   DLOCK_OBJECT_ALREADY_DESTROYED  but still in use
 *   DLOCK_OBJECT_TOO_MANY
 *   0             *obj_id is the id */
int umo_atomic64_create(int client_id, const struct umo_atomic64_desc *desc, uint64_t init_val,
                        int *obj_id);

/* Destroys an object; those who have got it can still use it. Control.
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_ENOMEM
 *   DLOCK_OBJECT_NOT_CREATE, DLOCK_OBJECT_INVALID_OWNER, DLOCK_OBJECT_ALREADY_DESTROYED
 *   0 */
int umo_atomic64_destroy(int client_id, int obj_id);

/* Gets an object by its name. Control.
 *   DLOCK_EINVAL, DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_ENOMEM
 *   DLOCK_OBJECT_NOT_CREATE, DLOCK_OBJECT_ALREADY_DESTROYED
 *   0             *obj_id is the id */
int umo_atomic64_get(int client_id, const struct umo_atomic64_desc *desc, int *obj_id);

/* Gives an object back. Control.
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_ENOMEM
 *   DLOCK_OBJECT_NOT_GET
 *   0 */
int umo_atomic64_release(int client_id, int obj_id);

/* Adds to an object, modulo 2^64; *res_val is the value before. faa, cas and get_snapshot:
 *   DLOCK_EINVAL             NULL
 *   DLOCK_CLIENTMGR_NOT_INIT, DLOCK_CLIENT_NOT_INIT, DLOCK_EASYNC, DLOCK_OBJECT_NOT_GET
 *   DLOCK_FAIL               could not be sent
 *   DLOCK_BAD_RESPONSE       no answer: it may or may not have happened
 *   0 */
int umo_atomic64_faa(int client_id, int obj_id, uint64_t add_val, uint64_t *res_val);

/* Replaces cmp_val by swap_val.
 *   DLOCK_OBJECT_CAS_FAILED  it has another value */
int umo_atomic64_cas(int client_id, int obj_id, uint64_t cmp_val, uint64_t swap_val);

/* Reads an object. */
int umo_atomic64_get_snapshot(int client_id, int obj_id, uint64_t *res_val);

#ifdef __cplusplus
} /* extern "C" */
} /* namespace dlock */
#endif

#endif /* __DLOCK_CLIENT_API_H__ */
