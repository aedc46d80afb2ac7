/* cli/bench: speed in the manner of llama-bench: prefill of p tokens, decode of n tokens, each at depths d; medians. */
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPS 100

static struct {
    cli_uints prompt, generate, depth, sessions;
    uint32_t reps;
    bool json, no_warm_up;
} opt = {.prompt = {{512}, 1}, .generate = {{128}, 1}, .depth = {{0}, 1}, .sessions = {{1}, 1}, .reps = 3};

static const cli_option bench_options[] = {
    {.name = "n-prompt",
     .letter = 'p',
     .kind = CLI_UINTS,
     .value = &opt.prompt,
     .max = RL_MAX_CONTEXT,
     .arg = "N,...",
     .help = "prompt lengths, 0 = none (default 512)"},
    {.name = "n-gen",
     .letter = 'n',
     .kind = CLI_UINTS,
     .value = &opt.generate,
     .max = RL_MAX_CONTEXT,
     .arg = "N,...",
     .help = "tokens to decode, 0 = none (default 128)"},
    {.name = "depth",
     .letter = 'd',
     .kind = CLI_UINTS,
     .value = &opt.depth,
     .max = RL_MAX_CONTEXT,
     .arg = "N,...",
     .help = "tokens already in the context (default 0)"},
    {.name = "parallel",
     .kind = CLI_UINTS,
     .value = &opt.sessions,
     .min = 1,
     .max = 256,
     .arg = "N,...",
     .help = "sequences that decode together (default 1)"},
    {.name = "reps",
     .letter = 'r',
     .kind = CLI_UINT,
     .value = &opt.reps,
     .min = 1,
     .max = MAX_REPS,
     .arg = "N",
     .help = "repetitions (default 3)"},
    {.name = "no-warm-up", .kind = CLI_FLAG, .value = &opt.no_warm_up, .help = "count the first run too"},
    {.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "machine, settings and every sample as JSON"},
    {0}};
static const cli_table tables[] = {
    {"Measure:", bench_options}, {"Model:", cli_engine_options}, {"Other:", cli_output_options}, {0}};

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Tokens per second of each repetition, sorted, from the times. */
static void speeds(const rl_bench_case *c, const double *seconds, uint32_t n, double *out)
{
    double tokens = (double)(c->prompt + c->generate) * c->sessions;
    for (uint32_t i = 0; i < n; i++)
        out[i] = seconds[i] > 0 ? tokens / seconds[i] : 0;
    qsort(out, n, sizeof *out, rising);
}

static double median(const double *sorted, uint32_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void case_name(const rl_bench_case *c, char *out, size_t cap)
{
    int n = c->prompt ? snprintf(out, cap, "pp%u", c->prompt) : snprintf(out, cap, "tg%u", c->generate);
    if (c->depth && n > 0) n += snprintf(out + n, cap - (size_t)n, " @ d%u", c->depth);
    if (c->sessions > 1 && n > 0) snprintf(out + n, cap - (size_t)n, " x%u", c->sessions);
}

typedef struct results {
    rl_engine *e;
    json_t *list;        /* --json */
    double load_seconds; /* opening the model */
} results;

static void report(results *r, const rl_bench_case *c, const double *seconds)
{
    double sorted[MAX_REPS];
    char name[64];
    speeds(c, seconds, opt.reps, sorted);
    case_name(c, name, sizeof name);
    if (!opt.json) {
        cli_outf("| %-20s | %10.2f | %10.2f | %10.2f |\n", name, median(sorted, opt.reps), sorted[0], sorted[opt.reps - 1]);
        cli_out_flush();
        return;
    }
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:f}", "test", name, "n_prompt", (int)c->prompt, "n_gen", (int)c->generate,
                  "depth", (int)c->depth, "sequences", (int)c->sessions, "median_tokens_per_second", median(sorted, opt.reps));
    json_t *samples = json_array();
    for (uint32_t i = 0; i < opt.reps; i++)
        json_array_append_new(samples, json_real(seconds[i]));
    json_object_set_new(o, "seconds", samples);
    json_array_append_new(r->list, o);
}

static int run_case(results *r, const rl_bench_case *c)
{
    double seconds[MAX_REPS];
    rl_error err = {0};
    char name[64];
    case_name(c, name, sizeof name);
    cli_progress progress = {.what = name};
    rl_status st = rl_bench_run(r->e, c, opt.reps, !opt.no_warm_up, seconds, cli_show_progress, &progress, &err);
    cli_clear_progress(&progress);
    if (st != RL_OK) return cli_error(&err);
    report(r, c, seconds);
    return CLI_EXIT_OK;
}

static int run_all(results *r)
{
    int status = CLI_EXIT_OK;
    for (uint32_t d = 0; d < opt.depth.n; d++) {
        for (uint32_t p = 0; p < opt.prompt.n && status == CLI_EXIT_OK; p++) {
            rl_bench_case c = {.prompt = opt.prompt.v[p], .depth = opt.depth.v[d], .sessions = 1};
            if (c.prompt) status = run_case(r, &c);
        }
        for (uint32_t g = 0; g < opt.generate.n && status == CLI_EXIT_OK; g++)
            for (uint32_t s = 0; s < opt.sessions.n && status == CLI_EXIT_OK; s++) {
                rl_bench_case c = {.generate = opt.generate.v[g], .depth = opt.depth.v[d], .sessions = opt.sessions.v[s]};
                if (c.generate) status = run_case(r, &c);
            }
    }
    return status;
}

