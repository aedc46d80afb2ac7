/* backend/cpu: full attention over rows.
 *
 * Two ways through the positions, both online softmax over tiles of CPU_TILE positions that start at multiples of it:
 *   tiles  (prefill)  an item is a block of tokens of one segment and one KV head; every key and value tile is read once for
 * all query heads that share it and all tokens of the block rows   (decode)   an item is one row, one KV head and one split of
 * its positions; splits are merged in order. The length of a split depends on the position alone, so spreading splits over
 * members does not change the numbers. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

/* Query rows (tokens times heads per KV head) of a block in the tile form. */
#define BLOCK_ROWS 128

static uint32_t group(const rl_hparams *hp)
{
    return hp->n_head / hp->n_head_kv;
}

static uint32_t block_tokens(const rl_hparams *hp)
{
    const uint32_t g = group(hp);
    return g >= BLOCK_ROWS ? 1 : BLOCK_ROWS / g;
}

static uint32_t round_up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

uint32_t cpu_attention_rows(const cpu_backend *b)
{
    const rl_hparams *hp = &b->base.model->hp;
    return round_up(block_tokens(hp) * group(hp), b->vec->panel);
}

static bool by_tiles(const cpu_backend *b, const cpu_segment *g)
{
    return b->on.attn_tile && g->n >= CPU_BATCH_MIN;
}

static uint32_t split_length(uint32_t positions)
{
    const uint32_t most = CPU_SPLIT_MIN * CPU_SPLITS;
    return CPU_SPLIT_MIN * ((positions + most - 1) / most);
}

/* Positions [at, at + n) of a head as floats. */
static const float *load_tile(const cpu_backend *b, const uint8_t *rows, uint32_t at, uint32_t n, float *tmp)
{
    const uint32_t d = b->base.model->hp.head_dim;
    const uint8_t *p = rows + (size_t)at * d * b->kv_bytes;
    if (b->kv == RL_KV_F32) return (const float *)(const void *)p;
    b->vec->from_f16((const uint16_t *)(const void *)p, tmp, (size_t)n * d);
    return tmp;
}

static void store_row(const cpu_backend *b, uint8_t *rows, uint32_t at, const float *x)
{
    const uint32_t d = b->base.model->hp.head_dim;
    uint8_t *p = rows + (size_t)at * d * b->kv_bytes;
    if (b->kv == RL_KV_F32)
        memcpy(p, x, d * sizeof(float));
    else
        b->vec->to_f16(x, (uint16_t *)(void *)p, d);
}

/* ---- Queries and keys -------------------------------------------------------------------------------------------------- */

static void append_kv(const cpu_backend *b, const cpu_layer *l, uint32_t row, uint32_t head)
{
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const cpu_segment *g = &s->segments[s->row_segment[row]];
    const size_t from = ((size_t)row * hp->n_head_kv + head) * hp->head_dim;
    const uint32_t at = g->pos + (row - g->row0);
    store_row(b, cpu_kv(b, g->seq, l->index, 0, head), at, s->k + from);
    store_row(b, cpu_kv(b, g->seq, l->index, 1, head), at, s->v + from);
}

/* Norm and rotation of every query head (out of the fused projection into s.conv) and key head (in place). Without a tap the
 * keys and values go to the cache right away. */
