/* server/request: typed access to a request's JSON, the parameters that the OpenAI shapes share, and the step from a checked
 * request to ids. Unknown members are ignored; null counts as absent; a wrong type or range is an error that names the
 * member. */
#include "internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOPS_MAX     16
#define STOP_SIZE_MAX 1024
#define BIASES_MAX    4096

bool srv_own(srv_job *j, void *memory)
{
    void **grown = memory ? realloc(j->owned, (j->n_owned + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(memory);
        return false;
    }
    j->owned = grown;
    j->owned[j->n_owned++] = memory;
    return true;
}

/* ---- Members ------------------------------------------------------------------------------------------------------------- */

json_t *srv_member(json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static bool wrong_type(srv_error *e, const char *key, const char *expected, const json_t *got)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string", [JSON_INTEGER] = "an integer",
        [JSON_REAL] = "a real number", [JSON_TRUE] = "true",      [JSON_FALSE] = "false",     [JSON_NULL] = "null"};
    return srv_bad(e, key, "'%s' must be %s, but it is %s", key, expected, names[json_typeof(got)]);
}

bool srv_get_string(json_t *o, const char *key, const char **out, srv_error *e)
{
    json_t *v = srv_member(o, key);
    if (!v) return true;
    if (!json_is_string(v)) return wrong_type(e, key, "a string", v);
    *out = json_string_value(v);
    return true;
}

bool srv_get_bool(json_t *o, const char *key, bool *out, srv_error *e)
{
    json_t *v = srv_member(o, key);
    if (!v) return true;
    if (!json_is_boolean(v)) return wrong_type(e, key, "true or false", v);
    *out = json_is_true(v);
    return true;
}

bool srv_get_int(json_t *o, const char *key, json_int_t min, json_int_t max, json_int_t *out, srv_error *e)
{
    json_t *v = srv_member(o, key);
    if (!v) return true;
    double real = json_is_real(v) ? json_real_value(v) : 0;
    bool whole = json_is_integer(v) || (json_is_real(v) && floor(real) == real && fabs(real) < 9e15);
    if (!whole) return wrong_type(e, key, "an integer", v);
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : (json_int_t)real;
    if (n < min || n > max)
        return srv_bad(e, key, "'%s' is %lld; expected %lld to %lld", key, (long long)n, (long long)min, (long long)max);
    *out = n;
    return true;
}

bool srv_get_number(json_t *o, const char *key, double min, double max, double *out, srv_error *e)
{
    json_t *v = srv_member(o, key);
    if (!v) return true;
    if (!json_is_number(v)) return wrong_type(e, key, "a number", v);
    double n = json_number_value(v);
    if (!(n >= min && n <= max)) return srv_bad(e, key, "'%s' is %g; expected %g to %g", key, n, min, max);
    *out = n;
    return true;
}

static bool get_float(json_t *o, const char *key, double min, double max, float *out, srv_error *e)
{
    double v = *out;
    if (!srv_get_number(o, key, min, max, &v, e)) return false;
    *out = (float)v;
    return true;
}

/* ---- Shared parameters --------------------------------------------------------------------------------------------------- */

static bool add_stop(srv_job *j, const char *key, json_t *v, srv_error *e)
{
    if (!json_is_string(v)) return wrong_type(e, key, "a string or an array of strings", v);
    size_t n = json_string_length(v);
    if (strlen(json_string_value(v)) != n) return srv_bad(e, key, "'%s' holds a NUL character", key);
    if (n > STOP_SIZE_MAX) return srv_bad(e, key, "a stop string has %zu bytes; expected at most %d", n, STOP_SIZE_MAX);
    if (n > 0) j->p.stop[j->p.n_stop++] = json_string_value(v);
    return true;
}

bool srv_parse_stop(srv_job *j, json_t *body, const char *key, srv_error *e)
{
    json_t *v = srv_member(body, key);
    if (!v) return true;
    j->p.stop = calloc(STOPS_MAX, sizeof *j->p.stop);
    if (!srv_own(j, j->p.stop)) return srv_refuse(e, 500, "server_error", NULL, "no memory for the stop strings");
    if (!json_is_array(v)) return add_stop(j, key, v, e);
    if (json_array_size(v) > STOPS_MAX)
        return srv_bad(e, key, "'%s' has %zu strings; expected at most %d", key, json_array_size(v), STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_stop(j, key, json_array_get(v, i), e)) return false;
    return true;
}

