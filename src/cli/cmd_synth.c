/* cli/synth: model files with random weights, to time a machine before a download. */
#include "cli.h"

static struct {
    const char *preset, *mix;
    uint32_t layers, seed, threads;
    bool mtp, plan;
} opt = {.preset = "80b", .mix = "iq2_xxs"};

static const cli_option synth_options[] = {
    {.name = "preset", .kind = CLI_TEXT, .value = &opt.preset, .arg = "NAME", .help = "shape: 80b (default), small, tiny"},
    {.name = "mix",
     .kind = CLI_TEXT,
     .value = &opt.mix,
     .arg = "NAME",
     .help = "iq2_xxs (default), iq3_xxs, q4_k: as published files;\nany weight type, q8_0 for example: that type throughout"},
    {.name = "layers",
     .kind = CLI_UINT,
     .value = &opt.layers,
     .max = 512,
     .arg = "N",
     .help = "trunk layers, 0 (default) = the preset's"},
    {.name = "mtp", .kind = CLI_FLAG, .value = &opt.mtp, .help = "add the MTP block"},
    {.name = "seed",
     .letter = 's',
     .kind = CLI_UINT,
     .value = &opt.seed,
     .max = UINT32_MAX,
     .arg = "N",
     .help = "other random weights (default 0)"},
    {.name = "threads",
     .letter = 't',
     .kind = CLI_UINT,
     .value = &opt.threads,
     .max = RL_MAX_THREADS,
     .arg = "N",
     .help = "0 (default): one per physical core"},
    {.name = "plan", .kind = CLI_FLAG, .value = &opt.plan, .help = "only say what would be written"},
    {0}};
static const cli_table tables[] = {{"Model:", synth_options}, {"Other:", cli_output_options}, {0}};

int cmd_synth(int argc, char **argv)
{
    cli_command_line cl = {
        .command = "synth",
        .usage = "[--preset NAME] [--mix NAME] [--layers N] OUT",
        .about = "Writes a model with random weights at a real shape. It loads and costs what a real file of its\n"
                 "shape costs, so a machine can be timed before a download; its text is noise.",
        .tables = tables,
        .max_positional = 1};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (cl.n_positional == 0 && !opt.plan) return cli_usage_error("synth", "name the file to write");
    cli_progress progress = {.what = "writing"};
    rl_synth_options o = {.preset = opt.preset,
                          .mix = opt.mix,
                          .n_layer = opt.layers,
                          .mtp = opt.mtp,
                          .seed = opt.seed,
                          .threads = (int)opt.threads,
                          .progress = cli_show_progress,
                          .progress_ctx = &progress};
    rl_synth_info info = {0};
    rl_error err = {0};
    rl_status st = opt.plan ? rl_synth_plan(&o, &info, &err) : rl_synth(cl.positional[0], &o, &info, &err);
    cli_clear_progress(&progress);
    if (st != RL_OK) return cli_error(&err);
    if (!cli_engine.quiet || opt.plan)
        cli_outf("%u tensors, %.2f G weights, %.2f GiB\n", info.n_tensors, (double)info.n_weights / 1e9,
                 (double)info.tensor_bytes / 1073741824.0);
    return cli_out_status();
}
