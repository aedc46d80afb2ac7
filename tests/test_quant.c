/* Decoders against the stored values of the reference, number conversions, sizes, and the check for invalid blocks. */
#include "support/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *read_data(const char *folder, const char *name, const char *suffix, size_t *size)
{
    char relative[128], path[PATH_MAX];
    snprintf(relative, sizeof relative, "quant/%s/%s%s", folder, name, suffix);
    return rl_test_read(rl_test_data(path, relative), size);
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------------ */

static void decodes_like_the_reference(void **state)
{
    (void)state;
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        if (type == RL_F16 || type == RL_BF16) continue; /* every pattern is computed below */
        const rl_type_info *info = rl_type_get(type);
        size_t bytes, expected_bytes;
        char *blocks = read_data("decode", info->name, ".bin", &bytes);
        char *expected = read_data("decode", info->name, ".f32", &expected_bytes);
        size_t n_blocks = bytes / info->block_bytes, n_weights = n_blocks * info->block_weights;
        assert_true(n_blocks >= 80);
        assert_int_equal(bytes % info->block_bytes, 0);
        assert_int_equal(expected_bytes, n_weights * sizeof(float));

        /* From an odd address, with a guard behind the result. */
        char *unaligned = malloc(bytes + 1);
        float *weights = malloc((n_weights + 1) * sizeof *weights);
        assert_true(unaligned != NULL && weights != NULL);
        memcpy(unaligned + 1, blocks, bytes);
        weights[n_weights] = 12345.0f;
        rl_quant_get(type)->decode(unaligned + 1, weights, n_blocks);
        if (memcmp(weights, expected, expected_bytes) != 0) print_error("type %s\n", info->name);
        rl_assert_same_bits(weights, (const float *)(void *)expected, n_weights);
        assert_true(weights[n_weights] == 12345.0f);
        free(blocks);
        free(expected);
        free(unaligned);
        free(weights);
    }
}

static void unpacks_what_it_decodes(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(1);
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        const rl_quant_traits *traits = rl_quant_get(type);
        if (traits->unpack == NULL) {
            assert_true(traits->act == RL_ACT_NONE && traits->dot == NULL && traits->dot_ints == NULL);
            continue;
        }
        int n_weights = rl_type_get(type)->block_weights;
        for (int round = 0; round < 20; round++) {
            uint8_t block[256];
            float weights[256];
            rl_block_codes codes;
            rl_test_random_blocks(type, &rng, block, 1);
            traits->decode(block, weights, 1);
            traits->unpack(block, &codes);
            for (int i = 0; i < n_weights; i++) {
                double w = (double)codes.scale * codes.s[i / 16] * codes.c[i];
                if (codes.has_offset) w += (double)codes.offset_scale * codes.m[i / 16];
                assert_true((float)w == weights[i]);
                assert_true(fabs(w) < 3.0);
            }
        }
    }
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------------- */

static void knows_the_types_that_hold_weights(void **state)
{
    (void)state;
    int known = 0;
    for (unsigned t = 0; t < RL_TYPE_END + 10; t++) {
        const rl_quant_traits *traits = rl_quant_get((rl_type)t);
        if (traits == NULL) continue;
        assert_int_equal(traits->type, t);
        assert_non_null(rl_type_get(t));
        bool listed = false;
        for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++)
            listed = listed || rl_test_weight_types[n] == (rl_type)t;
        assert_true(listed);
        known++;
    }
    assert_int_equal(known, RL_TEST_N_WEIGHT_TYPES);
    static const rl_type without[] = {RL_Q8_1, RL_Q8_K, RL_I8, RL_I16, RL_I32, RL_I64, RL_F64, RL_TYPE_END};
    for (size_t n = 0; n < sizeof without / sizeof *without; n++)
        assert_null(rl_quant_get(without[n]));
    assert_int_equal(rl_type_get(RL_Q8_0)->block_bytes, RL_Q8_0_BYTES);
    assert_int_equal(rl_type_get(RL_Q8_1)->block_bytes, RL_Q8_1_BYTES);
    assert_int_equal(rl_type_get(RL_Q8_K)->block_bytes, RL_Q8_K_BYTES);
}

