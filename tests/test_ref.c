/* Invariances of the reference backend on a random model: what must not change a bit does not. */
#include "backend/backend.h"
#include "backend/ref/ref.h"
#include "backend/state.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_IDS = 41 };

static int32_t ids[N_IDS];
static rl_model *model;
static rl_backend *backend;
static const rl_backend_ops *ops;

static int setup(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults();
    p.layers = "RARRA";
    p.mtp = true;
    model = tiny_open(&p);
    rl_error err;
    const rl_backend_options options = {.max_rows = 64, .threads = 2};
    ops = rl_backend_find("ref");
    rl_assert_ok(ops->open(model, &options, &backend, &err), &err);
    rl_rng rng = rl_rng_seed(7);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)rl_rng_below(&rng, model->hp.n_vocab);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ops->close(backend);
    rl_model_close(model);
    return 0;
}

static rl_seq *new_seq(uint32_t capacity)
{
    rl_seq *s;
    rl_error err;
    rl_assert_ok(ops->seq_create(backend, capacity, &s, &err), &err);
    return s;
}

static void run(rl_seq *s, const int32_t *tokens, uint32_t n, float *logits, float *hidden)
{
    rl_error err;
    const rl_segment segment = {s, tokens, n, logits ? RL_LOGITS_ALL : RL_LOGITS_NONE};
    const rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = logits, .hidden = hidden};
    rl_assert_ok(ops->forward(backend, &pass, &err), &err);
}

static float *rows(uint32_t n, uint32_t width)
{
    float *p = calloc((size_t)n * width, sizeof *p);
    assert_non_null(p);
    return p;
}

/* Logits of all ids in one pass: what everything is compared with. */
static float *all_at_once(void)
{
    float *logits = rows(N_IDS, model->hp.n_vocab);
    rl_seq *s = new_seq(N_IDS);
    run(s, ids, N_IDS, logits, NULL);
    ops->seq_free(s);
    return logits;
}

static void chunks_do_not_matter(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab, sizes[] = {1, 2, 3, 7, 16, 40};
    float *want = all_at_once(), *got = rows(N_IDS, v);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rl_seq *s = new_seq(N_IDS);
        for (uint32_t at = 0; at < N_IDS; at += sizes[i])
            run(s, ids + at, N_IDS - at < sizes[i] ? N_IDS - at : sizes[i], got + (size_t)at * v, NULL);
        rl_assert_same_bits(got, want, (size_t)N_IDS * v);
        assert_int_equal(ops->seq_position(s), N_IDS);
        ops->seq_free(s);
    }
    free(want);
    free(got);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab;
    float *want = all_at_once(), *got = rows(N_IDS, v);
    rl_backend *other;
    rl_seq *s;
    rl_error err;
    const rl_backend_options options = {.max_rows = N_IDS, .threads = 5};
    rl_assert_ok(ops->open(model, &options, &other, &err), &err);
    rl_assert_ok(ops->seq_create(other, N_IDS, &s, &err), &err);
    const rl_segment segment = {s, ids, N_IDS, RL_LOGITS_ALL};
    const rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = got};
    rl_assert_ok(ops->forward(other, &pass, &err), &err);
    rl_assert_same_bits(got, want, (size_t)N_IDS * v);
    ops->seq_free(s);
    ops->close(other);
    free(want);
    free(got);
}

/* Three sequences at different positions in one pass, each wanting something else. */
static void segments_do_not_meet(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab, e = model->hp.n_embd;
    float *want = all_at_once(), *got = rows(N_IDS, v), *hidden = rows(N_IDS, e), *alone = rows(N_IDS, e);
    rl_seq *a = new_seq(N_IDS), *b = new_seq(N_IDS), *c = new_seq(N_IDS), *d = new_seq(N_IDS);
    rl_error err;
    run(d, ids, N_IDS, NULL, alone);
    run(b, ids, 10, NULL, NULL);
    run(c, ids, 30, NULL, NULL);
    const rl_segment segments[] = {
        {a, ids, 5, RL_LOGITS_LAST}, {b, ids + 10, 7, RL_LOGITS_ALL}, {c, ids + 30, 1, RL_LOGITS_NONE}};
    const rl_pass pass = {.segments = segments, .n_segments = 3, .logits = got, .hidden = hidden};
    rl_assert_ok(ops->forward(backend, &pass, &err), &err);
    rl_assert_same_bits(got, want + 4 * v, v);
    rl_assert_same_bits(got + v, want + 10 * v, 7 * v);
    rl_assert_same_bits(hidden, alone, 5 * e);
    rl_assert_same_bits(hidden + 5 * e, alone + 10 * e, 7 * e);
    rl_assert_same_bits(hidden + 12 * e, alone + 30 * e, e);
    run(a, ids + 5, 1, got, NULL);
    rl_assert_same_bits(got, want + 5 * v, v);
    run(c, ids + 31, 1, got, NULL);
    rl_assert_same_bits(got, want + 31 * v, v);
    ops->seq_free(a);
    ops->seq_free(b);
    ops->seq_free(c);
    ops->seq_free(d);
    free(want);
    free(got);
    free(hidden);
    free(alone);
}

