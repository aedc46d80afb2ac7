/* backend/cuda/delta: the gated DeltaNet mixer between its projections.
 *
 * Row d of a head's state holds M[.][d] (the exported layout). Rows are independent given k and q, so blocks take some rows of
 * one head through all tokens of a segment with the state in registers. Reading with k before the write and with q after it are
 * one pass over the old state: M_new^T q = decay * M^T q + (k.q) * write. */
#include "backend/cuda/rows.cuh"

__global__ void k_beta_decay(const float *ba, const float *a, const float *dt, dshape d, float *beta, float *decay)
{
    const uint64_t row = blockIdx.x;
    const uint32_t r = d.Hv / d.Hk;
    for (uint32_t h = threadIdx.x; h < d.Hv; h += blockDim.x) {
        const float *in = ba + row * 2 * d.Hv + h / r * 2 * r;
        const float x = in[r + h % r] + dt[h];
        beta[row * d.Hv + h] = sigmoid(in[h % r]);
        decay[row * d.Hv + h] = a[h] * (x > 20.0f ? x : log1pf(expf(x)));
    }
}

void launch_beta_decay(const dlayer &l, const scratch &s, uint32_t n, const dshape &d, cudaStream_t st)
{
    k_beta_decay<<<n, 64, 0, st>>>(s.ba, l.a, l.dt_bias, d, s.beta, s.decay);
}

__global__ void k_conv(const float *u, const float *w, const drow *rows, const dseg *segs, dshape d, uint32_t index, float *out)
{
    const uint64_t row = blockIdx.y;
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= d.cd) return;
    const drow r = rows[row];
    const float *past = segs[r.segment].recurrent + index * d.recurrent_layer;
    float sum = 0;
    for (uint32_t i = 0; i < d.W; i++) {
        const int back = (int)(d.W - 1 - i); /* tokens before this one */
        const float v = back <= (int)r.t ? u[(row - back) * d.cd + c] : past[(d.W - 1 + r.t - back) * (uint64_t)d.cd + c];
        sum = fmaf(w[c * d.W + i], v, sum);
    }
    out[row * d.cd + c] = silu(sum);
}

/* Moves a segment's last W-1 inputs into its state, after k_conv has read the old ones. */
__global__ void k_conv_state(const float *u, const dseg *segs, dshape d, uint32_t index)
{
    const dseg g = segs[blockIdx.y];
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= d.cd) return;
    float *past = g.recurrent + index * d.recurrent_layer;
    float kept[RL_MAX_CONV];
    for (uint32_t i = 0; i + 1 < d.W; i++) {
        const uint32_t at = g.n + i; /* in past followed by u */
        kept[i] = at < d.W - 1 ? past[(uint64_t)at * d.cd + c] : u[(uint64_t)(g.row0 + at - (d.W - 1)) * d.cd + c];
    }
    for (uint32_t i = 0; i + 1 < d.W; i++)
        past[(uint64_t)i * d.cd + c] = kept[i];
}

void launch_conv(const dlayer &l, const scratch &s, uint32_t n, uint32_t n_segments, const dshape &d, cudaStream_t st)
{
    k_conv<<<dim3(div_up(d.cd, 256), n), 256, 0, st>>>(s.raw, l.conv, s.rows, s.segs, d, l.index, s.conv);
    k_conv_state<<<dim3(div_up(d.cd, 256), n_segments), 256, 0, st>>>(s.raw, s.segs, d, l.index);
}

__global__ void k_l2(const float *conv, dshape d, float *dq, float *dk)
{
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    const uint32_t head = blockIdx.y; /* query heads, then key heads */
    const float *in = conv + row * d.cd + (uint64_t)head * d.S;
    float *out = head < d.Hk ? dq + row * d.kd + head * d.S : dk + row * d.kd + (head - d.Hk) * d.S;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < d.S; i += blockDim.x)
        sum = fmaf(in[i], in[i], sum);
    block_sum_max(sum, max, part);
    const float r = 1.0f / sqrtf(sum + d.eps);
    for (uint32_t i = threadIdx.x; i < d.S; i += blockDim.x)
        out[i] = in[i] * r;
}

void launch_l2(const scratch &s, uint32_t n, const dshape &d, cudaStream_t st)
{
    k_l2<<<dim3(n, 2 * d.Hk), 64, 0, st>>>(s.conv, d, s.dq, s.dk);
}

