/* The expert cache without a backend: what is handed out is what the file holds, whatever the budget, the way of reading, the
 * faults and the cancellations; and the budget is kept. */
#include "support/faults.h"
#include "support/tiny_model.h"

#include "base/pool.h"
#include "experts/experts.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define EXPERTS 48
#define USED    3

static tiny_params shape(void)
{
    tiny_params p = tiny_defaults();
    p.layers = "RRRA";
    p.n_embd = 64;
    p.n_expert = EXPERTS;
    p.n_expert_used = USED;
    p.n_ff_expert = 64;
    p.down_exps = RL_Q8_0;
    return p;
}

static const rl_matrix *matrix_of(const rl_model *m, uint32_t layer, uint32_t part)
{
    const rl_layer *l = &m->layers[layer];
    return part == 0 ? &l->gate_exps : part == 1 ? &l->up_exps : &l->down_exps;
}

static bool same_weights(const rl_model *m, const rl_experts *x, uint32_t layer, uint32_t expert, uint32_t index)
{
    for (uint32_t part = 0; part < 3; part++) {
        const rl_matrix *w = matrix_of(m, layer, part);
        if (memcmp(rl_experts_at(x, index, part), rl_matrix_row(w, expert, 0), w->rows * w->row_bytes) != 0) return false;
    }
    return true;
}

/* n different experts in rising order. */
static void draw_set(rl_rng *rng, uint32_t n, uint32_t *ids)
{
    uint32_t left = EXPERTS, at = 0;
    for (uint32_t e = 0; e < EXPERTS && at < n; e++, left--)
        if (rl_rng_below(rng, left) < n - at) ids[at++] = e;
}

/* One layer's set through all its waves; false when a read failed. */
static bool visit(const rl_model *m, rl_experts *x, uint32_t layer, const uint32_t *ids, uint32_t n)
{
    bool seen[EXPERTS] = {false};
    rl_experts_begin(x, layer, ids, n);
    for (uint32_t first = 0, end; first < n; first = end) {
        end = rl_experts_wave(x);
        assert_in_range(end, first + 1, n);
        for (uint32_t pos = 0; pos < end - first; pos++) {
            uint32_t index;
            if (!rl_experts_next(x, pos, &index)) {
                assert_true(rl_experts_failed(x));
                return false;
            }
            assert_in_range(index, first, end - 1);
            assert_false(seen[index]);
            seen[index] = true;
            assert_true(same_weights(m, x, layer, ids[index], index));
        }
        rl_experts_release(x);
    }
    assert_false(rl_experts_failed(x));
    return true;
}

static rl_experts *open_cache(const rl_model *m, uint64_t budget, rl_io_options io)
{
    rl_experts *x;
    rl_error err = {0};
    rl_experts_options opt = {.budget = budget, .io = io};
    rl_assert_ok(rl_experts_open(m, &opt, &x, &err), &err);
    return x;
}

static void check_budget(rl_experts *x)
{
    rl_cache_stats s;
    rl_experts_get_stats(x, &s);
    assert_true(s.used <= s.budget);
    assert_true(s.overhead <= s.used);
}

/* ---- Tests -----------------------------------------------------------------------------------------------------------------
 */

static void hands_out_the_files_bytes(void **state)
{
    (void)state;
    tiny_params p = shape();
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    assert_true(least < all);
    for (int way = 0; way < 4; way++)
        for (uint32_t depth = 1; depth <= 16; depth *= 4)
            for (int size = 0; size < 3; size++) {
                rl_io_options io = {.engine = way & 1 ? RL_IO_THREADS : RL_IO_AUTO, .no_direct = way & 2, .depth = depth};
                rl_experts *x = open_cache(m, least + (all - least) * (uint32_t)size / 2, io);
                rl_rng rng = rl_rng_seed((uint64_t)way);
                for (int pass = 0; pass < 6; pass++) {
                    rl_experts_begin_pass(x);
                    for (uint32_t layer = 0; layer < 4; layer++) {
                        uint32_t ids[EXPERTS];
                        const uint32_t n = pass & 1 ? 1 + rl_rng_below(&rng, EXPERTS) : USED;
                        draw_set(&rng, n, ids);
                        assert_true(visit(m, x, layer, ids, n));
                        check_budget(x);
                    }
                    rl_experts_end(x);
                }
                rl_experts_close(x);
            }
    rl_model_close(m);
}

