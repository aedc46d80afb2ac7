/* text/json: the incremental reader and writer.
 *
 * The output is always a prefix that rl_json_close can complete: separators and keys wait in `ahead` until their value begins,
 * numbers and words wait in `scalar` until they are whole, escapes until they are understood. */
#include "text/json.h"
#include "text/unicode.h"
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool top_is_object(const rl_json_stream *j)
{
    uint16_t top = (uint16_t)(j->depth - 1);
    return (j->is_object[top / 8] >> top % 8 & 1) != 0;
}

static void after_value(rl_json_stream *j)
{
    j->state = j->depth == 0 ? RL_JSON_DONE : RL_JSON_NEXT;
}

static void flush_ahead(rl_json_stream *j, rl_buffer *out)
{
    rl_buffer_slice(out, rl_buffer_view(&j->ahead));
    rl_buffer_clear(&j->ahead);
}

static void open_container(rl_json_stream *j, bool object, rl_buffer *out)
{
    if (j->depth == RL_JSON_DEPTH) {
        j->state = RL_JSON_BAD;
        return;
    }
    flush_ahead(j, out);
    rl_buffer_char(out, object ? '{' : '[');
    uint8_t bit = (uint8_t)(1u << j->depth % 8);
    if (object)
        j->is_object[j->depth / 8] |= bit;
    else
        j->is_object[j->depth / 8] &= (uint8_t)~bit;
    j->depth++;
    j->state = object ? RL_JSON_FIRST_KEY : RL_JSON_FIRST_VALUE;
}

static void close_container(rl_json_stream *j, bool object, rl_buffer *out)
{
    if (top_is_object(j) != object) {
        j->state = RL_JSON_BAD;
        return;
    }
    rl_buffer_clear(&j->ahead); /* a comma before the bracket */
    rl_buffer_char(out, object ? '}' : ']');
    j->depth--;
    after_value(j);
}

static void begin_value(rl_json_stream *j, char c, rl_buffer *out)
{
    if (c == '{' || c == '[') {
        open_container(j, c == '{', out);
    } else if (c == '"') {
        flush_ahead(j, out);
        rl_buffer_char(out, '"');
        j->in_key = false;
        j->state = RL_JSON_STRING;
    } else if (is_digit(c) || c == '-' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        rl_buffer_clear(&j->scalar);
        rl_buffer_char(&j->scalar, c);
        j->state = RL_JSON_SCALAR;
    } else {
        j->state = RL_JSON_BAD;
    }
}

static size_t skip_digits(const char *s, size_t n, size_t i)
{
    while (i < n && is_digit(s[i]))
        i++;
    return i;
}

static bool is_number(rl_slice v)
{
    const char *s = v.data;
    size_t n = v.size, i = n > 0 && s[0] == '-';
    if (i >= n || !is_digit(s[i])) return false;
    i = s[i] == '0' ? i + 1 : skip_digits(s, n, i);
    if (i < n && s[i] == '.') {
        size_t from = i + 1;
        i = skip_digits(s, n, from);
        if (i == from) return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-')) i++;
        size_t from = i;
        i = skip_digits(s, n, from);
        if (i == from) return false;
    }
    return i == n;
}

static void end_scalar(rl_json_stream *j, rl_buffer *out)
{
    static const char *const words[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                                           {"True", "true"}, {"False", "false"}, {"None", "null"}};
    rl_slice v = rl_buffer_view(&j->scalar);
    bool good = is_number(v);
    for (size_t i = 0; !good && i < (j->lenient ? 6 : 3); i++) {
        if (!rl_slice_equals(v, words[i][0])) continue;
        v = rl_slice_of(words[i][1]);
        good = true;
    }
    if (!good) {
        j->state = RL_JSON_BAD;
        return;
    }
    flush_ahead(j, out);
    rl_buffer_slice(out, v);
    after_value(j);
}

/* A character of a string. Keys wait with their separators. */
static void put_char(rl_json_stream *j, rl_buffer *out, uint32_t cp)
{
    char utf8[4];
    size_t n = rl_utf8_encode(cp, utf8);
    rl_json_escape((rl_slice){utf8, n}, j->in_key ? &j->ahead : out);
}

/* Half a surrogate pair alone is no character. */
static void drop_high(rl_json_stream *j, rl_buffer *out)
{
    if (j->high != 0) put_char(j, out, 0xFFFD);
    j->high = 0;
}

static void put_unit(rl_json_stream *j, rl_buffer *out, uint16_t unit)
{
    if (unit >= 0xDC00 && unit < 0xE000 && j->high != 0) {
        uint32_t cp = 0x10000 + ((uint32_t)(j->high - 0xD800) << 10) + (unit - 0xDC00u);
        j->high = 0;
        put_char(j, out, cp);
        return;
    }
    drop_high(j, out);
    if (unit >= 0xD800 && unit < 0xDC00)
        j->high = unit;
    else
        put_char(j, out, unit >= 0xDC00 && unit < 0xE000 ? 0xFFFD : unit);
}

static void string_byte(rl_json_stream *j, char c, rl_buffer *out)
{
    if (c == '\\') {
        j->state = RL_JSON_ESCAPE;
        return;
    }
    drop_high(j, out);
    rl_buffer *to = j->in_key ? &j->ahead : out;
    if (c == '"') {
        rl_buffer_char(to, '"');
        if (j->in_key)
            j->state = RL_JSON_COLON;
        else
            after_value(j);
    } else if ((unsigned char)c < 0x20 && !j->lenient) {
        j->state = RL_JSON_BAD;
    } else {
        rl_json_escape((rl_slice){&c, 1}, to);
    }
}

