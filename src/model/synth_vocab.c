/* A byte-level BPE vocabulary for random models: 256 bytes, pairs of bytes, pairs of pairs, special tokens.
 *
 * Every merge joins two tokens that exist and makes a text that no other merge makes, so the tables are consistent whatever
 * their size. Common letters come first, which makes English come out at two to three bytes a token. */
#include "base/mem.h"
#include "model/synth_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_NORMAL = 1, KIND_CONTROL = 3, KIND_USER = 4, KIND_UNUSED = 5 };
enum { FULL_SPECIAL = 151643, TEXT_MAX = 24, N_BYTES = 256, N_PAIRS = N_BYTES * N_BYTES };

typedef struct special {
    const char *text;
    int32_t kind;
} special;

/* From id 151643 on in the published vocabulary; what follows them there is filler. */
static const special full_specials[] = {
    {"<|endoftext|>", KIND_CONTROL},
    {"<|im_start|>", KIND_CONTROL},
    {"<|im_end|>", KIND_CONTROL},
    {"<|object_ref_start|>", KIND_CONTROL},
    {"<|object_ref_end|>", KIND_CONTROL},
    {"<|box_start|>", KIND_CONTROL},
    {"<|box_end|>", KIND_CONTROL},
    {"<|quad_start|>", KIND_CONTROL},
    {"<|quad_end|>", KIND_CONTROL},
    {"<|vision_start|>", KIND_CONTROL},
    {"<|vision_end|>", KIND_CONTROL},
    {"<|vision_pad|>", KIND_CONTROL},
    {"<|image_pad|>", KIND_CONTROL},
    {"<|video_pad|>", KIND_CONTROL},
    {"<tool_call>", KIND_USER},
    {"</tool_call>", KIND_USER},
    {"<|fim_prefix|>", KIND_CONTROL},
    {"<|fim_middle|>", KIND_CONTROL},
    {"<|fim_suffix|>", KIND_CONTROL},
    {"<|fim_pad|>", KIND_CONTROL},
    {"<|repo_name|>", KIND_CONTROL},
    {"<|file_sep|>", KIND_CONTROL},
    {"<tool_response>", KIND_USER},
    {"</tool_response>", KIND_USER},
    {"<think>", KIND_USER},
    {"</think>", KIND_USER},
};
enum { N_FULL_SPECIALS = sizeof full_specials / sizeof *full_specials, N_SMALL_SPECIALS = 3 };

typedef struct vocab {
    uint32_t n_vocab, n_normal, n_merges;
    char (*texts)[TEXT_MAX]; /* tokens, then merges */
    rl_slice *slices;        /* of both */
    int32_t *kinds;
    uint8_t order[N_BYTES]; /* bytes, common ones first */
} vocab;

/* Appends the symbol of a byte in the byte-level alphabet: printable bytes stand for themselves, the others for code points
 * from U+0100 on. */
static size_t put_byte(char *out, unsigned byte)
{
    unsigned code = byte, gap = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && !printable) code = 0x100 + gap;
        gap += !printable;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static void order_bytes(vocab *v)
{
    static const char common[] = " etaoinshrdlucmfwypvbgkjqxz,.";
    bool used[N_BYTES] = {false};
    size_t n = 0;
    for (const char *c = common; *c; c++) {
        v->order[n++] = (uint8_t)*c;
        used[(uint8_t)*c] = true;
    }
    for (unsigned b = 0; b < N_BYTES; b++)
        if (!used[b]) v->order[n++] = (uint8_t)b;
}

/* Walks pairs (i, j) of n symbols along the diagonals i + j = 0, 1, 2, ..., common pairs first. */
typedef struct diagonal {
    uint32_t i, sum;
} diagonal;

static void advance(diagonal *d, uint32_t n)
{
    do {
        if (d->i++ == d->sum) *d = (diagonal){0, d->sum + 1};
    } while (d->i >= n || d->sum - d->i >= n);
}

