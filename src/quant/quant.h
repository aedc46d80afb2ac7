/* quant: what the bytes of a block mean.
 *
 * Portable C only: the definitions every fast kernel is tested against. decode is bit-identical to the reference (also in the
 * sign of zeros). The layouts and formulas are those of the GGUF block formats; each type's file section states its layout. */
#ifndef RL_QUANT_H
#define RL_QUANT_H

#include "gguf/gguf.h"

/* Weights of n_blocks consecutive blocks; src may be unaligned. */
typedef void (*rl_decode_fn)(const void *src, float *dst, size_t n_blocks);

/* A block as integers: weight i is (scale * s[i / 16]) * c[i], plus offset_scale * m[i / 16] where the type has offsets. scale
 * includes the type's constant factor (1/8 and the like). The products are exact in float32, so the formula in this grouping is
 * the decoder itself, signs of zeros included, and every other evaluation differs at most in the rounding of the last addition.
 */
typedef struct rl_block_codes {
    float scale;
    float offset_scale; /* Q4_1, Q5_1: the field m; Q2_K, Q4_K, Q5_K: -dmin; else 0 */
    bool has_offset;
    int32_t s[16]; /* of each 16 weights; int32_t because NVFP4 reaches 245760, all others fit 9 bits */
    int32_t m[16]; /* valid where has_offset */
    int8_t c[256]; /* -128 occurs in Q8_0 blocks alone */
} rl_block_codes;

/* The 8-bit activation block a type's integer dot product is defined with (the reference's pairing). */
typedef enum rl_act_kind { RL_ACT_NONE, RL_ACT_Q8_0, RL_ACT_Q8_1, RL_ACT_Q8_K } rl_act_kind;

/* Exact integers of one weight block against its activation blocks: I per activation block (up to 4) is the sum of s * c * a, M
 * (Q2_K, Q4_K and Q5_K, else 0) the sum of m times the block sums of the activations. */
typedef struct rl_dot_ints {
    int64_t i[4];
    int64_t m;
} rl_dot_ints;

typedef struct rl_quant_traits {
    rl_type type;
    rl_decode_fn decode;
    rl_act_kind act; /* RL_ACT_NONE for plain types */
    /* I and M of one block against activation blocks; NULL for plain types. */
    void (*dot_ints)(const void *block, const void *act, rl_dot_ints *out);
    /* The same block's dot product from the exact integers, in double. */
    double (*dot)(const void *block, const void *act);
    /* The integer view of one block; NULL for plain types. Entries beyond the block's weights are not written. */
    void (*unpack)(const void *block, rl_block_codes *out);
} rl_quant_traits;

/* NULL when the type is unknown or holds no weights (Q8_1, Q8_K, integers, F64). */
const rl_quant_traits *rl_quant_get(rl_type type);

/* Activation blocks, fields without gaps, little-endian:
 *   Q8_0   34 bytes: f16 scale, 32 codes
 *   Q8_1   36 bytes: f16 scale, f16 scale * sum of codes, 32 codes
 *   Q8_K  292 bytes: f32 scale (may be negative), 256 codes, 16 int16 sums of 16 codes each */
#define RL_Q8_0_BYTES 34
#define RL_Q8_1_BYTES 36
#define RL_Q8_K_BYTES 292

/* Activation quantisers, portable rule of the reference: Q8_0 and Q8_1 multiply by 1/d and round halves away from zero, Q8_K
 * rounds halves to even; n a multiple of 32, of 256 for Q8_K. Codes stay in -127 .. 127. A block with a NaN or an infinity gets
 * codes 0 and scale NaN, so that every product with it is NaN instead of a plausible number. */
void rl_quantize_q8_0(const float *x, void *dst, size_t n);
void rl_quantize_q8_1(const float *x, void *dst, size_t n);
void rl_quantize_q8_k(const float *x, void *dst, size_t n);

/* Conversions, exact or nearest-even as the format defines. */
float rl_f16_to_f32(uint16_t h);
uint16_t rl_f32_to_f16(float f);
float rl_bf16_to_f32(uint16_t h);
uint16_t rl_f32_to_bf16(float f);

/* Codebooks (quant/codebooks.c, generated): entry n is a little-endian vector of bytes. */
extern const uint64_t rl_iq1s_grid[2048];
extern const uint64_t rl_iq2xxs_grid[256];
extern const uint64_t rl_iq2xs_grid[512];
extern const uint64_t rl_iq2s_grid[1024];
extern const uint32_t rl_iq3xxs_grid[256];
extern const uint32_t rl_iq3s_grid[512];
extern const int8_t rl_iq4nl_values[16];
extern const int8_t rl_fp4_values[16]; /* twice the value of the 4-bit number; the scales carry the half */
extern const uint8_t rl_ksigns[128];   /* sign masks with an even number of bits: bit k negates weight k of a group of 8 */

/* Looks for infinite or NaN scales and elements in n_blocks of any type (activation blocks and F64 too, integers are always
 * valid); an MXFP4 exponent of 255 is NaN by that format's definition. Returns the index of the first bad block or -1. */
int64_t rl_quant_find_invalid(rl_type type, const void *src, size_t n_blocks);

#endif
