/* cli/parity: one backend judged by another, with a verdict. */
#include "cli.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *judge, *tested;
    float max_stage, max_abs, max_kl, mean_kl;
    bool json;
} opt = {.judge = "ref", .tested = "auto", .max_stage = -1, .max_abs = -1, .max_kl = -1, .mean_kl = -1};

/* Bounds when none are given. Exact: float32 rounding, stage by stage and added up over the layers. Fast: a stage shows the
 * rounding of its activations to eight bits (about 1.5 %); free running, a router tie that falls the other way replaces an
 * expert, which a small model's logits show at once. So the stage's bound is the strict one there. */
#define EXACT_MAX_STAGE 1e-5f
#define FAST_MAX_STAGE  5e-2f
#define EXACT_MAX_ABS   2e-3f
#define FAST_MAX_ABS    8.0f
#define EXACT_MAX_KL    1e-5f
#define FAST_MAX_KL     2.0f
#define EXACT_MEAN_KL   1e-6f
#define FAST_MEAN_KL    0.1f

static const cli_option parity_options[] = {
    {.name = "judge", .kind = CLI_TEXT, .value = &opt.judge, .arg = "NAME", .help = "backend that is right (default ref)"},
    {.name = "max-stage",
     .kind = CLI_FLOAT,
     .value = &opt.max_stage,
     .max = 1e6,
     .arg = "X",
     .help = "largest error of a stage that passes, rms, relative\n(default 1e-5 exact, 5e-2 fast)"},
    {.name = "max-abs",
     .kind = CLI_FLOAT,
     .value = &opt.max_abs,
     .max = 1e6,
     .arg = "X",
     .help = "largest difference of a logit that passes\n(default 2e-3 exact, 8 fast)"},
    {.name = "max-kl",
     .kind = CLI_FLOAT,
     .value = &opt.max_kl,
     .max = 1e6,
     .arg = "X",
     .help = "largest KL divergence of a position that passes, nats\n(default 1e-5 exact, 2 fast)"},
    {.name = "mean-kl",
     .kind = CLI_FLOAT,
     .value = &opt.mean_kl,
     .max = 1e6,
     .arg = "X",
     .help = "largest mean of the KL divergences\n(default 1e-6 exact, 0.1 fast)"},
    {.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "the report as JSON"},
    {0}};
static const cli_table tables[] = {{"Text (or standard input; default: a built-in text):", cli_prompt_options},
                                   {"Comparison (--backend names the tested one):", parity_options},
                                   {"Model:", cli_engine_options},
                                   {"Other:", cli_output_options},
                                   {0}};

static const char sample_text[] =
    "Once upon a time there was a miller who had three sons, a mill, a donkey and a cat. The sons had to grind, the donkey had "
    "to fetch corn and carry away the flour, and the cat had to catch the mice. When the miller died, the three sons divided "
    "the inheritance: the eldest got the mill, the second the donkey, and nothing was left for the third but the cat.";

static double relative_error(const rl_parity_stage *s)
{
    return s->rms > 0 ? s->rms_error / s->rms : s->rms_error;
}

/* Routers are compared on the judge's input and compute in float32 in both precisions: no mismatch has an excuse. The likeliest
 * token may differ only where activations are rounded. */
static bool passes(const rl_parity_report *r)
{
    if (r->router_mismatches) return false;
    if (r->argmax_mismatches && cli_engine.precision == RL_PRECISION_EXACT) return false;
    for (uint32_t i = 0; i < r->n_stages; i++)
        if (r->stages[i].layers && !(relative_error(&r->stages[i]) <= (double)opt.max_stage)) return false;
    return r->logits_max_abs <= (double)opt.max_abs && r->kl_max <= (double)opt.max_kl && r->kl_mean <= (double)opt.mean_kl;
}

static void print_text(const rl_parity_report *r)
{
    cli_outf("judge %s, tested %s (%s, %s, kv %s), %u positions\n\n", r->judge, r->tested, r->isa,
             cli_engine.precision == RL_PRECISION_EXACT ? "exact" : "fast", cli_engine.kv == RL_KV_F16 ? "f16" : "f32",
             r->positions);
    cli_outf("%-18s %7s %12s %12s %12s %12s %6s %6s\n", "stage", "layers", "worst error", "rms error", "rms value", "relative",
             "layer", "row");
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const rl_parity_stage *s = &r->stages[i];
        if (s->layers == 0)
            cli_outf("%-18s       - not shown by the tested backend\n", s->name);
        else
            cli_outf("%-18s %7u %12.3e %12.3e %12.3e %12.3e %6u %6u\n", s->name, s->layers, s->max_abs, s->rms_error, s->rms,
                     relative_error(s), s->layer, s->row);
    }
    cli_outf("\n%-18s %12s %18s\n", "layer", "worst output", "router mismatches");
    for (uint32_t i = 0; i < r->n_layers; i++)
        cli_outf("%5u %-12s %12.3e %18u\n", i, r->layers[i].recurrent ? "deltanet" : "attention", r->layers[i].max_abs,
                 r->layers[i].router_mismatches);
    cli_outf("\nrouter mismatches  %u (smallest gap between chosen and refused: %.3e)\n", r->router_mismatches, r->router_gap);
    cli_outf("free run           logits worst %.3e (rms %.3f), KL worst %.3e, mean %.3e\n", r->logits_max_abs, r->logits_rms,
             r->kl_max, r->kl_mean);
    cli_outf("argmax             %u of %u differ", r->argmax_mismatches, r->positions);
    if (r->argmax_mismatches) cli_outf(" (largest gap %.3e)", r->argmax_gap);
    cli_outf("\nverdict            %s (bounds: stage %g, logits %g, KL worst %g, mean %g)\n", passes(r) ? "pass" : "FAIL",
             (double)opt.max_stage, (double)opt.max_abs, (double)opt.max_kl, (double)opt.mean_kl);
}

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_string("inf");
}

