/* cli/generate: one prompt, one answer. The answer streams to standard output; everything else goes to stderr. */
#include "cli.h"
#include "sampling.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    int32_t predict;
    bool chat, stats, json, ids, ignore_eog;
    const char *system;
    uint32_t logprobs;
} opt = {.predict = 256};

static const cli_option generate_options[] = {
    {.name = "predict",
     .letter = 'n',
     .kind = CLI_INT,
     .value = &opt.predict,
     .min = -1,
     .max = RL_MAX_CONTEXT,
     .arg = "N",
     .help = "tokens to produce; -1 = until the context is full\n(default 256)"},
    {.name = "chat", .kind = CLI_FLAG, .value = &opt.chat, .help = "the text is a message to answer"},
    {.name = "system", .kind = CLI_TEXT, .value = &opt.system, .arg = "TEXT", .help = "system message, with --chat"},
    {.name = "ignore-eog", .kind = CLI_FLAG, .value = &opt.ignore_eog, .help = "go on after the model ends its answer"},
    {.name = "ids", .kind = CLI_FLAG, .value = &opt.ids, .help = "print token ids instead of text"},
    {.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "one JSON object at the end instead of a stream"},
    {.name = "logprobs",
     .kind = CLI_UINT,
     .value = &opt.logprobs,
     .max = 100,
     .arg = "N",
     .help = "with --json: each token's log probability and the N likeliest"},
    {.name = "stats", .kind = CLI_FLAG, .value = &opt.stats, .help = "times and speeds on stderr"},
    {0}};

static const cli_table tables[] = {{"Prompt (or standard input):", cli_prompt_options},
                                   {"Answer:", generate_options},
                                   {"Sampling:", cli_sampling_options},
                                   {"Model:", cli_engine_options},
                                   {"Other:", cli_output_options},
                                   {0}};

typedef struct answer {
    const rl_engine *engine;
    const rl_tokenizer *tokenizer;
    rl_utf8_stream utf8;
    bool failed; /* no memory for what is collected */
    bool ends_line;
    char *text; /* collected for --json */
    size_t size, room;
    json_t *ids, *logprobs;
} answer;

static void collect(answer *a, const char *data, size_t n)
{
    if (n > a->room - a->size) {
        size_t room = (a->room + n) * 2;
        char *grown = realloc(a->text, room);
        if (!grown) {
            a->failed = true;
            return;
        }
        a->text = grown;
        a->room = room;
    }
    memcpy(a->text + a->size, data, n);
    a->size += n;
}

static void show(answer *a, const char *data, size_t n)
{
    if (n == 0) return;
    a->ends_line = data[n - 1] == '\n';
    if (opt.json)
        collect(a, data, n);
    else
        cli_out(data, n);
}

/* Whole characters of a token's bytes. */
static void show_token(answer *a, int32_t id)
{
    rl_slice bytes = rl_token_bytes(a->tokenizer, id, false);
    char small[512], *text = bytes.size <= 128 ? small : malloc(3 * bytes.size + 12);
    if (!text) {
        a->failed = true;
        return;
    }
    show(a, text, rl_utf8_stream_push(&a->utf8, bytes.data, bytes.size, text));
    if (text != small) free(text);
}

static json_t *token_json(const answer *a, int32_t id, double logprob)
{
    json_t *o = json_pack("{s:i, s:f}", "id", (int)id, "logprob", isfinite(logprob) ? logprob : -1e30);
    if (!a->tokenizer) return o;
    /* A token may be part of a character: its bytes are the only exact form. */
    rl_slice bytes = rl_token_bytes(a->tokenizer, id, true);
    json_t *list = json_array();
    for (size_t i = 0; i < bytes.size; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes.data[i]));
    json_object_set_new(o, "bytes", list);
    return o;
}

static void add_logprobs(answer *a, int32_t id, const float *logits)
{
    rl_logprob top[100];
    uint32_t v = rl_engine_vocab_size(a->engine), n = rl_logprobs_top(logits, v, top, opt.logprobs);
    json_t *o = token_json(a, id, rl_logprob_of(logits, v, id)), *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, token_json(a, top[i].id, top[i].logprob));
    json_object_set_new(o, "top", list);
    json_array_append_new(a->logprobs, o);
}

static bool on_token(void *ctx, int32_t id, const float *logits)
{
    answer *a = ctx;
    if (opt.json) {
        json_array_append_new(a->ids, json_integer(id));
        if (opt.logprobs) add_logprobs(a, id, logits);
    }
    if (opt.ids && !opt.json) {
        cli_outf(a->ends_line ? "%d" : " %d", id);
        a->ends_line = false;
    }
    if (!opt.ids && a->tokenizer) show_token(a, id);
    return cli_out_flush() && !cli_interrupted() && !a->failed;
}

