/* The cpu backend on an expert cache: the same bits as with experts in place, whatever the size of the cache, the threads, the
 * guesses, the faults and the interruptions. */
#include "support/faults.h"
#include "support/passes.h"
#include "support/tiny_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 48, DECODE = 24, TOKENS = PROMPT + DECODE, CHUNK = 32, ROWS = 64 };

static rl_model *open_model(void)
{
    tiny_params p = tiny_defaults();
    p.layers = "RRARRA";
    p.n_expert = 32;
    p.n_expert_used = 3;
    p.n_ff_expert = 64;
    p.down_exps = RL_Q8_0;
    p.mtp = true;
    return tiny_open(&p);
}

typedef struct run {
    const rl_model *m;
    int32_t ids[TOKENS];
    float *logits; /* TOKENS x V, then the MTP block's for the prompt */
    size_t n;
} run;

static run new_run(const rl_model *m)
{
    run r = {.m = m, .n = (size_t)(TOKENS + PROMPT) * m->hp.n_vocab};
    pass_ids(m, 11, r.ids, TOKENS);
    r.logits = calloc(r.n, sizeof *r.logits);
    assert_non_null(r.logits);
    return r;
}

/* Prompt in chunks, decoding id by id, and the MTP block on hidden states that are as good as any. */
static void run_on(rl_backend *b, run *r)
{
    const size_t v = r->m->hp.n_vocab, e = r->m->hp.n_embd;
    rl_seq *s = pass_seq(b, TOKENS);
    pass_run(s, r->ids, PROMPT, CHUNK, r->logits);
    pass_run(s, r->ids + PROMPT, DECODE, 1, r->logits + PROMPT * v);
    float *hidden = calloc(PROMPT * e, sizeof *hidden);
    assert_non_null(hidden);
    rl_rng rng = rl_rng_seed(3);
    rl_rng_fill_normal(&rng, hidden, PROMPT * e, 1.0f);
    rl_error err = {0};
    rl_assert_ok(b->ops->mtp(b, s, r->ids, hidden, PROMPT, r->logits + TOKENS * v, NULL, &err), &err);
    free(hidden);
    b->ops->seq_free(s);
}

static run in_place(const rl_model *m, rl_precision precision)
{
    run r = new_run(m);
    rl_backend *b = pass_open(m, (pass_options){.precision = precision, .threads = 2, .max_rows = ROWS});
    run_on(b, &r);
    b->ops->close(b);
    return r;
}

static rl_backend *open_cached(const rl_model *m, rl_precision precision, int threads, const rl_experts_options *x)
{
    return pass_open(m, (pass_options){.precision = precision, .threads = threads, .max_rows = ROWS, .experts = x});
}

/* An eighth of the experts, two eighths, ... */
static uint64_t budget_of(const rl_model *m, int eighths)
{
    uint64_t least, all;
    rl_error err = {0};
    rl_assert_ok(rl_experts_bounds(m, &least, &all, &err), &err);
    const uint64_t budget = all * (uint64_t)eighths / 8;
    return budget > least ? budget : least;
}

static rl_cache_stats stats_of(rl_backend *b)
{
    rl_cache_stats s;
    assert_true(b->ops->cache(b, &s));
    assert_true(s.used <= s.budget);
    return s;
}

/* Bits of way: no guesses; faults and three threads; reading by threads through the page cache. */
static void same_bits(rl_precision precision, int step)
{
    rl_model *m = open_model();
    run want = in_place(m, precision), got = new_run(m);
    for (int eighths = 1; eighths <= 8; eighths += step)
        for (int way = eighths % 2 * 4, last = way + 4; way < last; way++) {
            faults f = {.rng = rl_rng_seed((uint64_t)(eighths * 8 + way)), .shorten = 4, .interrupt = 9, .delay = 16};
            rl_experts_options x = {.budget = budget_of(m, eighths),
                                    .io = {.engine = way & 4 ? RL_IO_THREADS : RL_IO_AUTO, .no_direct = way & 4}};
            if (way & 2) {
                x.io.fault = inject_faults;
                x.io.fault_ctx = &f;
            }
            setenv("RL_ENGINE_PREFETCH", way & 1 ? "0" : "1", 1);
            rl_backend *b = open_cached(m, precision, way & 2 ? 3 : 1, &x);
            memset(got.logits, 0, got.n * sizeof *got.logits);
            run_on(b, &got);
            rl_assert_same_bits(got.logits, want.logits, want.n);
            const rl_cache_stats s = stats_of(b);
            if (way & 1) assert_int_equal(s.guesses, 0);
            if (eighths < 8 && !(way & 1)) assert_true(s.guesses > 0);
            assert_true(s.loads > 0);
            b->ops->close(b);
        }
    unsetenv("RL_ENGINE_PREFETCH");
    free(want.logits);
    free(got.logits);
    rl_model_close(m);
}

static void same_bits_exact(void **state)
{
    (void)state;
    same_bits(RL_PRECISION_EXACT, 1);
}

static void same_bits_fast(void **state)
{
    (void)state;
    same_bits(RL_PRECISION_FAST, 3);
}

static void same_bits_full(void **state)
{
    (void)state;
    rl_model *m = open_model();
    run want = in_place(m, RL_PRECISION_EXACT), got = new_run(m);
    rl_experts_options x = {.full = true};
    rl_backend *b = open_cached(m, RL_PRECISION_EXACT, 2, &x);
    run_on(b, &got);
    rl_assert_same_bits(got.logits, want.logits, want.n);
    const rl_cache_stats s = stats_of(b);
    assert_int_equal(s.loads, s.experts);
    assert_int_equal(s.misses, 0);
    assert_int_equal(s.guesses, 0);
    b->ops->close(b);
    free(want.logits);
    free(got.logits);
    rl_model_close(m);
}

