/* backend/cuda/forward: the stages of a pass in the order data flows, each materialised, for any number of rows and sequences.
 *
 * Passes that a tap watches always come this way. Nothing between the upload of the descriptors and the copy of the results
 * waits for the device. */
#include "backend/cuda/decode.cuh"
#include "backend/cuda/profile.cuh"

#include <string.h>
#include <thread>

/* ---- Taps ---------------------------------------------------------------------------------------------------------------- */

static rl_status tap_failed(run *r, rl_stage stage, rl_status status)
{
    return host->fail(r->err, status, "the pass was ended by its observer at stage %s", host->stage_name(stage));
}

/* Shows a stage and takes back what the tap wrote. */
static rl_status show(run *r, rl_stage stage, uint32_t layer, float *device)
{
    if (!r->tap) return RL_OK;
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    const uint32_t width = host->stage_width(&b->base.model->hp, stage);
    const size_t bytes = (size_t)r->n * width * sizeof(float);
    std::vector<float> values((size_t)r->n * width);
    CHECK_CUDA(cudaMemcpyAsync(values.data(), device, bytes, cudaMemcpyDeviceToHost, b->stream));
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    const rl_status status = r->tap(r->tap_ctx, stage, layer, 0, r->n, width, values.data());
    if (status != RL_OK) return tap_failed(r, stage, status);
    CHECK_CUDA(cudaMemcpyAsync(device, values.data(), bytes, cudaMemcpyHostToDevice, b->stream));
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    return RL_OK;
}

static rl_status show_ids(run *r, uint32_t layer)
{
    if (!r->tap) return RL_OK;
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    const dshape &d = b->shape;
    const size_t n = (size_t)r->n * d.k;
    std::vector<uint32_t> ids(n);
    std::vector<float> values(n);
    CHECK_CUDA(cudaMemcpyAsync(ids.data(), b->s.ids, n * sizeof(uint32_t), cudaMemcpyDeviceToHost, b->stream));
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    for (size_t i = 0; i < n; i++)
        values[i] = (float)ids[i];
    const rl_status status = r->tap(r->tap_ctx, RL_STAGE_ROUTER_IDS, layer, 0, r->n, d.k, values.data());
    if (status != RL_OK) return tap_failed(r, RL_STAGE_ROUTER_IDS, status);
    for (size_t i = 0; i < n; i++) {
        if (!(values[i] >= 0 && values[i] < (float)d.NE))
            return host->fail(err, RL_ERR_ARGUMENT, "the observer chose expert %g of %u", (double)values[i], d.NE);
        ids[i] = (uint32_t)values[i];
    }
    CHECK_CUDA(cudaMemcpyAsync(b->s.ids, ids.data(), n * sizeof(uint32_t), cudaMemcpyHostToDevice, b->stream));
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    return RL_OK;
}

/* ---- Products ------------------------------------------------------------------------------------------------------------ */

/* x as float32 rows and, in fast precision, as h. */
static void multiply(run *r, const dmat &w, const float *x, uint32_t ldx, const hrows &h, float *y, uint32_t ldy)
{
    if (r->b->fast && mma_takes(w, h))
        product_mma(w, h, r->n, NULL, r->n, y, ldy, r->b->stream);
    else
        product_exact(w, x, ldx, r->n, NULL, y, ldy, r->b->stream);
}

/* What a tap rewrote has to reach the f16 rows too. */
static void prepare(run *r, const float *x, uint32_t width, const hrows &h)
{
    if (r->b->fast) launch_prep(x, width, width, r->n, h, r->b->stream);
}

static void mark(run *r, phase ph)
{
    profile_mark(r->b->profile, ph, r->b->stream);
}

/* Two matrices on the same rows. */
static void multiply2(run *r, const dmat &w, float *y, uint32_t ldy, const dmat &w2, float *y2, uint32_t ldy2, const float *x,
                      uint32_t ldx, const hrows &h)
{
    if (r->b->fast && w.format == w2.format && mma_takes(w, h)) {
        product_mma2(w, y, ldy, w2, y2, ldy2, h, r->n, NULL, r->n, r->b->stream);
        return;
    }
    multiply(r, w, x, ldx, h, y, ldy);
    multiply(r, w2, x, ldx, h, y2, ldy2);
}

