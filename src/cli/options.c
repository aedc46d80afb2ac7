/* cli/options: see options.h. */
#include "options.h"
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_usage_error(const char *command, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "redlite %s: %s\nTry: redlite %s --help\n", command, text, command);
    return CLI_EXIT_USAGE;
}

/* ---- Near names ------------------------------------------------------------------------------------------------------ */

enum { NEAR_MAX = 48 };

/* Levenshtein distance of words up to NEAR_MAX letters; a transposition counts as two. */
static unsigned distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > NEAR_MAX || nb > NEAR_MAX) return 1000;
    unsigned row[NEAR_MAX + 1];
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

const char *cli_nearest(const char *given, const char *const *names)
{
    const char *best = NULL;
    unsigned least = (unsigned)strlen(given) / 3 + 1;
    for (; *names; names++) {
        unsigned d = distance(given, *names);
        bool prefix = strlen(given) >= 3 && strncmp(given, *names, strlen(given)) == 0;
        if (prefix && d > 1) d = 1;
        if (d <= least && (!best || d < least)) {
            best = *names;
            least = d;
        }
    }
    return best;
}

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

static const char *shown(const char *text)
{
    static char out[80];
    return rl_escape(out, sizeof out, text, strlen(text));
}

/* A whole number in text; the limits are those of the option, all within int64_t. */
static bool parse_whole(const char *text, size_t n, double min, double max, int64_t *out, char *why, size_t cap)
{
    char buf[32] = "", quoted[80];
    rl_escape(quoted, sizeof quoted, text, n);
    char *end = buf;
    errno = 0;
    long long v = 0;
    if (n > 0 && n < sizeof buf) {
        memcpy(buf, text, n);
        buf[n] = 0;
        v = strtoll(buf, &end, 10);
    }
    bool blank = n == 0 || buf[0] == ' ' || (buf[0] >= '\t' && buf[0] <= '\r'); /* strtoll would skip it */
    if (n >= sizeof buf || blank || end == buf || *end != 0) {
        snprintf(why, cap, "\"%s\" is not a whole number", quoted);
        return false;
    }
    if (errno == ERANGE || (double)v < min || (double)v > max) {
        snprintf(why, cap, "%s is out of range; expected %.0f to %.0f", quoted, min, max);
        return false;
    }
    *out = v;
    return true;
}

static bool parse_real(const char *text, double min, double max, float *out, char *why, size_t cap)
{
    char *end = NULL;
    errno = 0;
    double v = strtod(text, &end);
    bool word = strpbrk(text, "xXnNpP") != NULL; /* hexadecimal, nan, inf: not what a person means */
    if (end == text || *end != 0 || word || text[0] == ' ' || !isfinite(v)) {
        snprintf(why, cap, "\"%s\" is not a number", shown(text));
        return false;
    }
    if (v < min || v > max) {
        snprintf(why, cap, "%s is out of range; expected %g to %g", shown(text), min, max);
        return false;
    }
    *out = (float)v;
    return true;
}

static bool parse_choice(const cli_option *o, const char *text, char *why, size_t cap)
{
    for (int i = 0; o->choices[i]; i++)
        if (strcmp(text, o->choices[i]) == 0) {
            *(int *)o->value = i;
            return true;
        }
    int used = snprintf(why, cap, "\"%s\" is not one of:", shown(text));
    for (int i = 0; o->choices[i] && used > 0 && (size_t)used < cap; i++)
        used += snprintf(why + used, cap - (size_t)used, "%s %s", i ? "," : "", o->choices[i]);
    return false;
}

static bool parse_uints(const cli_option *o, const char *text, char *why, size_t cap)
{
    cli_uints *list = o->value;
    list->n = 0;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        int64_t v;
        if (list->n == CLI_UINTS_MAX) {
            snprintf(why, cap, "more than %d numbers", CLI_UINTS_MAX);
            return false;
        }
        if (!parse_whole(p, n, o->min, o->max, &v, why, cap)) return false;
        list->v[list->n++] = (uint32_t)v;
        p += n;
        if (!*p) return true;
    }
}

