/* cli/common: errors, signals, standard output, the engine's options and prompts, for all commands. */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROMPT_LIMIT (64u << 20) /* bytes of a prompt; the context is far smaller */

int cli_error(const rl_error *err)
{
    if (err->status == RL_ERR_CANCELLED && cli_interrupted()) return CLI_EXIT_INTERRUPTED;
    fprintf(stderr, "redlite: %s\n", err->text);
    return CLI_EXIT_FAILURE;
}

rl_status cli_fail(rl_error *err, rl_status status, const char *fmt, ...)
{
    if (!err) return status;
    va_list ap;
    va_start(ap, fmt);
    err->status = status;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return status;
}

/* ---- Interrupt ------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t signals, patience = 1, terminated;

static void on_signal(int sig)
{
    if (sig == SIGTERM) terminated = 1;
    if (signals < patience) {
        signals = signals + 1;
        return;
    }
    signal(sig, SIG_DFL); /* the user has waited long enough: a pass cannot be interrupted */
    raise(sig);
}

void cli_catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal}; /* no SA_RESTART, so that a read of the terminal ends */
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
}

bool cli_interrupted(void)
{
    return signals != 0;
}

void cli_set_patience(int n)
{
    patience = n;
}

void cli_forget_interrupt(void)
{
    signals = 0;
}

bool cli_terminated(void)
{
    return terminated != 0;
}

bool cli_keep_going(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
    return signals == 0;
}

/* ---- Standard output ------------------------------------------------------------------------------------------------- */

static struct {
    char data[1 << 16];
    size_t n;
    int error; /* errno of the first failed write */
} out;

static bool write_all(const char *data, size_t n)
{
    while (n > 0) {
        ssize_t w = write(STDOUT_FILENO, data, n);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) {
            out.error = errno;
            return false;
        }
        data += w;
        n -= (size_t)w;
    }
    return true;
}

bool cli_out_flush(void)
{
    if (out.error) return false;
    size_t n = out.n;
    out.n = 0;
    return write_all(out.data, n);
}

bool cli_out(const void *data, size_t n)
{
    if (out.error) return false;
    if (n > sizeof out.data - out.n && !cli_out_flush()) return false;
    if (n > sizeof out.data) return write_all(data, n);
    memcpy(out.data + out.n, data, n);
    out.n += n;
    return true;
}

bool cli_out_text(const char *text)
{
    return cli_out(text, strlen(text));
}

