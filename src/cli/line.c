/* cli/line: reading lines. Standard input is read by this file alone, byte by byte from its own buffer, so that a signal can
 * end a wait and so that a paste can be told from typing. */
#include "line.h"
#include "cli.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef REDLITE_HAVE_EDIT
#include <histedit.h>
#endif

enum { HISTORY_LINES = 1000, PASTE_PAUSE_MS = 50 };

typedef struct paste {
    char name[64]; /* stands for the text in the edited line */
    char *text;
    size_t size;
} paste;

struct line_reader {
    bool terminal;
    unsigned char bytes[4096]; /* read but not used */
    size_t at, end;
    line_end why; /* how the last wait ended */
    FILE *screen;
    const char *prompt;
    paste *pastes;
    size_t n_pastes;
    wchar_t typed[80]; /* characters the editor gets before those of the terminal */
    size_t typed_at, n_typed;
#ifdef REDLITE_HAVE_EDIT
    EditLine *editor;
    History *history;
#endif
};

/* ---- Bytes ----------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t resized, continued;

static void on_terminal_signal(int sig)
{
    if (sig == SIGWINCH)
        resized = 1;
    else
        continued = 1;
}

#ifdef REDLITE_HAVE_EDIT
/* The window or the job came back in another state. */
static void renew_screen(line_reader *r)
{
    if (resized) el_resize(r->editor);
    if (continued) {
        el_set(r->editor, EL_PREP_TERM, 0);
        el_set(r->editor, EL_PREP_TERM, 1);
    }
    if (continued || resized) el_set(r->editor, EL_REFRESH);
    resized = continued = 0;
}
#else
static void renew_screen(line_reader *r)
{
    (void)r;
}
#endif

/* Waits for input; signals are let in only while waiting, so none is missed between the look at its flag and the wait. */
static bool wait_for_input(line_reader *r, int timeout_ms)
{
    sigset_t block, before;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGWINCH);
    sigaddset(&block, SIGCONT);
    sigprocmask(SIG_BLOCK, &block, &before);
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    struct timespec limit = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};
    int n;
    do {
        renew_screen(r);
        errno = 0;
        n = cli_interrupted() ? -1 : ppoll(&p, 1, timeout_ms < 0 ? NULL : &limit, &before);
    } while (n < 0 && errno == EINTR && !cli_interrupted());
    sigprocmask(SIG_SETMASK, &before, NULL);
    r->why = n < 0 ? (cli_interrupted() ? LINE_INTERRUPT : LINE_FAILED) : LINE_EOF;
    return n > 0;
}