/* The decoder's stride and the size table agree: two blocks decode to the first's weights followed by the second's. */
static void strides_are_the_sizes_of_the_type_table(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(2);
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        const rl_type_info *info = rl_type_get(type);
        uint8_t blocks[512];
        float both[512], second[256];
        rl_test_random_blocks(type, &rng, blocks, 2);
        rl_quant_get(type)->decode(blocks, both, 2);
        rl_quant_get(type)->decode(blocks + info->block_bytes, second, 1);
        rl_assert_same_bits(both + info->block_weights, second, info->block_weights);
    }
}

/* ---- Conversions --------------------------------------------------------------------------------------------------------- */

static double half_value(unsigned h)
{
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void converts_every_half(void **state)
{
    (void)state;
    const rl_quant_traits *traits = rl_quant_get(RL_F16);
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = rl_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) != 0x7c00) {
            assert_true(f == half_value(h) && !!signbit(f) == h >> 15);
            assert_int_equal(rl_f32_to_f16(f), h);
        } else if ((h & 0x3ff) == 0) {
            assert_true(isinf(f) && !!signbit(f) == h >> 15);
            assert_int_equal(rl_f32_to_f16(f), h);
        } else {
            assert_int_equal(bits_of(f), (h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13);
            assert_int_equal(rl_f32_to_f16(f), (h & 0x8000) | 0x7e00);
        }
        uint8_t bytes[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float decoded;
        traits->decode(bytes, &decoded, 1);
        assert_int_equal(bits_of(decoded), bits_of(f));
    }
}

/* Around the middle of every two neighbours; the middle itself goes to the even pattern. The step above the largest finite half
 * ends in infinity. */
static void rounds_to_half_nearest_even(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) {
        double above = h + 1 == 0x7c00 ? 65536.0 : half_value(h + 1);
        float middle = (float)((half_value(h) + above) / 2);
        for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
            float f = sign ? -1.0f : 1.0f;
            assert_int_equal(rl_f32_to_f16(f * middle), sign | (h & 1 ? h + 1 : h));
            assert_int_equal(rl_f32_to_f16(f * nextafterf(middle, 0.0f)), sign | h);
            assert_int_equal(rl_f32_to_f16(f * nextafterf(middle, 1e30f)), sign | (h + 1));
        }
    }
    assert_int_equal(rl_f32_to_f16(0x1p-149f), 0);
    assert_int_equal(rl_f32_to_f16(-0x1p-126f), 0x8000);
    assert_int_equal(rl_f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(rl_f32_to_f16(from_bits(0xff800001)), 0xfe00);
}

