/* The cpu backend against the judge, stage by stage, and against itself: threads, chunks, segments, switches, copies. */
#include "backend/cpu/cpu.h"
#include "base/cpu.h"
#include "support/passes.h"
#include "support/tiny_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 8, CAPACITY = 512 };

static tiny_params shape(rl_type type)
{
    tiny_params p = tiny_defaults();
    tiny_set_type(&p, type);
    return p;
}

/* ---- Stages ------------------------------------------------------------------------------------------------------------ */

/* The judge's value of every stage of a pass. The cpu backend's are compared and then replaced by them, so that every stage is
 * judged on the same input. */
typedef struct stages {
    float *values[RL_STAGE_COUNT][LAYERS_MAX];
    size_t n[RL_STAGE_COUNT][LAYERS_MAX];
    double bound, worst;
    uint32_t seen;
    const char *name;
} stages;

static rl_status record(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    stages *s = ctx;
    const size_t n = (size_t)n_rows * width, had = s->n[stage][layer];
    (void)row0;
    s->values[stage][layer] = realloc(s->values[stage][layer], (had + n) * sizeof(float));
    assert_non_null(s->values[stage][layer]);
    memcpy(s->values[stage][layer] + had, data, n * sizeof(float));
    s->n[stage][layer] = had + n;
    return RL_OK;
}

static rl_status compare(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    stages *s = ctx;
    const size_t n = (size_t)n_rows * width;
    const float *judge = s->values[stage][layer];
    assert_int_equal(row0, 0);
    assert_int_equal(s->n[stage][layer], n);
    s->seen++;
    const double rms = rl_relative_rms(data, judge, n);
    /* Ids may differ in a near tie; forced logits leave rounding of one softmax, and random models have no ties that near. */
    const double bound = stage == RL_STAGE_ROUTER_IDS ? 0 : s->bound;
    if (!(rms <= bound))
        fail_msg("%s: stage %s of layer %u: relative rms %g, bound %g", s->name, rl_stage_name(stage), layer, rms, bound);
    s->worst = rms > s->worst ? rms : s->worst;
    if (stage != RL_STAGE_ROUTER_LOGITS && stage != RL_STAGE_LOGITS) memcpy(data, judge, n * sizeof(float));
    return RL_OK;
}

static void pass_with_tap(rl_seq *s, const int32_t *ids, uint32_t n, float *logits, rl_tap_fn tap, void *ctx)
{
    const rl_segment g = {s, ids, n, RL_LOGITS_ALL};
    const rl_pass p = {.segments = &g, .n_segments = 1, .logits = logits, .tap = tap, .tap_ctx = ctx};
    rl_error err = {0};
    rl_assert_ok(s->backend->ops->forward(s->backend, &p, &err), &err);
}

static void check_stages(rl_type type, rl_precision precision, uint32_t n, double bound)
{
    const tiny_params params = shape(type);
    rl_model *m = tiny_open(&params);
    pass_options o = {.backend = "ref", .max_rows = 64};
    rl_backend *ref = pass_open(m, o);
    o.backend = "cpu";
    o.precision = precision;
    o.threads = 2;
    rl_backend *cpu = pass_open(m, o);
    rl_seq *a = pass_seq(ref, CAPACITY), *b = pass_seq(cpu, CAPACITY);
    float *logits = malloc((size_t)64 * m->hp.n_vocab * sizeof *logits);
    int32_t ids[128];
    pass_ids(m, 7, ids, 128);
    /* Two passes, so that the second starts from a state. */
    for (uint32_t at = 0; at < 2 * n; at += n) {
        stages s = {.bound = bound, .name = rl_type_get(type)->name};
        pass_with_tap(a, ids + at, n, logits, record, &s);
        pass_with_tap(b, ids + at, n, logits, compare, &s);
        uint32_t recorded = 0;
        for (int i = 0; i < RL_STAGE_COUNT; i++)
            for (int l = 0; l < LAYERS_MAX; l++) {
                recorded += s.values[i][l] != NULL;
                free(s.values[i][l]);
            }
        assert_int_equal(s.seen, recorded);
        assert_true(recorded > 60);
    }
    free(logits);
    ref->ops->seq_free(a);
    cpu->ops->seq_free(b);
    ref->ops->close(ref);
    cpu->ops->close(cpu);
    rl_model_close(m);
}

