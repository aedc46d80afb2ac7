/* backend/cuda/gemv: one activation row times weight rows, 8-bit activations.
 *
 * A lane owns units of 64 columns and keeps their activations in registers; a warp owns weight rows, loads R of them at once
 * and adds up over lanes. Activations are int8 with a float scale per 32, laid out so that the 16-byte loads of a warp are
 * contiguous: piece p (16 codes) of unit u at p * units + u. */
#ifndef RL_CUDA_GEMV_CUH
#define RL_CUDA_GEMV_CUH

#include "backend/cuda/format.cuh"
#include "backend/cuda/rows.cuh"

/* ---- Programmatic launches ----------------------------------------------------------------------------------------------- */

/* Kernels of a decode step start while their predecessor ends: what does not depend on it (weights into L2) comes before
 * wait_previous. What another kernel wrote is read through L2 (__ldcg), as this kernel's L1 may be older. */
static __device__ __forceinline__ void wait_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void let_next_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* ---- Activations --------------------------------------------------------------------------------------------------------- */

struct act8 {
    uint4 *q;     /* [4][units] */
    float2 *s;    /* [units] */
    short4 *sums; /* [units]: of each 16 codes */
    uint32_t units;
};

__host__ __device__ static inline uint32_t act8_bytes(uint32_t units)
{
    return units * 80;
}

__host__ __device__ static inline act8 act8_at(void *p, uint32_t units)
{
    uint8_t *b = (uint8_t *)p;
    return {(uint4 *)b, (float2 *)(b + units * 64), (short4 *)(b + units * 72), units};
}

/* Eight neighbouring values from column `at`; four neighbouring lanes make a block of 32. All lanes of the warp call it. */
static __device__ __forceinline__ void quantise8(const float *v, uint32_t at, bool valid, const act8 &a)
{
    float max = 0, probe = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        max = fmaxf(max, fabsf(v[i]));
        probe += v[i] * 0.0f; /* NaN for infinities and NaN: every product with the block becomes NaN */
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    probe += __shfl_xor_sync(~0u, probe, 1);
    probe += __shfl_xor_sync(~0u, probe, 2);
    const float inverse = max > 0 ? 127.0f / max : 0.0f;
    uint32_t w[2] = {0, 0};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int q = __float2int_rn(v[i] * inverse);
        sum += q;
        w[i / 4] |= (uint32_t)(q & 255) << (8 * (i % 4));
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (!valid) return;
    const uint32_t u = at / 64, in = at % 64;
    *(uint2 *)((uint8_t *)(a.q + (in / 16) * a.units + u) + in % 16) = make_uint2(w[0], w[1]);
    if (in % 16 == 0) ((short *)(a.sums + u))[in / 16] = (short)sum;
    if (in % 32 == 0) ((float *)(a.s + u))[in / 32] = max * (1.0f / 127.0f) + probe;
}

/* ---- Dot products -------------------------------------------------------------------------------------------------------- */

template <int F>
static __device__ __forceinline__ float unit_dot(const unit<F> &un, const dmat &m, uint64_t at, const uint32_t *a, float2 s,
                                                 short4 sums)
{
    float acc = 0;
    const int sum16[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sa = h ? s.y : s.x;
        if constexpr (F == WF_G8) {
#pragma unroll
            for (int g = 2 * h; g < 2 * h + 2; g++) {
                group_scale<F> gs;
                gs.get(un, m, at, g);
                int t = 0;
#pragma unroll
                for (int j = 4 * g; j < 4 * g + 4; j++)
                    t = __dp4a((int)quad<F, 0>(un, j), (int)a[j], t);
                acc = fmaf(sa, gs.scale * (float)t + gs.offset * (float)sum16[g], acc);
            }
        } else {
            int i = 0, o = 0;
#pragma unroll
            for (int g = 2 * h; g < 2 * h + 2; g++) {
                int t = 0;
#pragma unroll
                for (int j = 4 * g; j < 4 * g + 4; j++)
                    t = __dp4a((int)quad<F, 0>(un, j), (int)a[j], t);
                i += scale_int<F>(un, g) * t;
                if constexpr (has_offset(F)) o += offset_int<F>(un, g) * sum16[g];
            }
            float v = scale_float<F>(un, 2 * h) * (float)i;
            if constexpr (has_offset(F)) v = fmaf(offset_float<F>(un), (float)o, v);
            acc = fmaf(sa, v, acc);
        }
    }
    return acc;
}

/* R rows from row0 (over all matrices of m); those at `valid` and beyond are computed from the last valid one. */
template <int F, int R>
static __device__ __forceinline__ void gemv_rows(const dmat &m, uint64_t row0, uint32_t valid, const act8 &a, float *out)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; r++)
        out[r] = 0;
    for (uint32_t u = lane; u < m.units; u += 32) {
        unit<F> un[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            un[r].load(m, (row0 + (r < (int)valid ? r : valid - 1)) * m.units + u);
        uint32_t q[16];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 v = a.q[p * a.units + u];
            q[4 * p] = v.x, q[4 * p + 1] = v.y, q[4 * p + 2] = v.z, q[4 * p + 3] = v.w;
        }
        const float2 s = a.s[u];
        const short4 sums = has_offset(F) ? a.sums[u] : make_short4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < R; r++)
            out[r] += unit_dot<F>(un[r], m, (row0 + (r < (int)valid ? r : valid - 1)) * m.units + u, q, s, sums);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        out[r] = warp_sum(out[r]);
}

