/* Fuzzing of request bodies: everything between the bytes of a body and the queue, for every API, on a server that never
 * listens. The first byte chooses the API. Afterwards the grammar of what was asked for must be followable. */
#include "server/internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static rl_server server;

static void open_server(void)
{
    rl_engine_options o;
    rl_error err = {0};
    rl_server_options_init(&server.o);
    rl_engine_options_init(&o);
    o.model = REDLITE_SOURCE_DIR "/models/tiny-q4_k_m.gguf";
    o.context = 512;
    if (rl_engine_open(&o, &server.engine, &err) != RL_OK || rl_chat_format_open(o.model, &server.format, &err) != RL_OK)
        abort();
    server.tokenizer = rl_engine_tokenizer(server.engine);
    if (rl_token_order_create(server.tokenizer, &server.order, &err) != RL_OK) abort();
    server.replay = srv_replay_new();
    pthread_mutex_init(&server.lock, NULL);
    rl_log_set_level(RL_LOG_ERROR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const srv_api *const apis[] = {&srv_chat_api, &srv_completion_api, &srv_messages_api, &srv_responses_api};
    if (!server.engine) open_server();
    if (size < 2) return 0;
    json_t *body = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(body)) {
        json_decref(body);
        return 0;
    }
    srv_job *j = calloc(1, sizeof *j);
    if (!j) abort();
    j->server = &server;
    j->api = apis[data[0] % 4];
    j->refs = 1;
    j->body = body;
    j->p.n = 1;
    srv_error e = {0};
    bool ok = j->api->parse(j, body, &e) && srv_prepare(j, &e);
    if (!ok && (e.status < 400 || !e.type)) abort(); /* every refusal says why */
    if (!ok) json_decref(j->api->error(&e));
    if (ok && j->choices[0].matcher && rl_matcher_must_end(j->choices[0].matcher)) abort(); /* something may be said */
    srv_job_unref(j);
    return 0;
}