bool cli_outf(const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) return false;
    return cli_out(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

int cli_out_status(void)
{
    cli_out_flush();
    if (out.error == 0 || out.error == EPIPE) return CLI_EXIT_OK;
    fprintf(stderr, "redlite: cannot write to standard output: %s\n", strerror(out.error));
    return CLI_EXIT_FAILURE;
}

int cli_finish_stdout(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return CLI_EXIT_OK;
    if (errno == EPIPE) return CLI_EXIT_OK;
    fprintf(stderr, "redlite: cannot write to standard output: %s\n", strerror(errno));
    return CLI_EXIT_FAILURE;
}

/* ---- The engine ------------------------------------------------------------------------------------------------------ */

cli_engine_values cli_engine = {.backend = "auto",
                                .isa = "auto",
                                .cache = "auto",
                                .context = RL_DEFAULT_CONTEXT,
                                .precision = RL_PRECISION_FAST,
                                .kv = RL_KV_F32};

static const char *const precision_names[] = {"exact", "fast", NULL}; /* in the order of rl_precision */
static const char *const kv_names[] = {"f32", "f16", NULL};           /* in the order of rl_kv_type */

#define MODEL_OPTION                                                                                                           \
    {                                                                                                                          \
        .name = "model", .letter = 'm', .kind = CLI_TEXT, .value = &cli_engine.model, .arg = "FILE",                           \
        .help = "GGUF file (part 1 of a split one), or a name that\nredlite pull fetched; default: the bundled tiny model"     \
    }

const cli_option cli_model_options[] = {MODEL_OPTION, {0}};

const cli_option cli_engine_options[] = {
    MODEL_OPTION,
    {.name = "backend",
     .kind = CLI_TEXT,
     .value = &cli_engine.backend,
     .arg = "NAME",
     .help = "auto, cpu, ref, ... (redlite version lists them)"},
    {.name = "isa", .kind = CLI_TEXT, .value = &cli_engine.isa, .arg = "NAME", .help = "auto, scalar, avx2, avx512, neon"},
    {.name = "threads",
     .letter = 't',
     .kind = CLI_UINT,
     .value = &cli_engine.threads,
     .max = RL_MAX_THREADS,
     .arg = "N",
     .help = "0 (default): one per physical core"},
    {.name = "precision",
     .kind = CLI_CHOICE,
     .value = &cli_engine.precision,
     .choices = precision_names,
     .arg = "NAME",
     .help = "fast (default): 8-bit activations; exact: float32"},
    {.name = "kv",
     .kind = CLI_CHOICE,
     .value = &cli_engine.kv,
     .choices = kv_names,
     .arg = "TYPE",
     .help = "keys and values as f32 (default) or f16"},
    {.name = "context",
     .letter = 'c',
     .kind = CLI_UINT,
     .value = &cli_engine.context,
     .min = 1,
     .max = RL_MAX_CONTEXT,
     .arg = "N",
     .help = "positions of the session (default 4096)"},
    {.name = "batch",
     .letter = 'b',
     .kind = CLI_UINT,
     .value = &cli_engine.batch,
     .max = RL_MAX_BATCH,
     .arg = "N",
     .help = "tokens of a prefill pass, 0 (default): automatic"},
    {.name = "profile", .kind = CLI_FLAG, .value = &cli_engine.profile, .help = "where the time went, per phase, on stderr"},
    {.name = "cache-mib",
     .kind = CLI_TEXT,
     .value = &cli_engine.cache,
     .arg = "N",
     .help = "memory for routed experts in MiB, the rest stays in the file;\nfull, mapped, auto (default): redlite plan tells"},
    {.name = "page-in",
     .kind = CLI_FLAG,
     .value = &cli_engine.page_in,
     .help = "read the whole file before starting, instead of as needed"},
    {.name = "mlock", .kind = CLI_FLAG, .value = &cli_engine.lock, .help = "the same, and keep it in memory"},
    {.name = "route-bias",
     .kind = CLI_FLOAT,
     .value = &cli_engine.route_bias,
     .max = 1000,
     .arg = "L",
     .help = "prefer cached experts as if their router logits were higher by L:\nfewer reads, another output (default 0: off)"},
    {.name = "force", .kind = CLI_FLAG, .value = &cli_engine.force, .help = "go ahead when the plan does not fit in memory"},
    {0}};

const cli_option cli_output_options[] = {
    {.name = "quiet", .letter = 'q', .kind = CLI_FLAG, .value = &cli_engine.quiet, .help = "nothing on stderr but errors"},
    {0}};

#define BUNDLED_MODEL "tiny-q4_k_m.gguf"

/* dir/name (and "relative" put between) when it can be read. */
static bool found_model(char *path, size_t cap, const char *dir, const char *relative)
{
    int n = snprintf(path, cap, "%s%s/%s", dir, relative, BUNDLED_MODEL);
    return n > 0 && (size_t)n < cap && access(path, R_OK) == 0;
}

bool cli_models_folder(char *path, size_t cap)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool given = data && data[0] == '/'; /* a relative name is invalid and ignored */
    if (!given && (!home || !*home)) return false;
    int n = snprintf(path, cap, "%s%s/redlite/models", given ? data : home, given ? "" : "/.local/share");
    return n > 0 && (size_t)n < cap;
}

/* Part 1 of the split model NAME in the folder. */
static bool found_first_part(char *path, size_t cap, const char *folder, const char *name)
{
    static const char tail[] = "-00001-of-";
    size_t len = strlen(name);
    DIR *d = opendir(folder);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d)) != NULL;) {
        const char *n = e->d_name;
        if (strncmp(n, name, len) != 0 || strncmp(n + len, tail, sizeof tail - 1) != 0) continue;
        if (strlen(n) != len + strlen("-00001-of-00001.gguf") || strcmp(n + strlen(n) - 5, ".gguf") != 0) continue;
        int used = snprintf(path, cap, "%s/%s", folder, n);
        found = used > 0 && (size_t)used < cap;
    }
    if (d) closedir(d);
    return found;
}

