/* cli/chat: a conversation in the terminal, or message by message through a pipe. */
#include "chat.h"
#include "chat_input.h"
#include "sampling.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    int32_t predict;
    bool stats, no_thinking;
    const char *system, *history;
} opt = {.predict = -1};

static const cli_option chat_options[] = {
    {.name = "system", .kind = CLI_TEXT, .value = &opt.system, .arg = "TEXT", .help = "system message"},
    {.name = "history",
     .kind = CLI_TEXT,
     .value = &opt.history,
     .arg = "FILE",
     .help = "go on with a conversation that /save wrote"},
    {.name = "predict",
     .letter = 'n',
     .kind = CLI_INT,
     .value = &opt.predict,
     .min = -1,
     .max = RL_MAX_CONTEXT,
     .arg = "N",
     .help = "tokens of an answer at most; -1 (default) = until the\ncontext is full"},
    {.name = "no-thinking", .kind = CLI_FLAG, .value = &opt.no_thinking, .help = "answer without reasoning, where a model can"},
    {.name = "stats", .kind = CLI_FLAG, .value = &opt.stats, .help = "times and speeds after every answer"},
    {0}};

static const cli_table tables[] = {{"Conversation:", chat_options},
                                   {"Sampling:", cli_sampling_options},
                                   {"Model:", cli_engine_options},
                                   {"Other:", cli_output_options},
                                   {0}};

void chat_note(const char *fmt, ...)
{
    if (cli_engine.quiet) return;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void chat_say(chat *c, conv_text message)
{
    size_t before = c->conv.n;
    if (!conv_add(&c->conv, RL_ROLE_USER, message, (conv_text){0})) {
        fprintf(stderr, "redlite: no memory for the message\n");
        c->status = CLI_EXIT_FAILURE;
    } else if (!chat_answer(c)) {
        conv_keep(&c->conv, before);
    }
}

/* What one message asks for; takes the text over. */
static void take_message(chat *c, char *text, size_t n)
{
    bool command = chat_is_command(text, n);
    if (command)
        chat_command(c, text, n);
    else if (n > 0) {
        if (n > 1 && text[0] == '/' && text[1] == '/') memmove(text, text + 1, n--); /* the end moves along */
        chat_say(c, (conv_text){text, n});
        return;
    }
    free(text);
}

/* At the prompt a first Ctrl-C drops what was typed and a second one leaves; in a pipe nobody is there to press it again. */
static bool leave_at_interrupt(chat *c, bool *warned)
{
    bool leave = !c->person || *warned || cli_terminated();
    if (leave)
        c->status = CLI_EXIT_INTERRUPTED;
    else
        chat_note("(Ctrl-C again or /quit leaves)");
    *warned = true;
    return leave;
}

static void converse(chat *c, chat_input *in)
{
    bool warned = false;
    while (!c->leave) {
        char *text = NULL;
        size_t n = 0;
        chat_input_end end = chat_input_read(in, &text, &n);
        if (end == CHAT_INPUT_INTERRUPT) {
            if (leave_at_interrupt(c, &warned)) return;
            cli_forget_interrupt();
            continue;
        }
        if (end != CHAT_INPUT_TEXT) {
            if (end == CHAT_INPUT_FAILED) c->status = CLI_EXIT_FAILURE;
            return;
        }
        warned = false;
        if (c->person) c->status = CLI_EXIT_OK; /* the person saw what went wrong */
        take_message(c, text, n);
        if (!cli_out_flush()) return; /* nobody reads any more */
        if (cli_interrupted() && (!c->person || cli_terminated())) {
            c->status = CLI_EXIT_INTERRUPTED;
            return;
        }
        cli_forget_interrupt();
    }
}

static bool prepare(chat *c, int *status)
{
    rl_error err = {0};
    static rl_logit_bias bias[CLI_BIASES_MAX];
    c->tokenizer = rl_engine_tokenizer(c->engine);
    if (!c->tokenizer) {
        fprintf(stderr, "redlite: chat needs a model with a vocabulary\n");
        *status = CLI_EXIT_FAILURE;
        return false;
    }
    cli_fill_sampling(c->engine, &c->sampling, bias);
    rl_status st = rl_chat_format_open(cli_model_path(), &c->format, &err);
    if (st == RL_OK) st = rl_session_create(c->engine, 0, &c->session, &err);
    if (st == RL_OK && opt.history) st = conv_load(&c->conv, opt.history, &err);
    if (st == RL_OK && opt.system && !conv_set_system(&c->conv, opt.system, strlen(opt.system)))
        st = cli_fail(&err, RL_ERR_MEMORY, "no memory for the system message");
    if (st != RL_OK) *status = cli_error(&err);
    return st == RL_OK;
}

static void greet(const chat *c)
{
    const rl_model_info *m = rl_engine_info(c->engine);
    if (!c->person) return;
    chat_note("%s, context %u tokens. /help lists the commands, Ctrl-D leaves.", m->name[0] ? m->name : m->path,
              rl_engine_context(c->engine));
    if (c->conv.n) chat_note("The conversation has %zu turns.", c->conv.n);
}

static int run_chat(rl_engine *e, chat_input *in)
{
    chat c = {.engine = e,
              .max_tokens = opt.predict < 0 ? UINT32_MAX : (uint32_t)opt.predict,
              .no_thinking = opt.no_thinking,
              .show_stats = opt.stats,
              .person = chat_input_is_terminal(in)};
    c.colour = isatty(STDOUT_FILENO) != 0;
    if (prepare(&c, &c.status)) {
        cli_set_patience(3); /* impatience must not cost the conversation */
        greet(&c);
        converse(&c, in);
        int written = cli_out_status();
        if (c.status == CLI_EXIT_OK) c.status = written;
    }
    cli_print_profile(e);
    rl_session_free(c.session);
    rl_chat_format_free(c.format);
    conv_free(&c.conv);
    free(c.file);
    return c.status;
}

int cmd_chat(int argc, char **argv)
{
    cli_command_line cl = {
        .command = "chat",
        .usage = "[OPTIONS]",
        .about = "Talks with the model. Each line is a message; /help lists the commands. Through a pipe it answers line by\n"
                 "line, answers on standard output. Ctrl-C stops an answer and keeps the conversation.",
        .tables = tables};
    int status = cli_parse(&cl, argc, argv);
    if (status != CLI_GO_ON) return status;
    if (opt.history && strcmp(opt.history, "-") == 0)
        return cli_usage_error("chat", "--history: standard input is the chat itself; name a file");
    rl_engine *e = NULL;
    if (!cli_open_engine(&e, &status)) return status;
    chat_input *in = chat_input_open();
    if (in)
        status = run_chat(e, in);
    else
        fprintf(stderr, "redlite: no memory for the input\n");
    chat_input_close(in);
    rl_engine_close(e);
    return in ? status : CLI_EXIT_FAILURE;
}
