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

enum {
    THREADS = 512,
    WARPS = THREADS / 32,
    MAX_PARTS = 3,
    PAIRS = 32,
    TOP_EXPERTS = 512,
    TOP_K_MAX = 16,
    STATE_THREADS = 256,
    GEMV_THREADS = 1024,
    GEMV_WARPS = GEMV_THREADS / 32
};

/* ---- Products of a prepared vector --------------------------------------------------------------------------------------- */

struct gemv_part {
    dmat m;
    float *y;
    uint32_t tile0; /* first tile of the part */
};

struct gemv_args {
    gemv_part part[MAX_PARTS];
    uint32_t n_parts, n_tiles;
    uint32_t rows; /* of a warp in a tile; tiles of float matrices have one */
    vector_source src;
    float *copy; /* NORM: block 0 leaves the normed row here when not NULL */
    /* DELTA: moves the convolution's inputs on, now that the mixer has read them */
    const dseg *segs;
    const float *raw;
    dshape shape;
    uint32_t index;
};

/* The lines of some rows, on their way to L2. */
static __device__ __forceinline__ void prefetch_plane(const uint8_t *plane, uint64_t bytes_before, uint64_t bytes)
{
    const uint8_t *p = plane + bytes_before;
    for (uint64_t i = threadIdx.x * 128ull; i < bytes; i += blockDim.x * 128ull)
        prefetch_l2(p + i);
}

static __device__ __forceinline__ void prefetch_rows(const dmat &m, uint64_t row0, uint32_t rows)
{
    const uint64_t at = row0 * m.units, n = (uint64_t)rows * m.units;
    prefetch_plane(m.codes, at * m.code_bytes, n * m.code_bytes);
    if (m.extra_bytes) prefetch_plane(m.extra, at * m.extra_bytes, n * m.extra_bytes);
    if (m.scale_bytes) prefetch_plane(m.scales, at * m.scale_bytes, n * m.scale_bytes);
}