static void converts_every_bfloat(void **state)
{
    (void)state;
    const rl_quant_traits *traits = rl_quant_get(RL_BF16);
    for (unsigned h = 0; h < 0x10000; h++) {
        uint8_t bytes[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float decoded;
        traits->decode(bytes, &decoded, 1);
        assert_int_equal(bits_of(decoded), h << 16);
        assert_int_equal(bits_of(rl_bf16_to_f32((uint16_t)h)), h << 16);
        bool nan = (h & 0x7fff) > 0x7f80;
        assert_int_equal(rl_f32_to_bf16(decoded), nan ? h | 0x40 : h);
        if ((h & 0x7f80) == 0x7f80) continue;
        assert_int_equal(rl_f32_to_bf16(from_bits(h << 16 | 0x7fff)), h);
        assert_int_equal(rl_f32_to_bf16(from_bits(h << 16 | 0x8000)), h & 1 ? h + 1 : h);
        assert_int_equal(rl_f32_to_bf16(from_bits(h << 16 | 0x8001)), h + 1);
    }
    assert_int_equal(rl_f32_to_bf16(from_bits(0x7f800001)), 0x7fc0); /* must not become an infinity */
    assert_int_equal(rl_f32_to_bf16(from_bits(0xffffffff)), 0xffff);
}

/* ---- Invalid blocks ------------------------------------------------------------------------------------------------------ */

static void finds_the_block_that_is_not_finite(void **state)
{
    (void)state;
    enum { N = 7 };
    static const uint16_t bad_halves[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
    rl_rng rng = rl_rng_seed(3);
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        size_t bytes = rl_type_get(type)->block_bytes;
        uint8_t blocks[N * 256];
        rl_test_random_blocks(type, &rng, blocks, N);
        assert_int_equal(rl_quant_find_invalid(type, blocks, N), -1);
        assert_int_equal(rl_quant_find_invalid(type, blocks, 0), -1);
        if (type == RL_NVFP4) {
            memset(blocks, 0xff, sizeof blocks);
            assert_int_equal(rl_quant_find_invalid(type, blocks, N), -1);
            continue;
        }
        for (int bad = N - 1; bad >= 0; bad--) {
            float f = rl_f16_to_f32(bad_halves[bad % 5]);
            if (type == RL_MXFP4)
                blocks[bad * bytes] = 255;
            else
                rl_test_set_scales(type, blocks + bad * bytes, f, 1.0f);
            assert_int_equal(rl_quant_find_invalid(type, blocks, N), bad);
            assert_int_equal(rl_quant_find_invalid(type, blocks, (size_t)bad), -1);
        }
    }
    /* The largest finite scales pass; the second scale is looked at too. */
    static const rl_type with_second[] = {RL_Q4_1, RL_Q5_1, RL_Q2_K, RL_Q4_K, RL_Q5_K};
    for (size_t n = 0; n < sizeof with_second / sizeof *with_second; n++) {
        uint8_t block[256];
        memset(block, 0xff, sizeof block);
        rl_test_set_scales(with_second[n], block, 65504.0f, -65504.0f);
        assert_int_equal(rl_quant_find_invalid(with_second[n], block, 1), -1);
        rl_test_set_scales(with_second[n], block, 65504.0f, -INFINITY);
        assert_int_equal(rl_quant_find_invalid(with_second[n], block, 1), 0);
    }
}

static void finds_invalid_numbers_in_types_without_weights(void **state)
{
    (void)state;
    double doubles[3] = {1.0, 1.7e308, INFINITY};
    assert_int_equal(rl_quant_find_invalid(RL_F64, doubles, 2), -1);
    assert_int_equal(rl_quant_find_invalid(RL_F64, doubles, 3), 2);
    uint8_t bytes[2 * RL_Q8_K_BYTES];
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(rl_quant_find_invalid(RL_I32, bytes, 8), -1);
    assert_int_equal(rl_quant_find_invalid(RL_Q8_1, bytes, 2), 0);
    float scale = 1.0f;
    memcpy(bytes, &scale, sizeof scale);
    assert_int_equal(rl_quant_find_invalid(RL_Q8_K, bytes, 2), 1);
}

/* ---- Blocks for kernel tests ------------------------------------------------------------------------------------------- */

static void edge_blocks_are_finite_and_what_they_say(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(4);
    for (int n = 0; n < RL_TEST_N_WEIGHT_TYPES; n++) {
        rl_type type = rl_test_weight_types[n];
        int n_weights = rl_type_get(type)->block_weights;
        float usual = 0.0f, huge = 0.0f;
        for (int e = 0; e < RL_N_EDGES; e++) {
            uint8_t block[256];
            float w[256], largest = 0.0f;
            rl_test_edge_block(type, (rl_test_edge)e, &rng, block);
            assert_int_equal(rl_quant_find_invalid(type, block, 1), -1);
            rl_quant_get(type)->decode(block, w, 1);
            for (int i = 0; i < n_weights; i++) {
                assert_true(isfinite(w[i]));
                largest = fmaxf(largest, fabsf(w[i]));
            }
            if (e == RL_EDGE_ZERO_SCALE || e == RL_EDGE_NEG_ZERO_SCALE)
                assert_true(largest == 0.0f || (type == RL_MXFP4 && largest < 0x1p-120f));
            else if (e >= RL_EDGE_CODES_00)
                usual = fmaxf(usual, largest);
            if (e == RL_EDGE_HUGE_SCALE) huge = largest;
        }
        assert_true(usual > 0.5f && usual < 1.5f);
        assert_true(huge >= (type == RL_NVFP4 ? 448.0f : 60000.0f));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_like_the_reference),
        cmocka_unit_test(unpacks_what_it_decodes),
        cmocka_unit_test(knows_the_types_that_hold_weights),
        cmocka_unit_test(strides_are_the_sizes_of_the_type_table),
        cmocka_unit_test(converts_every_half),
        cmocka_unit_test(rounds_to_half_nearest_even),
        cmocka_unit_test(converts_every_bfloat),
        cmocka_unit_test(finds_the_block_that_is_not_finite),
        cmocka_unit_test(finds_invalid_numbers_in_types_without_weights),
        cmocka_unit_test(edge_blocks_are_finite_and_what_they_say),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
