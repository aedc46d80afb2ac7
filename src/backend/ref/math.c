/* backend/ref/math: scalar functions, norms and the matrix product. */
#include "backend/ref/ref.h"
#include "quant/quant.h"
#include <math.h>

double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

double ref_silu(double x)
{
    return x * ref_sigmoid(x);
}

/* Every length in the model is a multiple of 16. Eight sums, because one would wait for its own last addition. */
double ref_dot(const double *a, const double *b, size_t n)
{
    double sum[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] += a[i + j] * b[i + j];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* The epsilon joins the mean of the squares. */
void ref_rms_norm(const double *x, const float *w, uint32_t n, double eps, double *out)
{
    const double scale = 1 / sqrt(ref_dot(x, x, n) / n + eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * scale * (double)w[i];
}

/* The epsilon joins the sum of the squares. */
void ref_l2_norm(const double *x, uint32_t n, double eps, double *out)
{
    const double scale = 1 / sqrt(ref_dot(x, x, n) + eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * scale;
}

typedef struct items {
    ref_item_fn fn;
    void *ctx;
    uint32_t n;
    atomic_uint next;
} items;

static void run_items(void *ctx, int member)
{
    items *it = ctx;
    uint32_t begin, end;
    while (rl_pool_next(&it->next, it->n, 1, &begin, &end))
        for (uint32_t i = begin; i < end; i++)
            it->fn(it->ctx, member, i);
}

void ref_parallel(ref_backend *b, uint32_t n, ref_item_fn fn, void *ctx)
{
    items it = {.fn = fn, .ctx = ctx, .n = n};
    atomic_init(&it.next, 0);
    rl_pool_run(b->pool, run_items, &it);
}

typedef struct product {
    ref_backend *b;
    const rl_matrix *m;
    uint32_t e, n;
    const double *x;
    double *y;
} product;

static void decode_row(const rl_matrix *m, uint32_t e, uint32_t r, float *decoded, double *out)
{
    rl_quant_get(m->type)->decode(rl_matrix_row(m, e, r), decoded, m->cols / rl_type_get(m->type)->block_weights);
    for (uint32_t i = 0; i < m->cols; i++)
        out[i] = (double)decoded[i];
}

/* REF_TILE rows of the matrix, decoded once, against every row of x. */
static void multiply_tile(void *ctx, int member, uint32_t tile)
{
    const product *p = ctx;
    const rl_matrix *m = p->m;
    const uint32_t first = tile * REF_TILE, end = first + REF_TILE < m->rows ? first + REF_TILE : m->rows;
    double *w = p->b->tiles + (size_t)member * REF_TILE * p->b->max_cols;
    for (uint32_t r = first; r < end; r++)
        decode_row(m, p->e, r, p->b->decoded + (size_t)member * p->b->max_cols, w + (size_t)(r - first) * m->cols);
    for (uint32_t t = 0; t < p->n; t++)
        for (uint32_t r = first; r < end; r++)
            p->y[(size_t)t * m->rows + r] = ref_dot(w + (size_t)(r - first) * m->cols, p->x + (size_t)t * m->cols, m->cols);
}

void ref_matmul(ref_backend *b, const rl_matrix *m, uint32_t e, const double *x, uint32_t n, double *y)
{
    product p = {b, m, e, n, x, y};
    ref_parallel(b, (m->rows + REF_TILE - 1) / REF_TILE, multiply_tile, &p);
}

void ref_decode_row(ref_backend *b, const rl_matrix *m, uint32_t e, uint32_t r, double *out)
{
    decode_row(m, e, r, b->decoded, out);
}
