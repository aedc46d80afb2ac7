/* server/internal: what the files of this folder share.
 *
 * A request that generates is a job with one choice per answer. HTTP threads fill a job and hand it over; from then on its
 * choices, sampler and texts belong to the scheduler thread. What both sides touch (the bytes on their way out, the flags, the
 * list of jobs) is marked "lock" and guarded by the server's one mutex, which is never held while a model runs. */
#ifndef RL_SERVER_INTERNAL_H
#define RL_SERVER_INTERNAL_H

#include "server.h"

#include <jansson.h>
#include <pthread.h>
#include <time.h>

#if defined(__GNUC__)
#define SRV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define SRV_PRINTF(fmt, args)
#endif

struct MHD_Connection;
struct MHD_Daemon;

/* ---- Texts (buf.c) ------------------------------------------------------------------------------------------------------- */

/* A growing text. Failure is sticky: whoever sends it asks at the end. */
typedef struct srv_buf {
    char *data;
    size_t size, room;
    bool failed;
} srv_buf;
void srv_put(srv_buf *b, const void *data, size_t n);
void srv_puts(srv_buf *b, const char *text);
void srv_putf(srv_buf *b, const char *fmt, ...) SRV_PRINTF(2, 3);
void srv_put_json(srv_buf *b, json_t *o); /* compact; takes the reference; NULL counts as a failure */
void srv_drop(srv_buf *b, size_t n);      /* the first n bytes */
void srv_buf_free(srv_buf *b);
static inline rl_slice srv_view(const srv_buf *b)
{
    return (rl_slice){b->data ? b->data : "", b->size};
}
/* prefix and random letters; cap bytes with the NUL. */
void srv_make_id(char *out, size_t cap, const char *prefix);
/* Canonical JSON text for prompts: numbers as short as they read back the same. NULL without memory. free(). */
char *srv_dump_json(const json_t *o);

/* ---- Errors (buf.c) ------------------------------------------------------------------------------------------------------ */

typedef struct srv_error {
    int status;       /* HTTP */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* may be NULL */
    char param[96];   /* may be empty */
    int retry_after;  /* seconds, 0 = do not say */
    char message[RL_ERROR_TEXT_MAX];
} srv_error;
/* All return false, so that a check reads "return srv_bad(...)". */
bool srv_bad(srv_error *e, const char *param, const char *fmt, ...) SRV_PRINTF(3, 4); /* 400 */
bool srv_refuse(srv_error *e, int status, const char *type, const char *code, const char *fmt, ...) SRV_PRINTF(5, 6);
bool srv_failed(srv_error *e, const rl_error *err); /* the engine's sentence: 400 or 500 by its status */
json_t *srv_openai_error(const srv_error *e);

/* ---- Jobs ---------------------------------------------------------------------------------------------------------------- */

typedef struct srv_job srv_job;
typedef struct srv_choice srv_choice;

typedef struct srv_call {
    char id[40];
    srv_buf name, arguments;
    rl_call_end end;
    bool ended;
} srv_call;

typedef enum srv_block_kind { SRV_BLOCK_TEXT, SRV_BLOCK_REASONING, SRV_BLOCK_CALL } srv_block_kind;
typedef struct srv_block {
    srv_block_kind kind;
    srv_buf text; /* not of calls */
    size_t call;
} srv_block;

typedef enum srv_finish {
    SRV_FINISH_NONE, /* still running */
    SRV_FINISH_STOP, /* the model ended */
    SRV_FINISH_STOP_TEXT,
    SRV_FINISH_LENGTH,
    SRV_FINISH_CONTEXT,
    SRV_FINISH_CANCELLED,
    SRV_FINISH_ERROR
} srv_finish;

typedef enum srv_phase { SRV_WAITING, SRV_PREFILL, SRV_DECODE, SRV_DONE } srv_phase;

struct srv_choice {
    srv_job *job;
    uint32_t index;
    srv_phase phase;
    struct srv_slot *slot;
    rl_sampler *sampler;
    int32_t pending; /* sampled, not computed; -1 = none */
    uint32_t n_generated;
    srv_finish finish;
    const char *stop_text; /* which stop string ended it */
    /* Text on its way: bytes of tokens -> characters -> behind the stop strings -> answer parser -> events. */
    rl_utf8_stream utf8;
    srv_buf held;        /* may be the beginning of a stop string */
    rl_matcher *matcher; /* NULL: the answer may be anything */
    rl_answer_parser *parser;
    srv_buf raw, content, reasoning;
    srv_call *calls;
    size_t n_calls;
    json_t *logprobs; /* of all tokens, when wanted */
    size_t logprobs_sent;
    srv_block *blocks; /* the answer in its order, as the APIs with blocks or items tell it */
    size_t n_blocks, n_opened, n_events;
};

