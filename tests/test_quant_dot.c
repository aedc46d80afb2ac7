/* The exact integers and the double-precision dot product of every block type: against the reference's stored integers, against
 * integers recovered from decoded weights, and against the decoded weights in floating point. */
#include "support/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Room for 256 activations of any kind. */
#define ACT_BYTES RL_Q8_K_BYTES
_Static_assert(ACT_BYTES >= 8 * RL_Q8_1_BYTES, "eight blocks of 32 fit too");

static const struct {
    const char *file;
    void (*quantize)(const float *x, void *dst, size_t n);
    int weights, bytes, codes;
} acts[] = {
    [RL_ACT_Q8_0] = {"quant/act/q8_0.bin", rl_quantize_q8_0, 32, RL_Q8_0_BYTES, 2},
    [RL_ACT_Q8_1] = {"quant/act/q8_1.bin", rl_quantize_q8_1, 32, RL_Q8_1_BYTES, 4},
    [RL_ACT_Q8_K] = {"quant/act/q8_k.bin", rl_quantize_q8_k, 256, RL_Q8_K_BYTES, 4},
};

/* The factor F of the integer form: with d = 1 every weight is F times an integer. */
static double unit_of(rl_type type)
{
    switch (type) {
    case RL_IQ1_S:
    case RL_IQ1_M:
    case RL_IQ2_XXS:
    case RL_IQ2_XS:
    case RL_IQ2_S:
        return 1.0 / 8;
    case RL_IQ3_XXS:
        return 1.0 / 4;
    case RL_NVFP4:
        return 1.0 / 1024;
    case RL_MXFP4:
        return 1.0 / 2;
    default:
        return 1.0;
    }
}

static bool has_mins(rl_type type)
{
    return type == RL_Q2_K || type == RL_Q4_K || type == RL_Q5_K;
}

/* Value, code and scale of activation i of the blocks a weight block meets. */
static int act_code(rl_act_kind kind, const uint8_t *act, int i)
{
    return (int8_t)act[i / acts[kind].weights * acts[kind].bytes + acts[kind].codes + i % acts[kind].weights];
}

static double act_scale(rl_act_kind kind, const uint8_t *act, int i)
{
    const uint8_t *block = act + i / acts[kind].weights * acts[kind].bytes;
    if (kind == RL_ACT_Q8_K) {
        float d;
        memcpy(&d, block, sizeof d);
        return d;
    }
    return rl_f16_to_f32((uint16_t)(block[0] | block[1] << 8));
}

/* The field `sum` of a Q8_1 block. */
static double act_sum(const uint8_t *act)
{
    return rl_f16_to_f32((uint16_t)(act[2] | act[3] << 8));
}

/* Sum of the absolute values of all products of a block, the measure of its rounding errors. */
static double total_magnitude(rl_type type, const uint8_t *block, const uint8_t *act)
{
    const rl_quant_traits *traits = rl_quant_get(type);
    rl_block_codes codes;
    traits->unpack(block, &codes);
    double total = 0.0;
    for (int i = 0; i < rl_type_get(type)->block_weights; i++) {
        double a = fabs(act_scale(traits->act, act, i) * act_code(traits->act, act, i));
        total += a * fabs((double)codes.scale * codes.s[i / 16] * codes.c[i]);
        if (codes.has_offset) total += a * fabs((double)codes.offset_scale * codes.m[i / 16]);
    }
    return total;
}

/* ---- The reference's integers ---------------------------------------------------------------------------------------------
 */