static json_t *profile_json(const rl_engine *e, bool decode)
{
    rl_profile p;
    if (!rl_engine_profile(e, decode, &p)) return json_null();
    json_t *o = json_pack("{s:I, s:I, s:f}", "passes", (json_int_t)p.passes, "rows", (json_int_t)p.rows, "seconds", p.seconds);
    json_t *list = json_array();
    for (uint32_t i = 0; i < p.n_stages; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:I, s:I, s:I}", "phase", p.stages[i].name, "seconds",
                                              p.stages[i].seconds, "bytes", (json_int_t)p.stages[i].bytes, "flops",
                                              (json_int_t)p.stages[i].flops, "calls", (json_int_t)p.stages[i].calls));
    json_object_set_new(o, "phases", list);
    return o;
}

static json_t *settings_json(const rl_engine *e)
{
    const rl_model_info *m = rl_engine_info(e);
    rl_machine_info machine;
    rl_machine(&machine);
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:i, s:I}", "version", rl_version(), "build", rl_build_info(), "cpu",
                          machine.cpu, "logical_cores", machine.logical_cores, "physical_cores", machine.physical_cores,
                          "memory_bytes", (json_int_t)machine.memory_bytes);
    json_t *model = json_pack("{s:s, s:s, s:I, s:I}", "path", m->path, "name", m->name, "bytes", (json_int_t)m->file_bytes,
                              "parameters", (json_int_t)m->parameters);
    json_t *s = json_pack("{s:s, s:s, s:i, s:s, s:s, s:i, s:i, s:b}", "backend", rl_engine_backend(e), "isa", rl_engine_isa(e),
                          "threads", rl_engine_threads(e), "precision", rl_precision_name(rl_engine_precision(e)), "kv",
                          rl_kv_name(rl_engine_kv(e)), "batch", (int)rl_engine_prefill_batch(e), "reps", (int)opt.reps,
                          "warm_up", !opt.no_warm_up);
    json_object_set_new(o, "model", model);
    json_object_set_new(o, "settings", s);
    return o;
}

static void print_heading(const rl_engine *e)
{
    const rl_model_info *m = rl_engine_info(e);
    rl_machine_info machine;
    rl_machine(&machine);
    cli_outf("%s\n%s, %d cores; backend %s, %s, %d threads, %s, kv %s, batch %u\n", rl_build_info(), machine.cpu,
             machine.physical_cores, rl_engine_backend(e), rl_engine_isa(e), rl_engine_threads(e),
             rl_precision_name(rl_engine_precision(e)), rl_kv_name(rl_engine_kv(e)), rl_engine_prefill_batch(e));
    cli_outf("%s, %.2f GiB, %.2f G parameters; %u repetitions%s\n\n", m->path, (double)m->file_bytes / 1073741824.0,
             (double)m->parameters / 1e9, opt.reps, opt.no_warm_up ? "" : " after one to warm up");
    cli_out_text("| test                 | median t/s |   slowest |    fastest |\n");
    cli_out_text("| -------------------- | ---------: | --------: | ---------: |\n");
    cli_out_flush();
}

static bool has_work(void)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < opt.prompt.n; i++)
        most |= opt.prompt.v[i];
    for (uint32_t i = 0; i < opt.generate.n; i++)
        most |= opt.generate.v[i];
    return most != 0;
}

int cmd_bench(int argc, char **argv)
{
    cli_command_line cl = {.command = "bench",
                           .usage = "[-p N,...] [-n N,...] [-d N,...] [-r N] [OPTIONS]",
                           .about =
                               "Times prefill (pp: one prompt of N tokens) and decode (tg: N single tokens) at depths of the\n"
                               "context. Tokens are random, as in llama-bench; speeds are medians over the repetitions.",
                           .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (!has_work()) return cli_usage_error("bench", "nothing to time: -p and -n are both 0");
    results r = {0};
    const double start = rl_now();
    if (!cli_open_engine(&r.e, &status)) return status;
    r.load_seconds = rl_now() - start;
    r.list = json_array();
    if (!opt.json) print_heading(r.e);
    status = run_all(&r);
    if (!opt.json)
        cli_outf("\nopened in %.2f s, peak memory %.2f GiB, pages of the file included\n", r.load_seconds,
                 (double)cli_peak_memory() / 1073741824.0);
    if (opt.json) {
        json_t *o = settings_json(r.e);
        json_object_set(o, "results", r.list);
        json_object_set_new(o, "load_seconds", json_real(r.load_seconds));
        json_object_set_new(o, "peak_memory_bytes", json_integer((json_int_t)cli_peak_memory()));
        if (cli_engine.profile) {
            json_object_set_new(o, "profile_prefill", profile_json(r.e, false));
            json_object_set_new(o, "profile_decode", profile_json(r.e, true));
        }
        char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        json_decref(o);
        if (text) {
            cli_out_text(text);
            cli_out_text("\n");
        }
        free(text);
    }
    json_decref(r.list);
    cli_print_profile(r.e);
    rl_engine_close(r.e);
    int written = cli_out_status();
    return status == CLI_EXIT_OK ? written : status;
}
