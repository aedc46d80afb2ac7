/* server: an OpenAI- and Anthropic-compatible HTTP server over one engine.
 *
 * The door of this folder. HTTP threads read and check requests; one scheduler thread owns the engine and decodes all
 * sequences together. The engine belongs to the server from start to stop. */
#ifndef RL_SERVER_H
#define RL_SERVER_H

#include "redlite.h"

typedef struct rl_server_options {
    const char *host;        /* address to listen on; default "127.0.0.1" */
    uint32_t port;           /* 0 = any free one: rl_server_port tells it */
    const char *model_path;  /* where the chat template is read from */
    const char *model_name;  /* what /v1/models calls the model; NULL = from the file */
    const char *api_key;     /* NULL = none is asked for */
    const char *cors;        /* allowed origin, "*" = all, NULL = pages of other origins are refused */
    const char *state_dir;   /* checkpoints; NULL = none */
    uint32_t state_mib;      /* cap of the checkpoints together */
    uint32_t parallel;       /* sequences that decode together */
    uint32_t sessions;       /* sequences held, those that wait for their next turn included; >= parallel */
    uint32_t chunk;          /* tokens of a prefill pass while others decode */
    uint32_t queue;          /* requests that may wait */
    uint32_t queue_seconds;  /* longest wait for a place; 0 = any */
    uint32_t answer_seconds; /* longest answer once it has a place; 0 = any */
    uint32_t read_seconds;   /* a request must be complete so long after the connection opened or the last answer */
    uint32_t connections;
    uint32_t body_mib; /* largest body */
    uint32_t head_kib; /* largest request head */
    bool log_prompts;  /* texts in the log: never unless asked */
    bool log_requests; /* one line per request */
} rl_server_options;

void rl_server_options_init(rl_server_options *o);

typedef struct rl_server rl_server;
/* Listens and answers when it returns. The strings of the options must outlive the server. */
rl_status rl_server_start(rl_engine *e, const rl_server_options *o, rl_server **out, rl_error *err);
uint32_t rl_server_port(const rl_server *s);
/* No new requests; answers that run may end within `seconds`, the rest is cut off. Saves checkpoints. */
void rl_server_drain(rl_server *s, double seconds);
void rl_server_stop(rl_server *s); /* NULL is fine; the engine may be closed afterwards */

#endif
