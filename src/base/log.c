/* base/log: one line per message on stderr. */
#include "base/log.h"
#include "base/utf8_cut.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int threshold = RL_LOG_INFO;
static pthread_once_t colour_once = PTHREAD_ONCE_INIT;
static bool colour;

void rl_log_set_level(rl_log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

rl_log_level rl_log_get_level(void)
{
    return (rl_log_level)atomic_load_explicit(&threshold, memory_order_relaxed);
}

static void decide_colour(void)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    colour = isatty(STDERR_FILENO) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

static void write_all(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDERR_FILENO, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return; /* nobody is left to tell */
        text += done;
        n -= (size_t)done;
    }
}

void rl_log(rl_log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    static const char *const colours[] = {"\033[1;31m", "\033[1;33m", "", "\033[2m"};
    char line[RL_ERROR_TEXT_MAX + 256];
    const size_t room = sizeof line - 1; /* for the newline */
    va_list args;
    if (level > rl_log_get_level()) return;
    pthread_once(&colour_once, decide_colour);

    bool paint = colour && *colours[level];
    int n = snprintf(line, room, "%s%s%s", paint ? colours[level] : "", names[level], paint ? "\033[0m" : "");
    size_t used = n > 0 ? (size_t)n : 0;
    va_start(args, fmt);
    n = vsnprintf(line + used, room - used, fmt, args);
    va_end(args);
    if (n > 0) used += (size_t)n;
    if (used >= room) used = rl_utf8_cut(line, room - 1);
    line[used++] = '\n';
    write_all(line, used); /* a single write keeps lines of several threads apart */
}
