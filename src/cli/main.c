/* cli/main: finds the command. */
#include "cli.h"

#include <string.h>

typedef struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command;

static int cmd_version(int argc, char **argv);
static int cmd_help(int argc, char **argv);

static const command commands[] = {
    {"generate", "continue a text, or answer a message with --chat", cmd_generate},
    {"chat", "talk with the model in the terminal", cmd_chat},
    {"serve", "answer over HTTP, as the APIs of OpenAI and Anthropic do", cmd_serve},
    {"pull", "fetch a model from Hugging Face or an address", cmd_pull},
    {"tokenize", "text to token ids", cmd_tokenize},
    {"detokenize", "token ids to text", cmd_detokenize},
    {"logits", "write the model's logits for every position", cmd_logits},
    {"perplexity", "how well the model predicts a text", cmd_perplexity},
    {"info", "shape, layers, types, bytes and memory of a model", cmd_info},
    {"parity", "compare one backend with another, stage by stage", cmd_parity},
    {"bench", "time prefill and decode", cmd_bench},
    {"kernel-bench", "time the matrix kernels alone", cmd_kernel_bench},
    {"plan", "what a model needs and how it will run here", cmd_plan},
    {"doctor", "the plan, the machine, and what would make it faster", cmd_doctor},
    {"trace", "record which experts a text uses", cmd_trace},
    {"cache-sim", "replay a trace against cache policies", cmd_cache_sim},
    {"synth", "write a model with random weights at a real shape", cmd_synth},
    {"kernel-selftest", "check every GPU kernel against plain code", cmd_kernel_selftest},
    {"version", "version, processor and backends", cmd_version},
    {"help", "this text, or the help of a command", cmd_help},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[N_COMMANDS + 1] = {0};
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    char shown[80];
    const char *near = cli_nearest(name, names);
    fprintf(stderr, "redlite: unknown command \"%s\"", rl_escape(shown, sizeof shown, name, strlen(name)));
    if (near) fprintf(stderr, "; did you mean %s?", near);
    fputs("\nTry: redlite help\n", stderr);
    return CLI_EXIT_USAGE;
}

static int print_commands(void)
{
    cli_outf("Red Lite %s runs large mixture-of-experts language models (Qwen3-Next) from a GGUF file.\n\n"
             "Usage: redlite COMMAND [OPTIONS]\n\n",
             rl_version());
    for (size_t i = 0; i < N_COMMANDS; i++)
        cli_outf("  %-17s%s\n", commands[i].name, commands[i].summary);
    cli_out_text("\nredlite COMMAND --help tells more. A first try, with the bundled model:\n"
                 "  redlite generate -p \"Once upon a time\"\n"
                 "  redlite chat\n"
                 "Larger models: redlite pull --list\n");
    return cli_out_status();
}

static int cmd_help(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_commands();
    const command *c = find_command(argv[1]);
    if (!c) return unknown_command(argv[1]);
    if (c->run == cmd_help) return print_commands();
    char help[] = "--help", *args[] = {argv[1], help, NULL};
    return c->run(2, args);
}

static int cmd_version(int argc, char **argv)
{
    static const cli_table tables[] = {{0}};
    cli_command_line cl = {
        .command = "version", .usage = "", .about = "Prints the version, the processor and the backends.", .tables = tables};
    int st = cli_parse(&cl, argc, argv);
    if (st != CLI_GO_ON) return st;
    rl_machine_info m;
    rl_machine(&m);
    cli_outf("%s\n", rl_build_info());
    cli_outf("processor: %s, %d cores (%d physical), kernels up to %s\n", m.cpu, m.logical_cores, m.physical_cores, m.best_isa);
    cli_out_text("backends:");
    for (const char *const *b = rl_backend_names(); *b; b++)
        cli_outf(" %s", *b);
    char gpu[512];
    cli_outf("\nGPU: %s%s\n", rl_gpu_describe(gpu, sizeof gpu) ? "" : "none: ", gpu);
    return cli_out_status();
}

int main(int argc, char **argv)
{
    cli_catch_signals();
    if (argc < 2) {
        int st = print_commands();
        return st == CLI_EXIT_OK ? CLI_EXIT_USAGE : st;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return print_commands();
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        char version[] = "version", *args[] = {version, NULL};
        return cmd_version(1, args);
    }
    const command *c = find_command(name);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(name);
}
