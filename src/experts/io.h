/* experts/io: many reads of the model's files at a time.
 *
 * Two engines: io_uring with registered buffers, and a team of threads with pread. Files are opened a second time for direct
 * I/O where the file system takes it: what is read once into a slot would only push other pages out of the page cache.
 * Otherwise the page cache is told to forget what was read.
 *
 * Not thread safe: the owner's lock is held around every call but rl_io_wait, and while one thread is in rl_io_wait nobody
 * calls rl_io_reap. */
#ifndef RL_EXPERTS_IO_H
#define RL_EXPERTS_IO_H

#include "gguf/gguf.h"

/* Direct I/O wants memory, offsets and lengths in multiples of the device's logical block, which is at most this. */
#define RL_IO_ALIGN     4096u
#define RL_IO_DEPTH     32u
#define RL_IO_DEEP      256u       /* when long computations must not let the disk run dry */
#define RL_IO_MAX_CHUNK (1u << 30) /* of one registered buffer, a limit of the kernel */

#define RL_IO_ENDED (-1) /* rl_io_read.error: the file ends before the bytes wanted */

/* One contiguous read; belongs to the caller, at a fixed address until it is done. */
typedef struct rl_io_read rl_io_read;
struct rl_io_read {
    uint8_t *dst;    /* aligned, room for `span` bytes */
    uint64_t offset; /* aligned */
    uint32_t file;
    uint32_t span;   /* bytes asked for, aligned */
    uint32_t need;   /* bytes that must arrive; the rest of span may lie beyond the end of the file */
    uint32_t done;   /* bytes that did */
    uint32_t buffer; /* registered buffer that holds dst */
    int error;       /* out: 0, an errno or RL_IO_ENDED */
    uint16_t tries;
    bool buffered;           /* goes through the page cache */
    uint8_t queue;           /* 0 none, 1 + index */
    rl_io_read *prev, *next; /* queue, or the list rl_io_reap returns */
    void *owner;
};

/* For tests: sees the result of every single read (bytes or -errno) and may change it, after a delay if it likes. Bytes taken
 * from a result must not be trusted in dst. */
typedef int64_t (*rl_io_fault_fn)(void *ctx, const rl_io_read *r, int64_t result);

typedef enum rl_io_engine { RL_IO_AUTO, RL_IO_URING, RL_IO_THREADS } rl_io_engine;

typedef struct rl_io_options {
    rl_io_engine engine; /* AUTO: io_uring, else threads */
    bool no_direct;
    uint32_t depth; /* reads in flight, at most RL_IO_DEEP; 0 = RL_IO_DEPTH, and RL_IO_DEEP when deep */
    rl_io_fault_fn fault;
    void *fault_ctx;
} rl_io_options;

typedef struct rl_io_buffer {
    uint8_t *data;
    size_t bytes; /* at most RL_IO_MAX_CHUNK */
} rl_io_buffer;

typedef struct rl_io rl_io;
rl_status rl_io_open(const rl_gguf *g, const rl_io_options *opt, const rl_io_buffer *buffers, uint32_t n_buffers, rl_io **out,
                     rl_error *err);
/* Waits for what is in flight. */
void rl_io_close(rl_io *io);
/* Memory one costs at most, besides the buffers. */
uint64_t rl_io_overhead(const rl_io_options *opt);
/* "io_uring direct", "threads buffered", ... */
const char *rl_io_describe(const rl_io *io);

/* Queues a read; urgent ones start before the others. rl_io_kick starts what the depth allows. */
void rl_io_queue(rl_io *io, rl_io_read *r, bool urgent);
/* Makes a read that waits in the queue urgent. */
void rl_io_hurry(rl_io *io, rl_io_read *r);
/* Takes a read back that has not started; false when it has. */
bool rl_io_cancel(rl_io *io, rl_io_read *r);
void rl_io_kick(rl_io *io);
void rl_io_set_deep(rl_io *io, bool deep);
uint32_t rl_io_pending(const rl_io *io); /* queued and in flight */

/* Returns when something has finished (or at once when nothing is in flight). */
void rl_io_wait(rl_io *io);
/* The finished reads, linked by next. Starts more. */
rl_io_read *rl_io_reap(rl_io *io);

/* ---- Engines (private to io*.c) --------------------------------------------------------------------------------------------
 */

typedef struct rl_io_ops {
    const char *name;
    rl_status (*open)(rl_io *io, const rl_io_buffer *buffers, uint32_t n_buffers, rl_error *err);
    void (*close)(rl_io *io);
    void (*start)(rl_io *io, rl_io_read *r, int fd, bool direct); /* bytes [done, span) */
    void (*flush)(rl_io *io);
    void (*wait)(rl_io *io);
    bool (*collect)(rl_io *io, rl_io_read **r, int64_t *result);
} rl_io_ops;

typedef struct rl_io_file {
    int fd, direct; /* of the mapping; ours, or -1 */
} rl_io_file;

struct rl_io {
    const rl_io_ops *ops;
    void *engine;
    rl_io_file *files;
    uint32_t n_files, in_flight, queued;
    uint32_t depth, shallow, capacity; /* reads in flight: now, usually, at most */
    struct {
        rl_io_read *first, *last;
    } queues[2];
    rl_io_fault_fn fault;
    void *fault_ctx;
    char description[48];
};

extern const rl_io_ops rl_io_threads;
#if defined(REDLITE_HAVE_URING)
extern const rl_io_ops rl_io_uring;
#endif

#endif