static void snapshots_rewind(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab;
    float *want = all_at_once(), *got = rows(N_IDS, v);
    const int32_t other[] = {5, 6, 7};
    rl_seq *s = new_seq(N_IDS);
    rl_snapshot *snap;
    rl_error err;
    run(s, ids, 20, NULL, NULL);
    rl_assert_ok(ops->snapshot(s, &snap, &err), &err);
    run(s, other, 3, NULL, NULL);
    rl_assert_ok(ops->restore(s, snap, &err), &err);
    assert_int_equal(ops->seq_position(s), 20);
    run(s, ids + 20, N_IDS - 20, got, NULL);
    rl_assert_same_bits(got, want + 20 * v, (size_t)(N_IDS - 20) * v);
    /* A copy shares the first positions, so it can be rewound too; a shorter sequence cannot. */
    rl_seq *copy = new_seq(N_IDS);
    rl_assert_ok(ops->seq_copy(copy, s, &err), &err);
    assert_int_equal(ops->seq_position(copy), N_IDS);
    rl_assert_ok(ops->restore(copy, snap, &err), &err);
    run(copy, ids + 20, 1, got, NULL);
    rl_assert_same_bits(got, want + 20 * v, v);
    ops->seq_reset(copy);
    rl_assert_fails(ops->restore(copy, snap, &err), RL_ERR_ARGUMENT, &err, "position 20");
    ops->snapshot_free(snap);
    ops->seq_free(s);
    ops->seq_free(copy);
    free(want);
    free(got);
}

static void copies_part_ways(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab;
    float *want = all_at_once(), *got = rows(N_IDS, v);
    const int32_t other[] = {9};
    rl_seq *s = new_seq(N_IDS), *copy = new_seq(30), *small = new_seq(3);
    rl_error err;
    run(s, ids, 15, NULL, NULL);
    rl_assert_ok(ops->seq_copy(copy, s, &err), &err);
    run(s, other, 1, NULL, NULL);
    run(copy, ids + 15, 10, got, NULL);
    rl_assert_same_bits(got, want + 15 * v, 10 * v);
    rl_assert_fails(ops->seq_copy(small, s, &err), RL_ERR_LIMIT, &err, "context of 3");
    ops->seq_reset(s);
    run(s, ids, 4, got, NULL);
    rl_assert_same_bits(got, want, 4 * v);
    ops->seq_free(s);
    ops->seq_free(copy);
    ops->seq_free(small);
    free(want);
    free(got);
}