template <int SOURCE> __global__ void __launch_bounds__(GEMV_THREADS, 1) k_gemv(const __grid_constant__ gemv_args g)
{
    extern __shared__ __align__(16) uint8_t smem[];
    let_next_start();
    const act8 a = act8_at(smem, pad256(g.src.width) / 64);
    float *xs = (float *)(smem + act8_bytes(a.units));
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    vector_ahead ahead;
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < g.n_tiles; tile += gridDim.x) {
        uint32_t p = 0;
        while (p + 1 < g.n_parts && tile >= g.part[p + 1].tile0)
            p++;
        const dmat &m = g.part[p].m;
        float *y = g.part[p].y;
        const uint32_t each = m.format == WF_F32 ? 1 : g.rows, row0 = (tile - g.part[p].tile0) * GEMV_WARPS * each;
        const uint32_t row = row0 + warp * each;
        const uint32_t n = row >= m.rows ? 0 : m.rows - row < each ? m.rows - row : each;
        if (tile == blockIdx.x) {
            prefetch_rows(m, row0, m.rows - row0 < GEMV_WARPS * each ? m.rows - row0 : GEMV_WARPS * each);
            vector_start<SOURCE>(g.src, ahead);
            wait_previous();
            prepare_vector<SOURCE>(g.src, ahead, xs, a);
        }
        if (!n) continue;
        float v = 0;
        if (m.format == WF_F32) {
            if constexpr (SOURCE == SOURCE_NORM) {
                float_row f;
                f.start(m, row);
                v = f.finish(xs);
            }
        } else {
            FOR_BLOCK_FORMAT(m.format, v = gemv_rows<FMT>(m, row, n, a))
        }
        if (lane < n) y[row + lane] = SOURCE == SOURCE_NORM ? v : __ldcg(y + row + lane) + v;
    }
    if (SOURCE == SOURCE_NORM && g.copy && blockIdx.x == 0)
        for (uint32_t i = threadIdx.x; i < g.src.width; i += GEMV_THREADS)
            g.copy[i] = xs[i];
    if (SOURCE == SOURCE_DELTA) {
        const dshape &d = g.shape;
        float *past = g.segs[0].recurrent + g.index * d.recurrent_layer;
        for (uint32_t c = blockIdx.x * GEMV_THREADS + threadIdx.x; c < d.cd; c += gridDim.x * GEMV_THREADS) {
            for (uint32_t i = 0; i + 2 < d.W; i++)
                past[(uint64_t)i * d.cd + c] = __ldcg(past + (uint64_t)(i + 1) * d.cd + c);
            past[(uint64_t)(d.W - 2) * d.cd + c] = __ldcg(g.raw + c);
        }
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

enum { DELTA_THREADS = STATE_THREADS + 32, DELTA_ROWS = STATE_THREADS / 8, STATE_WARPS = STATE_THREADS / 32 };

/* The convolution of one channel; its fixed inputs are fetched first. */
struct channel {
    float w[4], u[3]; /* W = 4 */
    float sum;
    __device__ __forceinline__ void start(const delta_args &g, const float *past, uint32_t c)
    {
        const dshape &d = g.d;
        sum = 0;
        if (d.W == 4) {
            const float4 v = __ldg((const float4 *)(g.conv + 4 * c));
            w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
#pragma unroll
            for (int i = 0; i < 3; i++)
                u[i] = __ldcg(past + (uint64_t)i * d.cd + c);
#pragma unroll
            for (int i = 0; i < 3; i++)
                sum = fmaf(w[i], u[i], sum);
        } else {
            for (uint32_t i = 0; i + 1 < d.W; i++)
                sum = fmaf(__ldg(g.conv + c * d.W + i), __ldcg(past + (uint64_t)i * d.cd + c), sum);
            w[3] = __ldg(g.conv + c * d.W + d.W - 1);
        }
    }
    __device__ __forceinline__ float finish(const delta_args &g, uint32_t c) const
    {
        const float v = fmaf(w[3], __ldcg(g.raw + c), sum);
        return v / (1.0f + __expf(-v));
    }
};

/* A block takes DELTA_ROWS state rows of a value head; S = 8 * PER. Threads convolve the head's query and key, the last warp
 * the values and the head's two numbers; then eight lanes share a row. */
template <int PER> __global__ void __launch_bounds__(DELTA_THREADS) k_delta_step(const __grid_constant__ delta_args g)
{
    constexpr int S = PER * 8, HALF = STATE_THREADS / 2;
    __shared__ __align__(16) float qs[S], ks[S];
    __shared__ float vs[DELTA_ROWS], parts[STATE_WARPS], numbers[2];
    let_next_start();
    const dshape &d = g.d;
    const uint32_t h = blockIdx.y, j = h / (d.Hv / d.Hk), part = threadIdx.x % 8, mine = threadIdx.x / 8;
    const uint32_t row = blockIdx.x * DELTA_ROWS + mine;
    const bool tail = threadIdx.x >= STATE_THREADS;
    float *past = g.segs[0].recurrent + g.index * d.recurrent_layer;
    float *m = past + (uint64_t)(d.W - 1) * d.cd + ((uint64_t)h * S + row) * S;
    /* Everything the previous token left is complete long before this launch. */
    float4 state[PER / 4];
    const uint32_t what = threadIdx.x / HALF, in = threadIdx.x % HALF;
    const uint32_t c =
        tail ? 2 * d.kd + h * S + blockIdx.x * DELTA_ROWS + threadIdx.x - STATE_THREADS : what * d.kd + j * S + in;
    const bool live = tail || in < S;
    channel ch;
    if (live) ch.start(g, past, c);
    if (!tail) {
#pragma unroll
        for (int i = 0; i < PER / 4; i++)
            state[i] = __ldcg((const float4 *)(m + 32 * i + 4 * part));
    }
    wait_previous();
    const float v = live ? ch.finish(g, c) : 0.0f;
    if (tail) {
        vs[threadIdx.x - STATE_THREADS] = v;
        if (threadIdx.x == STATE_THREADS) {
            const uint32_t r = d.Hv / d.Hk;
            const float *ba = g.ba + h / r * 2 * r;
            const float x = __ldcg(ba + r + h % r) + __ldg(g.dt + h);
            numbers[0] = 1.0f / (1.0f + expf(-__ldcg(ba + h % r)));
            numbers[1] = expf(__ldg(g.a + h) * (x > 20.0f ? x : log1pf(expf(x))));
        }
    } else {
        if (live) (what ? ks : qs)[in] = v;
        const float square = warp_sum(v * v);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = square;
    }
    __syncthreads();
    if (tail) return;
    float qq = 0, kk = 0;
#pragma unroll
    for (int w = 0; w < STATE_WARPS / 2; w++)
        qq += parts[w], kk += parts[STATE_WARPS / 2 + w];
    const float rq = 1.0f / sqrtf(qq + d.eps), rk = 1.0f / sqrtf(kk + d.eps);
    float4 k[PER / 4];
    float mk = 0, mq = 0, kq = 0;
#pragma unroll
    for (int i = 0; i < PER / 4; i++) {
        k[i] = *(const float4 *)&ks[32 * i + 4 * part];
        const float4 q = *(const float4 *)&qs[32 * i + 4 * part];
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
    const float keep = numbers[1], write = numbers[0] * (vs[mine] - keep * mk * rk), add = write * rk;
#pragma unroll
    for (int i = 0; i < PER / 4; i++) {
        state[i].x = fmaf(k[i].x, add, state[i].x * keep);
        state[i].y = fmaf(k[i].y, add, state[i].y * keep);
        state[i].z = fmaf(k[i].z, add, state[i].z * keep);
        state[i].w = fmaf(k[i].w, add, state[i].w * keep);
        *(float4 *)(m + 32 * i + 4 * part) = state[i];
    }
    if (part == 0) g.core[h * S + row] = (keep * mq + kq * add) * rq * (1.0f / sqrtf((float)S));
}

/* ---- Router and experts -------------------------------------------------------------------------------------------------- */

/* silu(gate) * up of PAIRS rows from row0 of matrix e, quantised into `out` at column row0. */
static __device__ __forceinline__ void pair_tile(const dmat &gate, const dmat &up, uint64_t e, uint32_t row0, const act8 &a,
                                                 const act8 &out)
{
    constexpr int R = PAIRS / WARPS;
    __shared__ __align__(16) float hs[PAIRS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = row0 + warp * R;
    float v[2] = {};
#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        const dmat &m = side ? up : gate;
        float mine = 0;
        FOR_BLOCK_FORMAT(m.format, mine = gemv_rows<FMT>(m, e * m.rows + row, R, a))
        v[0] = v[1];
        v[1] = mine;
    }
    if (lane < R) hs[warp * R + lane] = v[0] / (1.0f + __expf(-v[0])) * v[1];
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

__global__ void __launch_bounds__(THREADS, 1) k_route_step(const __grid_constant__ route_args g)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ float part[32];
    let_next_start();
    const act8 a = act8_at(smem, g.x.units);
    float *xs = (float *)(smem + act8_bytes(a.units));
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool routes = blockIdx.x < g.router_tiles;
    const uint32_t row = blockIdx.x * WARPS + warp, row0 = (blockIdx.x - g.router_tiles) * PAIRS;
    float_row f;
    vector_ahead ahead;
    if (routes) {
        if (row < g.router.rows) f.start(g.router, row);
    } else {
        prefetch_rows(g.gate_shared, row0, PAIRS);
        prefetch_rows(g.up_shared, row0, PAIRS);
    }
    vector_start<SOURCE_NORM>(g.src, ahead);
    wait_previous();
    prepare_vector<SOURCE_NORM>(g.src, ahead, xs, a);
    if (!routes) {
        pair_tile(g.gate_shared, g.up_shared, 0, row0, a, g.shared);
        return;
    }
    if (row < g.router.rows) {
        const float v = f.finish(xs);
        if (lane == 0) g.logits[row] = v;
    }
    if (blockIdx.x) return;
    /* What later launches read of this row. */
    const uint4 *from = (const uint4 *)smem;
    for (uint32_t i = threadIdx.x; i < act8_bytes(a.units) / 16; i += THREADS)
        ((uint4 *)g.x.q)[i] = from[i];
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < g.src.width; i += THREADS)
        sum = fmaf(xs[i], __ldg(g.shared_router + i), sum);
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) *g.shared_gate = sigmoid(sum);
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

__global__ void __launch_bounds__(THREADS, 2) k_experts_step(const __grid_constant__ experts_args g, bool select)
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
    prefetch_rows(g.up, (uint64_t)e * g.up.rows + blockIdx.x * PAIRS, PAIRS); /* the gate's rows are loaded at once */
    pair_tile(g.gate, g.up, e, blockIdx.x * PAIRS, g.x, act8_at(g.inner + slot * act8_bytes(g.inner_units), g.inner_units));
}