/* ---- Prompt ---------------------------------------------------------------------------------------------------------- */

static bool chat_ids(const rl_tokenizer *t, int32_t **ids, size_t *n, int *status)
{
    if (cli_prompt.tokens.given) {
        *status = cli_usage_error("generate", "--chat takes text (-p, -f or standard input), not --tokens");
        return false;
    }
    char *text = NULL;
    size_t size = 0;
    if (!cli_read_text("generate", &text, &size, status)) return false;
    rl_chat_message m[2];
    size_t count = 0;
    if (opt.system) m[count++] = (rl_chat_message){RL_ROLE_SYSTEM, opt.system, strlen(opt.system)};
    m[count++] = (rl_chat_message){RL_ROLE_USER, text, size};
    rl_error err = {0};
    rl_status st = rl_chat_tokenize(t, m, count, true, ids, n, &err);
    free(text);
    if (st != RL_OK) *status = cli_error(&err);
    return st == RL_OK;
}

static bool prompt_ids(const rl_engine *e, int32_t **ids, size_t *n, int *status)
{
    const rl_tokenizer *t = rl_engine_tokenizer(e);
    if (opt.chat && !t) {
        fprintf(stderr, "redlite: --chat needs a model with a vocabulary\n");
        *status = CLI_EXIT_FAILURE;
        return false;
    }
    if (!(opt.chat ? chat_ids(t, ids, n, status) : cli_read_ids("generate", t, ids, n, status))) return false;
    *status = CLI_EXIT_FAILURE;
    if (*n == 0)
        fprintf(stderr, "redlite: the prompt is empty: give a text with -p TEXT, -f FILE or on standard input\n");
    else if (*n > rl_engine_context(e))
        fprintf(stderr, "redlite: the prompt has %zu tokens but the context holds %u; give --context %zu or a shorter prompt\n",
                *n, rl_engine_context(e), *n + 256);
    else
        return true;
    free(*ids);
    return false;
}

/* ---- Result ---------------------------------------------------------------------------------------------------------- */

typedef struct timing {
    double load, prefill;
    uint32_t n_prompt, seed;
    rl_generate_result r;
} timing;