static void refuses_what_cannot_hold_a_token(void **state)
{
    (void)state;
    tiny_params p = shape();
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    rl_experts *x;
    rl_experts_options opt = {.budget = least - 1};
    rl_assert_fails(rl_experts_open(m, &opt, &x, &err), RL_ERR_MEMORY, &err, "needs at least");
    rl_model_close(m);
}

static void full_residency_reads_once(void **state)
{
    (void)state;
    tiny_params p = shape();
    rl_model *m = tiny_open(&p);
    rl_error err = {0};
    rl_experts *x;
    rl_experts_options opt = {.full = true};
    rl_assert_ok(rl_experts_open(m, &opt, &x, &err), &err);
    uint32_t ids[EXPERTS];
    rl_rng rng = rl_rng_seed(5);
    for (int pass = 0; pass < 20; pass++) {
        rl_experts_begin_pass(x);
        for (uint32_t layer = 0; layer < 4; layer++) {
            draw_set(&rng, USED, ids);
            assert_true(visit(m, x, layer, ids, USED));
        }
        rl_experts_end(x);
    }
    rl_cache_stats s;
    rl_experts_get_stats(x, &s);
    assert_int_equal(s.loads, 4 * EXPERTS);
    assert_int_equal(s.misses, 0);
    assert_int_equal(s.hits, 20 * 4 * USED);
    assert_int_equal(s.evictions, 0);
    assert_false(rl_experts_can_predict(x));
    rl_experts_close(x);
    rl_model_close(m);
}

/* A pass that uses the same experts again finds them; the least recently used go first. */
static void evicts_the_least_recently_used(void **state)
{
    (void)state;
    tiny_params p = shape();
    p.layers = "RA";
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    rl_experts *x = open_cache(m, least, (rl_io_options){0}); /* six slots for two layers */
    const uint32_t a[] = {1, 2, 3}, b[] = {7, 8, 9}, c[] = {2, 20, 30};
    rl_cache_stats s;
    rl_experts_begin_pass(x);
    visit(m, x, 0, a, 3);
    visit(m, x, 0, b, 3);
    visit(m, x, 0, a, 3);
    rl_experts_get_stats(x, &s);
    assert_int_equal(s.hits, 3);
    assert_int_equal(s.misses, 6);
    assert_int_equal(s.evictions, 0);
    visit(m, x, 0, c, 3); /* 2 is there; 20 and 30 take the places of two of b */
    visit(m, x, 0, a, 3);
    rl_experts_get_stats(x, &s);
    assert_int_equal(s.hits, 3 + 1 + 3);
    assert_int_equal(s.misses, 8);
    assert_int_equal(s.evictions, 2);
    rl_experts_close(x);
    rl_model_close(m);
}

/* Guesses may take free slots and older tokens' experts, never those of this pass. */
static void guesses_do_not_evict_the_token(void **state)
{
    (void)state;
    tiny_params p = shape();
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    rl_experts *x = open_cache(m, least + (all - least) / 8, (rl_io_options){0});
    rl_cache_stats s;
    rl_experts_get_stats(x, &s);
    const uint32_t per_layer = s.slots / 4;
    assert_true(s.slots < s.experts && per_layer >= USED);
    /* Pass 1 fills every slot. */
    rl_experts_begin_pass(x);
    uint32_t used = 0, ids[USED];
    for (uint32_t first = 0; used < s.slots; first += USED)
        for (uint32_t layer = 0; layer < 4 && used < s.slots; layer++, used += USED) {
            for (uint32_t i = 0; i < USED; i++)
                ids[i] = (first + i) % EXPERTS;
            assert_true(visit(m, x, layer, ids, USED));
        }
    rl_experts_get_stats(x, &s);
    const uint64_t loads = s.loads;
    const uint32_t guesses[] = {EXPERTS - 1, EXPERTS - 2, EXPERTS - 3};
    rl_experts_begin(x, 0, ids, USED);
    rl_experts_wave(x);
    rl_experts_predict(x, 1, guesses, 3);
    rl_experts_get_stats(x, &s);
    assert_int_equal(s.guesses, 0);
    rl_experts_end(x);
    /* In the next pass the same guess is welcome, and used. */
    rl_experts_begin_pass(x);
    rl_experts_begin(x, 0, ids, USED);
    rl_experts_wave(x);
    rl_experts_predict(x, 1, guesses, 1);
    rl_experts_get_stats(x, &s);
    assert_int_equal(s.guesses, 1);
    const uint32_t wanted[] = {EXPERTS - 1};
    assert_true(visit(m, x, 1, wanted, 1));
    rl_experts_get_stats(x, &s);
    assert_int_equal(s.guesses_used, 1);
    assert_true(s.loads > loads);
    check_budget(x);
    rl_experts_end(x);
    rl_experts_close(x);
    rl_model_close(m);
}