enum { DOWN_WARPS = 8 };

struct down_args {
    dmat down, shared_down;
    const uint8_t *inner;
    act8 shared;
    const uint32_t *ids;
    const float *weights, *shared_gate;
    uint32_t inner_units, unit_shift, k; /* unit_shift: log2 of inner_units when that is a power of two up to 32, else 0 */
    float *x;
};

/* One output row over all slots: lanes take (slot, unit) in turn. */
template <int F> static __device__ __noinline__ float down_row(const down_args &g, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, U = g.inner_units, n = g.k * U, shift = g.unit_shift;
    auto slot_of = [&](uint32_t c) { return shift ? c >> shift : c / U; };
    auto unit_of = [&](uint32_t c) { return shift ? c & (U - 1) : c % U; };
    auto locate = [&](uint32_t c) { return ((uint64_t)__ldcg(g.ids + slot_of(c)) * g.down.rows + row) * U + unit_of(c); };
    unit<F> now, next;
    /* Lanes beyond the end work on the last unit with weight 0. */
    uint32_t c = lane < n ? lane : n - 1;
    uint64_t at, next_at = locate(c);
    next.load(g.down, next_at);
    float acc = 0;
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += 32) {
        const uint32_t slot = slot_of(c), u = unit_of(c);
        const float weight = base + lane < n ? __ldcg(g.weights + slot) : 0.0f;
        now = next, at = next_at;
        c = base + 32 + lane < n ? base + 32 + lane : n - 1;
        next_at = locate(c);
        next.load(g.down, next_at);
        act_unit act;
        act.load<F>(act8_at((void *)(g.inner + slot * act8_bytes(U)), U), u);
        acc = fmaf(weight, unit_dot<F>(now, g.down, at, act.q, act.s, act.sums), acc);
    }
    return acc;
}

