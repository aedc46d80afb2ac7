/* Matrix kernels: every type, instruction set of this processor, precision and layout against a plain statement of the
 * arithmetic built on the block formats' own integer dot products and decoders. Results must agree in every bit. */
#include "backend/cpu/kern.h"
#include "backend/cpu/matmul.h"
#include "base/mem.h"
#include "support/blocks.h"
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    uint32_t rows, cols, acts;
} shape;

/* A random problem: n matrices of one type and activation rows with some outliers, zeros and a row of zeros. */
typedef struct problem {
    rl_type type;
    shape s;
    uint32_t n;
    rl_matrix w;
    uint8_t *data;
    float *x;
    size_t stride;
} problem;

static const rl_isa all_isas[] = {RL_ISA_SCALAR, RL_ISA_AVX2, RL_ISA_AVX512, RL_ISA_NEON};

static bool isa_runs(rl_isa isa)
{
    return rl_isa_parse(rl_isa_name(isa), &isa, NULL) == RL_OK;
}

static problem make_problem(rl_type type, shape s, uint32_t n, rl_rng *rng)
{
    const rl_type_info *info = rl_type_get(type);
    problem p = {.type = type, .s = s, .n = n, .stride = s.cols + 3};
    p.w = (rl_matrix){.type = type, .cols = s.cols, .rows = s.rows, .n = n, .row_bytes = rl_type_row_bytes(type, s.cols)};
    p.w.matrix_bytes = p.w.row_bytes * s.rows;
    p.data = malloc(p.w.matrix_bytes * n + 1);
    assert_non_null(p.data);
    p.w.data = p.data + 1; /* tensors of a file need not be aligned for vector loads */
    rl_test_random_blocks(type, rng, p.data + 1, (size_t)s.rows * n * (s.cols / info->block_weights));
    p.x = rl_alloc((size_t)s.acts * p.stride, sizeof(float));
    assert_non_null(p.x);
    rl_rng_fill_normal(rng, p.x, (size_t)s.acts * p.stride, 1.0f);
    for (uint32_t i = 0; i < s.acts; i++) {
        float *row = p.x + i * p.stride;
        row[rl_rng_below(rng, s.cols)] *= 30;
        if (i % 3 == 1)
            for (uint32_t c = 0; c < s.cols / 2; c++)
                row[c] = fabsf(row[c]);
        if (i % 5 == 4) memset(row, 0, s.cols * sizeof *row);
    }
    return p;
}

static void free_problem(problem *p)
{
    free(p->data);
    free(p->x);
}

/* ---- The arithmetic, stated plainly ----------------------------------------------------------------------------------------
 */

typedef struct quantised {
    int8_t codes[4096];
    float d[4096 / 32];
} quantised;

static void reference_quantize(const float *x, uint32_t cols, quantised *q)
{
    if (cols % 256 == 0) {
        for (uint32_t b = 0; b < cols / 256; b++) {
            uint8_t block[RL_Q8_K_BYTES];
            rl_quantize_q8_k(x + 256 * b, block, 256);
            memcpy(q->codes + 256 * b, block + 4, 256);
            for (uint32_t g = 0; g < 8; g++)
                memcpy(&q->d[8 * b + g], block, 4);
        }
        return;
    }
    for (uint32_t g = 0; g < cols / 32; g++) {
        float largest = 0;
        for (uint32_t i = 0; i < 32; i++)
            if (fabsf(x[32 * g + i]) > fabsf(largest)) largest = x[32 * g + i];
        float inverse = -127.0f / largest;
        for (uint32_t i = 0; i < 32; i++) {
            float v = largest == 0 ? 0 : rintf(inverse * x[32 * g + i]);
            q->codes[32 * g + i] = (int8_t)(v > 127 ? 127 : v);
        }
        q->d[g] = largest == 0 ? 0 : 1 / inverse;
    }
}

static float reference_exact(const problem *p, const uint8_t *row, const float *x)
{
    static float w[4096];
    rl_quant_get(p->type)->decode(row, w, p->s.cols / rl_type_get(p->type)->block_weights);
    float y = 0;
    for (uint32_t b = 0; b < p->s.cols; b += 256) {
        float part[4] = {0};
        for (uint32_t c = b; c < p->s.cols && c < b + 256; c++)
            part[c % 4] = fmaf(w[c], x[c], part[c % 4]);
        y += (part[0] + part[1]) + (part[2] + part[3]);
    }
    return y;
}

