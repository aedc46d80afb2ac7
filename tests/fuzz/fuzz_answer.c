/* Fuzz target: reading answers. The first byte chooses the format, the rest is the answer. Checked: the same events whole, byte
 * by byte and in pieces whose sizes the input decides; the arguments of every call are one JSON object; texts are UTF-8. */
#include "text/json.h"
#include "text/tools.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct record {
    rl_buffer line, arguments;
    rl_answer_kind last;
} record;

static bool on_event(void *ctx, const rl_answer_event *e)
{
    record *r = ctx;
    if (!rl_utf8_is_valid(e->text.data, e->text.size)) abort();
    if (e->kind != r->last || e->kind == RL_ANSWER_CALL_START) rl_buffer_char(&r->line, (char)(1 + (int)e->kind));
    r->last = e->kind;
    rl_buffer_slice(&r->line, e->text);
    if (e->kind == RL_ANSWER_CALL_START) rl_buffer_clear(&r->arguments);
    if (e->kind == RL_ANSWER_CALL_ARGUMENTS) rl_buffer_slice(&r->arguments, e->text);
    if (e->kind == RL_ANSWER_CALL_END) {
        rl_buffer out = {0};
        if (!rl_json_normalise(rl_buffer_view(&r->arguments), &out) || out.data[0] != '{') abort();
        rl_buffer_free(&out);
        rl_buffer_char(&r->line, (char)('0' + (int)e->end));
    }
    return true;
}

static void feed(const rl_chat_format *f, const rl_chat_request *q, const char *text, size_t n, int mode, record *r)
{
    rl_answer_parser *p = NULL;
    *r = (record){.last = RL_ANSWER_CALL_END};
    if (rl_answer_parser_create(f, q, on_event, r, &p, NULL) != RL_OK) abort();
    for (size_t at = 0, part; at < n; at += part) {
        part = mode == 0 ? n : mode == 1 ? 1 : 1 + (uint8_t)text[at] % 16;
        if (part > n - at) part = n - at;
        if (rl_answer_parser_push(p, text + at, part, NULL) != RL_OK) abort();
    }
    if (rl_answer_parser_finish(p, NULL) != RL_OK) abort();
    rl_answer_parser_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const templates[] = {"", "{{ '<function=' }}", "{% add_generation_prompt %}{{ '<think></think>' }}",
                                            "{% add_generation_prompt %}{{ '<think>\\n' }}{{ '<function=' }}"};
    static const char tool[] =
        "{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
        "\"l\":{\"type\":[\"array\",\"null\"]},\"u\":{}}}}";
    if (size == 0) return 0;
    const rl_slice tools[] = {{tool, sizeof tool - 1}};
    const char *form = templates[data[0] % 4], *text = (const char *)data + 1;
    rl_chat_format *f = NULL;
    if (rl_chat_format_parse(form, strlen(form), &f, NULL) != RL_OK) abort();
    rl_chat_request q = {.tools = tools, .n_tools = 1};
    record r[3];
    for (int mode = 0; mode < 3; mode++)
        feed(f, &q, text, size - 1, mode, &r[mode]);
    for (int mode = 1; mode < 3; mode++)
        if (r[mode].line.size != r[0].line.size ||
            (r[0].line.size > 0 && memcmp(r[mode].line.data, r[0].line.data, r[0].line.size) != 0))
            abort();
    for (int mode = 0; mode < 3; mode++) {
        rl_buffer_free(&r[mode].line);
        rl_buffer_free(&r[mode].arguments);
    }
    rl_chat_format_free(f);
    /* The same bytes as a template, a tool and arguments. */
    if (rl_chat_format_parse(text, size - 1, &f, NULL) == RL_OK) {
        const rl_slice input = {text, size - 1};
        const rl_tool_call call = {input, input};
        const rl_chat_turn turn = {.role = RL_ROLE_ASSISTANT, .content = input, .calls = &call, .n_calls = 1};
        q = (rl_chat_request){.turns = &turn, .n_turns = 1, .tools = &input, .n_tools = data[0] / 4 % 2};
        char *prompt = NULL;
        size_t n = 0;
        if (rl_chat_request_render(f, &q, &prompt, &n, NULL) == RL_OK) free(prompt);
        rl_chat_format_free(f);
    }
    return 0;
}
