/* Any bytes as blocks of any type: decoding, the integer view, both dot products and the check for invalid blocks are defined
 * and agree with each other. */
#include "quant/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition) __builtin_trap();
}

static bool all_finite(const float *w, int n)
{
    for (int i = 0; i < n; i++)
        if (!isfinite(w[i])) return false;
    return true;
}

/* One block, its activations behind it; exact-size copies so that a read past either is seen. */
static void try_block(const rl_quant_traits *traits, const uint8_t *data)
{
    static const int act_bytes[] = {
        [RL_ACT_NONE] = 0, [RL_ACT_Q8_0] = RL_Q8_0_BYTES, [RL_ACT_Q8_1] = RL_Q8_1_BYTES, [RL_ACT_Q8_K] = RL_Q8_K_BYTES};
    const rl_type_info *info = rl_type_get(traits->type);
    int n_weights = info->block_weights;
    int n_acts = traits->act == RL_ACT_NONE ? 0 : traits->act == RL_ACT_Q8_K ? 1 : n_weights / 32;
    size_t a_bytes = (size_t)(n_acts * act_bytes[traits->act]);
    uint8_t *block = malloc(info->block_bytes), *act = malloc(a_bytes + 1);
    float *w = malloc((size_t)n_weights * sizeof *w);
    require(block && act && w);
    memcpy(block, data, info->block_bytes);
    memcpy(act, data + info->block_bytes, a_bytes);

    traits->decode(block, w, 1);
    bool invalid = rl_quant_find_invalid(traits->type, block, 1) == 0;
    /* MXFP4 with exponents 253 and 254 overflows although the block is valid. */
    if (!invalid && traits->type != RL_MXFP4) require(all_finite(w, n_weights));
    if (traits->unpack != NULL) {
        rl_block_codes codes;
        rl_dot_ints ints;
        traits->unpack(block, &codes);
        for (int i = 0; i < n_weights && !invalid; i++) {
            double product = (double)codes.scale * codes.s[i / 16] * codes.c[i];
            if (codes.has_offset) product += (double)codes.offset_scale * codes.m[i / 16];
            require((float)product == w[i]);
        }
        traits->dot_ints(block, act, &ints);
        for (int k = n_acts; k < 4; k++)
            require(ints.i[k] == 0);
        (void)traits->dot(block, act);
    }
    free(block);
    free(act);
    free(w);
}

/* Whatever the floats: codes in range, and a scale that is NaN exactly where an input is not finite. */
static void try_activations(const uint8_t *data, size_t size)
{
    enum { N = 256 };
    float x[N] = {0};
    uint8_t q0[N / 32 * RL_Q8_0_BYTES], q1[N / 32 * RL_Q8_1_BYTES], qk[RL_Q8_K_BYTES];
    memcpy(x, data, size < sizeof x ? size : sizeof x);
    rl_quantize_q8_0(x, q0, N);
    rl_quantize_q8_1(x, q1, N);
    rl_quantize_q8_k(x, qk, N);
    for (int i = 0; i < N; i++) {
        require((int8_t)q0[i / 32 * RL_Q8_0_BYTES + 2 + i % 32] != -128);
        require((int8_t)q1[i / 32 * RL_Q8_1_BYTES + 4 + i % 32] != -128);
        require((int8_t)qk[4 + i] != -128);
    }
    float d;
    memcpy(&d, qk, sizeof d);
    require(!isnan(d) == all_finite(x, N));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    /* The longest a block and its activations can be, padded with zeros. */
    uint8_t padded[1024] = {0};
    memcpy(padded, data + 1, size - 1 < sizeof padded ? size - 1 : sizeof padded);
    const rl_quant_traits *traits = rl_quant_get((rl_type)(data[0] % RL_TYPE_END));
    if (traits != NULL)
        try_block(traits, padded);
    else
        (void)rl_quant_find_invalid((rl_type)(data[0] % RL_TYPE_END), padded, 2);
    try_activations(data + 1, size - 1);
    return 0;
}