/* Sweeps over whole layers leave most of the cache in place: the second sweep must find it. */
static void sweeps_keep_the_cache(void **state)
{
    (void)state;
    tiny_params p = shape();
    p.layers = "RRRARRRA";
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    rl_experts *x = open_cache(m, all / 2, (rl_io_options){0});
    uint32_t ids[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++)
        ids[e] = e;
    rl_cache_stats before, after;
    for (int sweep = 0; sweep < 2; sweep++) {
        rl_experts_get_stats(x, &before);
        rl_experts_begin_pass(x);
        for (uint32_t layer = 0; layer < 8; layer++)
            assert_true(visit(m, x, layer, ids, EXPERTS));
        rl_experts_end(x);
        rl_experts_get_stats(x, &after);
        assert_true(after.loads - before.loads <= 8 * EXPERTS);
        check_budget(x);
    }
    /* Half of the experts fit; a sweep in plain LRU order would find none of them. */
    assert_true(after.loads - before.loads <= 8 * EXPERTS * 4 / 5);
    rl_experts_close(x);
    rl_model_close(m);
}

static void survives_short_and_interrupted_reads(void **state)
{
    (void)state;
    tiny_params p = shape();
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    for (int way = 0; way < 4; way++) {
        faults f = {.rng = rl_rng_seed((uint64_t)way + 1), .shorten = 2, .interrupt = 5, .delay = 20};
        rl_io_options io = {
            .engine = way & 1 ? RL_IO_THREADS : RL_IO_AUTO, .no_direct = way & 2, .fault = inject_faults, .fault_ctx = &f};
        rl_experts *x = open_cache(m, least, io);
        rl_rng rng = rl_rng_seed(77);
        for (int pass = 0; pass < 10; pass++) {
            rl_experts_begin_pass(x);
            for (uint32_t layer = 0; layer < 4; layer++) {
                uint32_t ids[EXPERTS];
                const uint32_t n = 1 + rl_rng_below(&rng, EXPERTS);
                draw_set(&rng, n, ids);
                assert_true(visit(m, x, layer, ids, n));
            }
            rl_experts_end(x);
        }
        rl_experts_close(x);
    }
    rl_model_close(m);
}

static void a_failing_disk_is_named_and_survived(void **state)
{
    (void)state;
    tiny_params p = shape();
    char path[PATH_MAX];
    tiny_temp_path(path, sizeof path);
    tiny_write(&p, path);
    rl_error err = {0};
    rl_model *m;
    rl_assert_ok(rl_model_open(path, &m, &err), &err);
    uint64_t least, all;
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    for (int way = 0; way < 2; way++) {
        faults f = {.rng = rl_rng_seed(3), .error = EIO, .shorten = 3};
        rl_io_options io = {.engine = way ? RL_IO_THREADS : RL_IO_AUTO, .fault = inject_faults, .fault_ctx = &f};
        rl_experts *x = open_cache(m, least, io);
        rl_rng rng = rl_rng_seed(8);
        int failed = 0;
        for (int pass = 0; pass < 80; pass++) {
            f.fail = pass % 4 == 0 ? 4 : 0; /* in the other passes the disk is well, and so must be the results */
            rl_experts_begin_pass(x);
            bool ok = true;
            for (uint32_t layer = 0; layer < 4 && ok; layer++) {
                uint32_t ids[EXPERTS];
                const uint32_t n = 1 + rl_rng_below(&rng, EXPERTS / 2);
                draw_set(&rng, n, ids);
                ok = visit(m, x, layer, ids, n);
            }
            if (!ok) {
                failed++;
                assert_true(f.fail > 0);
                rl_assert_fails(rl_experts_error(x, &err), RL_ERR_IO, &err, path);
                assert_non_null(strstr(err.text, "_exps.weight"));
                assert_non_null(strstr(err.text, "at byte "));
            }
            rl_experts_end(x);
            check_budget(x);
        }
        assert_true(failed > 5);
        rl_experts_close(x);
    }
    rl_model_close(m);
    unlink(path);
}

