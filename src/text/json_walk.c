/* text/json_walk: reading canonical JSON text in place. The text was written by text/json, so its syntax is not checked again.
 */
#include "text/json.h"
#include "text/unicode.h"
#include <string.h>

/* Offset behind the string that starts at i. */
static size_t skip_string(rl_slice s, size_t i)
{
    for (i++; i < s.size && s.data[i] != '"'; i++)
        if (s.data[i] == '\\') i++;
    return i < s.size ? i + 1 : s.size;
}

static size_t skip_value(rl_slice s, size_t i)
{
    size_t depth = 0;
    while (i < s.size) {
        char c = s.data[i];
        if (c == '"') {
            i = skip_string(s, i);
        } else if (c == '{' || c == '[') {
            depth++;
            i++;
        } else if (depth > 0 && (c == '}' || c == ']')) {
            depth--;
            i++;
        } else if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
            return i;
        } else {
            i++;
            continue;
        }
        if (depth == 0) return i;
    }
    return i;
}

bool rl_json_next(rl_slice container, size_t *cursor, rl_slice *key, rl_slice *value)
{
    bool object = rl_json_kind(container) == '{';
    size_t i = *cursor == 0 ? 1 : *cursor;
    if (i + 1 >= container.size) return false;
    if (*cursor != 0) {
        if (container.data[i] != ',') return false;
        i += 2; /* ", " */
    }
    rl_slice name = {"", 0};
    if (object) {
        size_t end = skip_string(container, i);
        name = (rl_slice){container.data + i, end - i};
        i = end + 2; /* ": " */
    }
    size_t end = skip_value(container, i);
    if (key != NULL) *key = name;
    *value = (rl_slice){container.data + i, end - i};
    *cursor = end;
    return true;
}

rl_slice rl_json_member(rl_slice object, const char *name)
{
    size_t cursor = 0, n = strlen(name);
    rl_slice key, value;
    if (rl_json_kind(object) != '{') return (rl_slice){"", 0};
    while (rl_json_next(object, &cursor, &key, &value))
        if (key.size == n + 2 && memcmp(key.data + 1, name, n) == 0) return value;
    return (rl_slice){"", 0};
}

void rl_json_decode(rl_slice string, rl_buffer *out)
{
    static const char from[] = "\"\\bfnrt", to[] = "\"\\\b\f\n\r\t";
    for (size_t i = 1; i + 1 < string.size; i++) {
        char c = string.data[i];
        if (c != '\\') {
            rl_buffer_char(out, c);
            continue;
        }
        c = string.data[++i];
        if (c == 'u') { /* only control characters are written so: \u00XX */
            const char *x = string.data + i + 3;
            int high = x[0] - '0', low = x[1] <= '9' ? x[1] - '0' : x[1] - 'a' + 10;
            rl_buffer_char(out, (char)(high << 4 | low));
            i += 4;
        } else {
            rl_buffer_char(out, to[strchr(from, c) - from]);
        }
    }
}

void rl_json_escape(rl_slice text, rl_buffer *out)
{
    static const char digits[] = "0123456789abcdef";
    static const char short_form[32] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    size_t from = 0;
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        rl_buffer_put(out, text.data + from, i - from);
        from = i + 1;
        char e[6] = {'\\', (char)c, 0, 0, 0, 0};
        size_t n = 2;
        if (c < 0x20 && short_form[c] != 0) {
            e[1] = short_form[c];
        } else if (c < 0x20) {
            memcpy(e + 1, "u00", 3);
            e[4] = digits[c >> 4];
            e[5] = digits[c & 15];
            n = 6;
        }
        rl_buffer_put(out, e, n);
    }
    rl_buffer_put(out, text.data + from, text.size - from);
}
