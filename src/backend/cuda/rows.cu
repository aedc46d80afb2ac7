/* backend/cuda/rows: embedding, norms, activations for the tensor cores, routing and the sums around the experts. */
#include "backend/cuda/format.cuh"
#include "backend/cuda/rows.cuh"

/* ---- Embedding ----------------------------------------------------------------------------------------------------------- */

template <int F> __global__ void k_embed(dmat w, const drow *rows, float *x, uint32_t E, uint32_t ldx)
{
    const uint32_t row = blockIdx.x;
    const uint64_t at0 = (uint64_t)(uint32_t)rows[row].id * w.units;
    for (uint32_t u = threadIdx.x; 64 * u < E; u += blockDim.x) {
        unit<F> un;
        un.load(w, at0 + u);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            if (64 * u + 16 * q >= E) break;
            group_scale<F> s = {};
            if constexpr (!is_plain(F)) s.get(un, w, at0 + u, q);
#pragma unroll
            for (int j = 4 * q; j < 4 * q + 4; j++)
                *(float4 *)(x + (uint64_t)row * ldx + 64 * u + 4 * j) = quad_float<F>(un, s, j);
        }
    }
}

void launch_embed(const dmat &w, const drow *rows, uint32_t n, float *x, uint32_t E, cudaStream_t st)
{
    FOR_FORMAT(w.format, (k_embed<FMT><<<n, 32, 0, st>>>(w, rows, x, E, E)))
}

/* ---- Norms and activations ----------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void put_half(const hrows &h, uint64_t row, uint32_t column, float v)
{
    const uint64_t at = row * h.width + half_place(column);
    const __half high = __float2half_rn(v);
    h.x[at] = high;
    if (h.low) h.low[at] = __float2half_rn(v - __half2float(high));
}

__global__ void k_norm(float *x, const float *add, const float *w, uint32_t E, float eps, float *out, uint32_t ld_out, hrows h,
                       uint32_t h_offset)
{
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    float *xr = x + row * E;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < E; i += blockDim.x) {
        float v = xr[i];
        if (add) xr[i] = v += add[row * E + i];
        sum = fmaf(v, v, sum);
        max = fmaxf(max, fabsf(v * w[i]));
    }
    block_sum_max(sum, max, part);
    const float r = 1.0f / sqrtf(sum / (float)E + eps);
    const float scale = row_scale(max * r), inverse = 1.0f / scale;
    for (uint32_t i = threadIdx.x; i < E; i += blockDim.x) {
        const float v = xr[i] * r * w[i];
        if (out) out[row * ld_out + i] = v;
        if (h.x) put_half(h, row, h_offset + i, v * inverse);
    }
    if (h.x) {
        for (uint32_t i = h_offset + E + threadIdx.x; i < h.width; i += blockDim.x)
            put_half(h, row, i, 0.0f);
        if (threadIdx.x == 0) h.scale[row] = scale;
    }
}

void launch_norm(float *x, const float *add, const float *w, uint32_t n, uint32_t E, float eps, float *out, uint32_t ld_out,
                 const hrows &h, uint32_t h_offset, cudaStream_t st)
{
    k_norm<<<n, 256, 0, st>>>(x, add, w, E, eps, out, ld_out, h, h_offset);
}

__global__ void k_prep(const float *x, uint32_t ldx, uint32_t width, hrows h)
{
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        max = fmaxf(max, fabsf(x[row * ldx + i]));
    block_sum_max(sum, max, part);
    const float scale = row_scale(max), inverse = 1.0f / scale;
    for (uint32_t i = threadIdx.x; i < h.width; i += blockDim.x)
        put_half(h, row, i, i < width ? x[row * ldx + i] * inverse : 0.0f);
    if (threadIdx.x == 0) h.scale[row] = scale;
}

void launch_prep(const float *x, uint32_t ldx, uint32_t width, uint32_t n, const hrows &h, cudaStream_t st)
{
    k_prep<<<n, 128, 0, st>>>(x, ldx, width, h);
}

__global__ void k_add(float *x, const float *a, const float *b, uint64_t n)
{
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += b ? a[i] + b[i] : a[i];
}

void launch_add(float *x, const float *a, const float *b, uint64_t n, cudaStream_t st)
{
    k_add<<<div_up(n, 256), 256, 0, st>>>(x, a, b, n);
}

/* Rows of gate and up, 2F wide: silu(gate) * up replaces the gate. */
__global__ void k_silu_mul(float *gu, uint32_t F, hrows h)
{
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    float *g = gu + row * 2 * F;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < F; i += blockDim.x) {
        const float v = silu(g[i]) * g[F + i];
        g[i] = v;
        max = fmaxf(max, fabsf(v));
    }
    if (!h.x) return;
    block_sum_max(sum, max, part);
    const float scale = row_scale(max), inverse = 1.0f / scale;
    for (uint32_t i = threadIdx.x; i < h.width; i += blockDim.x)
        put_half(h, row, i, i < F ? g[i] * inverse : 0.0f);
    if (threadIdx.x == 0) h.scale[row] = scale;
}

