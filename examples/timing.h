// SPDX-License-Identifier: MIT OR Apache-2.0
// How long calls take: total, average, maximum and minimum of each operation.
#ifndef DLOCK_EXAMPLES_TIMING_H
#define DLOCK_EXAMPLES_TIMING_H

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

// The calls of one operation, in microseconds.
struct timing {
    const char *operation;
    unsigned long calls;
    unsigned long failures; // calls that had another result than 0
    double total, most, least;

    explicit timing(const char *name)
        : operation(name), calls(0), failures(0), total(0), most(0), least(0)
    {
    }

    void add(double us)
    {
        most = std::max(most, us);
        least = calls == 0 ? us : std::min(least, us);
        total += us;
        ++calls;
    }

    // Takes the calls of another thread.
    void merge(const timing &other)
    {
        if (other.calls == 0) {
            return;
        }
        most = std::max(most, other.most);
        least = calls == 0 ? other.least : std::min(least, other.least);
        total += other.total;
        calls += other.calls;
        failures += other.failures;
    }

    // Measures one call, and returns its result.
    template <class Call> int measure(Call call)
    {
        auto start = std::chrono::steady_clock::now();
        int status = call();
        auto end = std::chrono::steady_clock::now();
        add(std::chrono::duration<double, std::micro>(end - start).count());
        failures += status != 0;
        return status;
    }
};

inline void print_timings(const std::vector<timing> &timings)
{
    std::printf("%-12s %8s %8s %14s %12s %12s %12s\n", "operation", "calls", "failed", "total us",
                "average us", "maximum us", "minimum us");
    for (const timing &t : timings) {
        std::printf("%-12s %8lu %8lu %14.1f %12.1f %12.1f %12.1f\n", t.operation, t.calls,
                    t.failures, t.total, t.calls == 0 ? 0 : t.total / double(t.calls), t.most,
                    t.least);
    }
}

// The timings of all threads together; each has the same operations in the same order.
inline std::vector<timing> merged(const std::vector<std::vector<timing>> &threads)
{
    std::vector<timing> sum = threads[0];
    for (size_t t = 1; t < threads.size(); ++t) {
        for (size_t i = 0; i < sum.size(); ++i) {
            sum[i].merge(threads[t][i]);
        }
    }
    return sum;
}

#endif