static double per_second(uint32_t n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

static void print_stats(const rl_engine *e, const timing *t)
{
    rl_engine_memory m;
    rl_engine_memory_info(e, &m);
    const rl_model_info *info = rl_engine_info(e);
    fprintf(stderr, "\nmodel     %s, %.2f GiB, backend %s, %s, %d threads, %s, kv %s\n",
            info->name[0] ? info->name : info->path, (double)info->file_bytes / 1073741824.0, rl_engine_backend(e),
            rl_engine_isa(e), rl_engine_threads(e), rl_precision_name(rl_engine_precision(e)), rl_kv_name(rl_engine_kv(e)));
    fprintf(stderr, "load      %.2f s\n", t->load);
    fprintf(stderr, "prompt    %u tokens in %.3f s, %.1f tok/s\n", t->n_prompt, t->prefill,
            per_second(t->n_prompt, t->prefill));
    /* The first token comes from the prompt's pass: n tokens take n - 1 passes. */
    uint32_t passes = t->r.n_generated > 0 ? t->r.n_generated - (t->r.finish != RL_FINISH_EOG) : 0;
    fprintf(stderr, "answer    %u tokens in %.3f s, ", t->r.n_generated, t->r.decode_seconds);
    if (passes) fprintf(stderr, "%.1f tok/s, ", per_second(passes, t->r.decode_seconds));
    fprintf(stderr, "finish: %s\n", rl_finish_name(t->r.finish));
    cli_print_cache(e, t->n_prompt + passes, t->prefill + t->r.decode_seconds);
    fprintf(stderr, "seed      %u\n", t->seed);
    fprintf(stderr, "memory    peak %.1f MiB, weights beside the file %.1f MiB, session %.1f MiB\n",
            (double)cli_peak_memory() / 1048576.0, (double)m.weights / 1048576.0,
            ((double)m.session_fixed + (double)m.session_per_token * rl_engine_context(e)) / 1048576.0);
}

static bool print_json(const rl_engine *e, answer *a, const timing *t, const int32_t *prompt)
{
    json_t *p = json_array();
    for (uint32_t i = 0; i < t->n_prompt; i++)
        json_array_append_new(p, json_integer(prompt[i]));
    json_t *o = json_pack("{s:s, s:o, s:O, s:s, s:I, s:f, s:f, s:f, s:s, s:s, s:i, s:s, s:s}", "model", rl_engine_info(e)->path,
                          "prompt_ids", p, "ids", a->ids, "finish", rl_finish_name(t->r.finish), "seed", (json_int_t)t->seed,
                          "load_seconds", t->load, "prompt_seconds", t->prefill, "answer_seconds", t->r.decode_seconds,
                          "backend", rl_engine_backend(e), "isa", rl_engine_isa(e), "threads", rl_engine_threads(e),
                          "precision", rl_precision_name(rl_engine_precision(e)), "kv", rl_kv_name(rl_engine_kv(e)));
    if (o && !opt.ids) json_object_set_new(o, "text", json_stringn(a->text ? a->text : "", a->size));
    if (o && opt.logprobs) json_object_set(o, "logprobs", a->logprobs);
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    if (!text) return false;
    cli_out_text(text);
    cli_out_text("\n");
    free(text);
    return true;
}

/* The end of the stream: a character cut off, and a line break for a person (a file gets exactly the answer). */
static void end_stream(answer *a)
{
    char tail[16];
    show(a, tail, rl_utf8_stream_finish(&a->utf8, tail));
    if (opt.json) return;
    if (opt.ids || (!a->ends_line && isatty(STDOUT_FILENO))) cli_out_text("\n");
    cli_out_flush();
}

/* ---- The command ----------------------------------------------------------------------------------------------------- */

static rl_status run(rl_session *s, rl_sampler *sampler, const int32_t *ids, size_t n, answer *a, timing *t, rl_error *err)
{
    cli_progress progress = {.what = "prompt", .rate = true};
    double start = rl_now();
    rl_status st = rl_session_extend(s, ids, n, cli_show_progress, &progress, err);
    cli_clear_progress(&progress);
    t->prefill = rl_now() - start;
    if (st != RL_OK) return st;
    rl_generate_options o = {.max_tokens = opt.predict < 0 ? UINT32_MAX : (uint32_t)opt.predict,
                             .ignore_eog = opt.ignore_eog,
                             .on_token = on_token,
                             .ctx = a};
    st = rl_generate(s, sampler, &o, &t->r, err);
    end_stream(a);
    return st;
}

static int generate(rl_engine *e, const int32_t *ids, size_t n, timing *t)
{
    static rl_logit_bias bias[CLI_BIASES_MAX];
    rl_sampling p;
    rl_session *s = NULL;
    rl_sampler *sampler = NULL;
    rl_error err = {0};
    answer a = {
        .engine = e, .tokenizer = rl_engine_tokenizer(e), .ends_line = true, .ids = json_array(), .logprobs = json_array()};
    cli_fill_sampling(e, &p, bias);
    rl_status st = rl_sampler_create(e, &p, &sampler, &err);
    if (st == RL_OK) st = rl_session_create(e, 0, &s, &err);
    if (st == RL_OK) {
        t->n_prompt = (uint32_t)n;
        t->seed = rl_sampler_seed(sampler);
        st = run(s, sampler, ids, n, &a, t, &err);
    }
    int status = st == RL_OK ? CLI_EXIT_OK : cli_error(&err);
    if (st == RL_OK && opt.json && !print_json(e, &a, t, ids)) a.failed = true;
    if (a.failed) fprintf(stderr, "redlite: no memory for the answer\n");
    int written = cli_out_status();
    if (st == RL_OK && opt.stats) print_stats(e, t);
    if (st == RL_OK) cli_print_profile(e);
    if (status == CLI_EXIT_OK) status = a.failed ? CLI_EXIT_FAILURE : written;
    if (status == CLI_EXIT_OK && cli_interrupted()) status = CLI_EXIT_INTERRUPTED;
    rl_sampler_free(sampler);
    rl_session_free(s);
    json_decref(a.ids);
    json_decref(a.logprobs);
    free(a.text);
    return status;
}

int cmd_generate(int argc, char **argv)
{
    cli_command_line cl = {
        .command = "generate",
        .usage = "[-p TEXT | -f FILE | --tokens IDS] [OPTIONS]",
        .about = "Continues a text, or answers it as a message with --chat. The answer streams to standard output.\n"
                 "Ctrl-C ends the answer and keeps what was printed (exit status 130).",
        .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (opt.system && !opt.chat) return cli_usage_error("generate", "--system needs --chat");
    if (opt.logprobs && !opt.json) return cli_usage_error("generate", "--logprobs needs --json");
    timing t = {0};
    double start = rl_now();
    rl_engine *e = NULL;
    if (!cli_open_engine(&e, &status)) return status;
    t.load = rl_now() - start;
    int32_t *ids = NULL;
    size_t n = 0;
    if (prompt_ids(e, &ids, &n, &status)) {
        status = generate(e, ids, n, &t);
        free(ids);
    }
    rl_engine_close(e);
    return status;
}
