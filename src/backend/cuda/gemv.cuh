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

/* Eight neighbouring values from column `at`; four neighbouring lanes make a block of 32. All lanes of the warp call it.
 * Magnitudes are compared as bits, where infinities and NaN are the largest and end as the block's scale. Adding 1.5 * 2^23
 * rounds to the nearest even integer and leaves it in the low byte. */
static __device__ __forceinline__ void quantise8(const float *v, uint32_t at, bool valid, const act8 &a)
{
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
    bits = max(bits, __shfl_xor_sync(~0u, bits, 1));
    bits = max(bits, __shfl_xor_sync(~0u, bits, 2));
    const float largest = __uint_as_float(bits), inverse = bits && bits < 0x7f800000u ? __fdividef(127.0f, largest) : 0.0f;
    uint32_t w[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t q[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            q[c] = __float_as_uint(fmaf(v[4 * i + c], inverse, 12582912.0f));
        w[i] = permute(permute(q[0], q[1], 0x0040), permute(q[2], q[3], 0x0040), 0x5410);
    }
    int sum = __dp4a((int)w[0], 0x01010101, __dp4a((int)w[1], 0x01010101, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (!valid) return;
    const uint32_t u = at / 64, in = at % 64;
    *(uint2 *)((uint8_t *)(a.q + (in / 16) * a.units + u) + in % 16) = make_uint2(w[0], w[1]);
    if (in % 16 == 0) ((short *)(a.sums + u))[in / 16] = (short)sum;
    if (in % 32 == 0) ((float *)(a.s + u))[in / 32] = largest * (1.0f / 127.0f);
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

/* A unit's activations in registers. */
struct act_unit {
    uint32_t q[16];
    float2 s;
    short4 sums;
    template <int F> __device__ __forceinline__ void load(const act8 &a, uint32_t u)
    {
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 v = a.q[p * a.units + u];
            q[4 * p] = v.x, q[4 * p + 1] = v.y, q[4 * p + 2] = v.z, q[4 * p + 3] = v.w;
        }
        s = a.s[u];
        sums = has_offset(F) ? a.sums[u] : make_short4(0, 0, 0, 0);
    }
};

/* A warp multiplies n rows from row0 (over all matrices of m), one after the other; lane r gets the result of row r. Loops stay
 * loops: a kernel of a decode step runs its code once or twice, and fetching it takes time too. The next unit is on its way
 * while one is used; it is loaded unconditionally, since units that are loaded only sometimes end in local memory. */
template <int F> static __device__ __forceinline__ float gemv_rows(const dmat &m, uint64_t row0, uint32_t n, const act8 a)
{
    const uint32_t lane = threadIdx.x % 32, turns = (m.units + 31) / 32, items = n * turns;
    float mine = 0, acc = 0;
    act_unit act;
    unit<F> next, now;
    /* Lanes beyond the row's end work on its last unit and are left out of the sum. */
    uint32_t u = lane < m.units ? lane : m.units - 1, r = 0, t = 0;
    uint64_t at = row0 * m.units;
    next.load(m, at + u);
    act.load<F>(a, u);
#pragma unroll 1
    for (uint32_t i = 0; i < items; i++) {
        const uint64_t here = at + u;
        const bool counts = 32 * t + lane < m.units, last = t + 1 == turns;
        now = next;
        const uint32_t wanted = last ? lane : 32 * (t + 1) + lane;
        u = wanted < m.units ? wanted : m.units - 1;
        at = last && r + 1 < n ? at + m.units : at;
        next.load(m, at + u); /* after the last item: a unit that was loaded before */
        const float dot = unit_dot<F>(now, m, here, act.q, act.s, act.sums);
        acc += counts ? dot : 0.0f;
        if (turns > 1) act.load<F>(a, u);
        t = last ? 0 : t + 1;
        if (last) {
            acc = warp_sum(acc);
            mine = lane == r ? acc : mine;
            acc = 0;
            r++;
        }
    }
    return mine;
}

/* A row of floats against float activations; the first FLOAT_AHEAD loads of a lane can be started early. */
enum { FLOAT_AHEAD = 16 };

struct float_row {
    float4 w[FLOAT_AHEAD];
    const float4 *row;
    uint32_t n;
    __device__ __forceinline__ void start(const dmat &m, uint64_t r)
    {
        row = (const float4 *)(m.codes + r * m.units * 256);
        n = m.cols / 4;
#pragma unroll
        for (int i = 0; i < FLOAT_AHEAD; i++) {
            const uint32_t c = 32 * i + threadIdx.x % 32;
            w[i] = c < n ? __ldg(row + c) : make_float4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ float finish(const float *x) const
    {
        const uint32_t lane = threadIdx.x % 32;
        float p[4] = {};
        auto add = [&](float4 v, uint32_t c) {
            const float4 a = *(const float4 *)(x + 4 * c);
            p[0] = fmaf(v.x, a.x, p[0]), p[1] = fmaf(v.y, a.y, p[1]), p[2] = fmaf(v.z, a.z, p[2]), p[3] = fmaf(v.w, a.w, p[3]);
        };
#pragma unroll
        for (int i = 0; i < FLOAT_AHEAD; i++)
            if (32 * i + lane < n) add(w[i], 32 * i + lane);
        for (uint32_t c = 32 * FLOAT_AHEAD + lane; c < n; c += 32)
            add(__ldg(row + c), c);
        return warp_sum((p[0] + p[1]) + (p[2] + p[3]));
    }
};

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
    uint32_t width, head; /* head: S or D, a power of two */
    uint32_t head_shift;
    float eps;
};

static __device__ __forceinline__ void load8(const float *p, float *v)
{
    const float4 a = __ldcg((const float4 *)p), b = __ldcg((const float4 *)p + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Sum over a block of whole warps; every thread gets it. */
static __device__ __forceinline__ float block_sum(float v, float *shared)
{
    const uint32_t lane = threadIdx.x % 32, n = blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(lane < n ? shared[lane] : 0.0f);
}

/* Fixed data of a vector's preparation that can be fetched before the predecessor has ended. */
struct vector_ahead {
    float w[8];
};

template <int SOURCE> static __device__ __forceinline__ void vector_start(const vector_source &src, vector_ahead &h)
{
    if constexpr (SOURCE != SOURCE_ATTENTION) {
        const uint32_t at = 8 * threadIdx.x;
        if (at >= src.width) return;
        const float4 *p = (const float4 *)(src.w + (SOURCE == SOURCE_NORM ? at : at & (src.head - 1)));
        const float4 a = __ldg(p), b = __ldg(p + 1);
        h.w[0] = a.x, h.w[1] = a.y, h.w[2] = a.z, h.w[3] = a.w, h.w[4] = b.x, h.w[5] = b.y, h.w[6] = b.z, h.w[7] = b.w;
    }
}

/* The whole block prepares the vector in shared memory: 8-bit in `a`, and for NORM as floats in `xs` too. Threads own eight
 * columns of each 8 * blockDim. */
template <int SOURCE>
static __device__ __forceinline__ void prepare_vector(const vector_source &src, vector_ahead &h, float *xs, const act8 &a)
{
    __shared__ float part[32];
    const uint32_t step = 8 * blockDim.x, rounds = (src.width + step - 1) / step;
    float r = 0;
    if constexpr (SOURCE == SOURCE_NORM) {
        float sum = 0;
#pragma unroll 1
        for (uint32_t at = 8 * threadIdx.x; at < src.width; at += step) {
            float v[8];
            load8(src.x + at, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = fmaf(v[i], v[i], sum);
            *(float4 *)(xs + at) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(xs + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        r = 1.0f / sqrtf(block_sum(sum, part) / (float)src.width + src.eps);
    }
#pragma unroll 1
    for (uint32_t k = 0; k < rounds; k++) {
        const uint32_t at = k * step + 8 * threadIdx.x;
        const bool valid = at < src.width;
        float v[8] = {};
        if constexpr (SOURCE == SOURCE_NORM) {
            if (valid) {
                if (k) {
                    const float4 c = __ldg((const float4 *)(src.w + at)), d = __ldg((const float4 *)(src.w + at) + 1);
                    h.w[0] = c.x, h.w[1] = c.y, h.w[2] = c.z, h.w[3] = c.w, h.w[4] = d.x, h.w[5] = d.y, h.w[6] = d.z,
                    h.w[7] = d.w;
                }
#pragma unroll
                for (int i = 0; i < 8; i++)
                    xs[at + i] = v[i] = xs[at + i] * r * h.w[i];
            }
        } else {
            const uint32_t head = at >> src.head_shift, in = at & (src.head - 1);
            float z[8] = {};
            if (valid) {
                load8(src.x + at, v);
                load8(SOURCE == SOURCE_DELTA ? src.gate + at : src.gate + head * 2 * src.head + src.head + in, z);
            }
            if constexpr (SOURCE ==
                          SOURCE_DELTA) { /* lanes that share a head: a power of two up to 32; heads repeat each step */
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum = fmaf(v[i], v[i], sum);
                for (uint32_t d = src.head / 16; d; d /= 2)
                    sum += __shfl_xor_sync(~0u, sum, d);
                const float n = 1.0f / sqrtf(sum / (float)src.head + src.eps);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] *= valid ? n * h.w[i] * (__fdividef(z[i], 1.0f + __expf(-z[i]))) : 0.0f;
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] *= __fdividef(1.0f, 1.0f + __expf(-z[i]));
            }
        }
        quantise8(v, at, valid, a);
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