void launch_silu_mul(float *gu, uint32_t F, uint32_t n, const hrows &h, cudaStream_t st)
{
    k_silu_mul<<<n, 128, 0, st>>>(gu, F, h);
}

/* ---- Routing ------------------------------------------------------------------------------------------------------------- */

/* Falling probability, ties to the lower index; a NaN counts as the smallest. All keys of a row differ and none is 0. */
static __device__ __forceinline__ uint64_t route_key(float v, uint32_t index)
{
    const uint32_t b = __float_as_uint(v);
    const uint32_t ordered = isnan(v) ? 0 : b & 0x80000000u ? ~b : b | 0x80000000u;
    return (uint64_t)ordered << 32 | (0xffffffffu - index);
}

/* A warp per row. Keys in shared memory; a chosen one becomes 0. */
__global__ void k_route(const float *logits, uint32_t NE, uint32_t k, uint32_t *ids, float *weights)
{
    extern __shared__ uint64_t keys[];
    const uint64_t row = blockIdx.x;
    const float *l = logits + row * NE;
    const uint32_t lane = threadIdx.x;
    float max = -INFINITY, all = 0, chosen = 0;
    for (uint32_t e = lane; e < NE; e += 32) {
        keys[e] = route_key(l[e], e);
        max = fmaxf(max, l[e]);
    }
    max = warp_max(max);
    for (uint32_t e = lane; e < NE; e += 32)
        all += expf(l[e] - max);
    all = warp_sum(all);
    for (uint32_t i = 0; i < k; i++) {
        uint64_t best = 0;
        for (uint32_t e = lane; e < NE; e += 32)
            best = keys[e] > best ? keys[e] : best;
#pragma unroll
        for (int d = 16; d; d /= 2) {
            const uint64_t other = __shfl_xor_sync(~0u, best, d);
            best = other > best ? other : best;
        }
        const uint32_t e = 0xffffffffu - (uint32_t)best;
        if (e % 32 == lane) keys[e] = 0;
        const float p = expf(l[e] - max) / all;
        chosen += p;
        if (lane == 0) ids[row * k + i] = e, weights[row * k + i] = p;
    }
    __syncwarp();
    for (uint32_t i = lane; i < k; i += 32)
        weights[row * k + i] /= fmaxf(chosen, 0x1p-14f);
}

void launch_route(const float *logits, uint32_t n, const dshape &d, uint32_t *ids, float *weights, cudaStream_t st)
{
    k_route<<<n, 32, d.NE * sizeof(uint64_t), st>>>(logits, d.NE, d.k, ids, weights);
}

/* Pairs (row, place) sorted by expert, and the tiles of at most tile_rows pairs of one expert. One block: the counts fit in
 * shared memory. Which slot a pair gets among its expert's does not change any result. */