static double double_of_hex(const char *hex)
{
    uint64_t bits = strtoull(hex, NULL, 16);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* One line "block I[,I...] M exact ref". Returns the dot product. */
static double check_line(rl_type type, const char *line, int expected_index, const uint8_t *block, const uint8_t *act,
                         double *magnitude)
{
    const rl_quant_traits *traits = rl_quant_get(type);
    int n_acts = rl_type_get(type)->block_weights / acts[traits->act].weights;
    char *p;
    assert_int_equal(strtol(line, &p, 10), expected_index);
    rl_dot_ints ints;
    memset(&ints, 0xff, sizeof ints);
    traits->dot_ints(block, act, &ints);
    for (int k = 0; k < 4; k++) {
        int64_t expected = k < n_acts ? strtoll(p + 1, &p, 10) : 0;
        assert_true(ints.i[k] == expected);
    }
    assert_int_equal(*p, ' ');
    if (has_mins(type)) {
        int64_t expected = strtoll(p + 1, &p, 10);
        assert_true(ints.m == expected);
    } else {
        assert_memory_equal(p, " - ", 3);
        assert_true(ints.m == 0);
        p += 2;
    }
    double exact = double_of_hex(p + 1), dot = traits->dot(block, act);
    *magnitude = total_magnitude(type, block, act);
    assert_true(fabs(dot - exact) <= 8 * 0x1p-53 * *magnitude);
    return dot;
}

static void integers_are_those_of_the_reference(void **state)
{
    (void)state;
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        const rl_type_info *info = rl_type_get(type);
        rl_act_kind kind = rl_quant_get(type)->act;
        if (kind == RL_ACT_NONE) continue;
        char name[64], path[PATH_MAX];
        snprintf(name, sizeof name, "quant/decode/%s.bin", info->name);
        char *blocks = rl_test_read(rl_test_data(path, name), NULL);
        snprintf(name, sizeof name, "quant/dot/%s.txt", info->name);
        char *lines = rl_test_read(rl_test_data(path, name), NULL);
        char *act = rl_test_read(rl_test_data(path, acts[kind].file), NULL);

        double sum = 0.0, total = 0.0;
        char *line = lines;
        for (int b = 0; b < 64; b++) {
            const char *a = act + b * info->block_weights / acts[kind].weights * acts[kind].bytes;
            double magnitude;
            sum += check_line(type, line, b, (uint8_t *)blocks + b * info->block_bytes, (const uint8_t *)a, &magnitude);
            total += magnitude;
            line = strchr(line, '\n') + 1;
        }
        assert_memory_equal(line, "row ", 4);
        assert_true(fabs(sum - double_of_hex(line + 4)) <= 128 * 0x1p-53 * total);
        free(blocks);
        free(lines);
        free(act);
    }
}

/* ---- Integers from decoded weights ----------------------------------------------------------------------------------------
 */

/* With d = 1 and no offset the decoder itself shows the integers s * c; with codes of zero and dmin = -1 it shows m. Neither
 * goes through the integer path. */
static void check_against_decoded(rl_type type, uint8_t *block, const uint8_t *act)
{
    const rl_quant_traits *traits = rl_quant_get(type);
    int n_weights = rl_type_get(type)->block_weights;
    float weights[256];
    rl_dot_ints ints;
    int64_t expected[4] = {0}, mins = 0;
    /* NVFP4 has no other scales than those per sub-block, they stay; MXFP4 gets 2^0. */
    if (type != RL_NVFP4) rl_test_set_scales(type, block, 1.0f, 0.0f);
    traits->decode(block, weights, 1);
    traits->dot_ints(block, act, &ints);
    for (int i = 0; i < n_weights; i++) {
        double integer = weights[i] / unit_of(type);
        assert_true(integer == rint(integer));
        expected[i / acts[traits->act].weights] += (int64_t)integer * act_code(traits->act, act, i);
    }
    for (int k = 0; k < 4; k++)
        assert_true(ints.i[k] == expected[k]);
    if (!has_mins(type)) {
        assert_true(ints.m == 0);
        return;
    }
    rl_test_set_scales(type, block, 0.0f, -1.0f);
    traits->decode(block, weights, 1);
    for (int i = 0; i < n_weights; i++)
        mins += (int64_t)weights[i] * act_code(traits->act, act, i);
    assert_true(ints.m == mins);
}

static void integers_agree_with_decoded_weights(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(11);
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        rl_act_kind kind = rl_quant_get(type)->act;
        if (kind == RL_ACT_NONE) continue;
        for (int round = 0; round < 100 + RL_N_EDGES; round++) {
            uint8_t block[256], act[ACT_BYTES];
            float x[256];
            rl_rng_fill_normal(&rng, x, 256, 1.0f);
            acts[kind].quantize(x, act, 256);
            if (round < 100)
                rl_test_random_blocks(type, &rng, block, 1);
            else
                rl_test_edge_block(type, (rl_test_edge)(round - 100), &rng, block);
            check_against_decoded(type, block, act);
        }
    }
}

