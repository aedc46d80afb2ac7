/* backend/cpu/kern_scalar: the kernels in portable C. They define the arithmetic for the other instruction sets and run on any
 * processor; fused multiply-adds come from the C library where the processor has none. */
#include "backend/cpu/kern.h"

#include <math.h>
#include <string.h>

void rl_tile_build_portable(rl_type type, const rl_ktype *k, const uint8_t *const *rows, uint32_t n_cols, rl_tile *t)
{
    const rl_quant_traits *traits = rl_quant_get(type);
    const rl_type_info *info = rl_type_get(type);
    const uint32_t n = info->block_weights;
    rl_block_codes codes = {0};
    for (uint32_t r = 0; r < RL_TILE_ROWS; r++) {
        for (uint32_t b = 0; b * n < n_cols; b++) {
            traits->unpack(rows[r] + (size_t)b * info->block_bytes, &codes);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t c = b * n + i;
                t->q[c / 4][r][c % 4] = (uint8_t)codes.c[i];
            }
            t->d[b][r] = codes.scale;
        }
        if (k->kclass != RL_KCLASS_SUPER) continue;
        t->dm[r] = k->offsets ? codes.offset_scale : 0;
        for (uint32_t g = 0; g < RL_TILE_COLS / k->group; g++) {
            t->s[g][r] = (int8_t)codes.s[g * (k->group / 16)];
            t->m[g][r] = k->offsets ? (uint8_t)codes.m[g * (k->group / 16)] : 0;
        }
    }
}

static void finish(const rl_ktype *k, uint32_t n_cols, rl_tile *t)
{
    uint8_t *q = &t->q[0][0][0];
    for (uint32_t i = 0; i < n_cols * RL_TILE_ROWS; i++)
        q[i] = (uint8_t)(q[i] + k->bias);
}

static void quantize_group(const float *x, uint32_t n, int8_t *codes, float *d)
{
    float largest = 0, magnitude = 0, check = 0;
    for (uint32_t i = 0; i < n; i++) {
        float m = fabsf(x[i]);
        check += x[i] * 0;
        if (m > magnitude) {
            magnitude = m;
            largest = x[i];
        }
    }
    float inverse = -127.0f / largest;
    bool valid = check == 0;
    if (!valid || !isfinite(inverse)) {
        memset(codes, 0, n);
        *d = valid ? 0 : NAN;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float v = rintf(inverse * x[i]);
        codes[i] = (int8_t)(v < 127 ? v : 127);
    }
    *d = 1.0f / inverse;
}

static void sum_block(rl_act_block *b, uint32_t n)
{
    b->sum256 = 0;
    for (uint32_t g = 0; g < n / 16; g++) {
        int sum = 0;
        for (uint32_t i = 0; i < 16; i++)
            sum += b->code[16 * g + i];
        b->sum16[g] = (int16_t)sum;
        b->neg16[g] = -128 * sum;
        b->sum256 += sum;
    }
    for (uint32_t g = 0; g < n / 32; g++) {
        b->sum32[g] = (int16_t)(b->sum16[2 * g] + b->sum16[2 * g + 1]);
        b->neg32[g] = -128 * b->sum32[g];
    }
}

static void quantize(const float *x, uint32_t cols, rl_act_block *row)
{
    const uint32_t group = rl_act_group(cols);
    for (uint32_t c = 0; c < cols; c += group) {
        rl_act_block *b = row + c / 256;
        float scale;
        quantize_group(x + c, group, b->code + c % 256, &scale);
        for (uint32_t g = 0; g < group / 32; g++)
            b->d[c % 256 / 32 + g] = scale;
    }
    for (uint32_t c = 0; c < cols; c += 256)
        sum_block(row + c / 256, cols - c < 256 ? cols - c : 256);
}

/* Sums of code times activation over `n` columns from column c, for the 16 rows. */
static void dot_columns(const rl_tile *t, const int8_t *a, uint32_t c, uint32_t n, int bias, int32_t out[RL_TILE_ROWS])
{
    memset(out, 0, RL_TILE_ROWS * sizeof *out);
    for (uint32_t i = c; i < c + n; i += 4)
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
            for (uint32_t j = 0; j < 4; j++)
                out[r] += (t->q[i / 4][r][j] - bias) * a[i + j];
}

