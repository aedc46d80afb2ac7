/* backend/cpu: the order of a pass: embedding or MTP input, layers, final norm, head. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

/* Rotary tables of the rows; angles in double, since at large positions a float product has lost its fraction. */
static void rotary_rows(cpu_worker *w, uint32_t begin, uint32_t end)
{
    const cpu_backend *b = w->b;
    const uint32_t half = b->base.model->hp.n_rot / 2;
    for (uint32_t row = begin; row < end; row++) {
        const cpu_segment *seg = &b->s.segments[b->s.row_segment[row]];
        const double position = seg->pos + (row - seg->row0);
        for (uint32_t i = 0; i < half; i++) {
            const double angle = position * b->rope_freq[i];
            b->s.cosine[(size_t)row * half + i] = (float)(cos(angle) * b->rope_scale);
            b->s.sine[(size_t)row * half + i] = (float)(sin(angle) * b->rope_scale);
        }
    }
}

/* s.norm = rms(s.x) of the rows, shown and prepared for products. */
static bool norm_rows(cpu_worker *w, const float *weight, rl_stage stage, uint32_t layer, uint32_t begin, uint32_t end)
{
    const cpu_backend *b = w->b;
    const uint32_t e = b->base.model->hp.n_embd;
    for (uint32_t row = begin; row < end; row++)
        b->vec->rms_norm(b->s.x + (size_t)row * e, weight, b->base.model->hp.eps, b->s.norm + (size_t)row * e, e);
    if (!cpu_show(w, stage, layer, b->s.norm, e)) return false;
    if (begin < end) rl_mm_act_prepare(b->mm, &w->p->a_norm, begin, end);
    cpu_sync(w, CPU_PHASE_NORM);
    return true;
}

/* One layer; on entry s.norm holds the prepared input norm, on return s.x is the layer's output without a barrier after it. */
static bool run_layer(cpu_worker *w, const cpu_layer *l, uint32_t layer, uint32_t begin, uint32_t end)
{
    const cpu_backend *b = w->b;
    const cpu_scratch *s = &b->s;
    const uint32_t e = b->base.model->hp.n_embd;
    if (!norm_rows(w, l->src->attn_norm, RL_STAGE_ATTN_NORM, layer, begin, end)) return false;
    if (!(l->src->kind == RL_LAYER_ATTENTION ? cpu_attention : cpu_deltanet)(w, l, layer)) return false;
    for (uint32_t row = begin; row < end; row++)
        b->vec->add(s->x + (size_t)row * e, s->mix + (size_t)row * e, e);
    if (!cpu_show(w, RL_STAGE_MIX_RESIDUAL, layer, s->x, e)) return false;
    if (!norm_rows(w, l->src->post_norm, RL_STAGE_FFN_NORM, layer, begin, end)) return false;
    if (!cpu_moe(w, l, layer)) return false;
    for (uint32_t row = begin; row < end; row++) {
        b->vec->add(s->experts + (size_t)row * e, s->shared + (size_t)row * e, e);
        b->vec->add(s->x + (size_t)row * e, s->experts + (size_t)row * e, e);
    }
    return cpu_show(w, RL_STAGE_LAYER_OUT, layer, s->x, e);
}

static void head(cpu_worker *w, const rl_mm_matrix *m)
{
    cpu_pass *p = w->p;
    if (p->n_wanted == 0) return;
    const cpu_product out = {m, &p->a_norm, w->b->s.wanted, p->n_wanted, p->logits, m->rows};
    cpu_multiply(w, CPU_PHASE_HEAD, &out, 1);
    cpu_sync(w, CPU_PHASE_HEAD);
}

/* Logits exist for some rows only: one call for each run of consecutive ones. */
static void show_logits(cpu_pass *p)
{
    const uint32_t *rows = p->b->s.wanted;
    const size_t v = p->b->base.model->hp.n_vocab;
    for (uint32_t i = 0, n; i < p->n_wanted && p->status == RL_OK; i += n) {
        for (n = 1; i + n < p->n_wanted && rows[i + n] == rows[i] + n;)
            n++;
        p->status = p->tap(p->tap_ctx, RL_STAGE_LOGITS, 0, rows[i], n, (uint32_t)v, p->logits + i * v);
    }
}

