/* Activation quantisers: the reference's stored blocks, the rounding rules one by one, and inputs at the edges. */
#include "support/support.h"

#include "quant/quant.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float half_at(const uint8_t *p)
{
    return rl_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static float f32_at(const uint8_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

static int sum_at(const uint8_t *q8_k, int t)
{
    return (int16_t)(q8_k[260 + 2 * t] | q8_k[261 + 2 * t] << 8);
}

static void blocks_are_those_of_the_reference(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        void (*quantize)(const float *x, void *dst, size_t n);
    } kinds[] = {{"quant/act/q8_0.bin", rl_quantize_q8_0},
                 {"quant/act/q8_1.bin", rl_quantize_q8_1},
                 {"quant/act/q8_k.bin", rl_quantize_q8_k}};
    char path[PATH_MAX];
    size_t x_bytes, bytes;
    char *x = rl_test_read(rl_test_data(path, "quant/act/x.f32"), &x_bytes);
    assert_int_equal(x_bytes, 16384 * sizeof(float));
    for (int k = 0; k < 3; k++) {
        char *expected = rl_test_read(rl_test_data(path, kinds[k].file), &bytes);
        uint8_t *blocks = malloc(bytes + 1);
        assert_non_null(blocks);
        blocks[bytes] = 0x5a;
        kinds[k].quantize((const float *)(void *)x, blocks, 16384);
        assert_memory_equal(blocks, expected, bytes);
        assert_int_equal(blocks[bytes], 0x5a);
        free(expected);
        free(blocks);
    }
    free(x);
}

/* With a largest value of 127 the scale is 1 and the codes are the rounded inputs. */
static void q8_0_rounds_halves_away_from_zero(void **state)
{
    (void)state;
    static const struct {
        float x;
        int code;
    } cases[] = {{127.0f, 127},    {0.5f, 1},       {-0.5f, -1},    {1.5f, 2},  {2.5f, 3},   {-2.5f, -3},
                 {0.49999997f, 0}, {-126.5f, -127}, {126.49f, 126}, {-0.0f, 0}, {1e-30f, 0}, {-3.4999f, -3}};
    enum { N = sizeof cases / sizeof *cases };
    float x[32] = {0};
    uint8_t q0[RL_Q8_0_BYTES], q1[RL_Q8_1_BYTES];
    int sum = 0;
    for (int i = 0; i < N; i++)
        x[i] = cases[i].x;
    rl_quantize_q8_0(x, q0, 32);
    rl_quantize_q8_1(x, q1, 32);
    assert_true(half_at(q0) == 1.0f && half_at(q1) == 1.0f);
    for (int i = 0; i < 32; i++) {
        int code = i < N ? cases[i].code : 0;
        assert_int_equal((int8_t)q0[2 + i], code);
        assert_int_equal((int8_t)q1[4 + i], code);
        sum += code;
    }
    assert_true(half_at(q1 + 2) == (float)sum);
}

/* The extreme value gets -127; with an extreme of -127 the factor is 1. Halves go to the even code. */
static void q8_k_rounds_halves_to_even(void **state)
{
    (void)state;
    static const struct {
        float x;
        int code;
    } cases[] = {{-127.0f, -127}, {127.0f, 127}, {0.5f, 0},     {1.5f, 2}, {2.5f, 2},
                 {-2.5f, -2},     {-3.5f, -4},   {126.5f, 126}, {-0.0f, 0}};
    enum { N = sizeof cases / sizeof *cases };
    float x[256] = {0};
    uint8_t q[RL_Q8_K_BYTES];
    for (int i = 0; i < N; i++)
        x[17 * i] = cases[i].x;
    rl_quantize_q8_k(x, q, 256);
    assert_true(f32_at(q) == 1.0f);
    int sums[16] = {0};
    for (int i = 0; i < 256; i++) {
        int code = i % 17 == 0 && i / 17 < N ? cases[i / 17].code : 0;
        assert_int_equal((int8_t)q[4 + i], code);
        sums[i / 16] += code;
    }
    for (int t = 0; t < 16; t++)
        assert_int_equal(sum_at(q, t), sums[t]);
}

/* Of several values of largest magnitude the first decides the sign of the scale. */
static void q8_k_takes_the_first_extreme(void **state)
{
    (void)state;
    float x[256] = {0};
    uint8_t q[RL_Q8_K_BYTES];
    x[3] = 2.0f;
    x[9] = -2.0f;
    rl_quantize_q8_k(x, q, 256);
    assert_true(f32_at(q) == 1.0f / (-127.0f / 2.0f));
    assert_int_equal((int8_t)q[4 + 3], -127);
    assert_int_equal((int8_t)q[4 + 9], 127);
    x[2] = -2.0f;
    rl_quantize_q8_k(x, q, 256);
    assert_true(f32_at(q) == 1.0f / (-127.0f / -2.0f));
    assert_int_equal((int8_t)q[4 + 2], -127);
    assert_int_equal((int8_t)q[4 + 3], 127);
    assert_int_equal(sum_at(q, 0), -127);
}

static void zeros_give_zero_blocks(void **state)
{
    (void)state;
    static const uint8_t zero[RL_Q8_K_BYTES];
    float x[256];
    uint8_t q[8 * RL_Q8_1_BYTES + RL_Q8_K_BYTES];
    for (int i = 0; i < 256; i++)
        x[i] = i % 2 ? -0.0f : 0.0f;
    memset(q, 0xff, sizeof q);
    rl_quantize_q8_0(x, q, 32);
    assert_memory_equal(q, zero, RL_Q8_0_BYTES);
    assert_int_equal(q[RL_Q8_0_BYTES], 0xff);
    rl_quantize_q8_1(x, q, 32);
    assert_memory_equal(q, zero, RL_Q8_1_BYTES);
    memset(q, 0xff, sizeof q);
    rl_quantize_q8_k(x, q, 256);
    assert_memory_equal(q, zero, RL_Q8_K_BYTES);
}

/* Scales that leave the range of f16, and reciprocals that overflow: codes stay in range and no block becomes NaN. */
static void tiny_and_huge_values_have_codes(void **state)
{
    (void)state;
    static const float sizes[] = {FLT_TRUE_MIN, 127 * 0x1p-129f, 127 * 0x1p-126f, 0x1p-40f, 1.0f, 127 * 65504.0f, FLT_MAX};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        float x[256], size = sizes[n];
        uint8_t q0[8 * RL_Q8_0_BYTES], q1[8 * RL_Q8_1_BYTES], qk[RL_Q8_K_BYTES];
        for (int i = 0; i < 256; i++)
            x[i] = i % 3 == 0 ? size : i % 3 == 1 ? -size : 0.0f;
        rl_quantize_q8_0(x, q0, 256);
        rl_quantize_q8_1(x, q1, 256);
        rl_quantize_q8_k(x, qk, 256);
        /* amax / 127 of the smallest number rounds to zero, and with it every code. */
        int full = size == FLT_TRUE_MIN ? 0 : 127;
        for (int i = 0; i < 256; i++) {
            int sign = i % 3 == 0 ? 1 : i % 3 == 1 ? -1 : 0;
            assert_int_equal((int8_t)q0[i / 32 * RL_Q8_0_BYTES + 2 + i % 32], sign * full);
            assert_int_equal((int8_t)q1[i / 32 * RL_Q8_1_BYTES + 4 + i % 32], sign * full);
            assert_int_equal((int8_t)qk[4 + i], sign * -127);
        }
        float stored = rl_f16_to_f32(rl_f32_to_f16(size / 127.0f));
        assert_true(half_at(q0) == stored && half_at(q1) == stored);
        float d = f32_at(qk);
        if (size >= 127 * 0x1p-126f)
            assert_true(fabs(d * -127.0 - size) <= 1e-6 * size);
        else
            assert_true(d == 0.0f);
    }
}

