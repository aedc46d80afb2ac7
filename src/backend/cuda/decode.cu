/* backend/cuda/decode: one row of one sequence, fused.
 *
 * Six launches per layer, all inside one graph per token:
 *   in       norm, quantise, then the rows of qkv, z, ba (or q, k, v)
 *   mix      convolution, l2 norms and the delta rule (or rotary, cache and attention)
 *   out      gate, quantise, output projection, residual
 *   route    norm, router rows in float32, gate and up of the shared expert
 *   experts  top-k in every block, then silu(gate) * up of the chosen experts
 *   down     a warp owns an output row across all chosen experts and the shared one; residual
 * A launch may begin before its predecessor has ended (gemv.cuh). */
#include "backend/cuda/decode.cuh"
#include "backend/cuda/gemv.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_PARTS = 3, PAIRS = 32, TOP_EXPERTS = 512, TOP_K_MAX = 16 };

/* ---- Products of a prepared vector --------------------------------------------------------------------------------------- */

struct gemv_part {
    dmat m;
    float *y;
    uint32_t tile0; /* first tile of the part; a tile is WARPS * R rows, WARPS rows of floats */
};

struct gemv_args {
    gemv_part part[MAX_PARTS];
    uint32_t n_parts, n_tiles;
    vector_source src;
    float *copy; /* NORM: block 0 leaves the normed row here when not NULL */
    /* DELTA: moves the convolution's inputs on, now that the mixer has read them */
    const dseg *segs;
    const float *raw;
    dshape shape;
    uint32_t index;
};

static __device__ __forceinline__ void prefetch_rows(const dmat &m, uint64_t row0, uint32_t rows, int code, int extra,
                                                     int scale)
{
    const uint64_t at = row0 * m.units, n = (uint64_t)rows * m.units;
    for (uint64_t i = threadIdx.x * 128ull; i < n * code; i += blockDim.x * 128ull)
        prefetch_l2(m.codes + at * code + i);
    for (uint64_t i = threadIdx.x * 128ull; i < n * extra; i += blockDim.x * 128ull)
        prefetch_l2(m.extra + at * extra + i);
    for (uint64_t i = threadIdx.x * 128ull; i < n * scale; i += blockDim.x * 128ull)
        prefetch_l2(m.scales + at * scale + i);
}

template <int R> static __device__ __forceinline__ uint32_t tile_rows(int format)
{
    return format == WF_F32 ? WARPS : WARPS * R;
}

template <int SOURCE, int R> __global__ void __launch_bounds__(THREADS, R > 2 ? 2 : 3) k_gemv(gemv_args g)
{
    extern __shared__ __align__(16) uint8_t smem[];
    let_next_start();
    const act8 a = act8_at(smem, pad256(g.src.width) / 64);
    float *xs = (float *)(smem + act8_bytes(a.units));
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto part_of = [&](uint32_t tile) {
        uint32_t p = 0;
        while (p + 1 < g.n_parts && tile >= g.part[p + 1].tile0)
            p++;
        return p;
    };
    if (blockIdx.x < g.n_tiles) {
        const gemv_part &p = g.part[part_of(blockIdx.x)];
        const uint32_t rows = tile_rows<R>(p.m.format), row0 = (blockIdx.x - p.tile0) * rows;
        const uint32_t n = p.m.rows - row0 < rows ? p.m.rows - row0 : rows;
        FOR_FORMAT(p.m.format, prefetch_rows(p.m, row0, n, code_bytes(FMT), extra_bytes(FMT), scale_bytes(FMT)))
    }
    wait_previous();
    prepare_vector<SOURCE>(g.src, xs, a);
    if (SOURCE == SOURCE_NORM && g.copy && blockIdx.x == 0)
        for (uint32_t i = threadIdx.x; i < g.src.width; i += THREADS)
            g.copy[i] = xs[i];
    if (SOURCE == SOURCE_DELTA) {
        const dshape &d = g.shape;
        float *past = g.segs[0].recurrent + g.index * d.recurrent_layer;
        for (uint32_t c = blockIdx.x * THREADS + threadIdx.x; c < d.cd; c += gridDim.x * THREADS) {
            for (uint32_t i = 0; i + 2 < d.W; i++)
                past[(uint64_t)i * d.cd + c] = __ldcg(past + (uint64_t)(i + 1) * d.cd + c);
            past[(uint64_t)(d.W - 2) * d.cd + c] = __ldcg(g.raw + c);
        }
    }
    for (uint32_t tile = blockIdx.x; tile < g.n_tiles; tile += gridDim.x) {
        const gemv_part &p = g.part[part_of(tile)];
        if (p.m.format == WF_F32) {
            const uint32_t row = (tile - p.tile0) * WARPS + warp;
            if (SOURCE != SOURCE_NORM || row >= p.m.rows) continue;
            const float v = float_row(p.m, row, xs);
            if (lane == 0) p.y[row] = v;
            continue;
        }
        const uint32_t row = ((tile - p.tile0) * WARPS + warp) * R;
        if (row >= p.m.rows) continue;
        const uint32_t valid = p.m.rows - row < R ? p.m.rows - row : R;
        float out[R];
        FOR_BLOCK_FORMAT(p.m.format, (gemv_rows<FMT, R>(p.m, row, valid, a, out)))
        float mine = out[0];
#pragma unroll
        for (int r = 1; r < R; r++)
            mine = (int)lane == r ? out[r] : mine;
        if (lane < valid) p.y[row + lane] = SOURCE == SOURCE_NORM ? mine : __ldcg(p.y + row + lane) + mine;
    }
}