/* A pass that meets a broken disk fails and says where; when the disk is mended the sequence goes on from a reset. */
static void a_failed_read_fails_the_pass(void **state)
{
    (void)state;
    rl_model *m = open_model();
    run want = in_place(m, RL_PRECISION_EXACT), got = new_run(m);
    faults f = {.rng = rl_rng_seed(6), .error = EIO};
    rl_experts_options x = {.budget = budget_of(m, 2), .io = {.fault = inject_faults, .fault_ctx = &f}};
    rl_backend *b = open_cached(m, RL_PRECISION_EXACT, 3, &x);
    rl_seq *s = pass_seq(b, TOKENS);
    float *logits = malloc(ROWS * m->hp.n_vocab * sizeof *logits);
    assert_non_null(logits);
    int failed = 0;
    for (int i = 0; i < 20; i++) {
        f.fail = 30;
        const uint32_t n = i % 2 ? 1 : CHUNK;
        const rl_segment g = {s, want.ids, n, RL_LOGITS_ALL};
        const rl_pass p = {.segments = &g, .n_segments = 1, .logits = logits};
        rl_error err = {0};
        const rl_status st = b->ops->forward(b, &p, &err);
        if (st != RL_OK) {
            failed++;
            rl_assert_fails(st, RL_ERR_IO, &err, "_exps.weight at byte ");
        } else {
            rl_assert_same_bits(logits, want.logits, (size_t)n * m->hp.n_vocab);
        }
        b->ops->seq_reset(s);
        f.fail = 0;
        pass_run(s, want.ids, CHUNK, CHUNK, logits);
        rl_assert_same_bits(logits, want.logits, (size_t)CHUNK * m->hp.n_vocab);
        b->ops->seq_reset(s);
        stats_of(b);
    }
    assert_true(failed > 5);
    free(logits);
    b->ops->seq_free(s);
    run_on(b, &got);
    rl_assert_same_bits(got.logits, want.logits, want.n);
    b->ops->close(b);
    free(want.logits);
    free(got.logits);
    rl_model_close(m);
}

typedef struct stopper {
    rl_stage stage;
    uint32_t layer;
} stopper;

static rl_status stop_there(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width,
                            float *data)
{
    const stopper *s = ctx;
    (void)row0, (void)n_rows, (void)width, (void)data;
    return stage == s->stage && layer == s->layer ? RL_ERR_CANCELLED : RL_OK;
}

static void passes_may_end_anywhere(void **state)
{
    (void)state;
    rl_model *m = open_model();
    run want = in_place(m, RL_PRECISION_EXACT), got = new_run(m);
    rl_experts_options x = {.budget = budget_of(m, 1)};
    rl_backend *b = open_cached(m, RL_PRECISION_EXACT, 3, &x);
    rl_seq *s = pass_seq(b, TOKENS);
    static const rl_stage stages[] = {RL_STAGE_MIX_OUT, RL_STAGE_ROUTER_LOGITS, RL_STAGE_ROUTER_IDS, RL_STAGE_ROUTER_WEIGHTS,
                                      RL_STAGE_EXPERTS, RL_STAGE_SHARED,        RL_STAGE_LAYER_OUT};
    for (uint32_t layer = 0; layer < m->hp.n_layer; layer++)
        for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
            stopper where = {stages[i], layer};
            const rl_segment g = {s, want.ids, i % 2 ? 1 : CHUNK, RL_LOGITS_NONE};
            const rl_pass p = {.segments = &g, .n_segments = 1, .tap = stop_there, .tap_ctx = &where};
            rl_error err = {0};
            assert_int_equal(b->ops->forward(b, &p, &err), RL_ERR_CANCELLED);
            b->ops->seq_reset(s);
            stats_of(b);
        }
    b->ops->seq_free(s);
    run_on(b, &got);
    rl_assert_same_bits(got.logits, want.logits, want.n);
    b->ops->close(b);
    free(want.logits);
    free(got.logits);
    rl_model_close(m);
}

/* Two chunks of a prompt load no more than each chunk's routed experts, and a little read ahead in vain. */
static void prefill_reads_little_in_vain(void **state)
{
    (void)state;
    rl_model *m = open_model();
    run got = new_run(m);
    rl_experts_options x = {.budget = budget_of(m, 4)};
    rl_backend *b = open_cached(m, RL_PRECISION_EXACT, 2, &x);
    rl_seq *s = pass_seq(b, TOKENS);
    pass_run(s, got.ids, 64, 64, got.logits);
    const rl_cache_stats t = stats_of(b);
    assert_true((double)t.loads <= 1.15 * (double)(t.hits + t.misses));
    b->ops->seq_free(s);
    b->ops->close(b);
    free(got.logits);
    rl_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_exact),         cmocka_unit_test(same_bits_fast),
        cmocka_unit_test(same_bits_full),          cmocka_unit_test(a_failed_read_fails_the_pass),
        cmocka_unit_test(passes_may_end_anywhere), cmocka_unit_test(prefill_reads_little_in_vain),
    };
    return cmocka_run_group_tests_name("experts of the cpu backend", tests, NULL, NULL);
}