/* A value that is not finite shows in every product with its block, and only with its block. */
static void not_finite_values_poison_their_block(void **state)
{
    (void)state;
    static const uint8_t zero[256];
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 4; n++) {
        float x[512];
        uint8_t q0[16 * RL_Q8_0_BYTES], q1[16 * RL_Q8_1_BYTES], qk[2 * RL_Q8_K_BYTES];
        for (int i = 0; i < 512; i++)
            x[i] = (float)(i % 7 - 3);
        x[255] = bad[n];
        rl_quantize_q8_0(x, q0, 512);
        rl_quantize_q8_1(x, q1, 512);
        rl_quantize_q8_k(x, qk, 512);
        for (int b = 0; b < 16; b++) {
            const uint8_t *p0 = q0 + b * RL_Q8_0_BYTES, *p1 = q1 + b * RL_Q8_1_BYTES;
            assert_int_equal(!!isnan(half_at(p0)), b == 7);
            assert_int_equal(!!isnan(half_at(p1)), b == 7);
            assert_int_equal(!!isnan(half_at(p1 + 2)), b == 7);
            if (b == 7) {
                assert_memory_equal(p0 + 2, zero, 32);
                assert_memory_equal(p1 + 4, zero, 32);
            }
        }
        assert_true(isnan(f32_at(qk)));
        assert_memory_equal(qk + 4, zero, 256);
        assert_memory_equal(qk + 260, zero, 32);
        assert_true(f32_at(qk + RL_Q8_K_BYTES) == 1.0f / (-127.0f / 3.0f));

        uint8_t q8_0_weights[RL_Q8_0_BYTES];
        rl_quantize_q8_0(x, q8_0_weights, 32);
        assert_true(isnan(rl_quant_get(RL_Q8_0)->dot(q8_0_weights, q0 + 7 * RL_Q8_0_BYTES)));
        assert_true(isfinite(rl_quant_get(RL_Q8_0)->dot(q8_0_weights, q0 + 6 * RL_Q8_0_BYTES)));
    }
}

