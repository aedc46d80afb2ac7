/* text/chat: the ChatML frame of plain messages (system, user, assistant, tool results). */
#include "base/error.h"
#include "text/prompt.h"

static const char *const OPENINGS[] = {
    [RL_ROLE_SYSTEM] = "<|im_start|>system\n",
    [RL_ROLE_USER] = "<|im_start|>user\n",
    [RL_ROLE_ASSISTANT] = "<|im_start|>assistant\n",
};

/* Consecutive tool results share one user turn. */
static void render_result(rl_prompt *p, const rl_chat_message *m, bool first, bool last)
{
    if (first) rl_prompt_frame(p, "<|im_start|>user");
    rl_prompt_frame(p, "\n<tool_response>\n");
    rl_prompt_content(p, (rl_slice){m->content, m->size});
    rl_prompt_frame(p, last ? "\n</tool_response><|im_end|>\n" : "\n</tool_response>");
}

static rl_status render(rl_prompt *p, const rl_chat_message *m, size_t n, bool add_generation, rl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned)m[i].role > RL_ROLE_TOOL)
            return rl_fail(err, RL_ERR_ARGUMENT, "message %zu has role %d, expected 0 to %d", i, (int)m[i].role, RL_ROLE_TOOL);
        if (m[i].role == RL_ROLE_TOOL) {
            render_result(p, &m[i], i == 0 || m[i - 1].role != RL_ROLE_TOOL, i + 1 == n || m[i + 1].role != RL_ROLE_TOOL);
            continue;
        }
        rl_prompt_frame(p, OPENINGS[m[i].role]);
        rl_prompt_content(p, (rl_slice){m[i].content, m[i].size});
        rl_prompt_frame(p, "<|im_end|>\n");
    }
    if (add_generation) rl_prompt_frame(p, OPENINGS[RL_ROLE_ASSISTANT]);
    return rl_prompt_check(p, err);
}

rl_status rl_chat_tokenize(const rl_tokenizer *t, const rl_chat_message *messages, size_t n, bool add_generation, int32_t **ids,
                           size_t *n_ids, rl_error *err)
{
    if (rl_token_im_start(t) < 0 || rl_token_im_end(t) < 0)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "the vocabulary has no <|im_start|> and <|im_end|>: this model cannot chat");
    rl_prompt p = {0};
    rl_status s = render(&p, messages, n, add_generation, err);
    if (s == RL_OK) s = rl_prompt_tokenize(t, &p, ids, n_ids, err);
    rl_prompt_free(&p);
    return s;
}

rl_status rl_chat_render(const rl_chat_message *messages, size_t n, bool add_generation, char **text, size_t *size,
                         rl_error *err)
{
    rl_prompt p = {0};
    rl_prompt_frame(&p, ""); /* text is a string even when nothing follows */
    rl_status s = render(&p, messages, n, add_generation, err);
    if (s == RL_OK)
        rl_prompt_take_text(&p, text, size);
    else
        rl_prompt_free(&p);
    return s;
}
