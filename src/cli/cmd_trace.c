/* cli/trace: which experts a text uses, and what caches of different kinds would have made of it. */
#include "cli.h"

#include <stdlib.h>

/* ---- trace ----------------------------------------------------------------------------------------------------------- */

static struct {
    const char *out;
    uint32_t generate;
} opt;

static const cli_option trace_options[] = {
    {.name = "out", .letter = 'o', .kind = CLI_TEXT, .value = &opt.out, .arg = "FILE", .help = "where to write the trace"},
    {.name = "n-gen",
     .letter = 'n',
     .kind = CLI_UINT,
     .value = &opt.generate,
     .max = RL_MAX_CONTEXT,
     .arg = "N",
     .help = "tokens to continue with, greedily (default 0)"},
    {0}};
static const cli_table trace_tables[] = {{"Trace:", trace_options},
                                         {"Prompt:", cli_prompt_options},
                                         {"Model:", cli_engine_options},
                                         {"Other:", cli_output_options},
                                         {0}};

static rl_status record(rl_engine *e, const int32_t *ids, size_t n, rl_error *err)
{
    const rl_model_info *info = rl_engine_info(e);
    cli_progress progress = {.what = "tokens", .rate = true};
    rl_session *s = NULL;
    rl_trace *t = NULL;
    rl_status st = rl_session_create(e, (uint32_t)n + opt.generate, &s, err);
    if (st == RL_OK) st = rl_trace_create(info->n_layer, info->n_expert, info->n_expert_used, &t, err);
    if (st == RL_OK) st = rl_trace_record(s, ids, n, opt.generate, cli_show_progress, &progress, t, err);
    cli_clear_progress(&progress);
    if (st == RL_OK) st = rl_trace_save(t, opt.out, err);
    if (st == RL_OK && !cli_engine.quiet) cli_outf("%llu tokens\n", (unsigned long long)rl_trace_tokens(t));
    rl_trace_free(t);
    rl_session_free(s);
    return st;
}

int cmd_trace(int argc, char **argv)
{
    cli_command_line cl = {.command = "trace",
                           .usage = "[-m FILE] (-p TEXT | -f FILE | --tokens IDS) [-n N] -o OUT",
                           .about =
                               "Writes which experts every token of a text (and of its continuation) uses in every layer,\n"
                               "for redlite cache-sim.",
                           .tables = trace_tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (!opt.out) return cli_usage_error("trace", "name the file to write: -o FILE");
    rl_engine *e;
    if (!cli_open_engine(&e, &status)) return status;
    int32_t *ids = NULL;
    size_t n = 0;
    if (cli_read_ids("trace", rl_engine_tokenizer(e), &ids, &n, &status)) {
        rl_error err = {0};
        status = n == 0                              ? cli_usage_error("trace", "there is no text")
                 : n > RL_MAX_CONTEXT - opt.generate ? cli_usage_error("trace", "the text is too long")
                 : record(e, ids, n, &err) == RL_OK  ? cli_out_status()
                                                     : cli_error(&err);
    }
    free(ids);
    rl_engine_close(e);
    return status;
}

/* ---- cache-sim ------------------------------------------------------------------------------------------------------- */

static struct {
    uint32_t layers, experts, used, tokens, seed;
    float zipf, reuse;
    cli_uints percent;
} sim = {.layers = 48, .experts = 512, .used = 10, .tokens = 512, .percent = {{10, 25, 50}, 3}};

static const cli_option sim_options[] = {
    {.name = "percent",
     .kind = CLI_UINTS,
     .value = &sim.percent,
     .min = 1,
     .max = 100,
     .arg = "N,...",
     .help = "sizes of the cache, in percent of all experts\n(default 10,25,50)"},
    {.name = "tokens",
     .kind = CLI_UINT,
     .value = &sim.tokens,
     .min = 1,
     .max = 1 << 20,
     .arg = "N",
     .help = "without a trace: length of a made-up one (default 512)"},
    {.name = "zipf",
     .kind = CLI_FLOAT,
     .value = &sim.zipf,
     .max = 10,
     .arg = "S",
     .help = "popularity falls with rank to the power S (default 0: equal)"},
    {.name = "reuse",
     .kind = CLI_FLOAT,
     .value = &sim.reuse,
     .max = 0.99,
     .arg = "P",
     .help = "share of experts taken from the token before (default 0)"},
    {.name = "layers", .kind = CLI_UINT, .value = &sim.layers, .min = 1, .max = 512, .arg = "N", .help = "(default 48)"},
    {.name = "experts", .kind = CLI_UINT, .value = &sim.experts, .min = 1, .max = 4096, .arg = "N", .help = "(default 512)"},
    {.name = "used", .kind = CLI_UINT, .value = &sim.used, .min = 1, .max = 64, .arg = "N", .help = "(default 10)"},
    {.name = "seed", .letter = 's', .kind = CLI_UINT, .value = &sim.seed, .max = UINT32_MAX, .arg = "N", .help = "(default 0)"},
    {0}};
static const cli_table sim_tables[] = {{"Simulation:", sim_options}, {"Other:", cli_output_options}, {0}};

static rl_status simulate(const rl_trace *t, rl_error *err)
{
    cli_outf(
        "| cache | policy            | misses a token | hits    |\n| ----: | ----------------- | -------------: | ------: |\n");
    for (uint32_t i = 0; i < sim.percent.n; i++) {
        rl_sim_result r[RL_SIM_POLICIES];
        const rl_status st = rl_cache_sim(t, sim.percent.v[i] / 100.0, r, err);
        if (st != RL_OK) return st;
        for (int p = 0; p < RL_SIM_POLICIES; p++)
            cli_outf("| %3u %% | %-17s | %14.1f | %5.1f %% |\n", sim.percent.v[i], rl_sim_policy_name(r[p].policy),
                     (double)r[p].misses / (double)rl_trace_tokens(t), 100.0 - 100.0 * (double)r[p].misses / (double)r[p].uses);
    }
    return RL_OK;
}

int cmd_cache_sim(int argc, char **argv)
{
    cli_command_line cl = {.command = "cache-sim",
                           .usage = "[TRACE] [OPTIONS]",
                           .about = "Replays a trace of redlite trace, or made-up routing, against expert caches of different\n"
                                    "sizes and policies. The optimal one knows the future: the bound for all.",
                           .tables = sim_tables,
                           .max_positional = 1};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    rl_trace *t = NULL;
    rl_error err = {0};
    rl_status st = cl.n_positional
                       ? rl_trace_load(cl.positional[0], &t, &err)
                       : rl_trace_synth(sim.layers, sim.experts, sim.used, sim.tokens, sim.zipf, sim.reuse, sim.seed, &t, &err);
    if (st == RL_OK && rl_trace_tokens(t) == 0)
        status = cli_usage_error("cache-sim", "the trace is empty");
    else if (st == RL_OK)
        st = simulate(t, &err);
    rl_trace_free(t);
    if (st != RL_OK) return cli_error(&err);
    return status == CLI_GO_ON ? cli_out_status() : status;
}
