/* model/synth_parts: what the files of the random-model writer share. Private to them. */
#ifndef RL_MODEL_SYNTH_PARTS_H
#define RL_MODEL_SYNTH_PARTS_H

#include "gguf/gguf.h"

/* ---- Random numbers (synth_blocks.c) ---------------------------------------------------------------------------------- */

typedef struct rl_synth_rng {
    uint64_t s[4];
} rl_synth_rng;

/* An independent stream for each (seed, tensor, chunk), so that chunks can be made in any order. */
rl_synth_rng rl_synth_rng_seed(uint64_t seed, uint64_t tensor, uint64_t chunk);

/* ---- Contents of tensors (synth_blocks.c) ----------------------------------------------------------------------------- */

typedef enum rl_synth_content {
    RL_SYNTH_MATRIX, /* mean about 0, deviation `sd` */
    RL_SYNTH_NORM,   /* about 1 */
    RL_SYNTH_DECAY,  /* ssm_a: negative */
    RL_SYNTH_DT      /* ssm_dt: before the softplus */
} rl_synth_content;

typedef struct rl_synth_filler {
    rl_type type;
    rl_synth_content content;
    float sd;
    float scale; /* of a block, so that its weights have deviation sd */
} rl_synth_filler;

/* True for types a matrix can be filled with. */
bool rl_synth_can_fill(rl_type type);
/* Contents other than RL_SYNTH_MATRIX are for F32 only. */
void rl_synth_filler_init(rl_synth_filler *f, rl_type type, rl_synth_content content, float sd);
void rl_synth_fill(const rl_synth_filler *f, rl_synth_rng *rng, uint8_t *dst, size_t n_blocks);

/* ---- Vocabulary (synth_vocab.c) --------------------------------------------------------------------------------------- */

/* Writes the tokenizer.* keys of a byte-level BPE vocabulary with n_vocab entries. The full-size vocabulary has the special
 * tokens of the published one at the same ids. */
rl_status rl_synth_write_vocab(rl_gguf_writer *w, uint32_t n_vocab, rl_error *err);

#define RL_SYNTH_FULL_VOCAB 151936u

#endif
