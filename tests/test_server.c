/* The server as clients meet it: answers, streams, limits and errors, on the bundled model. */
#include "support/http_client.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static test_server server;

static void options(rl_server_options *o)
{
    o->parallel = 4;
    o->queue = 2;
    o->body_mib = 1;
    o->head_kib = 16;
    o->read_seconds = 2;
}

static int start(void **state)
{
    (void)state;
    test_server_start(&server, options);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    test_server_stop(&server);
    return 0;
}

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define ASK  "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of a fox.\"}]"

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

static void test_chat(void **state)
{
    (void)state;
    json_t *o = http_json(&server, CHAT, 200, "{" ASK ",\"max_tokens\":12,\"temperature\":0}");
    assert_string_equal(json_text(o, "object"), "chat.completion");
    assert_string_equal(json_text(o, "choices.0.message.role"), "assistant");
    assert_string_equal(json_text(o, "choices.0.finish_reason"), "length");
    assert_true(strlen(json_text(o, "choices.0.message.content")) > 10);
    assert_int_equal(json_integer_value(json_at(o, "usage.completion_tokens")), 12);
    assert_int_equal(json_integer_value(json_at(o, "usage.total_tokens")),
                     12 + json_integer_value(json_at(o, "usage.prompt_tokens")));
    json_t *again = http_json(&server, CHAT, 200, "{" ASK ",\"max_completion_tokens\":12,\"temperature\":0,\"unknown\":[1]}");
    assert_string_equal(json_text(again, "choices.0.message.content"), json_text(o, "choices.0.message.content"));
    assert_true(json_integer_value(json_at(again, "usage.prompt_tokens_details.cached_tokens")) > 0);
    json_decref(again);
    json_decref(o);
}

/* Text of the deltas, in *text (free). Checks the frame of the stream. */
static void join_stream(json_t *events, char **text)
{
    size_t n = json_array_size(events);
    *text = calloc(1, 1 << 16);
    assert_true(n > 2);
    assert_string_equal(json_string_value(json_array_get(events, n - 1)), "[DONE]");
    assert_string_equal(json_text(events, "0.choices.0.delta.role"), "assistant");
    for (size_t i = 0; i + 1 < n; i++) {
        json_t *e = json_array_get(events, i);
        assert_string_equal(json_text(e, "id"), json_text(events, "0.id"));
        strcat(*text, json_text(e, "choices.0.delta.content"));
    }
}

static void test_stream_equals_whole(void **state)
{
    (void)state;
    json_t *o = http_json(&server, CHAT, 200, "{" ASK ",\"max_tokens\":30,\"seed\":7}");
    json_t *events =
        http_events(&server, CHAT,
                    "{" ASK ",\"max_tokens\":30,\"seed\":7,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", NULL);
    char *text;
    join_stream(events, &text);
    assert_string_equal(text, json_text(o, "choices.0.message.content"));
    size_t n = json_array_size(events);
    json_t *last = json_array_get(events, n - 2);
    assert_int_equal(json_array_size(json_at(last, "choices")), 0);
    assert_int_equal(json_integer_value(json_at(last, "usage.completion_tokens")), 30);
    assert_string_equal(json_text(json_array_get(events, n - 3), "choices.0.finish_reason"), "length");
    free(text);
    json_decref(events);
    json_decref(o);
}