bool cli_parse_ids(const char *text, size_t n, int32_t **ids, size_t *n_ids, char *why, size_t cap)
{
    static const char gap[] = ", \t\r\n";
    int32_t *list = NULL;
    size_t count = 0, room = 0;
    for (size_t i = 0; i < n;) {
        if (text[i] && strchr(gap, text[i])) {
            i++;
            continue;
        }
        size_t len = 0;
        while (i + len < n && !(text[i + len] && strchr(gap, text[i + len])))
            len++;
        int64_t v;
        if (!parse_whole(text + i, len, 0, INT32_MAX, &v, why, cap)) {
            free(list);
            return false;
        }
        if (count == room) {
            room = room ? room * 2 : 256;
            int32_t *grown = realloc(list, room * sizeof *list);
            if (!grown) {
                snprintf(why, cap, "no memory for %zu ids", room);
                free(list);
                return false;
            }
            list = grown;
        }
        list[count++] = (int32_t)v;
        i += len;
    }
    *ids = list;
    *n_ids = count;
    return true;
}

static bool parse_biases(const cli_option *o, const char *text, char *why, size_t cap)
{
    cli_biases *list = o->value;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ","), id_len = strcspn(p, "=,");
        char number[32] = "";
        int64_t id;
        if (!parse_whole(p, id_len, 0, INT32_MAX, &id, why, cap)) return false;
        if (id_len == n || n - id_len - 1 >= sizeof number) {
            snprintf(why, cap, "expected ID=BIAS, for example 1234=-5");
            return false;
        }
        if (list->n == CLI_BIASES_MAX) {
            snprintf(why, cap, "more than %d biases", CLI_BIASES_MAX);
            return false;
        }
        memcpy(number, p + id_len + 1, n - id_len - 1);
        bool forbid = strcmp(number, "-inf") == 0;
        if (forbid)
            list->bias[list->n] = -INFINITY;
        else if (!parse_real(number, -1000, 1000, &list->bias[list->n], why, cap))
            return false;
        list->id[list->n++] = (int32_t)id;
        p += n;
        if (!*p) return true;
    }
}

static bool set_value(const cli_option *o, const char *text, char *why, size_t cap)
{
    int64_t v;
    switch (o->kind) {
    case CLI_FLAG:
        return true;
    case CLI_TEXT:
        *(const char **)o->value = text;
        return true;
    case CLI_INT:
        if (!parse_whole(text, strlen(text), o->min, o->max, &v, why, cap)) return false;
        *(int32_t *)o->value = (int32_t)v;
        return true;
    case CLI_UINT:
        if (!parse_whole(text, strlen(text), o->min, o->max, &v, why, cap)) return false;
        *(uint32_t *)o->value = (uint32_t)v;
        return true;
    case CLI_FLOAT:
        return parse_real(text, o->min, o->max, o->value, why, cap);
    case CLI_CHOICE:
        return parse_choice(o, text, why, cap);
    case CLI_UINTS:
        return parse_uints(o, text, why, cap);
    case CLI_BIASES:
        return parse_biases(o, text, why, cap);
    case CLI_IDS: {
        cli_ids *ids = o->value;
        free(ids->ids);
        *ids = (cli_ids){.given = true};
        return cli_parse_ids(text, strlen(text), &ids->ids, &ids->n, why, cap);
    }
    }
    return false;
}

/* ---- Help ------------------------------------------------------------------------------------------------------------ */

static void print_option(const cli_option *o)
{
    char left[80];
    int n = 0;
    if (o->letter)
        n = snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name);
    else
        n = snprintf(left, sizeof left, "      --%s", o->name);
    if (o->kind != CLI_FLAG && n > 0 && (size_t)n < sizeof left)
        snprintf(left + n, sizeof left - (size_t)n, " %s", o->arg ? o->arg : "VALUE");
    const char *line = o->help;
    if (strlen(left) > 30)
        printf("%s\n%32s", left, "");
    else
        printf("%-32s", left);
    for (;;) {
        size_t len = strcspn(line, "\n");
        printf("%.*s\n", (int)len, line);
        line += len;
        if (!*line++) return;
        printf("%32s", "");
    }
}

