/* cli/chat_commands: the lines that begin with a slash. Their answers go to standard error: standard output carries the
 * model's text alone. */
#include "chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct command {
    const char *name, *args, *summary;
    void (*run)(chat *c, const char *rest);
} command;

static void cmd_show_help(chat *c, const char *rest);

/* ---- The conversation ------------------------------------------------------------------------------------------------ */

static void refuse(chat *c, const char *why)
{
    fprintf(stderr, "redlite: %s\n", why);
    c->status = CLI_EXIT_FAILURE;
}

static void cmd_reset(chat *c, const char *rest)
{
    (void)rest;
    conv_keep(&c->conv, 0);
    chat_note("The conversation is empty%s.", c->conv.system.size ? "; the system message stays" : "");
}

/* The turns before the person's last message; SIZE_MAX when there is none. */
static size_t last_message(const chat *c)
{
    for (size_t i = c->conv.n; i-- > 0;)
        if (c->conv.turns[i].role == RL_ROLE_USER) return i;
    return SIZE_MAX;
}

static void cmd_undo(chat *c, const char *rest)
{
    (void)rest;
    size_t at = last_message(c);
    if (at == SIZE_MAX) {
        refuse(c, "/undo: there is no message to take back");
        return;
    }
    char shown[64];
    const conv_text *t = &c->conv.turns[at].content;
    rl_escape(shown, sizeof shown, t->data ? t->data : "", t->size);
    conv_keep(&c->conv, at);
    chat_note("Took back: %s", shown);
}

static void cmd_retry(chat *c, const char *rest)
{
    (void)rest;
    size_t at = last_message(c);
    if (at == SIZE_MAX) {
        refuse(c, "/retry: there is no message to answer again");
        return;
    }
    /* The old answer is only given up when there is a new one. */
    size_t n = c->conv.n;
    c->conv.n = at + 1;
    conversation old = {.n = n - at - 1};
    old.turns = old.n ? malloc(old.n * sizeof *old.turns) : NULL;
    if (old.n && !old.turns) {
        c->conv.n = n;
        refuse(c, "/retry: no memory");
        return;
    }
    if (old.n) memcpy(old.turns, c->conv.turns + at + 1, old.n * sizeof *old.turns);
    if (!chat_answer(c)) {
        if (old.n) memcpy(c->conv.turns + at + 1, old.turns, old.n * sizeof *old.turns);
        c->conv.n = n;
        old.n = 0;
    }
    conv_free(&old);
}

static void cmd_system(chat *c, const char *rest)
{
    if (*rest) {
        bool none = strcmp(rest, "none") == 0;
        if (!conv_set_system(&c->conv, rest, none ? 0 : strlen(rest))) refuse(c, "/system: no memory");
    }
    chat_note("System message: %s", c->conv.system.size ? c->conv.system.data : "none");
}

/* ---- Files ----------------------------------------------------------------------------------------------------------- */

/* The file named, or that of the last /save or /load. NULL after an error message. */
static const char *choose_file(chat *c, const char *name, const char *rest)
{
    if (*rest) {
        char *copy = strdup(rest);
        if (!copy) {
            refuse(c, "no memory");
            return NULL;
        }
        free(c->file);
        c->file = copy;
    }
    if (c->file) return c->file;
    char why[96];
    snprintf(why, sizeof why, "/%s needs the name of a file", name);
    refuse(c, why);
    return NULL;
}

static void cmd_save(chat *c, const char *rest)
{
    rl_error err = {0};
    const char *path = choose_file(c, "save", rest);
    if (!path) return;
    if (conv_save(&c->conv, path, rl_engine_info(c->engine)->name, &err) == RL_OK)
        chat_note("Saved %zu turns to %s", c->conv.n, path);
    else
        c->status = cli_error(&err);
}

static void cmd_load(chat *c, const char *rest)
{
    rl_error err = {0};
    const char *path = choose_file(c, "load", rest);
    if (!path) return;
    if (strcmp(path, "-") == 0) {
        refuse(c, "/load: standard input is the chat itself; name a file");
        return;
    }
    if (conv_load(&c->conv, path, &err) == RL_OK)
        chat_note("Loaded %zu turns from %s", c->conv.n, path);
    else
        c->status = cli_error(&err);
}

/* ---- Numbers --------------------------------------------------------------------------------------------------------- */

