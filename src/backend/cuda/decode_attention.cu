/* backend/cuda/decode_attention: attention of a fused decode step.
 *
 * A block takes one key/value head, its G query heads and a share of the positions; warps take four positions at a time and
 * keep their own running maximum, sum and output in registers: lane l owns columns 4l .. 4l+3 of each 128. The dot products of
 * the G heads are summed over lanes together, halving the set of heads at each exchange, so lane l ends with head l / (32 / G).
 */
#include "backend/cuda/decode.cuh"
#include "backend/cuda/gemv.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, RUN = 4 };

struct attend_args {
    const float *qgate, *k, *v, *q_norm, *k_norm, *rope;
    const drow *rows;
    const dseg *segs;
    dshape d;
    uint32_t cache;
    float *core, *partial;
};

template <typename T> static __device__ __forceinline__ float4 kv4(const uint8_t *p, uint64_t i);
template <> __device__ __forceinline__ float4 kv4<float>(const uint8_t *p, uint64_t i)
{
    return __ldcg((const float4 *)((const float *)p + i));
}
template <> __device__ __forceinline__ float4 kv4<__half>(const uint8_t *p, uint64_t i)
{
    const uint2 w = __ldcg((const uint2 *)((const __half *)p + i));
    const float2 a = __half22float2(*(const __half2 *)&w.x), b = __half22float2(*(const __half2 *)&w.y);
    return make_float4(a.x, a.y, b.x, b.y);
}
static __device__ __forceinline__ void kv4_store(float *p, float4 v)
{
    *(float4 *)p = v;
}
static __device__ __forceinline__ void kv4_store(__half *p, float4 v)
{
    ((__half2 *)p)[0] = __floats2half2_rn(v.x, v.y);
    ((__half2 *)p)[1] = __floats2half2_rn(v.z, v.w);
}

static __device__ __forceinline__ float dot4(float4 a, float4 b, float c)
{
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, c))));
}

/* A head's vector of a warp: rms norm, then rotation of pairs (i, i + R/2) inside the first 128 columns. */
template <int NV>
static __device__ __forceinline__ void norm_rope(float4 *v, const float *w, const float *rope, const dshape &d)
{
    const uint32_t lane = threadIdx.x % 32, half = d.R / 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < NV; i++)
        sum = dot4(v[i], v[i], sum);
    const float r = 1.0f / sqrtf(warp_sum(sum) / (float)d.D + d.eps);
#pragma unroll
    for (int i = 0; i < NV; i++) {
        const float4 g = __ldg((const float4 *)(w + 128 * i + 4 * lane));
        v[i].x *= r * g.x, v[i].y *= r * g.y, v[i].z *= r * g.z, v[i].w *= r * g.w;
    }
    const bool low = 4 * lane < half, in = 4 * lane < d.R;
    const uint32_t partner = low ? lane + half / 4 : lane - half / 4, from = in ? partner : lane;
    float x[4] = {v[0].x, v[0].y, v[0].z, v[0].w}, other[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        other[c] = __shfl_sync(~0u, x[c], from);
    if (!in) return;
    const uint32_t pair = low ? 4 * lane : 4 * lane - half;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float cosine = __ldcg(rope + pair + c), sine = __ldcg(rope + half + pair + c);
        x[c] = low ? x[c] * cosine - other[c] * sine : other[c] * sine + x[c] * cosine;
    }
    v[0] = make_float4(x[0], x[1], x[2], x[3]);
}

/* Sums d[h] over the lanes; the result is that of head lane / (32 / G). */
template <int G> static __device__ __forceinline__ float reduce_heads(float *d)
{
    const uint32_t lane = threadIdx.x % 32;
    int width = 16;
#pragma unroll
    for (int n = G / 2; n; n /= 2, width /= 2) {
        const bool upper = lane & width;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float send = upper ? d[i] : d[i + n], keep = upper ? d[i + n] : d[i];
            d[i] = keep + __shfl_xor_sync(~0u, send, width);
        }
    }
    float v = d[0];
#pragma unroll
    for (int w = 16 / G; w; w /= 2)
        v += __shfl_xor_sync(~0u, v, w);
    return v;
}

