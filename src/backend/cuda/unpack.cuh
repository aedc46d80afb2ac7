/* backend/cuda/unpack: 16 weights of a file's block as integers, on the device.
 *
 * The same view as rl_block_codes (quant/quant.h): weight = (scale * s) * c + offset_scale * m. The layouts are described in
 * src/quant/unpack_*.c; here every field is found from the index of the weight, since neighbouring threads take neighbouring
 * groups. The selftest compares with the portable decoder. Used once per weight when a model is loaded. */
#ifndef RL_CUDA_UNPACK_CUH
#define RL_CUDA_UNPACK_CUH

#include "backend/cuda/common.cuh"

struct group16 {
    float scale, offset_scale;
    int s, m;
    int8_t c[16];
};

static __device__ inline uint32_t byte2(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static __device__ inline uint32_t byte4(const uint8_t *p)
{
    return byte2(p) | byte2(p + 2) << 16;
}

static __device__ inline float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

static __device__ inline int nibble(uint32_t v, int h)
{
    return (int)(v >> (4 * h) & 15);
}

/* Q4_K and Q5_K: scale and offset of 32 weights. */
static __device__ inline void k4_head(const uint8_t *b, int g, group16 *o)
{
    const uint8_t *S = b + 4;
    o->scale = half_of(byte2(b));
    o->offset_scale = -half_of(byte2(b + 2));
    if (g < 4) {
        o->s = S[g] & 63;
        o->m = S[g + 4] & 63;
    } else {
        o->s = (S[g + 4] & 15) | S[g - 4] >> 6 << 4;
        o->m = S[g + 4] >> 4 | S[g] >> 6 << 4;
    }
}

static __device__ inline void from_grid8(uint64_t entry, uint32_t negative, int8_t *c)
{
    for (int k = 0; k < 8; k++) {
        int v = (int8_t)(entry >> (8 * k));
        c[k] = (int8_t)(negative >> k & 1 ? -v : v);
    }
}

static __device__ inline void from_shifted(uint64_t entry, bool minus, int8_t *c)
{
    for (int k = 0; k < 8; k++)
        c[k] = (int8_t)(8 * (int8_t)(entry >> (8 * k)) + (minus ? -1 : 1));
}

/* Weights 16t .. 16t + 15 of a block. */
template <int TYPE> static __device__ void unpack16(const uint8_t *b, int t, const rl_cuda_grids &g, group16 *o)
{
    o->s = 1;
    o->m = 0;
    o->offset_scale = 0;
    const int i0 = 16 * t;
#define EACH(expression)                                                                                                       \
    for (int j = 0; j < 16; j++) {                                                                                             \
        const int i = i0 + j;                                                                                                  \
        (void)i;                                                                                                               \
        o->c[j] = (int8_t)(expression);                                                                                        \
    }
    if constexpr (TYPE == RL_Q4_0) {
        o->scale = half_of(byte2(b));
        EACH(nibble(b[2 + i % 16], i / 16) - 8)
    } else if constexpr (TYPE == RL_Q4_1) {
        o->scale = half_of(byte2(b));
        o->offset_scale = half_of(byte2(b + 2));
        o->m = 1;
        EACH(nibble(b[4 + i % 16], i / 16))
    } else if constexpr (TYPE == RL_Q5_0) {
        o->scale = half_of(byte2(b));
        EACH((nibble(b[6 + i % 16], i / 16) | (b[2 + i / 8] >> (i % 8) & 1) << 4) - 16)
    } else if constexpr (TYPE == RL_Q5_1) {
        o->scale = half_of(byte2(b));
        o->offset_scale = half_of(byte2(b + 2));
        o->m = 1;
        EACH(nibble(b[8 + i % 16], i / 16) | (b[4 + i / 8] >> (i % 8) & 1) << 4)
    } else if constexpr (TYPE == RL_Q8_0) {
        o->scale = half_of(byte2(b));
        EACH(b[2 + i])
    } else if constexpr (TYPE == RL_Q1_0) {
        o->scale = half_of(byte2(b));
        EACH(2 * (b[2 + i / 8] >> (i % 8) & 1) - 1)
    } else if constexpr (TYPE == RL_Q2_0) {
        o->scale = half_of(byte2(b));
        EACH((b[2 + i / 4] >> (2 * (i % 4)) & 3) - 1)
    } else if constexpr (TYPE == RL_Q2_K) {
        o->scale = half_of(byte2(b + 80));
        o->offset_scale = -half_of(byte2(b + 82));
        o->s = b[t] & 15;
        o->m = b[t] >> 4;
        EACH(b[16 + 32 * (i / 128) + i % 32] >> (2 * ((i / 32) % 4)) & 3)
    } else if constexpr (TYPE == RL_Q3_K) {
        const uint8_t *sc = b + 96;
        o->scale = half_of(byte2(b + 108));
        o->s = (nibble(sc[t % 8], t / 8) | (sc[8 + t % 4] >> (2 * (t / 4)) & 3) << 4) - 32;
        EACH((b[32 + 32 * (i / 128) + i % 32] >> (2 * ((i / 32) % 4)) & 3) - 4 * (1 - (b[i % 32] >> (i / 32) & 1)))
    } else if constexpr (TYPE == RL_Q4_K) {
        k4_head(b, t / 2, o);
        EACH(nibble(b[16 + 32 * (i / 64) + i % 32], (i / 32) % 2))
    } else if constexpr (TYPE == RL_Q5_K) {
        k4_head(b, t / 2, o);
        EACH(nibble(b[48 + 32 * (i / 64) + i % 32], (i / 32) % 2) | (b[16 + i % 32] >> (i / 32) & 1) << 4)
    } else if constexpr (TYPE == RL_Q6_K) {
        o->scale = half_of(byte2(b + 208));
        o->s = (int8_t)b[192 + t];
        EACH((nibble(b[64 * (i / 128) + i % 64], (i % 128) / 64) |
              (b[128 + 32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32)) & 3) << 4) -
             32)
    } else if constexpr (TYPE == RL_TQ1_0) {
        o->scale = half_of(byte2(b + 52));
        for (int j = 0; j < 16; j++) {
            const int i = i0 + j;
            const int n = i < 160 ? i / 32 : i < 240 ? (i / 16) % 5 : (i / 4) % 4;
            int by = i < 160 ? b[i % 32] : i < 240 ? b[32 + i % 16] : b[48 + i % 4];
            for (int p = 0; p < n; p++)
                by *= 3;
            o->c[j] = (int8_t)(((by & 255) * 3 >> 8) - 1);
        }
    } else if constexpr (TYPE == RL_TQ2_0) {
        o->scale = half_of(byte2(b + 64));
        EACH((b[32 * (i / 128) + i % 32] >> (2 * ((i / 32) % 4)) & 3) - 1)
    } else if constexpr (TYPE == RL_IQ1_S) {
        const uint32_t qh = byte2(b + 34 + 2 * (t / 2));
        o->scale = half_of(byte2(b)) * 0.125f;
        o->s = 2 * (int)(qh >> 12 & 7) + 1;
        for (int h = 0; h < 2; h++) {
            const int n = 2 * t + h, l = n % 4;
            from_shifted(g.iq1s[b[2 + n] | (qh >> (3 * l) & 7) << 8], qh >> 15, o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ1_M) {
        const uint8_t *sc = b + 48;
        const uint32_t d = byte2(sc) >> 12 | byte2(sc + 2) >> 12 << 4 | byte2(sc + 4) >> 12 << 8 | byte2(sc + 6) >> 12 << 12;
        o->scale = half_of(d) * 0.125f;
        o->s = 2 * (int)(byte2(sc + 2 * (t / 4)) >> (3 * (t % 4)) & 7) + 1;
        for (int h = 0; h < 2; h++) {
            const uint32_t v = nibble(b[32 + t], h);
            from_shifted(g.iq1s[b[2 * t + h] | (v & 7) << 8], v >> 3, o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ2_XXS) {
        const uint8_t *record = b + 2 + 8 * (t / 2);
        const uint32_t word = byte4(record + 4);
        o->scale = half_of(byte2(b)) * 0.125f;
        o->s = 2 * (int)(word >> 28) + 1;
        for (int h = 0; h < 2; h++) {
            const int l = 2 * (t % 2) + h;
            from_grid8(g.iq2xxs[record[l]], g.ksigns[word >> (7 * l) & 127], o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ2_XS) {
        o->scale = half_of(byte2(b)) * 0.125f;
        o->s = 2 * nibble(b[66 + t / 2], t % 2) + 1;
        for (int h = 0; h < 2; h++) {
            const uint32_t x = byte2(b + 2 + 2 * (2 * t + h));
            from_grid8(g.iq2xs[x & 511], g.ksigns[x >> 9], o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ2_S) {
        o->scale = half_of(byte2(b)) * 0.125f;
        o->s = 2 * nibble(b[74 + t / 2], t % 2) + 1;
        for (int h = 0; h < 2; h++) {
            const int n = 2 * t + h;
            from_grid8(g.iq2s[b[2 + n] | (b[66 + n / 4] >> (2 * (n % 4)) & 3) << 8], b[34 + n], o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ3_XXS) {
        const uint32_t word = byte4(b + 66 + 4 * (t / 2));
        o->scale = half_of(byte2(b)) * 0.25f;
        o->s = 2 * (int)(word >> 28) + 1;
        for (int h = 0; h < 2; h++) {
            const uint8_t *q = b + 2 + 4 * t + 2 * h;
            from_grid8((uint64_t)g.iq3xxs[q[1]] << 32 | g.iq3xxs[q[0]], g.ksigns[word >> (7 * (2 * (t % 2) + h)) & 127],
                       o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ3_S) {
        o->scale = half_of(byte2(b));
        o->s = 2 * nibble(b[106 + t / 4], (t / 2) % 2) + 1;
        for (int h = 0; h < 2; h++) {
            const int n = 4 * t + 2 * h;
            const uint32_t high = b[66 + n / 8];
            const uint32_t first = b[2 + n] | (high >> (n % 8) & 1) << 8, second = b[3 + n] | (high >> (n % 8 + 1) & 1) << 8;
            from_grid8((uint64_t)g.iq3s[second] << 32 | g.iq3s[first], b[74 + 2 * t + h], o->c + 8 * h);
        }
    } else if constexpr (TYPE == RL_IQ4_NL) {
        o->scale = half_of(byte2(b));
        EACH(g.iq4nl[nibble(b[2 + i % 16], i / 16)])
    } else if constexpr (TYPE == RL_IQ4_XS) {
        const int n = t / 2;
        o->scale = half_of(byte2(b));
        o->s = (nibble(b[4 + n / 2], n % 2) | (int)(byte2(b + 2) >> (2 * n) & 3) << 4) - 32;
        EACH(g.iq4nl[nibble(b[8 + 16 * n + i % 16], (i / 16) % 2)])
    } else if constexpr (TYPE == RL_MXFP4) {
        const uint32_t e = b[0];
        o->scale = __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
        EACH(g.fp4[nibble(b[1 + i % 16], i / 16)])
    } else if constexpr (TYPE == RL_NVFP4) {
        const int x = b[t], ex = x >> 3 & 15, mt = x & 7;
        o->scale = 0x1p-10f;
        o->s = x == 0x7f ? 0 : ex == 0 ? mt : (8 + mt) << ex >> 1;
        EACH(g.fp4[nibble(b[4 + 8 * t + i % 8], (i / 8) % 2)])
    }
#undef EACH
}

#endif
