/* text/prompt: a prompt under construction: text, and which parts of it are frame (ours, control tokens count) and which are
 * content (from outside, they do not). */
#ifndef RL_TEXT_PROMPT_H
#define RL_TEXT_PROMPT_H

#include "text/buffer.h"
#include "text/text.h"

typedef struct rl_prompt {
    rl_buffer text;
    rl_text_span *frames; /* sorted, disjoint */
    size_t n_frames, frames_capacity;
} rl_prompt;

void rl_prompt_frame(rl_prompt *p, const char *text); /* NUL-terminated */
void rl_prompt_content(rl_prompt *p, rl_slice text);
/* RL_ERR_MEMORY when any of the above ran out of memory. */
rl_status rl_prompt_check(const rl_prompt *p, rl_error *err);
void rl_prompt_free(rl_prompt *p);

/* Ids of the prompt; free() *ids. */
rl_status rl_prompt_tokenize(const rl_tokenizer *t, const rl_prompt *p, int32_t **ids, size_t *n_ids, rl_error *err);
/* Hands over the text (never NULL) and frees the rest. */
void rl_prompt_take_text(rl_prompt *p, char **text, size_t *size);

#endif