static void test_stages_exact(void **state)
{
    (void)state;
    const rl_type types[] = {RL_F32, RL_BF16, RL_Q8_0, RL_Q4_K, RL_IQ1_M};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_stages(types[i], RL_PRECISION_EXACT, 1, 2e-5);
        check_stages(types[i], RL_PRECISION_EXACT, 24, 2e-5);
    }
}

static void test_stages_fast(void **state)
{
    (void)state;
    const rl_type types[] = {RL_F32, RL_Q8_0, RL_IQ2_XXS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_stages(types[i], RL_PRECISION_FAST, 1, 8e-2);
        check_stages(types[i], RL_PRECISION_FAST, 24, 4e-2);
    }
}

/* ---- The same numbers -------------------------------------------------------------------------------------------------- */

typedef struct fixture {
    rl_model *m;
    int32_t ids[CAPACITY];
    size_t v;
} fixture;

static fixture make(rl_type type, bool mtp)
{
    fixture f;
    tiny_params p = shape(type);
    p.mtp = mtp;
    f.m = tiny_open(&p);
    f.v = f.m->hp.n_vocab;
    pass_ids(f.m, 11, f.ids, CAPACITY);
    return f;
}

/* Logits of all n positions with these options, in chunks. Freed by the caller. */
static float *logits_of(const fixture *f, pass_options o, uint32_t n, uint32_t chunk)
{
    float *out = malloc((size_t)n * f->v * sizeof *out);
    assert_non_null(out);
    o.max_rows = o.max_rows ? o.max_rows : chunk;
    rl_backend *b = pass_open(f->m, o);
    rl_seq *s = pass_seq(b, CAPACITY);
    pass_run(s, f->ids, n, chunk, out);
    assert_int_equal(b->ops->seq_position(s), n);
    b->ops->seq_free(s);
    b->ops->close(b);
    return out;
}

static void test_thread_counts(void **state)
{
    (void)state;
    const uint32_t n = 70;
    for (int precision = RL_PRECISION_EXACT; precision <= RL_PRECISION_FAST; precision++) {
        fixture f = make(precision == RL_PRECISION_FAST ? RL_Q8_0 : RL_F32, false);
        for (uint32_t chunk = 1; chunk <= n; chunk += n - 1) {
            float *one = logits_of(&f, (pass_options){.precision = (rl_precision)precision}, n, chunk);
            for (int threads = 2; threads <= 4; threads++) {
                float *many = logits_of(&f, (pass_options){.precision = (rl_precision)precision, .threads = threads}, n, chunk);
                rl_assert_same_bits(many, one, n * f.v);
                free(many);
            }
            free(one);
        }
        rl_model_close(f.m);
    }
}

static void test_chunk_sizes(void **state)
{
    (void)state;
    const uint32_t n = 330;
    for (int precision = RL_PRECISION_EXACT; precision <= RL_PRECISION_FAST; precision++) {
        fixture f = make(RL_Q8_0, false);
        const pass_options o = {.precision = (rl_precision)precision, .threads = 2};
        float *whole = logits_of(&f, o, n, n), *steps = logits_of(&f, o, n, 1), *fives = logits_of(&f, o, n, 5);
        for (uint32_t chunk = 64; chunk <= 256; chunk += 64) {
            float *parts = logits_of(&f, o, n, chunk);
            rl_assert_same_bits(parts, whole, n * f.v);
            free(parts);
        }
        /* Passes too short for the batched forms give what single steps give. */
        rl_assert_same_bits(fives, steps, n * f.v);
        if (precision == RL_PRECISION_EXACT) rl_assert_close(whole, steps, n * f.v, 2e-3, 0);
        free(whole);
        free(steps);
        free(fives);
        rl_model_close(f.m);
    }
}