/* What is given, or the file of the models folder that it names. NULL after an error message. */
static const char *find_model(char *path, size_t cap, const char *given)
{
    char folder[PATH_MAX];
    if (!*given || strchr(given, '/') || access(given, F_OK) == 0 || !cli_models_folder(folder, sizeof folder)) return given;
    static const char *const ends[] = {"", ".gguf"};
    for (size_t i = 0; i < 2; i++) {
        int n = snprintf(path, cap, "%s/%s%s", folder, given, ends[i]);
        if (n > 0 && (size_t)n < cap && access(path, R_OK) == 0) return path;
    }
    if (found_first_part(path, cap, folder, given)) return path;
    char shown[128], where[300];
    fprintf(stderr, "redlite: there is no model \"%s\", neither here nor in %s; redlite pull --list names some to fetch\n",
            rl_escape(shown, sizeof shown, given, strlen(given)), rl_escape(where, sizeof where, folder, strlen(folder)));
    return NULL;
}

const char *cli_model_path(void)
{
    static char path[PATH_MAX];
    if (cli_engine.model) return find_model(path, sizeof path, cli_engine.model);
    const char *file = getenv("REDLITE_MODEL"), *dir = getenv("REDLITE_MODEL_DIR");
    if (file && *file) return find_model(path, sizeof path, file);
    if (dir && *dir && found_model(path, sizeof path, dir, "")) return path;
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = 0;
        char *slash = strrchr(program, '/');
        if (slash) *slash = 0;
        if (found_model(path, sizeof path, program, "/../share/redlite/models")) return path;
        if (found_model(path, sizeof path, program, "/../models")) return path;
    }
    if (found_model(path, sizeof path, REDLITE_MODEL_DIR, "")) return path;
    fprintf(stderr, "redlite: the bundled model (%s) was not found; name a model with -m FILE or set REDLITE_MODEL_DIR\n",
            BUNDLED_MODEL);
    return NULL;
}

bool cli_engine_options_from(rl_engine_options *o, int *status)
{
    *status = CLI_EXIT_FAILURE;
    rl_engine_options_init(o);
    o->model = cli_model_path();
    if (!o->model) return false;
    o->backend = cli_engine.backend;
    o->isa = cli_engine.isa;
    o->precision = (rl_precision)cli_engine.precision;
    o->kv = (rl_kv_type)cli_engine.kv;
    o->threads = (int)cli_engine.threads;
    o->context = cli_engine.context;
    o->batch = cli_engine.batch;
    o->profile = cli_engine.profile;
    o->route_bias = cli_engine.route_bias;
    o->force = cli_engine.force;
    o->page_in = cli_engine.page_in;
    o->lock = cli_engine.lock;
    rl_error err = {0};
    if (rl_cache_parse(cli_engine.cache, &o->residency, &o->cache_bytes, &err) == RL_OK) return true;
    *status = cli_error(&err);
    return false;
}

bool cli_open_engine(rl_engine **engine, int *status)
{
    *status = CLI_EXIT_FAILURE;
    if (cli_engine.quiet) rl_log_set_level(RL_LOG_ERROR);
    cli_progress progress = {.what = "loading"};
    rl_engine_options o;
    if (!cli_engine_options_from(&o, status)) return false;
    o.progress = cli_show_progress;
    o.progress_ctx = &progress;
    rl_error err = {0};
    rl_status st = rl_engine_open(&o, engine, &err);
    cli_clear_progress(&progress);
    if (st == RL_OK) return true;
    *status = cli_error(&err);
    return false;
}

static void print_profile(const char *kind, const rl_profile *p)
{
    fprintf(stderr, "\n%s: %llu passes, %llu rows, %.3f s\n%-16s %9s %8s %10s %10s %10s\n", kind, (unsigned long long)p->passes,
            (unsigned long long)p->rows, p->seconds, "phase", "ms/pass", "share", "GB/s", "GFLOP/s", "calls");
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const rl_profile_stage *s = &p->stages[i];
        if (s->seconds <= 0) continue;
        fprintf(stderr, "%-16s %9.3f %6.1f %% %10.2f %10.2f %10llu\n", s->name, 1e3 * s->seconds / (double)p->passes,
                100 * s->seconds / p->seconds, (double)s->bytes / s->seconds / 1e9, (double)s->flops / s->seconds / 1e9,
                (unsigned long long)s->calls);
    }
}

void cli_print_profile(const rl_engine *e)
{
    rl_profile p;
    if (!cli_engine.profile) return;
    bool prefill = rl_engine_profile(e, false, &p);
    if (prefill) print_profile("prefill", &p);
    bool decode = rl_engine_profile(e, true, &p);
    if (decode) print_profile("decode", &p);
    if (!prefill && !decode) fprintf(stderr, "backend %s has no profile\n", rl_engine_backend(e));
}