/* A stop string cuts the answer before it wherever tokens end, and no part of it is ever sent. */
static void test_stop(void **state)
{
    (void)state;
    json_t *o = http_json(&server, TEXT, 200, "{\"prompt\":\"Once upon a time\",\"max_tokens\":40,\"temperature\":0}");
    const char *whole = json_text(o, "choices.0.text");
    assert_true(strlen(whole) > 60);
    for (size_t at = 3; at < 50; at += 7) {
        char stop[16], body[256];
        snprintf(stop, sizeof stop, "%.6s", whole + at);
        if (strpbrk(stop, "\"\\\n")) continue;
        size_t first = (size_t)(strstr(whole, stop) - whole);
        snprintf(
            body, sizeof body,
            "{\"prompt\":\"Once upon a time\",\"max_tokens\":40,\"temperature\":0,\"stop\":[\"zzzz\",\"%s\"],\"stream\":true}",
            stop);
        json_t *events = http_events(&server, TEXT, body, NULL);
        char text[1024] = "";
        for (size_t i = 0; i < json_array_size(events); i++)
            strcat(text, json_text(json_array_get(events, i), "choices.0.text"));
        assert_int_equal(strlen(text), first);
        assert_memory_equal(text, whole, first);
        assert_string_equal(json_text(json_array_get(events, json_array_size(events) - 2), "choices.0.finish_reason"), "stop");
        json_decref(events);
    }
    json_decref(o);
}

static void test_many_choices(void **state)
{
    (void)state;
    json_t *o = http_json(&server, CHAT, 200, "{" ASK ",\"max_tokens\":10,\"n\":3,\"seed\":5,\"temperature\":2,\"top_p\":1}");
    assert_int_equal(json_array_size(json_at(o, "choices")), 3);
    assert_string_not_equal(json_text(o, "choices.0.message.content"), json_text(o, "choices.1.message.content"));
    assert_int_equal(json_integer_value(json_at(o, "usage.completion_tokens")), 30);
    /* Each is what its seed gives alone. */
    for (int i = 0; i < 3; i++) {
        char body[256], path[64];
        snprintf(body, sizeof body, "{" ASK ",\"max_tokens\":10,\"seed\":%d,\"temperature\":2,\"top_p\":1}", 5 + i);
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        json_t *one = http_json(&server, CHAT, 200, body);
        assert_string_equal(json_text(one, "choices.0.message.content"), json_text(o, path));
        json_decref(one);
    }
    json_decref(o);
}

static void test_logprobs(void **state)
{
    (void)state;
    json_t *o =
        http_json(&server, CHAT, 200, "{" ASK ",\"max_tokens\":5,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":3}");
    json_t *list = json_at(o, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(list), 5);
    char text[256] = "";
    for (size_t i = 0; i < 5; i++) {
        json_t *entry = json_array_get(list, i);
        strcat(text, json_text(entry, "token"));
        assert_int_equal(json_array_size(json_at(entry, "top_logprobs")), 3);
        /* Greedy: the chosen one is the likeliest. */
        assert_string_equal(json_text(entry, "top_logprobs.0.token"), json_text(entry, "token"));
        double p = json_real_value(json_at(entry, "logprob"));
        assert_true(p <= 0 && p >= json_real_value(json_at(entry, "top_logprobs.1.logprob")));
    }
    assert_string_equal(text, json_text(o, "choices.0.message.content"));
    json_decref(o);
}

static void test_logit_bias(void **state)
{
    (void)state;
    json_t *t = http_json(&server, "/tokenize", 200, "{\"content\":\"fox\"}");
    json_int_t id = json_integer_value(json_at(t, "tokens.0"));
    char body[256];
    snprintf(body, sizeof body, "{" ASK ",\"max_tokens\":4,\"logprobs\":true,\"logit_bias\":{\"%d\":100}}", (int)id);
    json_t *o = http_json(&server, CHAT, 200, body), *back;
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.0.logprobs.content.%d.token", i);
        snprintf(body, sizeof body, "{\"tokens\":[%d]}", (int)id);
        back = http_json(&server, "/detokenize", 200, body);
        assert_string_equal(json_text(o, path), json_text(back, "content"));
        json_decref(back);
    }
    json_decref(o);
    json_decref(t);
}

