/* engine/generate: from a prompt held by a session to an answer, token by token. */
#include "base/error.h"
#include "engine/engine.h"

#include <string.h>

const char *rl_finish_name(rl_finish f)
{
    switch (f) {
    case RL_FINISH_LENGTH:
        return "length";
    case RL_FINISH_EOG:
        return "stop";
    case RL_FINISH_CONTEXT:
        return "context";
    case RL_FINISH_CANCELLED:
        return "cancelled";
    }
    return "unknown";
}

/* Tokens until something ends them; the session's logits are current on entry. */
static rl_status produce(rl_session *s, rl_sampler *sampler, const rl_generate_options *o, rl_generate_result *r, rl_error *err)
{
    const rl_tokenizer *t = s->engine->tokenizer;
    for (;;) {
        r->finish = RL_FINISH_LENGTH;
        if (r->n_generated == o->max_tokens) return RL_OK;
        r->finish = RL_FINISH_CONTEXT;
        if (s->n == s->capacity) return RL_OK;
        /* Only now the last token is computed: the final one of an answer never is. */
        rl_status st = rl_session_extend(s, NULL, 0, NULL, NULL, err);
        int32_t id = -1;
        if (st == RL_OK) st = rl_sampler_sample(sampler, s->logits, &id, err);
        if (st != RL_OK) return st;
        if (!o->ignore_eog && t && rl_token_is_eog(t, id)) {
            r->eog = id;
            r->finish = RL_FINISH_EOG;
            return RL_OK;
        }
        r->n_generated++;
        rl_sampler_accept(sampler, id);
        bool go_on = !o->on_token || o->on_token(o->ctx, id, s->logits);
        st = rl_session_append(s, id, err);
        if (st != RL_OK) return st;
        r->finish = RL_FINISH_CANCELLED;
        if (!go_on) return RL_OK;
    }
}

rl_status rl_generate(rl_session *s, rl_sampler *sampler, const rl_generate_options *o, rl_generate_result *result,
                      rl_error *err)
{
    rl_generate_result r = {.finish = RL_FINISH_LENGTH, .eog = -1};
    rl_generate_result *out = result ? result : &r;
    *out = r;
    if (s->n == 0) return rl_fail(err, RL_ERR_ARGUMENT, "the prompt is empty: there is nothing to continue");
    if (rl_sampler_n_accepted(sampler) == 0)
        for (uint32_t i = 0; i < s->n; i++)
            rl_sampler_accept(sampler, s->ids[i]);
    double start = rl_now();
    uint32_t computed = s->computed;
    rl_status st = rl_session_extend(s, NULL, 0, o->on_prefill, o->ctx, err);
    out->n_prompt = s->computed >= computed ? s->computed - computed : 0;
    double begin = rl_now();
    out->prefill_seconds = begin - start;
    if (st == RL_ERR_CANCELLED) {
        out->finish = RL_FINISH_CANCELLED;
        return RL_OK;
    }
    if (st == RL_OK) st = produce(s, sampler, o, out, err);
    out->decode_seconds = rl_now() - begin;
    return st;
}