static bool parse_logit_bias(srv_job *j, json_t *body, srv_error *e)
{
    json_t *v = srv_member(body, "logit_bias"), *bias;
    if (!v) return true;
    if (!json_is_object(v)) return wrong_type(e, "logit_bias", "an object from token ids to biases", v);
    if (json_object_size(v) > BIASES_MAX)
        return srv_bad(e, "logit_bias", "'logit_bias' has %zu members; expected at most %d", json_object_size(v), BIASES_MAX);
    j->p.bias = calloc(json_object_size(v) + 1, sizeof *j->p.bias);
    if (!srv_own(j, j->p.bias)) return srv_refuse(e, 500, "server_error", NULL, "no memory for the biases");
    uint32_t n_vocab = rl_engine_vocab_size(j->server->engine);
    const char *key;
    json_object_foreach(v, key, bias)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (end == key || *end || id < 0 || (unsigned long)id >= n_vocab) {
            char shown[64];
            return srv_bad(e, "logit_bias", "'logit_bias' has the member \"%s\"; expected token ids, 0 to %u",
                           rl_escape(shown, sizeof shown, key, strlen(key)), n_vocab - 1);
        }
        if (!json_is_number(bias) || fabs(json_number_value(bias)) > 100)
            return srv_bad(e, "logit_bias", "the bias of token %ld is not a number from -100 to 100", id);
        float b = (float)json_number_value(bias);
        /* The API's ends of the scale mean never and always; "always" is as strong as a finite number can be. */
        j->p.bias[j->p.sampling.n_bias++] = (rl_logit_bias){.id = (int32_t)id,
                                                            .bias = b <= -100  ? -INFINITY
                                                                    : b >= 100 ? 1e4f
                                                                               : b};
    }
    j->p.sampling.bias = j->p.bias;
    return true;
}

static bool parse_sampling(srv_job *j, json_t *body, srv_error *e)
{
    rl_sampling *s = &j->p.sampling;
    rl_sampling_init(s, j->server->engine);
    json_int_t top_k = s->top_k, last_n = s->penalty_last_n, seed = -1;
    if (!get_float(body, "temperature", 0, 100, &s->temperature, e) || !get_float(body, "top_p", 0, 1, &s->top_p, e) ||
        !get_float(body, "min_p", 0, 1, &s->min_p, e) ||
        !get_float(body, "presence_penalty", -100, 100, &s->presence_penalty, e) ||
        !get_float(body, "frequency_penalty", -100, 100, &s->frequency_penalty, e) ||
        !get_float(body, "repeat_penalty", 0.01, 100, &s->repeat_penalty, e) ||
        !get_float(body, "repetition_penalty", 0.01, 100, &s->repeat_penalty, e) ||
        !srv_get_int(body, "top_k", -1, INT32_MAX, &top_k, e) ||
        !srv_get_int(body, "repeat_last_n", -1, RL_MAX_CONTEXT, &last_n, e) ||
        !srv_get_int(body, "seed", INT64_MIN, INT64_MAX, &seed, e))
        return false;
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    s->penalty_last_n = (int32_t)last_n;
    /* Seeds are 64 bits wide in the API: both halves count. -1 asks for a random one. */
    if (srv_member(body, "seed") && seed != -1) {
        s->seed = (uint32_t)seed ^ (uint32_t)((uint64_t)seed >> 32);
        if (s->seed == RL_SEED_RANDOM) s->seed--;
    }
    return parse_logit_bias(j, body, e);
}