static void test_segments(void **state)
{
    (void)state;
    fixture f = make(RL_Q8_0, false);
    rl_backend *b = pass_open(f.m, (pass_options){.threads = 2, .max_rows = 256});
    const uint32_t lengths[] = {1, 33, 0, 5, 90}, n = sizeof lengths / sizeof *lengths;
    float *together = malloc(3 * 130 * f.v * sizeof *together), *alone = malloc(130 * f.v * sizeof *alone);
    rl_seq *seqs[5], *single[5];
    for (uint32_t i = 0; i < n; i++) {
        seqs[i] = pass_seq(b, CAPACITY);
        single[i] = pass_seq(b, CAPACITY);
        pass_run(seqs[i], f.ids + 300, 20 * i, 64, NULL);
        pass_run(single[i], f.ids + 300, 20 * i, 64, NULL);
    }
    rl_segment segments[5];
    for (uint32_t i = 0; i < n; i++)
        segments[i] = (rl_segment){seqs[i], f.ids + 40 * i, lengths[i],
                                   i == 1   ? RL_LOGITS_NONE
                                   : i == 3 ? RL_LOGITS_LAST
                                            : RL_LOGITS_ALL};
    const rl_pass p = {.segments = segments, .n_segments = n, .logits = together};
    rl_error err = {0};
    rl_assert_ok(b->ops->forward(b, &p, &err), &err);
    const float *at = together;
    for (uint32_t i = 0; i < n; i++) {
        pass_run(single[i], f.ids + 40 * i, lengths[i], 256, alone);
        assert_int_equal(b->ops->seq_position(seqs[i]), 20 * i + lengths[i]);
        if (lengths[i] == 0 || segments[i].want == RL_LOGITS_NONE) continue;
        const uint32_t rows = segments[i].want == RL_LOGITS_LAST ? 1 : lengths[i];
        rl_assert_same_bits(at, alone + (lengths[i] - rows) * f.v, rows * f.v);
        at += rows * f.v;
    }
    /* And their states went the same way. */
    for (uint32_t i = 0; i < n; i++) {
        pass_last(seqs[i], f.ids + 200, 1, together);
        pass_last(single[i], f.ids + 200, 1, alone);
        rl_assert_same_bits(together, alone, f.v);
        b->ops->seq_free(seqs[i]);
        b->ops->seq_free(single[i]);
    }
    free(together);
    free(alone);
    b->ops->close(b);
    rl_model_close(f.m);
}

static rl_status look(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    (void)stage, (void)layer, (void)row0, (void)n_rows, (void)width, (void)data;
    ++*(uint32_t *)ctx;
    return RL_OK;
}

static rl_status stop_at_core(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width,
                              float *data)
{
    (void)ctx, (void)row0, (void)n_rows, (void)width, (void)data;
    return stage == RL_STAGE_DN_CORE && layer == 1 ? RL_ERR_CANCELLED : RL_OK;
}

static void test_tap_changes_nothing(void **state)
{
    (void)state;
    fixture f = make(RL_Q8_0, false);
    rl_backend *b = pass_open(f.m, (pass_options){.precision = RL_PRECISION_FAST, .threads = 2});
    rl_seq *s = pass_seq(b, CAPACITY), *t = pass_seq(b, CAPACITY);
    float *plain = malloc(64 * f.v * sizeof *plain), *shown = malloc(64 * f.v * sizeof *shown);
    uint32_t calls = 0;
    for (uint32_t n = 1; n <= 50; n += 49) {
        pass_run(s, f.ids, n, 64, plain);
        pass_with_tap(t, f.ids, n, shown, look, &calls);
        rl_assert_same_bits(shown, plain, n * f.v);
    }
    assert_true(calls > 100);
    const rl_segment g = {t, f.ids, 3, RL_LOGITS_NONE};
    const rl_pass p = {.segments = &g, .n_segments = 1, .tap = stop_at_core};
    rl_error err = {0};
    rl_assert_fails(b->ops->forward(b, &p, &err), RL_ERR_CANCELLED, &err, "observer");
    b->ops->seq_reset(t);
    pass_run(t, f.ids, 1, 1, shown);
    b->ops->seq_reset(s);
    pass_run(s, f.ids, 1, 1, plain);
    rl_assert_same_bits(shown, plain, f.v);
    free(plain);
    free(shown);
    b->ops->seq_free(s);
    b->ops->seq_free(t);
    b->ops->close(b);
    rl_model_close(f.m);
}

