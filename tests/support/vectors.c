/* tests/support/vectors: loading reference values and running a backend against them. */
#include "support/vectors.h"
#include "support/support.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Loading ----------------------------------------------------------------------------------------------------------- */

static char *read_named(const char *dir, const char *name, const char *suffix, size_t *size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    return rl_test_read(path, size);
}

static int32_t *read_ids(const char *dir, const char *name, const char *suffix, uint32_t *n)
{
    size_t size;
    char *text = read_named(dir, name, suffix, &size), *at = text, *end;
    int32_t *ids = malloc((size / 2 + 1) * sizeof *ids);
    assert_non_null(ids);
    *n = 0;
    for (long v = strtol(at, &end, 10); end != at; v = strtol(at, &end, 10)) {
        ids[(*n)++] = (int32_t)v;
        at = end;
    }
    free(text);
    return ids;
}

void vec_prompt_load(vec_prompt *p, const char *dir, const char *name, uint32_t n_vocab)
{
    size_t size;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->n_vocab = n_vocab;
    p->ids = read_ids(dir, name, ".ids", &p->n_ids);
    p->greedy = read_ids(dir, name, ".greedy", &p->n_greedy);
    p->logits = (float *)read_named(dir, name, ".logits.f32", &size);
    p->n_rows = (uint32_t)(size / sizeof(float) / n_vocab);
    assert_true(p->n_rows > 0 && p->n_rows <= p->n_ids && p->n_greedy > 0);
}

void vec_prompt_free(vec_prompt *p)
{
    free(p->ids);
    free(p->greedy);
    free(p->logits);
}

void vec_stages_load(vec_stages *s, const char *dir, uint32_t n_embd)
{
    size_t size;
    memset(s, 0, sizeof *s);
    s->values = (float *)read_named(dir, "stages", ".f32", &size);
    s->n_values = size / sizeof(float);
    char *text = read_named(dir, "stages", ".tsv", NULL), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (*line == '#') continue;
        assert_true(s->n < sizeof s->entry / sizeof *s->entry);
        assert_int_equal(sscanf(line, "%31s %zu %zu", s->entry[s->n].name, &s->entry[s->n].first, &s->entry[s->n].count), 3);
        assert_true(s->entry[s->n].first + s->entry[s->n].count <= s->n_values);
        s->n++;
    }
    free(text);
    size_t count = 0;
    assert_non_null(vec_stage(s, "embed", &count));
    s->n_ids = count / n_embd;
}

void vec_stages_free(vec_stages *s)
{
    free(s->values);
}

const float *vec_stage(const vec_stages *s, const char *name, size_t *count)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->entry[i].name, name) == 0) {
            if (count) *count = s->entry[i].count;
            return s->values + s->entry[i].first;
        }
    return NULL;
}

/* ---- Logits and greedy continuation ----------------------------------------------------------------------------------------
 */

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void compare_row(const float *x, const float *want, uint32_t n, vec_result *out)
{
    out->max_abs = fmax(out->max_abs, rl_max_abs_diff(x, want, n));
    out->argmax_differ += argmax(x, n) != argmax(want, n);
    out->rows++;
}

static void forward(rl_backend *b, rl_seq *s, const int32_t *ids, uint32_t n, rl_logits_want want, float *logits, float *hidden)
{
    rl_error err;
    const rl_segment segment = {s, ids, n, want};
    const rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = logits, .hidden = hidden};
    rl_assert_ok(b->ops->forward(b, &pass, &err), &err);
}

void vec_judge(rl_backend *b, const vec_prompt *p, uint32_t chunk, uint32_t n_greedy, vec_result *out)
{
    rl_error err;
    rl_seq *s;
    memset(out, 0, sizeof *out);
    float *logits = malloc((size_t)chunk * p->n_vocab * sizeof *logits);
    assert_non_null(logits);
    rl_assert_ok(b->ops->seq_create(b, p->n_ids + n_greedy, &s, &err), &err);
    const uint32_t first = p->n_ids - p->n_rows;
    const float *last = logits;
    for (uint32_t at = 0; at < p->n_ids; at += chunk) {
        const uint32_t n = p->n_ids - at < chunk ? p->n_ids - at : chunk;
        const bool judged = at + n > first;
        forward(b, s, p->ids + at, n, judged ? RL_LOGITS_ALL : RL_LOGITS_NONE, logits, NULL);
        for (uint32_t t = at < first ? first : at; judged && t < at + n; t++)
            compare_row(logits + (size_t)(t - at) * p->n_vocab, p->logits + (size_t)(t - first) * p->n_vocab, p->n_vocab, out);
        last = logits + (size_t)(n - 1) * p->n_vocab;
    }
    for (; out->n_greedy < n_greedy && out->n_greedy < p->n_greedy; out->n_greedy++) {
        const int32_t id = (int32_t)argmax(last, p->n_vocab);
        out->greedy_differ += id != p->greedy[out->n_greedy];
        if (out->n_greedy + 1 == n_greedy) continue;
        forward(b, s, &id, 1, RL_LOGITS_LAST, logits, NULL);
        last = logits;
    }
    b->ops->seq_free(s);
    free(logits);
}