/* ---- Export and import ------------------------------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t data[1 << 20];
    size_t n, at;
} bytes;

static rl_status put(void *ctx, const void *data, size_t n, rl_error *err)
{
    bytes *b = ctx;
    if (n > sizeof b->data - b->n) return rl_fail(err, RL_ERR_LIMIT, "full");
    memcpy(b->data + b->n, data, n);
    b->n += n;
    return RL_OK;
}

static rl_status get(void *ctx, void *data, size_t n, rl_error *err)
{
    bytes *b = ctx;
    if (n > b->n - b->at) return rl_fail(err, RL_ERR_IO, "the saved sequence ends early");
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return RL_OK;
}

static void exports_come_back(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab;
    const rl_hparams *hp = &model->hp;
    static bytes b;
    float *want = all_at_once(), *got = rows(N_IDS, v), *hidden = rows(N_IDS, hp->n_embd), *mtp = rows(2, v);
    rl_seq *s = new_seq(N_IDS), *back = new_seq(N_IDS);
    rl_error err;
    run(s, ids, 25, NULL, hidden);
    rl_assert_ok(ops->mtp(backend, s, ids + 1, hidden, 24, NULL, NULL, &err), &err);
    rl_assert_ok(ops->seq_export(s, put, &b, &err), &err);
    const size_t recurrent = 3 * ((size_t)3 * hp->dn_conv_dim + (size_t)hp->dn_value_heads * hp->dn_head_dim * hp->dn_head_dim);
    assert_int_equal(b.n, 64 + 8 * (recurrent + 2 * (2 * 25 + 24) * (size_t)hp->n_head_kv * hp->head_dim));
    run(back, ids + 3, 9, NULL, NULL); /* whatever was there goes away */
    rl_assert_ok(ops->seq_import(back, get, &b, &err), &err);
    assert_int_equal(b.at, b.n);
    assert_int_equal(ops->seq_position(back), 25);
    assert_int_equal(ops->mtp_position(back), 24);
    run(back, ids + 25, N_IDS - 25, got, NULL);
    rl_assert_same_bits(got, want + 25 * v, (size_t)(N_IDS - 25) * v);
    rl_assert_ok(ops->mtp(backend, s, ids + 25, hidden + 24 * hp->n_embd, 1, mtp, NULL, &err), &err);
    rl_assert_ok(ops->mtp(backend, back, ids + 25, hidden + 24 * hp->n_embd, 1, mtp + v, NULL, &err), &err);
    rl_assert_same_bits(mtp, mtp + v, v);

    /* Cut anywhere, or of another shape: refused, and the sequence is empty and usable. */
    const size_t n = b.n;
    for (size_t cut = 0; cut < n; cut += n / 37) {
        b.n = cut;
        b.at = 0;
        rl_assert_fails(ops->seq_import(back, get, &b, &err), RL_ERR_IO, &err, "ends early");
        assert_int_equal(ops->seq_position(back), 0);
    }
    b.n = n;
    for (size_t field = 0; field < 14; field++) {
        const uint8_t old = b.data[8 + 4 * field];
        b.data[8 + 4 * field] = 0xEE;
        b.at = 0;
        assert_int_not_equal(ops->seq_import(back, get, &b, &err), RL_OK);
        b.data[8 + 4 * field] = old;
    }
    run(back, ids, 3, got, NULL);
    rl_assert_same_bits(got, want, 3 * v);
    rl_seq *small = new_seq(24);
    b.at = 0;
    rl_assert_fails(ops->seq_import(small, get, &b, &err), RL_ERR_LIMIT, &err,
                    "has 25 positions, expected at most the context of 24");
    ops->seq_free(small);
    ops->seq_free(s);
    ops->seq_free(back);
    free(want);
    free(got);
    free(hidden);
    free(mtp);
}

/* Numbers of another backend's kinds are read and rounded to ours. */
static void number_kinds_convert(void **state)
{
    (void)state;
    static bytes b;
    rl_error err;
    const float f[3] = {1.5F, -0.25F, 3e-5F};
    const uint16_t h[2] = {0x3C00, 0xC100}; /* 1, -2.5 */
    double d[3];
    uint16_t back[2];
    b.n = b.at = 0;
    rl_assert_ok(rl_state_put(RL_ELEM_F32, f, 3, put, &b, &err), &err);
    rl_assert_ok(rl_state_put(RL_ELEM_F16, h, 2, put, &b, &err), &err);
    assert_int_equal(b.n, 16);
    rl_assert_ok(rl_state_get(RL_ELEM_F32, RL_ELEM_F64, d, 3, get, &b, &err), &err);
    assert_true(d[0] == 1.5 && d[1] == -0.25 && d[2] == (double)3e-5F);
    rl_assert_ok(rl_state_get(RL_ELEM_F16, RL_ELEM_F64, d, 2, get, &b, &err), &err);
    assert_true(d[0] == 1 && d[1] == -2.5);
    b.n = b.at = 0;
    rl_assert_ok(rl_state_put(RL_ELEM_F64, d, 2, put, &b, &err), &err);
    rl_assert_ok(rl_state_get(RL_ELEM_F64, RL_ELEM_F16, back, 2, get, &b, &err), &err);
    assert_memory_equal(back, h, sizeof h);
}

/* ---- MTP --------------------------------------------------------------------------------------------------------------- */