template <int F> static __device__ __noinline__ float shared_row(const down_args &g, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, U = g.shared.units;
    float acc = 0;
#pragma unroll 1
    for (uint32_t u = lane; u < U; u += 32) {
        unit<F> un;
        const uint64_t at = (uint64_t)row * U + u;
        un.load(g.shared_down, at);
        act_unit act;
        act.load<F>(g.shared, u);
        acc += unit_dot<F>(un, g.shared_down, at, act.q, act.s, act.sums);
    }
    return acc;
}

__global__ void __launch_bounds__(DOWN_WARPS * 32, 3) k_down_step(const __grid_constant__ down_args g)
{
    let_next_start();
    const uint32_t first = blockIdx.x * DOWN_WARPS, row = first + threadIdx.x / 32, left = g.shared_down.rows - first;
    prefetch_rows(g.shared_down, first, left < DOWN_WARPS ? left : DOWN_WARPS);
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

/* One block per multiprocessor, so that the vector is prepared once on each; as many rows for a warp as make one turn, up to a
 * lane's worth of results. */
template <int SOURCE> static void launch_gemv(const cuda_backend *b, gemv_args *g)
{
    const uint32_t blocks = (uint32_t)b->sm_count;
    uint64_t rows = 0;
    uint32_t floats = 0;
    for (uint32_t i = 0; i < g->n_parts; i++)
        if (g->part[i].m.format == WF_F32)
            floats += div_up(g->part[i].m.rows, GEMV_WARPS);
        else
            rows += g->part[i].m.rows;
    const uint32_t room = floats < blocks ? blocks - floats : 1;
    g->rows = div_up(rows, GEMV_WARPS * room);
    g->rows = g->rows < 1 ? 1 : g->rows > 16 ? 16 : g->rows;
    g->n_tiles = 0;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        g->part[i].tile0 = g->n_tiles;
        g->n_tiles += div_up(g->part[i].m.rows, GEMV_WARPS * (g->part[i].m.format == WF_F32 ? 1 : g->rows));
    }
    launch_early(b, k_gemv<SOURCE>, dim3(g->n_tiles < blocks ? g->n_tiles : blocks), GEMV_THREADS, vector_bytes(g->src.width),
                 *g);
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

static uint32_t shift_of(uint32_t power)
{
    uint32_t s = 0;
    while (1u << s < power)
        s++;
    return s;
}

static void mix(cuda_backend *b, const dlayer &l, uint32_t splits)
{
    const dshape &d = b->shape;
    scratch &s = b->s;
    gemv_args in = {};
    in.src = {s.x, l.attn_norm, NULL, d.E, 0, 0, d.eps};
    gemv_args out = {};
    out.n_parts = 1;
    if (l.recurrent) {
        in.n_parts = 3;
        in.part[0] = {l.qkv, s.raw, 0};
        in.part[1] = {l.gate, s.z, 0};
        in.part[2] = {l.ba, s.ba, 0};
        launch_gemv<SOURCE_NORM>(b, &in);
        const delta_args delta = {s.raw, s.ba, l.conv, l.a, l.dt_bias, s.segs, d, l.index, s.core};
        const dim3 grid(d.S / DELTA_ROWS, d.Hv);
        if (d.S == 128)
            launch_early(b, k_delta_step<16>, grid, DELTA_THREADS, 0, delta);
        else
            launch_early(b, k_delta_step<8>, grid, DELTA_THREADS, 0, delta);
        out.part[0] = {l.out, s.x, 0};
        out.src = {s.core, l.ssm_norm, s.z, d.vd, d.S, shift_of(d.S), d.eps};
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
        out.src = {s.core, NULL, s.raw, d.H * d.D, d.D, shift_of(d.D), d.eps};
        launch_gemv<SOURCE_ATTENTION>(b, &out);
    }
}

static void experts(cuda_backend *b, const dlayer &l)
{
    const dshape &d = b->shape;
    scratch &s = b->s;
    const uint32_t inner_units = pad256(d.F) / 64;
    route_args r = {};
    r.src = {s.x, l.post_norm, NULL, d.E, 0, 0, d.eps};
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
    down_args dn = {l.down_exps, l.down_shared, s.step_inner, r.shared, s.ids, s.weights, s.step_gate, inner_units,
                    0,           d.k,           s.x};
    while (dn.unit_shift < 5 && (1u << dn.unit_shift) < inner_units)
        dn.unit_shift++;
    if (1u << dn.unit_shift != inner_units) dn.unit_shift = 0;
    launch_early(b, k_down_step, dim3(div_up(d.E, DOWN_WARPS)), DOWN_WARPS * 32, 0, dn);
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
    head.src = {s.x, b->output_norm, NULL, d.E, 0, 0, d.eps};
    head.n_parts = 1;
    head.part[0] = {b->head, s.logits, 0};
    head.copy = s.hidden;
    launch_gemv<SOURCE_NORM>(b, &head);
}
