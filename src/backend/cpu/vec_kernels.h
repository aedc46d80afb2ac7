/* backend/cpu/vec: the kernel bodies, compiled once per instruction set.
 *
 * The including file defines the register type V of VL floats, its operations v_*, and the blocking constants
 *   VEC_NAME  name of the table          VEC_ISA  its level
 *   QV        registers of a query panel  PB      key positions per score tile step
 *   DV        registers of a value step   HB      query heads per step of scores
 *   CB        state columns (registers) of delta_chunk   NB  of delta_step
 * chosen so that the accumulators fill the register file without spilling. No include guard: it is a template. */

#define INLINE static inline __attribute__((always_inline))

/* e^x: x = n ln 2 + r, a polynomial in r, then 2^n in two halves (v_scale2) so that the ends of the range come out right. The
 * order of operands keeps NaN. */
INLINE V v_exp(V x)
{
    x = v_min(v_set1(89.0f), v_max(v_set1(-105.0f), x));
    V n = v_round(v_mul(x, v_set1(1.44269504088896341f)));
    V r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440054690583e-4f), r);
    V p = v_set1(1.0f / 5040);
    p = v_fma(p, r, v_set1(1.0f / 720));
    p = v_fma(p, r, v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, v_mul(r, r), r);
    return v_scale2(v_add(p, v_set1(1.0f)), n);
}

INLINE V v_sigmoid(V x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

INLINE V v_silu(V x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

/* Runs the statements with i the index and LOAD/STORE moving a whole register, then once more with the partial forms for the
 * rest. */
#define FOR_VECTORS(n, ...)                                                                                                    \
    do {                                                                                                                       \
        uint32_t i = 0;                                                                                                        \
        for (; i + VL <= (n); i += VL) {                                                                                       \
            const uint32_t part = VL;                                                                                          \
            __VA_ARGS__                                                                                                        \
        }                                                                                                                      \
        if (i < (n)) {                                                                                                         \
            const uint32_t part = (n)-i;                                                                                       \
            __VA_ARGS__                                                                                                        \
        }                                                                                                                      \
    } while (0)
#define LOAD(p)     (part == VL ? v_load(p) : v_load_part(p, part))
#define STORE(p, x) (part == VL ? v_store(p, x) : v_store_part(p, part, x))

static float k_dot(const float *a, const float *b, uint32_t n)
{
    V s0 = v_zero(), s1 = v_zero(), s2 = v_zero(), s3 = v_zero();
    uint32_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        s0 = v_fma(v_load(a + i), v_load(b + i), s0);
        s1 = v_fma(v_load(a + i + VL), v_load(b + i + VL), s1);
        s2 = v_fma(v_load(a + i + 2 * VL), v_load(b + i + 2 * VL), s2);
        s3 = v_fma(v_load(a + i + 3 * VL), v_load(b + i + 3 * VL), s3);
    }
    for (; i + VL <= n; i += VL)
        s0 = v_fma(v_load(a + i), v_load(b + i), s0);
    if (i < n) s1 = v_fma(v_load_part(a + i, n - i), v_load_part(b + i, n - i), s1);
    return v_sum(v_add(v_add(s0, s1), v_add(s2, s3)));
}

static void k_add(float *y, const float *x, uint32_t n)
{
    FOR_VECTORS(n, STORE(y + i, v_add(LOAD(y + i), LOAD(x + i))););
}

static void k_axpy(float *y, float a, const float *x, uint32_t n)
{
    const V va = v_set1(a);
    FOR_VECTORS(n, STORE(y + i, v_fma(va, LOAD(x + i), LOAD(y + i))););
}

static void k_scale(float *y, float a, uint32_t n)
{
    const V va = v_set1(a);
    FOR_VECTORS(n, STORE(y + i, v_mul(va, LOAD(y + i))););
}

static void k_rms_norm(const float *x, const float *w, float eps, float *y, uint32_t n)
{
    const V scale = v_set1(1.0f / sqrtf(k_dot(x, x, n) / (float)n + eps));
    FOR_VECTORS(n, STORE(y + i, v_mul(v_mul(LOAD(x + i), scale), LOAD(w + i))););
}

static void k_l2_norm(float *x, float eps, uint32_t n)
{
    k_scale(x, 1.0f / sqrtf(k_dot(x, x, n) + eps), n);
}

static void k_silu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    FOR_VECTORS(n, STORE(y + i, v_mul(v_silu(LOAD(g + i)), LOAD(u + i))););
}

