/* base/utf8_cut: just enough UTF-8 to keep messages valid. text/ owns everything else about UTF-8. */
#ifndef RL_BASE_UTF8_CUT_H
#define RL_BASE_UTF8_CUT_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at the start of text (n > 0 bytes of it) and its code point; 0 when it is not valid UTF-8. */
static inline size_t rl_utf8_decode(const char *text, size_t n, uint32_t *cp)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    size_t bytes = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (bytes == 0 || bytes > n) return 0;
    uint32_t value = bytes == 1 ? s[0] : s[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (s[i] & 0x3fu);
    }
    if (value < least[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 0;
    *cp = value;
    return bytes;
}

/* The length without an incomplete character at the end of n bytes of text. */
static inline size_t rl_utf8_cut(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = s[n - back];
        if (c < 0x80) return n;
        if (c >= 0xc0) {
            size_t need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
            return back < need ? n - back : n;
        }
    }
    return n;
}

#endif
