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

/* Waits until part of a mapping is in memory; with `lock` it then stays there until the mapping is closed, which the system may
 * refuse (RL_ERR_MEMORY: `ulimit -l`). */
rl_status rl_mapping_load(const rl_mapping *m, uint64_t offset, uint64_t bytes, bool lock, rl_error *err);

/* Reads exactly n bytes at `offset`; a file that ends early is RL_ERR_IO with the numbers. `name` is for the message. */
rl_status rl_pread_all(int fd, void *buf, size_t n, uint64_t offset, const char *name, rl_error *err);

/* rl_read_file and the atomic output file (rl_out_*) are public: redlite.h. */

#endif