static float reference_fast(const problem *p, const uint8_t *row, const quantised *q)
{
    const rl_quant_traits *traits = rl_quant_get(p->type);
    const rl_type_info *info = rl_type_get(p->type);
    float y = 0;
    for (uint32_t c = 0; c < p->s.cols; c += info->block_weights, row += info->block_bytes) {
        rl_block_codes codes;
        traits->unpack(row, &codes);
        uint8_t act[RL_Q8_K_BYTES] = {0};
        rl_dot_ints ints;
        if (traits->act == RL_ACT_Q8_K) {
            memcpy(act + 4, q->codes + c, 256);
            for (uint32_t t = 0; t < 16; t++) {
                int16_t sum = 0;
                for (uint32_t i = 0; i < 16; i++)
                    sum = (int16_t)(sum + q->codes[c + 16 * t + i]);
                memcpy(act + 260 + 2 * t, &sum, 2);
            }
        } else {
            memcpy(act + 2, q->codes + c, 32);
        }
        traits->dot_ints(row, act, &ints);
        y = fmaf((float)ints.i[0], codes.scale * q->d[c / 32], y);
        if (codes.has_offset) y = fmaf((float)ints.m, codes.offset_scale * q->d[c / 32], y);
    }
    return y;
}

static bool multiplied_as_integers(rl_type type, rl_precision precision, uint32_t cols)
{
    return precision == RL_PRECISION_FAST && cols % 32 == 0 && rl_kern_scalar.types[type].kclass != RL_KCLASS_FLOAT;
}

/* y[i][e][r] for all activation rows, matrices and rows. */
static float *reference_products(const problem *p, rl_precision precision)
{
    float *y = rl_alloc((size_t)p->s.acts * p->n * p->s.rows, sizeof(float));
    assert_non_null(y);
    static quantised q;
    for (uint32_t i = 0; i < p->s.acts; i++) {
        const float *x = p->x + i * p->stride;
        const bool ints = multiplied_as_integers(p->type, precision, p->s.cols);
        if (ints) reference_quantize(x, p->s.cols, &q);
        for (uint32_t e = 0; e < p->n; e++)
            for (uint32_t r = 0; r < p->s.rows; r++) {
                const uint8_t *row = p->w.data + e * p->w.matrix_bytes + r * p->w.row_bytes;
                y[((size_t)i * p->n + e) * p->s.rows + r] = ints ? reference_fast(p, row, &q) : reference_exact(p, row, x);
            }
    }
    return y;
}

/* ---- The kernels against it ------------------------------------------------------------------------------------------------
 */

static void compare(const problem *p, const char *how, const float *y, const float *expected, uint32_t i, uint32_t e,
                    uint32_t r, uint32_t end)
{
    for (; r < end; r++) {
        const float want = expected[((size_t)i * p->n + e) * p->s.rows + r];
        if (memcmp(&y[r], &want, 4) != 0 && !(y[r] == 0 && want == 0) && !(isnan(y[r]) && isnan(want)))
            fail_msg("%s %s: activation row %u, matrix %u, row %u of %ux%u: %a, expected %a", rl_type_get(p->type)->name, how,
                     i, e, r, p->s.rows, p->s.cols, (double)y[r], (double)want);
    }
}