/* Any S: a warp per state row, the state in global memory. */
__global__ void k_delta_any(const float *dq, const float *dk, const float *conv, const float *beta, const float *decay,
                            const dseg *segs, dshape d, uint32_t index, float *core)
{
    const dseg g = segs[blockIdx.z];
    const uint32_t h = blockIdx.y, lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= d.S) return;
    const uint32_t j = h / (d.Hv / d.Hk);
    float *m = g.recurrent + index * d.recurrent_layer + (uint64_t)(d.W - 1) * d.cd + ((uint64_t)h * d.S + row) * d.S;
    const float scale = 1.0f / sqrtf((float)d.S);
    for (uint64_t t = g.row0; t < (uint64_t)g.row0 + g.n; t++) {
        const float *q = dq + t * d.kd + j * d.S, *k = dk + t * d.kd + j * d.S;
        const float keep = expf(decay[t * d.Hv + h]);
        float mk = 0, mq = 0, kq = 0;
        for (uint32_t i = lane; i < d.S; i += 32) {
            const float v = m[i] * keep;
            mk = fmaf(v, k[i], mk);
            mq = fmaf(v, q[i], mq);
            kq = fmaf(k[i], q[i], kq);
        }
        mk = warp_sum(mk), mq = warp_sum(mq), kq = warp_sum(kq);
        const float write = beta[t * d.Hv + h] * (conv[t * d.cd + 2 * d.kd + h * d.S + row] - mk);
        for (uint32_t i = lane; i < d.S; i += 32)
            m[i] = fmaf(k[i], write, m[i] * keep);
        if (lane == 0) core[t * d.vd + h * d.S + row] = (mq + kq * write) * scale;
    }
}

/* S = 8 * PER: eight lanes per state row, PER numbers each, in float4s eight lanes apart (so that a row's loads are
 * contiguous). Tokens are staged STEP at a time in shared memory. */
enum { STEP = 16, DELTA_THREADS = 128, DELTA_ROWS = DELTA_THREADS / 8 };

template <int PER>
__global__ void __launch_bounds__(DELTA_THREADS)
    k_delta(const float *dq, const float *dk, const float *conv, const float *beta, const float *decay, const dseg *segs,
            dshape d, uint32_t index, float *core)
{
    constexpr int S = PER * 8;
    __shared__ __align__(16) float ks[2][STEP][S], qs[2][STEP][S];
    __shared__ float vs[2][STEP][DELTA_ROWS], bs[2][STEP], gs[2][STEP];
    const dseg g = segs[blockIdx.z];
    const uint32_t h = blockIdx.y, part = threadIdx.x % 8, mine = threadIdx.x / 8, row = blockIdx.x * DELTA_ROWS + mine;
    const uint32_t j = h / (d.Hv / d.Hk);
    float *m = g.recurrent + index * d.recurrent_layer + (uint64_t)(d.W - 1) * d.cd + ((uint64_t)h * S + row) * S;
    const float scale = 1.0f / sqrtf((float)S);
    float4 state[PER / 4];
#pragma unroll
    for (int i = 0; i < PER / 4; i++)
        state[i] = *(const float4 *)(m + 32 * i + 4 * part);
    float4 nk[STEP * S / 4 / DELTA_THREADS], nq[STEP * S / 4 / DELTA_THREADS];
    float nv[STEP * DELTA_ROWS / DELTA_THREADS], nb = 0, ng = 0;
    constexpr int LOADS = STEP * S / 4 / DELTA_THREADS, VALUES = STEP * DELTA_ROWS / DELTA_THREADS;
    auto fetch = [&](uint32_t t0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const uint32_t at = i * DELTA_THREADS + threadIdx.x, t = t0 + at / (S / 4), c = at % (S / 4) * 4;
            const bool in = t < g.n;
            const uint64_t from = (uint64_t)(g.row0 + t) * d.kd + j * S + c;
            nk[i] = in ? *(const float4 *)(dk + from) : make_float4(0, 0, 0, 0);
            nq[i] = in ? *(const float4 *)(dq + from) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const uint32_t at = i * DELTA_THREADS + threadIdx.x, t = t0 + at / DELTA_ROWS;
            nv[i] = t < g.n ? conv[(uint64_t)(g.row0 + t) * d.cd + 2 * d.kd + h * S + blockIdx.x * DELTA_ROWS + at % DELTA_ROWS]
                            : 0.0f;
        }
        if (threadIdx.x < STEP) {
            const uint32_t t = t0 + threadIdx.x;
            nb = t < g.n ? beta[(uint64_t)(g.row0 + t) * d.Hv + h] : 0.0f;
            ng = t < g.n ? expf(decay[(uint64_t)(g.row0 + t) * d.Hv + h]) : 1.0f;
        }
    };
    auto store = [&](int b) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const uint32_t at = i * DELTA_THREADS + threadIdx.x, t = at / (S / 4), c = at % (S / 4) * 4;
            *(float4 *)&ks[b][t][c] = nk[i];
            *(float4 *)&qs[b][t][c] = nq[i];
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const uint32_t at = i * DELTA_THREADS + threadIdx.x;
            vs[b][at / DELTA_ROWS][at % DELTA_ROWS] = nv[i];
        }
        if (threadIdx.x < STEP) bs[b][threadIdx.x] = nb, gs[b][threadIdx.x] = ng;
    };
    fetch(0);
    store(0);
    __syncthreads();
    int b = 0;
    for (uint32_t t0 = 0; t0 < g.n; t0 += STEP, b ^= 1) {
        const bool more = t0 + STEP < g.n;
        if (more) fetch(t0 + STEP);
        const int steps = g.n - t0 < STEP ? (int)(g.n - t0) : STEP;
        for (int t = 0; t < steps; t++) {
            float4 k[PER / 4];
            float mk = 0, mq = 0, kq = 0;
#pragma unroll
            for (int i = 0; i < PER / 4; i++) {
                k[i] = *(const float4 *)&ks[b][t][32 * i + 4 * part];
                const float4 q = *(const float4 *)&qs[b][t][32 * i + 4 * part];
                mk = fmaf(state[i].x, k[i].x, fmaf(state[i].y, k[i].y, fmaf(state[i].z, k[i].z, fmaf(state[i].w, k[i].w, mk))));
                mq = fmaf(state[i].x, q.x, fmaf(state[i].y, q.y, fmaf(state[i].z, q.z, fmaf(state[i].w, q.w, mq))));
                kq = fmaf(k[i].x, q.x, fmaf(k[i].y, q.y, fmaf(k[i].z, q.z, fmaf(k[i].w, q.w, kq))));
            }
#pragma unroll
            for (int x = 4; x; x /= 2) {
                mk += __shfl_xor_sync(~0u, mk, x);
                mq += __shfl_xor_sync(~0u, mq, x);
                kq += __shfl_xor_sync(~0u, kq, x);
            }
            const float keep = gs[b][t], write = bs[b][t] * (vs[b][t][mine] - keep * mk);
#pragma unroll
            for (int i = 0; i < PER / 4; i++) {
                state[i].x = fmaf(k[i].x, write, state[i].x * keep);
                state[i].y = fmaf(k[i].y, write, state[i].y * keep);
                state[i].z = fmaf(k[i].z, write, state[i].z * keep);
                state[i].w = fmaf(k[i].w, write, state[i].w * keep);
            }
            if (part == 0) core[(uint64_t)(g.row0 + t0 + t) * d.vd + h * S + row] = (keep * mq + kq * write) * scale;
        }
        if (more) store(b ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PER / 4; i++)
        *(float4 *)(m + 32 * i + 4 * part) = state[i];
}