template <typename T, int NV, int G> __global__ void __launch_bounds__(THREADS, 1) k_attend_step(attend_args g)
{
    constexpr int D = NV * 128, PER_HEAD = 32 / G;
    extern __shared__ __align__(16) float smem[]; /* [WARPS][G][D], first the queries */
    __shared__ float tops[WARPS][G], sums[WARPS][G];
    let_next_start();
    const dshape &d = g.d;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = lane / PER_HEAD;
    const uint32_t per = d.H / d.K, groups = per / G, j = blockIdx.y / groups, head0 = j * per + blockIdx.y % groups * G;
    const uint32_t split = blockIdx.x, splits = gridDim.x;
    const drow r = g.rows[0];
    const dseg s = g.segs[0];
    const uint64_t width = (uint64_t)d.K * D;
    uint8_t *keys = s.kv + 2ull * g.cache * s.capacity * width * sizeof(T), *values = keys + s.capacity * width * sizeof(T);
    const uint32_t n = r.position + 1, share = (n + splits - 1) / splits, begin = split * share;
    const uint32_t end = begin + share < n ? begin + share : n;
    wait_previous();
    if (warp < G) {
        float4 q[NV];
#pragma unroll
        for (int i = 0; i < NV; i++)
            q[i] = __ldcg((const float4 *)(g.qgate + (head0 + warp) * 2 * D + 128 * i + 4 * lane));
        norm_rope<NV>(q, g.q_norm, g.rope, d);
        const float scale = 1.0f / sqrtf((float)D);
#pragma unroll
        for (int i = 0; i < NV; i++) {
            q[i].x *= scale, q[i].y *= scale, q[i].z *= scale, q[i].w *= scale;
            *(float4 *)(smem + warp * D + 128 * i + 4 * lane) = q[i];
        }
    }
    if (begin < end && end == n && warp >= WARPS - 2) { /* the new position: every block that reads it writes the same */
        const bool is_key = warp == WARPS - 1;
        float4 v[NV];
#pragma unroll
        for (int i = 0; i < NV; i++)
            v[i] = __ldcg((const float4 *)((is_key ? g.k : g.v) + j * D + 128 * i + 4 * lane));
        if (is_key) norm_rope<NV>(v, g.k_norm, g.rope, d);
#pragma unroll
        for (int i = 0; i < NV; i++)
            kv4_store((T *)(is_key ? keys : values) + r.position * width + j * D + 128 * i + 4 * lane, v[i]);
    }
    __syncthreads();
    float4 q[G][NV], acc[G][NV];
#pragma unroll
    for (int h = 0; h < G; h++)
#pragma unroll
        for (int i = 0; i < NV; i++) {
            q[h][i] = *(const float4 *)(smem + h * D + 128 * i + 4 * lane);
            acc[h][i] = make_float4(0, 0, 0, 0);
        }
    float top = -INFINITY, sum = 0; /* of head `own` */
    for (uint32_t u0 = begin + RUN * warp; u0 < end; u0 += RUN * WARPS) {
        float4 k[RUN][NV], v[RUN][NV];
#pragma unroll
        for (int p = 0; p < RUN; p++) {
            const uint64_t u = u0 + p < end ? u0 + p : end - 1;
#pragma unroll
            for (int i = 0; i < NV; i++)
                k[p][i] = kv4<T>(keys, u * width + j * D + 128 * i + 4 * lane);
        }
#pragma unroll
        for (int p = 0; p < RUN; p++) {
            const uint64_t u = u0 + p < end ? u0 + p : end - 1;
#pragma unroll
            for (int i = 0; i < NV; i++)
                v[p][i] = kv4<T>(values, u * width + j * D + 128 * i + 4 * lane);
        }
        float score[RUN], next = top;
#pragma unroll
        for (int p = 0; p < RUN; p++) {
            float dot[G];
#pragma unroll
            for (int h = 0; h < G; h++) {
                dot[h] = 0;
#pragma unroll
                for (int i = 0; i < NV; i++)
                    dot[h] = dot4(q[h][i], k[p][i], dot[h]);
            }
            const float x = reduce_heads<G>(dot);
            score[p] = u0 + p < end ? x : -INFINITY;
            next = fmaxf(next, score[p]);
        }
        const float correction = __expf(top - next);
        top = next;
        sum *= correction;
#pragma unroll
        for (int p = 0; p < RUN; p++) {
            score[p] = __expf(score[p] - top);
            sum += score[p];
        }
#pragma unroll
        for (int h = 0; h < G; h++) {
            const float c = __shfl_sync(~0u, correction, h * PER_HEAD);
#pragma unroll
            for (int i = 0; i < NV; i++)
                acc[h][i].x *= c, acc[h][i].y *= c, acc[h][i].z *= c, acc[h][i].w *= c;
#pragma unroll
            for (int p = 0; p < RUN; p++) {
                const float w = __shfl_sync(~0u, score[p], h * PER_HEAD);
#pragma unroll
                for (int i = 0; i < NV; i++) {
                    acc[h][i].x = fmaf(w, v[p][i].x, acc[h][i].x);
                    acc[h][i].y = fmaf(w, v[p][i].y, acc[h][i].y);
                    acc[h][i].z = fmaf(w, v[p][i].z, acc[h][i].z);
                    acc[h][i].w = fmaf(w, v[p][i].w, acc[h][i].w);
                }
            }
        }
    }
    if (lane % PER_HEAD == 0) tops[warp][own] = top, sums[warp][own] = sum;
    __syncthreads(); /* also: the queries have been read */
#pragma unroll
    for (int h = 0; h < G; h++) {
        float all = tops[0][h];
        for (int w = 1; w < WARPS; w++)
            all = fmaxf(all, tops[w][h]);
        const float c = tops[warp][h] == -INFINITY ? 0.0f : __expf(tops[warp][h] - all);
#pragma unroll
        for (int i = 0; i < NV; i++)
            *(float4 *)(smem + (warp * G + h) * D + 128 * i + 4 * lane) =
                make_float4(acc[h][i].x * c, acc[h][i].y * c, acc[h][i].z * c, acc[h][i].w * c);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < G * D; i += THREADS) {
        const uint32_t h = i / D;
        float v = 0, all = tops[0][h], weight = 0;
        for (int w = 1; w < WARPS; w++)
            all = fmaxf(all, tops[w][h]);
        for (int w = 0; w < WARPS; w++) {
            v += smem[w * G * D + i];
            weight += tops[w][h] == -INFINITY ? 0.0f : sums[w][h] * __expf(tops[w][h] - all);
        }
        if (splits == 1) {
            g.core[head0 * D + i] = v / weight;
        } else {
            float *out = g.partial + ((uint64_t)(head0 + h) * splits + split) * (D + 2);
            out[i % D] = v;
            if (i % D == 0) out[D] = all, out[D + 1] = weight;
        }
    }
}

