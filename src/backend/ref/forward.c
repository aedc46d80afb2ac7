/* backend/ref/forward: the frame of a pass (embedding, layers, head), the MTP block, and the tap. */
#include "backend/ref/ref.h"
#include "base/mem.h"
#include <stdlib.h>

rl_status ref_show(ref_run *run, rl_stage stage, uint32_t layer, double *values)
{
    if (!run->tap) return RL_OK;
    const uint32_t width = rl_stage_width(run->hp, stage);
    const size_t n = (size_t)run->n_rows * width;
    float *shown = run->b->s.shown;
    for (size_t i = 0; i < n; i++)
        shown[i] = (float)values[i];
    rl_status status = run->tap(run->tap_ctx, stage, layer, 0, run->n_rows, width, shown);
    if (status != RL_OK)
        return rl_fail(run->err, status, "the pass was ended by its observer at stage %s", rl_stage_name(stage));
    /* Only numbers the tap changed replace ours: the others keep their double precision. */
    for (size_t i = 0; i < n; i++)
        if (shown[i] != (float)values[i]) values[i] = (double)shown[i];
    return RL_OK;
}

static void norm_rows(ref_run *run, const double *x, const float *w, double *out)
{
    const size_t e = run->hp->n_embd;
    for (size_t t = 0; t < run->n_rows; t++)
        ref_rms_norm(x + t * e, w, run->hp->n_embd, (double)run->hp->eps, out + t * e);
}

static rl_status run_layer(ref_run *run, const rl_layer *l, uint32_t layer, uint32_t index)
{
    ref_scratch *s = &run->b->s;
    norm_rows(run, s->x, l->attn_norm, s->norm);
    rl_status status = ref_show(run, RL_STAGE_ATTN_NORM, layer, s->norm);
    if (status == RL_OK)
        status = l->kind == RL_LAYER_ATTENTION ? ref_attention(run, l, layer, index) : ref_deltanet(run, l, layer, index);
    if (status == RL_OK) status = ref_show(run, RL_STAGE_MIX_OUT, layer, s->mix);
    if (status != RL_OK) return status;
    for (size_t i = 0; i < (size_t)run->n_rows * run->hp->n_embd; i++)
        s->x[i] += s->mix[i];
    status = ref_show(run, RL_STAGE_MIX_RESIDUAL, layer, s->x);
    norm_rows(run, s->x, l->post_norm, s->norm);
    if (status == RL_OK) status = ref_show(run, RL_STAGE_FFN_NORM, layer, s->norm);
    if (status == RL_OK) status = ref_moe(run, l, layer);
    return status == RL_OK ? ref_show(run, RL_STAGE_LAYER_OUT, layer, s->x) : status;
}

/* Logits of n rows of hidden states; `row0` is their place in the pass. */
static rl_status run_head(ref_run *run, const rl_matrix *head, const double *hidden, uint32_t row0, uint32_t n, float *logits)
{
    ref_backend *b = run->b;
    const size_t v = head->rows;
    for (uint32_t done = 0; done < n; done += REF_HEAD_ROWS) {
        const uint32_t part = n - done < REF_HEAD_ROWS ? n - done : REF_HEAD_ROWS;
        float *out = logits + done * v;
        ref_matmul(b, head, 0, hidden + (size_t)done * head->cols, part, b->s.head);
        for (size_t i = 0; i < part * v; i++)
            out[i] = (float)b->s.head[i];
        if (!run->tap) continue;
        rl_status status = run->tap(run->tap_ctx, RL_STAGE_LOGITS, 0, row0 + done, part, head->rows, out);
        if (status != RL_OK) return rl_fail(run->err, status, "the pass was ended by its observer at stage logits");
    }
    return RL_OK;
}