typedef struct srv_api {
    const char *path;
    const char *id_prefix;
    /* On an HTTP thread: fills the job from the body. */
    bool (*parse)(srv_job *j, json_t *body, srv_error *e);
    /* On the scheduler thread. Streams: first bytes, pieces, end of a choice, end. Others: only finish, with the whole body. */
    void (*start)(srv_job *j);
    void (*event)(srv_choice *c, const rl_answer_event *e);
    void (*choice_done)(srv_choice *c);
    void (*finish)(srv_job *j);
    void (*progress)(srv_job *j, const char *what, uint32_t done, uint32_t total); /* keeps the connection alive */
    json_t *(*error)(const srv_error *e);
    void (*stream_error)(srv_job *j, const srv_error *e);
} srv_api;

typedef struct srv_params {
    rl_sampling sampling;
    rl_logit_bias *bias;
    uint32_t max_tokens; /* UINT32_MAX: to the end of the context */
    uint32_t n;
    bool stream, include_usage, ignore_eos, echo;
    const char **stop;
    size_t n_stop;
    bool logprobs;
    uint32_t top_logprobs;
    bool parallel_calls;
} srv_params;

#define SRV_MARKS 4

struct srv_job {
    rl_server *server;
    const srv_api *api;
    char id[48];
    time_t created;
    json_t *body; /* strings of the request point into it */
    void **owned; /* other memory of the request */
    size_t n_owned;
    srv_params p;

    bool chat;
    rl_chat_request request;
    rl_chat_turn *turns;
    rl_slice *tools;
    rl_grammar *grammar; /* NULL: the answer may be anything */
    rl_slice prompt_text;

    int32_t *prompt;
    size_t n_prompt;
    uint32_t marks[SRV_MARKS]; /* rising, the last = n_prompt */
    uint32_t n_marks;

    srv_choice *choices;
    uint32_t n_done;
    bool started; /* stream: first bytes were sent */
    bool admitted;
    srv_buf fresh; /* bytes not yet handed over */
    srv_error failure;
    /* Numbers for usage and the log. */
    uint32_t n_reused, n_generated;
    double t_arrived, t_admitted, t_first, t_last, t_said;

    srv_job *next; /* lock: list of jobs, in order of arrival */
    int refs;      /* lock */
    bool cancelled, finished;
    bool overdue; /* cancelled by us, not by the client */
    int status;   /* lock: HTTP status once finished, or 200 once streaming */
    struct MHD_Connection *connection;
    bool suspended;
    int fd;
    srv_buf out; /* lock */
};

void srv_job_unref(srv_job *j);         /* takes the lock */
bool srv_own(srv_job *j, void *memory); /* freed with the job; frees at once and returns false without memory */
/* Hands j->fresh over to the HTTP side. */
void srv_flush(srv_job *j);

/* ---- Requests (request.c, messages.c) ------------------------------------------------------------------------------------ */

/* The member, NULL when it is absent or null. */
json_t *srv_member(json_t *o, const char *key);
bool srv_get_string(json_t *o, const char *key, const char **out, srv_error *e);
bool srv_get_bool(json_t *o, const char *key, bool *out, srv_error *e);
bool srv_get_int(json_t *o, const char *key, json_int_t min, json_int_t max, json_int_t *out, srv_error *e);
bool srv_get_number(json_t *o, const char *key, double min, double max, double *out, srv_error *e);
/* Sampling, stop strings and lengths that the OpenAI shapes have in common. */
bool srv_parse_common(srv_job *j, json_t *body, srv_error *e);
bool srv_parse_stop(srv_job *j, json_t *body, const char *key, srv_error *e);
/* Room for turns and calls of a request; NULL and an error without memory. */
void *srv_request_alloc(srv_job *j, size_t n, size_t size, srv_error *e);
/* A declared function in the shape that prompts show. */
bool srv_add_tool(srv_job *j, json_t *name, json_t *description, json_t *parameters, const char *param, srv_error *e);
/* A call of the history: arguments as text or as an object. */
bool srv_read_call(srv_job *j, json_t *name, json_t *arguments, const char *param, rl_tool_call *out, srv_error *e);
bool srv_parse_messages(srv_job *j, json_t *messages, srv_error *e);
bool srv_parse_tools(srv_job *j, json_t *body, srv_error *e);
/* A grammar for the answer, when the request asks for a form or must call a tool. After messages and tools. */
bool srv_parse_form(srv_job *j, json_t *body, srv_error *e);
bool srv_force_call(srv_job *j, const char *name, srv_error *e);
bool srv_force_json(srv_job *j, const json_t *schema, srv_error *e); /* NULL: any object */
/* Text of a content: a string, null, or a list of text parts. */
bool srv_content_text(srv_job *j, json_t *content, const char *param, rl_slice *out, srv_error *e);
/* Ids, marks and choices from what was parsed. */
bool srv_prepare(srv_job *j, srv_error *e);