static void mtp_chunks_and_truncation(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab, e = model->hp.n_embd, n = N_IDS - 1;
    float *hidden = rows(N_IDS, e), *want = rows(n, v), *got = rows(n, v), *out = rows(n, e), *again = rows(n, e);
    rl_seq *s = new_seq(N_IDS);
    rl_error err;
    run(s, ids, N_IDS, NULL, hidden);
    rl_assert_ok(ops->mtp(backend, s, ids + 1, hidden, n, want, out, &err), &err);
    assert_int_equal(ops->mtp_position(s), n);
    ops->mtp_truncate(s, 0);
    for (uint32_t i = 0; i < n; i++)
        rl_assert_ok(
            ops->mtp(backend, s, ids + 1 + i, hidden + (size_t)i * e, 1, got + (size_t)i * v, again + (size_t)i * e, &err),
            &err);
    rl_assert_same_bits(got, want, (size_t)n * v);
    rl_assert_same_bits(again, out, (size_t)n * e);
    ops->mtp_truncate(s, 11);
    ops->mtp_truncate(s, 20);
    assert_int_equal(ops->mtp_position(s), 11);
    rl_assert_ok(ops->mtp(backend, s, ids + 12, hidden + 11 * e, n - 11, got, NULL, &err), &err);
    rl_assert_same_bits(got, want + 11 * v, (size_t)(n - 11) * v);
    /* max_rows does not bound the pairs of one call */
    rl_backend *narrow;
    rl_seq *t;
    const rl_backend_options options = {.max_rows = 7, .threads = 1};
    rl_assert_ok(ops->open(model, &options, &narrow, &err), &err);
    rl_assert_ok(ops->seq_create(narrow, N_IDS, &t, &err), &err);
    rl_assert_ok(ops->mtp(narrow, t, ids + 1, hidden, n, got, NULL, &err), &err);
    rl_assert_same_bits(got, want, (size_t)n * v);
    ops->seq_free(t);
    ops->close(narrow);
    ops->seq_free(s);
    free(hidden);
    free(want);
    free(got);
    free(out);
    free(again);
}

/* ---- Limits and taps ----------------------------------------------------------------------------------------------------- */

static void limits_are_errors(void **state)
{
    (void)state;
    rl_error err;
    rl_seq *s = new_seq(4);
    float *logits = rows(5, model->hp.n_vocab);
    rl_segment segment = {s, ids, 5, RL_LOGITS_NONE};
    const rl_pass pass = {.segments = &segment, .n_segments = 1};
    rl_assert_fails(ops->forward(backend, &pass, &err), RL_ERR_LIMIT, &err, "its context is 4");
    segment.n = 65;
    rl_assert_fails(ops->forward(backend, &pass, &err), RL_ERR_ARGUMENT, &err, "more than 64 rows");
    segment.n = 2;
    segment.want = RL_LOGITS_LAST;
    rl_assert_fails(ops->forward(backend, &pass, &err), RL_ERR_ARGUMENT, &err, "no room");
    rl_assert_fails(ops->mtp(backend, s, ids, logits, 5, NULL, NULL, &err), RL_ERR_LIMIT, &err, "its context is 4");
    assert_int_equal(ops->seq_position(s), 0);
    ops->seq_free(s);
    free(logits);
}

typedef struct watcher {
    uint32_t seen[RL_STAGE_COUNT];
    rl_stage stop, force;
    int32_t forced_layer;
} watcher;

static rl_status watch(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width, float *data)
{
    watcher *w = ctx;
    w->seen[stage] += n_rows;
    assert_int_equal(width, rl_stage_width(&model->hp, stage));
    assert_true(row0 + n_rows <= 6);
    if (stage == w->stop) return RL_ERR_CANCELLED;
    if (stage == w->force && (int32_t)layer == w->forced_layer)
        for (uint32_t t = 0; t < n_rows; t++)
            for (uint32_t i = 0; i < width; i++)
                data[t * width + i] = stage == RL_STAGE_ROUTER_IDS ? (float)i : 0;
    return RL_OK;
}

static void taps_see_and_force(void **state)
{
    (void)state;
    const uint32_t v = model->hp.n_vocab;
    float *want = all_at_once(), *got = rows(6, v), *forced = rows(6, v);
    rl_seq *s = new_seq(6);
    rl_error err;
    watcher w = {.stop = RL_STAGE_COUNT, .force = RL_STAGE_COUNT};
    const rl_segment segment = {s, ids, 6, RL_LOGITS_ALL};
    rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = got, .tap = watch, .tap_ctx = &w};
    rl_assert_ok(ops->forward(backend, &pass, &err), &err);
    rl_assert_same_bits(got, want, 6 * v); /* watching changes nothing */
    for (int i = 0; i < RL_STAGE_COUNT; i++) {
        const bool dn = i >= RL_STAGE_DN_QKV && i <= RL_STAGE_DN_GATED, at = i >= RL_STAGE_AT_QGATE && i <= RL_STAGE_AT_GATED;
        const bool once = i == RL_STAGE_EMBED || i == RL_STAGE_FINAL_NORM || i == RL_STAGE_LOGITS;
        assert_int_equal(w.seen[i], 6 * (once ? 1 : dn ? 3 : at ? 2 : 5));
        assert_true(strlen(rl_stage_name((rl_stage)i)) > 3);
    }
    /* Every row's hidden state forced to zero: all logits are zero. */
    ops->seq_reset(s);
    w.force = RL_STAGE_FINAL_NORM;
    pass.logits = forced;
    rl_assert_ok(ops->forward(backend, &pass, &err), &err);
    for (size_t i = 0; i < 6 * v; i++)
        assert_true(forced[i] == 0);
    /* Forced experts are used. */
    ops->seq_reset(s);
    w.force = RL_STAGE_ROUTER_IDS;
    rl_assert_ok(ops->forward(backend, &pass, &err), &err);
    assert_true(rl_max_abs_diff(forced, got, 6 * v) > 1e-3);
    /* Stopping ends the pass with the watcher's status. */
    ops->seq_reset(s);
    w.stop = RL_STAGE_AT_CORE;
    rl_assert_fails(ops->forward(backend, &pass, &err), RL_ERR_CANCELLED, &err, "at_core");
    ops->seq_free(s);
    free(want);
    free(got);
    free(forced);
}

