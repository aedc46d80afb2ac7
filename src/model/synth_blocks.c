/* Random contents of tensors: valid blocks of every weight type with finite scales and a stated deviation.
 *
 * Codes are random bits (every pattern of them is decodable); only the scale fields are placed. The scale that gives a wanted
 * deviation is measured by decoding blocks of scale 1, so that this file needs no constant per format besides where its scale
 * is stored. */
#include "model/synth_parts.h"
#include "quant/quant.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- Random numbers: xoshiro256**, seeded by splitmix64 --------------------------------------------------------------- */

static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

rl_synth_rng rl_synth_rng_seed(uint64_t seed, uint64_t tensor, uint64_t chunk)
{
    uint64_t state = seed;
    state = mix(&state) ^ tensor;
    state = mix(&state) ^ chunk;
    rl_synth_rng rng;
    for (int i = 0; i < 4; i++)
        rng.s[i] = mix(&state);
    return rng;
}

static inline uint64_t rotate(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

static inline uint64_t next(rl_synth_rng *rng)
{
    uint64_t *s = rng->s, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static float uniform(rl_synth_rng *rng) /* 0 <= x < 1 */
{
    return (float)(next(rng) >> 40) * 0x1p-24f;
}

/* Sum of four uniform numbers: close enough to a normal one, bounded at 3.5 deviations, and one draw. */
static float bell(rl_synth_rng *rng)
{
    uint64_t x = next(rng);
    uint32_t sum = (uint32_t)(x & 0xffff) + (uint32_t)(x >> 16 & 0xffff) + (uint32_t)(x >> 32 & 0xffff) + (uint32_t)(x >> 48);
    return ((float)sum * 0x1p-16f - 2.0f) * 1.7320508f;
}

static void random_bytes(rl_synth_rng *rng, uint8_t *dst, size_t n)
{
    for (; n >= 8; n -= 8, dst += 8) {
        uint64_t x = next(rng);
        memcpy(dst, &x, 8);
    }
    if (n) {
        uint64_t x = next(rng);
        memcpy(dst, &x, n);
    }
}

/* ---- Where the scales are ---------------------------------------------------------------------------------------------- */

typedef enum scale_kind {
    SCALE_UNKNOWN,
    SCALE_PLAIN, /* the type has no blocks */
    SCALE_F16,   /* binary16 at `at`; with `ratio`, a second one behind it at `second`, that many times the first */
    SCALE_IQ1_M, /* binary16 in the top nibbles of four words at `at` */
    SCALE_MXFP4, /* a power of two */
    SCALE_NVFP4  /* four 8-bit floats */
} scale_kind;

typedef struct scale_place {
    scale_kind kind;
    uint8_t at, second;
    float ratio; /* centres the weights: the mean of the codes, with the sign the format gives its offset */
} scale_place;

static const scale_place places[RL_TYPE_END] = {
    [RL_F32] = {SCALE_PLAIN, 0, 0, 0},     [RL_F16] = {SCALE_PLAIN, 0, 0, 0},     [RL_BF16] = {SCALE_PLAIN, 0, 0, 0},
    [RL_Q4_0] = {SCALE_F16, 0, 0, 0},      [RL_Q4_1] = {SCALE_F16, 0, 2, -7.5f},  [RL_Q5_0] = {SCALE_F16, 0, 0, 0},
    [RL_Q5_1] = {SCALE_F16, 0, 2, -15.5f}, [RL_Q8_0] = {SCALE_F16, 0, 0, 0},      [RL_Q1_0] = {SCALE_F16, 0, 0, 0},
    [RL_Q2_0] = {SCALE_F16, 0, 0, 0},      [RL_Q2_K] = {SCALE_F16, 80, 82, 1.5f}, [RL_Q3_K] = {SCALE_F16, 108, 0, 0},
    [RL_Q4_K] = {SCALE_F16, 0, 2, 7.5f},   [RL_Q5_K] = {SCALE_F16, 0, 2, 15.5f},  [RL_Q6_K] = {SCALE_F16, 208, 0, 0},
    [RL_TQ1_0] = {SCALE_F16, 52, 0, 0},    [RL_TQ2_0] = {SCALE_F16, 64, 0, 0},    [RL_IQ1_S] = {SCALE_F16, 0, 0, 0},
    [RL_IQ1_M] = {SCALE_IQ1_M, 48, 0, 0},  [RL_IQ2_XXS] = {SCALE_F16, 0, 0, 0},   [RL_IQ2_XS] = {SCALE_F16, 0, 0, 0},
    [RL_IQ2_S] = {SCALE_F16, 0, 0, 0},     [RL_IQ3_XXS] = {SCALE_F16, 0, 0, 0},   [RL_IQ3_S] = {SCALE_F16, 0, 0, 0},
    [RL_IQ4_NL] = {SCALE_F16, 0, 0, 0},    [RL_IQ4_XS] = {SCALE_F16, 0, 0, 0},    [RL_MXFP4] = {SCALE_MXFP4, 0, 0, 0},
    [RL_NVFP4] = {SCALE_NVFP4, 0, 0, 0},
};

bool rl_synth_can_fill(rl_type type)
{
    return (unsigned)type < RL_TYPE_END && places[type].kind != SCALE_UNKNOWN;
}

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* The unsigned 4.3-bit float (see RL_NVFP4) whose halved value is nearest: 120 is the largest exponent and mantissa below the
 * reserved 127. */
static uint8_t nearest_e4m3(float d)
{
    uint8_t best = 1;
    float least = INFINITY;
    for (int code = 1; code <= 126; code++) {
        int exponent = code >> 3, mantissa = code & 7;
        float value = exponent ? ldexpf((float)(8 + mantissa), exponent - 11) : ldexpf((float)mantissa, -10);
        if (fabsf(value - d) < least) {
            least = fabsf(value - d);
            best = (uint8_t)code;
        }
    }
    return best;
}

/* `jitter` in [0, 1) varies the scale by a quarter up or down, so that blocks differ as in trained weights. */
static void put_scale(rl_type type, uint8_t *block, float d, float jitter)
{
    const scale_place *place = &places[type];
    float scale = d * (0.75f + 0.5f * jitter);
    uint16_t half = rl_f32_to_f16(scale);
    switch (place->kind) {
    case SCALE_F16:
        put_u16(block + place->at, half);
        if (place->ratio != 0) put_u16(block + place->second, rl_f32_to_f16(place->ratio * scale));
        break;
    case SCALE_IQ1_M:
        for (int i = 0; i < 4; i++) {
            uint8_t *high = block + place->at + 2 * i + 1;
            *high = (uint8_t)((*high & 0x0f) | ((half >> (4 * i)) & 0x0f) << 4);
        }
        break;
    case SCALE_MXFP4: {
        int exponent = (int)lrintf(log2f(d)) + 128;
        block[0] = (uint8_t)(exponent < 1 ? 1 : exponent > 252 ? 252 : exponent);
        break;
    }
    case SCALE_NVFP4:
    case SCALE_PLAIN:
    case SCALE_UNKNOWN:
        break;
    }
}

/* Codes that no quantiser writes though they decode, and the one that would take the mean of Q2_0 from 0. */
static void tidy_codes(rl_type type, uint8_t *block)
{
    if (type == RL_Q8_0) {
        for (int i = 2; i < 34; i++)
            if (block[i] == 0x80) block[i] = 0x81; /* -128 */
    } else if (type == RL_TQ2_0 || type == RL_Q2_0) {
        int first = type == RL_Q2_0 ? 2 : 0, end = type == RL_Q2_0 ? 18 : 64;
        for (int i = first; i < end; i++)
            block[i] &= (uint8_t) ~((block[i] & 0x55) << 1); /* code 3 becomes 1 */
    }
}

static void fill_blocks(rl_type type, float scale, rl_synth_rng *rng, uint8_t *dst, size_t n_blocks)
{
    size_t bytes = rl_type_get((uint32_t)type)->block_bytes;
    uint8_t e4m3 = type == RL_NVFP4 ? nearest_e4m3(scale) : 0;
    random_bytes(rng, dst, n_blocks * bytes);
    for (size_t i = 0; i < n_blocks; i++, dst += bytes) {
        put_scale(type, dst, scale, uniform(rng));
        if (e4m3) memset(dst, e4m3, 4);
        tidy_codes(type, dst);
    }
}

/* Root mean square of the weights of blocks with scale 1. */
static float unit_deviation(rl_type type)
{
    enum { BLOCKS = 64, MAX_BYTES = 256, MAX_WEIGHTS = 256 };
    uint8_t blocks[BLOCKS * MAX_BYTES];
    float weights[BLOCKS * MAX_WEIGHTS];
    const rl_type_info *info = rl_type_get((uint32_t)type);
    assert(info->block_bytes <= MAX_BYTES && info->block_weights <= MAX_WEIGHTS);
    rl_synth_rng rng = rl_synth_rng_seed(1, (uint64_t)type, 0);
    fill_blocks(type, 1, &rng, blocks, BLOCKS);
    rl_quant_get(type)->decode(blocks, weights, BLOCKS);
    double sum = 0;
    size_t n = (size_t)BLOCKS * info->block_weights;
    for (size_t i = 0; i < n; i++)
        sum += (double)weights[i] * weights[i];
    return (float)sqrt(sum / (double)n);
}

void rl_synth_filler_init(rl_synth_filler *f, rl_type type, rl_synth_content content, float sd)
{
    assert(rl_synth_can_fill(type) && (content == RL_SYNTH_MATRIX || type == RL_F32));
    *f = (rl_synth_filler){type, content, sd, places[type].kind == SCALE_PLAIN ? 1 : sd / unit_deviation(type)};
}

/* ---- Plain types --------------------------------------------------------------------------------------------------------- */

/* Everything but ssm_a comes from a bfloat16 checkpoint in a real file, so its float32 copies are bfloat16 numbers; ssm_a was
 * computed by the converter. */
static float draw(const rl_synth_filler *f, rl_synth_rng *rng)
{
    float v = 0;
    switch (f->content) {
    case RL_SYNTH_MATRIX:
        v = f->sd * bell(rng);
        break;
    case RL_SYNTH_NORM:
        v = 1 + 0.1f * bell(rng);
        break;
    case RL_SYNTH_DT:
        v = -4 + 3 * uniform(rng);
        break;
    case RL_SYNTH_DECAY:
        return -(0.5f + 8 * uniform(rng));
    }
    return rl_bf16_to_f32(rl_f32_to_bf16(v));
}

void rl_synth_fill(const rl_synth_filler *f, rl_synth_rng *rng, uint8_t *dst, size_t n_blocks)
{
    if (places[f->type].kind != SCALE_PLAIN) {
        fill_blocks(f->type, f->scale, rng, dst, n_blocks);
        return;
    }
    for (size_t i = 0; i < n_blocks; i++) {
        float v = draw(f, rng);
        if (f->type == RL_F32)
            memcpy(dst + 4 * i, &v, 4);
        else
            put_u16(dst + 2 * i, f->type == RL_F16 ? rl_f32_to_f16(v) : rl_f32_to_bf16(v));
    }
}