static void k_sigmoid_mul(const float *x, const float *gate, float *y, uint32_t n)
{
    FOR_VECTORS(n, STORE(y + i, v_mul(LOAD(x + i), v_sigmoid(LOAD(gate + i)))););
}

static void k_gated_norm(const float *x, const float *w, const float *z, float eps, float *y, uint32_t n)
{
    const V scale = v_set1(1.0f / sqrtf(k_dot(x, x, n) / (float)n + eps));
    FOR_VECTORS(n, STORE(y + i, v_mul(v_mul(v_mul(LOAD(x + i), scale), LOAD(w + i)), v_silu(LOAD(z + i)))););
}

static void k_conv_silu(const float *const *u, const float *w, size_t ldw, uint32_t taps, float *y, uint32_t n)
{
    FOR_VECTORS(n, {
        V sum = v_mul(LOAD(w + i), LOAD(u[0] + i));
        for (uint32_t t = 1; t < taps; t++)
            sum = v_fma(LOAD(w + t * ldw + i), LOAD(u[t] + i), sum);
        STORE(y + i, v_silu(sum));
    });
}

static void k_rope(float *x, const float *c, const float *s, uint32_t half)
{
    FOR_VECTORS(half, {
        const V a = LOAD(x + i), b = LOAD(x + half + i), cs = LOAD(c + i), sn = LOAD(s + i);
        STORE(x + i, v_sub(v_mul(a, cs), v_mul(b, sn)));
        STORE(x + half + i, v_add(v_mul(a, sn), v_mul(b, cs)));
    });
}

static float k_exp_sum(float *x, uint32_t n)
{
    float max = x[0];
    for (uint32_t j = 1; j < n; j++)
        max = x[j] > max ? x[j] : max;
    const V vm = v_set1(max);
    V sum = v_zero();
    uint32_t i = 0;
    for (; i + VL <= n; i += VL) {
        const V e = v_exp(v_sub(v_load(x + i), vm));
        v_store(x + i, e);
        sum = v_add(sum, e);
    }
    float rest = 0;
    if (i < n) {
        v_store_part(x + i, n - i, v_exp(v_sub(v_load_part(x + i, n - i), vm)));
        for (; i < n; i++)
            rest += x[i];
    }
    return v_sum(sum) + rest;
}

static void k_from_f16(const uint16_t *x, float *y, size_t n)
{
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(y + i, v_load_f16(x + i));
    for (; i < n; i++)
        y[i] = rl_f16_to_f32(x[i]);
}

static void k_to_f16(const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store_f16(y + i, v_load(x + i));
    for (; i < n; i++)
        y[i] = rl_f32_to_f16(x[i]);
}

/* ---- Delta rule -------------------------------------------------------------------------------------------------------- */

/* Columns [d0, d0 + nb * VL) of one step. The read with q uses M'^T q = decay * M^T q + (k . q) d, so the old state is read
 * once for both products and once more, from cache, to be written. */
INLINE void delta_step_columns(float *m, uint32_t s, uint32_t d0, const uint32_t nb, const float *q, const float *k,
                               const float *v, float decay, float beta, float kq, float *o)
{
    V r[NB], p[NB];
    for (uint32_t b = 0; b < nb; b++)
        r[b] = p[b] = v_zero();
    const float *row = m + d0;
    for (uint32_t i = 0; i < s; i++, row += s) {
        const V ki = v_set1(k[i]), qi = v_set1(q[i]);
        for (uint32_t b = 0; b < nb; b++) {
            const V x = v_load(row + b * VL);
            r[b] = v_fma(x, ki, r[b]);
            p[b] = v_fma(x, qi, p[b]);
        }
    }
    const V g = v_set1(decay), bt = v_set1(beta), dot = v_set1(kq);
    for (uint32_t b = 0; b < nb; b++) {
        r[b] = v_mul(bt, v_sub(v_load(v + d0 + b * VL), v_mul(g, r[b])));
        v_store(o + d0 + b * VL, v_fma(dot, r[b], v_mul(g, p[b])));
    }
    float *out = m + d0;
    for (uint32_t i = 0; i < s; i++, out += s) {
        const V ki = v_set1(k[i]);
        for (uint32_t b = 0; b < nb; b++)
            v_store(out + b * VL, v_fma(ki, r[b], v_mul(g, v_load(out + b * VL))));
    }
}