static void trunk(void *ctx, int id)
{
    cpu_pass *p = ctx;
    cpu_backend *b = p->b;
    cpu_worker w = {.p = p, .b = b, .id = id, .size = b->n_members, .my = &b->members[id]};
    const rl_model *model = b->base.model;
    const uint32_t e = model->hp.n_embd;
    uint32_t begin, end;
    cpu_my_rows(&w, &begin, &end);
    for (uint32_t row = begin; row < end; row++) {
        const cpu_segment *seg = &b->s.segments[b->s.row_segment[row]];
        rl_mm_row(&b->embed, 0, (uint32_t)seg->ids[row - seg->row0], b->s.x + (size_t)row * e);
    }
    rotary_rows(&w, begin, end);
    cpu_sync(&w, CPU_PHASE_START);
    if (!cpu_show(&w, RL_STAGE_EMBED, 0, b->s.x, e)) return;
    for (uint32_t i = 0; i < model->hp.n_layer; i++)
        if (!run_layer(&w, &b->layers[i], i, begin, end)) return;
    if (!norm_rows(&w, model->output_norm, RL_STAGE_FINAL_NORM, 0, begin, end)) return;
    for (uint32_t row = begin; row < end && p->hidden; row++)
        memcpy(p->hidden + (size_t)row * e, b->s.norm + (size_t)row * e, e * sizeof(float));
    head(&w, &b->head);
    if (p->tap && id == 0) show_logits(p);
}

static void mtp_block(void *ctx, int id)
{
    cpu_pass *p = ctx;
    cpu_backend *b = p->b;
    cpu_worker w = {.p = p, .b = b, .id = id, .size = b->n_members, .my = &b->members[id]};
    const rl_mtp *mtp = &b->base.model->mtp;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t e = hp->n_embd;
    uint32_t begin, end;
    cpu_my_rows(&w, &begin, &end);
    for (uint32_t row = begin; row < end; row++) {
        float *joined = b->s.joined + (size_t)row * 2 * e;
        rl_mm_row(&b->mtp_embed, 0, (uint32_t)b->s.segments[0].ids[row], joined + e);
        b->vec->rms_norm(joined + e, mtp->enorm, hp->eps, joined, e);
        b->vec->rms_norm(p->hidden_mtp + (size_t)row * e, mtp->hnorm, hp->eps, joined + e, e);
    }
    if (begin < end) rl_mm_act_prepare(b->mm, &p->a_joined, begin, end);
    rotary_rows(&w, begin, end);
    cpu_sync(&w, CPU_PHASE_START);
    const cpu_product in = {&b->eh_proj, &p->a_joined, NULL, p->n_rows, b->s.x, e};
    cpu_multiply(&w, CPU_PHASE_START, &in, 1);
    cpu_sync(&w, CPU_PHASE_START);
    if (!run_layer(&w, &b->mtp_layer, 0, begin, end)) return;
    if (!norm_rows(&w, mtp->head_norm, RL_STAGE_FINAL_NORM, 0, begin, end)) return;
    for (uint32_t row = begin; row < end && p->hidden; row++)
        memcpy(p->hidden + (size_t)row * e, b->s.norm + (size_t)row * e, e * sizeof(float));
    head(&w, b->mtp_head);
}

/* Points the activation buffers at this pass's rows and clears the counters. */
static void begin_pass(cpu_pass *p)
{
    cpu_backend *b = p->b;
    if (b->experts) rl_experts_begin_pass(b->experts);
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const uint32_t n = p->n_rows, e = hp->n_embd, k = hp->n_expert_used, f = hp->n_ff_expert;
    const uint32_t hd = hp->n_head * hp->head_dim;
    rl_mm_act_init(b->mm, &p->a_norm, s->norm, e, e, n, s->act_norm);
    rl_mm_act_init(b->mm, &p->a_attn, s->core, hd, hd, n, s->act_mix);
    rl_mm_act_init(b->mm, &p->a_delta, s->core, hp->dn_value_dim, hp->dn_value_dim, n, s->act_mix);
    rl_mm_act_init(b->mm, &p->a_hidden, s->hidden, f, f, n * k, s->act_hidden);
    rl_mm_act_init(b->mm, &p->a_shared, s->sgate, hp->n_ff_shared, hp->n_ff_shared, n, s->act_shared);
    if (p->mtp) rl_mm_act_init(b->mm, &p->a_joined, s->joined, 2 * (size_t)e, 2 * e, n, s->act_joined);
    for (uint32_t i = 0; i < b->n_counters; i++)
        atomic_store_explicit(&b->counters[i], 0, memory_order_relaxed);
    if (b->profile.on) cpu_profile_begin(&b->profile, n);
}

