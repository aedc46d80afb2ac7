/* text/format: reading a chat template without executing it.
 *
 * A template prints string literals around the messages. The literals are collected in order, with their escapes resolved, and
 * the few that matter are recognised by the tags they contain; their wording is the file's own affair. Which tool style and
 * which kind of thinking a model uses shows in the literals too. */
#include "text/format.h"
#include "base/error.h"
#include "base/mem.h"
#include "gguf/gguf.h"
#include <stdlib.h>
#include <string.h>

typedef struct literal {
    size_t from;       /* where it stands in the template */
    size_t start, end; /* its text in the pool */
} literal;

typedef struct literals {
    rl_buffer pool;
    literal *items;
    size_t n, capacity;
} literals;

static rl_slice literal_text(const literals *l, size_t i)
{
    return (rl_slice){rl_buffer_view(&l->pool).data + l->items[i].start, l->items[i].end - l->items[i].start};
}

static void add_literal(literals *l, size_t from, size_t start)
{
    if (l->n == l->capacity) {
        size_t capacity = l->capacity * 2 + 32;
        literal *items = rl_realloc(l->items, capacity, sizeof *items);
        if (items == NULL) {
            l->pool.failed = true;
            return;
        }
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = (literal){from, start, l->pool.size};
}

/* The literal that opens at i (a quote); returns the offset behind it. */
static size_t read_literal(literals *l, rl_slice t, size_t i)
{
    char quote = t.data[i];
    size_t from = i, start = l->pool.size;
    for (i++; i < t.size && t.data[i] != quote; i++) {
        char c = t.data[i];
        if (c == '\\' && i + 1 < t.size) {
            c = t.data[++i];
            c = (char)(c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c);
        }
        rl_buffer_char(&l->pool, c);
    }
    add_literal(l, from, start);
    return i < t.size ? i + 1 : t.size;
}

/* All string literals inside {{ }} and {% %}; {# #} is skipped. */
static void collect(literals *l, rl_slice t)
{
    for (size_t i = 0; i + 1 < t.size && !l->pool.failed;) {
        char kind = t.data[i] == '{' ? t.data[i + 1] : '\0';
        if (kind == '#') {
            size_t end = rl_slice_find(t, i + 2, "#}");
            i = end == SIZE_MAX ? t.size : end + 2;
        } else if (kind == '{' || kind == '%') {
            char close = kind == '{' ? '}' : '%';
            i += 2;
            while (i + 1 < t.size && !(t.data[i] == close && t.data[i + 1] == '}'))
                i = t.data[i] == '\'' || t.data[i] == '"' ? read_literal(l, t, i) : i + 1;
            i += 2;
        } else {
            i++;
        }
    }
}

static bool ends_with(rl_slice s, const char *tail)
{
    size_t n = strlen(tail);
    return s.size >= n && memcmp(s.data + s.size - n, tail, n) == 0;
}

/* The introduction is the first literal that ends with <tools>; some editions print that tag alone, after the text. */
static void find_before_tools(rl_chat_format *f, const literals *l)
{
    for (size_t i = 0; i < l->n; i++) {
        rl_slice text = literal_text(l, i);
        if (!ends_with(text, "<tools>")) continue;
        if (rl_slice_equals(text, "<tools>") && i > 0) rl_buffer_slice(&f->before_tools, literal_text(l, i - 1));
        rl_buffer_slice(&f->before_tools, text);
        return;
    }
}

/* The instruction is the first literal that begins with </tools>, up to the end of the turn if that is in it; the tag may stand
 * alone here too, before the text. */
static void find_after_tools(rl_chat_format *f, const literals *l)
{
    for (size_t i = 0; i < l->n; i++) {
        rl_slice text = literal_text(l, i);
        if (!rl_slice_starts(text, "\n</tools>")) continue;
        rl_buffer_slice(&f->after_tools, text);
        if (rl_slice_equals(text, "\n</tools>") && i + 1 < l->n) rl_buffer_slice(&f->after_tools, literal_text(l, i + 1));
        size_t end = rl_slice_find(rl_buffer_view(&f->after_tools), 0, "<|im_end|>");
        if (end != SIZE_MAX) f->after_tools.size = end;
        return;
    }
}

static void find_identity(rl_chat_format *f, const literals *l)
{
    static const char head[] = "<|im_start|>system\n";
    for (size_t i = 0; i < l->n; i++) {
        rl_slice text = literal_text(l, i);
        size_t at = rl_slice_find(text, 0, "You are ");
        if (at == SIZE_MAX || (at > 0 && !(at == sizeof head - 1 && rl_slice_starts(text, head)))) continue;
        rl_buffer_put(&f->identity, text.data + at, text.size - at);
        return;
    }
}

/* The generation prompt is what is printed behind the last mention of its switch. */
static void find_thinking(rl_chat_format *f, const literals *l, rl_slice t)
{
    if (rl_slice_find(t, 0, "<think>") == SIZE_MAX) return;
    f->strips_reasoning = true;
    f->thinking = RL_THINKING_MAY;
    size_t from = 0;
    for (size_t at = 0; (at = rl_slice_find(t, at, "add_generation_prompt")) != SIZE_MAX; at++)
        from = at;
    for (size_t i = 0; i < l->n; i++) {
        rl_slice text = literal_text(l, i);
        if (l->items[i].from < from) continue;
        if (ends_with(text, "<think>\n")) f->thinking = RL_THINKING_ALWAYS;
        if (rl_slice_find(text, 0, "</think>") != SIZE_MAX) f->can_skip_thinking = true;
    }
}

static void find_result_style(rl_chat_format *f, const literals *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (rl_slice_equals(literal_text(l, i), "<tool_response>\n")) f->results_break_after = true;
}

/* Our own wording, for files that bring none. */
static const char JSON_BEFORE[] =
    "# Tools\n\nThe functions below can be called. Each line between the tools tags is the signature of one, in JSON:\n<tools>";
static const char JSON_AFTER[] =
    "\n</tools>\n\nTo call a function, write its name and its arguments as one JSON object between "
    "tool_call tags. Several calls follow one another, each in its own tags:\n<tool_call>\n{\"name\": "
    "\"FUNCTION\", \"arguments\": {\"PARAMETER\": VALUE}}\n</tool_call>";
static const char XML_BEFORE[] = "\n\n# Tools\n\nThe functions between the tools tags can be called:\n\n<tools>";
static const char XML_AFTER[] =
    "\n</tools>\n\nTo call a function, write exactly this form, with nothing behind it:\n\n<tool_call>\n"
    "<function=FUNCTION>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n</function>\n</tool_call>";

static void use_own_wording(rl_chat_format *f)
{
    bool json = f->style == RL_TOOL_JSON;
    rl_buffer_clear(&f->before_tools);
    rl_buffer_clear(&f->after_tools);
    rl_buffer_text(&f->before_tools, json ? JSON_BEFORE : XML_BEFORE);
    rl_buffer_text(&f->after_tools, json ? JSON_AFTER : XML_AFTER);
}

rl_status rl_chat_format_parse(const char *chat_template, size_t n, rl_chat_format **out, rl_error *err)
{
    rl_slice t = {n > 0 ? chat_template : "", n};
    rl_chat_format *f = rl_calloc(1, sizeof *f);
    if (f == NULL) return rl_fail(err, RL_ERR_MEMORY, "no memory for a chat format");
    literals l = {0};
    collect(&l, t);
    f->style = rl_slice_find(t, 0, "<function=") != SIZE_MAX ? RL_TOOL_XML : RL_TOOL_JSON;
    find_before_tools(f, &l);
    find_after_tools(f, &l);
    find_thinking(f, &l, t);
    find_result_style(f, &l);
    if (f->style == RL_TOOL_XML) find_identity(f, &l);
    f->knows_tools = f->before_tools.size > 0 && f->after_tools.size > 0;
    if (!f->knows_tools) use_own_wording(f);
    bool failed = l.pool.failed || f->before_tools.failed || f->after_tools.failed || f->identity.failed;
    free(l.items);
    rl_buffer_free(&l.pool);
    if (failed) {
        rl_chat_format_free(f);
        return rl_fail(err, RL_ERR_MEMORY, "no memory for a chat template of %zu bytes", n);
    }
    *out = f;
    return RL_OK;
}

rl_status rl_chat_format_open(const char *model_path, rl_chat_format **out, rl_error *err)
{
    rl_gguf *g = NULL;
    rl_slice text = {"", 0};
    rl_status s = rl_gguf_open(model_path, &g, err);
    if (s != RL_OK) return s;
    s = rl_gguf_get_string(g, "tokenizer.chat_template", &text, NULL, err);
    if (s == RL_OK) s = rl_chat_format_parse(text.data, text.size, out, err);
    rl_gguf_close(g);
    return s;
}

void rl_chat_format_free(rl_chat_format *f)
{
    if (f == NULL) return;
    rl_buffer_free(&f->before_tools);
    rl_buffer_free(&f->after_tools);
    rl_buffer_free(&f->identity);
    free(f);
}

rl_tool_style rl_chat_format_style(const rl_chat_format *f)
{
    return f->style;
}
rl_thinking rl_chat_format_thinking(const rl_chat_format *f)
{
    return f->thinking;
}
bool rl_chat_format_can_skip_thinking(const rl_chat_format *f)
{
    return f->can_skip_thinking;
}
bool rl_chat_format_knows_tools(const rl_chat_format *f)
{
    return f->knows_tools;
}