static void a_file_that_shrinks_is_named(void **state)
{
    (void)state;
    tiny_params p = shape();
    char path[PATH_MAX];
    for (int way = 0; way < 4; way++) {
        tiny_temp_path(path, sizeof path);
        tiny_write(&p, path);
        rl_error err = {0};
        rl_model *m;
        rl_assert_ok(rl_model_open(path, &m, &err), &err);
        uint64_t least, all;
        rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
        rl_io_options io = {.engine = way & 1 ? RL_IO_THREADS : RL_IO_AUTO, .no_direct = way & 2};
        rl_experts *x = open_cache(m, least, io);
        const rl_gguf_tensor *t = m->layers[0].down_exps.tensor;
        assert_int_equal(truncate(path, (off_t)(t->offset + 10)), 0);
        const uint32_t ids[] = {0, 1, 5};
        rl_experts_begin_pass(x);
        rl_experts_begin(x, 0, ids, 3);
        rl_experts_wave(x);
        uint32_t index, pos = 0;
        while (pos < 3 && rl_experts_next(x, pos, &index))
            pos++;
        assert_true(pos < 3);
        rl_assert_fails(rl_experts_error(x, &err), RL_ERR_IO, &err, "shorter since it was opened");
        assert_non_null(strstr(err.text, t->name));
        rl_experts_end(x);
        check_budget(x);
        rl_experts_close(x);
        rl_model_close(m);
        unlink(path);
    }
}

/* Ten thousand steps as decoding makes them, over caches of random sizes, some abandoned in the middle. */
static void ten_thousand_steps(void **state)
{
    (void)state;
    tiny_params p = shape();
    p.layers = "RA";
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    rl_rng rng = rl_rng_seed(2024);
    rl_experts *x = NULL;
    uint32_t abandoned = 0;
    for (int step = 0; step < 10000; step++) {
        if (step % 250 == 0) {
            rl_experts_close(x);
            const uint64_t budget = least + (all - least) * rl_rng_below(&rng, 1000) / 1000;
            rl_io_options io = {.engine = rl_rng_below(&rng, 4) ? RL_IO_AUTO : RL_IO_THREADS,
                                .no_direct = rl_rng_below(&rng, 2),
                                .depth = 1 + rl_rng_below(&rng, 40)};
            x = open_cache(m, budget, io);
        }
        rl_experts_begin_pass(x);
        for (uint32_t layer = 0; layer < 2; layer++) {
            uint32_t ids[EXPERTS], guess[EXPERTS], index;
            const uint32_t n = rl_rng_below(&rng, 50) ? USED : 1 + rl_rng_below(&rng, EXPERTS);
            draw_set(&rng, n, ids);
            rl_experts_begin(x, layer, ids, n);
            bool over = false;
            for (uint32_t first = 0, end; first < n && !over; first = end) {
                end = rl_experts_wave(x);
                draw_set(&rng, USED, guess);
                rl_experts_predict(x, layer + 1, guess, USED);
                for (uint32_t pos = 0; pos < end - first && !over; pos++) {
                    if (rl_rng_below(&rng, 200) == 0) {
                        over = true;
                        abandoned++;
                        break;
                    }
                    assert_true(rl_experts_next(x, pos, &index));
                    const rl_matrix *w = matrix_of(m, layer, pos % 3);
                    assert_memory_equal(rl_experts_at(x, index, pos % 3), rl_matrix_row(w, ids[index], 0), w->row_bytes);
                }
            }
            if (rl_rng_below(&rng, 8) == 0) rl_experts_poll(x);
            if (over) break;
        }
        if (rl_rng_below(&rng, 3)) rl_experts_end(x); /* a new pass must cope without */
        check_budget(x);
    }
    assert_true(abandoned > 100);
    rl_experts_close(x);
    rl_model_close(m);
}

/* ---- Several members -------------------------------------------------------------------------------------------------------
 */

typedef struct team_visit {
    const rl_model *m;
    rl_experts *x;
    rl_pool *pool;
    atomic_uint counter, wrong;
    uint32_t ids[EXPERTS], n;
    uint32_t layer, begin, end; /* the wave, set by member 0 while the others are at a barrier */
    bool over;
    rl_rng rng;
    faults f;
} team_visit;