static double per_second(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

void chat_print_stats(const chat *c)
{
    const chat_stats *s = &c->last;
    uint32_t computed = s->n_prompt - s->n_reused;
    fprintf(stderr, "prompt    %u tokens: %u kept, %u computed in %.2f s, %.1f tok/s\n", s->n_prompt, s->n_reused, computed,
            s->prompt_seconds, per_second(computed, s->prompt_seconds));
    fprintf(stderr, "answer    %u tokens in %.2f s, %.1f tok/s\n", s->n_answer, s->answer_seconds,
            per_second(s->n_answer, s->answer_seconds));
    fprintf(stderr, "context   %u of %u tokens\n", rl_session_position(c->session), rl_session_capacity(c->session));
}

static void cmd_stats(chat *c, const char *rest)
{
    if (strcmp(rest, "on") == 0 || strcmp(rest, "off") == 0) {
        c->show_stats = rest[1] == 'n';
        chat_note("Statistics after every answer: %s", rest);
        return;
    }
    if (c->last.n_prompt)
        chat_print_stats(c);
    else
        fputs("answer    none yet\n", stderr);
    fprintf(stderr, "memory    peak %.1f MiB\n", (double)cli_peak_memory() / 1048576.0);
    cli_print_cache(c->engine, c->computed_tokens, c->computed_seconds);
}

static void cmd_tokens(chat *c, const char *rest)
{
    size_t n = 0;
    (void)rest;
    if (!chat_count_tokens(c, &n)) {
        c->status = CLI_EXIT_FAILURE;
        return;
    }
    fprintf(stderr, "%zu tokens in %zu turns; the context holds %u\n", n, c->conv.n, rl_session_capacity(c->session));
}

static void cmd_temp(chat *c, const char *rest)
{
    if (*rest) {
        char *end = NULL;
        rl_sampling p = c->sampling;
        rl_error err = {0};
        p.temperature = strtof(rest, &end);
        if (*end || !isfinite(p.temperature)) {
            refuse(c, "/temp: expected a number from 0 to 100");
            return;
        }
        if (rl_sampling_check(&p, &err) != RL_OK) {
            c->status = cli_error(&err);
            return;
        }
        c->sampling.temperature = p.temperature;
    }
    chat_note("Temperature %g", (double)c->sampling.temperature);
}

static void cmd_quit(chat *c, const char *rest)
{
    (void)rest;
    c->leave = true;
}

/* ---- The table ------------------------------------------------------------------------------------------------------- */

static const command commands[] = {
    {"help", "", "this list", cmd_show_help},
    {"reset", "", "forget the conversation, keep the system message", cmd_reset},
    {"undo", "", "take the last message and its answer back", cmd_undo},
    {"retry", "", "another answer to the last message", cmd_retry},
    {"system", "[TEXT | none]", "show or set the system message", cmd_system},
    {"temp", "[T]", "show or set the temperature; 0 = always the likeliest", cmd_temp},
    {"save", "[FILE]", "write the conversation as JSON", cmd_save},
    {"load", "[FILE]", "go on with a saved conversation", cmd_load},
    {"tokens", "", "length of the conversation", cmd_tokens},
    {"stats", "[on | off]", "times and speeds of the last answer, or of every answer", cmd_stats},
    {"quit", "", "leave (also Ctrl-D)", cmd_quit},
    {"exit", "", "the same", cmd_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void cmd_show_help(chat *c, const char *rest)
{
    (void)c;
    (void)rest;
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "  /%-8s%-16s%s\n", commands[i].name, commands[i].args, commands[i].summary);
    fputs("A line that ends in \\ goes on in the next one. \"\"\" begins a text of several lines, and ends it.\n"
          "Ctrl-C stops an answer; at the prompt, twice, it leaves. A message may begin with / when it is doubled: //\n",
          stderr);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static size_t name_length(const char *line, size_t n)
{
    size_t i = 1;
    while (i < n && is_letter(line[i]))
        i++;
    return i - 1;
}

bool chat_is_command(const char *line, size_t n)
{
    if (n == 0 || line[0] != '/') return false;
    size_t end = name_length(line, n) + 1;
    return end == n || line[end] == ' ' || line[end] == '\t' || line[end] == '\n' || line[end] == '?';
}

static void unknown(chat *c, const char *name)
{
    const char *names[N_COMMANDS + 1] = {0};
    char shown[80];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = cli_nearest(name, names);
    rl_escape(shown, sizeof shown, name, strlen(name));
    if (near)
        fprintf(stderr, "redlite: unknown command /%s; did you mean /%s? /help lists them\n", shown, near);
    else
        fprintf(stderr, "redlite: unknown command /%s; /help lists them\n", shown);
    c->status = CLI_EXIT_FAILURE;
}

void chat_command(chat *c, const char *line, size_t n)
{
    size_t len = name_length(line, n);
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(len < 31 ? len : 31), line + 1);
    const char *rest = line + 1 + len;
    rest += strspn(rest, " \t\n");
    char *text = strdup(rest);
    if (!text) {
        refuse(c, "no memory");
        return;
    }
    for (size_t end = strlen(text); end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t'); end--)
        text[end - 1] = 0;
    const command *found = NULL;
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) found = &commands[i];
    if (!found)
        unknown(c, name);
    else if (*text && !*found->args)
        fprintf(stderr, "redlite: /%s takes nothing after it\n", name);
    else
        found->run(c, text);
    if (found && *text && !*found->args) c->status = CLI_EXIT_FAILURE;
    free(text);
}
