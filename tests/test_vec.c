/* The float kernels of every instruction set this machine has, against double precision. */
#include "backend/cpu/vec.h"
#include "quant/quant.h"
#include "support/support.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 600 };

/* Runs the body with `vec` the table of each instruction set. */
#define FOR_EACH_ISA(vec)                                                                                                      \
    for (int isa_ = RL_ISA_SCALAR; isa_ <= RL_ISA_AVX512; isa_++)                                                              \
        for (const rl_vec *vec = available((rl_isa)isa_); vec; vec = NULL)

static const rl_vec *available(rl_isa isa)
{
    rl_isa found;
    if (rl_isa_parse(rl_isa_name(isa), &found, NULL) != RL_OK) return NULL;
    const rl_vec *vec = rl_vec_get(isa);
    return vec->isa == isa ? vec : NULL;
}

static const uint32_t lengths[] = {1, 3, 16, 31, 64, 100, 257, 512};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void test_rows(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(1);
    float a[MAX], b[MAX], c[MAX], y[MAX], want[MAX];
    FOR_EACH_ISA(vec)
    for (size_t l = 0; l < N_LENGTHS; l++) {
        const uint32_t n = lengths[l];
        rl_rng_fill_normal(&rng, a, MAX, 2.0f);
        rl_rng_fill_normal(&rng, b, MAX, 1.0f);
        rl_rng_fill_normal(&rng, c, MAX, 3.0f);
        double dot = 0, squares = 0;
        for (uint32_t i = 0; i < n; i++) {
            dot += (double)a[i] * (double)b[i];
            squares += (double)a[i] * (double)a[i];
        }
        assert_true(fabs((double)vec->dot(a, b, n) - dot) < 1e-4 * (1 + sqrt(squares)));
        const float eps = 0.25f; /* large, so that its place under the root shows */
        const double rms = 1 / sqrt(squares / n + (double)eps);
        for (uint32_t i = 0; i < n; i++)
            want[i] = (float)((double)a[i] * rms * (double)b[i]);
        y[n] = 77; /* the element after the row stays */
        vec->rms_norm(a, b, eps, y, n);
        rl_assert_close(y, want, n, 1e-6, 1e-5);
        for (uint32_t i = 0; i < n; i++)
            want[i] = (float)((double)a[i] * rms * (double)b[i] * silu((double)c[i]));
        vec->gated_norm(a, b, c, eps, y, n);
        rl_assert_close(y, want, n, 1e-6, 1e-5);
        for (uint32_t i = 0; i < n; i++)
            want[i] = (float)((double)a[i] / sqrt(squares + (double)eps));
        memcpy(y, a, n * sizeof *y);
        vec->l2_norm(y, eps, n);
        rl_assert_close(y, want, n, 1e-6, 1e-5);
        for (uint32_t i = 0; i < n; i++)
            want[i] = (float)(silu((double)a[i]) * (double)b[i]);
        vec->silu_mul(a, b, y, n);
        rl_assert_close(y, want, n, 1e-6, 1e-5);
        for (uint32_t i = 0; i < n; i++)
            want[i] = (float)((double)a[i] / (1 + exp(-(double)b[i])));
        vec->sigmoid_mul(a, b, y, n);
        rl_assert_close(y, want, n, 1e-6, 1e-5);
        for (uint32_t i = 0; i < n; i++)
            want[i] = b[i] + 0.75f * a[i];
        memcpy(y, b, n * sizeof *y);
        vec->axpy(y, 0.75f, a, n);
        rl_assert_close(y, want, n, 1e-6, 1e-6);
        assert_true(y[n] == 77);
    }
}

