/* cli/chat_input: from lines to messages. How a line is read is line.h's. */
#include "chat_input.h"
#include "cli.h"
#include "conversation.h"
#include "line.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_LIMIT (64u << 20)

struct chat_input {
    line_reader *lines;
};

chat_input *chat_input_open(void)
{
    chat_input *in = calloc(1, sizeof *in);
    if (in) in->lines = line_open();
    if (in && in->lines) return in;
    free(in);
    return NULL;
}

void chat_input_close(chat_input *in)
{
    if (in) line_close(in->lines);
    free(in);
}

bool chat_input_is_terminal(const chat_input *in)
{
    return line_is_terminal(in->lines);
}

/* Input is bytes of any kind: what a model, a terminal or a JSON file gets must be UTF-8. */
static bool make_valid(conv_text *t)
{
    if (t->size > (SIZE_MAX - 24) / 3) return false;
    char *valid = malloc(3 * t->size + 25);
    if (!valid) return false;
    rl_utf8_stream s = {0};
    size_t n = rl_utf8_stream_push(&s, t->data ? t->data : "", t->size, valid);
    n += rl_utf8_stream_finish(&s, valid + n);
    valid[n] = 0;
    free(t->data);
    *t = (conv_text){valid, n};
    return true;
}

static const char quotes[] = "\"\"\"";

/* Adds a line to the message; true when the message is complete. */
static bool take_line(conv_text *m, const char *line, size_t n, bool first, bool *block, bool *ok)
{
    if (first && n >= 3 && memcmp(line, quotes, 3) == 0) {
        *block = true;
        line += 3;
        n -= 3;
        if (n == 0) return false;
    } else if (!first && m->size) {
        *ok = conv_append(m, "\n", 1);
    }
    if (*block) {
        bool closed = n >= 3 && memcmp(line + n - 3, quotes, 3) == 0;
        if (closed) n -= 3;
        if (closed && n == 0 && m->size && m->data[m->size - 1] == '\n') m->data[--m->size] = 0;
        *ok = *ok && conv_append(m, line, n);
        return closed;
    }
    bool more = n > 0 && line[n - 1] == '\\';
    *ok = *ok && conv_append(m, line, more ? n - 1 : n);
    return !more;
}

chat_input_end chat_input_read(chat_input *in, char **text, size_t *n)
{
    conv_text m = {0};
    bool block = false, ok = true, done = false;
    for (bool first = true; !done && ok; first = false) {
        char *line = NULL;
        size_t size = 0;
        line_end end = line_read(in->lines, first ? "> " : ". ", MESSAGE_LIMIT, &line, &size);
        if (end == LINE_INTERRUPT || end == LINE_FAILED || (end == LINE_EOF && (first || m.size == 0))) {
            conv_text_free(&m);
            return end == LINE_INTERRUPT ? CHAT_INPUT_INTERRUPT : end == LINE_EOF ? CHAT_INPUT_END : CHAT_INPUT_FAILED;
        }
        if (end == LINE_EOF) break; /* an open block ends with the input */
        done = take_line(&m, line, size, first, &block, &ok);
        free(line);
        if (m.size > MESSAGE_LIMIT) {
            fprintf(stderr, "redlite: a message is longer than %u MiB\n", MESSAGE_LIMIT >> 20);
            conv_text_free(&m);
            return CHAT_INPUT_FAILED;
        }
    }
    if (!ok || !make_valid(&m)) {
        fprintf(stderr, "redlite: no memory for the message\n");
        conv_text_free(&m);
        return CHAT_INPUT_FAILED;
    }
    *text = m.data;
    *n = m.size;
    return CHAT_INPUT_TEXT;
}
