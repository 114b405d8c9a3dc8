/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dlock: run primaries in this process (libdlocks).
 *
 * Functions may be called from several threads at a time.
 */
#ifndef __DLOCK_SERVER_API_H__
#define __DLOCK_SERVER_API_H__

#include "dlock_types.h"

#ifdef __cplusplus
namespace dlock {
extern "C" {
#endif

/* Prepares the library for up to max_server_num (1 to 32) primaries at a time.
 *   0
 *   -1  max_server_num is 0 or more than 32; the library is initialised already */
int dserver_lib_init(unsigned int max_server_num);

/* Stops every primary of this process. */
void dserver_lib_deinit(void);

/* Starts a primary and stores its id (1 to 0xFFFFF). The strings of cfg are not kept.
 *   0
 *   DLOCK_SERVER_NO_RESOURCE
 *       max_server_num primaries are running (*server_id is -1), or memory is short
 *   -1  cfg is invalid; the library is not initialised; the primary could not be started
 *       (address, port, cpuset, device) */
#ifdef __cplusplus
int server_start(const struct server_cfg &cfg, int &server_id);
#else
int server_start(const struct server_cfg *cfg, int *server_id);
#endif

/* Stops a primary; takes less than a second.
 *   0
 *   -1  no such primary; the library is not initialised */
int server_stop(int server_id);

/* Reads a primary's counters. What clients decide on its memory by themselves, such as that an
 * atomic lock is taken, they count for it; what they have counted until now is part of it.
 *   0
 *   -1  no such primary; stats is NULL; the library is not initialised */
int get_server_debug_stats(int server_id, struct debug_stats *stats);

/* Sets a primary's counters to 0.
 *   0
 *   -1  no such primary; the library is not initialised */
int clear_server_debug_stats(int server_id);

#ifdef __cplusplus
} /* extern "C" */
} /* namespace dlock */
#endif

#endif /* __DLOCK_SERVER_API_H__ */
