/* base/error: sentences for people. Owns the wording of rl_error; allocates nothing, so it works when memory is gone. */
#include "base/error.h"
#include "base/utf8_cut.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef rl_fail /* the analyser's stand-ins */
#undef rl_fail_errno

/* Formats into a buffer of its own first: an argument may be the text that is being replaced. */
static rl_status fail_v(rl_error *err, rl_status status, const char *suffix, const char *fmt, va_list args)
{
    char text[RL_ERROR_TEXT_MAX];
    if (!err) return status;
    int n = vsnprintf(text, sizeof text, fmt, args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used >= sizeof text) used = sizeof text - 1;
    if (suffix && used + 1 < sizeof text) {
        int m = snprintf(text + used, sizeof text - used, ": %s", suffix);
        if (m > 0) used += (size_t)m;
        if (used >= sizeof text) used = sizeof text - 1;
    }
    used = rl_utf8_cut(text, used);
    memcpy(err->text, text, used);
    err->text[used] = 0;
    err->status = status;
    return status;
}

rl_status rl_fail(rl_error *err, rl_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail_v(err, status, NULL, fmt, args);
    va_end(args);
    return status;
}

/* strerror_r comes in two shapes; the GNU one may return a constant string and leave the buffer alone. */
static const char *describe(int errnum, char *buf, size_t cap)
{
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
    return strerror_r(errnum, buf, cap);
#else
    if (strerror_r(errnum, buf, cap) != 0) snprintf(buf, cap, "error %d", errnum);
    return buf;
#endif
}

rl_status rl_fail_errno(rl_error *err, rl_status status, int errnum, const char *fmt, ...)
{
    char buf[128];
    va_list args;
    va_start(args, fmt);
    fail_v(err, status, describe(errnum, buf, sizeof buf), fmt, args);
    va_end(args);
    return status;
}

rl_status rl_error_prefix(rl_error *err, const char *fmt, ...)
{
    char old[RL_ERROR_TEXT_MAX];
    va_list args;
    if (!err) return RL_ERR_INTERNAL;
    memcpy(old, err->text, sizeof old);
    va_start(args, fmt);
    fail_v(err, err->status, old, fmt, args);
    va_end(args);
    return err->status;
}

/* Characters that could move a terminal's cursor, end a quotation in a message, or reorder what is shown. */
static bool is_unsafe(uint32_t cp)
{
    if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == '"' || cp == '\'') return true;
    return (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0x2028 || cp == 0x2029;
}

const char *rl_escape(char *out, size_t cap, const char *text, size_t n)
{
    size_t used = 0, safe = 0, i = 0; /* safe: the last border where "..." still fits */
    if (cap == 0) return out;
    while (i < n) {
        char piece[4 * 4 + 1];
        uint32_t cp;
        size_t bytes = rl_utf8_decode(text + i, n - i, &cp);
        size_t length = 0;
        if (bytes == 0 || is_unsafe(cp)) {
            if (bytes == 0) bytes = 1;
            for (size_t k = 0; k < bytes; k++)
                length += (size_t)snprintf(piece + length, sizeof piece - length, "\\x%02x", (unsigned char)text[i + k]);
        } else {
            memcpy(piece, text + i, bytes);
            length = bytes;
        }
        if (used + 4 <= cap) safe = used;
        if (used + length + 1 > cap) {
            size_t dots = cap - 1 - safe < 3 ? cap - 1 - safe : 3;
            memcpy(out + safe, "...", dots);
            out[safe + dots] = 0;
            return out;
        }
        memcpy(out + used, piece, length);
        used += length;
        i += bytes;
    }
    out[used] = 0;
    return out;
}

const char *rl_escape_str(char *out, size_t cap, const char *text)
{
    return rl_escape(out, cap, text, strlen(text));
}

const char *rl_status_name(rl_status status)
{
    switch (status) {
    case RL_OK:
        return "ok";
    case RL_ERR_ARGUMENT:
        return "argument";
    case RL_ERR_IO:
        return "io";
    case RL_ERR_FORMAT:
        return "format";
    case RL_ERR_UNSUPPORTED:
        return "unsupported";
    case RL_ERR_MEMORY:
        return "memory";
    case RL_ERR_LIMIT:
        return "limit";
    case RL_ERR_CANCELLED:
        return "cancelled";
    case RL_ERR_DEVICE:
        return "device";
    case RL_ERR_INTERNAL:
        return "internal";
    }
    return "unknown";
}
