/* text/prompt: a text and its list of frame spans. */
#include "text/prompt.h"
#include "base/error.h"
#include "base/mem.h"
#include <stdlib.h>

void rl_prompt_content(rl_prompt *p, rl_slice text)
{
    rl_buffer_slice(&p->text, text);
}

void rl_prompt_frame(rl_prompt *p, const char *text)
{
    size_t start = p->text.size;
    rl_buffer_text(&p->text, text);
    if (p->text.failed) return;
    if (p->n_frames > 0 && p->frames[p->n_frames - 1].end == start) {
        p->frames[p->n_frames - 1].end = p->text.size;
        return;
    }
    if (p->n_frames == p->frames_capacity) {
        size_t capacity = p->frames_capacity * 2 + 8;
        rl_text_span *frames = rl_realloc(p->frames, capacity, sizeof *frames);
        if (frames == NULL) {
            p->text.failed = true;
            return;
        }
        p->frames = frames;
        p->frames_capacity = capacity;
    }
    p->frames[p->n_frames++] = (rl_text_span){start, p->text.size};
}

rl_status rl_prompt_check(const rl_prompt *p, rl_error *err)
{
    return p->text.failed ? rl_fail(err, RL_ERR_MEMORY, "no memory for a prompt of more than %zu bytes", p->text.size) : RL_OK;
}

void rl_prompt_free(rl_prompt *p)
{
    rl_buffer_free(&p->text);
    free(p->frames);
    *p = (rl_prompt){0};
}

rl_status rl_prompt_tokenize(const rl_tokenizer *t, const rl_prompt *p, int32_t **ids, size_t *n_ids, rl_error *err)
{
    rl_slice text = rl_buffer_view(&p->text);
    return rl_tokenize_spans(t, text.data, text.size, p->frames, p->n_frames, ids, n_ids, err);
}

void rl_prompt_take_text(rl_prompt *p, char **text, size_t *size)
{
    *text = p->text.data;
    *size = p->text.size;
    p->text = (rl_buffer){0};
    rl_prompt_free(p);
}
