/* base/pool: every member runs, meets the others, and sees what they wrote; work is handed out exactly once. The asserts of
 * members are collected and checked by the test's own thread, because cmocka's leave through longjmp. */
#include "support/support.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int team_sizes[] = {1, 2, 3, 4, 7, 8, 9, 17, 33};
#define TEAMS (sizeof team_sizes / sizeof *team_sizes)

static rl_pool *team(int n)
{
    rl_error err = {RL_OK, ""};
    rl_pool *pool = NULL;
    rl_assert_ok(rl_pool_create(n, &pool, &err), &err);
    return pool;
}

static void test_create_refuses(void **state)
{
    (void)state;
    rl_error err = {RL_OK, ""};
    rl_pool *pool = NULL;
    rl_assert_fails(rl_pool_create(-1, &pool, &err), RL_ERR_ARGUMENT, &err, "expected 1 to 512");
    rl_assert_fails(rl_pool_create(RL_POOL_MAX + 1, &pool, &err), RL_ERR_ARGUMENT, &err, "team of 513 threads");
    assert_null(pool);
    rl_pool_free(NULL);
    pool = team(0);
    assert_int_equal(rl_pool_size(pool), rl_cpu()->physical_cores);
    rl_pool_free(pool);
}

typedef struct count_job {
    int runs[RL_POOL_MAX]; /* plain: a race here is a defect that TSan sees */
} count_job;

static void count_run(void *ctx, int member)
{
    ((count_job *)ctx)->runs[member]++;
}

static void test_every_member_runs(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEAMS; t++) {
        rl_pool *pool = team(team_sizes[t]);
        count_job job = {{0}};
        for (int i = 1; i <= 200; i++) {
            rl_pool_run(pool, count_run, &job);
            if (i % 100 == 0) usleep(1000); /* let members fall asleep */
            for (int m = 0; m < team_sizes[t]; m++)
                assert_int_equal(job.runs[m], i);
        }
        rl_pool_free(pool);
    }
}

static void test_largest_team(void **state)
{
    (void)state;
    rl_pool *pool = team(RL_POOL_MAX);
    count_job job = {{0}};
    rl_pool_run(pool, count_run, &job);
    rl_pool_run(pool, count_run, &job);
    for (int m = 0; m < RL_POOL_MAX; m++)
        assert_int_equal(job.runs[m], 2);
    rl_pool_free(pool);
}

typedef struct barrier_job {
    rl_pool *pool;
    int rounds;
    uint64_t values[2][64];
    bool wrong[64];
} barrier_job;

/* Each round a member adds up what all wrote in the round before: any member that passed a barrier early gives another sum. */
static void barrier_run(void *ctx, int member)
{
    barrier_job *job = ctx;
    int n = rl_pool_size(job->pool);
    job->values[0][member] = (uint64_t)member + 1;
    for (int round = 0; round < job->rounds; round++) {
        rl_pool_barrier(job->pool);
        uint64_t sum = 0;
        for (int m = 0; m < n; m++)
            sum += job->values[round & 1][m];
        uint64_t expected = (uint64_t)n * ((uint64_t)n + 1) / 2 + (uint64_t)round * (uint64_t)n;
        if (sum != expected) job->wrong[member] = true;
        job->values[(round + 1) & 1][member] = (uint64_t)member + 2 + (uint64_t)round;
    }
}

static void test_barrier(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEAMS; t++) {
        barrier_job job = {.pool = team(team_sizes[t]), .rounds = 100};
        for (int i = 0; i < 5; i++)
            rl_pool_run(job.pool, barrier_run, &job);
        for (int m = 0; m < team_sizes[t]; m++)
            assert_false(job.wrong[m]);
        rl_pool_free(job.pool);
    }
}

/* A member that is late makes the others sleep in the barrier. */
static void late_run(void *ctx, int member)
{
    barrier_job *job = ctx;
    for (int round = 0; round < job->rounds; round++) {
        if (member == round % rl_pool_size(job->pool)) usleep(1500);
        job->values[0][member]++;
        rl_pool_barrier(job->pool);
        for (int m = 0; m < rl_pool_size(job->pool); m++)
            if (job->values[0][m] != (uint64_t)round + 1) job->wrong[member] = true;
        rl_pool_barrier(job->pool);
    }
}

