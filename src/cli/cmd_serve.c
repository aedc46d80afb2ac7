/* cli/serve: the HTTP server. Settings come from flags, else from the environment (REDLITE_SERVE_PARALLEL for --parallel), else
 * from a file of lines "name = value". */
#include "cli.h"
#include "server/server.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CONFIG_MAX   (1u << 20)
#define CONFIG_LINES 256

static rl_server_options o;
static const char *config_path;
static bool quiet_requests;
static uint32_t drain_seconds = 30;

static const cli_option listen_options[] = {
    {.name = "host", .kind = CLI_TEXT, .value = &o.host, .arg = "ADDRESS", .help = "default 127.0.0.1: this machine only"},
    {.name = "port", .letter = 'p', .kind = CLI_UINT, .value = &o.port, .max = 65535, .arg = "N", .help = "default 8080"},
    {.name = "api-key", .kind = CLI_TEXT, .value = &o.api_key, .arg = "KEY", .help = "requests must bring this key"},
    {.name = "cors",
     .kind = CLI_TEXT,
     .value = &o.cors,
     .arg = "ORIGIN",
     .help = "pages of this origin may use the server; * = all"},
    {.name = "model-name", .kind = CLI_TEXT, .value = &o.model_name, .arg = "NAME", .help = "how /v1/models calls the model"},
    {.name = "config",
     .kind = CLI_TEXT,
     .value = &config_path,
     .arg = "FILE",
     .help = "lines \"name = value\" of these options"},
    {0}};

static const cli_option work_options[] = {
    {.name = "parallel",
     .kind = CLI_UINT,
     .value = &o.parallel,
     .min = 1,
     .max = 256,
     .arg = "N",
     .help = "sequences that decode together (default 4)"},
    {.name = "sessions",
     .kind = CLI_UINT,
     .value = &o.sessions,
     .max = 4096,
     .arg = "N",
     .help = "conversations kept in memory for their next turn,\nrunning ones included (default 8)"},
    {.name = "chunk",
     .kind = CLI_UINT,
     .value = &o.chunk,
     .min = 64,
     .max = RL_MAX_BATCH,
     .arg = "N",
     .help = "tokens of a prompt read between two tokens of others\n(default 256)"},
    {.name = "state-dir",
     .kind = CLI_TEXT,
     .value = &o.state_dir,
     .arg = "DIR",
     .help = "keep computed prompts there, also over a restart"},
    {.name = "state-mib",
     .kind = CLI_UINT,
     .value = &o.state_mib,
     .min = 1,
     .max = 1u << 30,
     .arg = "N",
     .help = "of which at most N MiB (default 4096)"},
    {.name = "queue",
     .kind = CLI_UINT,
     .value = &o.queue,
     .max = 65536,
     .arg = "N",
     .help = "requests that may wait (default 64)"},
    {.name = "queue-seconds",
     .kind = CLI_UINT,
     .value = &o.queue_seconds,
     .max = 86400,
     .arg = "S",
     .help = "longest wait for a place, 0 = any (default 300)"},
    {.name = "answer-seconds",
     .kind = CLI_UINT,
     .value = &o.answer_seconds,
     .max = 86400,
     .arg = "S",
     .help = "longest answer, 0 (default) = any"},
    {0}};

static const cli_option limit_options[] = {
    {.name = "read-seconds",
     .kind = CLI_UINT,
     .value = &o.read_seconds,
     .min = 1,
     .max = 3600,
     .arg = "S",
     .help = "a request must have arrived after S (default 60)"},
    {.name = "connections",
     .kind = CLI_UINT,
     .value = &o.connections,
     .min = 4,
     .max = 65536,
     .arg = "N",
     .help = "open at once (default 1024)"},
    {.name = "body-mib", .kind = CLI_UINT, .value = &o.body_mib, .min = 1, .max = 1024, .arg = "N", .help = "default 32"},
    {.name = "head-kib", .kind = CLI_UINT, .value = &o.head_kib, .min = 8, .max = 1024, .arg = "N", .help = "default 64"},
    {.name = "drain-seconds",
     .kind = CLI_UINT,
     .value = &drain_seconds,
     .max = 86400,
     .arg = "S",
     .help = "at the end, answers that run get S more (default 30)"},
    {.name = "no-request-log", .kind = CLI_FLAG, .value = &quiet_requests, .help = "no line for every request"},
    {.name = "log-answers", .kind = CLI_FLAG, .value = &o.log_prompts, .help = "answers appear in the log; never by default"},
    {0}};

static const cli_table tables[] = {{"Where:", listen_options},     {"Work:", work_options},        {"Limits:", limit_options},
                                   {"Model:", cli_engine_options}, {"Other:", cli_output_options}, {0}};

/* ---- Settings from elsewhere --------------------------------------------------------------------------------------------- */

typedef struct words {
    char *list[2 * CONFIG_LINES];
    int n;
} words;