static void rotate_heads(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const uint32_t d = hp->head_dim, heads = hp->n_head + hp->n_head_kv, half = hp->n_rot / 2;
    uint32_t begin, end;
    rl_pool_part(w->p->n_rows * heads, 1, w->id, w->size, &begin, &end);
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t row = i / heads, h = i % heads;
        float *y;
        if (h < hp->n_head) {
            const float *q = s->raw + (size_t)row * 2 * hp->n_head * d + (size_t)h * 2 * d;
            y = s->conv + (size_t)row * hp->n_head * d + (size_t)h * d;
            b->vec->rms_norm(q, l->src->q_norm, hp->eps, y, d);
        } else {
            y = s->k + (size_t)row * hp->n_head_kv * d + (size_t)(h - hp->n_head) * d;
            b->vec->rms_norm(y, l->src->k_norm, hp->eps, y, d);
        }
        b->vec->rope(y, s->cosine + (size_t)row * half, s->sine + (size_t)row * half, half);
        if (h >= hp->n_head && !w->p->tap) append_kv(b, l, row, h - hp->n_head);
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------------- */

static void tile_item(cpu_worker *w, const cpu_layer *l, const cpu_segment *seg, uint32_t head, uint32_t first, uint32_t tokens)
{
    const cpu_backend *b = w->b;
    const rl_vec *vec = b->vec;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t d = hp->head_dim, g = group(hp), hd = hp->n_head * d;
    const uint32_t n = tokens * g, rows = round_up(n, vec->panel);
    const float scale = 1.0f / sqrtf((float)d);
    cpu_member *my = w->my;
    const size_t row0 = seg->row0 + first;
    vec->pack_q(b->s.conv + row0 * hd + (size_t)head * g * d, hd, tokens, g, d, my->panels, rows);
    for (uint32_t i = 0; i < rows; i++) {
        my->max[i] = -INFINITY;
        my->sum[i] = 0;
    }
    memset(my->out, 0, (size_t)n * d * sizeof(float));
    const uint8_t *keys = cpu_kv(b, seg->seq, l->index, 0, head), *values = cpu_kv(b, seg->seq, l->index, 1, head);
    const uint32_t start = seg->pos + first, stop = start + tokens; /* positions of the block */
    for (uint32_t at = 0; at < stop; at += CPU_TILE) {
        const uint32_t np = stop - at < CPU_TILE ? stop - at : CPU_TILE;
        vec->score_tile(my->panels, rows, load_tile(b, keys, at, np, my->keys), np, d, scale, my->scores);
        /* Rows are in order of tokens: the ones that may not see position p are a prefix. */
        for (uint32_t p = at > start ? at : start + 1; p < at + np; p++)
            for (uint32_t i = 0; i < (p - start) * g; i++)
                my->scores[(size_t)(p - at) * rows + i] = -INFINITY;
        vec->softmax_tile(my->scores, rows, np, my->max, my->sum, my->corr);
        vec->value_tile(my->scores, rows, n, np, load_tile(b, values, at, np, my->values), d, my->corr, my->out);
    }
    for (uint32_t i = 0; i < n; i++) {
        float *o = b->s.core + (row0 + i / g) * hd + ((size_t)head * g + i % g) * d;
        memcpy(o, my->out + (size_t)i * d, d * sizeof(float));
        vec->scale(o, 1.0f / my->sum[i], d);
    }
}

/* ---- Rows -------------------------------------------------------------------------------------------------------------- */

/* One split of one row and KV head: for each of its query heads d sums, the maximum and the sum of weights. */
static void split_item(cpu_worker *w, const cpu_layer *l, uint32_t row, uint32_t head, uint32_t split, float *partial)
{
    const cpu_backend *b = w->b;
    const rl_vec *vec = b->vec;
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_segment *seg = &b->s.segments[b->s.row_segment[row]];
    const uint32_t d = hp->head_dim, g = group(hp), hd = hp->n_head * d, rows = round_up(g, vec->lanes);
    const uint32_t stop = seg->pos + (row - seg->row0) + 1, length = split_length(stop);
    const uint32_t begin = split * length, end = stop - begin < length ? stop : begin + length;
    const float scale = 1.0f / sqrtf((float)d);
    cpu_member *my = w->my;
    const float *q = b->s.conv + (size_t)row * hd + (size_t)head * g * d;
    for (uint32_t i = 0; i < rows; i++) {
        my->max[i] = -INFINITY;
        my->sum[i] = 0;
    }
    /* Columns of st beyond the heads are computed along and must hold something finite. */
    memset(my->scores, 0, (size_t)CPU_TILE * rows * sizeof(float));
    memset(partial, 0, (size_t)g * d * sizeof(float));
    const uint8_t *keys = cpu_kv(b, seg->seq, l->index, 0, head), *values = cpu_kv(b, seg->seq, l->index, 1, head);
    const size_t row_bytes = (size_t)d * b->kv_bytes;
    for (uint32_t at = begin; at < end; at += CPU_TILE) {
        const uint32_t np = end - at < CPU_TILE ? end - at : CPU_TILE;
        vec->scores(q, g, load_tile(b, keys, at, np, my->keys), np, d, scale, my->scores, rows, values + at * row_bytes,
                    row_bytes);
        vec->softmax_tile(my->scores, rows, np, my->max, my->sum, my->corr);
        vec->value_tile(my->scores, rows, g, np, load_tile(b, values, at, np, my->values), d, my->corr, partial);
    }
    memcpy(partial + (size_t)g * d, my->max, g * sizeof(float));
    memcpy(partial + (size_t)g * (d + 1), my->sum, g * sizeof(float));
}

static void merge_splits(cpu_worker *w, uint32_t row, uint32_t head, const float *partial, uint32_t n_splits)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t d = hp->head_dim, g = group(hp);
    const size_t stride = (size_t)g * (d + 2);
    for (uint32_t h = 0; h < g; h++) {
        float *o = b->s.core + ((size_t)row * hp->n_head + (size_t)head * g + h) * d;
        float max = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < n_splits; i++)
            max = fmaxf(max, partial[i * stride + (size_t)g * d + h]);
        memset(o, 0, d * sizeof(float));
        for (uint32_t i = 0; i < n_splits; i++) {
            const float f = expf(partial[i * stride + (size_t)g * d + h] - max);
            sum += f * partial[i * stride + (size_t)g * (d + 1) + h];
            b->vec->axpy(o, f, partial + i * stride + (size_t)h * d, d);
        }
        b->vec->scale(o, 1.0f / sum, d);
    }
}

