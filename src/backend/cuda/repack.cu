/* backend/cuda/repack: from a file's blocks to the planes of format.cuh, one thread per unit of 64 weights. */
#include "backend/cuda/format.cuh"
#include "backend/cuda/unpack.cuh"

#include <math.h>
#include <string.h>

static rl_cuda_grids device_grids; /* pointers into device memory */

wformat format_of(rl_type type)
{
    switch (type) {
    case RL_F32:
        return WF_F32;
    case RL_F16:
        return WF_F16;
    case RL_BF16:
        return WF_BF16;
    case RL_Q8_0:
        return WF_Q8;
    case RL_IQ1_S:
    case RL_IQ1_M:
        return WF_IQ1;
    case RL_IQ2_XXS:
    case RL_IQ2_XS:
    case RL_IQ2_S:
        return WF_IQ2;
    case RL_IQ3_XXS:
        return WF_IQ3X;
    case RL_IQ3_S:
        return WF_IQ3S;
    case RL_Q2_K:
        return WF_Q2K;
    case RL_Q4_K:
        return WF_Q4K;
    case RL_Q5_K:
        return WF_Q5K;
    case RL_Q6_K:
        return WF_Q6K;
    default:
        return WF_G8;
    }
}

/* ---- Packing: codes of a unit into the bit order of format.cuh ------------------------------------------------------------
 */

static __device__ void put_pairs(uint32_t *w, int k, uint32_t v) /* code k of the unit, 2 bits */
{
    const int j = k / 4, i = k % 4;
    w[j / 4] |= v << (4 * (i + 4 * (j % 2)) + 2 * ((j / 2) % 2));
}

static __device__ void put_selector(uint32_t *w, int k, uint32_t v) /* 4 bits, by table */
{
    const int j = k / 4, i = k % 4;
    w[j / 2] |= v << (4 * (4 * (j % 2) + i));
}

static __device__ void put_nibble(uint32_t *w, int k, uint32_t v) /* 4 bits, number */
{
    const int j = k / 4, i = k % 4;
    w[j / 2] |= v << (8 * i + 4 * (j % 2));
}

static __device__ uint32_t half_bits(float f)
{
    return __half_as_ushort(__float2half_rn(f)); /* exact: it was a half */
}

/* Index of |c| among the magnitudes of IQ3_XXS: 4 12 20 28 36 44 52 62. */
static __device__ uint32_t level_3x(int a)
{
    return a == 62 ? 7u : (uint32_t)(a - 4) / 8;
}