static bool add_word(words *w, const char *option, const char *value)
{
    if (w->n + 2 > 2 * CONFIG_LINES) return false;
    size_t size = strlen(option) + (value ? strlen(value) : 0) + 4;
    char *text = malloc(size);
    if (!text) return false;
    snprintf(text, size, value ? "--%s=%s" : "--%s", option, value);
    w->list[w->n++] = text;
    return true;
}

/* An option of this command as a word; flags are given by "true". */
static bool add_setting(words *w, const cli_option *option, const char *value)
{
    if (option->kind != CLI_FLAG) return add_word(w, option->name, value);
    if (strcmp(value, "true") == 0 || strcmp(value, "1") == 0) return add_word(w, option->name, NULL);
    return true;
}

static void add_environment(words *w)
{
    for (const cli_table *t = tables; t->title; t++)
        for (const cli_option *option = t->options; option->name; option++) {
            char name[80] = "REDLITE_SERVE_";
            size_t n = strlen(name);
            for (const char *c = option->name; *c && n + 1 < sizeof name; c++)
                name[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
            name[n] = 0;
            const char *value = getenv(name);
            if (value && *value) add_setting(w, option, value);
        }
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1]))
        *--end = 0;
    return s;
}

static int add_config(words *w, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    rl_error err = {0};
    if (rl_read_file(path, CONFIG_MAX, &text, &size, &err) != RL_OK) return cli_error(&err);
    int line_no = 0, status = CLI_GO_ON;
    for (char *line = text, *next; line && status == CLI_GO_ON; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        line_no++;
        line = trim(line);
        if (!*line || *line == '#') continue;
        char *equals = strchr(line, '=');
        if (equals) *equals = 0;
        const char *name = trim(line), *value = equals ? trim(equals + 1) : "true";
        const cli_option *found = NULL;
        for (const cli_table *t = tables; t->title && !found; t++)
            for (const cli_option *option = t->options; option->name; option++)
                if (strcmp(option->name, name) == 0) found = option;
        if (!found)
            status = cli_usage_error("serve", "%s, line %d: there is no option of this name", path, line_no);
        else if (!add_setting(w, found, value))
            status = cli_usage_error("serve", "%s has more than %d settings", path, CONFIG_LINES);
    }
    free(text);
    return status;
}

/* Parses file, environment and flags one after the other, so that the later wins. */
static int read_settings(cli_command_line *cl, int argc, char **argv)
{
    static words w; /* values stay referenced */
    static char command[] = "serve";
    int status = cli_parse(cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    const char *from_environment = getenv("REDLITE_SERVE_CONFIG");
    if (!config_path) config_path = from_environment && *from_environment ? from_environment : NULL;
    w.list[w.n++] = command;
    if (config_path && (status = add_config(&w, config_path)) != CLI_GO_ON) return status;
    add_environment(&w);
    if (w.n > 1 && (status = cli_parse(cl, w.n, w.list)) != CLI_GO_ON) return status;
    return cli_parse(cl, argc, argv);
}

/* ---- The command --------------------------------------------------------------------------------------------------------- */

static void announce(const rl_server *s, const rl_engine *e)
{
    bool v6 = strchr(o.host, ':') != NULL;
    fprintf(stderr, "redlite: %s, backend %s, %u at a time; listening on http://%s%s%s:%u\n", o.model_path,
            rl_engine_backend(e), o.parallel, v6 ? "[" : "", o.host, v6 ? "]" : "", rl_server_port(s));
}

static int serve(rl_engine *e)
{
    sigset_t signals, before;
    rl_server *s = NULL;
    rl_error err = {0};
    /* The threads of the server must not take the signals that this one waits for. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    if (rl_server_start(e, &o, &s, &err) != RL_OK) return cli_error(&err);
    announce(s, e);
    /* The engine's threads are older than the mask: a signal that one of them gets shows in cli_interrupted. */
    const struct timespec beat = {.tv_nsec = 200000000};
    while (!cli_interrupted() && sigtimedwait(&signals, NULL, &beat) < 0 && (errno == EAGAIN || errno == EINTR)) {
    }
    fprintf(stderr, "redlite: stopping; answers that run get up to %u s (a second signal ends at once)\n", drain_seconds);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    rl_server_drain(s, drain_seconds);
    rl_server_stop(s);
    return CLI_EXIT_OK;
}

int cmd_serve(int argc, char **argv)
{
    cli_command_line cl = {.command = "serve",
                           .usage = "[OPTIONS]",
                           .about = "Answers over HTTP, as the APIs of OpenAI and Anthropic do, until SIGINT or SIGTERM.\n"
                                    "Every option can also be set by REDLITE_SERVE_NAME in the environment or in a file.",
                           .tables = tables};
    rl_server_options_init(&o);
    int status = read_settings(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    o.log_requests = !quiet_requests;
    o.model_path = cli_model_path();
    if (!o.model_path) return CLI_EXIT_FAILURE;
    rl_engine *e = NULL;
    if (!cli_open_engine(&e, &status)) return status;
    status = serve(e);
    rl_engine_close(e);
    return status;
}