static void test_switches(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool same_bits;
    } switches[] = {{"RL_PREFILL_ATTN_TILE", false},
                    {"RL_PREFILL_EXPERT_MM", true},
                    {"RL_PREFILL_STATE_SG", false},
                    {"RL_PREFILL_GEMM_TG", true}};
    fixture f = make(RL_Q8_0, false);
    const uint32_t n = 150;
    float *fast = logits_of(&f, (pass_options){.threads = 2}, n, n);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        setenv(switches[i].name, "0", 1);
        float *simple = logits_of(&f, (pass_options){.threads = 2}, n, n);
        unsetenv(switches[i].name);
        if (switches[i].same_bits)
            rl_assert_same_bits(simple, fast, n * f.v);
        else
            rl_assert_close(simple, fast, n * f.v, 2e-3, 0);
        free(simple);
    }
    free(fast);
    rl_model_close(f.m);
}

/* Every instruction set this machine has computes the same model. */
static void test_instruction_sets(void **state)
{
    (void)state;
    fixture f = make(RL_Q8_0, false);
    const uint32_t n = 100;
    float *scalar = logits_of(&f, (pass_options){.isa = "scalar"}, n, n);
    for (int isa = RL_ISA_AVX2; isa <= RL_ISA_AVX512; isa++) {
        rl_isa found;
        if (rl_isa_parse(rl_isa_name((rl_isa)isa), &found, NULL) != RL_OK) continue;
        float *other = logits_of(&f, (pass_options){.isa = rl_isa_name((rl_isa)isa)}, n, n);
        rl_assert_close(other, scalar, n * f.v, 2e-3, 0);
        free(other);
    }
    free(scalar);
    rl_model_close(f.m);
}

static void test_kv_f16(void **state)
{
    (void)state;
    fixture f = make(RL_F32, false);
    const uint32_t n = 120;
    for (uint32_t chunk = 1; chunk <= n; chunk += n - 1) {
        float *wide = logits_of(&f, (pass_options){.kv = RL_KV_F32}, n, chunk);
        float *narrow = logits_of(&f, (pass_options){.kv = RL_KV_F16}, n, chunk);
        const double rms = rl_relative_rms(narrow, wide, n * f.v);
        assert_true(rms > 0 && rms < 2e-2);
        free(wide);
        free(narrow);
    }
    rl_model_close(f.m);
}

/* Long rows are cut into splits; many rows at once take them one after another. */
static void test_splits(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.layers = "A";
    rl_model *m = tiny_open(&p);
    enum { N = 1200 };
    int32_t *ids = malloc(N * sizeof *ids);
    pass_ids(m, 3, ids, N);
    const size_t v = m->hp.n_vocab;
    float *tiles = malloc(N * v * sizeof *tiles), *rows = malloc(N * v * sizeof *rows), *last = malloc(v * sizeof *last);
    rl_backend *b = pass_open(m, (pass_options){.threads = 3, .max_rows = N});
    rl_seq *s = pass_seq(b, N);
    pass_run(s, ids, N, N, tiles);
    setenv("RL_PREFILL_ATTN_TILE", "0", 1);
    rl_backend *c = pass_open(m, (pass_options){.threads = 3, .max_rows = N});
    unsetenv("RL_PREFILL_ATTN_TILE");
    rl_seq *t = pass_seq(c, N);
    pass_run(t, ids, N, N, rows);
    rl_assert_close(rows, tiles, N * v, 1e-3, 0);
    c->ops->seq_reset(t);
    pass_run(t, ids, N - 1, N, NULL);
    pass_last(t, ids + N - 1, 1, last);
    rl_assert_same_bits(last, rows + (N - 1) * v, v);
    b->ops->seq_free(s);
    c->ops->seq_free(t);
    b->ops->close(b);
    c->ops->close(c);
    free(ids);
    free(tiles);
    free(rows);
    free(last);
    rl_model_close(m);
}

/* ---- Sequences --------------------------------------------------------------------------------------------------------- */

