/* server/choice: from sampled ids to the events of an answer.
 *
 * Bytes of tokens become whole characters, characters wait while they may begin a stop string, and what is sure goes through
 * the answer parser, which tells content, reasoning and calls apart. Everything said is kept too: answers that are not streamed
 * are written from it, and so are the last events of some streams. */
#include "internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Events -------------------------------------------------------------------------------------------------------------- */

static srv_call *new_call(srv_choice *c)
{
    srv_call *grown = realloc(c->calls, (c->n_calls + 1) * sizeof *grown);
    if (!grown) return NULL;
    c->calls = grown;
    srv_call *call = &grown[c->n_calls++];
    *call = (srv_call){0};
    srv_make_id(call->id, sizeof call->id, "call_");
    return call;
}

static bool add_to_block(srv_choice *c, const rl_answer_event *e)
{
    srv_block_kind kind = e->kind == RL_ANSWER_CONTENT     ? SRV_BLOCK_TEXT
                          : e->kind == RL_ANSWER_REASONING ? SRV_BLOCK_REASONING
                                                           : SRV_BLOCK_CALL;
    srv_block *b = c->n_blocks ? &c->blocks[c->n_blocks - 1] : NULL;
    if (!b || b->kind != kind || e->kind == RL_ANSWER_CALL_START) {
        srv_block *grown = realloc(c->blocks, (c->n_blocks + 1) * sizeof *grown);
        if (!grown) return false;
        c->blocks = grown;
        b = &grown[c->n_blocks++];
        *b = (srv_block){.kind = kind, .call = e->call};
    }
    if (kind != SRV_BLOCK_CALL) srv_put(&b->text, e->text.data, e->text.size);
    return !b->text.failed;
}

/* Keeps what an event says and passes it on. */
static bool on_event(void *ctx, const rl_answer_event *e)
{
    srv_choice *c = ctx;
    srv_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;
    switch (e->kind) {
    case RL_ANSWER_CONTENT:
        srv_put(&c->content, e->text.data, e->text.size);
        break;
    case RL_ANSWER_REASONING:
        srv_put(&c->reasoning, e->text.data, e->text.size);
        break;
    case RL_ANSWER_CALL_START:
        call = new_call(c);
        if (!call) return false;
        srv_put(&call->name, e->text.data, e->text.size);
        break;
    case RL_ANSWER_CALL_ARGUMENTS:
        srv_put(&call->arguments, e->text.data, e->text.size);
        break;
    case RL_ANSWER_CALL_END:
        call->end = e->end;
        call->ended = true;
        if (!c->job->p.parallel_calls && c->finish == SRV_FINISH_NONE) c->finish = SRV_FINISH_STOP;
        break;
    }
    if (!add_to_block(c, e)) return false;
    if (c->job->p.stream) c->job->api->event(c, e);
    return true;
}

static void say(srv_choice *c, const char *text, size_t n)
{
    if (n == 0) return;
    srv_put(&c->raw, text, n);
    if (c->parser) {
        if (rl_answer_parser_push(c->parser, text, n, NULL) != RL_OK) c->raw.failed = true;
        return;
    }
    rl_answer_event e = {.kind = RL_ANSWER_CONTENT, .text = {text, n}};
    if (!on_event(c, &e)) c->raw.failed = true;
}

/* ---- Stop strings -------------------------------------------------------------------------------------------------------- */

/* Offset of the first stop string in the held text, SIZE_MAX when there is none. Of two that begin at one place the longer ends
 * the answer just the same. */
static size_t find_stop(srv_choice *c)
{
    const srv_params *p = &c->job->p;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t n = strlen(p->stop[i]);
        char *at = c->held.size >= n ? memmem(c->held.data, c->held.size, p->stop[i], n) : NULL;
        if (at && (size_t)(at - c->held.data) < best) {
            best = (size_t)(at - c->held.data);
            c->stop_text = p->stop[i];
        }
    }
    return best;
}

/* How many bytes at the end of the held text may be the beginning of a stop string. */
static size_t partial_stop(const srv_choice *c)
{
    const srv_params *p = &c->job->p;
    size_t most = 0;
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t n = strlen(p->stop[i]) - 1;
        if (n > c->held.size) n = c->held.size;
        for (; n > most; n--)
            if (memcmp(c->held.data + c->held.size - n, p->stop[i], n) == 0) {
                most = n;
                break;
            }
    }
    return most;
}

static void take_text(srv_choice *c, const char *text, size_t n)
{
    if (c->job->p.n_stop == 0) {
        say(c, text, n);
        return;
    }
    srv_put(&c->held, text, n);
    size_t stop = find_stop(c);
    if (stop != SIZE_MAX) {
        say(c, c->held.data, stop);
        c->held.size = 0;
        c->finish = SRV_FINISH_STOP_TEXT;
        return;
    }
    size_t sure = c->held.size - partial_stop(c);
    say(c, c->held.data, sure);
    srv_drop(&c->held, sure);
}

/* ---- Log probabilities --------------------------------------------------------------------------------------------------- */

