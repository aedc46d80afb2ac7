/* backend/cuda/format: how weights lie in device memory and how a unit of 64 of them is decoded.
 *
 * Files index codebooks; lookups cost more here than memory does, so a weight is held as its own small code and a codebook's
 * value comes out of a register by byte permutation (prmt picks 4 of 8 bytes by 4 nibbles). All re-encodings are lossless: a
 * weight is (scale * s) * c + offset with the numbers of the file.
 *
 *   format  codes (per unit)             extra            scales                          heads (per 4 units)
 *   F32     256 bytes                    -                -                               -
 *   F16/BF16 128 bytes                   -                -                               -
 *   G8      64 bytes, int8               -                4 floats scale, 4 floats offset -
 *   Q8      64 bytes, int8               -                2 f16                           -
 *   IQ1     16 bytes, 2-bit              -                per 2 units 8 bytes             -
 *   IQ2     32 bytes, 3 of 4 bits        -                f16 d, 4 nibbles u (s = 2u + 1) -
 *   IQ3     32 bytes, 4-bit              -                the same                        -
 *   Q2K     16 bytes, 2-bit              -                4 nibbles s, 4 nibbles m        f16 d, f16 dmin
 *   Q4K     32 bytes, 4-bit              -                s0 s1 m0 m1 (bytes)             f16 d, f16 dmin
 *   Q5K     32 bytes, 4-bit              8 bytes, 5th bit the same                        the same
 *   Q6K     32 bytes, 4-bit              16 bytes, 2-bit  4 int8 s                        f16 d
 *
 * Code 4j + i of a unit (quad j, 0 <= i < 4):
 *   2-bit: word j/4, bit 4(i + 4(j%2)) + 2((j/2)%2): masking with 0x3333 leaves four selectors
 *   IQ2, IQ3 (by table): word j/2, nibble 4(j%2) + i; 4-bit numbers: word j/2, bit 8i + 4(j%2)
 *   5th bit: word j/8, bit 8i + j%8; upper 2 bits of 6: word j/4, bit 8i + 2(j%4)
 * The IQ1 scale word: bits 0..15 f16 d, then 20 bits per unit: four 3-bit u, eight shift signs (one per 8 weights). */
#ifndef RL_CUDA_FORMAT_CUH
#define RL_CUDA_FORMAT_CUH

#include "backend/cuda/common.cuh"

static __device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

static __device__ __forceinline__ float half_low(uint32_t w)
{
    return __half2float(__ushort_as_half((unsigned short)(w & 0xffff)));
}

static __device__ __forceinline__ float half_high(uint32_t w)
{
    return __half2float(__ushort_as_half((unsigned short)(w >> 16)));
}

/* Shift by a compile-time amount of either sign: right for positive. */
static __device__ __forceinline__ uint32_t shift(uint32_t w, int right)
{
    return right >= 0 ? w >> right : w << -right;
}

__host__ __device__ constexpr int code_bytes(int f)
{
    return f == WF_F32                   ? 256
           : f == WF_F16 || f == WF_BF16 ? 128
           : f == WF_G8 || f == WF_Q8    ? 64
           : f == WF_IQ1 || f == WF_Q2K  ? 16
                                         : 32;
}
__host__ __device__ constexpr int extra_bytes(int f)
{
    return f == WF_Q5K ? 8 : f == WF_Q6K ? 16 : 0;
}
/* Per unit; IQ1 keeps 8 bytes for two. */
__host__ __device__ constexpr int scale_bytes(int f)
{
    return f <= WF_BF16 ? 0 : f == WF_G8 ? 32 : 4;
}
__host__ __device__ constexpr int head_bytes(int f) /* per four units */
{
    return f == WF_Q2K || f == WF_Q4K || f == WF_Q5K || f == WF_Q6K ? 4 : 0;
}
__host__ __device__ constexpr bool has_offset(int f)
{
    return f == WF_G8 || f == WF_Q2K || f == WF_Q4K || f == WF_Q5K;
}
__host__ __device__ constexpr bool is_plain(int f)
{
    return f <= WF_BF16;
}

static __device__ __forceinline__ uint4 load16(const uint8_t *p)
{
    return __ldg((const uint4 *)p);
}

