/* base/pool: the thread team. Owns its threads, one start word and one two-level barrier.
 *
 * Every word that members wait on lives on a cache line of its own: a waiting member then reads its own copy until the line is
 * written once, and arrivals of one group do not disturb other groups. Arrival is counted in groups of eight and then among
 * groups, so that on a large machine no line is handed through all cores.
 *
 * Waiting is the same everywhere: spin on the word, then sleep on it. A waiter that is going to sleep announces itself first;
 * who changes the word looks for sleepers after. Both use sequentially consistent operations, so one of the two sees the other.
 */
#include "base/pool.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define GROUP  8
#define GROUPS ((RL_POOL_MAX + GROUP - 1) / GROUP)

/* Between runs a member spins about as long as waking it would cost. Inside a run the others are at work on the same stage and
 * soon done, so it pays to wait longer. With more members than cores whoever spins keeps another from its work. */
#define SPIN_IDLE_NS    50000u
#define SPIN_BARRIER_NS 200000u
#define SPIN_CROWDED_NS 1000u

typedef struct wait_word {
    alignas(RL_CACHE_LINE) atomic_uint value;
    alignas(RL_CACHE_LINE) atomic_int sleepers; /* apart from value, which all waiting members read */
#if !defined(__linux__)
    pthread_mutex_t mutex;
    pthread_cond_t changed;
#endif
} wait_word;

typedef struct arrival {
    alignas(RL_CACHE_LINE) atomic_int missing;
    int size;
} arrival;

typedef struct worker {
    rl_pool *pool;
    int member;
    pthread_t thread;
} worker;

struct rl_pool {
    int size, groups;
    uint32_t spin_idle, spin_barrier;
    rl_pool_fn fn; /* written before start changes */
    void *ctx;
    bool stop;
    worker *workers; /* of members 1 .. size - 1 */
    wait_word start; /* counts runs */
    wait_word phase; /* counts completed barriers */
    arrival root;
    arrival group[GROUPS];
};

static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* "yield" returns at once on most cores */
#endif
}

#if defined(__linux__)
static void sleep_on(wait_word *w, unsigned old)
{
    /* The kernel compares again under its lock: a change in between returns at once. */
    syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}

static void wake_all(wait_word *w)
{
    syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, RL_POOL_MAX, NULL, NULL, 0);
}

static bool word_init(wait_word *w)
{
    atomic_init(&w->value, 0);
    atomic_init(&w->sleepers, 0);
    return true;
}

static void word_destroy(wait_word *w)
{
    (void)w;
}
#else
static void sleep_on(wait_word *w, unsigned old)
{
    pthread_mutex_lock(&w->mutex);
    while (atomic_load(&w->value) == old)
        pthread_cond_wait(&w->changed, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}

static void wake_all(wait_word *w)
{
    pthread_mutex_lock(&w->mutex);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static bool word_init(wait_word *w)
{
    atomic_init(&w->value, 0);
    atomic_init(&w->sleepers, 0);
    if (pthread_mutex_init(&w->mutex, NULL) != 0) return false;
    if (pthread_cond_init(&w->changed, NULL) == 0) return true;
    pthread_mutex_destroy(&w->mutex);
    return false;
}

static void word_destroy(wait_word *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
}
#endif

static void word_advance(wait_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers) > 0) wake_all(w);
}

/* Waits until the word differs from old. */
static void word_wait(wait_word *w, unsigned old, uint32_t spin_ns)
{
    uint64_t deadline = 0;
    for (;;) {
        /* The clock costs about as much as the pauses between its readings, and is not read at all in a short wait. */
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old) return;
            spin_pause();
        }
        uint64_t now = rl_now_ns();
        if (deadline == 0) deadline = now + spin_ns;
        if (now >= deadline) break;
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        sleep_on(w, old);
    atomic_fetch_sub(&w->sleepers, 1);
}

static bool last_to_arrive(arrival *a)
{
    if (atomic_fetch_sub_explicit(&a->missing, 1, memory_order_acq_rel) != 1) return false;
    /* Nobody arrives again before the phase advances, which publishes this. */
    atomic_store_explicit(&a->missing, a->size, memory_order_relaxed);
    return true;
}

/* Which group an arrival counts for does not matter, only that each group gets its number: member numbers do that. Members
 * are not told their number at a barrier, so each thread remembers it. */
static _Thread_local int this_member;

static void arrive(rl_pool *pool)
{
    if (last_to_arrive(&pool->group[this_member / GROUP]) && last_to_arrive(&pool->root)) word_advance(&pool->phase);
}

void rl_pool_barrier(rl_pool *pool)
{
    if (pool->size == 1) return;
    unsigned old = atomic_load_explicit(&pool->phase.value, memory_order_relaxed);
    arrive(pool);
    word_wait(&pool->phase, old, pool->spin_barrier);
}