/* Layouts and quantised types go through the same formulas. */
static void layouts_give_the_same_bits(void **state)
{
    (void)state;
    tiny_params p = tiny_defaults(), q = p;
    q.legacy_ssm_in = q.fused_gate_up = q.fused_attention = true;
    float logits[2][3 * 320];
    for (int i = 0; i < 2; i++) {
        rl_model *m = tiny_open(i ? &q : &p);
        rl_backend *b;
        rl_seq *s;
        rl_error err;
        const rl_backend_options options = {.max_rows = 3, .threads = 1};
        rl_assert_ok(ops->open(m, &options, &b, &err), &err);
        rl_assert_ok(ops->seq_create(b, 3, &s, &err), &err);
        const rl_segment segment = {s, ids, 3, RL_LOGITS_ALL};
        const rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = logits[i]};
        rl_assert_ok(ops->forward(b, &pass, &err), &err);
        ops->seq_free(s);
        ops->close(b);
        rl_model_close(m);
    }
    rl_assert_same_bits(logits[0], logits[1], 3 * 320);
    double spread = 0;
    for (int i = 0; i < 3 * 320; i++)
        spread = fmax(spread, fabs((double)logits[0][i]));
    assert_true(spread > 0.1 && spread < 1e3); /* a random model of sane size */
}

static void names_and_memory(void **state)
{
    (void)state;
    assert_ptr_equal(rl_backend_find("ref"), ops);
    assert_null(rl_backend_find("no such backend"));
    assert_non_null(rl_backend_find("auto"));
    bool listed = false;
    for (const rl_backend_ops *const *b = rl_backend_list(); *b; b++)
        listed |= *b == ops;
    assert_true(listed);
    rl_backend_memory m;
    ops->memory(backend, &m);
    assert_int_equal(m.seq_fixed, 3 * (3 * 128 + 4 * 16 * 16) * sizeof(double));
    assert_int_equal(m.seq_per_token, 3 * 2 * 2 * 32 * sizeof(double));
    assert_true(m.scratch > 64 * 64 * sizeof(double) && m.weights == 0);
    assert_true(ops->snapshot_bytes(backend) >= m.seq_fixed);
}

/* An epsilon of the inputs' size shows where it stands: with the mean of the squares (8), with their sum (128). */
static void epsilon_stands_under_the_root(void **state)
{
    (void)state;
    double x[16], y[16];
    float w[16];
    for (int i = 0; i < 16; i++) {
        x[i] = i % 2 ? -sqrt(8) : sqrt(8);
        w[i] = (float)(i + 1);
    }
    ref_rms_norm(x, w, 16, 8, y);
    for (int i = 0; i < 16; i++)
        assert_true(fabs(y[i] - x[i] / 4 * (i + 1)) < 1e-12);
    ref_l2_norm(x, 16, 16, y);
    for (int i = 0; i < 16; i++)
        assert_true(fabs(y[i] - x[i] / 12) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epsilon_stands_under_the_root),
        cmocka_unit_test(chunks_do_not_matter),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(segments_do_not_meet),
        cmocka_unit_test(snapshots_rewind),
        cmocka_unit_test(copies_part_ways),
        cmocka_unit_test(exports_come_back),
        cmocka_unit_test(number_kinds_convert),
        cmocka_unit_test(mtp_chunks_and_truncation),
        cmocka_unit_test(limits_are_errors),
        cmocka_unit_test(taps_see_and_force),
        cmocka_unit_test(layouts_give_the_same_bits),
        cmocka_unit_test(names_and_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