static void norm(run *r, const float *w, const float *add)
{
    cuda_backend *b = r->b;
    launch_norm(b->s.x, add, w, r->n, b->shape.E, b->shape.eps, b->s.norm, b->shape.E, b->s.h_norm, 0, b->stream);
    mark(r, PHASE_NORM);
}

/* ---- Mixers -------------------------------------------------------------------------------------------------------------- */

static rl_status attention(run *r, const dlayer &l, uint32_t layer)
{
    cuda_backend *b = r->b;
    const dshape &d = b->shape;
    const scratch &s = b->s;
    multiply(r, l.q, s.norm, d.E, s.h_norm, s.raw, 2 * d.H * d.D);
    TRY(show(r, RL_STAGE_AT_QGATE, layer, s.raw));
    multiply2(r, l.k, s.k, d.K * d.D, l.v, s.v, d.K * d.D, s.norm, d.E, s.h_norm);
    mark(r, PHASE_AT_IN);
    launch_q_norm_rope(s.raw, l.q_norm, s, r->n, d, s.q, b->stream);
    launch_k_norm_rope(s.k, l.k_norm, s, r->n, d, b->stream);
    TRY(show(r, RL_STAGE_AT_Q, layer, s.q));
    TRY(show(r, RL_STAGE_AT_K, layer, s.k));
    TRY(show(r, RL_STAGE_AT_V, layer, s.v));
    launch_kv_append(s, r->n, d, l.index, b->stream);
    mark(r, PHASE_AT_ROPE);
    if (r->flash)
        for (uint32_t i = 0; i < r->n_segments; i++)
            launch_flash(s, d, i, r->segs[i].n, r->segs[i].position + r->segs[i].n, l.index, b->cache_half, b->stream);
    else
        launch_attention(s, r->n, d, l.index, r->splits, b->stream);
    mark(r, PHASE_AT_CORE);
    TRY(show(r, RL_STAGE_AT_CORE, layer, s.core));
    launch_attention_gate(s.raw, s.core, s.gated, r->n, d, b->stream);
    TRY(show(r, RL_STAGE_AT_GATED, layer, s.gated));
    prepare(r, s.gated, d.H * d.D, s.h_mix);
    mark(r, PHASE_AT_GATE);
    multiply(r, l.o, s.gated, d.H * d.D, s.h_mix, s.mix, d.E);
    mark(r, PHASE_AT_OUT);
    return RL_OK;
}

static rl_status deltanet(run *r, const dlayer &l, uint32_t layer)
{
    cuda_backend *b = r->b;
    const dshape &d = b->shape;
    const scratch &s = b->s;
    multiply2(r, l.qkv, s.raw, d.cd, l.gate, s.z, d.vd, s.norm, d.E, s.h_norm);
    TRY(show(r, RL_STAGE_DN_QKV, layer, s.raw));
    TRY(show(r, RL_STAGE_DN_Z, layer, s.z));
    multiply(r, l.ba, s.norm, d.E, s.h_norm, s.ba, 2 * d.Hv);
    mark(r, PHASE_DN_IN);
    launch_beta_decay(l, s, r->n, d, b->stream);
    TRY(show(r, RL_STAGE_DN_BETA, layer, s.beta));
    TRY(show(r, RL_STAGE_DN_DECAY, layer, s.decay));
    launch_conv(l, s, r->n, r->n_segments, d, b->stream);
    TRY(show(r, RL_STAGE_DN_CONV, layer, s.conv));
    launch_l2(s, r->n, d, b->stream);
    mark(r, PHASE_DN_CONV);
    TRY(show(r, RL_STAGE_DN_Q, layer, s.dq));
    TRY(show(r, RL_STAGE_DN_K, layer, s.dk));
    launch_delta(l, s, r->n_segments, d, b->stream);
    mark(r, PHASE_DN_STATE);
    TRY(show(r, RL_STAGE_DN_CORE, layer, s.core));
    launch_gated_norm(l, s, r->n, d, b->stream);
    TRY(show(r, RL_STAGE_DN_GATED, layer, s.gated));
    prepare(r, s.gated, d.vd, s.h_mix);
    mark(r, PHASE_DN_GATE);
    multiply(r, l.out, s.gated, d.vd, s.h_mix, s.mix, d.E);
    mark(r, PHASE_DN_OUT);
    return RL_OK;
}

/* ---- Mixture of experts -------------------------------------------------------------------------------------------------- */