void launch_delta(const dlayer &l, const scratch &s, uint32_t n_segments, const dshape &d, cudaStream_t st)
{
    const dim3 grid(d.S / DELTA_ROWS, d.Hv, n_segments);
    if (d.S == 128)
        k_delta<16><<<grid, DELTA_THREADS, 0, st>>>(s.dq, s.dk, s.conv, s.beta, s.decay, s.segs, d, l.index, s.core);
    else if (d.S == 64)
        k_delta<8><<<grid, DELTA_THREADS, 0, st>>>(s.dq, s.dk, s.conv, s.beta, s.decay, s.segs, d, l.index, s.core);
    else
        k_delta_any<<<dim3(div_up(d.S, 4), d.Hv, n_segments), 128, 0, st>>>(s.dq, s.dk, s.conv, s.beta, s.decay, s.segs, d,
                                                                            l.index, s.core);
}

__global__ void k_gated_norm(const float *core, const float *z, const float *w, dshape d, float *gated)
{
    __shared__ float part[64];
    const uint64_t at = (uint64_t)blockIdx.x * d.Hv + blockIdx.y;
    const float *in = core + at * d.S;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < d.S; i += blockDim.x)
        sum = fmaf(in[i], in[i], sum);
    block_sum_max(sum, max, part);
    const float r = 1.0f / sqrtf(sum / (float)d.S + d.eps);
    for (uint32_t i = threadIdx.x; i < d.S; i += blockDim.x)
        gated[at * d.S + i] = in[i] * r * w[i] * silu(z[at * d.S + i]);
}

void launch_gated_norm(const dlayer &l, const scratch &s, uint32_t n, const dshape &d, cudaStream_t st)
{
    k_gated_norm<<<dim3(n, d.Hv), 64, 0, st>>>(s.core, s.z, l.ssm_norm, d, s.gated);
}
