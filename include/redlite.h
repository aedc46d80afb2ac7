/* Red Lite: the public interface of the engine.
 *
 * This header is the only one a front end (cli/, server/, or a program that links libredlite) includes. It includes nothing of
 * the project, so the lower folders may use its status and error types.
 *
 * Conventions
 *   - A function that can fail returns rl_status and takes an rl_error* last (may be NULL); on failure the error holds one
 *     sentence for a person: what went wrong, where, what was expected. Outputs are untouched on failure unless stated.
 *   - Token ids are int32_t, >= 0 and < the vocabulary size. Logits are float32, one row of rl_engine_vocab_size() numbers.
 *   - Sizes are in bytes, times in seconds (double), unless the name says otherwise.
 *   - Objects are created by *_open/_create and released by *_close/_free; the release functions accept NULL.
 *   - An engine may be shared by threads only where a function says so; a session belongs to one thread at a time. */
#ifndef REDLITE_H
#define REDLITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ------------------------------------------------------------------------------------------------- */

typedef enum rl_status {
    RL_OK = 0,
    RL_ERR_ARGUMENT,    /* the caller passed something outside the documented range */
    RL_ERR_IO,          /* a file or device could not be read or written */
    RL_ERR_FORMAT,      /* a file is damaged or breaks its format's rules */
    RL_ERR_UNSUPPORTED, /* valid, but not something this program runs */
    RL_ERR_MEMORY,      /* not enough memory, or a budget is too small */
    RL_ERR_LIMIT,       /* a limit was reached: the context is full, a prompt is too long */
    RL_ERR_CANCELLED,   /* a callback asked to stop */
    RL_ERR_DEVICE,      /* an accelerator failed or is missing */
    RL_ERR_INTERNAL     /* our own mistake */
} rl_status;

#define RL_ERROR_TEXT_MAX 1024

typedef struct rl_error {
    rl_status status;
    char text[RL_ERROR_TEXT_MAX]; /* NUL-terminated valid UTF-8; names from files are escaped */
} rl_error;

#ifdef __cplusplus
}
#endif

#endif
