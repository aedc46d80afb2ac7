/* server/openai: see openai.h. */
#include "openai.h"

json_t *srv_openai_usage(const srv_job *j)
{
    json_int_t prompt = (json_int_t)j->n_prompt, answer = j->n_generated;
    json_t *o = json_pack("{s:I, s:I, s:I, s:{s:i}}", "prompt_tokens", prompt, "completion_tokens", answer, "total_tokens",
                          prompt + answer, "prompt_tokens_details", "cached_tokens", (int)j->n_reused);
    return o;
}

json_t *srv_timings(const srv_job *j)
{
    double now = rl_now(), first = j->t_first > 0 ? j->t_first : now;
    return json_pack("{s:f, s:i, s:f, s:i, s:f}", "queue_seconds", j->t_admitted - j->t_arrived, "prompt_tokens",
                     (int)(j->n_prompt - j->n_reused), "prompt_seconds", first - j->t_admitted, "answer_tokens",
                     (int)j->n_generated, "answer_seconds", now - first);
}

void srv_sse_data(srv_job *j, json_t *o)
{
    srv_puts(&j->fresh, "data: ");
    srv_put_json(&j->fresh, o);
    srv_puts(&j->fresh, "\n\n");
}

void srv_openai_stream_error(srv_job *j, const srv_error *e)
{
    srv_sse_data(j, srv_openai_error(e));
    srv_puts(&j->fresh, "data: [DONE]\n\n");
}

void srv_sse_progress(srv_job *j, const char *what, uint32_t done, uint32_t total)
{
    srv_putf(&j->fresh, ": %s %u/%u\n\n", what, done, total);
}

const char *srv_openai_finish(const srv_choice *c)
{
    switch (c->finish) {
    case SRV_FINISH_LENGTH:
    case SRV_FINISH_CONTEXT:
        return "length";
    default:
        return c->n_calls > 0 ? "tool_calls" : "stop";
    }
}

json_t *srv_new_logprobs(srv_choice *c)
{
    if (!c->logprobs) return json_null();
    json_t *list = json_array();
    size_t n = json_array_size(c->logprobs);
    for (; c->logprobs_sent < n; c->logprobs_sent++)
        json_array_append(list, json_array_get(c->logprobs, c->logprobs_sent));
    return list;
}