static void check_kernels(const problem *p, rl_isa isa, rl_precision precision, bool repack, const float *expected, rl_rng *rng)
{
    rl_error err;
    rl_mm *mm;
    rl_mm_matrix w;
    rl_mm_act act;
    rl_assert_ok(rl_mm_create(isa, precision, &mm, &err), &err);
    rl_assert_ok(rl_mm_matrix_init(mm, &p->w, repack, NULL, &w, &err), &err);
    void *mem = malloc(rl_mm_act_bytes(mm, p->s.cols, p->s.acts));
    void *scratch = malloc(rl_mm_scratch_bytes(mm, p->s.cols));
    const size_t ldy = p->s.rows + 5;
    float *y = rl_alloc(2 * p->s.acts * ldy, sizeof(float));
    uint32_t *index = rl_alloc(2 * p->s.acts, sizeof *index);
    assert_true(mem && scratch && y && index);
    rl_mm_act_init(mm, &act, p->x, p->stride, p->s.cols, p->s.acts, mem);
    rl_mm_act_prepare(mm, &act, 0, p->s.acts / 2);
    rl_mm_act_prepare(mm, &act, p->s.acts / 2, p->s.acts);
    char how[64];
    snprintf(how, sizeof how, "%s %s%s", rl_isa_name(isa), precision == RL_PRECISION_FAST ? "fast" : "exact",
             repack ? " repacked" : "");

    for (uint32_t n = 1; n <= p->s.acts; n += n < 18 ? 1 : n) {
        for (uint32_t e = 0; e < p->n; e++) {
            const uint32_t split = rl_rng_below(rng, p->s.rows / RL_MM_ROWS + 1) * RL_MM_ROWS;
            for (size_t i = 0; i < n * ldy; i++)
                y[i] = 12345;
            rl_mm_mul(mm, &w, e, 0, split, &act, NULL, n, y, ldy, scratch);
            rl_mm_mul(mm, &w, e, split, p->s.rows, &act, NULL, n, y, ldy, scratch);
            for (uint32_t i = 0; i < n; i++) {
                compare(p, how, y + i * ldy, expected, i, e, 0, p->s.rows);
                assert_true(y[i * ldy + p->s.rows] == 12345);
            }
            for (uint32_t i = 0; i < n; i++)
                index[i] = rl_rng_below(rng, p->s.acts);
            rl_mm_mul(mm, &w, e, 0, p->s.rows, &act, index, n, y, ldy, scratch);
            for (uint32_t i = 0; i < n; i++)
                compare(p, how, y + i * ldy, expected, index[i], e, 0, p->s.rows);
        }
    }
    float *row = rl_alloc(p->s.cols, sizeof(float)), *want = rl_alloc(p->s.cols, sizeof(float));
    assert_true(row && want);
    const uint32_t e = p->n - 1, r = rl_rng_below(rng, p->s.rows);
    rl_mm_row(&w, e, r, row);
    rl_quant_get(p->type)->decode(p->w.data + e * p->w.matrix_bytes + r * p->w.row_bytes, want,
                                  p->s.cols / rl_type_get(p->type)->block_weights);
    for (uint32_t c = 0; c < p->s.cols; c++)
        if (row[c] != want[c] && !(isnan(row[c]) && isnan(want[c])))
            fail_msg("%s %s: weight %u of row %u is %a, expected %a", rl_type_get(p->type)->name, how, c, r, (double)row[c],
                     (double)want[c]);
    free(row);
    free(want);
    free(index);
    free(y);
    free(scratch);
    free(mem);
    rl_mm_matrix_free(&w);
    rl_mm_free(mm);
}

static void check_everywhere(const problem *p, rl_rng *rng)
{
    static const rl_precision precisions[] = {RL_PRECISION_EXACT, RL_PRECISION_FAST};
    for (size_t j = 0; j < 2; j++) {
        float *expected = reference_products(p, precisions[j]);
        for (size_t i = 0; i < sizeof all_isas / sizeof *all_isas; i++) {
            if (!isa_runs(all_isas[i])) continue;
            check_kernels(p, all_isas[i], precisions[j], false, expected, rng);
            check_kernels(p, all_isas[i], precisions[j], true, expected, rng);
        }
        free(expected);
    }
}

static void check_shape(shape s, uint32_t n)
{
    rl_rng rng = rl_rng_seed(s.rows * 7919 + s.cols + s.acts);
    for (size_t i = 0; i < RL_TEST_N_WEIGHT_TYPES; i++) {
        const rl_type type = rl_test_weight_types[i];
        if (s.cols % rl_type_get(type)->block_weights != 0) continue;
        problem p = make_problem(type, s, n, &rng);
        check_everywhere(&p, &rng);
        free_problem(&p);
    }
}

static void test_ragged_rows(void **state)
{
    (void)state;
    check_shape((shape){37, 512, 9}, 1);
    check_shape((shape){7, 256, 3}, 1);
}

static void test_many_activation_rows(void **state)
{
    (void)state;
    check_shape((shape){16, 768, 40}, 1);
}

static void test_several_matrices(void **state)
{
    (void)state;
    check_shape((shape){32, 256, 2}, 3);
}

static void test_short_columns(void **state)
{
    (void)state;
    check_shape((shape){20, 96, 5}, 1);
    check_shape((shape){20, 416, 5}, 1);
    check_shape((shape){18, 64, 5}, 1);
}

static void test_plain_types_of_any_width(void **state)
{
    (void)state;
    check_shape((shape){19, 1, 3}, 1);
    check_shape((shape){19, 77, 9}, 1);
    check_shape((shape){19, 301, 9}, 1);
}

