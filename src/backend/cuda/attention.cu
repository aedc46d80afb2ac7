/* backend/cuda/attention: gated attention over the cached keys and values of each row's sequence.
 *
 * Query heads that share a key/value head are worked on together, so every key and value is read once for all of them; long
 * caches are split among blocks and the parts are joined by their maxima and sums. A cache is [keys | values][position][K*D].
 */
#include "backend/cuda/rows.cuh"

__global__ void k_q_norm_rope(const float *qgate, const float *w, const drow *rows, const float *cosine_sine, dshape d,
                              float *q)
{
    extern __shared__ float v[];
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    const uint32_t h = blockIdx.y, half = d.R / 2;
    const float *in = qgate + (row * d.H + h) * 2 * d.D;
    float *out = q + (row * d.H + h) * d.D;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        sum = fmaf(in[i], in[i], sum);
    block_sum_max(sum, max, part);
    const float r = 1.0f / sqrtf(sum / (float)d.D + d.eps);
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        v[i] = in[i] * r * w[i];
    __syncthreads();
    const float *cs = cosine_sine + row * d.R;
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        out[i] = i < half  ? v[i] * cs[i] - v[i + half] * cs[half + i]
                 : i < d.R ? v[i - half] * cs[i] + v[i] * cs[i - half]
                           : v[i];
}

/* In double, once per row and pair: a float product loses digits at high positions. */
__global__ void k_rope_table(const drow *rows, const double *freq, dshape d, float *cosine_sine)
{
    const uint64_t row = blockIdx.x;
    const uint32_t half = d.R / 2;
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        const double angle = rows[row].position * freq[i];
        cosine_sine[row * d.R + i] = (float)(cos(angle)) * d.rope_scale;
        cosine_sine[row * d.R + half + i] = (float)(sin(angle)) * d.rope_scale;
    }
}

void launch_rope_table(const scratch &s, const double *freq, uint32_t n, const dshape &d, cudaStream_t st)
{
    if (d.R) k_rope_table<<<n, 32, 0, st>>>(s.rows, freq, d, s.rope);
}

void launch_q_norm_rope(const float *qgate, const float *w, const scratch &s, uint32_t n, const dshape &d, float *q,
                        cudaStream_t st)
{
    k_q_norm_rope<<<dim3(n, d.H), 128, d.D * sizeof(float), st>>>(qgate, w, s.rows, s.rope, d, q);
}

__global__ void k_k_norm_rope(float *k, const float *w, const float *cosine_sine, dshape d)
{
    extern __shared__ float v[];
    __shared__ float part[64];
    const uint64_t row = blockIdx.x;
    const uint32_t half = d.R / 2;
    float *x = k + (row * d.K + blockIdx.y) * d.D;
    float sum = 0, max = 0;
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        sum = fmaf(x[i], x[i], sum);
    block_sum_max(sum, max, part);
    const float r = 1.0f / sqrtf(sum / (float)d.D + d.eps);
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        v[i] = x[i] * r * w[i];
    __syncthreads();
    const float *cs = cosine_sine + row * d.R;
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        x[i] = i < half  ? v[i] * cs[i] - v[i + half] * cs[half + i]
               : i < d.R ? v[i - half] * cs[i] + v[i] * cs[i - half]
                         : v[i];
}

void launch_k_norm_rope(float *k, const float *w, const scratch &s, uint32_t n, const dshape &d, cudaStream_t st)
{
    k_k_norm_rope<<<dim3(n, d.K), 128, d.D * sizeof(float), st>>>(k, w, s.rope, d);
}

static __device__ __forceinline__ void kv_store(uint8_t *base, uint64_t i, float v, int f16)
{
    if (f16)
        ((__half *)base)[i] = __float2half_rn(v);
    else
        ((float *)base)[i] = v;
}

__global__ void k_kv_append(const drow *rows, const dseg *segs, const float *k, const float *v, dshape d, uint32_t cache)
{
    const uint64_t row = blockIdx.x, width = d.K * d.D;
    const drow r = rows[row];
    const dseg g = segs[r.segment];
    const uint64_t bytes = d.kv_f16 ? 2 : 4;
    uint8_t *keys = g.kv + 2ull * cache * g.capacity * width * bytes, *values = keys + g.capacity * width * bytes;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        kv_store(keys, r.position * width + i, k[row * width + i], d.kv_f16);
        kv_store(values, r.position * width + i, v[row * width + i], d.kv_f16);
    }
}