/* The next byte, or -1 with r->why. */
static int next_byte(line_reader *r, int timeout_ms)
{
    while (r->at == r->end) {
        if (!wait_for_input(r, timeout_ms)) return -1;
        ssize_t n = read(STDIN_FILENO, r->bytes, sizeof r->bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        r->why = n < 0 ? LINE_FAILED : LINE_EOF;
        if (n < 0) fprintf(stderr, "redlite: cannot read standard input: %s\n", strerror(errno));
        if (n <= 0) return -1;
        r->at = 0;
        r->end = (size_t)n;
    }
    return r->bytes[r->at++];
}

static bool add_byte(char **text, size_t *n, size_t *room, int byte)
{
    if (*n + 1 >= *room) {
        size_t more = *room ? *room * 2 : 256;
        char *grown = realloc(*text, more);
        if (!grown) return false;
        *text = grown;
        *room = more;
    }
    (*text)[(*n)++] = (char)byte;
    (*text)[*n] = 0;
    return true;
}

static line_end read_plain(line_reader *r, size_t limit, char **text, size_t *n)
{
    char *line = NULL;
    size_t size = 0, room = 0;
    int b;
    while ((b = next_byte(r, -1)) >= 0 && b != '\n') {
        if (size < limit && add_byte(&line, &size, &room, b)) continue;
        fprintf(stderr, "redlite: a line of the input is longer than %zu bytes or than memory\n", limit);
        free(line);
        return LINE_FAILED;
    }
    if (b < 0 && (size == 0 || r->why != LINE_EOF)) {
        free(line);
        return r->why;
    }
    if (size > 0 && line[size - 1] == '\r') line[--size] = 0;
    *text = line ? line : calloc(1, 1);
    *n = size;
    return *text ? LINE_TEXT : LINE_FAILED;
}

/* ---- Editing --------------------------------------------------------------------------------------------------------- */

#ifdef REDLITE_HAVE_EDIT

static void type_text(line_reader *r, const char *text)
{
    r->typed_at = r->n_typed = 0;
    while (*text && r->n_typed < sizeof r->typed / sizeof *r->typed)
        r->typed[r->n_typed++] = (unsigned char)*text++;
}

/* Keeps a paste; the editor gets a short name for it. Lines in a paste must not end the message, and an editor that redraws for
 * every character would take minutes for a long one. */
static bool keep_paste(line_reader *r, char *text, size_t size)
{
    paste *grown = realloc(r->pastes, (r->n_pastes + 1) * sizeof *grown);
    if (!grown) return false;
    r->pastes = grown;
    paste *p = &grown[r->n_pastes++];
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    *p = (paste){.text = text, .size = size};
    snprintf(p->name, sizeof p->name, "[pasted text %zu, %zu line%s]", r->n_pastes, lines, lines == 1 ? "" : "s");
    type_text(r, p->name);
    return true;
}

/* Everything up to the mark that ends a paste; terminals send lines' ends as carriage returns. */
static void take_paste(line_reader *r)
{
    static const char closing[] = "\033[201~";
    char *text = NULL;
    size_t n = 0, room = 0;
    int b;
    bool ok = true, ended = false;
    while (ok && !ended && (b = next_byte(r, -1)) >= 0) {
        ok = add_byte(&text, &n, &room, b == '\r' ? '\n' : b);
        ended = ok && n >= 6 && memcmp(text + n - 6, closing, 6) == 0;
    }
    if (ended) n -= 6;
    while (n > 0 && text[n - 1] == '\n')
        n--;
    if (!ok || n == 0 || !keep_paste(r, text, n)) free(text);
}

/* After an escape: whether the terminal announces a paste. What was read of another key goes to the editor. */
static bool paste_begins(line_reader *r)
{
    static const char opening[] = "[200~";
    char seen[8] = "";
    for (size_t i = 0; i < 5; i++) {
        int b = next_byte(r, PASTE_PAUSE_MS);
        if (b < 0) break;
        seen[i] = (char)b;
        if (b != opening[i]) break;
        if (i == 4) return true;
    }
    type_text(r, seen);
    return false;
}

/* One character for libedit, which would retry an interrupted read. Returns 1, 0 at the end, -1 when interrupted. */
static int next_character(EditLine *el, wchar_t *out)
{
    line_reader *r = NULL;
    mbstate_t state = {0};
    el_get(el, EL_CLIENTDATA, &r);
    for (;;) {
        if (r->typed_at < r->n_typed) {
            *out = r->typed[r->typed_at++];
            return 1;
        }
        int b = next_byte(r, -1);
        if (b < 0) return r->why == LINE_EOF ? 0 : -1;
        if (b == '\033') {
            if (paste_begins(r)) {
                take_paste(r);
                continue;
            }
            *out = b;
            return 1;
        }
        char byte = (char)b;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2) continue;
        if (used == (size_t)-1) *out = 0xFFFD;
        return 1;
    }
}

static char *current_prompt(EditLine *el)
{
    line_reader *r = NULL;
    el_get(el, EL_CLIENTDATA, &r);
    return (char *)r->prompt;
}

static bool open_editor(line_reader *r)
{
    /* libedit converts by the locale. Text is UTF-8 here, whatever the environment says. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) (void)setlocale(LC_CTYPE, "C.UTF-8");
    HistEvent event;
    r->editor = el_init("redlite", stdin, r->screen, r->screen);
    r->history = history_init();
    if (!r->editor || !r->history) return false;
    history(r->history, &event, H_SETSIZE, HISTORY_LINES);
    history(r->history, &event, H_SETUNIQUE, 1);
    el_set(r->editor, EL_CLIENTDATA, r);
    el_set(r->editor, EL_SIGNAL, 0);
    el_set(r->editor, EL_EDITOR, "emacs");
    el_set(r->editor, EL_HIST, history, r->history);
    el_set(r->editor, EL_PROMPT, current_prompt);
    el_set(r->editor, EL_GETCFN, next_character);
    el_set(r->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(r->editor, EL_BIND, "\\e[3~", "ed-delete-next-char", NULL);
    el_set(r->editor, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
    el_set(r->editor, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
    (void)el_source(r->editor, NULL); /* the person's ~/.editrc */
    struct sigaction act = {.sa_handler = on_terminal_signal};
    sigaction(SIGWINCH, &act, NULL);
    sigaction(SIGCONT, &act, NULL);
    return true;
}

