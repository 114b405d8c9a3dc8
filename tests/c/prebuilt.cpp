// SPDX-License-Identifier: MIT OR Apache-2.0
// A program as it was compiled for the original: with declarations of its own instead of the
// headers, names unmangled out of a namespace, references where the original has them, and
// structures allocated to the byte between guard bytes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <netinet/in.h>
#include <sys/socket.h>
#include <type_traits>
#include <unistd.h>

namespace dlock {
extern "C" {
enum trans_mode_t { SEPERATE_CONN = 0, UNI_CONN };
enum server_type { SERVER_PRIMARY = 0, SERVER_REPLICA };

struct ssl_part {
    bool enable;
    char *paths[4];
    void (*callbacks[3])();
};

struct client_part {
    char *dev_name;
    unsigned char eid[16];
    int log_level;
    int primary_port;
    ssl_part ssl;
    trans_mode_t tp_mode;
    bool ub_token_disable;
};

struct primary_part {
    unsigned num_of_replica, recovery_client_num;
    char *ctrl_cpuset, *cmd_cpuset, *server_ip_str;
    int server_port, replica_port;
    bool replica_enable;
};

struct server_part {
    server_type type;
    char *dev_name;
    alignas(8) unsigned char eid[16];
    int log_level;
    bool sleep_mode_enable;
    primary_part primary;
    ssl_part ssl;
    trans_mode_t tp_mode;
    bool ub_token_disable;
};

struct name_part {
    char *p_desc;
    unsigned len, lock_type, lease_time;
};

struct request_part {
    int lock_id, lock_op;
    unsigned expire_time;
};

struct object_part {
    char *p_desc;
    unsigned len, lease_time;
};

int dserver_lib_init(unsigned int max_server_num);
void dserver_lib_deinit(void);
int server_start(const server_part &cfg, int &server_id);
int server_stop(int server_id);
int get_server_debug_stats(int server_id, uint64_t *stats);
int clear_server_debug_stats(int server_id);
int dclient_lib_init(const client_part *cfg);
void dclient_lib_deinit(void);
int client_init(int *client_id, const char *ip);
int client_reinit(int client_id, const char *ip);
int client_deinit(int client_id);
int client_heartbeat(int client_id, unsigned int timeout);
int client_reinit_done(int client_id);
int update_all_locks(int client_id);
int get_lock(int client_id, const name_part *desc, int *lock_id);
int release_lock(int client_id, int lock_id);
int get_client_debug_stats(int client_id, uint64_t *stats);
int clear_client_debug_stats(int client_id);
int trylock(int client_id, const request_part *req, void *result);
int lock(int client_id, const request_part *req, void *result);
int unlock(int client_id, int lock_id, void *result);
int lock_extend(int client_id, const request_part *req, void *result);
int batch_get_lock(int client_id, unsigned int n, const name_part *descs, int *ids);
int batch_release_lock(int client_id, unsigned int n, int *ids);
int batch_trylock(int client_id, unsigned int n, const request_part *reqs, void *results);
int batch_unlock(int client_id, unsigned int n, const int *ids, void *results);
int batch_lock_extend(int client_id, unsigned int n, const request_part *reqs, void *results);
int lock_request_async(int client_id, const request_part *req);
int lock_result_check(int client_id, void *result);
int umo_atomic64_create(int client_id, const object_part *desc, uint64_t init, int *id);
int umo_atomic64_destroy(int client_id, int id);
int umo_atomic64_get(int client_id, const object_part *desc, int *id);
int umo_atomic64_release(int client_id, int id);
int umo_atomic64_faa(int client_id, int id, uint64_t add, uint64_t *old);
int umo_atomic64_cas(int client_id, int id, uint64_t cmp, uint64_t swap);
int umo_atomic64_get_snapshot(int client_id, int id, uint64_t *value);
}
} // namespace dlock

static unsigned failed, done;

static void expect(long long got, long long want, const char *what, int line)
{
    ++done;
    if (got != want) {
        ++failed;
        std::fprintf(stderr, "prebuilt.cpp:%d: %s is %lld, not %lld\n", line, what, got, want);
    }
}
#define EQ(got, want) expect((long long)(got), (long long)(want), #got, __LINE__)

// A block of exactly `size` bytes with guards around it that must stay as they are.
class guarded {
public:
    explicit guarded(size_t size) : size(size), block(new unsigned char[size + 64])
    {
        std::memset(block.get(), 0x5A, size + 64);
    }
    ~guarded()
    {
        for (size_t i = 0; i < 32; ++i) {
            EQ(block[i], 0x5A);
            EQ(block[32 + size + i], 0x5A);
        }
    }
    void *data() { return block.get() + 32; }

private:
    size_t size;
    std::unique_ptr<unsigned char[]> block;
};

static int free_port()
{
    sockaddr_in address = {};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr *>(&address), &len) != 0) {
        std::exit(1);
    }
    close(fd);
    return ntohs(address.sin_port);
}

static int lock_of_type(int client, unsigned type)
{
    char name[] = "prebuilt x";
    name[9] = char('0' + type);
    dlock::name_part desc = {name, 10, type, 10};
    int id = 0;
    EQ(dlock::get_lock(client, &desc, &id), 0);
    return id;
}