static void test_exp_at_the_ends(void **state)
{
    (void)state;
    FOR_EACH_ISA(vec)
    {
        float x[] = {0, -1e-30f, -1, -20, -87, -95, -103, -110, -1e30f, -INFINITY, -0.5f, -33.3f};
        enum { N = sizeof x / sizeof *x };
        float want[N];
        double sum = 0;
        for (int i = 0; i < N; i++) {
            want[i] = (float)exp((double)x[i]);
            sum += (double)want[i];
        }
        const float total = vec->exp_sum(x, N);
        rl_assert_close(x, want, N, 2e-45, 3e-7);
        assert_true(fabs((double)total - sum) < 1e-6);
        const float extreme[] = {100, -100, 1e30f, -1e30f, 0, NAN}, one[] = {1, 1, 1, 1, 1, 1};
        float y[6];
        vec->silu_mul(extreme, one, y, 6);
        assert_true(y[0] == 100 && fabsf(y[1]) < 1e-30f && y[2] == 1e30f && fabsf(y[3]) < 1e-30f && y[4] == 0 && isnan(y[5]));
    }
}

static void test_conv_and_rope(void **state)
{
    (void)state;
    rl_rng rng = rl_rng_seed(2);
    float u[5][MAX], w[5 * MAX], y[MAX], want[MAX];
    FOR_EACH_ISA(vec)
    for (size_t l = 0; l < N_LENGTHS; l++)
        for (uint32_t taps = 2; taps <= 5; taps++) {
            const uint32_t n = lengths[l];
            const float *rows[5];
            for (uint32_t t = 0; t < 5; t++) {
                rl_rng_fill_normal(&rng, u[t], MAX, 1.0f);
                rows[t] = u[t];
            }
            rl_rng_fill_normal(&rng, w, 5 * MAX, 1.0f);
            for (uint32_t i = 0; i < n; i++) {
                double sum = 0;
                for (uint32_t t = 0; t < taps; t++)
                    sum += (double)w[t * MAX + i] * (double)u[t][i];
                want[i] = (float)silu(sum);
            }
            vec->conv_silu(rows, w, MAX, taps, y, n);
            rl_assert_close(y, want, n, 1e-6, 1e-5);
            const uint32_t half = n / 2;
            for (uint32_t i = 0; i < half; i++) {
                want[i] = (float)((double)u[0][i] * (double)u[1][i] - (double)u[0][i + half] * (double)u[2][i]);
                want[i + half] = (float)((double)u[0][i] * (double)u[2][i] + (double)u[0][i + half] * (double)u[1][i]);
            }
            vec->rope(u[0], u[1], u[2], half);
            rl_assert_close(u[0], want, 2 * half, 1e-6, 1e-5);
        }
}

static void test_f16(void **state)
{
    (void)state;
    FOR_EACH_ISA(vec)
    {
        uint16_t h[0x7c00], back[0x7c00];
        float f[0x7c00], want[0x7c00];
        for (uint32_t i = 0; i < 0x7c00; i++) {
            h[i] = (uint16_t)i;
            want[i] = rl_f16_to_f32(h[i]);
        }
        vec->from_f16(h, f, 0x7c00);
        rl_assert_same_bits(f, want, 0x7c00);
        vec->to_f16(f, back, 0x7c00);
        assert_memory_equal(back, h, sizeof h);
        for (uint32_t i = 0; i < 0x7c00; i++)
            f[i] = -f[i] * 1.0003f;
        vec->to_f16(f, back, 0x7bff);
        for (uint32_t i = 0; i < 0x7bff; i++)
            assert_int_equal(back[i], rl_f32_to_f16(f[i]));
    }
}

/* ---- Delta rule -------------------------------------------------------------------------------------------------------- */

static void delta_in_double(double *m, uint32_t s, const float *q, const float *k, const float *v, float decay, float beta,
                            double *o)
{
    for (size_t i = 0; i < (size_t)s * s; i++)
        m[i] *= (double)decay;
    for (uint32_t d = 0; d < s; d++) {
        double read = 0;
        for (uint32_t i = 0; i < s; i++)
            read += m[(size_t)i * s + d] * (double)k[i];
        const double delta = (double)beta * ((double)v[d] - read);
        o[d] = 0;
        for (uint32_t i = 0; i < s; i++) {
            m[(size_t)i * s + d] += (double)k[i] * delta;
            o[d] += m[(size_t)i * s + d] * (double)q[i];
        }
    }
}

