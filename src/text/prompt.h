/* text/prompt: a prompt under construction: text, and which parts of it are frame (ours, control tokens count) and which are
 * content (from outside, they do not). */
#ifndef RL_TEXT_PROMPT_H
#define RL_TEXT_PROMPT_H

#include "text/text.h"

typedef struct rl_prompt {
    char *text; /* NUL-terminated once anything was written */
    size_t size, capacity;
    rl_text_span *frames; /* sorted, disjoint */
    size_t n_frames, frames_capacity;
    bool failed; /* memory ran short: later calls do nothing, rl_prompt_check reports it */
} rl_prompt;

void rl_prompt_frame(rl_prompt *p, const char *text);             /* NUL-terminated */
void rl_prompt_content(rl_prompt *p, const char *data, size_t n); /* data may be NULL when n is 0 */
rl_status rl_prompt_check(const rl_prompt *p, rl_error *err);
void rl_prompt_free(rl_prompt *p);

/* Ids of the prompt; free() *ids. */
rl_status rl_prompt_tokenize(const rl_tokenizer *t, const rl_prompt *p, int32_t **ids, size_t *n_ids, rl_error *err);

#endif
