/* backend/cpu/kern: the steps of a matrix product, and the table of their implementations for one instruction set.
 *
 * All products go through one shape, the tile: 16 rows by 256 columns of weights. A tile is built from 16 rows of blocks once
 * and multiplied with every activation row; what differs between types is building alone, and what differs between instruction
 * sets is speed alone. The arithmetic is defined here, and every implementation gives the same bits:
 *
 *   quantise  per 256 columns (per 32 where cols is no multiple of 256): x is the element of largest magnitude, the first of
 *             several; inverse = -127 / x; code = round(inverse * value), halves to even, at most 127; d = 1 / inverse.
 *             Blocks too small for the inverse to be finite become zero; a block with NaN or infinity has d = NaN, codes 0.
 *   fast      super-block types: I = sum s c a and M = sum m B over the 256 columns, exact 32-bit integers; then
 *             y = fma(I, d_w * d_a, y) and, with offsets, y = fma(M, dm_w * d_a, y), from the first block to the last.
 *             32-weight types: the same per 32 columns with I = sum c a.
 *   exact     per 256 columns four partial sums p[c mod 4] = fma(w, x, p[c mod 4]) in the order of columns from 0; then
 *             y = y + ((p0 + p1) + (p2 + p3)).
 *   other     types (plain ones and those without an integer form here) are multiplied as in exact, in both precisions. */
#ifndef RL_CPU_KERN_H
#define RL_CPU_KERN_H

#include "backend/cpu/matmul.h"
#include "quant/quant.h"

#define RL_TILE_COLS 256
#define RL_TILE_ROWS RL_MM_ROWS

/* Activation rows multiplied with a tile before the next tile is built. */
#define RL_TILE_ACTS 512

typedef enum rl_kclass {
    RL_KCLASS_FLOAT, /* multiplied as floats */
    RL_KCLASS_SUPER, /* 256 weights, a float scale, integer scales per group of 16 or 32 */
    RL_KCLASS_32     /* 32 weights and one float scale */
} rl_kclass;

/* Codes that already contain their integer scale, so that a block has one sum. HALF: the byte is (s c + 135) / 2, for types
 * whose s c is odd and at most 135; then s c = 2 byte - 135. WHOLE: the byte is s c. */
typedef enum rl_fold { RL_FOLD_NONE, RL_FOLD_HALF, RL_FOLD_WHOLE } rl_fold;

/* How the tile of a type looks. `bias` is added to the codes so that they are unsigned bytes; the kernels take it off again
 * through sums of the activations. It depends on the instruction set. */
typedef struct rl_ktype {
    rl_kclass kclass;
    uint8_t group; /* columns that share an integer scale */
    bool offsets;
    uint8_t bias;
    uint8_t kind; /* private to the instruction set */
    rl_fold fold;
} rl_ktype;

/* q holds, per four columns, four bytes of each of the 16 rows: a vector of 32-bit lanes has one row per lane. s and m are
 * [group][row]. sx and mx are forms of s and m that an instruction set prefers; the portable code does not use them. */
typedef struct rl_tile {
    _Alignas(64) uint8_t q[RL_TILE_COLS / 4][RL_TILE_ROWS][4];
    _Alignas(64) int32_t sx[16][RL_TILE_ROWS];
    _Alignas(64) int16_t mx[8][RL_TILE_ROWS][2];
    _Alignas(64) float d[8][RL_TILE_ROWS]; /* super-blocks use d[0], 32-weight types one per block */
    _Alignas(64) float dm[RL_TILE_ROWS];   /* factor of the offsets */
    _Alignas(64) int8_t s[16][RL_TILE_ROWS];
    _Alignas(64) uint8_t m[16][RL_TILE_ROWS];
} rl_tile;

/* 256 columns of a quantised activation row, or the last cols % 256. d is the scale of 32 columns each (the same eight times
 * where 256 columns share one). The rest are sums of codes that take biases and offsets into account: per 16, 32 and 256
 * columns, and -128 times those. */
