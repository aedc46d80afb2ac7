/* text/vocab: the tables of a tokenizer, as the folder's own files see them. */
#ifndef RL_TEXT_VOCAB_H
#define RL_TEXT_VOCAB_H

#include "text/bpe.h"
#include "text/text.h"

/* Longest text of a control or user-defined token. Real ones stay below 30 bytes; the bound keeps matching cheap. */
#define RL_SPECIAL_MAX 512

struct rl_tokenizer {
    uint32_t n_vocab;
    uint8_t *kind;  /* rl_token_kind of each id */
    bool *eog;      /* ends generation */
    char *bytes;    /* raw bytes of all tokens, one after another */
    size_t *offset; /* n_vocab + 1 */
    int32_t byte_id[256];
    rl_merge_table merges;
    int32_t *special; /* ids of control, unknown and user-defined tokens, sorted by their bytes */
    uint32_t n_special;
    uint32_t special_from[257]; /* special[special_from[b]..special_from[b+1]) begin with byte b */
    int32_t eos, im_start, im_end;
};

static inline rl_slice rl_vocab_bytes(const rl_tokenizer *t, int32_t id)
{
    return (rl_slice){t->bytes + t->offset[id], t->offset[id + 1] - t->offset[id]};
}

#endif
