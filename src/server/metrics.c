/* server/metrics: counters in Prometheus' text format. */
#include "internal.h"

static void put(srv_buf *out, const char *name, const char *type, const char *help, double value)
{
    srv_putf(out, "# HELP redlite_%s %s\n# TYPE redlite_%s %s\nredlite_%s %.17g\n", name, help, name, type, name, value);
}

void srv_metrics(rl_server *s, srv_buf *out)
{
    pthread_mutex_lock(&s->lock);
    srv_counters c = s->counters;
    pthread_mutex_unlock(&s->lock);
    put(out, "requests_total", "counter", "Requests that were accepted.", (double)c.requests);
    put(out, "requests_refused_total", "counter", "Requests refused because the server was full.", (double)c.refused);
    put(out, "requests_cancelled_total", "counter", "Requests whose client left.", (double)c.cancelled);
    put(out, "requests_failed_total", "counter", "Requests that ended with an error.", (double)c.failed);
    put(out, "requests_running", "gauge", "Requests that have a place.", c.running);
    put(out, "requests_waiting", "gauge", "Requests that wait for a place.", c.waiting);
    put(out, "prompt_tokens_total", "counter", "Tokens of prompts, reused ones included.", (double)c.prompt_tokens);
    put(out, "prompt_tokens_reused_total", "counter", "Tokens of prompts that were not computed again.",
        (double)c.reused_tokens);
    put(out, "generated_tokens_total", "counter", "Tokens generated.", (double)c.generated_tokens);
    put(out, "passes_total", "counter", "Passes over the weights.", (double)c.passes);
    put(out, "pass_rows_total", "counter", "Tokens computed in passes.", (double)c.pass_rows);
    put(out, "prefill_seconds_total", "counter", "Time of passes that read prompts.", c.prefill_seconds);
    put(out, "decode_seconds_total", "counter", "Time of passes that only generate.", c.decode_seconds);
    put(out, "start_time_seconds", "gauge", "When the server started, in Unix time.", (double)s->started);
}