typedef struct rl_act_block {
    int8_t code[256];
    int32_t neg16[16];
    int32_t neg32[8];
    float d[8];
    int16_t sum16[16];
    int16_t sum32[8];
    int32_t sum256;
    int32_t reserved[3]; /* whole cache lines */
} rl_act_block;
_Static_assert(sizeof(rl_act_block) == 448, "activation blocks are whole cache lines");

static inline uint32_t rl_act_blocks(uint32_t cols)
{
    return (cols + 255) / 256;
}

/* Columns that share an activation scale. */
static inline uint32_t rl_act_group(uint32_t cols)
{
    return cols % 256 == 0 ? 256 : 32;
}

/* Kernels of one type. NULL where there are none; then tiles are built by rl_tile_build_portable and `finish`, and the type is
 * never packed (kern_pack.h). Rows and blocks come as rows[r], or packed as planes and scales of the row group. */
typedef struct rl_type_kernels {
    /* Integer tile of n_cols columns. Entries beyond n_cols are left alone. */
    void (*tile)(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, rl_tile *t);
    void (*build)(const uint8_t *const *rows, uint32_t n_cols, rl_tile *t);
    /* Product of all n_cols columns of 16 rows with one activation row, in fast precision. */
    void (*row)(const uint8_t *planes, const uint8_t *scales, uint32_t n_cols, const rl_act_block *act, float *y);
    void (*file_row)(const uint8_t *const *rows, uint32_t n_cols, const rl_act_block *act, float *y);
    /* Plain types, packed: n_cols columns as a float tile, and the product with one activation row (exact). */
    void (*widen)(const uint8_t *planes, uint32_t n_cols, float *w);
    void (*float_row)(const uint8_t *planes, uint32_t n_cols, const float *x, float *y);
} rl_type_kernels;

typedef struct rl_kern {
    rl_isa isa;
    const rl_ktype *types;             /* [RL_TYPE_END] */
    const rl_type_kernels *kernels[3]; /* [RL_TYPE_END] each, or NULL */
    void (*init)(void);                /* tables, any number of times; may be NULL */

    /* One activation row. cols is a multiple of 32. */
    void (*quantize)(const float *x, uint32_t cols, rl_act_block *row);

    /* Applies the bias to a portably built tile and fills sx and mx. */
    void (*finish)(const rl_ktype *k, uint32_t n_cols, rl_tile *t);

    /* Adds the products of n_tiles tiles (row groups) with activation rows: acc[g * stride + i * 16 + row] for tile g and the
     * rows act[i], i < n. `block` is the number of the tiles along the columns. */
    void (*fast)(const rl_ktype *k, const rl_tile *t, uint32_t n_tiles, const rl_act_block *const *act, uint32_t n,
                 uint32_t block, uint32_t n_cols, float *acc, size_t stride);

    /* Float tile w[column][row] from an integer tile, or from 16 rows of floats [row][RL_TILE_COLS]. */
    void (*expand)(const rl_ktype *k, const rl_tile *t, uint32_t n_cols, float *w);
    void (*transpose)(const float *rows, uint32_t n_cols, float *w);

    /* Adds the product of a float tile with x[i][0 .. n_cols): acc[i][row]. */
    void (*exact)(const float *w, const float *const *x, uint32_t n, uint32_t n_cols, float *acc);
    /* expand and exact at once for a single activation row; may be NULL. */
    void (*exact_row)(const rl_ktype *k, const rl_tile *t, const float *x, uint32_t n_cols, float *acc);
} rl_kern;

extern const rl_kern rl_kern_scalar;
#if defined(__x86_64__)
extern const rl_kern rl_kern_avx2;
extern const rl_kern rl_kern_avx512;
#endif

/* The kernels of a type; all NULL when it has none. */
const rl_type_kernels *rl_kernels_of(const rl_kern *kern, rl_type type);

/* Types with bias 128 for signed codes and 0 for unsigned ones, none folded. */
extern const rl_ktype rl_ktypes_wide[RL_TYPE_END];

/* The table for an instruction set, the portable one where it has none of its own. */
const rl_kern *rl_mm_kern(rl_isa isa);

/* Codes without bias into q (as int8), s, m, d and dm. */
void rl_tile_build_portable(rl_type type, const rl_ktype *k, const uint8_t *const *rows, uint32_t n_cols, rl_tile *t);

#endif