static void multiply_experts(run *r, const dmat &w, const float *x, uint32_t ldx, const hrows &h, const grouping &g, float *y,
                             uint32_t ldy)
{
    if (r->b->fast && w.format != WF_F32)
        product_mma(w, h, 0, &g, r->expected, y, ldy, r->b->stream);
    else
        product_exact(w, x, ldx, 0, &g, y, ldy, r->b->stream);
}

static rl_status experts(run *r, const dlayer &l, uint32_t layer)
{
    cuda_backend *b = r->b;
    const dshape &d = b->shape;
    scratch &s = b->s;
    const uint32_t n_pairs = r->n * d.k, tile_rows = mma_tile_rows(r->expected);
    launch_sort(s.ids, n_pairs, d.NE, tile_rows, s, b->stream);
    mark(r, PHASE_SELECT);
    grouping g = {s.pairs, s.tiles, s.n_tiles, d.k, (n_pairs < d.NE ? n_pairs : d.NE) + n_pairs / tile_rows};
    if (b->fast && l.gate_exps.format == l.up_exps.format && l.gate_exps.format != WF_F32) {
        product_mma2(l.gate_exps, s.gate_up, 2 * d.F, l.up_exps, s.gate_up + d.F, 2 * d.F, s.h_norm, 0, &g, r->expected,
                     b->stream);
    } else {
        multiply_experts(r, l.gate_exps, s.norm, d.E, s.h_norm, g, s.gate_up, 2 * d.F);
        multiply_experts(r, l.up_exps, s.norm, d.E, s.h_norm, g, s.gate_up + d.F, 2 * d.F);
    }
    mark(r, PHASE_EXPERT_IN);
    launch_silu_mul(s.gate_up, d.F, n_pairs, s.h_ff, b->stream);
    mark(r, PHASE_EXPERT_ACT);
    g.divisor = 1;
    multiply_experts(r, l.down_exps, s.gate_up, 2 * d.F, s.h_ff, g, s.down, d.E);
    mark(r, PHASE_EXPERT_OUT);
    launch_combine(s.down, s.weights, r->n, d.k, d.E, s.experts, b->stream);
    mark(r, PHASE_COMBINE);
    return show(r, RL_STAGE_EXPERTS, layer, s.experts);
}

static rl_status moe(run *r, const dlayer &l, uint32_t layer)
{
    cuda_backend *b = r->b;
    const dshape &d = b->shape;
    scratch &s = b->s;
    /* Float weights are multiplied to float32's accuracy in every precision: near ties decide which experts run. */
    multiply(r, l.router, s.norm, d.E, s.h_norm, s.router, d.NE);
    mark(r, PHASE_ROUTER);
    TRY(show(r, RL_STAGE_ROUTER_LOGITS, layer, s.router));
    launch_route(s.router, r->n, d, s.ids, s.weights, b->stream);
    TRY(show_ids(r, layer));
    TRY(show(r, RL_STAGE_ROUTER_WEIGHTS, layer, s.weights));
    TRY(experts(r, l, layer));
    multiply2(r, l.gate_shared, s.shared_gu, 2 * d.Fs, l.up_shared, s.shared_gu + d.Fs, 2 * d.Fs, s.norm, d.E, s.h_norm);
    launch_silu_mul(s.shared_gu, d.Fs, r->n, s.h_sff, b->stream);
    multiply(r, l.down_shared, s.shared_gu, 2 * d.Fs, s.h_sff, s.shared, d.E);
    launch_shared_scale(s.norm, l.shared_router, s.shared, r->n, d.E, b->stream);
    mark(r, PHASE_SHARED);
    return show(r, RL_STAGE_SHARED, layer, s.shared);
}

/* ---- Frame --------------------------------------------------------------------------------------------------------------- */

static rl_status run_layer(run *r, const dlayer &l, uint32_t layer)
{
    cuda_backend *b = r->b;
    const dshape &d = b->shape;
    const scratch &s = b->s;
    norm(r, l.attn_norm, NULL);
    TRY(show(r, RL_STAGE_ATTN_NORM, layer, s.norm));
    if (r->tap) prepare(r, s.norm, d.E, s.h_norm);
    TRY(l.recurrent ? deltanet(r, l, layer) : attention(r, l, layer));
    TRY(show(r, RL_STAGE_MIX_OUT, layer, s.mix));
    if (r->tap) {
        launch_add(s.x, s.mix, NULL, (uint64_t)r->n * d.E, b->stream);
        TRY(show(r, RL_STAGE_MIX_RESIDUAL, layer, s.x));
    }
    norm(r, l.post_norm, r->tap ? NULL : s.mix);
    TRY(show(r, RL_STAGE_FFN_NORM, layer, s.norm));
    if (r->tap) prepare(r, s.norm, d.E, s.h_norm);
    TRY(moe(r, l, layer));
    launch_add(s.x, s.experts, s.shared, (uint64_t)r->n * d.E, b->stream);
    return show(r, RL_STAGE_LAYER_OUT, layer, s.x);
}