/* ---- Errors -------------------------------------------------------------------------------------------------------------- */

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *param, *part;
    } cases[] = {
        {CHAT, "{}", "messages", "missing"},
        {CHAT, "{\"messages\":[]}", "messages", "empty"},
        {CHAT, "{\"messages\":\"x\"}", "messages", "array"},
        {CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages[0]", "king"},
        {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "missing"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content",
         "image_url"},
        {CHAT, "{" ASK ",\"temperature\":\"hot\"}", "temperature", "a number"},
        {CHAT, "{" ASK ",\"temperature\":-1}", "temperature", "expected 0 to"},
        {CHAT, "{" ASK ",\"max_tokens\":1.5}", "max_tokens", "an integer"},
        {CHAT, "{" ASK ",\"stream\":1}", "stream", "true or false"},
        {CHAT, "{" ASK ",\"stop\":[3]}", "stop", "string"},
        {CHAT, "{" ASK ",\"n\":5}", "n", "expected 1 to 4"},
        {CHAT, "{" ASK ",\"top_logprobs\":3}", "top_logprobs", "needs"},
        {CHAT, "{" ASK ",\"logit_bias\":{\"x\":1}}", "logit_bias", "token ids"},
        {CHAT, "{" ASK ",\"logit_bias\":{\"1\":101}}", "logit_bias", "-100 to 100"},
        {CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\"}]}", "tools[0]", "function"},
        {CHAT, "{" ASK ",\"response_format\":{\"type\":\"xml\"}}", "response_format", "json_schema"},
        {CHAT, "{" ASK ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format", "schema"},
        {CHAT, "{" ASK ",\"tool_choice\":\"required\"}", "tool_choice", "no tools"},
        {CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}],\"tool_choice\":{\"name\":\"b\"}}",
         "tool_choice", "no tool"},
        {TEXT, "{\"prompt\":3}", "prompt", "string"},
        {TEXT, "{\"prompt\":\"\"}", "prompt", "empty"},
        {TEXT, "{\"prompt\":[1,99999]}", "prompt", "token id"},
        {TEXT, "[]", "", "object"},
        {TEXT, "{\"prompt\":", "", "not valid JSON"},
        {"/tokenize", "{}", "content", "string"},
        {"/detokenize", "{\"tokens\":[-1]}", "tokens", "token id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *o = http_json(&server, cases[i].path, 400, cases[i].body);
        assert_string_equal(json_text(o, "error.type"), "invalid_request_error");
        assert_string_equal(json_text(o, "error.param"), cases[i].param);
        if (!strstr(json_text(o, "error.message"), cases[i].part)) print_error("%s\n", json_text(o, "error.message"));
        assert_non_null(strstr(json_text(o, "error.message"), cases[i].part));
        json_decref(o);
    }
}