static void k_delta_step(float *m, uint32_t s, const float *q, const float *k, const float *v, float decay, float beta,
                         float *o)
{
    const float kq = k_dot(k, q, s);
    uint32_t d = 0;
    for (; d + NB * VL <= s; d += NB * VL)
        delta_step_columns(m, s, d, NB, q, k, v, decay, beta, kq, o);
    for (; d + VL <= s; d += VL)
        delta_step_columns(m, s, d, 1, q, k, v, decay, beta, kq, o);
    for (; d < s; d++) {
        float r = 0, p = 0;
        for (uint32_t i = 0; i < s; i++) {
            r += m[(size_t)i * s + d] * k[i];
            p += m[(size_t)i * s + d] * q[i];
        }
        const float delta = beta * (v[d] - decay * r);
        o[d] = decay * p + kq * delta;
        for (uint32_t i = 0; i < s; i++)
            m[(size_t)i * s + d] = decay * m[(size_t)i * s + d] + k[i] * delta;
    }
}

/* Coefficients of four tokens i, j: with A_i the product of the decays up to i inside the block,
 *   u_i = beta_i (v_i - A_i M^T k_i - sum over j < i of kk_ij u_j)      kk_ij = A_i / A_j (k_i . k_j)
 *   o_i = A_i M^T q_i + sum over j <= i of kq_ij u_j                     kq_ij = A_i / A_j (q_i . k_j)
 *   M'  = A_3 M + sum of k_j (last_j u_j)^T                              last_j = A_3 / A_j
 * A_i / A_j is formed as a product, never as a quotient, so nothing overflows. */
typedef struct delta_block {
    float a[4], beta[4], last[4];
    float kk[4][4], kq[4][4];
} delta_block;

/* rows: four keys, then four scaled queries. */
static void delta_coefficients(uint32_t s, const float *rows, const float *decay, const float *beta, size_t ldg, delta_block *c)
{
    float ratio[4][4]; /* A_i / A_j for j <= i */
    for (int i = 0; i < 4; i++) {
        ratio[i][i] = 1.0f;
        for (int j = i - 1; j >= 0; j--)
            ratio[i][j] = ratio[i - 1][j] * decay[(size_t)i * ldg];
        c->a[i] = (i ? c->a[i - 1] : 1.0f) * decay[(size_t)i * ldg];
        c->beta[i] = beta[(size_t)i * ldg];
        for (int j = 0; j <= i; j++) {
            const float *kj = rows + (size_t)j * s;
            c->kq[i][j] = ratio[i][j] * k_dot(rows + (size_t)(4 + i) * s, kj, s);
            if (j < i) c->kk[i][j] = ratio[i][j] * k_dot(rows + (size_t)i * s, kj, s);
        }
    }
    for (int j = 0; j < 4; j++)
        c->last[j] = ratio[3][j];
}

/* vo: four rows of values, replaced by the outputs. */
INLINE void delta_block_columns(float *m, uint32_t s, uint32_t d0, const uint32_t cb, const float *rows, const delta_block *c,
                                float *vo)
{
    V r[4][CB], p[4][CB];
    for (int t = 0; t < 4; t++)
        for (uint32_t b = 0; b < cb; b++)
            r[t][b] = p[t][b] = v_zero();
    const float *row = m + d0;
    for (uint32_t i = 0; i < s; i++, row += s) {
        V x[CB];
        for (uint32_t b = 0; b < cb; b++)
            x[b] = v_load(row + b * VL);
        for (uint32_t t = 0; t < 4; t++) {
            const V kt = v_set1(rows[t * s + i]), qt = v_set1(rows[(4 + t) * s + i]);
            for (uint32_t b = 0; b < cb; b++) {
                r[t][b] = v_fma(x[b], kt, r[t][b]);
                p[t][b] = v_fma(x[b], qt, p[t][b]);
            }
        }
    }
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t b = 0; b < cb; b++) {
            const V a = v_set1(c->a[t]);
            float *at = vo + t * s + d0 + b * VL;
            V u = v_sub(v_load(at), v_mul(a, r[t][b]));
            V y = v_mul(a, p[t][b]);
            for (uint32_t j = 0; j < t; j++) {
                u = v_sub(u, v_mul(v_set1(c->kk[t][j]), r[j][b]));
                y = v_fma(v_set1(c->kq[t][j]), r[j][b], y);
            }
            r[t][b] = v_mul(v_set1(c->beta[t]), u);
            v_store(at, v_fma(v_set1(c->kq[t][t]), r[t][b], y));
        }
    for (int t = 0; t < 3; t++)
        for (uint32_t b = 0; b < cb; b++)
            r[t][b] = v_mul(v_set1(c->last[t]), r[t][b]);
    const V a3 = v_set1(c->a[3]);
    float *out = m + d0;
    for (uint32_t i = 0; i < s; i++, out += s) {
        V x[CB];
        for (uint32_t b = 0; b < cb; b++)
            x[b] = v_mul(a3, v_load(out + b * VL));
        for (uint32_t t = 0; t < 4; t++) {
            const V kt = v_set1(rows[t * s + i]);
            for (uint32_t b = 0; b < cb; b++)
                x[b] = v_fma(kt, r[t][b], x[b]);
        }
        for (uint32_t b = 0; b < cb; b++)
            v_store(out + b * VL, x[b]);
    }
}

