/* tests/support/tiny_model: small random Qwen3-Next models, written as GGUF files.
 *
 * The usual way is one call: tiny_open(&params) gives a bound model, tiny_write(&params, path) a file. Tests of hostile input
 * build the file in memory (tiny_build), break it, and write it (tiny_save). The same seed gives the same weights in every
 * layout (legacy, fused), so layouts can be compared bit by bit. Failures of the generator itself end the program with a
 * message. */
#ifndef TESTS_SUPPORT_TINY_MODEL_H
#define TESTS_SUPPORT_TINY_MODEL_H

#include "model/model.h"

typedef struct tiny_params {
    const char *layers;       /* one letter per trunk layer: R DeltaNet, A attention */
    uint32_t n_embd, n_vocab; /* n_vocab at least TINY_MIN_VOCAB */
    uint32_t n_head, n_head_kv, head_dim, n_rot;
    uint32_t dn_key_heads, dn_value_heads, dn_head_dim, dn_conv;
    uint32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    /* Types of the matrices: embedding, head, projections and shared expert, experts, router; MTP block like the trunk. */
    rl_type embed, head, dense, gate_exps, up_exps, down_exps, router;
    rl_type vectors;          /* F32, F16 or BF16 */
    bool mtp, mtp_own_tables; /* own embedding and head in the MTP block */
    bool tied_head;
    bool legacy_ssm_in, fused_gate_up, fused_attention; /* older and fused layouts of the same weights */
    uint64_t seed;
} tiny_params;

#define TINY_MIN_VOCAB 300

/* "RRRA", hidden size 64, 8 experts of which 3 are used, everything F32, no MTP: a few hundred kilobytes. */
tiny_params tiny_defaults(void);
/* All matrices but the router in `type`; sizes grow to multiples of 256 where its blocks need that. */
void tiny_set_type(tiny_params *p, rl_type type);

/* Writes the file. The vocabulary is byte-level BPE with the qwen2 pre-tokenizer, some merges, unused tokens and, as the last
 * three ids, <|endoftext|>, <|im_start|> and <|im_end|>; the chat template is ChatML. */
void tiny_write(const tiny_params *p, const char *path);
/* Writes a temporary file, opens it and removes its name. */
rl_model *tiny_open(const tiny_params *p);
/* A fresh name in the temporary directory; the caller unlinks. */
void tiny_temp_path(char *out, size_t cap);

/* ---- Files in memory, to be broken --------------------------------------------------------------------------------------- */

typedef struct tiny_key {
    char name[96];
    rl_gguf_kind kind; /* U32, F32, BOOL, STRING, or ARRAY (of strings, else of i32) */
    uint32_t u;
    float f;
    char *text;     /* STRING */
    char **strings; /* ARRAY: strings, or */
    int32_t *ints;  /* integers */
    size_t n;
} tiny_key;

typedef struct tiny_tensor {
    char name[96];
    rl_type type;
    uint64_t ne[4];
    float center, spread; /* of plain types: uniform in center +- spread */
    uint8_t *data;        /* NULL: random, filled when the file is saved */
} tiny_tensor;

typedef struct tiny_file {
    tiny_key *keys;
    tiny_tensor *tensors;
    size_t n_keys, n_tensors;
    uint64_t seed;
} tiny_file;

tiny_file *tiny_build(const tiny_params *p);
void tiny_free(tiny_file *f);
void tiny_save(const tiny_file *f, const char *path);

/* These end the program when the name is absent: a test that breaks nothing would prove nothing. */
tiny_key *tiny_key_at(tiny_file *f, const char *name);
tiny_tensor *tiny_tensor_at(tiny_file *f, const char *name);
void tiny_remove_key(tiny_file *f, const char *name);
void tiny_remove_tensor(tiny_file *f, const char *name);
tiny_tensor *tiny_add_tensor(tiny_file *f, const char *name, rl_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2);
void tiny_add_u32(tiny_file *f, const char *name, uint32_t v);
void tiny_add_f32(tiny_file *f, const char *name, float v);
void tiny_add_string(tiny_file *f, const char *name, const char *v);
void tiny_add_ints(tiny_file *f, const char *name, const int32_t *v, size_t n);

#endif