static void test_too_long(void **state)
{
    (void)state;
    enum { N = 12000 };
    char *body = malloc(N + 64);
    int n = sprintf(body, "{\"prompt\":\"");
    for (int i = 0; i < N; i += 4)
        memcpy(body + n + i, " fox", 4);
    strcpy(body + n + N, "\"}");
    json_t *o = http_json(&server, TEXT, 400, body);
    assert_string_equal(json_text(o, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(json_text(o, "error.message"), "2048"));
    json_decref(o);
    free(body);
}

static void test_http_limits(void **state)
{
    (void)state;
    http_reply r = http_request(&server, "GET", "/nothing", NULL, NULL);
    assert_int_equal(r.status, 404);
    http_free(&r);
    r = http_request(&server, "DELETE", CHAT, NULL, NULL);
    assert_int_equal(r.status, 405);
    http_free(&r);
    r = http_finish(http_begin(&server, "POST", CHAT, "X-Big: 1\r\n", "{}"));
    assert_int_equal(r.status, 400);
    http_free(&r);
    /* Announced or not, a body over the limit is refused. */
    int fd = http_connect(&server);
    static const char head[] = "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n";
    http_write(fd, head, sizeof head - 1);
    r = http_finish(fd);
    assert_int_equal(r.status, 413);
    http_free(&r);
    /* A head over the limit gets no further. */
    char *big = malloc(200000);
    int n = sprintf(big, "GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ");
    memset(big + n, 'a', 100000);
    strcpy(big + n + 100000, "\r\n\r\n");
    fd = http_connect(&server);
    http_write(fd, big, strlen(big));
    r = http_finish(fd);
    assert_true(r.status == 0 || r.status == 413 || r.status == 431 || r.status == 400);
    http_free(&r);
    free(big);
    /* A page of another origin is refused, its own is not. */
    r = http_request(&server, "GET", "/v1/models", "Origin: https://example.org\r\n", NULL);
    assert_int_equal(r.status, 403);
    http_free(&r);
    r = http_request(&server, "GET", "/v1/models", "Origin: http://127.0.0.1\r\n", NULL);
    assert_int_equal(r.status, 200);
    http_free(&r);
}

/* A client that sends its request a byte at a time is cut off; others do not notice it. */
static void test_slow_client(void **state)
{
    (void)state;
    int fd = http_connect(&server), polls = 0;
    const char *drip =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nX-Drip: aaaaaaaaaaaaaaaaaaaaaaa";
    double start_time = rl_now();
    for (const char *c = drip; *c && rl_now() - start_time < 8; c++, polls++) {
        if (send(fd, c, 1, MSG_NOSIGNAL) != 1) break;
        char end;
        if (recv(fd, &end, 1, MSG_DONTWAIT) == 0) break;
        if (polls % 8 == 0) {
            http_reply r = http_request(&server, "GET", "/health", NULL, NULL);
            assert_int_equal(r.status, 200);
            http_free(&r);
        }
        usleep(100000);
    }
    double took = rl_now() - start_time;
    close(fd);
    assert_true(took > 1 && took < 6);
}

/* ---- Leaving and overload ------------------------------------------------------------------------------------------------ */

static double metric(const char *name)
{
    http_reply r = http_request(&server, "GET", "/metrics", NULL, NULL);
    char line[128];
    snprintf(line, sizeof line, "\nredlite_%s ", name);
    char *at = strstr(r.body, line);
    assert_non_null(at);
    double v = strtod(at + strlen(line), NULL);
    http_free(&r);
    return v;
}

static void wait_until_idle(void)
{
    for (int i = 0; i < 200 && metric("requests_running") + metric("requests_waiting") > 0; i++)
        usleep(20000);
    assert_true(metric("requests_running") == 0);
}

#define LONG "{\"prompt\":\"Once\",\"max_tokens\":1500,\"ignore_eos\":true%s}"

/* A client that leaves frees its place within a token, streaming or not. */
static void test_client_leaves(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        char body[128];
        double cancelled = metric("requests_cancelled_total");
        snprintf(body, sizeof body, LONG, stream ? ",\"stream\":true" : "");
        int fd = http_begin(&server, "POST", TEXT, NULL, body);
        while (metric("requests_running") < 1)
            usleep(5000);
        double before = metric("generated_tokens_total");
        close(fd);
        wait_until_idle();
        assert_true(metric("requests_cancelled_total") == cancelled + 1);
        assert_true(metric("generated_tokens_total") - before < 1000);
    }
}

static void test_overload(void **state)
{
    (void)state;
    int fds[6];
    char body[128];
    snprintf(body, sizeof body, LONG, "");
    for (int i = 0; i < 6; i++)
        fds[i] = http_begin(&server, "POST", TEXT, NULL, body);
    while (metric("requests_running") + metric("requests_waiting") < 6)
        usleep(5000);
    http_reply r = http_request(&server, "POST", TEXT, NULL, body);
    assert_int_equal(r.status, 429);
    assert_non_null(strstr(r.head, "Retry-After: "));
    assert_non_null(strstr(r.body, "\"rate_limit_error\""));
    http_free(&r);
    for (int i = 0; i < 6; i++)
        close(fds[i]);
    wait_until_idle();
}