/* The length of a split grows at multiples of 16384 positions, so rows of one segment may have different numbers of splits. */
static void test_splits_of_different_length(void **state)
{
    (void)state;
    enum { START = 16380, ROWS = 8 };
    fixture f = make(RL_F32, false);
    pass_options o = {.backend = "cpu", .max_rows = ROWS, .threads = 2};
    rl_backend *b = pass_open(f.m, o);
    rl_seq *together = pass_seq(b, START + ROWS), *single = pass_seq(b, START + ROWS);
    cpu_seq *s = (cpu_seq *)together;
    const size_t floats = (size_t)2 * f.m->n_attention * f.m->hp.n_head_kv * s->capacity * f.m->hp.head_dim;
    for (size_t i = 0; i < floats; i++) /* keys and values of a context that nobody computed */
        ((float *)(void *)s->kv)[i] = (float)(i * 2654435761u >> 8 & 0xffff) / 65536.0f - 0.5f;
    s->pos = START;
    rl_error err = {0};
    rl_assert_ok(b->ops->seq_copy(single, together, &err), &err);
    float *want = malloc(ROWS * f.v * sizeof *want), *got = malloc(ROWS * f.v * sizeof *got);
    for (uint32_t i = 0; i < ROWS; i++)
        pass_with_tap(single, f.ids + i, 1, want + i * f.v, NULL, NULL);
    pass_with_tap(together, f.ids, ROWS, got, NULL, NULL);
    rl_assert_same_bits(got, want, ROWS * f.v);
    free(want);
    free(got);
    b->ops->seq_free(together);
    b->ops->seq_free(single);
    b->ops->close(b);
    rl_model_close(f.m);
}

static void test_snapshot_and_copy(void **state)
{
    (void)state;
    fixture f = make(RL_F32, false);
    rl_backend *b = pass_open(f.m, (pass_options){.threads = 2});
    const rl_backend_ops *ops = b->ops;
    rl_seq *s = pass_seq(b, CAPACITY), *copy = pass_seq(b, 100), *small = pass_seq(b, 10);
    float *first = malloc(30 * f.v * sizeof *first), *again = malloc(30 * f.v * sizeof *again);
    rl_error err = {0};
    rl_snapshot *snap = NULL;
    pass_run(s, f.ids, 40, 64, NULL);
    rl_assert_ok(ops->snapshot(s, &snap, &err), &err);
    rl_assert_ok(ops->seq_copy(copy, s, &err), &err);
    rl_assert_fails(ops->seq_copy(small, s, &err), RL_ERR_LIMIT, &err, "holds 10");
    pass_run(s, f.ids + 40, 30, 64, first);
    pass_run(copy, f.ids + 40, 30, 64, again);
    rl_assert_same_bits(again, first, 30 * f.v);
    pass_run(s, f.ids + 200, 25, 7, NULL);
    rl_assert_ok(ops->restore(s, snap, &err), &err);
    assert_int_equal(ops->seq_position(s), 40);
    pass_run(s, f.ids + 40, 30, 64, again);
    rl_assert_same_bits(again, first, 30 * f.v);
    rl_assert_fails(ops->restore(small, snap, &err), RL_ERR_ARGUMENT, &err, "position 40");
    assert_true(ops->snapshot_bytes(b) > 1000);
    ops->snapshot_free(snap);
    ops->seq_free(s);
    ops->seq_free(copy);
    ops->seq_free(small);
    ops->close(b);
    free(first);
    free(again);
    rl_model_close(f.m);
}

