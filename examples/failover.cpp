// SPDX-License-Identifier: MIT OR Apache-2.0
// A primary is killed under its clients, twice. Each client comes back to the successor, tells it
// its locks, makes sure of those it holds, and goes on:
//
//     failover PRIMARY [options]      PRIMARY: the program dlock_primary_test
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include "dlock_client_api.h"
#include "options.h"

using namespace dlock;

static const int LEASE_S = 60;

static long counter; // nothing but the lock "table" protects it
static std::atomic<int> inside(0), intruders(0);
static std::atomic<bool> over(false);

// A primary process; it ends with this object, or with this process.
class primary {
public:
    primary(const char *program, const options &o, int recovery_clients)
    {
        std::string port = std::to_string(o.port), clients = std::to_string(recovery_clients);
        int in[2], out[2];
        expect("pipe", pipe2(in, O_CLOEXEC) + pipe2(out, O_CLOEXEC), 0);
        pid = fork();
        if (pid == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            execl(program, program, "-i", o.ip.c_str(), "-p", port.c_str(), "-c", clients.c_str(),
                  static_cast<char *>(nullptr));
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        leash = in[1];
        char line[256];
        expect("the primary starts", read(out[0], line, sizeof(line)) > 0, 1);
        close(out[0]);
    }
    ~primary()
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        close(leash);
    }

private:
    pid_t pid;
    int leash;
};

static void pause_ms(int ms)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

class worker {
public:
    std::atomic<long> done;
    std::atomic<int> recoveries;

    worker(const options &o, int number) : done(0), recoveries(0), ip(o.ip)
    {
        std::string own = "worker " + std::to_string(number);
        expect("client_init", client_init(&client, ip.c_str()), 0);
        table = get("table");
        session = get(own.c_str());
        lock_request req = {session, LOCK_EXCLUSIVE, LEASE_S};
        atomic_state state;
        expect("lock of the session", lock(client, &req, &state), 0);
    }

    void run()
    {
        while (!over) {
            lock_request req = {table, LOCK_EXCLUSIVE, LEASE_S};
            atomic_state state;
            int status = lock(client, &req, &state);
            if (status == DLOCK_BAD_RESPONSE || status == DLOCK_NOT_READY) {
                recover();
                continue;
            }
            if (status == DLOCK_FAIL) {
                continue; // 5 s were not enough
            }
            expect("lock", status, DLOCK_SUCCESS);
            intruders += inside.fetch_add(1) != 0;
            ++counter;
            intruders += inside.fetch_sub(1) != 1;
            ++done;
            release();
        }
        lock_request ask = {session, EXTEND_LOCK_EXCLUSIVE, 0};
        atomic_state state;
        expect("the session's lock at the end", lock_extend(client, &ask, &state), 0);
        expect("unlock of the session", unlock(client, session, &state), 0);
        expect("client_deinit", client_deinit(client), 0);
    }

private:
    int get(const char *name)
    {
        std::string bytes = name;
        lock_desc desc = {&bytes[0], uint32_t(bytes.size()), DLOCK_ATOMIC, 0};
        int id = 0;
        expect("get_lock", get_lock(client, &desc, &id), 0);
        return id;
    }

    // Without an answer it is not known whether the lock was released. Asked again, the successor
    // says FAIL if it was, and if another client has told it that it holds the lock now.
    void release()
    {
        atomic_state state;
        int status = unlock(client, table, &state);
        bool known = status != DLOCK_BAD_RESPONSE && status != DLOCK_NOT_READY;
        while (status == DLOCK_BAD_RESPONSE || status == DLOCK_NOT_READY) {
            recover();
            status = unlock(client, table, &state);
        }
        expect("unlock", status, known || status != DLOCK_FAIL ? DLOCK_SUCCESS : DLOCK_FAIL);
    }

    void recover()
    {
        int status;
        do {
            status = client_reinit(client, ip.c_str());
            if (status != 0) {
                pause_ms(20); // no primary is there yet (NOT_READY), or it dies under the call (-1)
            }
        } while (status == DLOCK_NOT_READY || status == -1);
        expect("client_reinit", status, 0);
        while ((status = update_all_locks(client)) == DLOCK_EAGAIN) {
        }
        expect("update_all_locks", status, 0);
        expect("client_reinit_done", client_reinit_done(client), 0);
        while ((status = client_heartbeat(client, 5)) == DLOCK_NOT_READY) {
            pause_ms(20); // the others are not back
        }
        expect("client_heartbeat", status, 0);
        lock_request ask = {session, EXTEND_LOCK_EXCLUSIVE, 0};
        atomic_state state;
        expect("the session's lock", lock_extend(client, &ask, &state), 0);
        ++recoveries;
    }

    std::string ip;
    int client, table, session;
};

// Until every worker has done that much more.
static void wait_for_progress(std::vector<worker *> &workers, int rounds)
{
    for (worker *w : workers) {
        long want = w->done + rounds;
        while (w->done < want) {
            pause_ms(1);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::fprintf(stderr, "failover PRIMARY [options]\n");
        return 2;
    }
    const char *program = argv[1];
    options o = read_options(argc - 1, argv + 1, false);
    client_cfg cfg = client_configuration(o);
    cfg.log_level = 2; // the loss of a primary is no news here
    alarm(120);
    primary *serving = new primary(program, o, 0);
    expect("dclient_lib_init", dclient_lib_init(&cfg), 0);
    std::vector<worker *> workers;
    std::vector<std::thread> threads;
    for (int i = 0; i < o.clients; ++i) {
        workers.push_back(new worker(o, i));
        threads.emplace_back(&worker::run, workers.back());
    }
    for (int failure = 0; failure < 2; ++failure) {
        wait_for_progress(workers, o.rounds);
        delete serving; // kill -9
        serving = new primary(program, o, o.clients);
    }
    wait_for_progress(workers, o.rounds);
    over = true;
    long done = 0;
    for (int i = 0; i < o.clients; ++i) {
        threads[size_t(i)].join();
        done += workers[size_t(i)]->done;
        expect("recoveries", workers[size_t(i)]->recoveries, 2);
        delete workers[size_t(i)];
    }
    dclient_lib_deinit();
    delete serving;
    expect("two at a time", intruders, 0);
    expect("the counter", counter == done, 1);
    std::printf("failover: %ld operations under three primaries\n", done);
    return 0;
}
