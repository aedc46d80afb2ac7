/* text: bytes to token ids and back, and chat messages to prompts.
 *
 * What front ends use of this folder is declared in redlite.h; here is how a tokenizer is made from an open model file. The
 * tokenizer is byte-level BPE with the qwen2 splitting rules; ids equal llama.cpp's (one stated exception: the ordinary
 * token </s> is not special). Immutable after creation, so threads may share it. */
#ifndef RL_TEXT_H
#define RL_TEXT_H

#include "gguf/gguf.h"

/* From the metadata of a model; checks the tables (sizes, ids in range, all bytes present). g may be closed afterwards. */
rl_status rl_tokenizer_create(const rl_gguf *g, rl_tokenizer **out, rl_error *err);

/* rl_tokenize with control tokens recognised only where they lie wholly inside one of the spans (sorted, disjoint byte ranges).
 * Words may reach across the borders of spans, so the ids of harmless text do not depend on where the borders are. */
typedef struct rl_text_span {
    size_t start, end;
} rl_text_span;
rl_status rl_tokenize_spans(const rl_tokenizer *t, const char *text, size_t n, const rl_text_span *spans, size_t n_spans,
                            int32_t **ids, size_t *n_ids, rl_error *err);

#endif