static void test_delta(void **state)
{
    (void)state;
    enum { T = 150, H = 2 };
    const uint32_t sizes[] = {16, 24, 32, 48, 64, 128};
    rl_rng rng = rl_rng_seed(3);
    FOR_EACH_ISA(vec)
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
        const uint32_t s = sizes[z];
        const size_t ld = 3 * (size_t)s + 5, square = (size_t)s * s;
        float *in = malloc(T * ld * sizeof *in), *chunk = malloc(T * s * sizeof *chunk), *step = malloc(s * sizeof *step);
        float *decay = malloc(T * H * sizeof *decay), *beta = malloc(T * H * sizeof *beta);
        float *m = malloc(square * sizeof *m), *ms = malloc(square * sizeof *ms), *want = malloc(T * s * sizeof *want);
        float *stage = malloc(rl_delta_stage_floats(s) * sizeof *stage), *final = malloc(square * sizeof *final);
        double *md = malloc(square * sizeof *md), *o = malloc(s * sizeof *o);
        rl_rng_fill_normal(&rng, in, T * ld, 1.0f);
        rl_rng_fill_normal(&rng, m, square, 0.3f);
        memcpy(ms, m, square * sizeof *m);
        for (size_t i = 0; i < square; i++)
            md[i] = (double)m[i];
        for (size_t t = 0; t < T; t++) {
            vec->l2_norm(in + t * ld, 1e-6f, s);
            vec->l2_norm(in + t * ld + s, 1e-6f, s);
            decay[t * H] = expf(-2 * fabsf(rl_rng_uniform(&rng)) * (t % 7 ? 0.1f : 30.0f));
            beta[t * H] = fabsf(rl_rng_uniform(&rng));
        }
        const float scale = 0.125f;
        for (size_t t = 0; t < T; t++) {
            const float *row = in + t * ld;
            float q[128];
            for (uint32_t i = 0; i < s; i++)
                q[i] = row[i] * scale;
            delta_in_double(md, s, q, row + s, row + 2 * s, decay[t * H], beta[t * H], o);
            vec->delta_step(ms, s, q, row + s, row + 2 * s, decay[t * H], beta[t * H], step);
            for (uint32_t i = 0; i < s; i++)
                want[t * s + i] = (float)o[i];
            rl_assert_close(step, want + t * s, s, 2e-6, 2e-5);
        }
        /* In uneven pieces: the rest of four goes by steps. */
        const uint32_t cuts[] = {0, 64, 131, 133, T};
        for (int c = 0; c < 4; c++) {
            const float *row = in + cuts[c] * ld;
            vec->delta_chunk(m, s, cuts[c + 1] - cuts[c], row, row + s, ld, scale, row + 2 * s, ld, decay + cuts[c] * H,
                             beta + cuts[c] * H, H, chunk + (size_t)cuts[c] * s, s, stage);
        }
        rl_assert_close(chunk, want, T * s, 2e-6, 2e-5);
        for (size_t i = 0; i < square; i++)
            final[i] = (float)md[i];
        rl_assert_close(m, final, square, 2e-6, 2e-5);
        rl_assert_close(ms, final, square, 2e-6, 2e-5);
        free(in), free(chunk), free(step), free(decay), free(beta), free(m), free(ms), free(want), free(stage), free(final);
        free(md), free(o);
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------------------- */

/* Both ways through three tiles (the last one short) against softmax in double. */
static void test_attention(void **state)
{
    (void)state;
    enum { TILE = 64, POS = 2 * TILE + 23, G_MAX = 9 };
    const uint32_t dims[] = {16, 40, 64, 256}, groups[] = {1, 2, 5, 8, 9};
    rl_rng rng = rl_rng_seed(4);
    FOR_EACH_ISA(vec)
    for (size_t z = 0; z < sizeof dims / sizeof *dims; z++)
        for (size_t y = 0; y < sizeof groups / sizeof *groups; y++) {
            const uint32_t d = dims[z], g = groups[y], tokens = 3, n = tokens * g;
            const uint32_t rows = (n + vec->panel - 1) / vec->panel * vec->panel,
                           lanes = (g + vec->lanes - 1) / vec->lanes * vec->lanes;
            const float scale = 1.0f / sqrtf((float)d);
            float *q = malloc(n * d * sizeof *q), *k = malloc(POS * d * sizeof *k), *v = malloc(POS * d * sizeof *v);
            float *want = malloc(n * d * sizeof *want), *got = calloc(rows * d, sizeof *got), *few = calloc(g * d, sizeof *few);
            float *panels = malloc(rows * d * sizeof *panels), *st = calloc(rows * TILE, sizeof *st);
            float max[64], sum[64], corr[64];
            rl_rng_fill_normal(&rng, q, n * d, 2.0f);
            rl_rng_fill_normal(&rng, k, POS * d, 1.0f);
            rl_rng_fill_normal(&rng, v, POS * d, 1.0f);
            for (uint32_t r = 0; r < n; r++) {
                double s[POS], top = -INFINITY, total = 0;
                for (uint32_t p = 0; p < POS; p++) {
                    s[p] = 0;
                    for (uint32_t i = 0; i < d; i++)
                        s[p] += (double)q[r * d + i] * (double)k[p * d + i];
                    s[p] *= (double)scale;
                    top = fmax(top, s[p]);
                }
                for (uint32_t p = 0; p < POS; p++)
                    total += exp(s[p] - top);
                for (uint32_t i = 0; i < d; i++) {
                    double o = 0;
                    for (uint32_t p = 0; p < POS; p++)
                        o += exp(s[p] - top) / total * (double)v[p * d + i];
                    want[r * d + i] = (float)o;
                }
            }
            assert_true(rows <= 64);
            vec->pack_q(q, (size_t)g * d, tokens, g, d, panels, rows);
            for (uint32_t r = 0; r < rows; r++)
                max[r] = -INFINITY, sum[r] = 0;
            for (uint32_t at = 0; at < POS; at += TILE) {
                const uint32_t np = POS - at < TILE ? POS - at : TILE;
                vec->score_tile(panels, rows, k + at * d, np, d, scale, st);
                vec->softmax_tile(st, rows, np, max, sum, corr);
                vec->value_tile(st, rows, n, np, v + at * d, d, corr, got);
            }
            for (uint32_t r = 0; r < n; r++)
                vec->scale(got + r * d, 1.0f / sum[r], d);
            rl_assert_close(got, want, n * d, 5e-6, 2e-5);

            memset(st, 0, rows * TILE * sizeof *st);
            for (uint32_t r = 0; r < lanes; r++)
                max[r] = -INFINITY, sum[r] = 0;
            for (uint32_t at = 0; at < POS; at += TILE) {
                const uint32_t np = POS - at < TILE ? POS - at : TILE;
                vec->scores(q, g, k + at * d, np, d, scale, st, lanes, v + at * d, d * sizeof(float));
                vec->softmax_tile(st, lanes, np, max, sum, corr);
                vec->value_tile(st, lanes, g, np, v + at * d, d, corr, few);
            }
            for (uint32_t r = 0; r < g; r++)
                vec->scale(few + r * d, 1.0f / sum[r], d);
            rl_assert_close(few, want, g * d, 5e-6, 2e-5);
            free(q), free(k), free(v), free(want), free(got), free(few), free(panels), free(st);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_exp_at_the_ends), cmocka_unit_test(test_conv_and_rope),
        cmocka_unit_test(test_f16),  cmocka_unit_test(test_delta),           cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
