/* base/error: filling an rl_error. Every failing function in the project ends in one of these calls. */
#ifndef RL_BASE_ERROR_H
#define RL_BASE_ERROR_H

#include "redlite.h"

#if defined(__GNUC__)
#define RL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define RL_PRINTF(fmt, args)
#endif

/* Writes the sentence and returns `status`, so that `return rl_fail(err, RL_ERR_IO, "...")` reads well. err may be NULL.
 * A text that does not fit is cut at a character border. */
rl_status rl_fail(rl_error *err, rl_status status, const char *fmt, ...) RL_PRINTF(3, 4);

/* As rl_fail, with ": " and the system's description of `errnum` appended. */
rl_status rl_fail_errno(rl_error *err, rl_status status, int errnum, const char *fmt, ...) RL_PRINTF(4, 5);

/* Puts "prefix: " in front of the text already in err (context from an outer layer); returns err's status. */
rl_status rl_error_prefix(rl_error *err, const char *fmt, ...) RL_PRINTF(2, 3);

#if defined(__clang_analyzer__)
/* An analyser sees one file at a time: without these it takes a failure for a possible RL_OK and reports what follows. */
#define rl_fail(err, status, ...)               (rl_fail(err, status, __VA_ARGS__), (status))
#define rl_fail_errno(err, status, errnum, ...) (rl_fail_errno(err, status, errnum, __VA_ARGS__), (status))
#endif

/* rl_escape (for every name from a file in a message) and rl_status_name are public: redlite.h. This is rl_escape of a
 * NUL-terminated text. */
const char *rl_escape_str(char *out, size_t cap, const char *text);

#endif