template <int F> static __device__ void pack(const group16 *g, bool empty, uint32_t *c, uint32_t *e, uint32_t *sc, uint32_t *hd)
{
    const float scale = g[0].scale, offset = g[0].offset_scale;
    for (int k = 0; k < 64 && !empty; k++) {
        const int v = g[k / 16].c[k % 16];
        const int a = v < 0 ? -v : v;
        if constexpr (F == WF_G8 || F == WF_Q8) c[k / 4] |= (uint32_t)(uint8_t)v << (8 * (k % 4));
        if constexpr (F == WF_IQ1) {
            const bool minus = (v + 9) % 8 == 0;
            put_pairs(c, k, (uint32_t)((v + (minus ? 1 : -1)) / 8 + 1));
            if (minus && k % 8 == 0) sc[0] |= 1u << (12 + k / 8);
        }
        if constexpr (F == WF_IQ2) put_selector(c, k, (a == 8 ? 0 : a == 25 ? 1 : 2) | (v < 0 ? 4 : 0));
        if constexpr (F == WF_IQ3X) put_selector(c, k, level_3x(a) | (v < 0 ? 8 : 0));
        if constexpr (F == WF_IQ3S) put_selector(c, k, (uint32_t)(a - 1) / 2 | (v < 0 ? 8 : 0));
        if constexpr (F == WF_Q2K) put_pairs(c, k, (uint32_t)v);
        if constexpr (F == WF_Q4K || F == WF_Q5K) put_nibble(c, k, (uint32_t)v & 15);
        if constexpr (F == WF_Q5K) e[k / 32] |= (uint32_t)(v >> 4) << (8 * (k % 4) + (k / 4) % 8);
        if constexpr (F == WF_Q6K) {
            put_nibble(c, k, (uint32_t)(v + 32) & 15);
            e[k / 16] |= (uint32_t)(v + 32) >> 4 << (8 * (k % 4) + 2 * ((k / 4) % 4));
        }
    }
    if (empty) return;
    if constexpr (F == WF_G8)
        for (int t = 0; t < 4; t++) {
            sc[t] = __float_as_uint(__fmul_rn(g[t].scale, (float)g[t].s));
            sc[4 + t] = __float_as_uint(__fmul_rn(g[t].offset_scale, (float)g[t].m));
        }
    if constexpr (F == WF_Q8) sc[0] = half_bits(g[0].scale) | half_bits(g[2].scale) << 16;
    if constexpr (F == WF_IQ1) {
        for (int t = 0; t < 4; t++)
            sc[0] |= (uint32_t)(g[t].s - 1) / 2 << (3 * t);
        hd[0] = half_bits(scale * 8);
    }
    if constexpr (F == WF_IQ2 || F == WF_IQ3X || F == WF_IQ3S) {
        sc[0] = half_bits(scale / factor(F));
        for (int t = 0; t < 4; t++)
            sc[0] |= (uint32_t)(g[t].s - 1) / 2 << (16 + 4 * t);
    }
    if constexpr (F == WF_Q2K)
        for (int t = 0; t < 4; t++)
            sc[0] |= (uint32_t)g[t].s << (4 * t) | (uint32_t)g[t].m << (16 + 4 * t);
    if constexpr (F == WF_Q4K || F == WF_Q5K)
        sc[0] = (uint32_t)g[0].s | (uint32_t)g[2].s << 8 | (uint32_t)g[0].m << 16 | (uint32_t)g[2].m << 24;
    if constexpr (F == WF_Q6K)
        for (int t = 0; t < 4; t++)
            sc[0] |= (uint32_t)(uint8_t)g[t].s << (8 * t);
    if constexpr (F == WF_Q2K || F == WF_Q4K || F == WF_Q5K || F == WF_Q6K) hd[0] = half_bits(scale) | half_bits(-offset) << 16;
}

/* The floats' order is that of their bits, as they are not negative. */
static __device__ void note_largest(uint32_t *largest, float v)
{
    if (__float_as_uint(v) > *(volatile uint32_t *)largest) atomicMax(largest, __float_as_uint(v));
}

template <int TYPE, int F, int N, int B>
__global__ void k_repack(const uint8_t *raw, uint64_t raw_row, uint32_t rows, uint32_t cols, dmat dst, uint64_t row0,
                         rl_cuda_grids grids, uint32_t *largest)
{
    const uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (uint64_t)rows * dst.units) return;
    const uint32_t row = (uint32_t)(index / dst.units), u = (uint32_t)(index % dst.units);
    const uint64_t at = (row0 + row) * dst.units + u;
    group16 g[4];
    uint32_t c[code_bytes(F) / 4] = {}, e[4] = {}, sc[8] = {}, hd[1] = {};
    for (int t = 0; t < 4; t++) {
        const uint32_t k = 64 * u + 16 * t;
        if (k < cols) {
            unpack16<TYPE>(raw + row * raw_row + (uint64_t)(k / N) * B, (int)(k % N) / 16, grids, &g[t]);
        } else {
            g[t].scale = g[t].offset_scale = 0;
            g[t].s = g[t].m = F == WF_IQ1 || F == WF_IQ2 || F == WF_IQ3X || F == WF_IQ3S;
            for (int i = 0; i < 16; i++)
                g[t].c[i] = 0;
        }
    }
    float max = 0;
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 16; i++)
            max = fmaxf(max, fabsf(g[t].scale * (float)g[t].s * (float)g[t].c[i] + g[t].offset_scale * (float)g[t].m));
    note_largest(largest, max);
    pack<F>(g, 64 * u >= cols, c, e, sc, hd);
    uint32_t *out = (uint32_t *)(dst.codes + at * code_bytes(F));
    for (int i = 0; i < code_bytes(F) / 4; i++)
        out[i] = c[i];
    for (int i = 0; i < extra_bytes(F) / 4; i++)
        ((uint32_t *)(dst.extra + at * extra_bytes(F)))[i] = e[i];
    if constexpr (F == WF_IQ1) {
        /* 64 bits shared by two units: d, then 20 bits each. Each unit writes bytes of its own: bits 0..35 end inside byte 4,
         * so the two go through an atomic or. */
        uint32_t *p = (uint32_t *)(dst.scales + (at >> 1) * 8);
        const uint64_t bits = at & 1 ? (uint64_t)sc[0] << 36 : (uint64_t)sc[0] << 16 | hd[0];
        if ((uint32_t)bits) atomicOr(p, (uint32_t)bits);
        if (bits >> 32) atomicOr(p + 1, (uint32_t)(bits >> 32));
    } else {
        for (int i = 0; i < scale_bytes(F) / 4; i++)
            ((uint32_t *)(dst.scales + at * scale_bytes(F)))[i] = sc[i];
    }
    if (head_bytes(F) && u % 4 == 0) *(uint32_t *)(dst.heads + (at >> 2) * 4) = hd[0];
}