static rl_status check_pass(const ref_backend *b, const rl_pass *pass, uint32_t *n_rows, uint32_t *n_positions, rl_error *err)
{
    *n_rows = *n_positions = 0;
    for (uint32_t i = 0; i < pass->n_segments; i++) {
        const rl_segment *g = &pass->segments[i];
        const ref_seq *s = (const ref_seq *)g->seq;
        if (g->n > b->max_rows - *n_rows)
            return rl_fail(err, RL_ERR_ARGUMENT, "a pass has more than %u rows, the most this backend was opened for",
                           b->max_rows);
        if (g->n > s->capacity - s->position)
            return rl_fail(err, RL_ERR_LIMIT, "a sequence at position %u cannot take %u more tokens, its context is %u",
                           s->position, g->n, s->capacity);
        if (g->want != RL_LOGITS_NONE && g->n && !pass->logits)
            return rl_fail(err, RL_ERR_ARGUMENT, "a pass wants logits but gives no room for them");
        *n_rows += g->n;
        if (*n_positions < s->position + g->n) *n_positions = s->position + g->n;
    }
    return RL_OK;
}

static rl_status run_layers(ref_run *run, const rl_model *m)
{
    uint32_t attention = 0, recurrent = 0;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const rl_layer *l = &m->layers[i];
        uint32_t index = l->kind == RL_LAYER_ATTENTION ? attention++ : recurrent++;
        rl_status status = run_layer(run, l, i, index);
        if (status != RL_OK) return status;
    }
    return RL_OK;
}

static rl_status run_logits(ref_run *run, const rl_model *m, const rl_pass *pass)
{
    float *logits = pass->logits;
    for (uint32_t i = 0, row = 0; i < pass->n_segments; row += pass->segments[i++].n) {
        const rl_segment *g = &pass->segments[i];
        const uint32_t n = g->want == RL_LOGITS_ALL ? g->n : g->want == RL_LOGITS_LAST && g->n ? 1 : 0;
        if (n == 0) continue;
        const uint32_t first = row + g->n - n;
        rl_status status = run_head(run, &m->head, run->b->s.hidden + (size_t)first * m->hp.n_embd, first, n, logits);
        if (status != RL_OK) return status;
        logits += (size_t)n * m->hp.n_vocab;
    }
    return RL_OK;
}

static rl_status run_trunk(ref_run *run, const rl_model *m, const rl_pass *pass)
{
    ref_scratch *s = &run->b->s;
    const size_t e = m->hp.n_embd;
    for (uint32_t i = 0, row = 0; i < pass->n_segments; i++)
        for (uint32_t t = 0; t < pass->segments[i].n; t++)
            ref_decode_row(run->b, &m->embed, 0, (uint32_t)pass->segments[i].ids[t], s->x + row++ * e);
    rl_status status = ref_show(run, RL_STAGE_EMBED, 0, s->x);
    if (status == RL_OK) status = run_layers(run, m);
    if (status != RL_OK) return status;
    norm_rows(run, s->x, m->output_norm, s->hidden);
    status = ref_show(run, RL_STAGE_FINAL_NORM, 0, s->hidden);
    if (status != RL_OK) return status;
    for (size_t i = 0; pass->hidden && i < run->n_rows * e; i++)
        pass->hidden[i] = (float)s->hidden[i];
    return run_logits(run, m, pass);
}

/* Room for attention scores over n positions, per member. */
static rl_status reserve_scores(ref_backend *b, uint32_t n, rl_error *err)
{
    if (n <= b->score_capacity) return RL_OK;
    const uint32_t capacity = n < UINT32_MAX / 2 ? 2 * n : n;
    double *scores = rl_alloc((size_t)capacity * (size_t)rl_pool_size(b->pool), sizeof *scores);
    if (!scores) return rl_fail(err, RL_ERR_MEMORY, "cannot allocate attention scores for %u positions", n);
    free(b->scores);
    b->scores = scores;
    b->score_capacity = capacity;
    return RL_OK;
}

