/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dlock: types, constants and status codes of the client and server interface.
 *
 * Usable from C11 and from C++11; in C++ everything is in namespace dlock.
 * Layouts are those of LP64 (x86-64, aarch64) and never change.
 */
#ifndef _DLOCK_TYPES_H__
#define _DLOCK_TYPES_H__

#include <stdint.h>
#ifdef __cplusplus
#include <cstdint>
namespace dlock {
extern "C" {
#else
#include <stdbool.h>
#endif

/* MAX_LOCK_DESC_LEN, MAX_UMO_ATOMIC64_DESC_LEN: bytes of a description, at most.
 * MAX_LOCK_BATCH_SIZE: items of one batch call, at most.
 * SLEEP_INTERVAL: microseconds between two polls, for programs that poll.
 * DLOCK_EID_SIZE: bytes of a port's address; a macro in C++, too. */
#ifdef __cplusplus
constexpr unsigned int MAX_LOCK_DESC_LEN = 512;
constexpr unsigned int MAX_UMO_ATOMIC64_DESC_LEN = 512;
constexpr unsigned int MAX_LOCK_BATCH_SIZE = 31;
constexpr int SLEEP_INTERVAL = 100000;
#else
#define MAX_LOCK_DESC_LEN 512U
#define MAX_UMO_ATOMIC64_DESC_LEN 512U
#define MAX_LOCK_BATCH_SIZE 31U
#define SLEEP_INTERVAL 100000
#endif
#ifdef URMA_EID_SIZE
#define DLOCK_EID_SIZE URMA_EID_SIZE
#else
#define DLOCK_EID_SIZE 16
#endif

/* ---- status codes -------------------------------------------------------------------------
 * Most control functions also return -1 (the call failed; the log says why). */
typedef enum dlock_status {
    DLOCK_SUCCESS = 0,
    DLOCK_DONE = 1,

    DLOCK_EAGAIN = 0x1000,   /* queued on a fair lock: ask again; or: called too often */
    DLOCK_ENOMEM = 0x1001,
    DLOCK_ETIMEOUT = 0x1002, /* an asynchronous operation took more than 5 s */
    DLOCK_EINVAL = 0x1003,
    DLOCK_ETICKET = 0x1004,  /* this client is queued in the other mode */
    DLOCK_EASYNC = 0x1005,   /* an asynchronous operation of this client is pending */

    DLOCK_CLIENT_NOT_INIT = 0x2000, /* this process has no client with this id */
    DLOCK_LOCK_NOT_GET = 0x2001,
    DLOCK_ALREADY_LOCKED = 0x2002,  /* re-entry, or unlock of a lock that stays locked */
    DLOCK_ALREADY_UNLOCKED = 0x2003,
    DLOCK_TICKET_TO_UNLOCK = 0x2004, /* queued on this lock: unlock before releasing it */
    DLOCK_BAD_RESPONSE = 0x2005,     /* no answer, or none that makes sense */
    DLOCK_FAIL = 0x2006,             /* held by another client, or lost to one */
    DLOCK_CLIENTMGR_NOT_INIT = 0x2007, /* dclient_lib_init() was not called */
    DLOCK_NOT_READY = 0x2008,          /* the primary is recovering, or not there */
    DLOCK_NO_ASYNC = 0x2009,
    DLOCK_ASYNC_AGAIN = 0x200A,
    DLOCK_REPLICA_INIT_FAIL = 0x200B,
    DLOCK_SERVER_NOT_INIT = 0x200C,
    DLOCK_CLIENT_REMOVED_BY_SERVER = 0x200D,
    DLOCK_PROTO_VERSION_NEGOTIATION_FAIL = 0x200E,
    DLOCK_SERVER_NO_RESOURCE = 0x200F, /* 8207: clients_max, locks_max, objects_max or a quota */

    DLOCK_OBJECT_ALREADY_EXISTED = 0x3000, /* another client owns an object of this name */
    DLOCK_OBJECT_ALREADY_CREATED = 0x3001, /* this client owns it already */
    DLOCK_OBJECT_NOT_CREATE = 0x3002,
    DLOCK_OBJECT_INVALID_OWNER = 0x3003,
    DLOCK_OBJECT_NOT_GET = 0x3004,
    DLOCK_OBJECT_ALREADY_DESTROYED = 0x3005,
    DLOCK_OBJECT_TOO_MANY = 0x3006,
    DLOCK_OBJECT_CAS_FAILED = 0x3007
} dlock_status_t;

/* ---- configuration ------------------------------------------------------------------------ */
enum server_type {
    SERVER_PRIMARY = 0,
    SERVER_REPLICA = 1,
    SERVER_MAX = 2
};

enum thread_type {
    CTRL_THREAD = 0,
    CMD_THREAD = 1
};

/* How client and primary use their connections; both ends must be configured alike. */
typedef enum trans_mode {
    SEPERATE_CONN = 0,
    UNI_CONN = 1
} trans_mode_t;

typedef enum new_jetty_type {
    CLIENT = 0,
    CLIENT_PRIMARY = 1,
    REPLICA_PRIMARY = 2
} new_jetty_t;

/* The address of an RDMA port, in network byte order (IPv4: in4.prefix is 0x0000ffff). */
typedef union dlock_eid {
    uint8_t raw[DLOCK_EID_SIZE];
    struct {
        uint64_t reserved;
        uint32_t prefix;
        uint32_t addr;
    } in4;
    struct {
        uint64_t subnet_prefix;
        uint64_t interface_id;
    } in6;
} dlock_eid_t;

/* Checks the peer's certificate instead of the library: >= 0 accepts, < 0 rejects. ctx is an
 * X509_STORE_CTX of the libcrypto that the program is linked with, valid during the call;
 * crl_path is "" if none is configured. Called in every handshake, on any thread, several at a
 * time; must not call functions of the client or server library. It returns, as the next two do: a
 * C++ exception that leaves one of them, or pthread_exit in it, ends the process. */
typedef int (*tls_cert_verify_callback_func_t)(void *ctx, const char *crl_path);
/* Hands out the password of the private key: a terminated string of *len (<= 64) bytes. */
typedef void (*tls_prkey_pwd_callback_func_t)(char **pwd, int *len);
/* Erases and frees what tls_prkey_pwd_callback_func_t has handed out. */
typedef void (*tls_erase_prkey_callback_func_t)(void *pwd, int len);

/* With ssl_enable false nothing else of it is read. Certificates and keys are accepted that OpenSSL
 * accepts by default; some of them need the shared libcrypto (3 or 1.1.1). prkey_pwd_cb is called
 * when an encrypted key is loaded; a primary that it gives no right password starts, refuses
 * connections, and asks again at each. */
struct ssl_cfg {
    bool ssl_enable;
    char *ca_path;
    char *crl_path;   /* may be NULL */
    char *cert_path;
    char *prkey_path;
    tls_cert_verify_callback_func_t cert_verify_cb; /* may be NULL */
    tls_prkey_pwd_callback_func_t prkey_pwd_cb;
    tls_erase_prkey_callback_func_t erase_prkey_cb;
};

/* Which RDMA port is used, by client and primary: the one that has the address eid, also if
 * dev_name names another device; else one of the device dev_name; else, without an eid, the first
 * that can be used. An eid that no port has, without dev_name, is refused on a host that has ports
 * that can be used; a host without any goes on with shared memory and TCP. With DLOCK_FABRIC=shm or
 * =tcp in the environment neither eid nor dev_name matters; DLOCK_FABRIC=verbs (with TLS: sealed)
 * demands RDMA. */
struct client_cfg {
    char *dev_name;   /* RDMA device, which must exist; NULL: any */
    dlock_eid_t eid;  /* address of an RDMA port; zeros: any */
    int log_level;    /* 0 to 7 as in syslog; anything else: unchanged (at first 4) */
    int primary_port; /* 1024 to 65535; <= 0: as before (at first 21616) */
    struct ssl_cfg ssl;
    trans_mode_t tp_mode;
    bool ub_token_disable; /* ignored */
};

struct primary_cfg {
    uint32_t num_of_replica;      /* 0 */
    uint32_t recovery_client_num; /* clients to wait for (<= 1000); 0: serve at once */
    char *ctrl_cpuset;            /* "0,2-3"; NULL: any CPU */
    char *cmd_cpuset;
    char *server_ip_str; /* the address to listen at */
    int server_port;     /* 1024 to 65535; <= 0: 21616 */
    int replica_port;    /* ignored while replica_enable is false */
    bool replica_enable; /* false */
};

struct replica_cfg {
    char *primary_ip_str;
    int primary_port;
};

struct server_cfg {
    enum server_type type; /* SERVER_PRIMARY */
    char *dev_name;   /* RDMA device, which must exist and work; NULL: any */
    dlock_eid_t eid;  /* address of an RDMA port; zeros: any */
    int log_level;    /* 0 to 7 as in syslog; anything else: unchanged (at first 4) */
    bool sleep_mode_enable; /* spend less CPU while idle */
    union {
        struct primary_cfg primary;
        struct replica_cfg replica;
    };
    struct ssl_cfg ssl;
    trans_mode_t tp_mode;
    bool ub_token_disable; /* ignored */
};

/* ---- locks -------------------------------------------------------------------------------- */
enum dlock_type {
    DLOCK_ATOMIC = 0, /* exclusive; with a lease */
    DLOCK_RW = 1,     /* readers and one writer; without a lease */
    DLOCK_FAIR = 2,   /* readers and one writer, in order of arrival; with a lease */
    DLOCK_MAX = 3
};

enum lock_ops {
    LOCK_EXCLUSIVE = 0,
    LOCK_SHARED = 1,
    UNLOCK = 2,
    EXTEND_LOCK_EXCLUSIVE = 3,
    EXTEND_LOCK_SHARED = 4,
    LOCK_OPS_MAX = 5
};

struct lock_desc {
    char *p_desc;        /* the lock's name: any bytes */
    uint32_t len;        /* 1 to MAX_LOCK_DESC_LEN */
    uint32_t lock_type;  /* dlock_type */
    uint32_t lease_time; /* kept, but never enforced */
};

struct lock_request {
    int lock_id;
    int lock_op;          /* lock_ops */
    uint32_t expire_time; /* seconds from now; 0 has a meaning of its own in each function */
};

/* time_out: of a client with a session horizon (dlock_client_api.h) a lease is a promise up to
 * time_out while its primary lives, but after a failover only up to the horizon.
 *
 * The result of an operation on an atomic lock. */
typedef struct {
    int client_id;     /* the holder; 0: none */
    uint32_t time_out; /* the lease ends: seconds since 1970 on the primary's clock */
} atomic_state;

/* The result of an operation on a read-write lock; its first 12 bytes are written. */
typedef struct {
    uint32_t time_out; /* when it was acquired first */
    int client_id;     /* the exclusive holder; 0: none */
    uint32_t rcount;   /* readers */
    uint32_t rsvd;
} rw_state;

/* The result of an operation on a fair lock; its first 12 bytes, or all 16, are written. */
typedef struct {
    uint16_t n_exclusive; /* now serving */
    uint16_t n_shared;
    uint16_t m_exclusive; /* the next ticket; this client's ticket while it is queued */
    uint16_t m_shared;
    uint32_t time_out; /* the lease ends; while queued: since when */
    union {
        uint32_t t_value;
        struct {
            uint16_t rms : 16;
            uint16_t rflag : 1;
            uint16_t rsvd : 9;
            uint16_t rcnt : 6; /* readers served */
        } bs;
    };
} fairlock_state;

typedef union {
    atomic_state atomic;
    rw_state rw;
    fairlock_state fl;
    uint64_t base;
} lock_state;

/* The result of one item of a batch. */
struct lock_op_res {
    union {
        atomic_state atomic;
        rw_state rw;
        fairlock_state fl;
    };
    int op_ret; /* the item's own status */
};

struct lock_context {
    uint32_t lock_type;
    int lock_id;
    uint32_t lease_time;
    uint32_t ref_count;
    lock_state ls;
};

/* ---- state objects ------------------------------------------------------------------------ */
struct umo_atomic64_desc {
    char *p_desc;        /* the object's name: any bytes */
    uint32_t len;        /* 1 to MAX_UMO_ATOMIC64_DESC_LEN */
    uint32_t lease_time; /* seconds, not 0 */
};

/* ---- counters and events ------------------------------------------------------------------ */
/* What the counters of debug_stats count; 10, 26, 27, 33 and 36 to 38 stay 0. */
typedef enum debug_stats_code {
    DEBUG_STATS_EAGAIN = 0,
    DEBUG_STATS_NO_URMA_BUF = 1,
    DEBUG_STATS_ENOMEM = 2,
    DEBUG_STATS_ETIMEOUT = 3,
    DEBUG_STATS_EINVAL_LOCK_OP = 4,
    DEBUG_STATS_EINVAL_LOCK_TYPE = 5,
    DEBUG_STATS_EINVAL_LOCK_OFFSET = 6,
    DEBUG_STATS_EINVAL_LOCK_RET = 7,
    DEBUG_STATS_ETICKET = 8,
    DEBUG_STATS_EASYNC = 9,
    DEBUG_STATS_CLIENT_NOT_INIT = 10,
    DEBUG_STATS_LOCK_NOT_GET = 11,
    DEBUG_STATS_ALREADY_LOCKED = 12,
    DEBUG_STATS_ALREADY_UNLOCKED = 13,
    DEBUG_STATS_ATOMIC_TRYLOCK_FAIL = 14,
    DEBUG_STATS_ATOMIC_UNLOCK_FAIL = 15,
    DEBUG_STATS_ATOMIC_EXTEND_FAIL = 16,
    DEBUG_STATS_RW_TRYLOCK_EX_FAIL = 17,
    DEBUG_STATS_RW_UNLOCK_EX_FAIL = 18,
    DEBUG_STATS_RW_TRYLOCK_SH_FAIL = 19,
    DEBUG_STATS_RW_UNLOCK_SH_FAIL = 20,
    DEBUG_STATS_FAIR_QUEUE_LIMIT = 21,
    DEBUG_STATS_FAIR_UNLOCK_EX_FAIL = 22,
    DEBUG_STATS_FAIR_UNLOCK_SH_FAIL = 23,
    DEBUG_STATS_FAIR_EX_TICKET_PASSED = 24,
    DEBUG_STATS_FAIR_SH_TICKET_PASSED = 25,
    DEBUG_STATS_INVALID_LOCK_STATE = 26,
    DEBUG_STATS_TICKET_TO_UNLOCK = 27,
    DEBUG_STATS_NETWORK_FAIL = 28,
    DEBUG_STATS_SEND_FAIL = 29,
    DEBUG_STATS_BAD_RESPONSE = 30,
    DEBUG_STATS_CLIENT_DISCONNECT = 31,
    DEBUG_STATS_FAIL = 32,
    DEBUG_STATS_CLIENTMGR_NOT_INIT = 33,
    DEBUG_STATS_NOT_READY = 34,
    DEBUG_STATS_NO_ASYNC = 35,
    DEBUG_STATS_ASYNC_AGAIN = 36,
    DEBUG_STATS_REPLICA_INIT_FAIL = 37,
    DEBUG_STATS_SERVER_NOT_INIT = 38,
    DEBUG_STATS_ENCRYPT_FAIL = 39,
    DEBUG_STATS_DECRYPT_FAIL = 40,
    DEBUG_STATS_CLIENT_ID_VERIFY_FAIL = 41,
    DEBUG_STATS_BAD_REQUEST = 42,
    DEBUG_STATS_OBJECT_NOT_GET = 43,
    DEBUG_STATS_OBJECT_CAS_FAILED = 44,
    DEBUG_STATS_MAX = 45
} debug_stats_code_t;

struct debug_stats {
    uint64_t stats[DEBUG_STATS_MAX]; /* by debug_stats_code */
};

struct err_event {
    uint8_t err_type;
};

typedef int (*callback_func_t)(const struct err_event *event);

#ifndef __cplusplus
/* The tags as names of types, which they are in C++ by themselves. */
typedef enum lock_ops lock_ops;
typedef enum dlock_type dlock_type;
typedef enum server_type server_type;
typedef enum thread_type thread_type;
typedef struct debug_stats debug_stats;
typedef struct err_event err_event;
typedef struct lock_desc lock_desc;
typedef struct lock_request lock_request;
typedef struct lock_op_res lock_op_res;
typedef struct lock_context lock_context;
typedef struct ssl_cfg ssl_cfg;
typedef struct client_cfg client_cfg;
typedef struct primary_cfg primary_cfg;
typedef struct replica_cfg replica_cfg;
typedef struct server_cfg server_cfg;
typedef struct umo_atomic64_desc umo_atomic64_desc;
#endif

#ifdef __cplusplus
} /* extern "C" */
} /* namespace dlock */
#endif

#endif /* _DLOCK_TYPES_H__ */