// One type's operations; the results have exactly the size of its state.
static void one_type(int client, unsigned type, size_t size)
{
    int id = lock_of_type(client, type);
    dlock::request_part take = {id, 0, 30}, more = {id, 3, 40};
    guarded result(size), item(20);
    EQ(dlock::trylock(client, &take, result.data()), 0);
    EQ(dlock::unlock(client, id, result.data()), 0);
    EQ(dlock::lock(client, &take, result.data()), 0);
    EQ(dlock::lock_extend(client, &more, result.data()), type == 1 ? 0x1003 : 0);
    EQ(dlock::unlock(client, id, result.data()), 0);
    EQ(dlock::lock_request_async(client, &take), 0);
    int status;
    while ((status = dlock::lock_result_check(client, result.data())) == 0x200A) {
    }
    EQ(status, 0);
    EQ(dlock::batch_lock_extend(client, 1, &more, item.data()), 0);
    EQ(dlock::batch_unlock(client, 1, &id, item.data()), 0);
    EQ(static_cast<int *>(item.data())[4], 0);
    EQ(dlock::batch_trylock(client, 1, &take, item.data()), 0);
    EQ(static_cast<int *>(item.data())[4], 0);
    EQ(dlock::unlock(client, id, result.data()), 0);
    EQ(dlock::release_lock(client, id), 0);
}

static void batch_and_object(int client)
{
    char name[] = "prebuilt batch", counter[] = "prebuilt object";
    dlock::name_part desc = {name, 14, 2, 0};
    int ids[1] = {0};
    EQ(dlock::batch_get_lock(client, 1, &desc, ids), 0);
    EQ(dlock::batch_release_lock(client, 1, ids), 0);
    dlock::object_part object = {counter, 15, 60};
    int id = 0;
    uint64_t value = 0;
    EQ(dlock::umo_atomic64_create(client, &object, 0x1122334455667788ULL, &id), 0);
    EQ(dlock::umo_atomic64_get(client, &object, &id), 0);
    EQ(dlock::umo_atomic64_faa(client, id, 0x1000000000000000ULL, &value), 0);
    EQ(value, 0x1122334455667788LL);
    EQ(dlock::umo_atomic64_cas(client, id, 0x2122334455667788ULL, UINT64_MAX), 0);
    EQ(dlock::umo_atomic64_get_snapshot(client, id, &value), 0);
    EQ(value, -1);
    EQ(dlock::umo_atomic64_release(client, id), 0);
    EQ(dlock::umo_atomic64_destroy(client, id), 0);
}

int main()
{
    static_assert(sizeof(dlock::client_part) == 104, "as the original's");
    static_assert(sizeof(dlock::server_part) == 160, "as the original's");
    static_assert(std::is_standard_layout<dlock::server_part>::value, "as the original's");
    alarm(60);
    char ip[] = "127.0.0.1";
    int port = free_port(), server = 0, client = 0;
    // On the heap, and with garbage wherever an existing program sets nothing.
    guarded server_memory(sizeof(dlock::server_part)), client_memory(sizeof(dlock::client_part));
    auto *cfg = static_cast<dlock::server_part *>(server_memory.data());
    cfg->type = dlock::SERVER_PRIMARY;
    cfg->dev_name = nullptr;
    std::memset(cfg->eid, 0, sizeof(cfg->eid));
    cfg->log_level = 3;
    cfg->primary.num_of_replica = 0;
    cfg->primary.recovery_client_num = 0;
    cfg->primary.ctrl_cpuset = nullptr;
    cfg->primary.cmd_cpuset = nullptr;
    cfg->primary.server_ip_str = ip;
    cfg->primary.server_port = port;
    cfg->primary.replica_enable = false;
    cfg->ssl.enable = false;
    cfg->tp_mode = dlock::SEPERATE_CONN;
    auto *own = static_cast<dlock::client_part *>(client_memory.data());
    own->dev_name = nullptr;
    std::memset(own->eid, 0, sizeof(own->eid));
    own->log_level = 3;
    own->primary_port = port;
    own->ssl.enable = false;
    own->tp_mode = dlock::SEPERATE_CONN;

    EQ(dlock::dserver_lib_init(32), 0);
    EQ(dlock::server_start(*cfg, server), 0);
    EQ(server, 1);
    EQ(dlock::dclient_lib_init(own), 0);
    EQ(dlock::client_init(&client, ip), 0);
    one_type(client, 0, 8);
    one_type(client, 1, 12);
    one_type(client, 2, 16);
    batch_and_object(client);
    guarded counters(360);
    EQ(dlock::get_client_debug_stats(client, static_cast<uint64_t *>(counters.data())), 0);
    EQ(dlock::clear_client_debug_stats(client), 0);
    EQ(dlock::get_server_debug_stats(server, static_cast<uint64_t *>(counters.data())), 0);
    EQ(dlock::clear_server_debug_stats(server), 0);
    EQ(dlock::client_heartbeat(client, 300), 0);
    EQ(dlock::update_all_locks(client), 0);
    EQ(dlock::client_reinit(client, ip), 0);
    EQ(dlock::client_reinit_done(client), 0);
    EQ(dlock::client_deinit(client), 0);
    dlock::dclient_lib_deinit();
    EQ(dlock::server_stop(server), 0);
    dlock::dserver_lib_deinit();
    std::printf("prebuilt: %u checks, %u failed\n", done, failed);
    return failed == 0 ? 0 : 1;
}