/* ---- Delta rule ---------------------------------------------------------------------------------------------------------- */

struct delta_args {
    const float *raw, *ba, *conv, *a, *dt;
    const dseg *segs;
    dshape d;
    uint32_t index;
    float *core;
};

/* A block takes THREADS / 8 state rows of a value head; S = 8 * PER. */
template <int PER> __global__ void __launch_bounds__(THREADS) k_delta_step(delta_args g)
{
    constexpr int S = PER * 8, ROWS = THREADS / 8;
    __shared__ __align__(16) float qs[S], ks[S];
    __shared__ float vs[ROWS], parts[2][WARPS];
    let_next_start();
    const dshape &d = g.d;
    const uint32_t h = blockIdx.y, j = h / (d.Hv / d.Hk), part = threadIdx.x % 8, mine = threadIdx.x / 8;
    const uint32_t row = blockIdx.x * ROWS + mine;
    float *past = g.segs[0].recurrent + g.index * d.recurrent_layer;
    float *m = past + (uint64_t)(d.W - 1) * d.cd + ((uint64_t)h * S + row) * S;
    float4 state[PER / 4]; /* of the token before last: complete long before this launch */
#pragma unroll
    for (int i = 0; i < PER / 4; i++)
        state[i] = __ldcg((const float4 *)(m + 32 * i + 4 * part));
    wait_previous();
    auto convolve = [&](uint32_t c) {
        float sum = 0;
        for (uint32_t i = 0; i + 1 < d.W; i++)
            sum = fmaf(__ldg(g.conv + c * d.W + i), __ldcg(past + (uint64_t)i * d.cd + c), sum);
        return silu(fmaf(__ldg(g.conv + c * d.W + d.W - 1), __ldcg(g.raw + c), sum));
    };
    float square_q = 0, square_k = 0;
    for (uint32_t i = threadIdx.x; i < 2 * S; i += THREADS) {
        const uint32_t what = i / S, c = i % S; /* query, key: whole warps, as S is a multiple of 32 */
        const float v = convolve(what * d.kd + j * S + c);
        (what ? ks : qs)[c] = v;
        (what ? square_k : square_q) += v * v;
    }
    if (threadIdx.x < ROWS) vs[threadIdx.x] = convolve(2 * d.kd + h * S + blockIdx.x * ROWS + threadIdx.x);
    square_q = warp_sum(square_q);
    square_k = warp_sum(square_k);
    if (threadIdx.x % 32 == 0) parts[0][threadIdx.x / 32] = square_q, parts[1][threadIdx.x / 32] = square_k;
    const uint32_t r = d.Hv / d.Hk;
    const float *ba = g.ba + h / r * 2 * r;
    const float x = __ldcg(ba + r + h % r) + __ldg(g.dt + h), beta = sigmoid(__ldcg(ba + h % r));
    const float keep = expf(__ldg(g.a + h) * (x > 20.0f ? x : log1pf(expf(x))));
    __syncthreads();
    float qq = 0, kk = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        qq += parts[0][w], kk += parts[1][w];
    const float rq = 1.0f / sqrtf(qq + d.eps), rk = 1.0f / sqrtf(kk + d.eps);
    float4 k[PER / 4];
    float mk = 0, mq = 0, kq = 0;
#pragma unroll
    for (int i = 0; i < PER / 4; i++) {
        k[i] = *(const float4 *)&ks[32 * i + 4 * part];
        float4 q = *(const float4 *)&qs[32 * i + 4 * part];
        k[i].x *= rk, k[i].y *= rk, k[i].z *= rk, k[i].w *= rk;
        q.x *= rq, q.y *= rq, q.z *= rq, q.w *= rq;
        mk = fmaf(state[i].x, k[i].x, fmaf(state[i].y, k[i].y, fmaf(state[i].z, k[i].z, fmaf(state[i].w, k[i].w, mk))));
        mq = fmaf(state[i].x, q.x, fmaf(state[i].y, q.y, fmaf(state[i].z, q.z, fmaf(state[i].w, q.w, mq))));
        kq = fmaf(k[i].x, q.x, fmaf(k[i].y, q.y, fmaf(k[i].z, q.z, fmaf(k[i].w, q.w, kq))));
    }
#pragma unroll
    for (int s = 4; s; s /= 2) {
        mk += __shfl_xor_sync(~0u, mk, s);
        mq += __shfl_xor_sync(~0u, mq, s);
        kq += __shfl_xor_sync(~0u, kq, s);
    }
    const float write = beta * (vs[mine] - keep * mk);
#pragma unroll
    for (int i = 0; i < PER / 4; i++) {
        state[i].x = fmaf(k[i].x, write, state[i].x * keep);
        state[i].y = fmaf(k[i].y, write, state[i].y * keep);
        state[i].z = fmaf(k[i].z, write, state[i].z * keep);
        state[i].w = fmaf(k[i].w, write, state[i].w * keep);
        *(float4 *)(m + 32 * i + 4 * part) = state[i];
    }
    if (part == 0) g.core[h * S + row] = (keep * mq + kq * write) * (1.0f / sqrtf((float)S));
}

