/* experts/io: queues, retries and the end of files; the same for both engines. */
#include "experts/io.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A read that makes no progress so often will not. */
#define MAX_TRIES 1000

/* ---- Opening ---------------------------------------------------------------------------------------------------------------
 */

/* A second descriptor of the very file that is mapped (its name may mean another file by now), for direct I/O. Some file
 * systems take the flag and refuse the first read, so one is tried. */
static int open_direct(int fd)
{
#if defined(__linux__) && defined(O_DIRECT)
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct < 0) return -1;
    void *probe = rl_aligned_alloc(RL_IO_ALIGN, RL_IO_ALIGN, 1);
    ssize_t n = -1;
    if (probe) do {
            n = pread(direct, probe, RL_IO_ALIGN, 0);
        } while (n < 0 && errno == EINTR);
    rl_aligned_free(probe);
    if (n >= 0) return direct;
    close(direct);
#else
    (void)fd;
#endif
    return -1;
}

static rl_status open_engine(rl_io *io, const rl_io_options *opt, const rl_io_buffer *buffers, uint32_t n_buffers,
                             rl_error *err)
{
#if defined(REDLITE_HAVE_URING)
    if (opt->engine != RL_IO_THREADS) {
        io->ops = &rl_io_uring;
        const rl_status st = io->ops->open(io, buffers, n_buffers, err);
        if (st == RL_OK || opt->engine == RL_IO_URING) return st;
    }
#else
    if (opt->engine == RL_IO_URING) return rl_fail(err, RL_ERR_UNSUPPORTED, "this build has no io_uring");
#endif
    io->ops = &rl_io_threads;
    return io->ops->open(io, buffers, n_buffers, err);
}

rl_status rl_io_open(const rl_gguf *g, const rl_io_options *opt, const rl_io_buffer *buffers, uint32_t n_buffers, rl_io **out,
                     rl_error *err)
{
    rl_io *io = rl_calloc(1, sizeof *io);
    if (!io) return rl_fail(err, RL_ERR_MEMORY, "no memory for reading experts");
    io->capacity = opt->depth > 0 && opt->depth < RL_IO_DEEP ? opt->depth : RL_IO_DEEP;
    io->depth = io->shallow = io->capacity < RL_IO_DEPTH ? io->capacity : RL_IO_DEPTH;
    io->fault = opt->fault;
    io->fault_ctx = opt->fault_ctx;
    io->files = rl_calloc(rl_gguf_n_files(g), sizeof *io->files);
    rl_status st = io->files ? RL_OK : rl_fail(err, RL_ERR_MEMORY, "no memory for reading experts");
    bool direct = true;
    for (uint32_t i = 0; st == RL_OK && i < rl_gguf_n_files(g); i++) {
        const int fd = rl_gguf_mapping(g, i)->fd;
        if (fd < 0) st = rl_fail(err, RL_ERR_UNSUPPORTED, "the model is not a file: its experts cannot be read piece by piece");
        io->files[i] = (rl_io_file){fd, st == RL_OK && !opt->no_direct ? open_direct(fd) : -1};
        direct = direct && io->files[i].direct >= 0;
        io->n_files = i + 1;
    }
    if (st == RL_OK) st = open_engine(io, opt, buffers, n_buffers, err);
    if (st != RL_OK) {
        rl_io_close(io);
        return st;
    }
    snprintf(io->description, sizeof io->description, "%s, %s", io->ops->name, direct ? "direct" : "through the page cache");
    *out = io;
    return RL_OK;
}

void rl_io_close(rl_io *io)
{
    if (!io) return;
    while (io->engine && io->in_flight > 0) {
        rl_io_read *r;
        int64_t result;
        io->ops->wait(io);
        while (io->ops->collect(io, &r, &result))
            io->in_flight--;
    }
    if (io->engine) io->ops->close(io);
    for (uint32_t i = 0; i < io->n_files; i++)
        if (io->files[i].direct >= 0) close(io->files[i].direct);
    free(io->files);
    free(io);
}

const char *rl_io_describe(const rl_io *io)
{
    return io->description;
}

void rl_io_set_deep(rl_io *io, bool deep)
{
    io->depth = deep ? io->capacity : io->shallow;
}

uint32_t rl_io_pending(const rl_io *io)
{
    return io->queued + io->in_flight;
}