/* Token `id` = token `left` + token `right`. */
static void put_merge(vocab *v, uint32_t merge, uint32_t left, uint32_t right)
{
    rl_slice a = v->slices[left], b = v->slices[right];
    uint32_t id = N_BYTES + merge, line = v->n_vocab + merge;
    memcpy(v->texts[id], a.data, a.size);
    memcpy(v->texts[id] + a.size, b.data, b.size);
    v->slices[id] = (rl_slice){v->texts[id], a.size + b.size};
    v->kinds[id] = KIND_NORMAL;
    memcpy(v->texts[line], a.data, a.size);
    v->texts[line][a.size] = ' ';
    memcpy(v->texts[line] + a.size + 1, b.data, b.size);
    v->slices[line] = (rl_slice){v->texts[line], a.size + 1 + b.size};
}

static void fill_normal(vocab *v)
{
    for (uint32_t b = 0; b < N_BYTES; b++) {
        v->slices[b] = (rl_slice){v->texts[b], put_byte(v->texts[b], b)};
        v->kinds[b] = KIND_NORMAL;
    }
    diagonal bytes = {0, 0}, pairs = {0, 0};
    for (uint32_t merge = 0; merge < v->n_merges; merge++) {
        if (merge < N_PAIRS) {
            put_merge(v, merge, v->order[bytes.i], v->order[bytes.sum - bytes.i]);
            if (merge + 1 < N_PAIRS) advance(&bytes, N_BYTES);
        } else {
            put_merge(v, merge, N_BYTES + pairs.i, N_BYTES + pairs.sum - pairs.i);
            advance(&pairs, N_PAIRS);
        }
    }
}

static void fill_special(vocab *v)
{
    for (uint32_t id = v->n_normal; id < v->n_vocab; id++) {
        uint32_t k = id - v->n_normal;
        bool filler = k >= N_FULL_SPECIALS;
        if (filler)
            snprintf(v->texts[id], TEXT_MAX, "[PAD%u]", id);
        else
            snprintf(v->texts[id], TEXT_MAX, "%s", full_specials[k].text);
        v->slices[id] = (rl_slice){v->texts[id], strlen(v->texts[id])};
        v->kinds[id] = filler ? KIND_UNUSED : full_specials[k].kind;
    }
}

static rl_status write_keys(rl_gguf_writer *w, const vocab *v, rl_error *err)
{
    rl_status s = rl_gguf_write_string(w, "tokenizer.ggml.model", "gpt2", 4, err);
    if (s == RL_OK) s = rl_gguf_write_string(w, "tokenizer.ggml.pre", "qwen2", 5, err);
    if (s == RL_OK) s = rl_gguf_write_strings(w, "tokenizer.ggml.tokens", v->slices, v->n_vocab, err);
    if (s == RL_OK) s = rl_gguf_write_i32s(w, "tokenizer.ggml.token_type", v->kinds, v->n_vocab, err);
    if (s == RL_OK) s = rl_gguf_write_strings(w, "tokenizer.ggml.merges", v->slices + v->n_vocab, v->n_merges, err);
    if (s == RL_OK) s = rl_gguf_write_u32(w, "tokenizer.ggml.eos_token_id", v->n_normal + 2, err);
    if (s == RL_OK) s = rl_gguf_write_u32(w, "tokenizer.ggml.padding_token_id", v->n_normal, err);
    if (s == RL_OK) s = rl_gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false, err);
    return s;
}

rl_status rl_synth_write_vocab(rl_gguf_writer *w, uint32_t n_vocab, rl_error *err)
{
    vocab v = {.n_vocab = n_vocab, .n_normal = n_vocab == RL_SYNTH_FULL_VOCAB ? FULL_SPECIAL : n_vocab - N_SMALL_SPECIALS};
    v.n_merges = v.n_normal - N_BYTES;
    size_t n = (size_t)n_vocab + v.n_merges;
    v.texts = rl_calloc(n, sizeof *v.texts);
    v.slices = rl_calloc(n, sizeof *v.slices);
    v.kinds = rl_calloc(n_vocab, sizeof *v.kinds);
    rl_status s;
    if (v.texts && v.slices && v.kinds) {
        order_bytes(&v);
        fill_normal(&v);
        fill_special(&v);
        s = write_keys(w, &v, err);
    } else {
        s = rl_fail(err, RL_ERR_MEMORY, "no memory for a vocabulary of %u tokens", n_vocab);
    }
    free(v.texts);
    free(v.slices);
    free(v.kinds);
    return s;
}