/* ---- Router and experts -------------------------------------------------------------------------------------------------- */

/* silu(gate) * up of PAIRS rows from row0 of matrix e, quantised into `out` at column row0. */
static __device__ __forceinline__ void pair_tile(const dmat &gate, const dmat &up, uint64_t e, uint32_t row0, const act8 &a,
                                                 const act8 &out)
{
    constexpr int R = PAIRS / WARPS;
    __shared__ __align__(16) float hs[PAIRS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = row0 + warp * R;
    float g[R], u[R];
    FOR_BLOCK_FORMAT(gate.format, (gemv_rows<FMT, R>(gate, e * gate.rows + row, R, a, g)))
    FOR_BLOCK_FORMAT(up.format, (gemv_rows<FMT, R>(up, e * up.rows + row, R, a, u)))
    float v = 0;
#pragma unroll
    for (int r = 0; r < R; r++)
        v = (int)lane == r ? silu(g[r]) * u[r] : v;
    if (lane < R) hs[warp * R + lane] = v;
    __syncthreads();
    if (warp) return;
    float in[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        in[i] = hs[lane % 4 * 8 + i];
    quantise8(in, row0 + lane % 4 * 8, lane < 4, out);
}

struct route_args {
    vector_source src;
    dmat router, gate_shared, up_shared;
    const float *shared_router;
    float *logits, *shared_gate;
    act8 x, shared; /* out: the normed row and the shared expert's inner vector */
    uint32_t router_tiles;
};

__global__ void __launch_bounds__(THREADS, 2) k_route_step(route_args g)
{
    extern __shared__ __align__(16) uint8_t smem[];
    let_next_start();
    const act8 a = act8_at(smem, g.x.units);
    float *xs = (float *)(smem + act8_bytes(a.units));
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (blockIdx.x < g.router_tiles) {
        const uint32_t row0 = blockIdx.x * WARPS, left = g.router.rows - row0;
        prefetch_rows(g.router, row0, left < WARPS ? left : WARPS, 256, 0, 0);
    } else {
        const uint32_t row0 = (blockIdx.x - g.router_tiles) * PAIRS;
        FOR_FORMAT(g.gate_shared.format,
                   prefetch_rows(g.gate_shared, row0, PAIRS, code_bytes(FMT), extra_bytes(FMT), scale_bytes(FMT)))
        FOR_FORMAT(g.up_shared.format,
                   prefetch_rows(g.up_shared, row0, PAIRS, code_bytes(FMT), extra_bytes(FMT), scale_bytes(FMT)))
    }
    wait_previous();
    prepare_vector<SOURCE_NORM>(g.src, xs, a);
    if (blockIdx.x < g.router_tiles) {
        const uint32_t row = blockIdx.x * WARPS + warp;
        if (row < g.router.rows) {
            const float v = float_row(g.router, row, xs);
            if (lane == 0) g.logits[row] = v;
        }
        if (blockIdx.x == 0) { /* what later launches read of this row */
            const uint4 *from = (const uint4 *)smem;
            for (uint32_t i = threadIdx.x; i < act8_bytes(a.units) / 16; i += THREADS)
                ((uint4 *)g.x.q)[i] = from[i];
            float sum = 0, max = 0;
            __shared__ float part[64];
            for (uint32_t i = threadIdx.x; i < g.src.width; i += THREADS)
                sum = fmaf(xs[i], __ldg(g.shared_router + i), sum);
            block_sum_max(sum, max, part);
            if (threadIdx.x == 0) *g.shared_gate = sigmoid(sum);
        }
    } else {
        pair_tile(g.gate_shared, g.up_shared, 0, (blockIdx.x - g.router_tiles) * PAIRS, a, g.shared);
    }
}

static __device__ __forceinline__ uint32_t ordered(float v)
{
    const uint32_t b = __float_as_uint(v);
    return isnan(v) ? 0 : b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* One warp: the k largest of TOP_EXPERTS logits in falling order, ties to the lower index. The k-th largest of the lanes' own
 * maxima bounds the k-th largest of all from below, so only the few at or above it are ranked against each other. */
static __device__ __forceinline__ void top_k(const float *logits, uint32_t k, uint32_t *ids, float *chosen, uint32_t *list)
{
    constexpr int EACH = TOP_EXPERTS / 32;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t keys[EACH], top = 0;
#pragma unroll
    for (int i = 0; i < EACH / 4; i++) { /* expert 128 i + 4 lane + c */
        const float4 v = __ldcg((const float4 *)logits + 32 * i + lane);
        keys[4 * i] = ordered(v.x), keys[4 * i + 1] = ordered(v.y), keys[4 * i + 2] = ordered(v.z),
                 keys[4 * i + 3] = ordered(v.w);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        top = keys[i] > top ? keys[i] : top;
    uint32_t rank = 0;
#pragma unroll
    for (int l = 0; l < 32; l++) {
        const uint32_t other = __shfl_sync(~0u, top, l);
        rank += other > top || (other == top && (uint32_t)l < lane);
    }
    const uint32_t owner = __ffs(__ballot_sync(~0u, rank == k - 1)) - 1;
    const uint32_t bound = __shfl_sync(~0u, top, owner);
    uint32_t n = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t in = __ballot_sync(~0u, keys[i] >= bound);
        const uint32_t at = n + __popc(in & ((1u << lane) - 1));
        if (keys[i] >= bound && at < 32) list[at] = 128 * (i / 4) + 4 * lane + i % 4;
        n += __popc(in);
    }
    __syncwarp();
    if (n <= 32) {
        const uint32_t e = lane < n ? list[lane] : 0;
        const float v = lane < n ? __ldcg(logits + e) : 0;
        const uint32_t key = ordered(v);
        uint32_t place = 0;
        for (uint32_t l = 0; l < n; l++) {
            const uint32_t other = __shfl_sync(~0u, key, l), index = __shfl_sync(~0u, e, l);
            place += other > key || (other == key && index < e);
        }
        if (lane < n && place < k) ids[place] = e, chosen[place] = v;
    } else { /* many equal logits */
        for (uint32_t i = 0; i < k; i++) {
            uint64_t best = 0;
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                const uint32_t e = 128 * (c / 4) + 4 * lane + c % 4;
                bool taken = false;
                for (uint32_t p = 0; p < i; p++)
                    taken |= ids[p] == e;
                const uint64_t key = (uint64_t)keys[c] << 32 | (0xffffffffu - e);
                best = !taken && key > best ? key : best;
            }
#pragma unroll
            for (int s = 16; s; s /= 2) {
                const uint64_t other = __shfl_xor_sync(~0u, best, s);
                best = other > best ? other : best;
            }
            const uint32_t e = 0xffffffffu - (uint32_t)best;
            if (lane == 0) ids[i] = e, chosen[i] = __ldcg(logits + e);
            __syncwarp();
        }
    }
    __syncwarp();
}

struct experts_args {
    dmat gate, up;
    const float *logits;
    act8 x;
    uint8_t *inner; /* k act8 vectors */
    uint32_t inner_units, NE, k;
    uint32_t *ids;
    float *weights;
};

__global__ void __launch_bounds__(THREADS, 2) k_experts_step(experts_args g, bool select)
{
    __shared__ uint32_t ids[TOP_K_MAX], list[32];
    __shared__ float chosen[TOP_K_MAX];
    let_next_start();
    wait_previous();
    const uint32_t slot = blockIdx.y;
    uint32_t e;
    if (select) {
        if (threadIdx.x < 32) top_k(g.logits, g.k, ids, chosen, list);
        __syncthreads();
        e = ids[slot];
        if (blockIdx.x == 0 && slot == 0 && threadIdx.x < 32) {
            const uint32_t lane = threadIdx.x;
            const float max = chosen[0];
            float all = 0, mine = lane < g.k ? expf(chosen[lane] - max) : 0;
            for (uint32_t i = lane; i < g.NE; i += 32)
                all += expf(__ldcg(g.logits + i) - max);
            all = warp_sum(all);
            mine /= all;
            const float sum = warp_sum(mine);
            if (lane < g.k) g.ids[lane] = ids[lane], g.weights[lane] = mine / fmaxf(sum, 0x1p-14f);
        }
    } else {
        e = __ldcg(g.ids + slot);
    }
    pair_tile(g.gate, g.up, e, blockIdx.x * PAIRS, g.x, act8_at(g.inner + slot * act8_bytes(g.inner_units), g.inner_units));
}

struct down_args {
    dmat down, shared_down;
    const uint8_t *inner;
    act8 shared;
    const uint32_t *ids;
    const float *weights, *shared_gate;
    uint32_t inner_units, k;
    float *x;
};

template <int F> static __device__ __forceinline__ float down_row(const down_args &g, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, U = g.inner_units, n = g.k * U;
    float acc = 0;
    constexpr int ROUNDS = 3; /* units of a lane in flight */
    for (uint32_t base = 0; base < n; base += 32 * ROUNDS) {
        unit<F> un[ROUNDS];
        uint64_t at[ROUNDS];
        float w[ROUNDS];
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const uint32_t c = base + 32 * i + lane, safe = c < n ? c : n - 1, slot = safe / U;
            w[i] = c < n ? __ldcg(g.weights + slot) : 0.0f;
            at[i] = ((uint64_t)__ldcg(g.ids + slot) * g.down.rows + row) * U + safe % U;
            un[i].load(g.down, at[i]);
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const uint32_t c = base + 32 * i + lane;
            if (c >= n) continue;
            const uint32_t slot = c / U, u = c % U;
            const act8 a = act8_at((void *)(g.inner + slot * act8_bytes(U)), U);
            uint32_t q[16];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint4 v = __ldcg(a.q + p * U + u);
                q[4 * p] = v.x, q[4 * p + 1] = v.y, q[4 * p + 2] = v.z, q[4 * p + 3] = v.w;
            }
            const short4 sums = has_offset(F) ? __ldcg(a.sums + u) : make_short4(0, 0, 0, 0);
            acc = fmaf(w[i], unit_dot<F>(un[i], g.down, at[i], q, __ldcg(a.s + u), sums), acc);
        }
    }
    return acc;
}