/* More activation rows than a tile takes at once, with and without an index. */
static void test_parts_of_activation_rows(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(5);
    const shape s = {16, 256, RL_TILE_ACTS + 9};
    problem p = make_problem(RL_IQ1_M, s, 1, &rng);
    float *expected = reference_products(&p, RL_PRECISION_FAST);
    rl_error err;
    rl_mm *mm;
    rl_mm_matrix w;
    rl_mm_act act;
    rl_assert_ok(rl_mm_create(rl_cpu()->best, RL_PRECISION_FAST, &mm, &err), &err);
    rl_assert_ok(rl_mm_matrix_init(mm, &p.w, true, NULL, &w, &err), &err);
    void *mem = malloc(rl_mm_act_bytes(mm, s.cols, s.acts)), *scratch = malloc(rl_mm_scratch_bytes(mm, s.cols));
    float *y = rl_alloc(s.acts * s.rows, sizeof(float));
    uint32_t *index = rl_alloc(s.acts, sizeof *index);
    assert_true(mem && scratch && y && index);
    rl_mm_act_init(mm, &act, p.x, p.stride, s.cols, s.acts, mem);
    rl_mm_act_prepare(mm, &act, 0, s.acts);
    rl_mm_mul(mm, &w, 0, 0, s.rows, &act, NULL, s.acts, y, s.rows, scratch);
    for (uint32_t i = 0; i < s.acts; i++)
        compare(&p, "in parts", y + i * s.rows, expected, i, 0, 0, s.rows);
    for (uint32_t i = 0; i < s.acts; i++)
        index[i] = s.acts - 1 - i;
    rl_mm_mul(mm, &w, 0, 0, s.rows, &act, index, s.acts, y, s.rows, scratch);
    for (uint32_t i = 0; i < s.acts; i++)
        compare(&p, "in parts by index", y + i * s.rows, expected, index[i], 0, 0, s.rows);
    free(index);
    free(y);
    free(scratch);
    free(mem);
    free(expected);
    rl_mm_matrix_free(&w);
    rl_mm_free(mm);
    free_problem(&p);
}

/* Rows of edge blocks, between random ones, against activations that reach +-127 in long runs. */
static void test_edge_blocks(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(11);
    for (size_t i = 0; i < RL_TEST_N_WEIGHT_TYPES; i++) {
        const rl_type type = rl_test_weight_types[i];
        const rl_type_info *info = rl_type_get(type);
        const shape s = {RL_N_EDGES * 2, 512, 4};
        problem p = make_problem(type, s, 1, &rng);
        const uint32_t n_blocks = s.cols / info->block_weights;
        for (uint32_t r = 0; r < s.rows; r++)
            for (uint32_t b = 0; b < n_blocks; b += 1 + r % 2)
                rl_test_edge_block(type, (rl_test_edge)(r / 2), &rng,
                                   p.data + 1 + r * p.w.row_bytes + (size_t)b * info->block_bytes);
        for (uint32_t c = 0; c < s.cols; c++) {
            p.x[c] = 1;
            p.x[p.stride + c] = c % 2 ? -1.0f : 1.0f;
            p.x[2 * p.stride + c] = -1;
        }
        check_everywhere(&p, &rng);
        free_problem(&p);
    }
}

/* ---- Accuracy and activations ----------------------------------------------------------------------------------------------
 */

static void test_close_to_double(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(23);
    const shape s = {16, 2048, 4};
    for (size_t i = 0; i < RL_TEST_N_WEIGHT_TYPES; i++) {
        problem p = make_problem(rl_test_weight_types[i], s, 1, &rng);
        float *exact = reference_products(&p, RL_PRECISION_EXACT), *fast = reference_products(&p, RL_PRECISION_FAST);
        float w[2048];
        for (uint32_t r = 0; r < s.rows; r++) {
            rl_quant_get(p.type)->decode(p.w.data + r * p.w.row_bytes, w, s.cols / rl_type_get(p.type)->block_weights);
            for (uint32_t a = 0; a < s.acts; a++) {
                double sum = 0, magnitude = 0, quantum = 0;
                const float *x = p.x + a * p.stride;
                for (uint32_t c = 0; c < s.cols; c++) {
                    sum += (double)w[c] * x[c];
                    magnitude += fabs((double)w[c] * x[c]);
                    float largest = 0;
                    for (uint32_t k = c & ~255u; k < (c & ~255u) + 256; k++)
                        largest = fmaxf(largest, fabsf(x[k]));
                    quantum += fabs((double)w[c]) * largest * (0.5001 / 127);
                }
                const double e = fabs(exact[a * s.rows + r] - sum), f = fabs(fast[a * s.rows + r] - sum);
                assert_true(e <= magnitude * 40 * 0x1p-24);
                assert_true(f <= quantum + magnitude * 40 * 0x1p-24);
            }
        }
        free(exact);
        free(fast);
        free_problem(&p);
    }
}

