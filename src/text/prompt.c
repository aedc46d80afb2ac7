/* text/prompt: growing a text and its list of frame spans. Failure is sticky, so that rendering code reads as plain text. */
#include "text/prompt.h"
#include "base/error.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

void rl_prompt_content(rl_prompt *p, const char *data, size_t n)
{
    size_t need;
    if (p->failed || !rl_add_size(p->size, n, &need) || !rl_add_size(need, 1, &need)) {
        p->failed = true;
        return;
    }
    if (need > p->capacity) {
        size_t capacity = need + need / 2;
        char *text = rl_realloc(p->text, capacity, 1);
        if (text == NULL) {
            p->failed = true;
            return;
        }
        p->text = text;
        p->capacity = capacity;
    }
    if (n > 0) memcpy(p->text + p->size, data, n);
    p->size += n;
    p->text[p->size] = '\0';
}

void rl_prompt_frame(rl_prompt *p, const char *text)
{
    size_t start = p->size;
    rl_prompt_content(p, text, strlen(text));
    if (p->failed) return;
    if (p->n_frames > 0 && p->frames[p->n_frames - 1].end == start) {
        p->frames[p->n_frames - 1].end = p->size;
        return;
    }
    if (p->n_frames == p->frames_capacity) {
        size_t capacity = p->frames_capacity * 2 + 8;
        rl_text_span *frames = rl_realloc(p->frames, capacity, sizeof *frames);
        if (frames == NULL) {
            p->failed = true;
            return;
        }
        p->frames = frames;
        p->frames_capacity = capacity;
    }
    p->frames[p->n_frames++] = (rl_text_span){start, p->size};
}

rl_status rl_prompt_check(const rl_prompt *p, rl_error *err)
{
    return p->failed ? rl_fail(err, RL_ERR_MEMORY, "no memory for a prompt of more than %zu bytes", p->size) : RL_OK;
}

void rl_prompt_free(rl_prompt *p)
{
    free(p->text);
    free(p->frames);
    *p = (rl_prompt){0};
}

rl_status rl_prompt_tokenize(const rl_tokenizer *t, const rl_prompt *p, int32_t **ids, size_t *n_ids, rl_error *err)
{
    return rl_tokenize_spans(t, p->size > 0 ? p->text : "", p->size, p->frames, p->n_frames, ids, n_ids, err);
}