rl_status ref_forward(rl_backend *backend, const rl_pass *pass, rl_error *err)
{
    ref_backend *b = ref_backend_of(backend);
    const rl_model *m = backend->model;
    uint32_t n_rows, n_positions;
    rl_status status = check_pass(b, pass, &n_rows, &n_positions, err);
    if (status == RL_OK) status = reserve_scores(b, n_positions, err);
    if (status != RL_OK || n_rows == 0) return status;
    ref_span *spans = rl_alloc(pass->n_segments, sizeof *spans);
    if (!spans) return rl_fail(err, RL_ERR_MEMORY, "cannot allocate %u segments", pass->n_segments);
    for (uint32_t i = 0, row = 0; i < pass->n_segments; row += pass->segments[i++].n) {
        ref_seq *s = (ref_seq *)pass->segments[i].seq;
        spans[i] = (ref_span){s, row, pass->segments[i].n, s->position};
    }
    ref_run run = {b, &m->hp, spans, pass->n_segments, n_rows, pass->tap, pass->tap_ctx, err};
    status = run_trunk(&run, m, pass);
    for (uint32_t i = 0; status == RL_OK && i < pass->n_segments; i++)
        spans[i].seq->position += spans[i].n;
    free(spans);
    return status;
}

/* ---- MTP block --------------------------------------------------------------------------------------------------------- */

/* Pairs of (token, hidden state of the token before it) that fit one pass. */
static rl_status mtp_part(ref_run *run, const rl_model *m, const int32_t *ids, const float *hidden, float *logits,
                          float *hidden_out)
{
    ref_scratch *s = &run->b->s;
    const size_t e = m->hp.n_embd;
    const double eps = (double)m->hp.eps;
    for (size_t t = 0; t < run->n_rows; t++) {
        double *joined = s->hidden + t * 2 * e, *row = s->norm;
        ref_decode_row(run->b, &m->mtp.embed, 0, (uint32_t)ids[t], row);
        ref_rms_norm(row, m->mtp.enorm, m->hp.n_embd, eps, joined);
        for (size_t i = 0; i < e; i++)
            row[i] = (double)hidden[t * e + i];
        ref_rms_norm(row, m->mtp.hnorm, m->hp.n_embd, eps, joined + e);
    }
    ref_matmul(run->b, &m->mtp.eh_proj, 0, s->hidden, run->n_rows, s->x);
    rl_status status = run_layer(run, &m->mtp.block, 0, m->n_attention);
    if (status != RL_OK) return status;
    norm_rows(run, s->x, m->mtp.head_norm, s->hidden);
    for (size_t i = 0; hidden_out && i < run->n_rows * e; i++)
        hidden_out[i] = (float)s->hidden[i];
    return logits ? run_head(run, &m->mtp.head, s->hidden, 0, run->n_rows, logits) : RL_OK;
}

rl_status ref_mtp(rl_backend *backend, rl_seq *seq, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                  float *hidden_out, rl_error *err)
{
    ref_backend *b = ref_backend_of(backend);
    const rl_model *m = backend->model;
    ref_seq *s = (ref_seq *)seq;
    const size_t e = m->hp.n_embd;
    if (!m->hp.n_mtp) return rl_fail(err, RL_ERR_UNSUPPORTED, "this model has no MTP block");
    if (n > s->capacity - s->mtp_position)
        return rl_fail(err, RL_ERR_LIMIT, "an MTP cache at position %u cannot take %u more pairs, its context is %u",
                       s->mtp_position, n, s->capacity);
    rl_status status = reserve_scores(b, s->mtp_position + n, err);
    for (uint32_t done = 0; status == RL_OK && done < n;) {
        const uint32_t part = n - done < b->max_rows ? n - done : b->max_rows;
        const ref_span span = {s, 0, part, s->mtp_position};
        ref_run run = {.b = b, .hp = &m->hp, .spans = &span, .n_spans = 1, .n_rows = part, .err = err};
        status = mtp_part(&run, m, ids + done, hidden + done * e, logits ? logits + (size_t)done * m->hp.n_vocab : NULL,
                          hidden_out ? hidden_out + done * e : NULL);
        if (status != RL_OK) break;
        s->mtp_position += part;
        done += part;
    }
    return status;
}