/* Rows of one head lie far apart, often a power of two, and would fall on each other in the caches: they are copied together
 * RL_DELTA_STAGE tokens at a time. Columns are the outer loop, so that CB registers of columns of the state stay in the
 * first-level cache. */
static void k_delta_chunk(float *m, uint32_t s, uint32_t n, const float *q, const float *k, size_t ldqk, float q_scale,
                          const float *v, size_t ldv, const float *decay, const float *beta, size_t ldg, float *o, size_t ldo,
                          float *stage)
{
    const uint32_t blocked = s % VL == 0 ? n - n % 4 : 0;
    float *vo = stage + (size_t)2 * RL_DELTA_STAGE * s;
    uint32_t t = 0;
    while (t < blocked) {
        const uint32_t tokens = blocked - t < RL_DELTA_STAGE ? blocked - t : RL_DELTA_STAGE;
        delta_block c[RL_DELTA_STAGE / 4];
        for (uint32_t j = 0; j < tokens; j++) {
            const size_t at = t + j;
            float *keys = stage + ((size_t)(j / 4) * 8 + j % 4) * s, *queries = keys + (size_t)4 * s;
            for (uint32_t i = 0; i < s; i += VL) {
                v_store(keys + i, v_load(k + at * ldqk + i));
                v_store(queries + i, v_mul(v_set1(q_scale), v_load(q + at * ldqk + i)));
                v_store(vo + j * s + i, v_load(v + at * ldv + i));
            }
        }
        for (uint32_t j = 0; j < tokens; j += 4)
            delta_coefficients(s, stage + (size_t)j * 2 * s, decay + (t + j) * ldg, beta + (t + j) * ldg, ldg, &c[j / 4]);
        uint32_t d = 0;
        for (; d + CB * VL <= s; d += CB * VL)
            for (uint32_t j = 0; j < tokens; j += 4)
                delta_block_columns(m, s, d, CB, stage + (size_t)j * 2 * s, &c[j / 4], vo + (size_t)j * s);
        for (; d < s; d += VL)
            for (uint32_t j = 0; j < tokens; j += 4)
                delta_block_columns(m, s, d, 1, stage + (size_t)j * 2 * s, &c[j / 4], vo + (size_t)j * s);
        for (uint32_t j = 0; j < tokens; j++)
            for (uint32_t i = 0; i < s; i += VL)
                v_store(o + (t + j) * ldo + i, v_load(vo + j * s + i));
        t += tokens;
    }
    for (; t < n; t++) {
        for (uint32_t x = 0; x < s; x++)
            stage[x] = q[t * ldqk + x] * q_scale;
        k_delta_step(m, s, stage, k + t * ldqk, v + t * ldv, decay[t * ldg], beta[t * ldg], o + t * ldo);
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------------------- */

#define PANEL (QV * VL)

static void k_pack_q(const float *q, size_t ldq, uint32_t n_tok, uint32_t g, uint32_t d, float *panels, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        float *out = panels + (size_t)(row / PANEL) * PANEL * d + row % PANEL;
        if (row < n_tok * g) {
            const float *in = q + (size_t)(row / g) * ldq + (size_t)(row % g) * d;
            for (uint32_t i = 0; i < d; i++)
                out[(size_t)i * PANEL] = in[i];
        } else {
            for (uint32_t i = 0; i < d; i++)
                out[(size_t)i * PANEL] = 0;
        }
    }
}

INLINE void score_block(const float *panel, const float *k, const uint32_t np, uint32_t d, float scale, float *st,
                        uint32_t rows)
{
    V acc[PB][QV];
    for (uint32_t p = 0; p < np; p++)
        for (uint32_t b = 0; b < QV; b++)
            acc[p][b] = v_zero();
    for (uint32_t i = 0; i < d; i++, panel += PANEL) {
        V x[QV];
        for (uint32_t b = 0; b < QV; b++)
            x[b] = v_load(panel + b * VL);
        for (uint32_t p = 0; p < np; p++) {
            const V kp = v_set1(k[(size_t)p * d + i]);
            for (uint32_t b = 0; b < QV; b++)
                acc[p][b] = v_fma(kp, x[b], acc[p][b]);
        }
    }
    const V sc = v_set1(scale);
    for (uint32_t p = 0; p < np; p++)
        for (uint32_t b = 0; b < QV; b++)
            v_store(st + (size_t)p * rows + b * VL, v_mul(sc, acc[p][b]));
}

static void k_score_tile(const float *panels, uint32_t rows, const float *k, uint32_t n_pos, uint32_t d, float scale, float *st)
{
    for (uint32_t row = 0; row < rows; row += PANEL) {
        const float *panel = panels + (size_t)row * d;
        uint32_t p = 0;
        for (; p + PB <= n_pos; p += PB)
            score_block(panel, k + (size_t)p * d, PB, d, scale, st + (size_t)p * rows + row, rows);
        for (; p < n_pos; p++)
            score_block(panel, k + (size_t)p * d, 1, d, scale, st + (size_t)p * rows + row, rows);
    }
}

/* hb heads times four positions; the products are summed across lanes four at a time. */
INLINE void scores_block(const float *q, const uint32_t hb, const float *k, const uint32_t np, uint32_t d, float scale,
                         float *st, uint32_t rows)
{
    V acc[HB][4];
    for (uint32_t h = 0; h < hb; h++)
        for (uint32_t p = 0; p < 4; p++)
            acc[h][p] = v_zero();
    FOR_VECTORS(d, {
        V x[4];
        for (uint32_t p = 0; p < np; p++)
            x[p] = LOAD(k + (size_t)p * d + i);
        for (uint32_t h = 0; h < hb; h++) {
            const V y = LOAD(q + (size_t)h * d + i);
            for (uint32_t p = 0; p < np; p++)
                acc[h][p] = v_fma(x[p], y, acc[h][p]);
        }
    });
    for (uint32_t h = 0; h < hb; h++) {
        float sum[4];
        v_sum4(acc[h], sum);
        for (uint32_t p = 0; p < np; p++)
            st[(size_t)p * rows + h] = scale * sum[p];
    }
}

static void k_scores(const float *q, uint32_t g, const float *k, uint32_t n_pos, uint32_t d, float scale, float *st,
                     uint32_t rows, const void *prefetch, size_t prefetch_bytes)
{
    for (uint32_t p = 0; p < n_pos; p += 4) {
        const uint32_t np = n_pos - p < 4 ? n_pos - p : 4;
        const char *ahead = (const char *)prefetch + (size_t)p * prefetch_bytes;
        for (size_t line = 0; line < np * prefetch_bytes; line += 64)
            __builtin_prefetch(ahead + line, 0, 2);
        const float *kp = k + (size_t)p * d;
        float *out = st + (size_t)p * rows;
        uint32_t h = 0;
        if (np == 4) {
            for (; h + HB <= g; h += HB)
                scores_block(q + (size_t)h * d, HB, kp, 4, d, scale, out + h, rows);
            for (; h < g; h++)
                scores_block(q + (size_t)h * d, 1, kp, 4, d, scale, out + h, rows);
        } else {
            for (; h < g; h++)
                for (uint32_t j = 0; j < np; j++)
                    scores_block(q + (size_t)h * d, 1, kp + (size_t)j * d, 1, d, scale, out + (size_t)j * rows + h, rows);
        }
    }
}

static void k_softmax_tile(float *st, uint32_t rows, uint32_t n_pos, float *m, float *l, float *corr)
{
    for (uint32_t row = 0; row < rows; row += VL) {
        const V before = v_load(m + row);
        V max = before;
        for (uint32_t p = 0; p < n_pos; p++)
            max = v_max(max, v_load(st + (size_t)p * rows + row));
        const V factor = v_exp(v_sub(before, max));
        V sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        for (uint32_t p = 0; p < n_pos; p++) {
            float *at = st + (size_t)p * rows + row;
            const V e = v_exp(v_sub(v_load(at), max));
            v_store(at, e);
            sum[p % 4] = v_add(sum[p % 4], e);
        }
        const V total = v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
        v_store(m + row, max);
        v_store(corr + row, factor);
        v_store(l + row, v_fma(v_load(l + row), factor, total));
    }
}

/* nr rows times nb registers of the value dimension (the last one of `part` floats). */
INLINE void value_block(const float *st, uint32_t rows, const uint32_t nr, const uint32_t nb, const uint32_t part,
                        uint32_t n_pos, const float *v, uint32_t d, const float *corr, float *o)
{
    V acc[4][DV];
    for (uint32_t r = 0; r < nr; r++)
        for (uint32_t b = 0; b < nb; b++)
            acc[r][b] = v_mul(v_set1(corr[r]), LOAD(o + (size_t)r * d + b * VL));
    for (uint32_t p = 0; p < n_pos; p++, v += d, st += rows) {
        V x[DV];
        for (uint32_t b = 0; b < nb; b++)
            x[b] = LOAD(v + b * VL);
        for (uint32_t r = 0; r < nr; r++) {
            const V w = v_set1(st[r]);
            for (uint32_t b = 0; b < nb; b++)
                acc[r][b] = v_fma(w, x[b], acc[r][b]);
        }
    }
    for (uint32_t r = 0; r < nr; r++)
        for (uint32_t b = 0; b < nb; b++)
            STORE(o + (size_t)r * d + b * VL, acc[r][b]);
}

static void k_value_tile(const float *st, uint32_t rows, uint32_t n_rows, uint32_t n_pos, const float *v, uint32_t d,
                         const float *corr, float *o)
{
    uint32_t c = 0;
    for (; c < d; c += d - c >= DV * VL ? DV * VL : d - c >= VL ? VL : d - c) {
        const uint32_t left = d - c;
        uint32_t r = 0;
        for (; r < n_rows; r += n_rows - r >= 4 ? 4 : 1) {
            const float *s = st + r, *f = corr + r;
            float *out = o + (size_t)r * d + c;
            if (n_rows - r >= 4) {
                if (left >= DV * VL)
                    value_block(s, rows, 4, DV, VL, n_pos, v + c, d, f, out);
                else if (left >= VL)
                    value_block(s, rows, 4, 1, VL, n_pos, v + c, d, f, out);
                else
                    value_block(s, rows, 4, 1, left, n_pos, v + c, d, f, out);
            } else if (left >= DV * VL) {
                value_block(s, rows, 1, DV, VL, n_pos, v + c, d, f, out);
            } else if (left >= VL) {
                value_block(s, rows, 1, 1, VL, n_pos, v + c, d, f, out);
            } else {
                value_block(s, rows, 1, 1, left, n_pos, v + c, d, f, out);
            }
        }
    }
}

const rl_vec VEC_NAME = {
    .isa = VEC_ISA,
    .panel = PANEL,
    .lanes = VL,
    .dot = k_dot,
    .add = k_add,
    .axpy = k_axpy,
    .scale = k_scale,
    .rms_norm = k_rms_norm,
    .l2_norm = k_l2_norm,
    .silu_mul = k_silu_mul,
    .sigmoid_mul = k_sigmoid_mul,
    .gated_norm = k_gated_norm,
    .conv_silu = k_conv_silu,
    .rope = k_rope,
    .exp_sum = k_exp_sum,
    .from_f16 = k_from_f16,
    .to_f16 = k_to_f16,
    .delta_step = k_delta_step,
    .delta_chunk = k_delta_chunk,
    .pack_q = k_pack_q,
    .score_tile = k_score_tile,
    .scores = k_scores,
    .softmax_tile = k_softmax_tile,
    .value_tile = k_value_tile,
};