template <int F> static __device__ __forceinline__ float shared_row(const down_args &g, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, U = g.shared.units;
    float acc = 0;
    for (uint32_t u = lane; u < U; u += 32) {
        unit<F> un;
        const uint64_t at = (uint64_t)row * U + u;
        un.load(g.shared_down, at);
        uint32_t q[16];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 v = __ldcg(g.shared.q + p * U + u);
            q[4 * p] = v.x, q[4 * p + 1] = v.y, q[4 * p + 2] = v.z, q[4 * p + 3] = v.w;
        }
        const short4 sums = has_offset(F) ? __ldcg(g.shared.sums + u) : make_short4(0, 0, 0, 0);
        acc += unit_dot<F>(un, g.shared_down, at, q, __ldcg(g.shared.s + u), sums);
    }
    return acc;
}

__global__ void __launch_bounds__(THREADS, 2) k_down_step(down_args g)
{
    let_next_start();
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t first = blockIdx.x * WARPS, left = g.shared_down.rows - first;
    FOR_FORMAT(g.shared_down.format, prefetch_rows(g.shared_down, first, left < WARPS ? left : WARPS, code_bytes(FMT),
                                                   extra_bytes(FMT), scale_bytes(FMT)))
    wait_previous();
    if (row >= g.down.rows) return;
    float acc = 0, shared = 0;
    FOR_BLOCK_FORMAT(g.down.format, acc = down_row<FMT>(g, row))
    FOR_BLOCK_FORMAT(g.shared_down.format, shared = shared_row<FMT>(g, row))
    acc = warp_sum(fmaf(shared, __ldcg(g.shared_gate), acc));
    if (threadIdx.x % 32 == 0) g.x[row] = __ldcg(g.x + row) + acc;
}