static void fast_super(const rl_ktype *k, const rl_tile *t, const rl_act_block *act, float *acc)
{
    const uint32_t n_groups = RL_TILE_COLS / k->group;
    const int16_t *sum = k->group == 16 ? act->sum16 : act->sum32;
    int32_t total[RL_TILE_ROWS] = {0}, offsets[RL_TILE_ROWS] = {0}, dot[RL_TILE_ROWS];
    for (uint32_t g = 0; g < n_groups; g++) {
        dot_columns(t, act->code, g * k->group, k->group, k->bias, dot);
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++) {
            total[r] += t->s[g][r] * dot[r];
            if (k->offsets) offsets[r] += t->m[g][r] * sum[g];
        }
    }
    for (uint32_t r = 0; r < RL_TILE_ROWS; r++) {
        acc[r] = fmaf((float)total[r], t->d[0][r] * act->d[0], acc[r]);
        if (k->offsets) acc[r] = fmaf((float)offsets[r], t->dm[r] * act->d[0], acc[r]);
    }
}

static void fast_32(const rl_ktype *k, const rl_tile *t, const rl_act_block *act, uint32_t n_cols, float *acc)
{
    int32_t dot[RL_TILE_ROWS];
    for (uint32_t g = 0; g < n_cols / 32; g++) {
        dot_columns(t, act->code, 32 * g, 32, k->bias, dot);
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
            acc[r] = fmaf((float)dot[r], t->d[g][r] * act->d[g], acc[r]);
    }
}

static void fast(const rl_ktype *k, const rl_tile *t, uint32_t n_tiles, const rl_act_block *const *act, uint32_t n,
                 uint32_t block, uint32_t n_cols, float *acc, size_t stride)
{
    for (uint32_t g = 0; g < n_tiles; g++)
        for (uint32_t i = 0; i < n; i++) {
            float *y = acc + g * stride + (size_t)i * RL_TILE_ROWS;
            if (k->kclass == RL_KCLASS_SUPER)
                fast_super(k, t + g, act[i] + block, y);
            else
                fast_32(k, t + g, act[i] + block, n_cols, y);
        }
}

static void expand(const rl_ktype *k, const rl_tile *t, uint32_t n_cols, float *w)
{
    for (uint32_t c = 0; c < n_cols; c++)
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++) {
            const float code = (float)(t->q[c / 4][r][c % 4] - k->bias);
            const uint32_t g = c / k->group;
            if (k->kclass == RL_KCLASS_32)
                w[c * RL_TILE_ROWS + r] = code * t->d[g][r];
            else if (k->offsets)
                w[c * RL_TILE_ROWS + r] = code * (t->s[g][r] * t->d[0][r]) + t->m[g][r] * t->dm[r];
            else
                w[c * RL_TILE_ROWS + r] = code * (t->s[g][r] * t->d[0][r]);
        }
}

static void transpose(const float *rows, uint32_t n_cols, float *w)
{
    for (uint32_t c = 0; c < n_cols; c++)
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
            w[c * RL_TILE_ROWS + r] = rows[r * RL_TILE_COLS + c];
}

static void exact(const float *w, const float *const *x, uint32_t n, uint32_t n_cols, float *acc)
{
    for (uint32_t i = 0; i < n; i++, acc += RL_TILE_ROWS) {
        float p[4][RL_TILE_ROWS] = {{0}};
        for (uint32_t c = 0; c < n_cols; c++)
            for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
                p[c % 4][r] = fmaf(w[c * RL_TILE_ROWS + r], x[i][c], p[c % 4][r]);
        for (uint32_t r = 0; r < RL_TILE_ROWS; r++)
            acc[r] += (p[0][r] + p[1][r]) + (p[2][r] + p[3][r]);
    }
}

const rl_kern rl_kern_scalar = {
    .isa = RL_ISA_SCALAR,
    .types = rl_ktypes_wide,
    .quantize = quantize,
    .finish = finish,
    .fast = fast,
    .expand = expand,
    .transpose = transpose,
    .exact = exact,
};