/* A unit in registers. `at` is row * units + unit. */
template <int F> struct unit {
    static constexpr int CODE_WORDS = code_bytes(F) / 4, EXTRA_WORDS = extra_bytes(F) / 4;
    uint32_t c[CODE_WORDS], e[EXTRA_WORDS ? EXTRA_WORDS : 1];
    uint32_t sc, hd, sc2;

    __device__ __forceinline__ void load(const dmat &m, uint64_t at)
    {
        const uint8_t *p = m.codes + at * code_bytes(F);
#pragma unroll
        for (int i = 0; i < CODE_WORDS; i += 4) {
            uint4 v = load16(p + 4 * i);
            c[i] = v.x, c[i + 1] = v.y, c[i + 2] = v.z, c[i + 3] = v.w;
        }
        if constexpr (EXTRA_WORDS == 2) {
            uint2 v = __ldg((const uint2 *)(m.extra + at * 8));
            e[0] = v.x, e[1] = v.y;
        }
        if constexpr (EXTRA_WORDS == 4) {
            uint4 v = load16(m.extra + at * 16);
            e[0] = v.x, e[1] = v.y, e[2] = v.z, e[3] = v.w;
        }
        if constexpr (F == WF_IQ1) {
            uint2 v = __ldg((const uint2 *)(m.scales + (at >> 1) * 8));
            hd = v.x;                                               /* d in the low half */
            sc = at & 1 ? v.y >> 4 : __funnelshift_r(v.x, v.y, 16); /* 20 bits: 12 of scales, 8 of shifts */
        } else if constexpr (scale_bytes(F) == 4) {
            sc = __ldg((const uint32_t *)(m.scales + at * 4));
        }
        if constexpr (head_bytes(F) == 4) hd = __ldg((const uint32_t *)(m.heads + (at >> 2) * 4));
    }
};

/* Table bytes as one word: entry 0 lowest. */
__host__ __device__ constexpr uint32_t bytes4(int a, int b, int c, int d)
{
    return (uint32_t)(a & 255) | (uint32_t)(b & 255) << 8 | (uint32_t)(c & 255) << 16 | (uint32_t)(d & 255) << 24;
}

/* Quad j as four bytes: the signed codes, each plus BIAS modulo 256. j must be known at compile time. */
template <int F, int BIAS> static __device__ __forceinline__ uint32_t quad(const unit<F> &u, int j)
{
    constexpr int B = BIAS;
    if constexpr (F == WF_G8 || F == WF_Q8) {
        return B == 128 ? u.c[j] ^ 0x80808080u : u.c[j];
    } else if constexpr (F == WF_IQ2) { /* level, plus 4 for minus: the word itself selects */
        return permute(bytes4(8 + B, 25 + B, 43 + B, B), bytes4(-8 + B, -25 + B, -43 + B, B), shift(u.c[j / 2], 16 * (j % 2)));
    } else if constexpr (F == WF_Q2K || F == WF_IQ1) {
        const uint32_t sel = shift(u.c[j / 4], 16 * (j % 2) + 2 * ((j / 2) % 2)) & 0x3333u;
        if constexpr (F == WF_Q2K) return permute(bytes4(B, 1 + B, 2 + B, 3 + B), 0, sel);
        constexpr uint32_t minus = bytes4(-9 + B, -1 + B, 7 + B, B), plus = bytes4(-7 + B, 1 + B, 9 + B, B);
        return permute(u.sc & (1u << (12 + j / 2)) ? minus : plus, 0, sel);
    } else if constexpr (F == WF_IQ3X || F == WF_IQ3S) {
        uint32_t q = shift(u.c[j / 2], 16 * (j % 2)), sel = q & 0x7777u;
        constexpr bool X = F == WF_IQ3X;
        uint32_t lo, hi;
        if (X) {
            lo = permute(bytes4(4 + B, 12 + B, 20 + B, 28 + B), bytes4(36 + B, 44 + B, 52 + B, 62 + B), sel);
            hi = permute(bytes4(-4 + B, -12 + B, -20 + B, -28 + B), bytes4(-36 + B, -44 + B, -52 + B, -62 + B), sel);
        } else {
            lo = permute(bytes4(1 + B, 3 + B, 5 + B, 7 + B), bytes4(9 + B, 11 + B, 13 + B, 15 + B), sel);
            hi = permute(bytes4(-1 + B, -3 + B, -5 + B, -7 + B), bytes4(-9 + B, -11 + B, -13 + B, -15 + B), sel);
        }
        return permute(lo, hi, ((q >> 1) & 0x4444u) | 0x3210u);
    } else {
        uint32_t v = shift(u.c[j / 2], 4 * (j % 2)) & 0x0f0f0f0fu;
        if constexpr (F == WF_Q5K) v |= shift(u.e[j / 8], j % 8 - 4) & 0x10101010u;
        if constexpr (F == WF_Q6K) {
            v |= shift(u.e[j / 4], 2 * (j % 4) - 4) & 0x30303030u;
            /* minus 32, plus the bias: no carries, the codes have 6 bits */
            return B == 128 ? v + 0x60606060u : (v + 0x60606060u) ^ 0x80808080u;
        }
        return B == 128 ? v | 0x80808080u : v;
    }
}

/* The file's constant factor. */
__host__ __device__ constexpr float factor(int f)
{
    return f == WF_IQ1 || f == WF_IQ2 ? 0.125f : f == WF_IQ3X ? 0.25f : 1.0f;
}