/* ---- Launches ------------------------------------------------------------------------------------------------------------ */

template <typename... P, typename... A>
static void launch(const cuda_backend *b, void (*kernel)(P...), dim3 grid, size_t smem, const A &...args)
{
    launch_early(b, kernel, grid, THREADS, smem, args...);
}

static size_t vector_bytes(uint32_t width)
{
    const uint32_t padded = pad256(width);
    return act8_bytes(padded / 64) + padded * sizeof(float);
}

static uint32_t count_tiles(const gemv_args *g, uint32_t R)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_parts; i++)
        n += div_up(g->part[i].m.rows, g->part[i].m.format == WF_F32 ? WARPS : WARPS * R);
    return n;
}

/* Tiles of the parts. Two blocks per multiprocessor take them in turn; rows at once are chosen so that the last turn is full.
 */
template <int SOURCE> static void launch_gemv(const cuda_backend *b, gemv_args *g)
{
    const uint32_t most = 2 * (uint32_t)b->sm_count;
    uint32_t R = 0, least = 0;
    for (uint32_t r = 4; r; r /= 2) {
        const uint32_t cost = div_up(count_tiles(g, r), most) * (2 * r + 1); /* a turn costs half a row besides */
        if (!R || cost < least) R = r, least = cost;
    }
    g->n_tiles = 0;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        g->part[i].tile0 = g->n_tiles;
        g->n_tiles += div_up(g->part[i].m.rows, g->part[i].m.format == WF_F32 ? WARPS : WARPS * R);
    }
    const dim3 grid(g->n_tiles < most ? g->n_tiles : most);
    const size_t smem = vector_bytes(g->src.width);
    if (R == 4)
        launch(b, k_gemv<SOURCE, 4>, grid, smem, *g);
    else if (R == 2)
        launch(b, k_gemv<SOURCE, 2>, grid, smem, *g);
    else
        launch(b, k_gemv<SOURCE, 1>, grid, smem, *g);
}