/* Logits of many rows are tens of megabytes: one thread would take longer than the pass. */
static void copy_out(float *to, const float *from, size_t bytes)
{
    const size_t each = 4u << 20, n = bytes / each < 8 ? bytes / each : 8;
    std::vector<std::thread> others;
    const size_t part = n > 1 ? bytes / n / 64 * 64 : bytes;
    for (size_t i = 1; i < n; i++)
        others.emplace_back(
            [=] { memcpy((uint8_t *)to + i * part, (const uint8_t *)from + i * part, i + 1 < n ? part : bytes - i * part); });
    memcpy(to, from, part);
    for (std::thread &t : others)
        t.join();
}

/* Logits of the rows in s.wanted, out of `hidden`, a few rows at a time. */
static rl_status run_head(run *r, const dmat &head, const float *hidden, uint32_t n_wanted, float *out)
{
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    const scratch &s = b->s;
    const uint32_t E = b->shape.E, V = head.rows;
    for (uint32_t done = 0; done < n_wanted; done += b->logits_rows) {
        const uint32_t n = n_wanted - done < b->logits_rows ? n_wanted - done : b->logits_rows;
        run part = *r;
        part.n = n;
        launch_gather(hidden, s.wanted + done, n, E, s.join, b->stream);
        prepare(&part, s.join, E, s.h_join);
        multiply(&part, head, s.join, E, s.h_join, s.logits, V);
        CHECK_CUDA(
            cudaMemcpyAsync(b->pinned_logits, s.logits, (size_t)n * V * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
        CHECK_CUDA(cudaStreamSynchronize(b->stream));
        copy_out(out + (size_t)done * V, b->pinned_logits, (size_t)n * V * sizeof(float));
    }
    return RL_OK;
}

static rl_status upload(run *r, const drow *rows, const dseg *segs, const uint32_t *wanted, uint32_t n_wanted)
{
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    /* The last pass has ended, so the pinned descriptors are free. */
    uint8_t *p = b->pinned;
    const size_t row_bytes = r->n * sizeof(drow), seg_bytes = r->n_segments * sizeof(dseg);
    memcpy(p, rows, row_bytes);
    memcpy(p + row_bytes, segs, seg_bytes);
    if (n_wanted) memcpy(p + row_bytes + seg_bytes, wanted, n_wanted * sizeof(uint32_t));
    CHECK_CUDA(cudaMemcpyAsync(b->s.rows, p, row_bytes, cudaMemcpyHostToDevice, b->stream));
    CHECK_CUDA(cudaMemcpyAsync(b->s.segs, p + row_bytes, seg_bytes, cudaMemcpyHostToDevice, b->stream));
    if (n_wanted)
        CHECK_CUDA(cudaMemcpyAsync(b->s.wanted, p + row_bytes + seg_bytes, n_wanted * sizeof(uint32_t), cudaMemcpyHostToDevice,
                                   b->stream));
    return RL_OK;
}

/* Splits of the caches so that the blocks of an attention fill the device. */
uint32_t attention_splits(const cuda_backend *b, uint32_t n, uint32_t positions)
{
    const dshape &d = b->shape;
    const uint32_t per = d.H / d.K, g = per % 8 == 0 ? 8 : per % 4 == 0 ? 4 : per % 2 == 0 ? 2 : 1;
    const uint32_t blocks = n * d.H / g, room = 2 * (uint32_t)b->sm_count / blocks, chunks = (positions + 127) / 128;
    const uint32_t splits = room < chunks ? room : chunks;
    return splits < 1 ? 1 : splits > MAX_SPLITS ? MAX_SPLITS : splits;
}

/* Passes of many rows in fast precision, when the buffer for the longest of their caches can be had. */
static rl_status choose_attention(run *r, uint32_t positions)
{
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    r->flash = b->fast && r->n >= FLASH_ROWS && flash_takes(b->shape);
    if (!r->flash || b->shape.kv_f16) return RL_OK;
    const uint64_t need = 2ull * positions * b->shape.K * b->shape.D * sizeof(__half);
    if (need <= b->cache_half_bytes) return RL_OK;
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    CHECK_CUDA(cudaFree(b->cache_half));
    b->cache_half = NULL;
    b->cache_half_bytes = 0;
    if (cudaMalloc((void **)&b->cache_half, need + need / 2) != cudaSuccess) {
        (void)cudaGetLastError(); /* the other kernel needs no buffer */
        r->flash = false;
        return RL_OK;
    }
    b->cache_half_bytes = need + need / 2;
    return RL_OK;
}

/* ---- Trunk --------------------------------------------------------------------------------------------------------------- */

static rl_status check_pass(const cuda_backend *b, const rl_pass *pass, run *r, uint32_t *positions)
{
    for (uint32_t i = 0; i < pass->n_segments; i++) {
        const rl_segment *g = &pass->segments[i];
        const cuda_seq *s = (const cuda_seq *)g->seq;
        if (g->n > b->max_rows - r->n)
            return host->fail(r->err, RL_ERR_ARGUMENT, "a pass has more than %u rows, the most this backend was opened for",
                              b->max_rows);
        if (g->n > s->capacity - s->position)
            return host->fail(r->err, RL_ERR_LIMIT, "a sequence at position %u cannot take %u more tokens, its context is %u",
                              s->position, g->n, s->capacity);
        if (g->want != RL_LOGITS_NONE && g->n && !pass->logits)
            return host->fail(r->err, RL_ERR_ARGUMENT, "a pass wants logits but gives no room for them");
        r->n += g->n;
        if (g->n && *positions < s->position + g->n) *positions = s->position + g->n;
    }
    return RL_OK;
}

static void describe(const rl_pass *pass, std::vector<drow> &rows, std::vector<dseg> &segs, std::vector<uint32_t> &wanted)
{
    for (uint32_t i = 0; i < pass->n_segments; i++) {
        const rl_segment *g = &pass->segments[i];
        const cuda_seq *s = (const cuda_seq *)g->seq;
        if (!g->n) continue;
        const uint32_t row0 = (uint32_t)rows.size(), want = g->want == RL_LOGITS_ALL ? g->n : g->want == RL_LOGITS_LAST ? 1 : 0;
        for (uint32_t t = 0; t < g->n; t++)
            rows.push_back({g->ids[t], s->position + t, (uint32_t)segs.size(), t});
        for (uint32_t t = g->n - want; t < g->n; t++)
            wanted.push_back(row0 + t);
        segs.push_back({s->recurrent, s->kv, row0, g->n, s->position, s->capacity});
    }
}

static rl_status show_logits(run *r, const rl_pass *pass)
{
    const uint32_t V = r->b->shape_vocab;
    float *logits = pass->logits;
    for (uint32_t i = 0, row = 0; r->tap && i < pass->n_segments; row += pass->segments[i++].n) {
        const rl_segment *g = &pass->segments[i];
        const uint32_t n = g->want == RL_LOGITS_ALL ? g->n : g->want == RL_LOGITS_LAST && g->n ? 1 : 0;
        if (!n) continue;
        const rl_status status = r->tap(r->tap_ctx, RL_STAGE_LOGITS, 0, row + g->n - n, n, V, logits);
        if (status != RL_OK) return tap_failed(r, RL_STAGE_LOGITS, status);
        logits += (size_t)n * V;
    }
    return RL_OK;
}

/* Embedding to the final norm. */
static rl_status run_body(run *r)
{
    cuda_backend *b = r->b;
    const scratch &s = b->s;
    const uint32_t E = b->shape.E;
    launch_embed(b->embed, s.rows, r->n, s.x, E, b->stream);
    launch_rope_table(s, b->rope_freq, r->n, b->shape, b->stream);
    mark(r, PHASE_START);
    TRY(show(r, RL_STAGE_EMBED, 0, s.x));
    for (uint32_t i = 0; i < b->layers.size(); i++)
        TRY(run_layer(r, b->layers[i], i));
    launch_norm(s.x, NULL, b->output_norm, r->n, E, b->shape.eps, s.hidden, E, hrows{}, 0, b->stream);
    return show(r, RL_STAGE_FINAL_NORM, 0, s.hidden);
}

/* Small passes are recorded once per shape and replayed: their launches cost more than their work. */
static rl_status run_trunk(run *r, const rl_pass *pass, const std::vector<uint32_t> &wanted)
{
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    const scratch &s = b->s;
    const uint32_t E = b->shape.E;
    if (!r->tap && !b->profile->on && r->n <= GRAPH_ROWS)
        TRY(replay(
            b, {r->n, r->n_segments, r->splits, 0}, [&] { return run_body(r); }, err));
    else
        TRY(run_body(r));
    if (pass->hidden)
        CHECK_CUDA(
            cudaMemcpyAsync(pass->hidden, s.hidden, (size_t)r->n * E * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
    TRY(run_head(r, b->head, s.hidden, (uint32_t)wanted.size(), pass->logits));
    CHECK_CUDA(cudaGetLastError());
    mark(r, PHASE_HEAD);
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    profile_end(b->profile, r->n);
    return show_logits(r, pass);
}

/* One row through the fused kernels; logits and hidden may be NULL. */
static rl_status run_fused(run *r, float *logits, float *hidden, uint32_t splits)
{
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    const size_t bytes = (size_t)b->shape_vocab * sizeof(float);
    const graph_key key = {1, 1, splits, logits ? 2 : 1};
    TRY(replay(
        b, key,
        [&]() -> rl_status {
            decode_step(b, splits, logits != NULL);
            if (logits) CHECK_CUDA(cudaMemcpyAsync(b->pinned_logits, b->s.logits, bytes, cudaMemcpyDeviceToHost, b->stream));
            return RL_OK;
        },
        err));
    if (hidden && !logits)
        launch_norm(b->s.x, NULL, b->output_norm, 1, b->shape.E, b->shape.eps, b->s.hidden, b->shape.E, hrows{}, 0, b->stream);
    if (hidden) CHECK_CUDA(cudaMemcpyAsync(hidden, b->s.hidden, b->shape.E * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    if (logits) memcpy(logits, b->pinned_logits, bytes);
    return RL_OK;
}

/* One row for each of a few sequences goes faster one by one through the fused kernels than together. */
static bool goes_fused(const run *r, const rl_pass *pass)
{
    if (!r->b->fused || r->tap || r->b->profile->on || r->n > FUSED_ROWS) return false;
    for (uint32_t i = 0; i < pass->n_segments; i++)
        if (pass->segments[i].n > 1) return false;
    return true;
}

static rl_status run_fused_rows(run *r, const rl_pass *pass)
{
    cuda_backend *b = r->b;
    float *logits = pass->logits, *hidden = pass->hidden;
    for (uint32_t i = 0; i < pass->n_segments; i++) {
        const rl_segment *g = &pass->segments[i];
        if (!g->n) continue;
        const cuda_seq *s = (const cuda_seq *)g->seq;
        const bool want = g->want != RL_LOGITS_NONE;
        const drow row = {g->ids[0], s->position, 0, 0};
        const dseg seg = {s->recurrent, s->kv, 0, 1, s->position, s->capacity};
        run one = *r;
        one.n = one.n_segments = 1;
        TRY(upload(&one, &row, &seg, NULL, 0));
        TRY(run_fused(&one, want ? logits : NULL, hidden, decode_splits(b, s->position + 1)));
        if (want) logits += b->shape_vocab;
        if (hidden) hidden += b->shape.E;
    }
    return RL_OK;
}

rl_status cuda_forward(rl_backend *backend, const rl_pass *pass, rl_error *err)
{
    cuda_backend *b = (cuda_backend *)backend;
    run r = {};
    r.b = b;
    r.err = err;
    r.tap = pass->tap;
    r.tap_ctx = pass->tap_ctx;
    uint32_t positions = 0;
    TRY(check_pass(b, pass, &r, &positions));
    if (r.n == 0) return RL_OK;
    CHECK_CUDA(cudaSetDevice(b->device));
    if (goes_fused(&r, pass)) {
        TRY(run_fused_rows(&r, pass));
        for (uint32_t i = 0; i < pass->n_segments; i++)
            ((cuda_seq *)pass->segments[i].seq)->position += pass->segments[i].n;
        return RL_OK;
    }
    std::vector<drow> rows;
    std::vector<dseg> segs;
    std::vector<uint32_t> wanted;
    describe(pass, rows, segs, wanted);
    r.n_segments = (uint32_t)segs.size();
    r.splits = attention_splits(b, r.n, positions);
    r.expected = (r.n * b->shape.k + b->shape.NE - 1) / b->shape.NE;
    r.segs = segs.data();
    TRY(choose_attention(&r, positions));
    TRY(upload(&r, rows.data(), segs.data(), wanted.data(), (uint32_t)wanted.size()));
    mark(&r, PHASE_START);
    TRY(run_trunk(&r, pass, wanted));
    for (uint32_t i = 0; i < pass->n_segments; i++)
        ((cuda_seq *)pass->segments[i].seq)->position += pass->segments[i].n;
    return RL_OK;
}

/* ---- MTP block ----------------------------------------------------------------------------------------------------------- */

static rl_status mtp_part(run *r, const cuda_seq *seq, const int32_t *ids, const float *hidden, float *logits,
                          float *hidden_out)
{
    cuda_backend *b = r->b;
    rl_error *err = r->err;
    const scratch &s = b->s;
    const uint32_t E = b->shape.E;
    std::vector<drow> rows;
    std::vector<uint32_t> all;
    for (uint32_t t = 0; t < r->n; t++) {
        rows.push_back({ids[t], seq->mtp_position + t, 0, t});
        all.push_back(t);
    }
    const dseg seg = {seq->recurrent, seq->kv, 0, r->n, seq->mtp_position, seq->capacity};
    r->segs = &seg;
    TRY(choose_attention(r, seq->mtp_position + r->n));
    TRY(upload(r, rows.data(), &seg, all.data(), r->n));
    launch_rope_table(s, b->rope_freq, r->n, b->shape, b->stream);
    launch_embed(b->mtp_embed, s.rows, r->n, s.norm, E, b->stream);
    launch_norm(s.norm, NULL, b->enorm, r->n, E, b->shape.eps, s.join, 2 * E, hrows{}, 0, b->stream);
    CHECK_CUDA(cudaMemcpyAsync(s.mix, hidden, (size_t)r->n * E * sizeof(float), cudaMemcpyHostToDevice, b->stream));
    launch_norm(s.mix, NULL, b->hnorm, r->n, E, b->shape.eps, s.join + E, 2 * E, hrows{}, 0, b->stream);
    prepare(r, s.join, 2 * E, s.h_join);
    multiply(r, b->eh_proj, s.join, 2 * E, s.h_join, s.x, E);
    TRY(run_layer(r, b->mtp_layer, 0));
    launch_norm(s.x, NULL, b->head_norm, r->n, E, b->shape.eps, s.hidden, E, hrows{}, 0, b->stream);
    if (hidden_out)
        CHECK_CUDA(cudaMemcpyAsync(hidden_out, s.hidden, (size_t)r->n * E * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
    if (logits) TRY(run_head(r, b->mtp_head, s.hidden, r->n, logits));
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaStreamSynchronize(b->stream));
    profile_end(b->profile, r->n);
    return RL_OK;
}

rl_status cuda_mtp(rl_backend *backend, rl_seq *seq, const int32_t *ids, const float *hidden, uint32_t n, float *logits,
                   float *hidden_out, rl_error *err)
{
    cuda_backend *b = (cuda_backend *)backend;
    cuda_seq *s = (cuda_seq *)seq;
    const rl_model *m = backend->model;
    const size_t E = b->shape.E;
    if (!m->hp.n_mtp) return host->fail(err, RL_ERR_UNSUPPORTED, "this model has no MTP block");
    if (n > s->capacity - s->mtp_position)
        return host->fail(err, RL_ERR_LIMIT, "an MTP cache at position %u cannot take %u more pairs, its context is %u",
                          s->mtp_position, n, s->capacity);
    CHECK_CUDA(cudaSetDevice(b->device));
    for (uint32_t done = 0; done < n;) {
        run r = {};
        r.b = b;
        r.err = err;
        r.n = n - done < b->max_rows ? n - done : b->max_rows;
        r.n_segments = 1;
        r.splits = attention_splits(b, r.n, s->mtp_position + r.n);
        r.expected = (r.n * b->shape.k + b->shape.NE - 1) / b->shape.NE;
        TRY(mtp_part(&r, s, ids + done, hidden + done * E, logits ? logits + (size_t)done * m->hp.n_vocab : NULL,
                     hidden_out ? hidden_out + done * E : NULL));
        s->mtp_position += r.n;
        done += r.n;
    }
    return RL_OK;
}