static void escape_byte(rl_json_stream *j, char c, rl_buffer *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *hit = c != '\0' ? strchr(from, c) : NULL;
    j->state = RL_JSON_STRING;
    if (c == 'u') {
        j->state = RL_JSON_HEX;
        j->n_hex = 0;
        j->hex = 0;
    } else if (hit != NULL) {
        drop_high(j, out);
        put_char(j, out, (uint8_t)to[hit - from]);
    } else if (j->lenient) { /* "\d": the backslash was meant */
        drop_high(j, out);
        put_char(j, out, '\\');
        string_byte(j, c, out);
    } else {
        j->state = RL_JSON_BAD;
    }
}

static int hex_value(char c)
{
    if (is_digit(c)) return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void hex_byte(rl_json_stream *j, char c, rl_buffer *out)
{
    int v = hex_value(c);
    if (v >= 0) {
        j->hex = (uint16_t)(j->hex << 4 | v);
        if (++j->n_hex < 4) return;
        j->state = RL_JSON_STRING;
        put_unit(j, out, j->hex);
        return;
    }
    if (!j->lenient) {
        j->state = RL_JSON_BAD;
        return;
    }
    /* "\u12x": give back what was read as it stood. */
    static const char digits[] = "0123456789abcdef";
    drop_high(j, out);
    put_char(j, out, '\\');
    put_char(j, out, 'u');
    for (int i = j->n_hex - 1; i >= 0; i--)
        put_char(j, out, (uint8_t)digits[j->hex >> 4 * i & 15]);
    j->state = RL_JSON_STRING;
    string_byte(j, c, out);
}

/* A byte between values. */
static void structure_byte(rl_json_stream *j, char c, rl_buffer *out)
{
    if (is_space(c)) return;
    switch (j->state) {
    case RL_JSON_FIRST_VALUE:
    case RL_JSON_ELEMENT:
        if (c == ']' && (j->state == RL_JSON_FIRST_VALUE || j->lenient)) {
            close_container(j, false, out);
            return;
        }
        begin_value(j, c, out);
        return;
    case RL_JSON_FIRST_KEY:
    case RL_JSON_KEY:
        if (c == '"') {
            rl_buffer_char(&j->ahead, '"');
            j->in_key = true;
            j->state = RL_JSON_STRING;
        } else if (c == '}' && (j->state == RL_JSON_FIRST_KEY || j->lenient)) {
            close_container(j, true, out);
        } else {
            j->state = RL_JSON_BAD;
        }
        return;
    case RL_JSON_COLON:
        if (c != ':') {
            j->state = RL_JSON_BAD;
            return;
        }
        rl_buffer_text(&j->ahead, ": ");
        j->state = RL_JSON_VALUE;
        return;
    case RL_JSON_NEXT:
        if (c == ',') {
            rl_buffer_text(&j->ahead, ", ");
            j->state = top_is_object(j) ? RL_JSON_KEY : RL_JSON_ELEMENT;
        } else if (c == '}' || c == ']') {
            close_container(j, c == '}', out);
        } else {
            j->state = RL_JSON_BAD;
        }
        return;
    default:
        begin_value(j, c, out);
        return;
    }
}

void rl_json_push(rl_json_stream *j, char c, rl_buffer *out)
{
    switch (j->state) {
    case RL_JSON_DONE:
    case RL_JSON_BAD:
        return;
    case RL_JSON_STRING:
        string_byte(j, c, out);
        return;
    case RL_JSON_ESCAPE:
        escape_byte(j, c, out);
        return;
    case RL_JSON_HEX:
        hex_byte(j, c, out);
        return;
    case RL_JSON_SCALAR:
        if (!is_space(c) && c != ',' && c != ']' && c != '}') {
            rl_buffer_char(&j->scalar, c);
            return;
        }
        end_scalar(j, out);
        if (j->state == RL_JSON_NEXT) structure_byte(j, c, out);
        return;
    default:
        structure_byte(j, c, out);
    }
}

void rl_json_end(rl_json_stream *j, rl_buffer *out)
{
    if (j->state == RL_JSON_SCALAR && j->depth == 0) end_scalar(j, out);
}

void rl_json_close(rl_json_stream *j, rl_buffer *out)
{
    bool in_string = j->state == RL_JSON_STRING || j->state == RL_JSON_ESCAPE || j->state == RL_JSON_HEX;
    if (in_string && !j->in_key) {
        drop_high(j, out);
        rl_buffer_char(out, '"');
    }
    rl_buffer_clear(&j->ahead);
    for (; j->depth > 0; j->depth--)
        rl_buffer_char(out, top_is_object(j) ? '}' : ']');
    j->state = RL_JSON_DONE;
}

void rl_json_free(rl_json_stream *j)
{
    rl_buffer_free(&j->ahead);
    rl_buffer_free(&j->scalar);
}

bool rl_json_normalise(rl_slice text, rl_buffer *out)
{
    if (!rl_utf8_is_valid(text.data, text.size)) return false;
    rl_json_stream j = {0};
    size_t i = 0;
    while (i < text.size && j.state != RL_JSON_DONE && j.state != RL_JSON_BAD)
        rl_json_push(&j, text.data[i++], out);
    rl_json_end(&j, out);
    while (i < text.size && is_space(text.data[i]))
        i++;
    bool good = j.state == RL_JSON_DONE && i == text.size && !j.ahead.failed && !j.scalar.failed && !out->failed;
    rl_json_free(&j);
    return good;
}