void launch_kv_append(const scratch &s, uint32_t n, const dshape &d, uint32_t cache, cudaStream_t st)
{
    k_kv_append<<<n, 256, 0, st>>>(s.rows, s.segs, s.k, s.v, d, cache);
}

/* ---- Core ---------------------------------------------------------------------------------------------------------------- */

enum { CHUNK = 64, ATT_THREADS = 256 };

template <typename T> static __device__ __forceinline__ float kv_load(const uint8_t *p, uint64_t i);
template <> __device__ __forceinline__ float kv_load<float>(const uint8_t *p, uint64_t i)
{
    return ((const float *)p)[i];
}
template <> __device__ __forceinline__ float kv_load<__half>(const uint8_t *p, uint64_t i)
{
    return __half2float(((const __half *)p)[i]);
}

/* One key/value head, G of its query heads, one row, one split of the positions. Threads own value dimensions (DT each). With
 * one split the result is final; else the unnormalised sum, maximum and weight go to `partial`. */
template <typename T, int G, int DT>
__global__ void __launch_bounds__(ATT_THREADS)
    k_attention(const float *q, const drow *rows, const dseg *segs, dshape d, uint32_t cache, float *core, float *partial)
{
    extern __shared__ float smem[];
    float *qs = smem;          /* [G][D] */
    float *p = smem + G * d.D; /* [CHUNK][G] */
    const uint32_t per = d.H / d.K, groups = per / G;
    const uint64_t row = blockIdx.z;
    const uint32_t head0 = (blockIdx.y / groups) * per + (blockIdx.y % groups) * G, j = blockIdx.y / groups;
    const uint32_t split = blockIdx.x, splits = gridDim.x;
    const drow r = rows[row];
    const dseg g = segs[r.segment];
    const uint64_t width = (uint64_t)d.K * d.D;
    const uint8_t *keys = g.kv + 2ull * cache * g.capacity * width * sizeof(T), *values = keys + g.capacity * width * sizeof(T);
    const uint32_t n = r.position + 1, share = (n + splits * CHUNK - 1) / (splits * CHUNK) * CHUNK;
    const uint32_t begin = split * share, end = begin + share < n ? begin + share : n;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float scale = 1.0f / sqrtf((float)d.D);
    for (uint32_t i = threadIdx.x; i < G * d.D; i += ATT_THREADS)
        qs[i] = q[(row * d.H + head0) * d.D + i] * scale;
    float acc[G][DT], max[G], sum[G];
#pragma unroll
    for (int h = 0; h < G; h++) {
        max[h] = -INFINITY, sum[h] = 0;
#pragma unroll
        for (int t = 0; t < DT; t++)
            acc[h][t] = 0;
    }
    __syncthreads();
    for (uint32_t u0 = begin; u0 < end; u0 += CHUNK) {
        const uint32_t m = end - u0 < CHUNK ? end - u0 : CHUNK;
        for (uint32_t u = warp; u < m; u += ATT_THREADS / 32) {
            float dot[G] = {};
            for (uint32_t i = lane; i < d.D; i += 32) {
                const float kv = kv_load<T>(keys, (u0 + u) * width + j * d.D + i);
#pragma unroll
                for (int h = 0; h < G; h++)
                    dot[h] = fmaf(kv, qs[h * d.D + i], dot[h]);
            }
#pragma unroll
            for (int h = 0; h < G; h++) {
                dot[h] = warp_sum(dot[h]);
                if (lane == 0) p[u * G + h] = dot[h];
            }
        }
        __syncthreads();
        float correction[G];
#pragma unroll
        for (int h = 0; h < G; h++) {
            const float a = lane < m ? p[lane * G + h] : -INFINITY, b = lane + 32 < m ? p[(lane + 32) * G + h] : -INFINITY;
            const float top = fmaxf(max[h], warp_max(fmaxf(a, b)));
            correction[h] = expf(max[h] - top);
            sum[h] = sum[h] * correction[h] + warp_sum(expf(a - top) + expf(b - top));
            max[h] = top;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < m * G; i += ATT_THREADS) {
            float top = max[0];
#pragma unroll
            for (int h = 1; h < G; h++)
                top = i % G == h ? max[h] : top;
            p[i] = expf(p[i] - top);
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < G; h++)
#pragma unroll
            for (int t = 0; t < DT; t++)
                acc[h][t] *= correction[h];
        for (uint32_t u = 0; u < m; u++) {
            float value[DT];
#pragma unroll
            for (int t = 0; t < DT; t++) {
                const uint32_t i = threadIdx.x + t * ATT_THREADS;
                value[t] = i < d.D ? kv_load<T>(values, (u0 + u) * width + j * d.D + i) : 0.0f;
            }
#pragma unroll
            for (int h = 0; h < G; h++) {
                const float w = p[u * G + h];
#pragma unroll
                for (int t = 0; t < DT; t++)
                    acc[h][t] = fmaf(w, value[t], acc[h][t]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < G; h++)
#pragma unroll
        for (int t = 0; t < DT; t++) {
            const uint32_t i = threadIdx.x + t * ATT_THREADS;
            if (i >= d.D) continue;
            if (splits == 1) {
                core[(row * d.H + head0 + h) * d.D + i] = acc[h][t] / sum[h];
            } else {
                float *out = partial + ((row * d.H + head0 + h) * splits + split) * (d.D + 2);
                out[i] = acc[h][t];
                if (i == 0) out[d.D] = max[h], out[d.D + 1] = sum[h];
            }
        }
}

__global__ void k_attention_join(const float *partial, uint32_t splits, dshape d, float *core)
{
    const uint64_t at = (uint64_t)blockIdx.y * d.H + blockIdx.x; /* row, head */
    const float *p = partial + at * splits * (d.D + 2);
    float max = -INFINITY, sum = 0;
    for (uint32_t s = 0; s < splits; s++)
        max = fmaxf(max, p[s * (d.D + 2) + d.D]);
    for (uint32_t s = 0; s < splits; s++)
        sum += expf(p[s * (d.D + 2) + d.D] - max) * p[s * (d.D + 2) + d.D + 1];
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x) {
        float v = 0;
        for (uint32_t s = 0; s < splits; s++)
            v = fmaf(expf(p[s * (d.D + 2) + d.D] - max), p[s * (d.D + 2) + i], v);
        core[at * d.D + i] = v / sum;
    }
}

template <typename T, int G>
static void attention_g(const scratch &s, uint32_t n, const dshape &d, uint32_t cache, uint32_t splits, cudaStream_t st)
{
    const dim3 grid(splits, d.H / G, n);
    const size_t smem = (G * d.D + CHUNK * G) * sizeof(float);
    if (d.D <= ATT_THREADS) {
        cudaFuncSetAttribute(k_attention<T, G, 1>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        k_attention<T, G, 1><<<grid, ATT_THREADS, smem, st>>>(s.q, s.rows, s.segs, d, cache, s.core, s.partial);
    } else {
        cudaFuncSetAttribute(k_attention<T, G, 4>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        k_attention<T, G, 4><<<grid, ATT_THREADS, smem, st>>>(s.q, s.rows, s.segs, d, cache, s.core, s.partial);
    }
}

template <typename T>
static void attention_t(const scratch &s, uint32_t n, const dshape &d, uint32_t cache, uint32_t splits, cudaStream_t st)
{
    const uint32_t per = d.H / d.K;
    if (per % 8 == 0)
        attention_g<T, 8>(s, n, d, cache, splits, st);
    else if (per % 4 == 0)
        attention_g<T, 4>(s, n, d, cache, splits, st);
    else if (per % 2 == 0)
        attention_g<T, 2>(s, n, d, cache, splits, st);
    else
        attention_g<T, 1>(s, n, d, cache, splits, st);
}

void launch_attention(const scratch &s, uint32_t n, const dshape &d, uint32_t cache, uint32_t splits, cudaStream_t st)
{
    if (d.kv_f16)
        attention_t<__half>(s, n, d, cache, splits, st);
    else
        attention_t<float>(s, n, d, cache, splits, st);
    if (splits > 1) k_attention_join<<<dim3(d.H, n), 256, 0, st>>>(s.partial, splits, d, s.core);
}

__global__ void k_attention_gate(const float *qgate, const float *core, float *gated, dshape d)
{
    const uint64_t at = (uint64_t)blockIdx.x * d.H + blockIdx.y;
    for (uint32_t i = threadIdx.x; i < d.D; i += blockDim.x)
        gated[at * d.D + i] = core[at * d.D + i] * sigmoid(qgate[at * 2 * d.D + d.D + i]);
}

void launch_attention_gate(const float *qgate, const float *core, float *gated, uint32_t n, const dshape &d, cudaStream_t st)
{
    k_attention_gate<<<dim3(n, d.H), 256, 0, st>>>(qgate, core, gated, d);
}