static json_t *stages_json(const rl_parity_report *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const rl_parity_stage *s = &r->stages[i];
        json_t *o = json_pack("{s:s, s:i, s:i, s:i}", "stage", s->name, "layers", (int)s->layers, "worst_layer", (int)s->layer,
                              "worst_row", (int)s->row);
        json_object_set_new(o, "max_abs", number(s->max_abs));
        json_object_set_new(o, "rms_error", number(s->rms_error));
        json_object_set_new(o, "rms", number(s->rms));
        json_array_append_new(list, o);
    }
    return list;
}

static void print_json(const rl_parity_report *r)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:b}", "judge", r->judge, "tested", r->tested, "isa", r->isa,
                          "positions", (int)r->positions, "router_mismatches", (int)r->router_mismatches, "argmax_mismatches",
                          (int)r->argmax_mismatches, "pass", passes(r));
    json_object_set_new(o, "logits_max_abs", number(r->logits_max_abs));
    json_object_set_new(o, "logits_rms", number(r->logits_rms));
    json_object_set_new(o, "kl_max", number(r->kl_max));
    json_object_set_new(o, "kl_mean", number(r->kl_mean));
    json_object_set_new(o, "router_gap", number(r->router_gap));
    json_object_set_new(o, "argmax_gap", number(r->argmax_gap));
    json_object_set_new(o, "stages", stages_json(r));
    json_t *layers = json_array();
    for (uint32_t i = 0; i < r->n_layers; i++) {
        json_t *l = json_pack("{s:s, s:i}", "kind", r->layers[i].recurrent ? "deltanet" : "attention", "router_mismatches",
                              (int)r->layers[i].router_mismatches);
        json_object_set_new(l, "max_abs", number(r->layers[i].max_abs));
        json_array_append_new(layers, l);
    }
    json_object_set_new(o, "layers", layers);
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (text) {
        cli_out_text(text);
        cli_out_text("\n");
    }
    free(text);
}

static bool read_ids(int32_t **ids, size_t *n, int *status)
{
    if (!cli_prompt.text && !cli_prompt.file && !cli_prompt.tokens.given) cli_prompt.text = sample_text;
    rl_tokenizer *t = NULL;
    if (!cli_prompt.tokens.given && !cli_open_tokenizer(&t, status)) return false;
    bool ok = cli_read_ids("parity", t, ids, n, status);
    rl_tokenizer_free(t);
    return ok;
}

int cmd_parity(int argc, char **argv)
{
    cli_command_line cl = {.command = "parity",
                           .usage = "[--backend NAME] [--judge NAME] [OPTIONS]",
                           .about =
                               "Compares a backend with the double-precision reference: every stage of every layer on the\n"
                               "judge's own input, then the logits of a free run. Exit status 1 when a bound is exceeded.",
                           .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (cli_engine.quiet) rl_log_set_level(RL_LOG_ERROR);
    bool exact = cli_engine.precision == RL_PRECISION_EXACT;
    if (opt.max_stage < 0) opt.max_stage = exact ? EXACT_MAX_STAGE : FAST_MAX_STAGE;
    if (opt.max_abs < 0) opt.max_abs = exact ? EXACT_MAX_ABS : FAST_MAX_ABS;
    if (opt.max_kl < 0) opt.max_kl = exact ? EXACT_MAX_KL : FAST_MAX_KL;
    if (opt.mean_kl < 0) opt.mean_kl = exact ? EXACT_MEAN_KL : FAST_MEAN_KL;
    int32_t *ids = NULL;
    size_t n = 0;
    if (!read_ids(&ids, &n, &status)) return status;
    if (n > RL_MAX_CONTEXT) n = RL_MAX_CONTEXT;
    cli_progress progress = {.what = "parity", .rate = true};
    rl_parity_options o = {.model = cli_model_path(),
                           .judge = opt.judge,
                           .tested = cli_engine.backend,
                           .isa = cli_engine.isa,
                           .precision = (rl_precision)cli_engine.precision,
                           .kv = (rl_kv_type)cli_engine.kv,
                           .threads = (int)cli_engine.threads,
                           .batch = cli_engine.batch,
                           .ids = ids,
                           .n = (uint32_t)n,
                           .progress = cli_show_progress,
                           .progress_ctx = &progress};
    rl_parity_report *r = NULL;
    rl_error err = {0};
    rl_status st = o.model ? rl_parity(&o, &r, &err) : RL_ERR_ARGUMENT;
    cli_clear_progress(&progress);
    free(ids);
    if (!o.model) return CLI_EXIT_FAILURE;
    if (st != RL_OK) return cli_error(&err);
    if (opt.json)
        print_json(r);
    else
        print_text(r);
    status = cli_out_status();
    if (status == CLI_EXIT_OK && !passes(r)) status = CLI_EXIT_FAILURE;
    rl_parity_report_free(r);
    return status;
}
