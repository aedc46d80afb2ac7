/* server/buf: texts that grow, ids, and errors in the shape of the OpenAI API. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- Texts --------------------------------------------------------------------------------------------------------------- */

static bool reserve(srv_buf *b, size_t n)
{
    if (b->failed) return false;
    if (n <= b->room - b->size) return true;
    size_t room = (b->size + n) * 2;
    char *grown = n > SIZE_MAX / 4 || b->size > SIZE_MAX / 4 ? NULL : realloc(b->data, room);
    if (!grown) {
        b->failed = true;
        return false;
    }
    b->data = grown;
    b->room = room;
    return true;
}

void srv_put(srv_buf *b, const void *data, size_t n)
{
    if (n == 0 || !reserve(b, n)) return;
    memcpy(b->data + b->size, data, n);
    b->size += n;
}

void srv_puts(srv_buf *b, const char *text)
{
    srv_put(b, text, strlen(text));
}

void srv_putf(srv_buf *b, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0) srv_put(b, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static int put_piece(const char *data, size_t n, void *buf)
{
    srv_put(buf, data, n);
    return 0;
}

void srv_put_json(srv_buf *b, json_t *o)
{
    if (!o || json_dump_callback(o, put_piece, b, JSON_COMPACT | JSON_REAL_PRECISION(9) | JSON_ENCODE_ANY) != 0)
        b->failed = true;
    json_decref(o);
}

void srv_drop(srv_buf *b, size_t n)
{
    if (n == 0) return;
    memmove(b->data, b->data + n, b->size - n);
    b->size -= n;
}

void srv_buf_free(srv_buf *b)
{
    free(b->data);
    *b = (srv_buf){0};
}

void srv_make_id(char *out, size_t cap, const char *prefix)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint8_t random[24] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        double now = rl_now();
        memcpy(random, &now, sizeof now);
    }
    size_t n = (size_t)snprintf(out, cap, "%s", prefix);
    for (size_t i = 0; i < sizeof random && n + 1 < cap; i++)
        out[n++] = letters[random[i] % (sizeof letters - 1)];
    out[n < cap ? n : cap - 1] = 0;
}

char *srv_dump_json(const json_t *o)
{
    /* 15 digits read back as they were written for what people write; when they do not, all 17. */
    char *text = json_dumps(o, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    json_t *back = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    if (back && json_equal((json_t *)o, back)) {
        json_decref(back);
        return text;
    }
    json_decref(back);
    free(text);
    return json_dumps(o, JSON_ENCODE_ANY);
}

/* ---- Errors -------------------------------------------------------------------------------------------------------------- */

bool srv_bad(srv_error *e, const char *param, const char *fmt, ...)
{
    *e = (srv_error){.status = 400, .type = "invalid_request_error"};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

bool srv_refuse(srv_error *e, int status, const char *type, const char *code, const char *fmt, ...)
{
    *e = (srv_error){.status = status, .type = type, .code = code};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return false;
}

bool srv_failed(srv_error *e, const rl_error *err)
{
    bool theirs = err->status == RL_ERR_ARGUMENT || err->status == RL_ERR_LIMIT || err->status == RL_ERR_UNSUPPORTED;
    return srv_refuse(e, theirs ? 400 : 500, theirs ? "invalid_request_error" : "server_error", NULL, "%s", err->text);
}

/* A message may hold text from outside: what is not UTF-8 must not break the JSON. */
json_t *srv_openai_error(const srv_error *e)
{
    char shown[RL_ERROR_TEXT_MAX];
    json_t *message = json_string(e->message);
    if (!message) message = json_string(rl_escape(shown, sizeof shown, e->message, strlen(e->message)));
    json_t *param = e->param[0] ? json_string(e->param) : json_null();
    return json_pack("{s:{s:o, s:s, s:o, s:s?}}", "error", "message", message, "type", e->type, "param",
                     param ? param : json_null(), "code", e->code);
}
