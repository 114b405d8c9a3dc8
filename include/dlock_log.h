/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dlock: where log lines go (libdlockm). The client and the server library use it both.
 *
 * Levels are those of syslog: 0 emergency, 1 alert, 2 critical, 3 error, 4 warning, 5 notice,
 * 6 information, 7 debug. Lines above the log_level of client_cfg and server_cfg (at first 4)
 * are dropped. Without a callback, or without libdlockm in the process, lines go to stderr.
 */
#ifndef DLOCK_LOG_H
#define DLOCK_LOG_H

#ifdef __cplusplus
namespace dlock {
extern "C" {
#endif

/* Receives one line without a newline; message is valid during the call only. It is called on a
 * thread of the library that has logged the line (client and server library have one each) a short
 * time after the line was logged, and must not call functions of the client or server library.
 * While it does not return, no thread but that one waits for it: up to 4096 further lines are kept,
 * and lines beyond them are dropped; a line with their count follows. The same holds for stderr.
 * dclient_lib_deinit, dserver_lib_deinit and exit() wait until all lines are delivered, for one
 * second at most. */
typedef void (*dlock_log_callback_t)(void *ctx, int level, const char *message);

/* Sends the log lines of this process to callback; NULL: back to stderr. Lines that were logged
 * before and are not delivered yet go to the new callback, but a call that is under way in another
 * thread may still reach the previous one. */
void dlock_log_set_callback(dlock_log_callback_t callback, void *ctx);

/* The current callback (NULL: none) and, if ctx is not NULL, its context. */
dlock_log_callback_t dlock_log_get_callback(void **ctx);

#ifdef __cplusplus
} /* extern "C" */
} /* namespace dlock */
#endif

#endif /* DLOCK_LOG_H */
