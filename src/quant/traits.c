/* quant/traits: the table of types. Decoding and both dot products are one function each over the integer view; what a type is
 * made of is said once, in its unpacker. */
#include "quant/layout.h"

#include <string.h>

typedef void (*unpack_fn)(const void *block, rl_block_codes *out);

static inline void decode_blocks(unpack_fn unpack, int weights, size_t bytes, const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *block = src;
    rl_block_codes codes;
    for (size_t n = 0; n < n_blocks; n++, block += bytes) {
        unpack(block, &codes);
        for (int t = 0; t < weights / 16; t++, dst += 16) {
            const int8_t *c = codes.c + 16 * t;
            float scale = codes.scale * (float)codes.s[t];
            for (int k = 0; k < 16; k++)
                dst[k] = scale * (float)c[k];
            /* A type without offsets must not add even zero: -0 + 0 is +0. */
            if (codes.has_offset) {
                float offset = codes.offset_scale * (float)codes.m[t];
                for (int k = 0; k < 16; k++)
                    dst[k] += offset;
            }
        }
    }
}

/* Activation blocks as the dot products see them. */
typedef struct act_layout {
    int weights, bytes, codes; /* codes: offset of the first */
} act_layout;

static act_layout act_layout_of(rl_act_kind kind)
{
    if (kind == RL_ACT_Q8_K) return (act_layout){256, RL_Q8_K_BYTES, 4};
    if (kind == RL_ACT_Q8_1) return (act_layout){32, RL_Q8_1_BYTES, 4};
    return (act_layout){32, RL_Q8_0_BYTES, 2};
}

static void ints_of_codes(const rl_block_codes *codes, int weights, rl_act_kind kind, const uint8_t *act, rl_dot_ints *out)
{
    act_layout layout = act_layout_of(kind);
    memset(out, 0, sizeof *out);
    for (int t = 0; t < weights / 16; t++) {
        int which = 16 * t / layout.weights;
        const uint8_t *a = act + which * layout.bytes + layout.codes + 16 * t % layout.weights;
        int32_t sum = 0;
        for (int k = 0; k < 16; k++)
            sum += codes->c[16 * t + k] * (int8_t)a[k];
        out->i[which] += (int64_t)codes->s[t] * sum;
        if (codes->has_offset && kind == RL_ACT_Q8_K) out->m += (int64_t)codes->m[t] * (int16_t)le16(act + 260 + 2 * t);
    }
}

static inline void dot_ints_block(unpack_fn unpack, int weights, rl_act_kind kind, const void *block, const void *act,
                                  rl_dot_ints *out)
{
    rl_block_codes codes;
    unpack(block, &codes);
    ints_of_codes(&codes, weights, kind, act, out);
}

static double dot_block(unpack_fn unpack, int weights, rl_act_kind kind, const void *block, const void *act)
{
    act_layout layout = act_layout_of(kind);
    rl_block_codes codes;
    rl_dot_ints ints;
    unpack(block, &codes);
    ints_of_codes(&codes, weights, kind, act, &ints);

    double sum = 0.0;
    for (int n = 0; n < (weights + layout.weights - 1) / layout.weights; n++) {
        const uint8_t *a = (const uint8_t *)act + n * layout.bytes;
        double a_scale = kind == RL_ACT_Q8_K ? rl_bits_to_f32(le32(a)) : half_at(a);
        sum += a_scale * codes.scale * (double)ints.i[n];
        if (kind == RL_ACT_Q8_K && codes.has_offset) sum += a_scale * codes.offset_scale * (double)ints.m;
        /* Q8_1 carries its sum of values, rounded to f16: the format defines the product with that. */
        if (kind == RL_ACT_Q8_1) sum += (double)codes.offset_scale * half_at(a + 2);
    }
    return sum;
}

static void decode_f32(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = rl_bits_to_f32(le32(p + 4 * i));
}

static void decode_f16(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = half_at(p + 2 * i);
}

static void decode_bf16(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = rl_bf16_to_f32((uint16_t)le16(p + 2 * i));
}

#define BLOCK_FUNCTIONS(id, name, weights, bytes, act_kind)                                                                    \
    static void decode_##name(const void *src, float *dst, size_t n_blocks)                                                    \
    {                                                                                                                          \
        decode_blocks(rl_unpack_##name, weights, bytes, src, dst, n_blocks);                                                   \
    }                                                                                                                          \
    static void dot_ints_##name(const void *block, const void *act, rl_dot_ints *out)                                          \
    {                                                                                                                          \
        dot_ints_block(rl_unpack_##name, weights, RL_ACT_##act_kind, block, act, out);                                         \
    }                                                                                                                          \
    static double dot_##name(const void *block, const void *act)                                                               \
    {                                                                                                                          \
        return dot_block(rl_unpack_##name, weights, RL_ACT_##act_kind, block, act);                                            \
    }
RL_BLOCK_TYPES(BLOCK_FUNCTIONS)

#define BLOCK_ENTRY(id, name, weights, bytes, act_kind)                                                                        \
    [RL_##id] = {RL_##id, decode_##name, RL_ACT_##act_kind, dot_ints_##name, dot_##name, rl_unpack_##name},

static const rl_quant_traits traits[RL_TYPE_END] = {[RL_F32] = {RL_F32, decode_f32, RL_ACT_NONE, NULL, NULL, NULL},
                                                    [RL_F16] = {RL_F16, decode_f16, RL_ACT_NONE, NULL, NULL, NULL},
                                                    [RL_BF16] = {RL_BF16, decode_bf16, RL_ACT_NONE, NULL, NULL, NULL},
                                                    RL_BLOCK_TYPES(BLOCK_ENTRY)};

const rl_quant_traits *rl_quant_get(rl_type type)
{
    if ((unsigned)type >= RL_TYPE_END || traits[type].decode == NULL) return NULL;
    return &traits[type];
}