/* 64 columns of a head; four groups of threads take every fourth split. */
__global__ void __launch_bounds__(THREADS) k_join_step(const float *partial, uint32_t splits, uint32_t D, float *core)
{
    __shared__ float values[4][64], weights[4];
    let_next_start();
    wait_previous();
    const uint32_t head = blockIdx.x, column = blockIdx.y * 64 + threadIdx.x % 64, part = threadIdx.x / 64;
    const float *p = partial + (uint64_t)head * splits * (D + 2);
    float top = -INFINITY;
    for (uint32_t s = 0; s < splits; s++)
        top = fmaxf(top, __ldcg(p + (uint64_t)s * (D + 2) + D));
    float v = 0, weight = 0;
    for (uint32_t s = part; s < splits; s += 4) {
        const float *one = p + (uint64_t)s * (D + 2);
        const float c = __expf(__ldcg(one + D) - top);
        v = fmaf(c, __ldcg(one + column), v);
        weight = fmaf(c, __ldcg(one + D + 1), weight);
    }
    values[part][threadIdx.x % 64] = v;
    if (threadIdx.x % 64 == 0) weights[part] = weight;
    __syncthreads();
    if (part == 0)
        core[head * D + column] =
            (values[0][threadIdx.x] + values[1][threadIdx.x] + values[2][threadIdx.x] + values[3][threadIdx.x]) /
            (weights[0] + weights[1] + weights[2] + weights[3]);
}

template <typename T, int NV, int G> static void attend(cuda_backend *b, const attend_args &a, uint32_t splits)
{
    const size_t smem = (size_t)WARPS * G * NV * 128 * sizeof(float);
    static bool set;
    if (!set) {
        cudaFuncSetAttribute(k_attend_step<T, NV, G>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        set = true;
    }
    launch_early(b, k_attend_step<T, NV, G>, dim3(splits, a.d.H / G), THREADS, smem, a);
}

template <typename T, int NV> static void attend_heads(cuda_backend *b, const attend_args &a, uint32_t splits)
{
    const uint32_t per = a.d.H / a.d.K;
    if (per % 8 == 0)
        attend<T, NV, 8>(b, a, splits);
    else if (per % 4 == 0)
        attend<T, NV, 4>(b, a, splits);
    else if (per % 2 == 0)
        attend<T, NV, 2>(b, a, splits);
    else
        attend<T, NV, 1>(b, a, splits);
}

bool decode_attention_takes(const dshape &d)
{
    return (d.D == 128 || d.D == 256) && d.R % 8 == 0 && d.R <= 128;
}

/* Powers of two, so that a graph serves many positions: 16 to 32 positions a split until the device is full. */
uint32_t decode_splits(const cuda_backend *b, uint32_t positions)
{
    const uint32_t most = (uint32_t)b->sm_count / b->shape.K;
    uint32_t splits = 1;
    while (splits * 2 <= MAX_SPLITS && splits * 2 <= most && splits * 32 <= positions)
        splits *= 2;
    return splits;
}

void decode_attention(cuda_backend *b, const dlayer &l, uint32_t splits)
{
    const dshape &d = b->shape;
    const scratch &s = b->s;
    const attend_args a = {s.raw, s.k, s.v, l.q_norm, l.k_norm, s.rope, s.rows, s.segs, d, l.index, s.core, s.partial};
    if (d.kv_f16 && d.D == 256)
        attend_heads<__half, 2>(b, a, splits);
    else if (d.kv_f16)
        attend_heads<__half, 1>(b, a, splits);
    else if (d.D == 256)
        attend_heads<float, 2>(b, a, splits);
    else
        attend_heads<float, 1>(b, a, splits);
    if (splits > 1)
        launch_early(b, k_join_step, dim3(d.H, d.D / 64), THREADS, 0, (const float *)s.partial, splits, d.D, s.core);
}
