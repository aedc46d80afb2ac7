/* cli/kernel-bench: GB/s and GMAC/s of the matrix kernels, per weight type. */
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const all_types[] = {"F32",   "F16",     "BF16",  "Q8_0",   "Q4_0",   "Q2_K",    "Q3_K",
                                        "Q4_K",  "Q5_K",    "Q6_K",  "IQ1_S",  "IQ1_M",  "IQ2_XXS", "IQ2_XS",
                                        "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4",   NULL};
static const char *const precision_names[] = {"exact", "fast", NULL}; /* in the order of rl_precision */

static struct {
    const char *type, *isa;
    int precision;
    cli_uints tokens;
    uint32_t rows, cols, mib;
    float seconds;
    bool mapped, json;
} opt = {.isa = "auto",
         .precision = RL_PRECISION_FAST,
         .tokens = {{1, 16}, 2},
         .rows = 512,
         .cols = 2048,
         .mib = 64,
         .seconds = 0.2f};

static const cli_option options[] = {
    {.name = "type",
     .kind = CLI_TEXT,
     .value = &opt.type,
     .arg = "NAME",
     .help = "one weight type, q4_k for example (default: all)"},
    {.name = "tokens",
     .kind = CLI_UINTS,
     .value = &opt.tokens,
     .min = 1,
     .max = 512,
     .arg = "N,...",
     .help = "activation rows (default 1,16)"},
    {.name = "isa", .kind = CLI_TEXT, .value = &opt.isa, .arg = "NAME", .help = "auto, scalar, avx2, avx512, neon"},
    {.name = "precision",
     .kind = CLI_CHOICE,
     .value = &opt.precision,
     .choices = precision_names,
     .arg = "NAME",
     .help = "fast (default) or exact"},
    {.name = "mapped", .kind = CLI_FLAG, .value = &opt.mapped, .help = "the file's layout instead of the re-encoded one"},
    {.name = "rows",
     .kind = CLI_UINT,
     .value = &opt.rows,
     .min = 16,
     .max = 1 << 20,
     .arg = "N",
     .help = "rows of a matrix (default 512)"},
    {.name = "cols",
     .kind = CLI_UINT,
     .value = &opt.cols,
     .min = 256,
     .max = 1 << 16,
     .arg = "N",
     .help = "columns, a multiple of 256 (default 2048)"},
    {.name = "mib",
     .kind = CLI_UINT,
     .value = &opt.mib,
     .min = 1,
     .max = 1 << 16,
     .arg = "N",
     .help = "weights walked in turn (default 64)"},
    {.name = "seconds",
     .kind = CLI_FLOAT,
     .value = &opt.seconds,
     .min = 0.001,
     .max = 60,
     .arg = "S",
     .help = "time per measurement (default 0.2)"},
    {.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "the results as JSON"},
    {0}};
static const cli_table tables[] = {{"Measure:", options}, {"Other:", cli_output_options}, {0}};

static void report(json_t *list, const char *type, uint32_t tokens, const rl_kernel_speed *s)
{
    if (!opt.json) {
        cli_outf("| %-8s | %6u | %-10s | %7.3f | %8.2f | %9.2f | %8.2f |\n", type, tokens, s->repacked ? "re-encoded" : "file",
                 8 * s->bytes_per_weight, s->bytes_per_second / 1e9, s->weights_per_second / 1e9, s->macs_per_second / 1e9);
        cli_out_flush();
        return;
    }
    json_array_append_new(list, json_pack("{s:s, s:i, s:b, s:f, s:f, s:f, s:f}", "type", type, "tokens", (int)tokens,
                                          "repacked", s->repacked, "bytes_per_weight", s->bytes_per_weight, "bytes_per_second",
                                          s->bytes_per_second, "weights_per_second", s->weights_per_second, "macs_per_second",
                                          s->macs_per_second));
}

static int measure(json_t *list, const char *type)
{
    for (uint32_t i = 0; i < opt.tokens.n && !cli_interrupted(); i++) {
        rl_kernel_options o = {.type = type,
                               .isa = opt.isa,
                               .precision = (rl_precision)opt.precision,
                               .repack = !opt.mapped,
                               .tokens = opt.tokens.v[i],
                               .rows = opt.rows,
                               .cols = opt.cols,
                               .bytes = (uint64_t)opt.mib << 20,
                               .seconds = (double)opt.seconds};
        rl_kernel_speed s;
        rl_error err = {0};
        if (rl_kernel_measure(&o, &s, &err) != RL_OK) return cli_error(&err);
        report(list, type, o.tokens, &s);
    }
    return cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK;
}

int cmd_kernel_bench(int argc, char **argv)
{
    cli_command_line cl = {
        .command = "kernel-bench",
        .usage = "[--type NAME] [--tokens N,...] [OPTIONS]",
        .about = "Times the matrix kernels alone, on one thread: weights read (GB/s), weights decoded (G/s), and\n"
                 "multiply-adds (GMAC/s), per weight type and number of activation rows.",
        .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (opt.cols % 256) return cli_usage_error("kernel-bench", "--cols is %u; expected a multiple of 256", opt.cols);
    json_t *list = json_array();
    rl_machine_info m;
    rl_machine(&m);
    if (!opt.json)
        cli_outf("%s, %s, one thread\n\n| type     | tokens | layout     | bits    | GB/s     | Gweights/s | GMAC/s   |\n"
                 "| -------- | -----: | ---------- | ------: | -------: | --------: | -------: |\n",
                 m.cpu, opt.precision == RL_PRECISION_EXACT ? "exact" : "fast");
    if (opt.type)
        status = measure(list, opt.type);
    else
        for (int i = 0; all_types[i] && (status == CLI_GO_ON || status == CLI_EXIT_OK); i++)
            status = measure(list, all_types[i]);
    if (opt.json && status == CLI_EXIT_OK) {
        char *text = json_dumps(list, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        if (text) {
            cli_out_text(text);
            cli_out_text("\n");
        }
        free(text);
    }
    json_decref(list);
    int written = cli_out_status();
    return status == CLI_EXIT_OK ? written : status;
}