static void close_editor(line_reader *r)
{
    if (r->history) history_end(r->history);
    if (r->editor) el_end(r->editor);
}

/* The edited line with the pasted texts in the place of their names. */
static char *expand(const line_reader *r, const char *line, size_t n, size_t *size)
{
    char *out = NULL;
    size_t room = 0, i = 0;
    *size = 0;
    bool ok = true;
    while (ok && i < n) {
        const paste *p = NULL;
        for (size_t k = 0; k < r->n_pastes && !p; k++)
            if (strncmp(line + i, r->pastes[k].name, strlen(r->pastes[k].name)) == 0) p = &r->pastes[k];
        if (!p) ok = add_byte(&out, size, &room, line[i++]);
        for (size_t k = 0; p && ok && k < p->size; k++)
            ok = add_byte(&out, size, &room, p->text[k]);
        if (p) i += strlen(p->name);
    }
    if (ok) return out ? out : calloc(1, 1);
    free(out);
    return NULL;
}

static line_end read_edited(line_reader *r, char **text, size_t *n)
{
    int count = 0;
    r->why = LINE_EOF;
    el_set(r->editor, EL_PREP_TERM, 1); /* before the prompt shows: what is typed after it is edited by us alone */
    fputs("\033[?2004h", r->screen);    /* asks the terminal to mark pastes */
    const char *line = el_gets(r->editor, &count);
    fputs("\033[?2004l", r->screen);
    if (!line || count <= 0) {
        fputs(r->why == LINE_INTERRUPT ? "^C\n" : "\n", r->screen);
        return r->why;
    }
    size_t size = (size_t)count;
    while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
        size--;
    HistEvent event;
    if (size > 0) history(r->history, &event, H_ENTER, line);
    *text = expand(r, line, size, n);
    if (*text) return LINE_TEXT;
    fprintf(stderr, "redlite: no memory for the line\n");
    return LINE_FAILED;
}

#else

static bool open_editor(line_reader *r)
{
    (void)r;
    (void)on_terminal_signal;
    return true;
}

static void close_editor(line_reader *r)
{
    (void)r;
}

static line_end read_edited(line_reader *r, char **text, size_t *n)
{
    fputs(r->prompt, r->screen);
    fflush(r->screen);
    line_end end = read_plain(r, SIZE_MAX / 4, text, n);
    if (end != LINE_TEXT) fputs(end == LINE_INTERRUPT ? "^C\n" : "\n", r->screen);
    return end;
}

#endif

/* ---- The reader ------------------------------------------------------------------------------------------------------ */

line_reader *line_open(void)
{
    line_reader *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    /* The result goes to standard output, which may be a file while a person types. */
    r->screen = isatty(STDERR_FILENO) ? stderr : stdout;
    r->terminal = isatty(STDIN_FILENO) != 0 && isatty(fileno(r->screen)) != 0;
    if (!r->terminal || open_editor(r)) return r;
    line_close(r);
    return NULL;
}

void line_close(line_reader *r)
{
    if (!r) return;
    close_editor(r);
    for (size_t i = 0; i < r->n_pastes; i++)
        free(r->pastes[i].text);
    free(r->pastes);
    free(r);
}

bool line_is_terminal(const line_reader *r)
{
    return r->terminal;
}

line_end line_read(line_reader *r, const char *prompt, size_t limit, char **text, size_t *n)
{
    if (!r->terminal) return read_plain(r, limit, text, n);
    r->prompt = prompt;
    line_end end = read_edited(r, text, n);
    fflush(r->screen);
    return end;
}