void vec_judge_mtp(rl_backend *b, const vec_prompt *p, const char *dir, uint32_t chunk, vec_result *out)
{
    rl_error err;
    rl_seq *s;
    size_t size;
    const uint32_t e = b->model->hp.n_embd, pairs = p->n_ids - 1;
    memset(out, 0, sizeof *out);
    float *want = (float *)read_named(dir, p->name, ".mtp.f32", &size);
    const uint32_t rows = (uint32_t)(size / sizeof(float) / p->n_vocab);
    float *hidden = malloc((size_t)p->n_ids * e * sizeof *hidden),
          *logits = malloc((size_t)pairs * p->n_vocab * sizeof *logits);
    assert_true(hidden && logits && rows > 0 && rows <= pairs);
    rl_assert_ok(b->ops->seq_create(b, p->n_ids, &s, &err), &err);
    for (uint32_t at = 0; at < p->n_ids; at += chunk)
        forward(b, s, p->ids + at, p->n_ids - at < chunk ? p->n_ids - at : chunk, RL_LOGITS_NONE, NULL,
                hidden + (size_t)at * e);
    rl_assert_ok(b->ops->mtp(b, s, p->ids + 1, hidden, pairs, logits, NULL, &err), &err);
    assert_int_equal(b->ops->mtp_position(s), pairs);
    for (uint32_t i = 0; i < rows; i++)
        compare_row(logits + (size_t)(pairs - rows + i) * p->n_vocab, want + (size_t)i * p->n_vocab, p->n_vocab, out);
    b->ops->seq_free(s);
    free(hidden);
    free(logits);
    free(want);
}

/* ---- Stages ------------------------------------------------------------------------------------------------------------ */

typedef struct stage_name {
    const char *name; /* after "L<layer>." when per_layer */
    rl_stage stage;
    bool per_layer;
} stage_name;

/* Stages that are in the file as the backend shows them; the others are derived below. */
static const stage_name direct[] = {
    {"embed", RL_STAGE_EMBED, false},
    {"attn_norm", RL_STAGE_ATTN_NORM, true},
    {"qkv", RL_STAGE_DN_QKV, true},
    {"z", RL_STAGE_DN_Z, true},
    {"g", RL_STAGE_DN_DECAY, true},
    {"conv_silu", RL_STAGE_DN_CONV, true},
    {"o", RL_STAGE_DN_CORE, true},
    {"gated", RL_STAGE_DN_GATED, true},
    {"qgate", RL_STAGE_AT_QGATE, true},
    {"q_rope", RL_STAGE_AT_Q, true},
    {"k_rope", RL_STAGE_AT_K, true},
    {"v", RL_STAGE_AT_V, true},
    {"attn", RL_STAGE_AT_CORE, true},
    {"attn_gated", RL_STAGE_AT_GATED, true},
    {"y", RL_STAGE_MIX_OUT, true},
    {"x_mid", RL_STAGE_MIX_RESIDUAL, true},
    {"post_norm", RL_STAGE_FFN_NORM, true},
    {"router_logits", RL_STAGE_ROUTER_LOGITS, true},
    {"topk_weights", RL_STAGE_ROUTER_WEIGHTS, true},
    {"experts", RL_STAGE_EXPERTS, true},
    {"out", RL_STAGE_LAYER_OUT, true},
    {"final.h", RL_STAGE_FINAL_NORM, false},
    {"final.logits_last", RL_STAGE_LOGITS, false},
};

typedef struct stage_judge {
    const vec_stages *s;
    const rl_hparams *hp;
    uint32_t compared;
    double max_abs;
    char *worst;
} stage_judge;

static void judge(stage_judge *j, const char *name, const float *x, const float *want, size_t n)
{
    const double diff = rl_max_abs_diff(x, want, n);
    j->compared++;
    if (!(diff <= j->max_abs)) { /* also when diff is not a number */
        j->max_abs = diff;
        snprintf(j->worst, 32, "%s", name);
    }
}