/* ---- Dot products against decoded weights ----------------------------------------------------------------------------------
 */

static void dot_agrees_with_decoded_weights(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(12);
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        const rl_quant_traits *traits = rl_quant_get(type);
        rl_act_kind kind = traits->act;
        if (kind == RL_ACT_NONE) continue;
        int n_weights = rl_type_get(type)->block_weights;
        for (int round = 0; round < 100; round++) {
            uint8_t block[256], act[ACT_BYTES];
            float x[256], weights[256];
            rl_rng_fill_normal(&rng, x, 256, 1.0f);
            acts[kind].quantize(x, act, 256);
            rl_test_random_blocks(type, &rng, block, 1);
            traits->decode(block, weights, 1);
            double expected = 0.0;
            for (int i = 0; i < n_weights; i++)
                expected += (double)weights[i] * act_scale(kind, act, i) * act_code(kind, act, i);
            /* The decoder rounds the addition of the offset; the field `sum` of Q8_1 is rounded to f16 from an unrounded scale.
             */
            double tolerance = 0x1p-23 * total_magnitude(type, block, act);
            if (kind == RL_ACT_Q8_1) {
                double exact_sum = 0.0;
                for (int i = 0; i < 32; i++)
                    exact_sum += act_scale(kind, act, i) * act_code(kind, act, i);
                expected += rl_f16_to_f32((uint16_t)(block[2] | block[3] << 8)) * (act_sum(act) - exact_sum);
            }
            assert_true(fabs(traits->dot(block, act) - expected) <= tolerance);
        }
    }
}

/* The largest integers a block can give, from the ranges of its codes: nothing wraps. */
static void extreme_codes_do_not_wrap(void **state)
{
    (void)state;
    uint8_t act[2 * RL_Q8_0_BYTES], block[256];
    memset(act, 127, sizeof act);
    rl_dot_ints ints;

    memset(block, 0x80, sizeof block);
    rl_quant_get(RL_Q8_0)->dot_ints(block, act, &ints);
    assert_true(ints.i[0] == -520192);

    memset(block, 0xff, sizeof block); /* scale 0xff is 245760 units, code 15 is -12 */
    memset(block, 0x7e, 4);            /* 14 * 2^14, the largest a writer produces */
    rl_quant_get(RL_NVFP4)->dot_ints(block, act, &ints);
    assert_true(ints.i[0] == (int64_t)-12 * 127 * 32 * 229376 && ints.i[1] == ints.i[0]);
    memset(block, 0xff, 4);
    rl_quant_get(RL_NVFP4)->dot_ints(block, act, &ints);
    assert_true(ints.i[0] + ints.i[1] == -23970447360);

    uint8_t act_k[RL_Q8_K_BYTES];
    float x[256];
    for (int i = 0; i < 256; i++)
        x[i] = 1.0f;
    rl_quantize_q8_k(x, act_k, 256); /* every code -127 */
    memset(block, 0, sizeof block);
    memset(block + 192, 0x80, 16); /* Q6_K: scale -128, code -32 */
    rl_quant_get(RL_Q6_K)->dot_ints(block, act_k, &ints);
    assert_true(ints.i[0] == -133169152);
    memset(block, 0xff, sizeof block); /* Q5_K: scale 63, code 31, offset 63 */
    rl_quant_get(RL_Q5_K)->dot_ints(block, act_k, &ints);
    assert_true(ints.i[0] == -63495936 && ints.m == -2048256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_those_of_the_reference),
        cmocka_unit_test(integers_agree_with_decoded_weights),
        cmocka_unit_test(dot_agrees_with_decoded_weights),
        cmocka_unit_test(extreme_codes_do_not_wrap),
    };
    return cmocka_run_group_tests_name("quant_dot", tests, NULL, NULL);
}
