/* bench_pool [members]: what meeting costs. Prints nanoseconds per barrier and per run of an empty function. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>

#define BARRIERS 20000
#define RUNS     20000
#define REPEATS  5

static void barriers(void *ctx, int member)
{
    (void)member;
    for (int i = 0; i < BARRIERS; i++)
        rl_pool_barrier(ctx);
}

static void nothing(void *ctx, int member)
{
    (void)ctx, (void)member;
}

int main(int argc, char **argv)
{
    rl_error err;
    rl_pool *pool;
    if (rl_pool_create(argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0, &pool, &err) != RL_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s, %d members on %d cores\n", rl_cpu()->brand, rl_pool_size(pool), rl_cpu()->physical_cores);
    double barrier = 1e9, run = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        double start = rl_now();
        rl_pool_run(pool, barriers, pool);
        double middle = rl_now();
        for (int i = 0; i < RUNS; i++)
            rl_pool_run(pool, nothing, NULL);
        double end = rl_now();
        if (middle - start < barrier) barrier = middle - start;
        if (end - middle < run) run = end - middle;
    }
    printf("barrier %.0f ns, run %.0f ns (best of %d)\n", barrier / BARRIERS * 1e9, run / RUNS * 1e9, REPEATS);
    rl_pool_free(pool);
    return 0;
}
