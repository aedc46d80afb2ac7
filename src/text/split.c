/* text/split: the qwen2 pre-tokenisation, a hand-written matcher of
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} | ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
 *
 * with the alternatives tried in this order. Each piece is found in one pass over its characters, plus one character of
 * look-ahead, so the whole text takes linear time. */
#include "text/split.h"
#include "text/unicode.h"

#define O RL_CHAR_OTHER
#define L RL_CHAR_LETTER
#define N RL_CHAR_NUMBER
#define W RL_CHAR_SPACE
static const uint8_t ASCII_CLASS[128] = {
    O, O, O, O, O, O, O, O, O, W, W, W, W, W, O, O, /* 00 */
    O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, /* 10 */
    W, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, /* 20 */
    N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O, /* 30 */
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, /* 40 */
    L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, /* 50 */
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, /* 60 */
    L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O, /* 70 */
};
#undef O
#undef L
#undef N
#undef W

typedef struct next_char {
    uint32_t cp;
    uint32_t size;       /* 0 at the end of the text */
    rl_char_class class; /* RL_CHAR_OTHER at the end: check size */
} next_char;

static next_char look(const char *text, size_t n, size_t p)
{
    next_char c = {0, 0, RL_CHAR_OTHER};
    if (p >= n) return c;
    const uint8_t *s = (const uint8_t *)text + p;
    if (s[0] < 0x80) {
        c.cp = s[0];
        c.size = 1;
        c.class = (rl_char_class)ASCII_CLASS[s[0]];
        return c;
    }
    if (s[0] < 0xE0) {
        c.cp = (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3Fu);
        c.size = 2;
    } else if (s[0] < 0xF0) {
        c.cp = (uint32_t)(s[0] & 0x0F) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
        c.size = 3;
    } else {
        c.cp = (uint32_t)(s[0] & 0x07) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
        c.size = 4;
    }
    c.class = rl_char_class_of(c.cp);
    return c;
}

static bool is_newline(uint32_t cp)
{
    return cp == '\r' || cp == '\n';
}

static size_t skip_class(const char *text, size_t n, size_t p, rl_char_class class)
{
    for (;;) {
        next_char c = look(text, n, p);
        if (c.size == 0 || c.class != class) return p;
        p += c.size;
    }
}

/* Bytes of a contraction at p (which holds an apostrophe), or 0. Only ASCII letters count, in either case. */
static size_t contraction(const char *text, size_t n, size_t p)
{
    if (n - p < 2) return 0;
    char a = (char)(text[p + 1] | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (n - p < 3) return 0;
    char b = (char)(text[p + 2] | 0x20);
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* A run of white space starting at p: up to its last newline; else without its last character, which the next piece may want;
 * but whole at the end of the text or when it is a single character. */
static size_t space_piece(const char *text, size_t n, size_t p)
{
    size_t q = p, last = p, after_newline = 0;
    for (;;) {
        next_char c = look(text, n, q);
        if (c.size == 0 || c.class != RL_CHAR_SPACE) break;
        last = q;
        q += c.size;
        if (is_newline(c.cp)) after_newline = q;
    }
    if (after_newline != 0) return after_newline;
    return q < n && last > p ? last : q;
}

size_t rl_split_next(const char *text, size_t n, size_t p)
{
    next_char c = look(text, n, p);
    if (c.cp == '\'') {
        size_t len = contraction(text, n, p);
        if (len > 0) return p + len;
    }
    if (c.class == RL_CHAR_LETTER) return skip_class(text, n, p + c.size, RL_CHAR_LETTER);
    if (c.class == RL_CHAR_NUMBER) return p + c.size;

    next_char d = look(text, n, p + c.size);
    if (!is_newline(c.cp) && d.class == RL_CHAR_LETTER) return skip_class(text, n, p + c.size, RL_CHAR_LETTER);
    if (c.class == RL_CHAR_OTHER || (c.cp == ' ' && d.size > 0 && d.class == RL_CHAR_OTHER)) {
        size_t q = skip_class(text, n, p + c.size, RL_CHAR_OTHER);
        while (q < n && is_newline((uint8_t)text[q]))
            q++;
        return q;
    }
    return space_piece(text, n, p);
}