/* Plain types: rows copied into padded rows. */
template <int F>
__global__ void k_copy_rows(const uint8_t *raw, uint64_t raw_row, uint32_t rows, uint32_t cols, dmat dst, uint64_t row0,
                            uint32_t *largest)
{
    constexpr int BYTES = code_bytes(F) / 64;
    const uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t width = dst.units * 64;
    if (index >= (uint64_t)rows * width) return;
    const uint32_t row = (uint32_t)(index / width), k = (uint32_t)(index % width);
    const uint8_t *src = raw + row * raw_row + (uint64_t)k * BYTES;
    uint8_t *out = (uint8_t *)dst.codes + ((row0 + row) * width + k) * BYTES;
    for (int i = 0; i < BYTES; i++)
        out[i] = k < cols ? src[i] : 0;
    if (k >= cols) return;
    uint32_t bits = byte2(src);
    if (F == WF_F32) bits |= byte2(src + BYTES - 2) << 16;
    note_largest(largest, fabsf(F == WF_F16 ? half_of(bits) : __uint_as_float(F == WF_F32 ? bits : bits << 16)));
}

#define REPACK(TYPE, F, N, B)                                                                                                  \
    case TYPE:                                                                                                                 \
        k_repack<TYPE, F, N, B><<<div_up((uint64_t)rows * dst->units, 128), 128, 0, stream>>>(                                 \
            raw, raw_row_bytes, rows, dst->cols, *dst, row0, device_grids, largest);                                           \
        break;

rl_status repack(const uint8_t *raw, rl_type type, uint64_t raw_row_bytes, uint32_t rows, const dmat *dst, uint64_t row0,
                 uint32_t *largest, cudaStream_t stream, rl_error *err)
{
    const uint32_t blocks = div_up((uint64_t)rows * dst->units * 64, 256);
    switch (type) {
    case RL_F32:
        k_copy_rows<WF_F32><<<blocks, 256, 0, stream>>>(raw, raw_row_bytes, rows, dst->cols, *dst, row0, largest);
        break;
    case RL_F16:
        k_copy_rows<WF_F16><<<blocks, 256, 0, stream>>>(raw, raw_row_bytes, rows, dst->cols, *dst, row0, largest);
        break;
    case RL_BF16:
        k_copy_rows<WF_BF16><<<blocks, 256, 0, stream>>>(raw, raw_row_bytes, rows, dst->cols, *dst, row0, largest);
        break;
        REPACK(RL_Q8_0, WF_Q8, 32, 34)
        REPACK(RL_IQ1_S, WF_IQ1, 256, 50)
        REPACK(RL_IQ1_M, WF_IQ1, 256, 56)
        REPACK(RL_IQ2_XXS, WF_IQ2, 256, 66)
        REPACK(RL_IQ2_XS, WF_IQ2, 256, 74)
        REPACK(RL_IQ2_S, WF_IQ2, 256, 82)
        REPACK(RL_IQ3_XXS, WF_IQ3X, 256, 98)
        REPACK(RL_IQ3_S, WF_IQ3S, 256, 110)
        REPACK(RL_Q2_K, WF_Q2K, 256, 84)
        REPACK(RL_Q4_K, WF_Q4K, 256, 144)
        REPACK(RL_Q5_K, WF_Q5K, 256, 176)
        REPACK(RL_Q6_K, WF_Q6K, 256, 210)
        REPACK(RL_Q4_0, WF_G8, 32, 18)
        REPACK(RL_Q4_1, WF_G8, 32, 20)
        REPACK(RL_Q5_0, WF_G8, 32, 22)
        REPACK(RL_Q5_1, WF_G8, 32, 24)
        REPACK(RL_Q1_0, WF_G8, 128, 18)
        REPACK(RL_Q2_0, WF_G8, 64, 18)
        REPACK(RL_Q3_K, WF_G8, 256, 110)
        REPACK(RL_TQ1_0, WF_G8, 256, 54)
        REPACK(RL_TQ2_0, WF_G8, 256, 66)
        REPACK(RL_IQ4_NL, WF_G8, 32, 18)
        REPACK(RL_IQ4_XS, WF_G8, 256, 136)
        REPACK(RL_MXFP4, WF_G8, 32, 17)
        REPACK(RL_NVFP4, WF_G8, 64, 36)
    default:
        return host->fail(err, RL_ERR_UNSUPPORTED, "the CUDA backend has no decoder for weight type %d", (int)type);
    }
    CHECK_CUDA(cudaGetLastError());
    return RL_OK;
}

