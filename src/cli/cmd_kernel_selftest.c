/* cli/kernel-selftest: every GPU kernel against plain host code. */
#include "cli.h"

static struct {
    uint32_t seed;
} opt = {.seed = 1};

static const cli_option selftest_options[] = {{.name = "seed",
                                               .kind = CLI_UINT,
                                               .value = &opt.seed,
                                               .max = UINT32_MAX,
                                               .arg = "N",
                                               .help = "chooses shapes and numbers (default 1)"},
                                              {0}};
static const cli_table tables[] = {{"Options:", selftest_options}, {0}};

int cmd_kernel_selftest(int argc, char **argv)
{
    cli_command_line cl = {.command = "kernel-selftest",
                           .usage = "[--seed N]",
                           .about = "Runs every kernel of the GPU backend on random shapes and compares with plain code.",
                           .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    rl_error err = {0};
    if (rl_gpu_selftest(opt.seed, &err) != RL_OK) return cli_error(&err);
    cli_out_text("all kernels agree\n");
    return cli_out_status();
}