/* Member 0 between two barriers: the next wave of the set, or of the next set. */
static void next_wave(team_visit *t, int *pass)
{
    atomic_store(&t->counter, 0);
    t->begin = t->end;
    if (t->begin == t->n) {
        if (++t->layer == 4) {
            t->layer = 0;
            t->over = ++*pass == 30;
            rl_experts_end(t->x);
            rl_experts_begin_pass(t->x);
        }
        t->n = *pass % 3 ? USED : 1 + rl_rng_below(&t->rng, EXPERTS);
        draw_set(&t->rng, t->n, t->ids);
        rl_experts_begin(t->x, t->layer, t->ids, t->n);
        t->begin = 0;
    }
    t->end = rl_experts_wave(t->x);
}

static void visit_as_team(void *ctx, int member)
{
    team_visit *t = ctx;
    for (int pass = 0;;) {
        rl_pool_barrier(t->pool);
        if (member == 0) next_wave(t, &pass);
        rl_pool_barrier(t->pool);
        if (t->over) return;
        uint32_t pos, stop, index;
        while (rl_pool_next(&t->counter, (t->end - t->begin) * 2, 1, &pos, &stop))
            if (!rl_experts_next(t->x, pos / 2, &index) || !same_weights(t->m, t->x, t->layer, t->ids[index], index))
                atomic_fetch_add(&t->wrong, 1);
        rl_experts_poll(t->x);
    }
}

static void members_share_a_wave(void **state)
{
    (void)state;
    tiny_params p = shape();
    rl_model *m = tiny_open(&p);
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    rl_pool *pool;
    rl_assert_ok(rl_pool_create(4, &pool, &err), &err);
    for (int way = 0; way < 2; way++) {
        team_visit t = {
            .m = m, .pool = pool, .layer = 3, .rng = rl_rng_seed(9), .f = {.rng = rl_rng_seed(4), .shorten = 5, .delay = 10}};
        rl_io_options io = {.engine = way ? RL_IO_THREADS : RL_IO_AUTO, .fault = inject_faults, .fault_ctx = &t.f};
        t.x = open_cache(m, least + (all - least) / 5, io);
        rl_pool_run(pool, visit_as_team, &t);
        assert_int_equal(atomic_load(&t.wrong), 0);
        check_budget(t.x);
        rl_experts_close(t.x);
    }
    rl_pool_free(pool);
    rl_model_close(m);
}

static void parses_budgets(void **state)
{
    (void)state;
    rl_residency r;
    uint64_t bytes;
    rl_error err = {0};
    rl_assert_ok(rl_cache_parse("auto", &r, &bytes, &err), &err);
    assert_int_equal(r, RL_RESIDENCY_AUTO);
    rl_assert_ok(rl_cache_parse("full", &r, &bytes, &err), &err);
    assert_int_equal(r, RL_RESIDENCY_FULL);
    rl_assert_ok(rl_cache_parse("mapped", &r, &bytes, &err), &err);
    assert_int_equal(r, RL_RESIDENCY_MAPPED);
    rl_assert_ok(rl_cache_parse("4096", &r, &bytes, &err), &err);
    assert_int_equal(r, RL_RESIDENCY_BOUNDED);
    assert_int_equal(bytes, 4096ull << 20);
    const char *const bad[] = {"", "0", "-1", "1x", "4 096", "16777217", "99999999999999999999999999", "bounded", "Full"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        rl_assert_fails(rl_cache_parse(bad[i], &r, &bytes, &err), RL_ERR_ARGUMENT, &err, "1 to 16777216 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_budgets),
        cmocka_unit_test(hands_out_the_files_bytes),
        cmocka_unit_test(refuses_what_cannot_hold_a_token),
        cmocka_unit_test(full_residency_reads_once),
        cmocka_unit_test(evicts_the_least_recently_used),
        cmocka_unit_test(guesses_do_not_evict_the_token),
        cmocka_unit_test(sweeps_keep_the_cache),
        cmocka_unit_test(survives_short_and_interrupted_reads),
        cmocka_unit_test(a_failing_disk_is_named_and_survived),
        cmocka_unit_test(a_file_that_shrinks_is_named),
        cmocka_unit_test(ten_thousand_steps),
        cmocka_unit_test(members_share_a_wave),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