bool srv_parse_common(srv_job *j, json_t *body, srv_error *e)
{
    const char *model = NULL;
    json_int_t n = 1, max = -1;
    json_t *options = srv_member(body, "stream_options");
    if (options && !json_is_object(options)) return wrong_type(e, "stream_options", "an object", options);
    if (!parse_sampling(j, body, e) || !srv_get_string(body, "model", &model, e) ||
        !srv_get_bool(body, "stream", &j->p.stream, e) || !srv_get_bool(body, "ignore_eos", &j->p.ignore_eos, e) ||
        !srv_get_int(body, "n", 1, j->server->o.parallel, &n, e) || !srv_get_int(body, "max_tokens", 0, UINT32_MAX, &max, e) ||
        !srv_get_int(body, "max_completion_tokens", 0, UINT32_MAX, &max, e) || !srv_parse_stop(j, body, "stop", e) ||
        (options && !srv_get_bool(options, "include_usage", &j->p.include_usage, e)))
        return false;
    j->p.n = (uint32_t)n;
    j->p.max_tokens = max < 0 ? UINT32_MAX : (uint32_t)max;
    return true;
}

/* ---- Ids, marks, choices ------------------------------------------------------------------------------------------------- */

/* Leading ids that the prompt shares with the same conversation cut after n_turns. */
static size_t shared_prefix(srv_job *j, size_t n_turns)
{
    rl_chat_request r = j->request;
    int32_t *ids = NULL;
    size_t n = 0, i = 0;
    r.n_turns = n_turns;
    r.add_generation = false;
    if (rl_chat_request_tokenize(j->server->tokenizer, j->server->format, &r, &ids, &n, NULL) != RL_OK) return 0;
    while (i < n && i < j->n_prompt && ids[i] == j->prompt[i])
        i++;
    free(ids);
    return i;
}

static void add_mark(srv_job *j, size_t at)
{
    uint32_t last = j->n_marks ? j->marks[j->n_marks - 1] : 0;
    if (at > last && at <= j->n_prompt) j->marks[j->n_marks++] = (uint32_t)at;
}

/* Where a later request may leave this prompt: behind the system turn (another conversation), behind the last message when the
 * prompt opens a reasoning that later turns leave out, and at the end. */
static void choose_marks(srv_job *j)
{
    enum { WORTH = 64 };
    if (j->chat) {
        size_t n = j->request.n_turns;
        bool system = n > 1 && j->turns[0].role == RL_ROLE_SYSTEM;
        size_t at = system || j->request.n_tools ? shared_prefix(j, system ? 1 : 0) : 0;
        if (at >= WORTH) add_mark(j, at);
        if (rl_chat_format_thinking(j->server->format) == RL_THINKING_ALWAYS) add_mark(j, shared_prefix(j, n));
    }
    add_mark(j, j->n_prompt);
}

static bool tokenize(srv_job *j, srv_error *e)
{
    rl_error err = {0};
    const rl_tokenizer *t = j->server->tokenizer;
    rl_status st = j->chat ? rl_chat_request_tokenize(t, j->server->format, &j->request, &j->prompt, &j->n_prompt, &err)
                           : rl_tokenize(t, j->prompt_text.data, j->prompt_text.size, true, &j->prompt, &j->n_prompt, &err);
    return st == RL_OK || srv_failed(e, &err);
}

bool srv_prepare(srv_job *j, srv_error *e)
{
    uint32_t context = rl_engine_context(j->server->engine);
    const char *field = j->chat ? "messages" : "prompt";
    if (!j->prompt && !tokenize(j, e)) return false;
    if (j->n_prompt == 0) return srv_bad(e, field, "the prompt is empty: there is nothing to continue");
    if (j->n_prompt >= context) {
        srv_bad(e, field, "the prompt has %zu tokens, but the context holds %u and an answer needs at least one of them",
                j->n_prompt, context);
        e->code = "context_length_exceeded";
        return false;
    }
    choose_marks(j);
    j->choices = calloc(j->p.n, sizeof *j->choices);
    if (!j->choices) return srv_refuse(e, 500, "server_error", NULL, "no memory for the answers");
    for (uint32_t i = 0; i < j->p.n; i++) {
        j->choices[i] = (srv_choice){.job = j, .index = i, .pending = -1};
        if (!srv_choice_open(&j->choices[i], e)) return false;
    }
    return true;
}