static json_t *token_entry(const srv_choice *c, int32_t id, float logprob)
{
    rl_slice bytes = rl_token_bytes(c->job->server->tokenizer, id, true);
    json_t *list = json_array();
    for (size_t i = 0; i < bytes.size; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes.data[i]));
    /* A token may be part of a character: its text is then an approximation, its bytes are exact. */
    char text[3 * 256 + 24];
    rl_utf8_stream u = {0};
    size_t n = rl_utf8_stream_push(&u, bytes.data, bytes.size < 256 ? bytes.size : 256, text);
    n += rl_utf8_stream_finish(&u, text + n);
    return json_pack("{s:o, s:f, s:o}", "token", json_stringn(text, n), "logprob",
                     isfinite(logprob) ? (double)logprob : -9999.0, "bytes", list);
}

static void record_logprobs(srv_choice *c, int32_t id, const float *logits)
{
    rl_logprob top[32];
    uint32_t v = rl_engine_vocab_size(c->job->server->engine);
    uint32_t n = c->job->p.top_logprobs ? rl_logprobs_top(logits, v, top, c->job->p.top_logprobs) : 0;
    json_t *o = token_entry(c, id, rl_logprob_of(logits, v, id)), *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, token_entry(c, top[i].id, top[i].logprob));
    json_object_set_new(o, "top_logprobs", list);
    if (json_array_append_new(c->logprobs, o) != 0) c->raw.failed = true;
}

/* ---- Grammars ------------------------------------------------------------------------------------------------------------ */

static bool allows(void *matcher, int32_t id)
{
    return rl_matcher_allows(matcher, id);
}

static void mask(void *matcher, uint64_t *bits, uint32_t n_vocab)
{
    rl_matcher_mask(matcher, bits, n_vocab);
}

static bool follow_grammar(srv_choice *c, srv_error *e)
{
    rl_error err = {0};
    if (!c->job->grammar) return true;
    if (rl_matcher_create(c->job->grammar, c->job->server->order, &c->matcher, &err) != RL_OK) return srv_failed(e, &err);
    rl_sampler_set_constraint(c->sampler, &(rl_constraint){.allows = allows, .mask = mask, .ctx = c->matcher});
    return true;
}

/* ---- A choice ------------------------------------------------------------------------------------------------------------ */

bool srv_choice_open(srv_choice *c, srv_error *e)
{
    srv_job *j = c->job;
    rl_error err = {0};
    rl_sampling p = j->p.sampling;
    if (p.seed != RL_SEED_RANDOM) p.seed = p.seed + c->index == RL_SEED_RANDOM ? 0 : p.seed + c->index;
    if (rl_sampler_create(j->server->engine, &p, &c->sampler, &err) != RL_OK) return srv_failed(e, &err);
    if (j->chat && rl_answer_parser_create(j->server->format, &j->request, on_event, c, &c->parser, &err) != RL_OK)
        return srv_failed(e, &err);
    if (j->p.logprobs) c->logprobs = json_array();
    return follow_grammar(c, e);
}

void srv_choice_token(srv_choice *c, int32_t id, const float *logits)
{
    char small[3 * 256 + 12];
    rl_slice bytes = rl_token_bytes(c->job->server->tokenizer, id, false);
    c->n_generated++;
    c->job->n_generated++;
    if (c->logprobs) record_logprobs(c, id, logits);
    for (size_t i = 0; i < bytes.size && c->finish == SRV_FINISH_NONE; i += 256) {
        size_t n = bytes.size - i < 256 ? bytes.size - i : 256;
        take_text(c, small, rl_utf8_stream_push(&c->utf8, bytes.data + i, n, small));
    }
    if (c->matcher && c->finish == SRV_FINISH_NONE) {
        rl_matcher_accept(c->matcher, id);
        if (rl_matcher_must_end(c->matcher)) c->finish = SRV_FINISH_STOP;
    }
}

void srv_choice_close(srv_choice *c, srv_finish why)
{
    c->finish = why;
    if (why != SRV_FINISH_STOP_TEXT) {
        char tail[16];
        size_t n = rl_utf8_stream_finish(&c->utf8, tail);
        srv_put(&c->held, tail, n);
        say(c, c->held.data, c->held.size);
        c->held.size = 0;
    }
    if (c->parser) rl_answer_parser_finish(c->parser, NULL);
    if (c->raw.failed || c->content.failed || c->held.failed) {
        c->finish = SRV_FINISH_ERROR;
        srv_refuse(&c->job->failure, 500, "server_error", NULL, "no memory for the answer");
    }
    if (c->finish < SRV_FINISH_CANCELLED && c->n_calls > 0) srv_replay_keep(c->job->server, c);
    if (c->job->p.stream && c->finish < SRV_FINISH_CANCELLED) c->job->api->choice_done(c);
}

void srv_choice_free(srv_choice *c)
{
    rl_sampler_free(c->sampler);
    rl_matcher_free(c->matcher);
    rl_answer_parser_free(c->parser);
    json_decref(c->logprobs);
    for (size_t i = 0; i < c->n_calls; i++) {
        srv_buf_free(&c->calls[i].name);
        srv_buf_free(&c->calls[i].arguments);
    }
    free(c->calls);
    for (size_t i = 0; i < c->n_blocks; i++)
        srv_buf_free(&c->blocks[i].text);
    free(c->blocks);
    srv_buf_free(&c->held);
    srv_buf_free(&c->raw);
    srv_buf_free(&c->content);
    srv_buf_free(&c->reasoning);
}