static const float *layer_stage(const stage_judge *j, uint32_t layer, const char *name, size_t *count, char full[32])
{
    snprintf(full, 32, "L%u.%s", layer, name);
    return vec_stage(j->s, full, count);
}

/* Betas are in the file before the sigmoid and in the projection's order; q and k are repeated to the value heads; the
 * shared expert is before its gate; ids are not in the file, but the probabilities they must follow are. */
static void judge_derived(stage_judge *j, rl_stage stage, uint32_t layer, uint32_t n_rows, uint32_t width, const float *x)
{
    const rl_hparams *hp = j->hp;
    const uint32_t hv = hp->dn_value_heads, r = hv / hp->dn_key_heads, dim = hp->dn_head_dim;
    char full[32];
    const float *a;
    for (size_t t = 0; t < n_rows; t++) {
        const float *row = x + t * width;
        if (stage == RL_STAGE_DN_BETA && (a = layer_stage(j, layer, "ba", NULL, full)))
            for (uint32_t h = 0; h < hv; h++) {
                const float beta = (float)(1 / (1 + exp(-(double)a[t * 2 * hv + h / r * 2 * r + h % r])));
                judge(j, full, row + h, &beta, 1);
            }
        if ((stage == RL_STAGE_DN_Q || stage == RL_STAGE_DN_K) &&
            (a = layer_stage(j, layer, stage == RL_STAGE_DN_Q ? "q" : "k", NULL, full)))
            for (uint32_t h = 0; h < hv; h++)
                judge(j, full, row + h / r * dim, a + (t * hv + h) * dim, dim);
        if (stage == RL_STAGE_SHARED && (a = layer_stage(j, layer, "shared_raw", NULL, full))) {
            const float gate = layer_stage(j, layer, "shared_gate", NULL, full)[t];
            for (uint32_t i = 0; i < width; i++) {
                const float want = a[t * width + i] * gate;
                judge(j, full, row + i, &want, 1);
            }
        }
        if (stage == RL_STAGE_ROUTER_IDS && (a = layer_stage(j, layer, "router_probs", NULL, full)))
            for (uint32_t i = 0; i < width; i++) {
                uint32_t above = 0; /* experts more probable than the i-th chosen one: there must be i */
                for (uint32_t e = 0; e < hp->n_expert; e++)
                    above += a[t * hp->n_expert + e] > a[t * hp->n_expert + (uint32_t)row[i]];
                assert_int_equal(above, i);
                j->compared++;
            }
    }
}

static rl_status stage_tap(void *ctx, rl_stage stage, uint32_t layer, uint32_t row0, uint32_t n_rows, uint32_t width,
                           float *data)
{
    stage_judge *j = ctx;
    char full[32];
    assert_int_equal(width, rl_stage_width(j->hp, stage));
    judge_derived(j, stage, layer, n_rows, width, data);
    for (size_t i = 0; i < sizeof direct / sizeof *direct; i++) {
        if (direct[i].stage != stage) continue;
        snprintf(full, sizeof full, "%s", direct[i].name);
        if (direct[i].per_layer) snprintf(full, sizeof full, "L%u.%s", layer, direct[i].name);
        size_t count;
        const float *want = vec_stage(j->s, full, &count);
        if (!want) continue;
        /* Logits are those of the last id only, the others start at the pass's first row. */
        const size_t first = stage == RL_STAGE_LOGITS ? 0 : (size_t)row0 * width;
        assert_true(first + (size_t)n_rows * width <= count);
        judge(j, full, data, want + first, (size_t)n_rows * width);
    }
    return RL_OK;
}

uint32_t vec_judge_stages(rl_backend *b, const vec_stages *s, const vec_prompt *story, double *max_abs, char worst[32])
{
    rl_error err;
    rl_seq *seq;
    float *logits = malloc(story->n_vocab * sizeof *logits);
    stage_judge j = {.s = s, .hp = &b->model->hp, .worst = worst};
    assert_non_null(logits);
    worst[0] = 0;
    rl_assert_ok(b->ops->seq_create(b, (uint32_t)s->n_ids, &seq, &err), &err);
    const rl_segment segment = {seq, story->ids, (uint32_t)s->n_ids, RL_LOGITS_LAST};
    const rl_pass pass = {.segments = &segment, .n_segments = 1, .logits = logits, .tap = stage_tap, .tap_ctx = &j};
    rl_assert_ok(b->ops->forward(b, &pass, &err), &err);
    b->ops->seq_free(seq);
    free(logits);
    *max_abs = j.max_abs;
    return j.compared;
}
