/* cli/perplexity: how well a model predicts a text, by llama-perplexity's definition. */
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>

static struct {
    uint32_t chunk, chunks;
    bool json;
} opt = {.chunk = 512};

static const cli_option perplexity_options[] = {
    {.name = "chunk",
     .kind = CLI_UINT,
     .value = &opt.chunk,
     .min = 4,
     .max = RL_MAX_CONTEXT,
     .arg = "N",
     .help = "tokens of a chunk (default 512)"},
    {.name = "chunks",
     .kind = CLI_UINT,
     .value = &opt.chunks,
     .max = UINT32_MAX,
     .arg = "N",
     .help = "at most so many chunks, 0 (default) = all"},
    {.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "the result as JSON"},
    {0}};
static const cli_table tables[] = {{"Text (or standard input):", cli_prompt_options},
                                   {"Measure:", perplexity_options},
                                   {"Model:", cli_engine_options},
                                   {"Other:", cli_output_options},
                                   {0}};

static bool show_chunk(void *ctx, const rl_perplexity_result *r, uint32_t total)
{
    (void)ctx;
    if (!cli_engine.quiet)
        fprintf(stderr, "chunk %u of %u: perplexity %.4f, %.1f tok/s\n", r->n_chunks, total, r->perplexity,
                (double)r->n_chunks * opt.chunk / r->seconds);
    return !cli_interrupted();
}

static int print_result(const rl_perplexity_result *r)
{
    if (!opt.json) {
        cli_outf("perplexity %.4f +/- %.4f (%u chunks of %u tokens, %llu scored)\n", r->perplexity, r->error, r->n_chunks,
                 opt.chunk, (unsigned long long)r->n_scored);
        return cli_out_status();
    }
    json_t *o =
        json_pack("{s:f, s:f, s:f, s:i, s:i, s:I, s:f}", "perplexity", r->perplexity, "error", r->error, "nll", r->nll, "chunk",
                  (int)opt.chunk, "chunks", (int)r->n_chunks, "scored", (json_int_t)r->n_scored, "seconds", r->seconds);
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(o);
    if (!text) {
        fprintf(stderr, "redlite: no memory for the result\n");
        return CLI_EXIT_FAILURE;
    }
    cli_out_text(text);
    cli_out_text("\n");
    free(text);
    return cli_out_status();
}

int cmd_perplexity(int argc, char **argv)
{
    cli_command_line cl = {.command = "perplexity",
                           .usage = "[-f FILE | -p TEXT | --tokens IDS] [OPTIONS]",
                           .about =
                               "Perplexity of a text: the text is cut into chunks, each is read from an empty context, and\n"
                               "the tokens of its second half are scored. The definition is that of llama-perplexity.",
                           .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    rl_engine *e = NULL;
    if (!cli_open_engine(&e, &status)) return status;
    int32_t *ids = NULL;
    size_t n = 0;
    if (cli_read_ids("perplexity", rl_engine_tokenizer(e), &ids, &n, &status)) {
        rl_perplexity_result r = {0};
        rl_error err = {0};
        rl_status st = rl_perplexity(e, ids, n, opt.chunk, opt.chunks, show_chunk, NULL, &r, &err);
        /* After Ctrl-C what is known so far is still a result. */
        status = st == RL_OK || r.n_chunks ? print_result(&r) : CLI_EXIT_OK;
        if (st != RL_OK) status = cli_error(&err);
        free(ids);
    }
    rl_engine_close(e);
    return status;
}
