/* experts/io_threads: reads by a team of threads, where io_uring is not to be had. */
#include "base/mem.h"
#include "experts/io.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* More threads than this do not make a disk faster. */
#define MAX_THREADS 16
#define STACK_BYTES (256u << 10)

typedef struct job {
    rl_io_read *read;
    uint8_t *dst;
    size_t bytes;
    uint64_t offset;
    int fd;
    int64_t result;
} job;

typedef struct team {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t threads[MAX_THREADS];
    uint32_t n_threads, capacity;
    job *todo, *finished; /* rings of `capacity` */
    uint32_t todo_head, todo_n, finished_head, finished_n, running;
    bool stop;
} team;

static void *reader(void *arg)
{
    team *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->todo_n == 0 && !t->stop)
            pthread_cond_wait(&t->work, &t->lock);
        if (t->stop) break;
        job j = t->todo[t->todo_head];
        t->todo_head = (t->todo_head + 1) % t->capacity;
        t->todo_n--;
        t->running++;
        pthread_mutex_unlock(&t->lock);
        j.result = pread(j.fd, j.dst, j.bytes, (off_t)j.offset);
        if (j.result < 0) j.result = -errno;
        pthread_mutex_lock(&t->lock);
        t->running--;
        t->finished[(t->finished_head + t->finished_n++) % t->capacity] = j;
        pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void threads_close(rl_io *io)
{
    team *t = io->engine;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_threads; i++)
        pthread_join(t->threads[i], NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->done);
    free(t->todo);
    free(t->finished);
    free(t);
    io->engine = NULL;
}

static rl_status threads_open(rl_io *io, const rl_io_buffer *buffers, uint32_t n_buffers, rl_error *err)
{
    (void)buffers, (void)n_buffers;
    team *t = rl_calloc(1, sizeof *t);
    if (!t) return rl_fail(err, RL_ERR_MEMORY, "no memory for the threads that read experts");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    io->engine = t;
    t->capacity = io->capacity;
    t->todo = rl_calloc(t->capacity, sizeof *t->todo);
    t->finished = rl_calloc(t->capacity, sizeof *t->finished);
    if (!t->todo || !t->finished) {
        threads_close(io);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for the threads that read experts");
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    const uint32_t want = io->capacity < MAX_THREADS ? io->capacity : MAX_THREADS;
    int failed = 0;
    while (t->n_threads < want && failed == 0) {
        failed = pthread_create(&t->threads[t->n_threads], &attr, reader, t);
        if (failed == 0) t->n_threads++;
    }
    pthread_attr_destroy(&attr);
    if (t->n_threads > 0) return RL_OK; /* fewer than wanted is slower, not wrong */
    threads_close(io);
    return rl_fail_errno(err, RL_ERR_IO, failed, "no thread could be started to read experts");
}

static void threads_start(rl_io *io, rl_io_read *r, int fd, bool direct)
{
    (void)direct;
    team *t = io->engine;
    pthread_mutex_lock(&t->lock);
    t->todo[(t->todo_head + t->todo_n++) % t->capacity] =
        (job){.read = r, .dst = r->dst + r->done, .bytes = r->span - r->done, .offset = r->offset + r->done, .fd = fd};
    pthread_mutex_unlock(&t->lock);
}

static void threads_flush(rl_io *io)
{
    team *t = io->engine;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static void threads_wait(rl_io *io)
{
    team *t = io->engine;
    pthread_mutex_lock(&t->lock);
    while (t->finished_n == 0 && t->todo_n + t->running > 0)
        pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static bool threads_collect(rl_io *io, rl_io_read **r, int64_t *result)
{
    team *t = io->engine;
    pthread_mutex_lock(&t->lock);
    const bool any = t->finished_n > 0;
    if (any) {
        *r = t->finished[t->finished_head].read;
        *result = t->finished[t->finished_head].result;
        t->finished_head = (t->finished_head + 1) % t->capacity;
        t->finished_n--;
    }
    pthread_mutex_unlock(&t->lock);
    return any;
}

const rl_io_ops rl_io_threads = {"threads",     threads_open, threads_close,  threads_start,
                                 threads_flush, threads_wait, threads_collect};