/* The scale of weights 16g .. 16g + 15 as scale * s: an integer and a float whose product is exact. */
template <int F> static __device__ __forceinline__ int scale_int(const unit<F> &u, int g)
{
    if constexpr (F == WF_IQ1) return 2 * (int)((u.sc >> (3 * g)) & 7) + 1;
    if constexpr (F == WF_IQ2 || F == WF_IQ3X || F == WF_IQ3S) return 2 * (int)((u.sc >> (16 + 4 * g)) & 15) + 1;
    if constexpr (F == WF_Q2K) return (int)((u.sc >> (4 * g)) & 15);
    if constexpr (F == WF_Q4K || F == WF_Q5K) return (int)((u.sc >> (8 * (g / 2))) & 255);
    if constexpr (F == WF_Q6K) return (int)(int8_t)(u.sc >> (8 * g));
    return 1;
}

template <int F> static __device__ __forceinline__ float scale_float(const unit<F> &u, int g)
{
    if constexpr (F == WF_Q8) return g < 2 ? half_low(u.sc) : half_high(u.sc);
    if constexpr (F == WF_IQ2 || F == WF_IQ3X || F == WF_IQ3S) return half_low(u.sc) * factor(F);
    return half_low(u.hd) * factor(F);
}

/* Offsets are -dmin * m; the same split. */
template <int F> static __device__ __forceinline__ int offset_int(const unit<F> &u, int g)
{
    if constexpr (F == WF_Q2K) return (int)((u.sc >> (16 + 4 * g)) & 15);
    if constexpr (F == WF_Q4K || F == WF_Q5K) return (int)((u.sc >> (16 + 8 * (g / 2))) & 255);
    return 0;
}

template <int F> static __device__ __forceinline__ float offset_float(const unit<F> &u)
{
    if constexpr (F == WF_Q2K || F == WF_Q4K || F == WF_Q5K) return -half_high(u.hd);
    return 0.0f;
}

/* Scale and offset of 16 weights, for any format of blocks. */
template <int F> struct group_scale {
    float scale, offset;
    __device__ __forceinline__ void get(const unit<F> &u, const dmat &m, uint64_t at, int g)
    {
        if constexpr (F == WF_G8) {
            const float *p = (const float *)(m.scales + at * 32);
            scale = __ldg(p + g);
            offset = __ldg(p + 4 + g);
        } else {
            scale = scale_float<F>(u, g) * (float)scale_int<F>(u, g);
            offset = has_offset(F) ? offset_float<F>(u) * (float)offset_int<F>(u, g) : 0.0f;
        }
    }
};

/* Byte i of a word as a signed integer. */
static __device__ __forceinline__ float signed_byte(uint32_t w, int i)
{
    return (float)(int)(int8_t)(w >> (8 * i));
}

/* Quad j as floats, exactly the file's decoder. */
template <int F> static __device__ __forceinline__ float4 quad_float(const unit<F> &u, const group_scale<F> &s, int j)
{
    if constexpr (F == WF_F32) {
        return make_float4(__uint_as_float(u.c[4 * j]), __uint_as_float(u.c[4 * j + 1]), __uint_as_float(u.c[4 * j + 2]),
                           __uint_as_float(u.c[4 * j + 3]));
    } else if constexpr (F == WF_F16) {
        uint32_t a = u.c[2 * j], b = u.c[2 * j + 1];
        return make_float4(half_low(a), half_high(a), half_low(b), half_high(b));
    } else if constexpr (F == WF_BF16) {
        uint32_t a = u.c[2 * j], b = u.c[2 * j + 1];
        return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u), __uint_as_float(b << 16),
                           __uint_as_float(b & 0xffff0000u));
    } else {
        uint32_t q = quad<F, 0>(u, j);
        float4 r;
        r.x = __fmul_rn(s.scale, signed_byte(q, 0));
        r.y = __fmul_rn(s.scale, signed_byte(q, 1));
        r.z = __fmul_rn(s.scale, signed_byte(q, 2));
        r.w = __fmul_rn(s.scale, signed_byte(q, 3));
        if constexpr (has_offset(F)) {
            r.x = __fadd_rn(r.x, s.offset);
            r.y = __fadd_rn(r.y, s.offset);
            r.z = __fadd_rn(r.z, s.offset);
            r.w = __fadd_rn(r.w, s.offset);
        }
        return r;
    }
}

/* Runs a statement with the format as a compile-time constant FMT. */
#define FOR_FORMAT(format, ...)                                                                                                \
    switch (format) {                                                                                                          \
    case WF_F32: {                                                                                                             \
        constexpr int FMT = WF_F32;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_F16: {                                                                                                             \
        constexpr int FMT = WF_F16;                                                                                            \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
    case WF_BF16: {                                                                                                            \
        constexpr int FMT = WF_BF16;                                                                                           \
        __VA_ARGS__;                                                                                                           \
        break;                                                                                                                 \
    }                                                                                                                          \
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
    }

#endif