/* Bytes from either backend continue in the other; the same backend continues with the same bits. */
static void test_export_import(void **state)
{
    (void)state;
    fixture f = make(RL_F32, true);
    pass_options o = {.threads = 2};
    rl_backend *b = pass_open(f.m, o);
    o.backend = "ref";
    rl_backend *ref = pass_open(f.m, o);
    o = (pass_options){.kv = RL_KV_F16};
    rl_backend *narrow = pass_open(f.m, o);
    const rl_backend_ops *ops = b->ops;
    rl_seq *s = pass_seq(b, CAPACITY), *t = pass_seq(b, CAPACITY), *r = pass_seq(ref, CAPACITY),
           *h = pass_seq(narrow, CAPACITY);
    rl_seq *tight = pass_seq(b, 39);
    float *first = malloc(20 * f.v * sizeof *first), *again = malloc(20 * f.v * sizeof *again);
    float *hidden = malloc(40 * f.m->hp.n_embd * sizeof *hidden);
    const rl_segment g = {s, f.ids, 40, RL_LOGITS_NONE};
    const rl_pass p = {.segments = &g, .n_segments = 1, .hidden = hidden};
    rl_error err = {0};
    rl_assert_ok(ops->forward(b, &p, &err), &err);
    rl_assert_ok(ops->mtp(b, s, f.ids + 1, hidden, 39, NULL, NULL, &err), &err);
    pass_bytes bytes = {0};
    rl_assert_ok(ops->seq_export(s, pass_put, &bytes, &err), &err);
    rl_assert_ok(ops->seq_import(t, pass_get, &bytes, &err), &err);
    assert_int_equal(bytes.at, bytes.size);
    assert_int_equal(ops->seq_position(t), 40);
    assert_int_equal(ops->mtp_position(t), 39);
    bytes.at = 0;
    rl_assert_ok(ref->ops->seq_import(r, pass_get, &bytes, &err), &err);
    bytes.at = 0;
    rl_assert_ok(ops->seq_import(h, pass_get, &bytes, &err), &err);
    bytes.at = 0;
    rl_assert_fails(ops->seq_import(tight, pass_get, &bytes, &err), RL_ERR_LIMIT, &err, "40");
    pass_run(s, f.ids + 40, 20, 64, first);
    pass_run(t, f.ids + 40, 20, 64, again);
    rl_assert_same_bits(again, first, 20 * f.v);
    pass_run(r, f.ids + 40, 20, 64, again);
    rl_assert_close(first, again, 20 * f.v, 2e-3, 0);
    pass_run(h, f.ids + 40, 20, 64, again);
    assert_true(rl_relative_rms(again, first, 20 * f.v) < 2e-2);
    /* From the judge back. */
    ref->ops->seq_reset(r);
    pass_run(r, f.ids, 40, 64, NULL);
    bytes.size = bytes.at = 0;
    rl_assert_ok(ref->ops->seq_export(r, pass_put, &bytes, &err), &err);
    rl_assert_ok(ops->seq_import(t, pass_get, &bytes, &err), &err);
    pass_run(t, f.ids + 40, 20, 64, again);
    rl_assert_close(again, first, 20 * f.v, 2e-3, 0);
    /* Cut short: an error, and a sequence as new. */
    bytes.at = 0;
    bytes.size /= 2;
    assert_int_not_equal(ops->seq_import(t, pass_get, &bytes, &err), RL_OK);
    assert_int_equal(ops->seq_position(t), 0);
    pass_last(t, f.ids, 40, again);
    ops->seq_reset(s);
    pass_last(s, f.ids, 40, first);
    rl_assert_same_bits(again, first, f.v);
    free(bytes.data);
    free(first);
    free(again);
    free(hidden);
    ops->seq_free(s);
    ops->seq_free(t);
    ops->seq_free(tight);
    ops->seq_free(h);
    ref->ops->seq_free(r);
    ops->close(b);
    ops->close(narrow);
    ref->ops->close(ref);
    rl_model_close(f.m);
}