static void test_late_members(void **state)
{
    (void)state;
    barrier_job job = {.pool = team(5), .rounds = 20};
    rl_pool_run(job.pool, late_run, &job);
    for (int m = 0; m < 5; m++)
        assert_false(job.wrong[m]);
    rl_pool_free(job.pool);
}

typedef struct next_job {
    rl_pool *pool;
    uint32_t n, grain;
    atomic_uint counter;
    atomic_uint wrong;
    uint8_t *taken;
} next_job;

static void next_run(void *ctx, int member)
{
    next_job *job = ctx;
    uint32_t begin, end;
    if (member == 0) atomic_store(&job->counter, 0);
    rl_pool_barrier(job->pool);
    while (rl_pool_next(&job->counter, job->n, job->grain, &begin, &end)) {
        if (begin >= end || end > job->n || end - begin > job->grain) atomic_fetch_add(&job->wrong, 1);
        for (uint32_t i = begin; i < end; i++)
            job->taken[i]++; /* plain: taken twice is a race and a wrong count */
    }
}

static void test_next_hands_out_once(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 5, 64, 1000, 4099};
    static const uint32_t grains[] = {1, 3, 64, 5000};
    for (size_t t = 0; t < TEAMS; t++) {
        next_job job = {.pool = team(team_sizes[t])};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                job.n = counts[c];
                job.grain = grains[g];
                job.taken = calloc(counts[c] + 1, 1);
                assert_non_null(job.taken);
                rl_pool_run(job.pool, next_run, &job);
                assert_int_equal(atomic_load(&job.wrong), 0);
                for (uint32_t i = 0; i < counts[c]; i++)
                    assert_int_equal(job.taken[i], 1);
                assert_int_equal(job.taken[counts[c]], 0);
                free(job.taken);
            }
        rl_pool_free(job.pool);
    }
}

static void test_part_covers(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 15, 16, 17, 1000, 4096, 151936, UINT32_MAX};
    static const uint32_t units[] = {1, 16, 64, 256};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            for (int size = 1; size <= 65; size++) {
                uint32_t at = 0, least = UINT32_MAX, most = 0;
                for (int m = 0; m < size; m++) {
                    uint32_t begin, end;
                    rl_pool_part(counts[c], units[u], m, size, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && end <= counts[c]);
                    assert_true(begin % units[u] == 0 || begin == counts[c]);
                    at = end;
                    uint32_t blocks = (end - begin) / units[u] + ((end - begin) % units[u] != 0);
                    if (blocks < least) least = blocks;
                    if (blocks > most) most = blocks;
                }
                assert_int_equal(at, counts[c]);
                assert_true(most - least <= 1); /* nobody has two blocks more than another */
            }
}

/* Two teams at once, and a member of one that leads another. */
static void inner_run(void *ctx, int member)
{
    barrier_job *job = ctx;
    barrier_run(job, member);
}

static void outer_run(void *ctx, int member)
{
    barrier_job *jobs = ctx;
    for (int i = 0; i < 10; i++)
        rl_pool_run(jobs[1 + member].pool, inner_run, &jobs[1 + member]);
    rl_pool_barrier(jobs[0].pool);
}

static void test_nested_teams(void **state)
{
    (void)state;
    barrier_job jobs[11] = {{.pool = team(10)}};
    for (int i = 1; i < 11; i++)
        jobs[i] = (barrier_job){.pool = team(1 + i), .rounds = 5};
    rl_pool_run(jobs[0].pool, outer_run, jobs);
    rl_pool_run(jobs[0].pool, outer_run, jobs);
    for (int i = 1; i < 11; i++)
        for (int m = 0; m < 1 + i; m++)
            assert_false(jobs[i].wrong[m]);
    for (int i = 0; i < 11; i++)
        rl_pool_free(jobs[i].pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_refuses), cmocka_unit_test(test_every_member_runs),
        cmocka_unit_test(test_largest_team),   cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_late_members),   cmocka_unit_test(test_next_hands_out_once),
        cmocka_unit_test(test_part_covers),    cmocka_unit_test(test_nested_teams),
    };
    return cmocka_run_group_tests_name("base/pool", tests, NULL, NULL);
}
