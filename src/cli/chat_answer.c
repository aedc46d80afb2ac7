/* cli/chat_answer: from the conversation to its next turn.
 *
 * The session keeps the ids of the last answer as they were drawn; rendering the conversation again may split the same text
 * into other tokens. So the new prompt is laid beside what the session holds, text against text, and takes the session's ids as
 * far as the texts agree. A mark before every answer lets the session go back there: for /retry, /undo, and for reasoning that
 * leaves the prompt when the person speaks again. */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

/* ---- The prompt ------------------------------------------------------------------------------------------------------ */

static rl_slice slice_of(const conv_text *t)
{
    return (rl_slice){t->data ? t->data : "", t->size};
}

/* The conversation as a request; turns: room for c->conv.n + 1. */
static rl_chat_request make_request(const chat *c, rl_chat_turn *turns, bool add_generation)
{
    size_t n = 0;
    if (c->conv.system.size) turns[n++] = (rl_chat_turn){.role = RL_ROLE_SYSTEM, .content = slice_of(&c->conv.system)};
    for (size_t i = 0; i < c->conv.n; i++) {
        const conv_turn *t = &c->conv.turns[i];
        turns[n] = (rl_chat_turn){.role = t->role, .content = slice_of(&t->content)};
        if (t->role == RL_ROLE_ASSISTANT) turns[n].reasoning = slice_of(&t->reasoning);
        n++;
    }
    return (rl_chat_request){.turns = turns, .n_turns = n, .add_generation = add_generation, .no_thinking = c->no_thinking};
}

typedef struct prompt {
    int32_t *ids;
    size_t n;
    size_t history; /* ids before the opening of the answer */
} prompt;

/* Where two lists of ids stop saying the same: the largest na of a and nb of b that give the same text. Control tokens are the
 * same only as tokens, never as text. */
static void agree(const rl_tokenizer *t, const int32_t *a, size_t n_a, const int32_t *b, size_t n_b, size_t *na, size_t *nb)
{
    size_t i = 0, j = 0, at_a = 0, at_b = 0;
    *na = *nb = 0;
    while (i < n_a && j < n_b) {
        rl_slice x = rl_token_bytes(t, a[i], true), y = rl_token_bytes(t, b[j], true);
        bool control = rl_token_kind_of(t, a[i]) == RL_TOKEN_CONTROL || rl_token_kind_of(t, b[j]) == RL_TOKEN_CONTROL;
        if (control && (a[i] != b[j] || at_a || at_b)) return;
        size_t left_x = x.size - at_a, left_y = y.size - at_b, same = left_x < left_y ? left_x : left_y;
        if (memcmp(x.data + at_a, y.data + at_b, same) != 0) return;
        at_a += same;
        at_b += same;
        if (at_a == x.size) {
            i++;
            at_a = 0;
        }
        if (at_b == y.size) {
            j++;
            at_b = 0;
        }
        if (at_a == 0 && at_b == 0) {
            *na = i;
            *nb = j;
        }
    }
}

/* Puts the session's own ids in the place of those that say the same. */
static bool keep_drawn_ids(const chat *c, prompt *p)
{
    size_t na = 0, nb = 0;
    const int32_t *drawn = rl_session_tokens(c->session);
    agree(c->tokenizer, drawn, rl_session_position(c->session), p->ids, p->history, &na, &nb);
    size_t n = na + (p->n - nb);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return false;
    if (na) memcpy(ids, drawn, na * sizeof *ids);
    memcpy(ids + na, p->ids + nb, (p->n - nb) * sizeof *ids);
    free(p->ids);
    *p = (prompt){.ids = ids, .n = n, .history = p->history - nb + na};
    return true;
}