/* Runs the members; the status of the pass. */
static rl_status run_pass(cpu_pass *p, rl_pool_fn members, rl_error *err)
{
    cpu_backend *b = p->b;
    begin_pass(p);
    rl_pool_run(b->pool, members, p);
    if (b->experts) rl_experts_end(b->experts);
    if (p->status == RL_OK) return RL_OK;
    if (b->experts && rl_experts_failed(b->experts)) return rl_experts_error(b->experts, err);
    return rl_fail(err, p->status, "the pass was ended by its observer");
}

rl_status cpu_forward(rl_backend *backend, const rl_pass *pass, rl_error *err)
{
    cpu_backend *b = (cpu_backend *)backend;
    cpu_scratch *s = &b->s;
    cpu_pass p = {.b = b, .logits = pass->logits, .hidden = pass->hidden, .tap = pass->tap, .tap_ctx = pass->tap_ctx};
    for (uint32_t i = 0; i < pass->n_segments; i++) {
        const rl_segment *g = &pass->segments[i];
        cpu_seq *seq = (cpu_seq *)g->seq;
        if (g->n == 0) continue;
        if (g->n > b->max_rows - p.n_rows)
            return rl_fail(err, RL_ERR_ARGUMENT, "a pass has more than %u rows, the most this backend was opened for",
                           b->max_rows);
        if (g->want != RL_LOGITS_NONE && !pass->logits)
            return rl_fail(err, RL_ERR_ARGUMENT, "a pass wants logits but gives no room for them");
        if (g->n > seq->capacity - seq->pos)
            return rl_fail(err, RL_ERR_LIMIT, "segment %u continues at position %u with %u tokens, the sequence holds %u", i,
                           seq->pos, g->n, seq->capacity);
        s->segments[p.n_segments] = (cpu_segment){seq, g->ids, p.n_rows, g->n, seq->pos};
        for (uint32_t j = 0; j < g->n; j++) {
            s->row_segment[p.n_rows] = p.n_segments;
            if (g->want == RL_LOGITS_ALL || (g->want == RL_LOGITS_LAST && j + 1 == g->n)) s->wanted[p.n_wanted++] = p.n_rows;
            p.n_rows++;
        }
        p.n_segments++;
    }
    if (p.n_rows == 0) return RL_OK;
    if (p.tap && !s->tap) {
        s->tap = rl_alloc(b->max_rows, b->base.model->hp.dn_key_dim * sizeof(float));
        if (!s->tap) return rl_fail(err, RL_ERR_MEMORY, "no memory to show the stages of %u rows", b->max_rows);
    }
    const rl_status st = run_pass(&p, trunk, err);
    if (st != RL_OK) return st;
    for (uint32_t i = 0; i < p.n_segments; i++)
        s->segments[i].seq->pos += s->segments[i].n;
    return RL_OK;
}

rl_status cpu_mtp(rl_backend *backend, rl_seq *seq, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                  float *hidden_out, rl_error *err)
{
    cpu_backend *b = (cpu_backend *)backend;
    cpu_seq *q = (cpu_seq *)seq;
    const rl_hparams *hp = &b->base.model->hp;
    if (hp->n_mtp == 0) return rl_fail(err, RL_ERR_UNSUPPORTED, "the model has no MTP block");
    if (n > q->capacity - q->mtp_pos)
        return rl_fail(err, RL_ERR_LIMIT, "the MTP cache holds %u of %u entries, %u more do not fit", q->mtp_pos, q->capacity,
                       n);
    for (uint32_t done = 0; done < n;) {
        const uint32_t rows = n - done < b->max_rows ? n - done : b->max_rows;
        cpu_pass p = {.b = b,
                      .mtp = true,
                      .n_rows = rows,
                      .n_segments = 1,
                      .n_wanted = logits ? rows : 0,
                      .hidden_mtp = hidden + (size_t)done * hp->n_embd,
                      .logits = logits ? logits + (size_t)done * b->mtp_head->rows : NULL,
                      .hidden = hidden_out ? hidden_out + (size_t)done * hp->n_embd : NULL};
        b->s.segments[0] = (cpu_segment){q, ids + done, 0, rows, q->mtp_pos};
        for (uint32_t i = 0; i < rows; i++) {
            b->s.row_segment[i] = 0;
            b->s.wanted[i] = i;
        }
        const rl_status st = run_pass(&p, mtp_block, err);
        if (st != RL_OK) return st;
        q->mtp_pos += rows;
        done += rows;
    }
    return RL_OK;
}
