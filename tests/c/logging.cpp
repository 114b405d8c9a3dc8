// SPDX-License-Identifier: MIT OR Apache-2.0
// Log lines: level, callback, stderr; and nothing on standard output.
#include <fcntl.h>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "dlock_log.h"

static std::mutex guard;
static std::vector<std::string> lines;
static int mark;

static void keep(void *ctx, int level, const char *message)
{
    std::lock_guard<std::mutex> held(guard);
    CHECK(ctx == &mark);
    CHECK(level >= 0 && level <= 7);
    CHECK(strchr(message, '\n') == nullptr);
    lines.push_back(message);
}

static size_t lines_of(int log_level)
{
    client_cfg cfg;
    fill_client_cfg(&cfg, 0);
    cfg.log_level = log_level;
    EQ(dclient_lib_init(&cfg), 0);
    {
        std::lock_guard<std::mutex> held(guard);
        lines.clear();
    }
    int id;
    EQ(client_init(&id, "no address"), -1); // an error is logged
    dclient_lib_deinit(); // until its lines are delivered
    return lines.size();
}

// What the library writes to a file descriptor while an error is logged.
static std::string written_to(int fd)
{
    char name[] = "/tmp/dlock-logging-XXXXXX";
    int file = mkstemp(name), saved = dup(fd);
    unlink(name);
    fflush(stdout);
    dup2(file, fd);
    EQ(dclient_lib_init(nullptr), DLOCK_EINVAL);
    client_cfg cfg;
    fill_client_cfg(&cfg, 80);
    cfg.log_level = 7;
    EQ(dclient_lib_init(&cfg), DLOCK_EINVAL);
    lines_of(7);
    dup2(saved, fd);
    std::string text(4096, '\0');
    ssize_t len = pread(file, &text[0], text.size(), 0);
    text.resize(len > 0 ? size_t(len) : 0);
    close(file);
    close(saved);
    return text;
}

int main()
{
    limit_seconds(30);
    void *ctx = &guard;
    CHECK(dlock_log_get_callback(&ctx) == nullptr);
    CHECK(ctx == nullptr);
    dlock_log_set_callback(keep, &mark);
    CHECK(dlock_log_get_callback(&ctx) == keep);
    CHECK(ctx == &mark);
    CHECK(dlock_log_get_callback(nullptr) == keep);

    CHECK(lines_of(4) > 0);
    CHECK(lines_of(3) > 0);
    EQ(lines_of(2), 0);
    EQ(lines_of(-1), 0); // no level: as before
    EQ(lines_of(8), 0);
    CHECK(lines_of(7) > 0);
    lines.clear();
    EQ(dserver_lib_init(33), -1); // the server library has it, too
    dserver_lib_deinit(); // until its lines are delivered
    CHECK(lines.size() > 0);

    // A callback that does not return holds up no call.
    guard.lock();
    for (int i = 0; i < 5000; i++) {
        client_cfg cfg;
        fill_client_cfg(&cfg, 80);
        cfg.log_level = 3; // an error is logged
        EQ(dclient_lib_init(&cfg), DLOCK_EINVAL);
    }
    lines.clear();
    guard.unlock();
    dclient_lib_deinit();
    size_t told = 0;
    for (const std::string &line : lines)
        told += line.find("log lines before this one were lost") != std::string::npos;
    CHECK(told > 0); // those beyond the bound

    EQ(written_to(2).size(), 0);
    dlock_log_set_callback(nullptr, nullptr);
    std::string text = written_to(2);
    CHECK(text.compare(0, 7, "dlock: ") == 0);
    CHECK(!text.empty() && text[text.size() - 1] == '\n');
    EQ(written_to(1).size(), 0); // standard output is the program's
    return conclusion("logging");
}