dmat dmat_at(uint8_t *p, int f, uint64_t all_rows, uint32_t rows, uint32_t cols, uint32_t n)
{
    const uint64_t units = all_rows * (pad256(cols) / 64);
    dmat m = {};
    m.codes = p;
    m.extra = m.codes + units * code_bytes(f);
    m.scales = m.extra + units * extra_bytes(f);
    m.heads = m.scales + units * scale_bytes(f);
    m.format = f;
    m.rows = rows, m.cols = cols, m.units = pad256(cols) / 64, m.n = n;
    m.code_bytes = (uint16_t)code_bytes(f), m.extra_bytes = (uint16_t)extra_bytes(f), m.scale_bytes = (uint16_t)scale_bytes(f);
    m.half_scale = 1.0f;
    return m;
}

/* Largest weights near 2^14 leave the smallest that matter far from f16's subnormal numbers. */
float half_scale_of(uint32_t largest)
{
    float max;
    memcpy(&max, &largest, sizeof max);
    if (!(max > 0.0f) || isinf(max)) return 1.0f;
    int e = 14 - ilogbf(max);
    e = e > 100 ? 100 : e < -100 ? -100 : e;
    return ldexpf(1.0f, e);
}

uint64_t dmat_bytes(wformat f, uint64_t rows, uint32_t cols)
{
    const uint64_t units = rows * (pad256(cols) / 64);
    return units * (uint64_t)(code_bytes(f) + extra_bytes(f) + scale_bytes(f)) + units / 4 * (uint64_t)head_bytes(f);
}

template <typename T> static rl_status upload(const T *src, size_t n, const T **out, rl_error *err)
{
    T *d = NULL;
    CHECK_CUDA(cudaMalloc((void **)&d, n * sizeof(T)));
    CHECK_CUDA(cudaMemcpy(d, src, n * sizeof(T), cudaMemcpyHostToDevice));
    *out = d;
    return RL_OK;
}

/* A few tens of KiB, once per process. */
rl_status upload_grids(rl_error *err)
{
    if (device_grids.ksigns) return RL_OK;
    rl_cuda_grids g;
    TRY(upload(host->grids.iq1s, 2048, &g.iq1s, err));
    TRY(upload(host->grids.iq2xxs, 256, &g.iq2xxs, err));
    TRY(upload(host->grids.iq2xs, 512, &g.iq2xs, err));
    TRY(upload(host->grids.iq2s, 1024, &g.iq2s, err));
    TRY(upload(host->grids.iq3xxs, 256, &g.iq3xxs, err));
    TRY(upload(host->grids.iq3s, 512, &g.iq3s, err));
    TRY(upload(host->grids.iq4nl, 16, &g.iq4nl, err));
    TRY(upload(host->grids.fp4, 16, &g.fp4, err));
    TRY(upload(host->grids.ksigns, 128, &g.ksigns, err));
    device_grids = g;
    return RL_OK;
}