static bool takes(const dmat &m)
{
    return m.format > WF_BF16;
}

/* Gate and up, whose rows are worked on in groups. */
static bool takes_pairs(const dmat &gate, const dmat &up)
{
    return takes(gate) && takes(up) && gate.rows % PAIRS == 0;
}

/* Whether this layer's matrices and shape suit the fused kernels; what does not goes the staged way. */
static bool layer_suits(const cuda_backend *b, const dlayer &l)
{
    const dshape &d = b->shape;
    if (l.router.format != WF_F32 || !takes_pairs(l.gate_exps, l.up_exps) || !takes(l.down_exps) ||
        !takes_pairs(l.gate_shared, l.up_shared) || !takes(l.down_shared))
        return false;
    if (l.recurrent)
        return takes(l.qkv) && takes(l.gate) && (l.ba.format == WF_F32 || takes(l.ba)) && takes(l.out) &&
               (d.S == 128 || d.S == 64);
    return takes(l.q) && takes(l.k) && takes(l.v) && takes(l.o) && decode_attention_takes(d);
}

bool decode_suits(const cuda_backend *b)
{
    const dshape &d = b->shape;
    if (!b->fast || d.E % 32 || b->head.format <= WF_BF16 ||
        vector_bytes((uint32_t)(d.vd > d.H * d.D ? d.vd : d.H * d.D)) > 48 << 10)
        return false;
    for (const dlayer &l : b->layers)
        if (!layer_suits(b, l)) return false;
    return true;
}