/* In company and alone a sequence gives the same tokens. */
static void test_company(void **state)
{
    (void)state;
    enum { N = 4 };
    static const char *const prompts[N] = {"Once upon a time", "The old king said", "In the forest there lived",
                                           "Far away over the sea"};
    char body[N][160];
    int fds[N];
    json_t *alone[N];
    for (int i = 0; i < N; i++) {
        snprintf(body[i], sizeof body[i], "{\"prompt\":\"%s\",\"max_tokens\":40,\"temperature\":0}", prompts[i]);
        alone[i] = http_json(&server, TEXT, 200, body[i]);
    }
    for (int i = 0; i < N; i++)
        fds[i] = http_begin(&server, "POST", TEXT, NULL, body[i]);
    for (int i = 0; i < N; i++) {
        http_reply r = http_finish(fds[i]);
        json_t *o = json_loads(r.body, 0, NULL);
        assert_string_equal(json_text(o, "choices.0.text"), json_text(alone[i], "choices.0.text"));
        json_decref(o);
        json_decref(alone[i]);
        http_free(&r);
    }
}

/* ---- Reuse --------------------------------------------------------------------------------------------------------------- */

static json_int_t cached(json_t *o)
{
    return json_integer_value(json_at(o, "usage.prompt_tokens_details.cached_tokens"));
}

static json_int_t used(json_t *o)
{
    return json_integer_value(json_at(o, "usage.total_tokens"));
}

/* Body of a request that continues a conversation; takes more messages. */
static char *continue_with(json_t *first_messages, json_t *answer, json_t *more, const char *rest)
{
    json_t *all = json_deep_copy(first_messages);
    json_array_append(all, answer);
    json_array_extend(all, more);
    json_decref(more);
    char *messages = json_dumps(all, 0), *body = malloc(strlen(messages) + strlen(rest) + 64);
    sprintf(body, "{\"messages\":%s%s}", messages, rest);
    json_decref(all);
    free(messages);
    return body;
}

/* The next turn of a conversation computes only what is new, whatever tokens the answer came in. */
static void test_next_turn(void **state)
{
    (void)state;
    json_t *first = json_pack("[{s:s, s:s}]", "role", "user", "content", "Tell me of the miller and his daughter.");
    for (int seed = 1; seed < 5; seed++) {
        char *text = json_dumps(first, 0), body[512], rest[128];
        snprintf(rest, sizeof rest, ",\"max_tokens\":40,\"temperature\":1.5,\"top_p\":1,\"top_k\":0,\"seed\":%d", seed);
        snprintf(body, sizeof body, "{\"messages\":%s%s}", text, rest);
        json_t *o = http_json(&server, CHAT, 200, body);
        char *next = continue_with(first, json_at(o, "choices.0.message"),
                                   json_pack("[{s:s, s:s}]", "role", "user", "content", "And then?"), rest);
        json_t *second = http_json(&server, CHAT, 200, next);
        assert_true(cached(second) >= used(o) - 1);
        json_decref(second);
        json_decref(o);
        free(next);
        free(text);
    }
    json_decref(first);
}

#define TOOLS                                                                                                                  \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"tide\",\"parameters\":{\"type\":\"object\",\"properties\":{"  \
    "\"port\":{\"type\":\"string\",\"maxLength\":20},\"hours\":{\"type\":\"integer\"}},\"required\":[\"port\"]}}}]"

/* A call comes back with its id: the sequence goes on as it was generated. When the client changed the arguments, it goes on
 * from the end of the prompt. */
