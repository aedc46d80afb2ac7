/* tests/support/blocks: blocks of every weight type for kernel tests.
 *
 * Random blocks have random bytes everywhere but in the scales, which are finite, of both signs, and of a size that puts the
 * largest weights near 1, so that results of all types can be judged with one relative tolerance. Edge blocks are single blocks
 * at the corners of a format. A plain type (F32, F16, BF16) counts as a block of one weight. */
#ifndef RL_TEST_BLOCKS_H
#define RL_TEST_BLOCKS_H

#include "quant/quant.h"
#include "support/support.h"

/* All types that hold weights (those rl_quant_get knows), in rising order. */
#define RL_TEST_N_WEIGHT_TYPES 28
extern const rl_type rl_test_weight_types[RL_TEST_N_WEIGHT_TYPES];

void rl_test_random_blocks(rl_type type, rl_rng *rng, void *dst, size_t n_blocks);

typedef enum rl_test_edge {
    RL_EDGE_ZERO_SCALE,     /* +0, random codes */
    RL_EDGE_NEG_ZERO_SCALE, /* -0 (types with a sign), random codes */
    RL_EDGE_NEG_SCALE,      /* a negative scale and, where there is one, a positive dmin or m */
    RL_EDGE_TINY_SCALE,     /* the smallest number of the scale's format */
    RL_EDGE_SUBNORMAL,      /* the largest subnormal scale */
    RL_EDGE_HUGE_SCALE,     /* 65504, MXFP4 2^112: sums of some thousand products stay finite in float32 */
    RL_EDGE_CODES_00,       /* all bytes but the scales 0x00, and so on */
    RL_EDGE_CODES_FF,
    RL_EDGE_CODES_80, /* Q8_0: every code -128 */
    RL_EDGE_CODES_7F,
    RL_EDGE_CODES_55,
    RL_EDGE_CODES_AA,
    RL_EDGE_CODES_0FF0, /* 0f f0 0f f0 ... */
    RL_N_EDGES
} rl_test_edge;
const char *rl_test_edge_name(rl_test_edge edge);
/* One block. */
void rl_test_edge_block(rl_type type, rl_test_edge edge, rl_rng *rng, void *dst);

/* Writes d and, where the type has one, the second f16 (m or dmin) of one block. MXFP4 takes the power of two at or below |d|
 * and NVFP4 sets its four scales to the number nearest below |d|; plain types become the number d itself. */
void rl_test_set_scales(rl_type type, void *block, float d, float second);

#endif
