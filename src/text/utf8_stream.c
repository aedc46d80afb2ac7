/* text/utf8_stream: incremental detokenisation. Tokens may end inside a character; what leaves here is always whole characters.
 *
 * Ill-formed input is replaced as Unicode recommends: one U+FFFD for each longest prefix of a valid character. */
#include "text/text.h"
#include "text/unicode.h"
#include <string.h>

/* Whether the n (1..3) bytes at s could be the beginning of a well-formed character that needs more bytes. */
static bool is_prefix(const uint8_t *s, size_t n)
{
    uint8_t full[4] = {0x80, 0x80, 0x80, 0x80};
    memcpy(full, s, n);
    /* The second byte's lowest allowed value depends on the lead; with it missing, a lead alone decides. */
    if (n == 1) full[1] = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    size_t len = rl_utf8_valid_length((const char *)full, sizeof full);
    return len > n;
}

static size_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

size_t rl_utf8_stream_push(rl_utf8_stream *s, const char *in, size_t n, char *out)
{
    size_t written = 0, i = 0;
    /* At most three bytes are held, so a byte at a time completes or refutes the held character. */
    while (i < n && s->n_held > 0) {
        s->held[s->n_held] = (uint8_t)in[i];
        size_t len = (size_t)s->n_held + 1;
        if (rl_utf8_valid_length((const char *)s->held, len) == len) {
            memcpy(out + written, s->held, len);
            written += len;
            s->n_held = 0;
            i++;
        } else if (len < 4 && is_prefix(s->held, len)) {
            s->n_held++;
            i++;
        } else {
            written += put_replacement(out + written);
            s->n_held = 0; /* in[i] is looked at again, on its own */
        }
    }
    while (i < n) {
        size_t len = rl_utf8_valid_length(in + i, n - i);
        if (len > 0) {
            memcpy(out + written, in + i, len);
            written += len;
            i += len;
            continue;
        }
        size_t part = 0;
        while (part < 3 && i + part < n && is_prefix((const uint8_t *)in + i, part + 1))
            part++;
        if (part > 0 && i + part == n) {
            memcpy(s->held, in + i, part);
            s->n_held = (uint8_t)part;
            return written;
        }
        written += put_replacement(out + written);
        i += part > 0 ? part : 1;
    }
    return written;
}

size_t rl_utf8_stream_finish(rl_utf8_stream *s, char *out)
{
    size_t written = s->n_held > 0 ? put_replacement(out) : 0;
    s->n_held = 0;
    return written;
}