static void print_help(const cli_command_line *cl)
{
    printf("Usage: redlite %s%s%s\n\n%s\n", cl->command, *cl->usage ? " " : "", cl->usage, cl->about);
    for (const cli_table *t = cl->tables; t->title; t++) {
        printf("\n%s\n", t->title);
        for (const cli_option *o = t->options; o->name; o++)
            print_option(o);
    }
    printf("\n%-32s%s\n", "  -h, --help", "this text");
}

/* ---- Parsing --------------------------------------------------------------------------------------------------------- */

static const cli_option *find_option(const cli_command_line *cl, const char *name, size_t n, char letter)
{
    for (const cli_table *t = cl->tables; t->title; t++)
        for (const cli_option *o = t->options; o->name; o++)
            if (letter ? o->letter == letter : strlen(o->name) == n && memcmp(o->name, name, n) == 0) return o;
    return NULL;
}

static int unknown_option(const cli_command_line *cl, const char *arg, size_t n)
{
    enum { MAX = 128 };
    const char *names[MAX + 1] = {"help"};
    size_t count = 1;
    for (const cli_table *t = cl->tables; t->title; t++)
        for (const cli_option *o = t->options; o->name && count < MAX; o++)
            names[count++] = o->name;
    char given[64], quoted[80];
    snprintf(given, sizeof given, "%.*s", (int)n, arg);
    rl_escape(quoted, sizeof quoted, arg, n);
    const char *bare = given + strspn(given, "-"), *near = strlen(bare) > 1 ? cli_nearest(bare, names) : NULL;
    if (near) return cli_usage_error(cl->command, "unknown option %s; did you mean --%s?", quoted, near);
    return cli_usage_error(cl->command, "unknown option %s", quoted);
}

/* One option at argv[*i]; advances *i over its value. */
static int take_option(cli_command_line *cl, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *value = strchr(arg, '=');
    size_t n = value ? (size_t)(value - arg) : strlen(arg);
    bool is_long = arg[1] == '-';
    const cli_option *o = is_long ? find_option(cl, arg + 2, n - 2, 0) : n == 2 ? find_option(cl, NULL, 0, arg[1]) : NULL;
    if (!o) return unknown_option(cl, arg, n);
    if (o->kind == CLI_FLAG) {
        if (value) return cli_usage_error(cl->command, "%.*s takes no value", (int)n, arg);
        *(bool *)o->value = true;
        return CLI_GO_ON;
    }
    if (value)
        value++;
    else if (*i + 1 < argc)
        value = argv[++*i];
    else
        return cli_usage_error(cl->command, "%.*s needs a value (%s)", (int)n, arg, o->arg ? o->arg : "VALUE");
    char why[512] = "";
    if (set_value(o, value, why, sizeof why)) return CLI_GO_ON;
    return cli_usage_error(cl->command, "%.*s: %s", (int)n, arg, why);
}

/* A word that is no option: people name the model or write the prompt so. */
static int unexpected(const cli_command_line *cl, const char *arg)
{
    size_t n = strlen(arg);
    if (n > 5 && strcmp(arg + n - 5, ".gguf") == 0 && find_option(cl, "model", 5, 0))
        return cli_usage_error(cl->command, "unexpected argument \"%s\"; a model is named with -m FILE", shown(arg));
    if (find_option(cl, "prompt", 6, 0))
        return cli_usage_error(cl->command, "unexpected argument \"%s\"; a text is given with -p \"TEXT\"", shown(arg));
    return cli_usage_error(cl->command, "unexpected argument \"%s\"", shown(arg));
}

int cli_parse(cli_command_line *cl, int argc, char **argv)
{
    cl->positional = (const char **)argv; /* taken words move to the front: argv is ours to order */
    cl->n_positional = 0;
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (options && strcmp(arg, "--") == 0) {
            options = false;
        } else if (options && (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)) {
            print_help(cl);
            return cli_finish_stdout();
        } else if (options && arg[0] == '-' && arg[1]) {
            int st = take_option(cl, argc, argv, &i);
            if (st != CLI_GO_ON) return st;
        } else if (cl->n_positional == cl->max_positional) {
            return unexpected(cl, arg);
        } else {
            argv[cl->n_positional++] = argv[i];
        }
    }
    return CLI_GO_ON;
}