static rl_status build_prompt(const chat *c, prompt *p, rl_error *err)
{
    rl_chat_turn *turns = calloc(c->conv.n + 1, sizeof *turns);
    if (!turns) return cli_fail(err, RL_ERR_MEMORY, "no memory for a prompt of %zu turns", c->conv.n);
    int32_t *history = NULL;
    size_t n_history = 0;
    rl_chat_request r = make_request(c, turns, false);
    rl_status st = rl_chat_request_tokenize(c->tokenizer, c->format, &r, &history, &n_history, err);
    r.add_generation = true;
    if (st == RL_OK) st = rl_chat_request_tokenize(c->tokenizer, c->format, &r, &p->ids, &p->n, err);
    while (st == RL_OK && p->history < n_history && p->history < p->n && history[p->history] == p->ids[p->history])
        p->history++;
    free(history);
    free(turns);
    if (st == RL_OK && !keep_drawn_ids(c, p)) st = cli_fail(err, RL_ERR_MEMORY, "no memory for a prompt of %zu tokens", p->n);
    return st;
}

bool chat_count_tokens(chat *c, size_t *n)
{
    rl_error err = {0};
    prompt p = {0};
    rl_status st = c->conv.n || c->conv.system.size ? build_prompt(c, &p, &err) : RL_OK;
    free(p.ids);
    *n = p.history;
    if (st != RL_OK) cli_error(&err);
    return st == RL_OK;
}

/* ---- Computing the prompt -------------------------------------------------------------------------------------------- */

/* The session holds the prompt afterwards, computed and marked before the answer's opening. */
static rl_status compute_prompt(chat *c, const prompt *p, rl_error *err)
{
    uint32_t room = rl_session_capacity(c->session), reused = 0;
    if (p->n >= room)
        return cli_fail(err, RL_ERR_LIMIT,
                        "the conversation has %zu tokens and the context holds %u: shorten it with /undo or /reset, or start "
                        "with a larger --context",
                        p->n, room);
    cli_progress progress = {.what = "reading", .rate = true};
    double start = rl_now();
    rl_status st = rl_session_set_tokens(c->session, p->ids, p->history, cli_show_progress, &progress, &reused, err);
    if (st == RL_OK && p->history) st = rl_session_mark(c->session, err);
    if (st == RL_OK) st = rl_session_extend(c->session, p->ids + p->history, p->n - p->history, cli_keep_going, NULL, err);
    cli_clear_progress(&progress);
    c->last = (chat_stats){.n_prompt = (uint32_t)p->n, .n_reused = reused, .prompt_seconds = rl_now() - start};
    return st;
}

/* ---- Streaming ------------------------------------------------------------------------------------------------------- */

typedef struct stream {
    chat *c;
    rl_answer_parser *parser;
    conv_text content, reasoning;
    bool dimmed, ends_line, written, failed;
    rl_error err;
} stream;

/* Control characters would let a model's text drive the terminal. */
static void show(const stream *s, rl_slice text)
{
    if (!s->c->colour) {
        cli_out(text.data, text.size);
        return;
    }
    size_t from = 0;
    for (size_t i = 0; i < text.size; i++) {
        unsigned char b = (unsigned char)text.data[i];
        bool c1 = b == 0xC2 && i + 1 < text.size && (unsigned char)text.data[i + 1] < 0xA0;
        if ((b >= 0x20 && b != 0x7F && !c1) || b == '\n' || b == '\t') continue;
        cli_out(text.data + from, i - from);
        cli_out_text("\xEF\xBF\xBD");
        i += c1;
        from = i + 1;
    }
    cli_out(text.data + from, text.size - from);
}

static void set_dimmed(stream *s, bool dimmed)
{
    if (s->dimmed == dimmed) return;
    s->dimmed = dimmed;
    cli_out_text(dimmed ? "\033[2m" : "\033[0m\n\n");
}

static bool on_event(void *ctx, const rl_answer_event *event)
{
    stream *s = ctx;
    bool reasoning = event->kind == RL_ANSWER_REASONING;
    if (event->text.size == 0 || (!reasoning && event->kind != RL_ANSWER_CONTENT)) return true;
    if (!conv_append(reasoning ? &s->reasoning : &s->content, event->text.data, event->text.size)) {
        s->failed = true;
        return false;
    }
    if (reasoning && !s->c->colour) return true; /* a pipe gets the answer alone */
    set_dimmed(s, reasoning);
    show(s, event->text);
    s->written = true;
    s->ends_line = event->text.data[event->text.size - 1] == '\n';
    return true;
}