static const rl_kern *kern_of(rl_isa isa)
{
    return rl_mm_kern(isa);
}

static void check_quantised(const rl_kern *kern, const float *x, uint32_t cols)
{
    static quantised q;
    rl_act_block *row = rl_aligned_alloc(64, rl_act_blocks(cols), sizeof *row);
    assert_non_null(row);
    reference_quantize(x, cols, &q);
    kern->quantize(x, cols, row);
    int total = 0;
    for (uint32_t c = 0; c < cols; c += 16) {
        const rl_act_block *b = row + c / 256;
        const uint32_t g = c % 256 / 16;
        assert_memory_equal(b->code + c % 256, q.codes + c, 16);
        int sum = 0;
        for (uint32_t i = 0; i < 16; i++)
            sum += q.codes[c + i];
        assert_int_equal(b->sum16[g], sum);
        assert_int_equal(b->neg16[g], -128 * sum);
        total = c % 256 == 0 ? sum : total + sum;
        if (c + 16 == cols || c % 256 == 240) assert_int_equal(b->sum256, total);
        if (c % 32 == 0) continue;
        assert_int_equal(b->sum32[g / 2], b->sum16[g - 1] + sum);
        assert_int_equal(b->neg32[g / 2], -128 * b->sum32[g / 2]);
        const float d = b->d[g / 2], want = q.d[c / 32];
        assert_true(isnan(want) ? isnan(d) : d == want);
    }
    rl_aligned_free(row);
}

static void test_activations(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(3);
    float x[1024];
    for (size_t i = 0; i < sizeof all_isas / sizeof *all_isas; i++) {
        if (!isa_runs(all_isas[i])) continue;
        const rl_kern *kern = kern_of(all_isas[i]);
        for (int round = 0; round < 200; round++) {
            rl_rng_fill_normal(&rng, x, 1024, 1);
            check_quantised(kern, x, 1024);
            check_quantised(kern, x, 32);
            check_quantised(kern, x, 416);
        }
        /* ties in magnitude: the first decides the sign; halves; zeros; a lone value */
        for (uint32_t c = 0; c < 1024; c++)
            x[c] = c % 2 ? 127.0f : (float)(c % 255) - 127.0f;
        x[0] = 0.5f;
        check_quantised(kern, x, 1024);
        for (uint32_t c = 0; c < 1024; c++)
            x[c] = (float)((int)(c % 253) - 126) + 0.5f;
        x[700] = -127;
        x[701] = 127;
        x[100] = 127;
        x[101] = -127;
        check_quantised(kern, x, 1024);
        memset(x, 0, sizeof x);
        x[513] = -3;
        check_quantised(kern, x, 1024);
        x[2] = NAN;
        x[300] = INFINITY;
        check_quantised(kern, x, 1024);
        /* too small for a finite inverse: zero, not infinity */
        for (uint32_t c = 0; c < 256; c++)
            x[c] = 1e-42f;
        _Alignas(64) rl_act_block row;
        kern->quantize(x, 256, &row);
        assert_true(row.d[0] == 0);
        for (uint32_t c = 0; c < 256; c++)
            assert_int_equal(row.code[c], 0);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    rl_error err;
    rl_mm *mm;
    for (size_t i = 0; i < sizeof all_isas / sizeof *all_isas; i++)
        if (!isa_runs(all_isas[i]))
            rl_assert_fails(rl_mm_create(all_isas[i], RL_PRECISION_FAST, &mm, &err), RL_ERR_UNSUPPORTED, &err,
                            rl_isa_name(all_isas[i]));
    rl_assert_ok(rl_mm_create(RL_ISA_SCALAR, RL_PRECISION_FAST, &mm, &err), &err);
    rl_mm_matrix w;
    const rl_matrix src = {.type = RL_I32, .cols = 4, .rows = 1, .n = 1};
    rl_assert_fails(rl_mm_matrix_init(mm, &src, false, NULL, &w, &err), RL_ERR_UNSUPPORTED, &err, "I32");
    rl_mm_free(mm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ragged_rows),      cmocka_unit_test(test_many_activation_rows),
        cmocka_unit_test(test_several_matrices), cmocka_unit_test(test_short_columns),
        cmocka_unit_test(test_edge_blocks),      cmocka_unit_test(test_plain_types_of_any_width),
        cmocka_unit_test(test_close_to_double),  cmocka_unit_test(test_parts_of_activation_rows),
        cmocka_unit_test(test_activations),      cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