/* Rows of many blocks: each value comes back within half a step. */
static void values_come_back_within_half_a_step(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(21);
    for (int round = 0; round < 50; round++) {
        float x[512];
        uint8_t q0[16 * RL_Q8_0_BYTES], qk[2 * RL_Q8_K_BYTES];
        rl_rng_fill_normal(&rng, x, 512, 3.0f);
        rl_quantize_q8_0(x, q0, 512);
        rl_quantize_q8_k(x, qk, 512);
        for (int i = 0; i < 512; i++) {
            const uint8_t *p0 = q0 + i / 32 * RL_Q8_0_BYTES, *pk = qk + i / 256 * RL_Q8_K_BYTES;
            float d0 = half_at(p0), dk = f32_at(pk);
            /* Q8_0 stores a rounded scale: 127 codes times half a unit of 2^-11. */
            assert_true(fabsf((float)(int8_t)p0[2 + i % 32] * d0 - x[i]) <= d0 * (0.5f + 127 * 0x1p-11f));
            assert_true(fabsf((float)(int8_t)pk[4 + i % 256] * dk - x[i]) <= fabsf(dk) * 0.5001f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_those_of_the_reference),
        cmocka_unit_test(q8_0_rounds_halves_away_from_zero),
        cmocka_unit_test(q8_k_rounds_halves_to_even),
        cmocka_unit_test(q8_k_takes_the_first_extreme),
        cmocka_unit_test(zeros_give_zero_blocks),
        cmocka_unit_test(tiny_and_huge_values_have_codes),
        cmocka_unit_test(not_finite_values_poison_their_block),
        cmocka_unit_test(values_come_back_within_half_a_step),
    };
    return cmocka_run_group_tests_name("quant_act", tests, NULL, NULL);
}