static void test_tool_round_trip(void **state)
{
    (void)state;
    static const char rest[] = TOOLS ",\"max_tokens\":120,\"temperature\":0";
    json_t *first = json_pack("[{s:s, s:s}]", "role", "user", "content", "How high is the tide?");
    char *text = json_dumps(first, 0), body[2048];
    snprintf(body, sizeof body, "{\"messages\":%s%s,\"tool_choice\":\"required\",\"parallel_tool_calls\":false}", text, rest);
    json_t *o = http_json(&server, CHAT, 200, body), *message = json_at(o, "choices.0.message");
    assert_string_equal(json_text(o, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(json_text(message, "tool_calls.0.function.name"), "tide");
    json_t *arguments = json_loads(json_text(message, "tool_calls.0.function.arguments"), 0, NULL);
    assert_true(json_is_string(json_object_get(arguments, "port")));
    json_int_t prompt = json_integer_value(json_at(o, "usage.prompt_tokens"));
    for (int changed = 0; changed < 2; changed++) {
        if (changed) json_object_set_new(arguments, "port", json_string("Elsewhere"));
        json_t *again = json_deep_copy(message);
        char *compact = json_dumps(arguments, JSON_COMPACT | JSON_SORT_KEYS); /* not as the model wrote it */
        json_object_set_new(json_at(again, "tool_calls.0.function"), "arguments", json_string(compact));
        json_t *result = json_pack("[{s:s, s:s, s:s}]", "role", "tool", "tool_call_id", json_text(again, "tool_calls.0.id"),
                                   "content", "4.1");
        char *next = continue_with(first, again, result, TOOLS ",\"max_tokens\":8,\"temperature\":0");
        json_t *second = http_json(&server, CHAT, 200, next);
        if (changed)
            assert_true(cached(second) >= prompt && cached(second) < used(o) - 1);
        else
            assert_true(cached(second) >= used(o) - 1);
        json_decref(second);
        json_decref(again);
        free(next);
        free(compact);
    }
    json_decref(arguments);
    json_decref(first);
    json_decref(o);
    free(text);
}

/* Another conversation under the same system message begins with its copy. */
static void test_shared_system(void **state)
{
    (void)state;
    char system[800] = "", body[1200];
    while (strlen(system) < 700)
        strcat(system, "You speak as an old teller of tales. ");
    for (int i = 0; i < 2; i++) {
        snprintf(
            body, sizeof body,
            "{\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":4}",
            system,
            i == 0 ? "Tell me of a great river that runs through many lands, and of the people who live on its banks, what "
                     "they eat and what they sing in the evening when the boats come home."
                   : "Something else altogether: what do the bears do in the long winter, who wakes them in the spring, and "
                     "which of the berries do they like best of all when the summer is at its height?");
        json_t *o = http_json(&server, CHAT, 200, body);
        if (i == 1) assert_true(cached(o) > 100);
        json_decref(o);
    }
}

static char state_dir[PATH_MAX];

static void with_states(rl_server_options *o)
{
    o->state_dir = state_dir;
}

static void test_restart(void **state)
{
    (void)state;
    test_server t = {0};
    char body[2048], prompt[1200] = "";
    rl_test_join(state_dir, "/tmp", "redlite-states-XXXXXX");
    assert_non_null(mkdtemp(state_dir));
    while (strlen(prompt) < 1000)
        strcat(prompt, "Once upon a time there was a king who had three sons. ");
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":20,\"temperature\":0}", prompt);
    test_server_start(&t, with_states);
    json_t *before = http_json(&t, TEXT, 200, body);
    assert_int_equal(cached(before), 0);
    rl_server_stop(t.server);
    test_server_serve(&t, with_states);
    json_t *after = http_json(&t, TEXT, 200, body);
    assert_int_equal(cached(after), json_integer_value(json_at(after, "usage.prompt_tokens")));
    assert_string_equal(json_text(after, "choices.0.text"), json_text(before, "choices.0.text"));
    rl_server_stop(t.server);
    /* A damaged file is passed over. */
    char command[PATH_MAX + 128];
    snprintf(command, sizeof command, "for f in %s/*.state; do truncate -s -9 \"$f\"; done", state_dir);
    assert_int_equal(system(command), 0);
    rl_log_set_level(RL_LOG_ERROR);
    test_server_serve(&t, with_states);
    json_t *damaged = http_json(&t, TEXT, 200, body);
    rl_log_set_level(RL_LOG_INFO);
    assert_int_equal(cached(damaged), 0);
    assert_string_equal(json_text(damaged, "choices.0.text"), json_text(before, "choices.0.text"));
    json_decref(before);
    json_decref(after);
    json_decref(damaged);
    test_server_stop(&t);
    snprintf(command, sizeof command, "rm -r %s", state_dir);
    assert_int_equal(system(command), 0);
}

