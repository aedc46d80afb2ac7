/* cli/tokenize and cli/detokenize: text to ids and back. Only the vocabulary of the model is read. */
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static struct {
    bool ids, json, count, chat, hide_special;
} opt;

static const cli_option tokenize_options[] = {
    {.name = "ids", .kind = CLI_FLAG, .value = &opt.ids, .help = "only the ids, on one line"},
    {.name = "count", .kind = CLI_FLAG, .value = &opt.count, .help = "only how many there are"},
    {.name = "json", .kind = CLI_FLAG, .value = &opt.json, .help = "an array of {id, text}"},
    {.name = "chat", .kind = CLI_FLAG, .value = &opt.chat, .help = "as a message to answer, in its frame"},
    {0}};
static const cli_option text_options[] = {
    {.name = "prompt", .letter = 'p', .kind = CLI_TEXT, .value = &cli_prompt.text, .arg = "TEXT", .help = "the text"},
    {.name = "file",
     .letter = 'f',
     .kind = CLI_TEXT,
     .value = &cli_prompt.file,
     .arg = "FILE",
     .help = "the text in a file, - for standard input"},
    {.name = "plain",
     .kind = CLI_FLAG,
     .value = &cli_prompt.plain,
     .help = "text like <|im_end|> is text, not a control token"},
    {0}};
static const cli_table tokenize_tables[] = {{"Text (or standard input):", text_options},
                                            {"Output:", tokenize_options},
                                            {"Model:", cli_model_options},
                                            {"Other:", cli_output_options},
                                            {0}};

/* A token's bytes as JSON text: bytes that are not whole characters become U+FFFD. */
static json_t *token_text(rl_slice bytes)
{
    char *text = malloc(3 * bytes.size + 24);
    if (!text) return NULL;
    rl_utf8_stream s = {0};
    size_t n = rl_utf8_stream_push(&s, bytes.data, bytes.size, text);
    n += rl_utf8_stream_finish(&s, text + n);
    json_t *j = json_stringn(text, n);
    free(text);
    return j;
}

static void print_tokens(const rl_tokenizer *t, const int32_t *ids, size_t n)
{
    if (opt.count) {
        cli_outf("%zu\n", n);
        return;
    }
    if (opt.json) cli_out_text("[");
    for (size_t i = 0; i < n && !cli_interrupted(); i++) {
        rl_slice bytes = rl_token_bytes(t, ids[i], true);
        if (opt.ids) {
            if (!cli_outf(i ? " %d" : "%d", ids[i])) return;
        } else if (opt.json) {
            json_t *text = token_text(bytes);
            char *s = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
            cli_outf("%s\n  {\"id\": %d, \"text\": ", i ? "," : "", ids[i]);
            bool ok = cli_out_text(s ? s : "null") && cli_out_text("}");
            free(s);
            json_decref(text);
            if (!ok) return;
        } else {
            char shown[256];
            if (!cli_outf("%7d  \"%s\"\n", ids[i], rl_escape(shown, sizeof shown, bytes.data, bytes.size))) return;
        }
    }
    if (opt.json) cli_out_text("\n]");
    if (opt.json || opt.ids) cli_out_text("\n");
}

static bool read_chat(const rl_tokenizer *t, int32_t **ids, size_t *n, int *status)
{
    char *text = NULL;
    size_t size = 0;
    if (!cli_read_text("tokenize", &text, &size, status)) return false;
    rl_chat_message m = {RL_ROLE_USER, text, size};
    rl_error err = {0};
    rl_status st = rl_chat_tokenize(t, &m, 1, true, ids, n, &err);
    free(text);
    if (st != RL_OK) *status = cli_error(&err);
    return st == RL_OK;
}

int cmd_tokenize(int argc, char **argv)
{
    cli_command_line cl = {.command = "tokenize",
                           .usage = "[-p TEXT | -f FILE] [OPTIONS]",
                           .about = "Prints the token ids of a text, each with its bytes. redlite detokenize is the way back.",
                           .tables = tokenize_tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    rl_tokenizer *t = NULL;
    if (!cli_open_tokenizer(&t, &status)) return status;
    int32_t *ids = NULL;
    size_t n = 0;
    bool ok = opt.chat ? read_chat(t, &ids, &n, &status) : cli_read_ids("tokenize", t, &ids, &n, &status);
    if (ok) {
        print_tokens(t, ids, n);
        status = cli_out_status();
        free(ids);
    }
    rl_tokenizer_free(t);
    return status == CLI_EXIT_OK && cli_interrupted() ? CLI_EXIT_INTERRUPTED : status;
}

/* ---- detokenize ------------------------------------------------------------------------------------------------------ */

static const cli_option detokenize_options[] = {
    {.name = "tokens", .kind = CLI_IDS, .value = &cli_prompt.tokens, .arg = "IDS", .help = "the ids: 1,2,3"},
    {.name = "file",
     .letter = 'f',
     .kind = CLI_TEXT,
     .value = &cli_prompt.file,
     .arg = "FILE",
     .help = "the ids in a file, - for standard input"},
    {.name = "hide-special", .kind = CLI_FLAG, .value = &opt.hide_special, .help = "leave control tokens out"},
    {0}};
static const cli_table detokenize_tables[] = {
    {"Ids (or standard input):", detokenize_options}, {"Model:", cli_model_options}, {"Other:", cli_output_options}, {0}};

static bool read_id_text(int32_t **ids, size_t *n, int *status)
{
    char *text = NULL, why[512];
    size_t size = 0;
    if (!cli_read_text("detokenize", &text, &size, status)) return false;
    bool ok = cli_parse_ids(text, size, ids, n, why, sizeof why);
    if (!ok) *status = cli_usage_error("detokenize", "%s", why);
    free(text);
    return ok;
}

int cmd_detokenize(int argc, char **argv)
{
    cli_command_line cl = {.command = "detokenize",
                           .usage = "[--tokens IDS | -f FILE] [OPTIONS]",
                           .about = "Prints the bytes of token ids, exactly as they are.",
                           .tables = detokenize_tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    int32_t *ids = NULL;
    size_t n = 0;
    if (cli_prompt.tokens.given) {
        if (cli_prompt.file) return cli_usage_error("detokenize", "give only one of --tokens and -f");
        ids = cli_prompt.tokens.ids;
        n = cli_prompt.tokens.n;
    } else if (!read_id_text(&ids, &n, &status)) {
        return status;
    }
    rl_tokenizer *t = NULL;
    if (cli_open_tokenizer(&t, &status)) {
        status = CLI_EXIT_OK;
        for (size_t i = 0; i < n && status == CLI_EXIT_OK; i++) {
            if ((uint32_t)ids[i] >= rl_tokenizer_n_vocab(t)) {
                fprintf(stderr, "redlite: token %zu is %d, which is not in the vocabulary (0 to %u)\n", i, ids[i],
                        rl_tokenizer_n_vocab(t) - 1);
                status = CLI_EXIT_FAILURE;
                break;
            }
            rl_slice bytes = rl_token_bytes(t, ids[i], !opt.hide_special);
            if (!cli_out(bytes.data, bytes.size)) break;
        }
        int written = cli_out_status();
        if (status == CLI_EXIT_OK) status = written;
        rl_tokenizer_free(t);
    }
    free(ids);
    return status;
}