/* ---- Answers (choice.c) -------------------------------------------------------------------------------------------------- */

bool srv_choice_open(srv_choice *c, srv_error *e);
/* A sampled id that is not an end token; may set c->finish. */
void srv_choice_token(srv_choice *c, int32_t id, const float *logits);
void srv_choice_close(srv_choice *c, srv_finish why); /* flushes what is held back and tells the api */
void srv_choice_free(srv_choice *c);

/* ---- Exact replay (replay.c) --------------------------------------------------------------------------------------------- */

/* Answers with calls as the model wrote them, by the ids of the calls, so that the next turn continues the sequence instead of
 * computing a re-written form of it. */
struct srv_replay *srv_replay_new(void);
void srv_replay_free(struct srv_replay *r);
void srv_replay_keep(rl_server *s, const srv_choice *c);
/* Sets turn->exact when the message is such an answer, unchanged. ids[i]: id of the ith call, may be NULL. */
void srv_replay_find(srv_job *j, rl_chat_turn *turn, const char *const *ids);

/* ---- The server ---------------------------------------------------------------------------------------------------------- */

typedef struct srv_slot {
    rl_session *session;
    srv_choice *choice; /* NULL: idle */
    double used;
    bool unsaved;
} srv_slot;

typedef struct srv_counters { /* lock */
    uint64_t requests, refused, cancelled, failed;
    uint64_t prompt_tokens, reused_tokens, generated_tokens, passes, pass_rows;
    double prefill_seconds, decode_seconds, busy_seconds;
    uint32_t running, waiting;
} srv_counters;

struct rl_server {
    rl_server_options o;
    rl_engine *engine;
    const rl_tokenizer *tokenizer;
    rl_chat_format *format;
    rl_token_order *order;
    struct srv_replay *replay;
    struct srv_checkpoints *checkpoints; /* of the scheduler; NULL: none are kept */
    char model_name[160];
    time_t started;
    uint32_t port;

    struct MHD_Daemon *daemon;
    struct srv_connection *connections; /* lock */
    pthread_t scheduler;
    bool scheduler_runs;

    pthread_mutex_t lock;
    pthread_cond_t work;     /* jobs for the scheduler */
    pthread_cond_t idle;     /* no jobs left */
    srv_job *jobs;           /* lock: all that are not finished */
    uint32_t n_jobs;         /* lock */
    bool draining, stopping; /* lock */
    double answer_average;   /* lock: seconds that an answer takes, smoothed */
    double watched_until;    /* lock: somebody looks at the experts */
    uint64_t *routed;        /* lock: n_layer x n_expert */
    rl_cache_stats cache;    /* lock */
    srv_counters counters;   /* lock */

    srv_slot *slots; /* of the scheduler */
    uint32_t n_slots, n_running;
};

void *srv_scheduler_main(void *server);
/* Queues the job (takes a reference), or says why not. lock is taken inside. */
bool srv_submit(srv_job *j, srv_error *e);

rl_status srv_http_start(rl_server *s, rl_error *err);
void srv_http_stop(rl_server *s);
void srv_http_resume(srv_job *j); /* lock held: bytes or the end are there */
void srv_http_reap(rl_server *s); /* lock held: closes connections whose request takes too long */
void srv_metrics(rl_server *s, srv_buf *out);

extern const srv_api srv_chat_api, srv_completion_api, srv_messages_api, srv_responses_api;

#endif
