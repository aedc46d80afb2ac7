/* base/file: files read as a whole, mapped, or written atomically. Every call survives EINTR and short transfers. */
#ifndef RL_BASE_FILE_H
#define RL_BASE_FILE_H

#include "base/error.h"
#include <stdint.h>

/* A read-only mapping of a regular file. The mapping is private; the file must not shrink while mapped (a fault then kills the
 * process: say so in documentation). An empty file maps to size 0 and a non-NULL data pointer that must not be read. */
typedef struct rl_mapping {
    const uint8_t *data;
    uint64_t size;
    int fd; /* open for as long as the mapping: bounded residency reads through it */
} rl_mapping;

/* Refuses directories, devices and pipes by name. */
rl_status rl_mapping_open(const char *path, rl_mapping *out, rl_error *err);
void rl_mapping_close(rl_mapping *m);

typedef enum rl_advice {
    RL_ADVICE_NORMAL,
    RL_ADVICE_WILLNEED,
    RL_ADVICE_DONTNEED,
    RL_ADVICE_RANDOM,
    RL_ADVICE_HUGEPAGE
} rl_advice;
/* A hint about part of a mapping; failures are ignored by design. */
void rl_mapping_advise(const rl_mapping *m, uint64_t offset, uint64_t bytes, rl_advice advice);

/* Reads exactly n bytes at `offset`; a file that ends early is RL_ERR_IO with the numbers. `name` is for the message. */
rl_status rl_pread_all(int fd, void *buf, size_t n, uint64_t offset, const char *name, rl_error *err);

/* Reads a whole file or, with path "-", standard input, up to `limit` bytes (more is RL_ERR_LIMIT). *data is NUL-terminated for
 * convenience (not counted in *size); free() it. */
rl_status rl_read_file(const char *path, size_t limit, char **data, size_t *size, rl_error *err);

/* An output file that appears only when complete: written to a temporary neighbour, fsynced and renamed by commit. */
typedef struct rl_out_file rl_out_file;
rl_status rl_out_open(const char *path, rl_out_file **out, rl_error *err);
rl_status rl_out_write(rl_out_file *f, const void *data, size_t n, rl_error *err); /* buffered */
uint64_t rl_out_position(const rl_out_file *f);
rl_status rl_out_commit(rl_out_file *f, rl_error *err); /* frees f in every case */
void rl_out_abort(rl_out_file *f);                      /* removes the temporary; NULL is fine */

#endif