static uint32_t row_splits(const cpu_segment *seg, uint32_t row)
{
    const uint32_t stop = seg->pos + (row - seg->row0) + 1, length = split_length(stop);
    return (stop + length - 1) / length;
}

/* ---- The core over all rows of the pass --------------------------------------------------------------------------------- */

/* Items in order: blocks of the segments that go by tiles, from the last (longest) block down; then the other rows. Returns
 * whether splits were spread, so that a merge phase follows. */
static bool core(cpu_worker *w, const cpu_layer *l)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const cpu_scratch *s = &b->s;
    const uint32_t nkv = hp->n_head_kv, g = group(hp), d = hp->head_dim, per_block = block_tokens(hp);
    const size_t stride = (size_t)g * (d + 2);
    atomic_uint *tile_counter = cpu_counter(w), *row_counter = cpu_counter(w);
    uint32_t blocks = 0, single_rows = 0, most_splits = 1;
    uint64_t visible = 0;
    for (uint32_t i = 0; i < w->p->n_segments; i++) {
        const cpu_segment *seg = &s->segments[i];
        visible += (uint64_t)seg->n * seg->pos + (uint64_t)seg->n * (seg->n + 1) / 2;
        if (by_tiles(b, seg)) {
            blocks += (seg->n + per_block - 1) / per_block;
        } else {
            single_rows += seg->n;
            /* Where the length of a split grows, a row has fewer splits than the row before it. */
            for (uint32_t row = seg->row0; row < seg->row0 + seg->n; row++) {
                const uint32_t n = row_splits(seg, row);
                most_splits = n > most_splits ? n : most_splits;
            }
        }
    }
    if (w->id == 0 && b->profile.on)
        cpu_profile_work(&w->b->profile, CPU_PHASE_AT_CORE,
                         2ull * w->p->n_segments * nkv * d * b->kv_bytes * (visible / w->p->n_rows),
                         4ull * hp->n_head * d * visible);
    uint32_t item, end;
    while (rl_pool_next(tile_counter, blocks * nkv, 1, &item, &end)) {
        uint32_t block = blocks - 1 - item / nkv, i = 0;
        for (;; i++) {
            const cpu_segment *seg = &s->segments[i];
            const uint32_t n = by_tiles(b, seg) ? (seg->n + per_block - 1) / per_block : 0;
            if (block < n) break;
            block -= n;
        }
        const cpu_segment *seg = &s->segments[i];
        const uint32_t first = block * per_block;
        tile_item(w, l, seg, item % nkv, first, seg->n - first < per_block ? seg->n - first : per_block);
    }
    if (single_rows == 0) return false;
    const bool spread = single_rows <= CPU_SPLIT_ROWS && w->p->n_rows <= CPU_SPLIT_ROWS;
    const uint32_t splits = spread ? most_splits : 1;
    while (rl_pool_next(row_counter, w->p->n_rows * nkv * splits, 1, &item, &end)) {
        const uint32_t split = item % splits, head = item / splits % nkv, row = item / splits / nkv;
        const cpu_segment *seg = &s->segments[s->row_segment[row]];
        if (by_tiles(b, seg)) continue;
        const uint32_t n = row_splits(seg, row);
        if (spread) {
            if (split < n)
                split_item(w, l, row, head, split, s->partial + (((size_t)row * nkv + head) * CPU_SPLITS + split) * stride);
        } else {
            for (uint32_t i = 0; i < n; i++)
                split_item(w, l, row, head, i, w->my->partial + i * stride);
            merge_splits(w, row, head, w->my->partial, n);
        }
    }
    return spread;
}