/* ---- Forms --------------------------------------------------------------------------------------------------------------- */

static void test_json_schema(void **state)
{
    (void)state;
    for (int seed = 1; seed < 4; seed++) {
        char body[1024];
        snprintf(
            body, sizeof body,
            "{" ASK ",\"max_tokens\":150,\"seed\":%d,\"temperature\":1.5,\"response_format\":{\"type\":\"json_schema\","
            "\"json_schema\":{\"name\":\"fox\",\"schema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
            "\"maxLength\":10},\"legs\":{\"type\":\"integer\"},\"colour\":{\"enum\":[\"red\",\"white\"]}},\"required\":["
            "\"name\",\"legs\",\"colour\"],\"additionalProperties\":false}}}}",
            seed);
        json_t *o = http_json(&server, CHAT, 200, body);
        assert_string_equal(json_text(o, "choices.0.finish_reason"), "stop");
        json_t *answer = json_loads(json_text(o, "choices.0.message.content"), 0, NULL);
        assert_non_null(answer);
        assert_int_equal(json_object_size(answer), 3);
        assert_true(json_is_integer(json_at(answer, "legs")));
        const char *colour = json_text(answer, "colour");
        assert_true(strcmp(colour, "red") == 0 || strcmp(colour, "white") == 0);
        json_decref(answer);
        json_decref(o);
    }
}

static void with_key(rl_server_options *o)
{
    o->api_key = "sesame";
    o->cors = "https://example.org";
}

static void test_key_and_cors(void **state)
{
    (void)state;
    test_server t = {0};
    test_server_start(&t, with_key);
    static const struct {
        const char *path, *header;
        int status;
    } cases[] = {{"/v1/models", NULL, 401},
                 {"/v1/models", "Authorization: Bearer sesam\r\n", 401},
                 {"/v1/models", "Authorization: Bearer sesamee\r\n", 401},
                 {"/v1/models", "Authorization: Bearer sesame\r\n", 200},
                 {"/v1/models", "x-api-key: sesame\r\n", 200},
                 {"/health", NULL, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_reply r = http_request(&t, "GET", cases[i].path, cases[i].header, NULL);
        assert_int_equal(r.status, cases[i].status);
        assert_non_null(strstr(r.head, "Access-Control-Allow-Origin: https://example.org"));
        http_free(&r);
    }
    http_reply r = http_request(&t, "OPTIONS", CHAT, "Origin: https://example.org\r\n", NULL);
    assert_int_equal(r.status, 204);
    assert_non_null(strstr(r.head, "Access-Control-Allow-Methods"));
    http_free(&r);
    test_server_stop(&t);
}

/* A server that is told to stop finishes what runs and refuses what comes. */
static void test_drain(void **state)
{
    (void)state;
    test_server t = {0};
    test_server_start(&t, options);
    int fd = http_begin(&t, "POST", TEXT, NULL, "{\"prompt\":\"Once\",\"max_tokens\":60,\"ignore_eos\":true}");
    usleep(200000);
    rl_server_drain(t.server, 60);
    http_reply r = http_finish(fd);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"completion_tokens\":60"));
    http_free(&r);
    r = http_request(&t, "POST", TEXT, NULL, "{\"prompt\":\"Once\"}");
    assert_int_equal(r.status, 503);
    http_free(&r);
    test_server_stop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_stream_equals_whole),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_many_choices),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_http_limits),
        cmocka_unit_test(test_slow_client),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_next_turn),
        cmocka_unit_test(test_tool_round_trip),
        cmocka_unit_test(test_shared_system),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_json_schema),
        cmocka_unit_test(test_key_and_cors),
        cmocka_unit_test(test_drain),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
