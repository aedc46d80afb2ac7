/* experts/io_uring: reads through Linux's io_uring. Slots are registered buffers where the limit on locked memory allows, so
 * that a read does not look up and pin their pages each time. */
#if defined(REDLITE_HAVE_URING)

#include "base/mem.h"
#include "experts/io.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>

typedef struct engine {
    struct io_uring ring;
    bool fixed;
} engine;

static void uring_close(rl_io *io)
{
    engine *e = io->engine;
    io_uring_queue_exit(&e->ring);
    free(e);
    io->engine = NULL;
}

static bool has_read(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    const bool has = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    if (probe) io_uring_free_probe(probe);
    return has;
}

static rl_status uring_open(rl_io *io, const rl_io_buffer *buffers, uint32_t n_buffers, rl_error *err)
{
    engine *e = rl_calloc(1, sizeof *e);
    struct iovec *vecs = rl_calloc(n_buffers, sizeof *vecs);
    if (!e || !vecs) {
        free(e);
        free(vecs);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for io_uring");
    }
    const int r = io_uring_queue_init(io->capacity, &e->ring, 0);
    if (r < 0 || !has_read(&e->ring)) {
        if (r == 0) io_uring_queue_exit(&e->ring);
        free(e);
        free(vecs);
        return rl_fail_errno(err, RL_ERR_UNSUPPORTED, r < 0 ? -r : ENOSYS, "io_uring cannot be used here");
    }
    for (uint32_t i = 0; i < n_buffers; i++)
        vecs[i] = (struct iovec){buffers[i].data, buffers[i].bytes};
    e->fixed = n_buffers > 0 && io_uring_register_buffers(&e->ring, vecs, n_buffers) == 0;
    free(vecs);
    io->engine = e;
    return RL_OK;
}

static void uring_flush(rl_io *io)
{
    engine *e = io->engine;
    while (io_uring_sq_ready(&e->ring) > 0) {
        const int r = io_uring_submit(&e->ring);
        if (r >= 0 || r == -EINTR) continue;
        /* The kernel is short of memory for requests; those in flight will give theirs back. */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void uring_start(rl_io *io, rl_io_read *r, int fd, bool direct)
{
    engine *e = io->engine;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
    if (!sqe) { /* cannot be: the ring has room for every read in flight */
        uring_flush(io);
        sqe = io_uring_get_sqe(&e->ring);
    }
    if (e->fixed && direct)
        io_uring_prep_read_fixed(sqe, fd, r->dst + r->done, r->span - r->done, r->offset + r->done, (int)r->buffer);
    else
        io_uring_prep_read(sqe, fd, r->dst + r->done, r->span - r->done, r->offset + r->done);
    io_uring_sqe_set_data(sqe, r);
}

static void uring_wait(rl_io *io)
{
    engine *e = io->engine;
    struct io_uring_cqe *cqe;
    while (io_uring_wait_cqe(&e->ring, &cqe) == -EINTR)
        ;
}

static bool uring_collect(rl_io *io, rl_io_read **r, int64_t *result)
{
    engine *e = io->engine;
    struct io_uring_cqe *cqe;
    if (io_uring_peek_cqe(&e->ring, &cqe) != 0) return false;
    *r = io_uring_cqe_get_data(cqe);
    *result = cqe->res;
    io_uring_cqe_seen(&e->ring, cqe);
    return true;
}

const rl_io_ops rl_io_uring = {"io_uring", uring_open, uring_close, uring_start, uring_flush, uring_wait, uring_collect};

#else
typedef int rl_io_uring_is_not_built; /* a translation unit is not empty in ISO C */
#endif