static void *work(void *arg)
{
    worker *w = arg;
    rl_pool *pool = w->pool;
    this_member = w->member;
    for (unsigned run = 0;; run++) {
        word_wait(&pool->start, run, pool->spin_idle);
        if (pool->stop) return NULL;
        pool->fn(pool->ctx, w->member);
        arrive(pool); /* the caller alone waits for the end of a run */
    }
}

void rl_pool_run(rl_pool *pool, rl_pool_fn fn, void *ctx)
{
    if (pool->size == 1) {
        fn(ctx, 0);
        return;
    }
    int outer = this_member; /* the caller may itself be a member of another pool */
    this_member = 0;
    pool->fn = fn;
    pool->ctx = ctx;
    word_advance(&pool->start);
    fn(ctx, 0);
    rl_pool_barrier(pool);
    this_member = outer;
}

static void stop_workers(rl_pool *pool, int started)
{
    pool->stop = true;
    word_advance(&pool->start);
    for (int i = 0; i < started; i++)
        pthread_join(pool->workers[i].thread, NULL);
}

static void set_arrivals(rl_pool *pool)
{
    pool->groups = (pool->size + GROUP - 1) / GROUP;
    pool->root.size = pool->groups;
    atomic_init(&pool->root.missing, pool->groups);
    for (int g = 0; g < pool->groups; g++) {
        int size = pool->size - g * GROUP < GROUP ? pool->size - g * GROUP : GROUP;
        pool->group[g].size = size;
        atomic_init(&pool->group[g].missing, size);
    }
}

/* Memory and words, no threads yet. NULL when there is not enough memory. */
static rl_pool *pool_alloc(int n)
{
    rl_pool *pool = rl_aligned_alloc(alignof(rl_pool), 1, sizeof *pool);
    if (!pool) return NULL;
    bool crowded = n > rl_cpu()->logical_cores;
    pool->size = n;
    pool->spin_idle = crowded ? SPIN_CROWDED_NS : SPIN_IDLE_NS;
    pool->spin_barrier = crowded ? SPIN_CROWDED_NS : SPIN_BARRIER_NS;
    pool->stop = false;
    pool->workers = rl_calloc((size_t)n, sizeof *pool->workers);
    set_arrivals(pool);
    if (pool->workers && word_init(&pool->start)) {
        if (word_init(&pool->phase)) return pool;
        word_destroy(&pool->start);
    }
    free(pool->workers);
    rl_aligned_free(pool);
    return NULL;
}

static void pool_release(rl_pool *pool)
{
    word_destroy(&pool->start);
    word_destroy(&pool->phase);
    free(pool->workers);
    rl_aligned_free(pool);
}

rl_status rl_pool_create(int n, rl_pool **out, rl_error *err)
{
    if (n == 0) n = rl_cpu()->physical_cores < RL_POOL_MAX ? rl_cpu()->physical_cores : RL_POOL_MAX;
    if (n < 1 || n > RL_POOL_MAX)
        return rl_fail(err, RL_ERR_ARGUMENT, "a team of %d threads was asked for, expected 1 to %d", n, RL_POOL_MAX);
    rl_pool *pool = pool_alloc(n);
    if (!pool) return rl_fail(err, RL_ERR_MEMORY, "not enough memory for a team of %d threads", n);
    for (int i = 0; i < n - 1; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->member = i + 1;
        int failure = pthread_create(&w->thread, NULL, work, w);
        if (failure != 0) {
            stop_workers(pool, i);
            pool_release(pool);
            return rl_fail_errno(err, RL_ERR_MEMORY, failure, "cannot start thread %d of %d", i + 2, n);
        }
    }
    *out = pool;
    return RL_OK;
}

void rl_pool_free(rl_pool *pool)
{
    if (!pool) return;
    stop_workers(pool, pool->size - 1);
    pool_release(pool);
}

int rl_pool_size(const rl_pool *pool)
{
    return pool->size;
}

bool rl_pool_next(atomic_uint *counter, uint32_t n, uint32_t grain, uint32_t *begin, uint32_t *end)
{
    /* Looking first keeps the counter from growing with every call after the end. */
    if (atomic_load_explicit(counter, memory_order_relaxed) >= n) return false;
    uint32_t at = atomic_fetch_add_explicit(counter, grain, memory_order_relaxed);
    if (at >= n) return false;
    *begin = at;
    *end = grain < n - at ? at + grain : n;
    return true;
}

void rl_pool_part(uint32_t n, uint32_t unit, int member, int size, uint32_t *begin, uint32_t *end)
{
    uint64_t units = ((uint64_t)n + unit - 1) / unit;
    uint64_t first = units * (uint64_t)member / (uint64_t)size * unit;
    uint64_t last = units * ((uint64_t)member + 1) / (uint64_t)size * unit;
    *begin = (uint32_t)(first < n ? first : n);
    *end = (uint32_t)(last < n ? last : n);
}
