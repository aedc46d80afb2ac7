/* backend/cpu: DeltaNet over rows.
 *
 * Projections, convolution and gates are batched over all rows. The recurrence is sequential in the tokens of a segment and
 * independent between value heads, so an item is one (segment, value head): its state stays in the cache of one core for the
 * whole segment. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

/* beta, and g as the natural logarithm of the decay. */
static void gates(cpu_worker *w, const cpu_layer *l, uint32_t begin, uint32_t end)
{
    const rl_hparams *hp = &w->b->base.model->hp;
    const cpu_scratch *s = &w->b->s;
    const uint32_t hv = hp->dn_value_heads, r = hv / hp->dn_key_heads;
    for (uint32_t row = begin; row < end; row++) {
        const float *ba = s->ba + (size_t)row * 2 * hv;
        for (uint32_t h = 0; h < hv; h++) {
            const float *pair = ba + (size_t)(h / r) * 2 * r + h % r;
            const float a = pair[r] + l->src->dt_bias[h];
            s->beta[(size_t)row * hv + h] = 1.0f / (1.0f + expf(-pair[0]));
            s->decay[(size_t)row * hv + h] = l->src->a[h] * (a > 20.0f ? a : log1pf(expf(a)));
        }
    }
}

/* The raw projection of the token `back` tokens before row, from the pass or from the sequence's carried rows. */
static const float *raw_row(const cpu_backend *b, const cpu_layer *l, const cpu_segment *seg, uint32_t row, uint32_t back)
{
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t t = row - seg->row0, carried = hp->dn_conv - 1;
    if (t >= back) return b->s.raw + (size_t)(row - back) * hp->dn_conv_dim;
    return seg->seq->conv + ((size_t)l->index * carried + (carried - (back - t))) * hp->dn_conv_dim;
}

/* Rows that a member convolves together: their slices and the slice's weights fit the first-level cache. */
#define CONV_ROWS 8

/* Convolution, SiLU and (q and k) l2 norm of one head-wide slice of one row. */
static void convolve_slice(const cpu_backend *b, const cpu_layer *l, uint32_t row, uint32_t slice, bool normed)
{
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t d = hp->dn_head_dim, taps = hp->dn_conv, c = slice * d;
    const cpu_segment *seg = &b->s.segments[b->s.row_segment[row]];
    const float *u[RL_MAX_CONV];
    for (uint32_t t = 0; t < taps; t++)
        u[t] = raw_row(b, l, seg, row, taps - 1 - t) + c;
    float *y = b->s.conv + (size_t)row * hp->dn_conv_dim + c;
    b->vec->conv_silu(u, l->conv + (size_t)slice * taps * d, d, taps, y, d);
    if (normed && c < 2 * hp->dn_key_dim) b->vec->l2_norm(y, hp->eps, d);
}

/* Members take blocks of rows, or slices when there are too few rows. */
static void convolve(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    const uint32_t n = w->p->n_rows, slices = b->base.model->hp.dn_conv_dim / b->base.model->hp.dn_head_dim;
    const bool normed = !w->p->tap;
    uint32_t begin, end;
    if (n < CONV_ROWS * (uint32_t)w->size) {
        rl_pool_part(n * slices, 1, w->id, w->size, &begin, &end);
        for (uint32_t i = begin; i < end; i++)
            convolve_slice(b, l, i / slices, i % slices, normed);
        return;
    }
    rl_pool_part(n, CONV_ROWS, w->id, w->size, &begin, &end);
    for (uint32_t block = begin; block < end; block += CONV_ROWS)
        for (uint32_t slice = 0; slice < slices; slice++)
            for (uint32_t row = block; row < end && row < block + CONV_ROWS; row++)
                convolve_slice(b, l, row, slice, normed);
}

static void normalise(cpu_worker *w)
{
    const rl_hparams *hp = &w->b->base.model->hp;
    const uint32_t heads = 2 * hp->dn_key_heads, d = hp->dn_head_dim;
    uint32_t begin, end;
    rl_pool_part(w->p->n_rows * heads, 1, w->id, w->size, &begin, &end);
    for (uint32_t i = begin; i < end; i++)
        w->b->vec->l2_norm(w->b->s.conv + (size_t)(i / heads) * hp->dn_conv_dim + (size_t)(i % heads) * d, hp->eps, d);
}

/* The last W - 1 raw rows of every segment become its carried rows; members take columns. */
static void carry(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t cd = hp->dn_conv_dim, carried = hp->dn_conv - 1;
    uint32_t begin, end;
    rl_pool_part(cd, RL_CACHE_LINE / sizeof(float), w->id, w->size, &begin, &end);
    if (begin == end) return;
    for (uint32_t i = 0; i < w->p->n_segments; i++) {
        const cpu_segment *seg = &b->s.segments[i];
        float *rows = seg->seq->conv + (size_t)l->index * carried * cd;
        for (uint32_t j = 0; j < carried; j++) {
            const float *from = raw_row(b, l, seg, seg->row0 + seg->n - 1, carried - 1 - j);
            if (from != rows + (size_t)j * cd)
                memcpy(rows + (size_t)j * cd + begin, from + begin, (end - begin) * sizeof(float));
        }
    }
}