static void test_mtp(void **state)
{
    (void)state;
    fixture f = make(RL_Q8_0, true);
    const uint32_t n = 40, e = f.m->hp.n_embd;
    pass_options o = {.threads = 2, .max_rows = 16};
    rl_backend *b = pass_open(f.m, o);
    o.backend = "ref";
    rl_backend *ref = pass_open(f.m, o);
    rl_seq *s = pass_seq(b, CAPACITY), *r = pass_seq(ref, CAPACITY);
    float *hidden = malloc(n * e * sizeof *hidden), *a = malloc(n * f.v * sizeof *a), *j = malloc(n * f.v * sizeof *j);
    float *ah = malloc(n * e * sizeof *ah), *jh = malloc(n * e * sizeof *jh);
    rl_rng rng = rl_rng_seed(5);
    rl_rng_fill_normal(&rng, hidden, n * e, 1.0f);
    rl_error err = {0};
    rl_assert_ok(b->ops->mtp(b, s, f.ids, hidden, n, a, ah, &err), &err);
    rl_assert_ok(ref->ops->mtp(ref, r, f.ids, hidden, n, j, jh, &err), &err);
    assert_int_equal(b->ops->mtp_position(s), n);
    rl_assert_close(a, j, n * f.v, 2e-3, 0);
    rl_assert_close(ah, jh, n * e, 2e-3, 0);
    /* Dropping entries and running them again gives them again. */
    b->ops->mtp_truncate(s, n - 3);
    assert_int_equal(b->ops->mtp_position(s), n - 3);
    rl_assert_ok(b->ops->mtp(b, s, f.ids + n - 3, hidden + (n - 3) * e, 3, j, NULL, &err), &err);
    rl_assert_close(j, a + (n - 3) * f.v, 3 * f.v, 1e-4, 0);
    rl_assert_fails(b->ops->mtp(b, s, f.ids, hidden, CAPACITY, NULL, NULL, &err), RL_ERR_LIMIT, &err, "MTP");
    free(hidden);
    free(a);
    free(j);
    free(ah);
    free(jh);
    b->ops->seq_free(s);
    ref->ops->seq_free(r);
    b->ops->close(b);
    ref->ops->close(ref);
    rl_model_close(f.m);
}

static void test_refusals(void **state)
{
    (void)state;
    fixture f = make(RL_F32, false);
    rl_backend *b = pass_open(f.m, (pass_options){.max_rows = 8});
    rl_seq *s = pass_seq(b, 12);
    rl_error err = {0};
    rl_segment g = {s, f.ids, 9, RL_LOGITS_NONE};
    const rl_pass p = {.segments = &g, .n_segments = 1};
    rl_assert_fails(b->ops->forward(b, &p, &err), RL_ERR_ARGUMENT, &err, "more than 8");
    pass_run(s, f.ids, 8, 8, NULL);
    g.n = 5;
    rl_assert_fails(b->ops->forward(b, &p, &err), RL_ERR_LIMIT, &err, "12");
    assert_int_equal(b->ops->seq_position(s), 8);
    rl_assert_fails(b->ops->mtp(b, s, f.ids, NULL, 1, NULL, NULL, &err), RL_ERR_UNSUPPORTED, &err, "MTP");
    b->ops->seq_free(s);
    b->ops->close(b);
    rl_model_close(f.m);
}

static void test_profile(void **state)
{
    (void)state;
    fixture f = make(RL_F32, false);
    rl_backend *b = pass_open(f.m, (pass_options){.profile = true, .threads = 2});
    rl_seq *s = pass_seq(b, CAPACITY);
    pass_run(s, f.ids, 60, 50, NULL);
    pass_run(s, f.ids, 3, 1, NULL);
    rl_profile prefill, decode;
    assert_true(b->ops->profile(b, false, &prefill));
    assert_true(b->ops->profile(b, true, &decode));
    assert_int_equal(prefill.passes, 2);
    assert_int_equal(prefill.rows, 60);
    assert_int_equal(decode.passes, 3);
    double sum = 0;
    uint64_t flops = 0;
    for (uint32_t i = 0; i < decode.n_stages; i++) {
        assert_non_null(decode.stages[i].name);
        sum += decode.stages[i].seconds;
        flops += decode.stages[i].flops;
    }
    assert_true(sum > 0 && fabs(sum - decode.seconds) < 1e-9);
    assert_true(flops > 3ull * 2 * 4 * 64 * 64);
    b->ops->seq_free(s);
    b->ops->close(b);
    b = pass_open(f.m, (pass_options){0});
    assert_false(b->ops->profile(b, true, &decode));
    b->ops->close(b);
    rl_model_close(f.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_exact),
        cmocka_unit_test(test_stages_fast),
        cmocka_unit_test(test_thread_counts),
        cmocka_unit_test(test_chunk_sizes),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_tap_changes_nothing),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_kv_f16),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_splits_of_different_length),
        cmocka_unit_test(test_snapshot_and_copy),
        cmocka_unit_test(test_export_import),
        cmocka_unit_test(test_mtp),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
