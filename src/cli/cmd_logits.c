/* cli/logits: raw float32 logits of a text's positions, for comparison with other programs. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static struct {
    const char *out;
    uint32_t last;
} opt;

static const cli_option logits_options[] = {{.name = "output",
                                             .letter = 'o',
                                             .kind = CLI_TEXT,
                                             .value = &opt.out,
                                             .arg = "FILE",
                                             .help = "where to write, - for standard output (required)"},
                                            {.name = "last",
                                             .kind = CLI_UINT,
                                             .value = &opt.last,
                                             .min = 1,
                                             .max = RL_MAX_CONTEXT,
                                             .arg = "N",
                                             .help = "only the last N positions"},
                                            {0}};
static const cli_table tables[] = {{"Text (or standard input):", cli_prompt_options},
                                   {"Output:", logits_options},
                                   {"Model:", cli_engine_options},
                                   {"Other:", cli_output_options},
                                   {0}};

typedef struct sink {
    rl_out_file *file; /* NULL: standard output */
    uint32_t n_vocab;
} sink;

/* The format is little-endian; so are the machines with kernels, and others swap here. */
static void little_endian(float *row, uint32_t n)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (uint32_t i = 0; i < n; i++) {
        uint32_t w;
        memcpy(&w, &row[i], 4);
        w = __builtin_bswap32(w);
        memcpy(&row[i], &w, 4);
    }
#else
    (void)row;
    (void)n;
#endif
}

static rl_status write_row(void *ctx, uint32_t position, const float *row, rl_error *err)
{
    (void)position;
    sink *s = ctx;
    size_t n = s->n_vocab * sizeof(float);
    float *copy = malloc(n);
    if (!copy) {
        *err = (rl_error){.status = RL_ERR_MEMORY, .text = "no memory for a row of logits"};
        return RL_ERR_MEMORY;
    }
    memcpy(copy, row, n);
    little_endian(copy, s->n_vocab);
    rl_status st = RL_OK;
    if (cli_interrupted())
        st = err->status = RL_ERR_CANCELLED;
    else if (s->file)
        st = rl_out_write(s->file, copy, n, err);
    else if (!cli_out(copy, n))
        st = err->status = RL_ERR_IO; /* cli_out_status tells why */
    free(copy);
    return st;
}

static int write_logits(rl_engine *e, const int32_t *ids, size_t n)
{
    sink s = {.n_vocab = rl_engine_vocab_size(e)};
    bool to_stdout = strcmp(opt.out, "-") == 0;
    rl_error err = {0};
    rl_session *session = NULL;
    size_t skip = opt.last && opt.last < n ? n - opt.last : 0;
    rl_status st = rl_session_create(e, (uint32_t)n, &session, &err);
    if (st == RL_OK && !to_stdout) st = rl_out_open(opt.out, &s.file, &err);
    cli_progress progress = {.what = "prompt", .rate = true};
    if (st == RL_OK) st = rl_session_extend(session, ids, skip, cli_show_progress, &progress, &err);
    cli_clear_progress(&progress);
    if (st == RL_OK) st = rl_session_extend_logits(session, ids + skip, n - skip, write_row, &s, &err);
    if (st == RL_OK && s.file) {
        st = rl_out_commit(s.file, &err);
        s.file = NULL;
    }
    rl_out_abort(s.file);
    rl_session_free(session);
    int written = to_stdout ? cli_out_status() : CLI_EXIT_OK;
    if (st != RL_OK && !(to_stdout && st == RL_ERR_IO)) return cli_error(&err);
    if (written == CLI_EXIT_OK && st == RL_OK && !cli_engine.quiet)
        fprintf(stderr, "%zu positions x %u logits, float32\n", n - skip, s.n_vocab);
    return written;
}

int cmd_logits(int argc, char **argv)
{
    cli_command_line cl = {.command = "logits",
                           .usage = "-o FILE [-p TEXT | -f FILE | --tokens IDS] [OPTIONS]",
                           .about = "Writes the logits after every token: raw little-endian float32, [positions][vocabulary].\n"
                                    "The file appears only when it is complete.",
                           .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (!opt.out) return cli_usage_error("logits", "name the output with -o FILE");
    rl_engine *e = NULL;
    if (!cli_open_engine(&e, &status)) return status;
    int32_t *ids = NULL;
    size_t n = 0;
    if (cli_read_ids("logits", rl_engine_tokenizer(e), &ids, &n, &status)) {
        status = CLI_EXIT_FAILURE;
        if (n == 0)
            fprintf(stderr, "redlite: the text is empty: there are no positions\n");
        else if (n > rl_engine_context(e))
            fprintf(stderr, "redlite: the text has %zu tokens but the context holds %u; give --context %zu\n", n,
                    rl_engine_context(e), n);
        else
            status = write_logits(e, ids, n);
        free(ids);
    }
    rl_engine_close(e);
    return status;
}