static void recurrence(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const uint32_t hv = hp->dn_value_heads, d = hp->dn_head_dim, r = hv / hp->dn_key_heads, cd = hp->dn_conv_dim;
    const float q_scale = 1.0f / sqrtf((float)d);
    atomic_uint *counter = cpu_counter(w);
    uint32_t item, end;
    while (rl_pool_next(counter, w->p->n_segments * hv, 1, &item, &end)) {
        const cpu_segment *seg = &s->segments[item / hv];
        const uint32_t h = item % hv;
        float *state = seg->seq->state + ((size_t)l->index * hv + h) * d * d;
        const float *q = s->conv + (size_t)seg->row0 * cd + (size_t)(h / r) * d, *k = q + hp->dn_key_dim;
        const float *v = s->conv + (size_t)seg->row0 * cd + 2 * (size_t)hp->dn_key_dim + (size_t)h * d;
        float *decay = s->decay + (size_t)seg->row0 * hv + h, *beta = s->beta + (size_t)seg->row0 * hv + h;
        float *o = s->core + (size_t)seg->row0 * hp->dn_value_dim + (size_t)h * d;
        for (uint32_t t = 0; t < seg->n; t++)
            decay[(size_t)t * hv] = expf(decay[(size_t)t * hv]);
        if (b->on.state_sg && seg->n >= CPU_BATCH_MIN) {
            b->vec->delta_chunk(state, d, seg->n, q, k, cd, q_scale, v, cd, decay, beta, hv, o, hp->dn_value_dim, w->my->delta);
            continue;
        }
        float *scaled = w->my->delta;
        for (uint32_t t = 0; t < seg->n; t++) {
            for (uint32_t i = 0; i < d; i++)
                scaled[i] = q[(size_t)t * cd + i] * q_scale;
            b->vec->delta_step(state, d, scaled, k + (size_t)t * cd, v + (size_t)t * cd, decay[(size_t)t * hv],
                               beta[(size_t)t * hv], o + (size_t)t * hp->dn_value_dim);
        }
    }
    if (w->id == 0 && b->profile.on)
        cpu_profile_work(&w->b->profile, CPU_PHASE_DN_STATE, 8ull * w->p->n_segments * hv * d * d,
                         7ull * w->p->n_rows * hv * d * d);
}

bool cpu_deltanet(cpu_worker *w, const cpu_layer *l, uint32_t layer)
{
    cpu_backend *b = w->b;
    cpu_pass *p = w->p;
    cpu_scratch *s = &b->s;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t n = p->n_rows, cd = hp->dn_conv_dim, vd = hp->dn_value_dim, kd = hp->dn_key_dim, hv = hp->dn_value_heads;
    uint32_t begin, end;
    cpu_my_rows(w, &begin, &end);
    const cpu_product in[] = {{&l->qkv, &p->a_norm, NULL, n, s->raw, cd},
                              {&l->gate, &p->a_norm, NULL, n, s->z, vd},
                              {&l->ba, &p->a_norm, NULL, n, s->ba, 2 * (size_t)hv}};
    cpu_multiply(w, CPU_PHASE_DN_IN, in, 3);
    cpu_sync(w, CPU_PHASE_DN_IN);
    if (!cpu_show(w, RL_STAGE_DN_QKV, layer, s->raw, cd) || !cpu_show(w, RL_STAGE_DN_Z, layer, s->z, vd)) return false;

    gates(w, l, begin, end);
    if (!cpu_show(w, RL_STAGE_DN_BETA, layer, s->beta, hv) || !cpu_show(w, RL_STAGE_DN_DECAY, layer, s->decay, hv))
        return false;
    convolve(w, l);
    if (p->tap) {
        if (!cpu_show(w, RL_STAGE_DN_CONV, layer, s->conv, cd)) return false;
        normalise(w);
        if (!cpu_show(w, RL_STAGE_DN_Q, layer, s->conv, cd) || !cpu_show(w, RL_STAGE_DN_K, layer, s->conv + kd, cd))
            return false;
    }
    cpu_sync(w, CPU_PHASE_DN_CONV);

    carry(w, l);
    recurrence(w, l);
    cpu_sync(w, CPU_PHASE_DN_STATE);
    if (!cpu_show(w, RL_STAGE_DN_CORE, layer, s->core, vd)) return false;

    for (uint32_t row = begin; row < end; row++)
        for (uint32_t h = 0; h < hv; h++) {
            const size_t at = (size_t)row * vd + (size_t)h * hp->dn_head_dim;
            b->vec->gated_norm(s->core + at, l->src->ssm_norm, s->z + at, hp->eps, s->core + at, hp->dn_head_dim);
        }
    if (!cpu_show(w, RL_STAGE_DN_GATED, layer, s->core, vd)) return false;
    rl_mm_act_prepare(b->mm, &p->a_delta, begin, end);
    cpu_sync(w, CPU_PHASE_DN_GATE);

    const cpu_product out = {&l->out, &p->a_delta, NULL, n, s->mix, hp->n_embd};
    cpu_multiply(w, CPU_PHASE_DN_OUT, &out, 1);
    cpu_sync(w, CPU_PHASE_DN_OUT);
    return cpu_show(w, RL_STAGE_MIX_OUT, layer, s->mix, hp->n_embd);
}