static bool on_token(void *ctx, int32_t id, const float *logits)
{
    stream *s = ctx;
    (void)logits;
    rl_slice bytes = rl_token_bytes(s->c->tokenizer, id, false);
    if (rl_answer_parser_push(s->parser, bytes.data, bytes.size, &s->err) != RL_OK) s->failed = true;
    return cli_out_flush() && !s->failed && !cli_interrupted();
}

static void end_stream(stream *s)
{
    if (!s->failed && rl_answer_parser_finish(s->parser, &s->err) != RL_OK) s->failed = true;
    if (s->dimmed) cli_out_text("\033[0m");
    if (s->written && !s->ends_line) cli_out_text("\n");
    cli_out_flush();
}

static rl_status make_parser(stream *s, rl_error *err)
{
    rl_chat_request r = {.no_thinking = s->c->no_thinking};
    return rl_answer_parser_create(s->c->format, &r, on_event, s, &s->parser, err);
}

/* ---- One answer ------------------------------------------------------------------------------------------------------ */

static void explain_end(const chat *c, const rl_generate_result *r)
{
    if (r->finish == RL_FINISH_CANCELLED) chat_note("[stopped]");
    if (r->finish == RL_FINISH_LENGTH) chat_note("[ended after %u tokens; -n sets how many]", r->n_generated);
    if (r->finish == RL_FINISH_CONTEXT)
        chat_note("[the context of %u tokens is full: /undo or /reset, or start with a larger --context]",
                  rl_session_capacity(c->session));
    if (r->finish == RL_FINISH_EOG && r->n_generated == 0) chat_note("[the model ended its answer at once]");
}

static rl_status generate(stream *s, rl_generate_result *r, rl_error *err)
{
    chat *c = s->c;
    rl_sampler *sampler = NULL;
    rl_sampling p = c->sampling;
    /* A seed of its own for every answer: else /retry would repeat the draws. */
    if (p.seed != RL_SEED_RANDOM) p.seed += c->n_answers;
    rl_status st = rl_sampler_create(c->engine, &p, &sampler, err);
    rl_generate_options o = {.max_tokens = c->max_tokens, .on_token = on_token, .ctx = s};
    if (st == RL_OK) st = rl_generate(c->session, sampler, &o, r, err);
    rl_sampler_free(sampler);
    c->last.n_answer = r->n_generated;
    c->last.answer_seconds = r->decode_seconds;
    return st;
}

/* The turn is kept however it ended: what was shown is part of the conversation. */
static bool keep_answer(stream *s)
{
    bool kept = conv_add(&s->c->conv, RL_ROLE_ASSISTANT, s->content, s->reasoning);
    s->content = s->reasoning = (conv_text){0};
    if (!kept || s->failed) fprintf(stderr, "redlite: no memory for the answer\n");
    return kept;
}

bool chat_answer(chat *c)
{
    rl_error err = {0};
    prompt p = {0};
    stream s = {.c = c, .ends_line = true};
    c->last = (chat_stats){0};
    rl_generate_result r = {0};
    rl_status st = build_prompt(c, &p, &err);
    if (st == RL_OK) st = compute_prompt(c, &p, &err);
    free(p.ids);
    if (st == RL_OK) st = make_parser(&s, &err);
    bool kept = false;
    if (st == RL_OK) {
        st = generate(&s, &r, &err);
        end_stream(&s);
        if (r.n_generated || st == RL_OK) kept = keep_answer(&s);
        c->n_answers++;
    }
    if (st == RL_OK)
        explain_end(c, &r);
    else if (st == RL_ERR_CANCELLED)
        chat_note("[stopped; the message was not answered and is taken back]");
    else
        c->status = cli_error(&err);
    if (!kept && st == RL_OK) c->status = CLI_EXIT_FAILURE;
    c->computed_tokens += c->last.n_prompt - c->last.n_reused + c->last.n_answer;
    c->computed_seconds += c->last.prompt_seconds + c->last.answer_seconds;
    if (kept && c->show_stats) chat_print_stats(c);
    rl_answer_parser_free(s.parser);
    conv_text_free(&s.content);
    conv_text_free(&s.reasoning);
    return kept;
}