__global__ void __launch_bounds__(1024) k_sort(const uint32_t *ids, uint32_t n_pairs, uint32_t NE, uint32_t tile_rows,
                                               uint32_t *pairs, dtile *tiles, uint32_t *n_tiles)
{
    __shared__ uint32_t first[RL_MAX_EXPERTS], cursor[RL_MAX_EXPERTS];
    __shared__ uint32_t warp_pairs[32], warp_tiles[32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t per = (NE + 1023) / 1024, e0 = threadIdx.x * per;
    for (uint32_t e = threadIdx.x; e < NE; e += 1024)
        cursor[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += 1024)
        atomicAdd(&cursor[ids[i]], 1u);
    __syncthreads();
    uint32_t sum = 0, tile_sum = 0;
    for (uint32_t e = e0; e < e0 + per && e < NE; e++) {
        sum += cursor[e];
        tile_sum += (cursor[e] + tile_rows - 1) / tile_rows;
    }
    uint32_t before = sum, tiles_before = tile_sum; /* inclusive scans over threads */
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t a = __shfl_up_sync(~0u, before, d), b = __shfl_up_sync(~0u, tiles_before, d);
        if (lane >= (uint32_t)d) before += a, tiles_before += b;
    }
    if (lane == 31) warp_pairs[warp] = before, warp_tiles[warp] = tiles_before;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++)
        before += warp_pairs[w], tiles_before += warp_tiles[w];
    if (threadIdx.x == 1023) *n_tiles = tiles_before;
    before -= sum;
    tiles_before -= tile_sum;
    for (uint32_t e = e0; e < e0 + per && e < NE; e++) {
        const uint32_t n = cursor[e];
        first[e] = before;
        for (uint32_t i = 0; i < n; i += tile_rows)
            tiles[tiles_before++] = {e, before + i, n - i < tile_rows ? n - i : tile_rows};
        before += n;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < NE; e += 1024)
        cursor[e] = first[e];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += 1024)
        pairs[atomicAdd(&cursor[ids[i]], 1u)] = i;
}

void launch_sort(const uint32_t *ids, uint32_t n_pairs, uint32_t NE, uint32_t tile_rows, scratch &s, cudaStream_t st)
{
    k_sort<<<1, 1024, 0, st>>>(ids, n_pairs, NE, tile_rows, s.pairs, s.tiles, s.n_tiles);
}

/* ---- Sums around the experts --------------------------------------------------------------------------------------------- */

__global__ void k_combine(const float *down, const float *weights, uint32_t k, uint32_t E, float *out)
{
    const uint64_t row = blockIdx.y;
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= E) return;
    float sum = 0;
    for (uint32_t j = 0; j < k; j++)
        sum = fmaf(weights[row * k + j], down[(row * k + j) * E + i], sum);
    out[row * E + i] = sum;
}

void launch_combine(const float *down, const float *weights, uint32_t n, uint32_t k, uint32_t E, float *out, cudaStream_t st)
{
    k_combine<<<dim3(div_up(E, 256), n), 256, 0, st>>>(down, weights, k, E, out);
}

__global__ void k_shared_scale(const float *norm, const float *w, float *shared, uint32_t E)
{
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < E; i += blockDim.x)
        sum = fmaf(norm[row * E + i], w[i], sum);
    block_sum_max(sum, max, part);
    const float gate = sigmoid(sum);
    for (uint32_t i = threadIdx.x; i < E; i += blockDim.x)
        shared[row * E + i] *= gate;
}

void launch_shared_scale(const float *norm, const float *w, float *shared, uint32_t n, uint32_t E, cudaStream_t st)
{
    k_shared_scale<<<n, 256, 0, st>>>(norm, w, shared, E);
}

__global__ void k_gather(const float *x, const uint32_t *index, uint32_t E, float *out)
{
    const uint64_t row = blockIdx.x;
    for (uint32_t i = threadIdx.x; i < E; i += blockDim.x)
        out[row * E + i] = x[(uint64_t)index[row] * E + i];
}

void launch_gather(const float *x, const uint32_t *index, uint32_t n, uint32_t E, float *out, cudaStream_t st)
{
    k_gather<<<n, 256, 0, st>>>(x, index, E, out);
}