/* ---- Queues ----------------------------------------------------------------------------------------------------------------
 */

static void link_read(rl_io *io, rl_io_read *r, uint32_t q, bool front)
{
    r->queue = (uint8_t)(1 + q);
    r->prev = front ? NULL : io->queues[q].last;
    r->next = front ? io->queues[q].first : NULL;
    *(r->prev ? &r->prev->next : &io->queues[q].first) = r;
    *(r->next ? &r->next->prev : &io->queues[q].last) = r;
    io->queued++;
}

static void unlink_read(rl_io *io, rl_io_read *r)
{
    const uint32_t q = r->queue - 1u;
    *(r->prev ? &r->prev->next : &io->queues[q].first) = r->next;
    *(r->next ? &r->next->prev : &io->queues[q].last) = r->prev;
    r->queue = 0;
    r->prev = r->next = NULL;
    io->queued--;
}

void rl_io_queue(rl_io *io, rl_io_read *r, bool urgent)
{
    r->done = 0;
    r->error = 0;
    r->tries = 0;
    r->buffered = io->files[r->file].direct < 0;
    link_read(io, r, urgent ? 0 : 1, false);
}

void rl_io_hurry(rl_io *io, rl_io_read *r)
{
    if (r->queue != 2) return;
    unlink_read(io, r);
    link_read(io, r, 0, false);
}

bool rl_io_cancel(rl_io *io, rl_io_read *r)
{
    if (r->queue == 0) return false;
    unlink_read(io, r);
    return true;
}

void rl_io_kick(rl_io *io)
{
    bool started = false;
    while (io->in_flight < io->depth && io->queued > 0) {
        rl_io_read *r = io->queues[0].first ? io->queues[0].first : io->queues[1].first;
        const rl_io_file *f = &io->files[r->file];
        unlink_read(io, r);
        io->ops->start(io, r, r->buffered ? f->fd : f->direct, !r->buffered);
        io->in_flight++;
        started = true;
    }
    if (started) io->ops->flush(io);
}

/* ---- Completions -----------------------------------------------------------------------------------------------------------
 */

void rl_io_wait(rl_io *io)
{
    io->ops->wait(io);
}

/* True when the read is over; otherwise it must go on at r->done. */
static bool finished(rl_io *io, rl_io_read *r, int64_t result)
{
    if (io->fault) result = io->fault(io->fault_ctx, r, result);
    if (++r->tries > MAX_TRIES) {
        r->error = result < 0 ? (int)-result : EIO;
        return true;
    }
    if (result == -EINTR || result == -EAGAIN) return false;
    if (result == -EINVAL && !r->buffered) { /* direct I/O refused for these bytes: the page cache takes anything */
        r->buffered = true;
        return false;
    }
    if (result <= 0) {
        r->error = result < 0 ? (int)-result : RL_IO_ENDED;
        return true;
    }
    r->done += (uint32_t)result;
    if (r->done >= r->need) {
#if defined(POSIX_FADV_DONTNEED)
        if (r->buffered) posix_fadvise(io->files[r->file].fd, (off_t)r->offset, (off_t)r->span, POSIX_FADV_DONTNEED);
#endif
        return true;
    }
    /* A direct read must go on at a block. What is less than a block is read again; a file whose end is no multiple of one
     * would do so for ever, so a step without progress leaves direct I/O. */
    if (!r->buffered) {
        if (result < RL_IO_ALIGN) r->buffered = true;
        r->done &= ~(RL_IO_ALIGN - 1);
    }
    return false;
}

rl_io_read *rl_io_reap(rl_io *io)
{
    rl_io_read *done = NULL, **tail = &done, *r;
    int64_t result;
    while (io->ops->collect(io, &r, &result)) {
        io->in_flight--;
        if (finished(io, r, result)) {
            r->next = NULL;
            *tail = r;
            tail = &r->next;
        } else {
            link_read(io, r, 0, true);
        }
    }
    rl_io_kick(io);
    return done;
}

uint64_t rl_io_overhead(const rl_io_options *opt)
{
    /* Rings and job lists are a few hundred bytes a read; a thread touches a few pages of its stack. */
    const uint64_t depth = opt->depth ? opt->depth : RL_IO_DEEP;
    return sizeof(rl_io) + (320u << 10) + depth * 512;
}
