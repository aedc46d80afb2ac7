/* quant: what the bytes of a block mean.
 *
 * Portable C only: the definitions every fast kernel is tested against. decode is bit-identical to the reference (also in the
 * sign of zeros). The layouts and formulas are those of the GGUF block formats; each type's file section states its layout. */
#ifndef RL_QUANT_H
#define RL_QUANT_H

#include "gguf/gguf.h"

/* Weights of n_blocks consecutive blocks; src may be unaligned. */
typedef void (*rl_decode_fn)(const void *src, float *dst, size_t n_blocks);

/* The 8-bit activation block a type's integer dot product is defined with (the reference's pairing). */
typedef enum rl_act_kind { RL_ACT_NONE, RL_ACT_Q8_0, RL_ACT_Q8_1, RL_ACT_Q8_K } rl_act_kind;

/* Exact integers of one weight block against its activation blocks: I per activation block (up to 4) and M. */
typedef struct rl_dot_ints {
    int64_t i[4];
    int64_t m;
} rl_dot_ints;

typedef struct rl_quant_traits {
    rl_type type;
    rl_decode_fn decode; /* NULL for types that hold no weights (Q8_1, Q8_K, integers) */
    rl_act_kind act;     /* RL_ACT_NONE for plain types */
    /* I and M of one block against activation blocks; NULL for plain types. */
    void (*dot_ints)(const void *block, const void *act, rl_dot_ints *out);
    /* The same block's dot product from the exact integers, in double. */
    double (*dot)(const void *block, const void *act);
} rl_quant_traits;

/* NULL when the type is unknown or holds no weights. */
const rl_quant_traits *rl_quant_get(rl_type type);

/* Activation quantisers, portable rule of the reference (halves away from zero, inverse = 1/d); n a multiple of 32, of 256 for
 * Q8_K. */
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
extern const int8_t rl_fp4_values[16];

/* Looks for infinite or NaN scales and elements in n_blocks; returns the index of the first bad block or -1. */
int64_t rl_quant_find_invalid(rl_type type, const void *src, size_t n_blocks);

#endif