/* A row of floats against float activations. */
static __device__ __forceinline__ float float_row(const dmat &m, uint64_t row, const float *x)
{
    const uint32_t lane = threadIdx.x % 32;
    const float4 *w = (const float4 *)(m.codes + row * m.units * 256);
    float part[4] = {};
    const uint32_t n = m.cols / 4;
#pragma unroll 4
    for (uint32_t i = lane; i < n; i += 32) {
        const float4 v = __ldg(w + i), a = *(const float4 *)(x + 4 * i);
        part[0] = fmaf(v.x, a.x, part[0]);
        part[1] = fmaf(v.y, a.y, part[1]);
        part[2] = fmaf(v.z, a.z, part[2]);
        part[3] = fmaf(v.w, a.w, part[3]);
    }
    return warp_sum((part[0] + part[1]) + (part[2] + part[3]));
}

#define FOR_BLOCK_FORMAT(format, ...)                                                                                          \
    switch (format) {                                                                                                          \
    case WF_G8: {                                                                                                              \
        constexpr int FMT = WF_G8;                                                                                             \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_Q8: {                                                                                                              \
        constexpr int FMT = WF_Q8;                                                                                             \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_IQ1: {                                                                                                             \
        constexpr int FMT = WF_IQ1;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_IQ2: {                                                                                                             \
        constexpr int FMT = WF_IQ2;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_IQ3X: {                                                                                                            \
        constexpr int FMT = WF_IQ3X;                                                                                           \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_IQ3S: {                                                                                                            \
        constexpr int FMT = WF_IQ3S;                                                                                           \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_Q2K: {                                                                                                             \
        constexpr int FMT = WF_Q2K;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_Q4K: {                                                                                                             \
        constexpr int FMT = WF_Q4K;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_Q5K: {                                                                                                             \
        constexpr int FMT = WF_Q5K;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_Q6K: {                                                                                                             \
        constexpr int FMT = WF_Q6K;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    default:                                                                                                                   \
        break;                                                                                                                 \
    }

/* ---- Vectors into activations -------------------------------------------------------------------------------------------- */

/* What comes into a product. */
enum source { SOURCE_NORM, SOURCE_DELTA, SOURCE_ATTENTION };

struct vector_source {
    const float *x, *w;   /* NORM: the residual row and the norm's weights. DELTA: core and ssm_norm. ATTENTION: core */
    const float *gate;    /* DELTA: z. ATTENTION: q with gates */
    uint32_t width, head; /* head: S or D */
    float eps;
};

static __device__ __forceinline__ void load8(const float *p, float *v)
{
    const float4 a = __ldcg((const float4 *)p), b = __ldcg((const float4 *)p + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* The whole block prepares the vector in shared memory: 8-bit in `a`, and for NORM as floats in `xs` too. */
template <int SOURCE> static __device__ __forceinline__ void prepare_vector(const vector_source &src, float *xs, const act8 &a)
{
    __shared__ float part[64];
    const uint32_t groups = src.width / 8, rounds = (groups + blockDim.x - 1) / blockDim.x;
    if constexpr (SOURCE == SOURCE_NORM) {
        float sum = 0, max = 0;
        for (uint32_t g = threadIdx.x; g < groups; g += blockDim.x) {
            float v[8];
            load8(src.x + 8 * g, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = fmaf(v[i], v[i], sum);
            *(float4 *)(xs + 8 * g) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(xs + 8 * g + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        block_sum_max(sum, max, part);
        const float r = 1.0f / sqrtf(sum / (float)src.width + src.eps);
        for (uint32_t k = 0; k < rounds; k++) {
            const uint32_t g = k * blockDim.x + threadIdx.x;
            const bool valid = g < groups;
            float v[8] = {};
            if (valid) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    xs[8 * g + i] = v[i] = xs[8 * g + i] * r * __ldg(src.w + 8 * g + i);
            }
            quantise8(v, 8 * g, valid, a);
        }
    } else {
        const uint32_t lanes = src.head / 8; /* that share a head: a power of two up to 32 */
        for (uint32_t k = 0; k < rounds; k++) {
            const uint32_t g = k * blockDim.x + threadIdx.x, head = 8 * g / src.head, in = 8 * g % src.head;
            const bool valid = g < groups;
            float v[8] = {}, z[8] = {};
            if (valid) {
                load8(src.x + 8 * g, v);
                load8(SOURCE == SOURCE_DELTA ? src.gate + 8 * g : src.gate + head * 2 * src.head + src.head + in, z);
            }
            if constexpr (SOURCE == SOURCE_DELTA) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum = fmaf(v[i], v[i], sum);
                for (uint32_t d = lanes / 2; d; d /= 2)
                    sum += __shfl_xor_sync(~0u, sum, d);
                const float r = 1.0f / sqrtf(sum / (float)src.head + src.eps);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] *= valid ? r * __ldg(src.w + in + i) * silu(z[i]) : 0.0f;
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] *= sigmoid(z[i]);
            }
            quantise8(v, 8 * g, valid, a);
        }
    }
    /* Columns that pad the last units meet zero weights; their codes only have to be finite numbers. */
    for (uint32_t at = src.width + 16 * threadIdx.x; at < 64 * a.units; at += 16 * blockDim.x) {
        a.q[(at % 64 / 16) * a.units + at / 64] = make_uint4(0, 0, 0, 0);
        ((short *)(a.sums + at / 64))[at % 64 / 16] = 0;
        ((float *)(a.s + at / 64))[at % 64 / 32] = 0.0f;
    }
    __syncthreads();
}

#endif