bool cli_open_tokenizer(rl_tokenizer **t, int *status)
{
    *status = CLI_EXIT_FAILURE;
    if (cli_engine.quiet) rl_log_set_level(RL_LOG_ERROR);
    const char *path = cli_model_path();
    rl_error err = {0};
    if (!path) return false;
    if (rl_tokenizer_open(path, t, &err) == RL_OK) return true;
    *status = cli_error(&err);
    return false;
}

/* ---- Prompts --------------------------------------------------------------------------------------------------------- */

cli_prompt_values cli_prompt;

const cli_option cli_prompt_options[] = {
    {.name = "prompt", .letter = 'p', .kind = CLI_TEXT, .value = &cli_prompt.text, .arg = "TEXT", .help = "the text"},
    {.name = "file",
     .letter = 'f',
     .kind = CLI_TEXT,
     .value = &cli_prompt.file,
     .arg = "FILE",
     .help = "the text in a file, - for standard input"},
    {.name = "tokens", .kind = CLI_IDS, .value = &cli_prompt.tokens, .arg = "IDS", .help = "token ids instead of text: 1,2,3"},
    {.name = "plain",
     .kind = CLI_FLAG,
     .value = &cli_prompt.plain,
     .help = "text like <|im_end|> is text, not a control token"},
    {0}};

bool cli_read_text(const char *command, char **text, size_t *size, int *status)
{
    *status = CLI_EXIT_USAGE;
    if ((cli_prompt.text != NULL) + (cli_prompt.file != NULL) + cli_prompt.tokens.given > 1) {
        cli_usage_error(command, "give only one of -p, -f and --tokens");
        return false;
    }
    if (cli_prompt.text) {
        *size = strlen(cli_prompt.text);
        *text = strdup(cli_prompt.text);
        if (*text) return true;
        fprintf(stderr, "redlite: no memory for the prompt\n");
        *status = CLI_EXIT_FAILURE;
        return false;
    }
    if (!cli_prompt.file && isatty(STDIN_FILENO)) {
        cli_usage_error(command, "there is no text: give it with -p TEXT, -f FILE or on standard input");
        return false;
    }
    rl_error err = {0};
    if (rl_read_file(cli_prompt.file ? cli_prompt.file : "-", PROMPT_LIMIT, text, size, &err) == RL_OK) return true;
    *status = cli_error(&err);
    if (cli_interrupted()) *status = CLI_EXIT_INTERRUPTED;
    return false;
}

bool cli_read_ids(const char *command, const rl_tokenizer *t, int32_t **ids, size_t *n, int *status)
{
    if (cli_prompt.tokens.given && !cli_prompt.text && !cli_prompt.file) {
        *ids = cli_prompt.tokens.ids;
        *n = cli_prompt.tokens.n;
        cli_prompt.tokens.ids = NULL;
        return true;
    }
    char *text = NULL;
    size_t size = 0;
    if (!cli_read_text(command, &text, &size, status)) return false;
    *status = CLI_EXIT_FAILURE;
    if (!t) {
        fprintf(stderr, "redlite: the model has no vocabulary: give ids with --tokens\n");
        free(text);
        return false;
    }
    rl_error err = {0};
    rl_status st = rl_tokenize(t, text, size, !cli_prompt.plain, ids, n, &err);
    free(text);
    if (st == RL_OK) return true;
    *status = cli_error(&err);
    return false;
}

/* ---- Progress -------------------------------------------------------------------------------------------------------- */

bool cli_show_progress(void *ctx, uint64_t done, uint64_t total)
{
    cli_progress *p = ctx;
    double now = rl_now();
    if (p->start == 0) p->start = now;
    double passed = now - p->start;
    if (!cli_engine.quiet && isatty(STDERR_FILENO) && passed > 0.5 && total > 0) {
        double share = (double)done / (double)total;
        fprintf(stderr, "\r%s %3.0f %%", p->what, share * 100);
        if (p->rate && done > 0)
            fprintf(stderr, ", %llu of %llu tokens, %.1f tok/s, %.0f s left", (unsigned long long)done,
                    (unsigned long long)total, (double)done / passed, passed * (1 - share) / share);
        fputs("\033[K", stderr);
        p->shown = true;
    }
    return signals == 0;
}

void cli_clear_progress(cli_progress *p)
{
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}

uint64_t cli_peak_memory(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (uint64_t)u.ru_maxrss * 1024;
}