static void merge_rows(cpu_worker *w)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t nkv = hp->n_head_kv;
    const size_t stride = (size_t)group(hp) * (hp->head_dim + 2);
    uint32_t begin, end;
    rl_pool_part(w->p->n_rows * nkv, 1, w->id, w->size, &begin, &end);
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t row = i / nkv, head = i % nkv;
        const cpu_segment *seg = &b->s.segments[b->s.row_segment[row]];
        if (by_tiles(b, seg)) continue;
        merge_splits(w, row, head, b->s.partial + (size_t)i * CPU_SPLITS * stride, row_splits(seg, row));
    }
}

/* Output gate: the second half of each head's query rows. */
static void gate_rows(cpu_worker *w, uint32_t begin, uint32_t end)
{
    const cpu_backend *b = w->b;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t d = hp->head_dim, nh = hp->n_head;
    for (uint32_t row = begin; row < end; row++)
        for (uint32_t h = 0; h < nh; h++) {
            const size_t at = ((size_t)row * nh + h) * d;
            b->vec->sigmoid_mul(b->s.core + at, b->s.raw + 2 * at + d, b->s.core + at, d);
        }
}

bool cpu_attention(cpu_worker *w, const cpu_layer *l, uint32_t layer)
{
    cpu_backend *b = w->b;
    cpu_pass *p = w->p;
    cpu_scratch *s = &b->s;
    const rl_hparams *hp = &b->base.model->hp;
    const uint32_t n = p->n_rows, hd = hp->n_head * hp->head_dim, kd = hp->n_head_kv * hp->head_dim;
    const cpu_product in[] = {{&l->q, &p->a_norm, NULL, n, s->raw, 2 * (size_t)hd},
                              {&l->k, &p->a_norm, NULL, n, s->k, kd},
                              {&l->v, &p->a_norm, NULL, n, s->v, kd}};
    cpu_multiply(w, CPU_PHASE_AT_IN, in, 3);
    cpu_sync(w, CPU_PHASE_AT_IN);
    if (!cpu_show(w, RL_STAGE_AT_QGATE, layer, s->raw, 2 * (size_t)hd)) return false;

    rotate_heads(w, l);
    if (p->tap) {
        if (!cpu_show(w, RL_STAGE_AT_Q, layer, s->conv, hd) || !cpu_show(w, RL_STAGE_AT_K, layer, s->k, kd) ||
            !cpu_show(w, RL_STAGE_AT_V, layer, s->v, kd))
            return false;
        uint32_t first, last;
        rl_pool_part(n * hp->n_head_kv, 1, w->id, w->size, &first, &last);
        for (uint32_t i = first; i < last; i++)
            append_kv(b, l, i / hp->n_head_kv, i % hp->n_head_kv);
    }
    cpu_sync(w, CPU_PHASE_AT_ROPE);

    const bool merge = core(w, l);
    cpu_sync(w, CPU_PHASE_AT_CORE);
    if (merge) {
        merge_rows(w);
        cpu_sync(w, CPU_PHASE_AT_CORE);
    }
    if (!cpu_show(w, RL_STAGE_AT_CORE, layer, s->core, hd)) return false;

    uint32_t begin, end;
    cpu_my_rows(w, &begin, &end);
    gate_rows(w, begin, end);
    if (!cpu_show(w, RL_STAGE_AT_GATED, layer, s->core, hd)) return false;
    rl_mm_act_prepare(b->mm, &p->a_attn, begin, end);
    cpu_sync(w, CPU_PHASE_AT_GATE);

    const cpu_product out = {&l->o, &p->a_attn, NULL, n, s->mix, hp->n_embd};
    cpu_multiply(w, CPU_PHASE_AT_OUT, &out, 1);
    cpu_sync(w, CPU_PHASE_AT_OUT);
    return cpu_show(w, RL_STAGE_MIX_OUT, layer, s->mix, hp->n_embd);
}