static void mix(cuda_backend *b, const dlayer &l, uint32_t splits)
{
    const dshape &d = b->shape;
    scratch &s = b->s;
    gemv_args in = {};
    in.src = {s.x, l.attn_norm, NULL, d.E, 0, d.eps};
    gemv_args out = {};
    out.n_parts = 1;
    if (l.recurrent) {
        in.n_parts = 3;
        in.part[0] = {l.qkv, s.raw, 0};
        in.part[1] = {l.gate, s.z, 0};
        in.part[2] = {l.ba, s.ba, 0};
        launch_gemv<SOURCE_NORM>(b, &in);
        const delta_args delta = {s.raw, s.ba, l.conv, l.a, l.dt_bias, s.segs, d, l.index, s.core};
        const dim3 grid(d.S / (THREADS / 8), d.Hv);
        if (d.S == 128)
            launch(b, k_delta_step<16>, grid, 0, delta);
        else
            launch(b, k_delta_step<8>, grid, 0, delta);
        out.part[0] = {l.out, s.x, 0};
        out.src = {s.core, l.ssm_norm, s.z, d.vd, d.S, d.eps};
        out.segs = s.segs;
        out.raw = s.raw;
        out.shape = d;
        out.index = l.index;
        launch_gemv<SOURCE_DELTA>(b, &out);
    } else {
        in.n_parts = 3;
        in.part[0] = {l.q, s.raw, 0};
        in.part[1] = {l.k, s.k, 0};
        in.part[2] = {l.v, s.v, 0};
        launch_gemv<SOURCE_NORM>(b, &in);
        decode_attention(b, l, splits);
        out.part[0] = {l.o, s.x, 0};
        out.src = {s.core, NULL, s.raw, d.H * d.D, d.D, d.eps};
        launch_gemv<SOURCE_ATTENTION>(b, &out);
    }
}

static void experts(cuda_backend *b, const dlayer &l)
{
    const dshape &d = b->shape;
    scratch &s = b->s;
    const uint32_t inner_units = pad256(d.F) / 64;
    route_args r = {};
    r.src = {s.x, l.post_norm, NULL, d.E, 0, d.eps};
    r.router = l.router, r.gate_shared = l.gate_shared, r.up_shared = l.up_shared;
    r.shared_router = l.shared_router;
    r.logits = s.router, r.shared_gate = s.step_gate;
    r.x = act8_at(s.step_x, pad256(d.E) / 64);
    r.shared = act8_at(s.step_shared, pad256(d.Fs) / 64);
    r.router_tiles = div_up(d.NE, WARPS);
    launch(b, k_route_step, dim3(r.router_tiles + d.Fs / PAIRS), vector_bytes(d.E), r);
    const bool select = d.NE == TOP_EXPERTS && d.k <= TOP_K_MAX;
    if (!select) launch_route(s.router, 1, d, s.ids, s.weights, b->stream);
    const experts_args e = {l.gate_exps, l.up_exps, s.router, r.x, s.step_inner, inner_units, d.NE, d.k, s.ids, s.weights};
    launch(b, k_experts_step, dim3(d.F / PAIRS, d.k), 0, e, select);
    const down_args dn = {l.down_exps, l.down_shared, s.step_inner, r.shared, s.ids,
                          s.weights,   s.step_gate,   inner_units,  d.k,      s.x};
    launch(b, k_down_step, dim3(div_up(d.E, WARPS)), 0, dn);
}

void decode_step(cuda_backend *b, uint32_t splits, bool logits)
{
    const dshape &d = b->shape;
    scratch &s = b->s;
    launch_embed(b->embed, s.rows, 1, s.x, d.E, b->stream);
    launch_rope_table(s, b->rope_freq, 1, d, b->stream);
    for (const dlayer &l : b->layers) {
        mix(b, l, splits);
        experts(b, l);
    }
    if (!logits) return;
    gemv_args head = {};
    head.src = {s.x, b->output_norm, NULL, d.E, 0, d.eps};
    head.n_parts = 1;
    head.part[0] = {b->head, s.logits, 0};
    head.copy = s.hidden;
    launch_gemv<SOURCE_NORM>(b, &head);
}
