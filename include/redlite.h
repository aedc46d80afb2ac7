/* Red Lite: the public interface of the engine.
 *
 * This header is the only one a front end (cli/, server/, or a program that links libredlite) includes. It includes nothing of
 * the project, so the lower folders may use its status and error types.
 *
 * Conventions
 *   - A function that can fail returns rl_status and takes an rl_error* last (may be NULL); on failure the error holds one
 *     sentence for a person: what went wrong, where, what was expected. Outputs are untouched on failure unless stated.
 *   - Token ids are int32_t, >= 0 and < the vocabulary size. Logits are float32, one row of rl_engine_vocab_size() numbers.
 *   - Sizes are in bytes, times in seconds (double), unless the name says otherwise.
 *   - Objects are created by *_open/_create and released by *_close/_free; the release functions accept NULL.
 *   - An engine may be shared by threads only where a function says so; a session belongs to one thread at a time. */
#ifndef REDLITE_H
#define REDLITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors ----------------------------------------------------------------------------------------------- */

typedef enum rl_status {
    RL_OK = 0,
    RL_ERR_ARGUMENT,    /* the caller passed something outside the documented range */
    RL_ERR_IO,          /* a file or device could not be read or written */
    RL_ERR_FORMAT,      /* a file is damaged or breaks its format's rules */
    RL_ERR_UNSUPPORTED, /* valid, but not something this program runs */
    RL_ERR_MEMORY,      /* not enough memory, or a budget is too small */
    RL_ERR_LIMIT,       /* a limit was reached: the context is full, a prompt is too long */
    RL_ERR_CANCELLED,   /* a callback asked to stop */
    RL_ERR_DEVICE,      /* an accelerator failed or is missing */
    RL_ERR_INTERNAL     /* our own mistake */
} rl_status;

#define RL_ERROR_TEXT_MAX 1024

typedef struct rl_error {
    rl_status status;
    char text[RL_ERROR_TEXT_MAX]; /* NUL-terminated valid UTF-8; names from files are escaped */
} rl_error;

/* A name for a status ("argument", "io", ...), for logs and machine-readable output. */
const char *rl_status_name(rl_status status);

/* ---- Utilities that every front end needs ---------------------------------------------------------------------------- */

/* Version of the library, "MAJOR.MINOR.PATCH", and one line about this build: version, compiler, backends. */
const char *rl_version(void);
const char *rl_build_info(void);

/* Messages to stderr. Messages above the level are dropped; the default is RL_LOG_INFO. Thread safe. */
typedef enum rl_log_level { RL_LOG_ERROR, RL_LOG_WARN, RL_LOG_INFO, RL_LOG_DEBUG } rl_log_level;
void rl_log_set_level(rl_log_level level);
rl_log_level rl_log_get_level(void);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void rl_log(rl_log_level level, const char *fmt, ...);

double rl_now(void); /* monotonic seconds since an arbitrary start */

/* Reads a whole file or, with path "-", standard input, up to `limit` bytes (more is RL_ERR_LIMIT). *data is NUL-terminated for
 * convenience (not counted in *size); free() it. */
rl_status rl_read_file(const char *path, size_t limit, char **data, size_t *size, rl_error *err);

/* An output file that appears only when complete: written to a temporary neighbour, synced to disk and renamed by commit. */
typedef struct rl_out_file rl_out_file;
rl_status rl_out_open(const char *path, rl_out_file **out, rl_error *err);
rl_status rl_out_write(rl_out_file *f, const void *data, size_t n, rl_error *err); /* buffered */
uint64_t rl_out_position(const rl_out_file *f);
rl_status rl_out_commit(rl_out_file *f, rl_error *err); /* frees f in every case */
void rl_out_abort(rl_out_file *f);                      /* removes the temporary; NULL is fine */

/* Copies n bytes of untrusted text into out (size cap, always terminated) with control characters, invalid UTF-8 and quotes
 * written as \xNN; longer texts end in "...". Returns out. */
const char *rl_escape(char *out, size_t cap, const char *text, size_t n);

/* Bytes with a length: no terminator, any content. */
typedef struct rl_slice {
    const char *data;
    size_t size;
} rl_slice;

/* Progress of a long call. Returning false asks to stop: the call then ends with RL_ERR_CANCELLED at the next safe point. */
typedef bool (*rl_progress_fn)(void *ctx, uint64_t done, uint64_t total);

/* Byte streams for saved states. Both transfer exactly n bytes or fail. */
typedef rl_status (*rl_put_fn)(void *ctx, const void *data, size_t n, rl_error *err);
typedef rl_status (*rl_get_fn)(void *ctx, void *data, size_t n, rl_error *err);

/* ---- Text: tokens and chat ------------------------------------------------------------------------------------------- */

/* Immutable after creation: threads may share it. rl_tokenizer_open reads only the vocabulary of a model file, so it is quick
 * for any size of model. */
typedef struct rl_tokenizer rl_tokenizer;
rl_status rl_tokenizer_open(const char *model_path, rl_tokenizer **out, rl_error *err);
void rl_tokenizer_free(rl_tokenizer *t);

typedef enum rl_token_kind {
    RL_TOKEN_NORMAL = 1,
    RL_TOKEN_UNKNOWN,
    RL_TOKEN_CONTROL,
    RL_TOKEN_USER,
    RL_TOKEN_UNUSED,
    RL_TOKEN_BYTE
} rl_token_kind;

uint32_t rl_tokenizer_n_vocab(const rl_tokenizer *t);
rl_token_kind rl_token_kind_of(const rl_tokenizer *t, int32_t id);
int32_t rl_token_eos(const rl_tokenizer *t);
int32_t rl_token_im_start(const rl_tokenizer *t); /* -1 when the vocabulary has none */
int32_t rl_token_im_end(const rl_tokenizer *t);
bool rl_token_is_eog(const rl_tokenizer *t, int32_t id); /* ends generation */
/* The id of a control or user-defined token by its exact text, -1 when there is none. */
int32_t rl_token_find_special(const rl_tokenizer *t, const char *text, size_t n);
/* False for ids that must never be sampled (unused fillers); samplers of this library never choose them. */
bool rl_token_is_samplable(const rl_tokenizer *t, int32_t id);

/* Ids of n bytes of text (any bytes; ill-formed UTF-8 follows the reference's rule). parse_special turns control tokens' text
 * into their ids; user-defined tokens are always recognised. *ids is allocated: free(). */
rl_status rl_tokenize(const rl_tokenizer *t, const char *text, size_t n, bool parse_special, int32_t **ids, size_t *n_ids,
                      rl_error *err);

/* Bytes of one token (pointer into the tokenizer). With show_special false control and unknown tokens are empty. A token may
 * hold part of a character: pass the bytes through an rl_utf8_stream before showing them. */
rl_slice rl_token_bytes(const rl_tokenizer *t, int32_t id, bool show_special);

/* Incremental detokenisation: whole UTF-8 characters only. Zero-initialise. */
typedef struct rl_utf8_stream {
    uint8_t held[4];
    uint8_t n_held;
} rl_utf8_stream;
/* Feeds n bytes; writes complete valid characters to out (capacity >= 3*n + 12); bytes that can never become valid are written
 * as U+FFFD. Returns the bytes written. */
size_t rl_utf8_stream_push(rl_utf8_stream *s, const char *in, size_t n, char *out);
/* What is held back at the end, as U+FFFD when incomplete (out capacity >= 12). */
size_t rl_utf8_stream_finish(rl_utf8_stream *s, char *out);

/* Chat. Messages are rendered in the ChatML frame; contents are tokenised with special parsing off, the frame with it on, so
 * text from outside cannot close its turn. */
typedef enum rl_role { RL_ROLE_SYSTEM, RL_ROLE_USER, RL_ROLE_ASSISTANT, RL_ROLE_TOOL } rl_role;
typedef struct rl_chat_message {
    rl_role role;
    const char *content; /* may be NULL (empty) when size is 0 */
    size_t size;
} rl_chat_message;
/* Ids of the conversation; with add_generation the prompt ends with the opening of an assistant turn. free() *ids. */
rl_status rl_chat_tokenize(const rl_tokenizer *t, const rl_chat_message *messages, size_t n, bool add_generation, int32_t **ids,
                           size_t *n_ids, rl_error *err);
/* The same as text (NUL-terminated, free()). */
rl_status rl_chat_render(const rl_chat_message *messages, size_t n, bool add_generation, char **text, size_t *size,
                         rl_error *err);

/* ---- Text: tools and reasoning --------------------------------------------------------------------------------------- */

/* Conversations with tools and reasoning, and the reading of answers while they are generated. How a model wants its tools
 * written and whether it thinks aloud is read from the chat template in its file (a Jinja source, which is not executed: the
 * fixed texts are cut out of it, see docs/text.md). */

typedef enum rl_tool_style {
    RL_TOOL_JSON, /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    RL_TOOL_XML   /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> */
} rl_tool_style;

typedef enum rl_thinking {
    RL_THINKING_NEVER, /* <think> means nothing */
    RL_THINKING_MAY,   /* the model opens <think> itself when it wants to */
    RL_THINKING_ALWAYS /* the prompt opens it, the answer begins inside */
} rl_thinking;

/* Immutable after creation: threads may share it. */
typedef struct rl_chat_format rl_chat_format;

/* From the metadata of a model file. A file without a template gets the JSON style, no thinking, and our own wording. */
rl_status rl_chat_format_open(const char *model_path, rl_chat_format **out, rl_error *err);
/* From the text of a template (n may be 0). */
rl_status rl_chat_format_parse(const char *chat_template, size_t n, rl_chat_format **out, rl_error *err);
void rl_chat_format_free(rl_chat_format *f);

rl_tool_style rl_chat_format_style(const rl_chat_format *f);
rl_thinking rl_chat_format_thinking(const rl_chat_format *f);
bool rl_chat_format_can_skip_thinking(const rl_chat_format *f); /* no_thinking below has an effect */
/* False when the template has no tool texts, so that our own wording is used. */
bool rl_chat_format_knows_tools(const rl_chat_format *f);

typedef struct rl_tool_call {
    rl_slice name;
    rl_slice arguments; /* JSON text of an object; empty counts as {} */
} rl_tool_call;

typedef struct rl_chat_turn {
    rl_role role;
    rl_slice content;
    rl_slice reasoning; /* assistant only; data == NULL: not given (it may then be in the content, between <think> tags) */
    const rl_tool_call *calls; /* assistant only */
    size_t n_calls;
    /* assistant only: content and calls as the model wrote them, tags included; taken instead of both (data == NULL: not
     * given). A turn that comes back this way continues the sequence it was generated in. */
    rl_slice exact;
} rl_chat_turn;

typedef struct rl_chat_request {
    const rl_chat_turn *turns;
    size_t n_turns;
    const rl_slice *tools; /* one JSON object each: {"type": "function", "function": {...}} or the function itself */
    size_t n_tools;
    bool add_generation; /* end with the opening of an assistant turn */
    bool no_thinking;
} rl_chat_request;

/* Ids of the prompt (free() *ids), or its text (free() *text). Contents, names, tools and results cannot become control tokens.
 * RL_ERR_ARGUMENT: a tool that is not JSON or has no name, arguments that are not an object, a role out of range. */
rl_status rl_chat_request_tokenize(const rl_tokenizer *t, const rl_chat_format *f, const rl_chat_request *r, int32_t **ids,
                                   size_t *n_ids, rl_error *err);
rl_status rl_chat_request_render(const rl_chat_format *f, const rl_chat_request *r, char **text, size_t *size, rl_error *err);

typedef enum rl_answer_kind {
    RL_ANSWER_CONTENT,
    RL_ANSWER_REASONING,
    RL_ANSWER_CALL_START,     /* text = name of the function */
    RL_ANSWER_CALL_ARGUMENTS, /* text = next part of the arguments */
    RL_ANSWER_CALL_END
} rl_answer_kind;

/* How a call ended. In every case the arguments given between its start and its end are together one valid JSON object. */
typedef enum rl_call_end {
    RL_CALL_WHOLE,    /* the model closed it */
    RL_CALL_UNCLOSED, /* closing tags are missing, but no value was cut */
    RL_CALL_DAMAGED   /* a value was cut off or a part was dropped: better not carried out */
} rl_call_end;

typedef struct rl_answer_event {
    rl_answer_kind kind;
    rl_slice text;   /* whole UTF-8 characters; valid during the call */
    size_t call;     /* of calls: their number, from 0 */
    rl_call_end end; /* of RL_ANSWER_CALL_END */
} rl_answer_event;

/* Returning false cancels: the push or finish that is running ends with RL_ERR_CANCELLED. */
typedef bool (*rl_answer_fn)(void *ctx, const rl_answer_event *event);

/* Turns generated text, given in pieces of any size, into events. What the events say when joined does not depend on where the
 * pieces were cut. Without tools in the request nothing is taken for a call. */
typedef struct rl_answer_parser rl_answer_parser;

/* r: the request that was answered (its tools and no_thinking are used, and not needed afterwards). */
rl_status rl_answer_parser_create(const rl_chat_format *f, const rl_chat_request *r, rl_answer_fn fn, void *ctx,
                                  rl_answer_parser **out, rl_error *err);
rl_status rl_answer_parser_push(rl_answer_parser *p, const char *text, size_t n, rl_error *err); /* any bytes */
rl_status rl_answer_parser_finish(rl_answer_parser *p, rl_error *err);                           /* the answer is over */
size_t rl_answer_parser_calls(const rl_answer_parser *p);                                        /* calls begun so far */
void rl_answer_parser_free(rl_answer_parser *p);

/* ---- Text: grammars -------------------------------------------------------------------------------------------------- */

/* What an answer must look like. Immutable after creation: threads may share it. */
typedef struct rl_grammar rl_grammar;
/* JSON of a schema (NULL: any object). f and r (may be NULL) tell what reasoning may come first, and tools that may be called
 * instead. Not followed, since they do
 * not change the shape: bounds of numbers, format, uniqueItems. RL_ERR_UNSUPPORTED names a keyword that cannot be followed,
 * RL_ERR_ARGUMENT what is wrong with a schema. */
rl_status rl_grammar_answer_json(const rl_chat_format *f, const rl_chat_request *r, const char *schema, size_t n,
                                 rl_grammar **out, rl_error *err);
/* One call of a tool of the request (of any when name is NULL), or, with many, one or more. */
rl_status rl_grammar_tool_calls(const rl_chat_format *f, const rl_chat_request *r, const char *name, bool many,
                                rl_grammar **out, rl_error *err);
void rl_grammar_free(rl_grammar *g);

/* A vocabulary prepared for grammars (once: it is sorted). The tokenizer must outlive it. Threads may share it. */
typedef struct rl_token_order rl_token_order;
rl_status rl_token_order_create(const rl_tokenizer *t, rl_token_order **out, rl_error *err);
void rl_token_order_free(rl_token_order *o);

/* Follows one answer through a grammar; both arguments must outlive it. */
typedef struct rl_matcher rl_matcher;
rl_status rl_matcher_create(const rl_grammar *g, const rl_token_order *o, rl_matcher **out, rl_error *err);
void rl_matcher_free(rl_matcher *m);
bool rl_matcher_allows(rl_matcher *m, int32_t id);                     /* may id come next */
void rl_matcher_mask(rl_matcher *m, uint64_t *bits, uint32_t n_vocab); /* clears the bits of ids that may not */
bool rl_matcher_accept(rl_matcher *m, int32_t id);                     /* id came; false: it may not (nothing changes) */
bool rl_matcher_may_end(const rl_matcher *m);
bool rl_matcher_must_end(const rl_matcher *m); /* nothing may follow */

/* ---- Model information ----------------------------------------------------------------------------------------------- */

/* Weights of one role and one type: the lines of `redlite info`. */
typedef struct rl_group_info {
    const char *group; /* "embedding", "head", "deltanet", "attention", "router", "experts", "shared expert", "norms and
                          vectors", "mtp" */
    const char *type;  /* "Q4_K", ... */
    uint32_t tensors;
    uint64_t weights, bytes;
} rl_group_info;

typedef struct rl_model_info {
    char path[512]; /* as given, escaped */
    char architecture[32];
    char name[128]; /* general.name, escaped, may be empty */
    uint32_t n_files;
    uint64_t file_bytes;  /* all parts */
    uint64_t parameters;  /* weights in all tensors, MTP block included */
    uint64_t fingerprint; /* tells models apart: shapes, types and samples of every tensor's bytes */
    uint32_t n_layer, n_recurrent, n_attention, n_mtp;
    const uint8_t *recurrent; /* n_layer flags */
    uint32_t n_embd, n_vocab, n_tokens, n_context_train;
    uint32_t n_head, n_head_kv, head_dim, n_rot;
    double rope_base;
    uint32_t dn_key_heads, dn_value_heads, dn_head_dim, dn_conv;
    uint32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    bool tied_head;
    uint64_t bytes_per_token;    /* of weights that decoding one token reads: dense part plus n_expert_used experts a layer */
    uint64_t expert_bytes;       /* one expert (gate, up, down), the largest of all layers */
    uint64_t all_experts_bytes;  /* the cache that would hold every expert of the trunk */
    uint64_t state_bytes;        /* recurrent and convolution state of one sequence, any length */
    uint64_t kv_bytes_per_token; /* float32 keys and values; half with RL_KV_F16 */
    const rl_group_info *groups;
    uint32_t n_groups;
    bool has_chat_template;
    /* general.sampling.* of the file, NaN (top_k: -1) when absent */
    float sampling_temperature, sampling_top_p, sampling_min_p;
    int32_t sampling_top_k;
} rl_model_info;

/* Opens, checks and describes a model without preparing a backend. Release with rl_model_info_free. */
rl_status rl_model_inspect(const char *path, rl_model_info **out, rl_error *err);
void rl_model_info_free(rl_model_info *info);

/* The processor as the library sees it. */
typedef struct rl_machine_info {
    char cpu[64];
    int logical_cores, physical_cores; /* that this process may use */
    const char *best_isa;
    uint64_t memory_bytes, memory_available_bytes; /* 0 when unknown */
} rl_machine_info;
void rl_machine(rl_machine_info *out);

/* ---- Engine ---------------------------------------------------------------------------------------------------------- */

/* An engine is a model file prepared for one backend. Calls that run the model (extend, decode, perplexity, ...) on one engine
 * or on its sessions must come from one thread at a time; the tokenizer and the info may be used from any thread. */
typedef struct rl_engine rl_engine;

typedef enum rl_precision {
    RL_PRECISION_EXACT, /* float32 activations, float32 accumulation in at least four partial sums */
    RL_PRECISION_FAST   /* int8 activations per block with float32 scales and sums */
} rl_precision;

typedef enum rl_kv_type { RL_KV_F32, RL_KV_F16 } rl_kv_type;

#define RL_DEFAULT_CONTEXT 4096
#define RL_MAX_CONTEXT     (1u << 24)
#define RL_MAX_BATCH       8192
#define RL_MAX_THREADS     512

/* Where the routed experts are. Everything else of a model is always in memory. */
typedef enum rl_residency {
    RL_RESIDENCY_AUTO,   /* what the planner finds best for this machine and file */
    RL_RESIDENCY_MAPPED, /* used in place in the mapped file: for files that fit in memory */
    RL_RESIDENCY_FULL,   /* all read into memory when opening */
    RL_RESIDENCY_BOUNDED /* a cache of cache_bytes; the rest is read from the file when needed */
} rl_residency;
const char *rl_residency_name(rl_residency r); /* "auto", "mapped", "full", "bounded" */
/* "auto", "full", "mapped", or a cache in MiB (1 to 2^24). */
rl_status rl_cache_parse(const char *text, rl_residency *residency, uint64_t *bytes, rl_error *err);

typedef struct rl_engine_options {
    const char *model;      /* path of the GGUF file (of part 1 of a split model) */
    const char *backend;    /* "auto" (default), "cpu", "ref", ...: rl_backend_names() */
    const char *isa;        /* "auto" (default), "scalar", "avx2", "avx512", "neon" */
    rl_precision precision; /* default RL_PRECISION_FAST */
    rl_kv_type kv;          /* default RL_KV_F32 */
    int threads;            /* 0 (default): one per physical core; at most RL_MAX_THREADS */
    uint32_t context;       /* positions a session holds unless told otherwise; default RL_DEFAULT_CONTEXT */
    uint32_t batch;         /* rows of a prefill pass, at most RL_MAX_BATCH; 0 (default): the engine's choice */
    rl_residency residency; /* default RL_RESIDENCY_AUTO */
    uint64_t cache_bytes;   /* RL_RESIDENCY_BOUNDED: a hard limit for the expert cache and what it takes to run it */
    bool profile;           /* collect what rl_engine_profile tells; costs a few clock reads a layer */
    /* In passes of few tokens the router prefers experts that are in the cache, as if their logits were higher by this (0, the
     * default: off). Saves reads and changes the output; not reproducible, for what is in the cache depends on timing. */
    float route_bias;
    bool force;   /* open also what the planner finds too large for this machine */
    bool page_in; /* read all of a file that is used in place before the engine is ready, instead of as it is needed */
    bool lock;    /* and keep it in memory (mlock); implies page_in */
    /* Loading, done of total in arbitrary units; may be NULL. */
    rl_progress_fn progress;
    void *progress_ctx;
} rl_engine_options;

void rl_engine_options_init(rl_engine_options *options); /* the defaults; model = NULL */

rl_status rl_engine_open(const rl_engine_options *options, rl_engine **out, rl_error *err);
void rl_engine_close(rl_engine *e); /* every session of it was freed before */

const rl_tokenizer *rl_engine_tokenizer(const rl_engine *e);
const rl_model_info *rl_engine_info(const rl_engine *e);
uint32_t rl_engine_vocab_size(const rl_engine *e); /* length of a logits row */
uint32_t rl_engine_context(const rl_engine *e);
/* Rows of a prefill pass: the batch option, else 2048. */
uint32_t rl_engine_prefill_batch(const rl_engine *e);
const char *rl_engine_backend(const rl_engine *e);
const char *rl_engine_isa(const rl_engine *e);
int rl_engine_threads(const rl_engine *e);
rl_precision rl_engine_precision(const rl_engine *e);
rl_kv_type rl_engine_kv(const rl_engine *e);
const char *rl_precision_name(rl_precision p); /* "exact", "fast" */
const char *rl_kv_name(rl_kv_type kv);         /* "f32", "f16" */
/* Backends of this build, NULL-terminated. */
const char *const *rl_backend_names(void);

/* One line about the GPU that backend "cuda" would use (true), or why none is used (false). */
bool rl_gpu_describe(char *out, size_t cap);
/* Checks every GPU kernel against plain host code on random shapes; a line per check goes to the log. RL_ERR_DEVICE when there
 * is no GPU. */
rl_status rl_gpu_selftest(uint64_t seed, rl_error *err);

typedef struct rl_engine_memory {
    uint64_t mapped;  /* the model file(s) */
    uint64_t weights; /* copies of weights made besides the mapping */
    uint64_t scratch;
    uint64_t session_fixed; /* per session, independent of its length */
    uint64_t session_per_token;
    uint64_t mark; /* one mark of a session */
} rl_engine_memory;
void rl_engine_memory_info(const rl_engine *e, rl_engine_memory *out);

/* What opening an engine with these options would run here. Measures the disk with half a second of reads. On RL_ERR_MEMORY (it
 * does not fit, and not forced) *out is filled all the same. */
typedef struct rl_plan {
    rl_machine_info machine;
    uint64_t usable_bytes; /* of memory, 0 when unknown */
    uint64_t file_bytes, dense_bytes, session_bytes, scratch_bytes;
    uint64_t cache_least, cache_all; /* expert caches: the smallest that runs, the one that holds every expert */
    rl_residency residency;          /* never auto */
    uint64_t cache_bytes;            /* full and bounded */
    uint32_t context, batch;
    uint64_t need_bytes; /* everything together, a reserve for the system included */
    bool fits;
    char disk[48]; /* how experts are read */
    double disk_bytes_per_second;
    double token_disk_bytes;       /* that a decoded token reads when all experts are equally likely; 0 = none */
    double disk_tokens_per_second; /* the limit that sets */
} rl_plan;
rl_status rl_plan_make(const rl_engine_options *options, rl_plan *out, rl_error *err);

/* Routing: which experts every token used in every layer, recorded or made up, and what caches would have made of it. */
typedef struct rl_trace rl_trace;
rl_status rl_trace_create(uint32_t n_layer, uint32_t n_expert, uint32_t n_used, rl_trace **out, rl_error *err);
/* Experts of rank r are drawn with weight 1 / r^zipf (0 = all equal); with probability `reuse` one of the token before is used
 * again. The same arguments give the same trace. */
rl_status rl_trace_synth(uint32_t n_layer, uint32_t n_expert, uint32_t n_used, uint64_t tokens, double zipf, double reuse,
                         uint64_t seed, rl_trace **out, rl_error *err);
rl_status rl_trace_load(const char *path, rl_trace **out, rl_error *err);
rl_status rl_trace_save(const rl_trace *t, const char *path, rl_error *err);
uint64_t rl_trace_tokens(const rl_trace *t);
void rl_trace_free(rl_trace *t);

typedef enum rl_sim_policy {
    RL_SIM_LRU,
    RL_SIM_FREQUENCY, /* uses, each losing half of its weight in 128 tokens */
    RL_SIM_SEGMENTED, /* LRU with four fifths kept for experts used twice */
    RL_SIM_OPTIMAL,   /* Belady: knows the future, the bound for all */
    RL_SIM_POLICIES
} rl_sim_policy;
const char *rl_sim_policy_name(rl_sim_policy p);
typedef struct rl_sim_result {
    rl_sim_policy policy;
    uint64_t uses, misses;
} rl_sim_result;
/* Every policy over the trace, with a cache that holds `share` of all experts and is empty at first. */
rl_status rl_cache_sim(const rl_trace *t, double share, rl_sim_result out[RL_SIM_POLICIES], rl_error *err);

/* The expert cache since opening. An expert is counted once for each layer and pass that uses it. */
typedef struct rl_cache_stats {
    rl_residency residency;
    const char *reading;       /* how experts are read: "io_uring, direct", ... */
    uint64_t budget, overhead; /* bytes allowed; bytes of tables and reading */
    uint64_t used;             /* overhead and occupied slots; never more than the budget */
    uint32_t slots, experts;   /* that it can hold; that the model has */
    uint64_t passes;
    uint64_t hits, misses; /* experts that were in the cache or on their way; experts that had to be asked for */
    uint64_t loads, evictions, bytes_read;
    uint64_t guesses, guesses_used; /* experts read ahead of their layer's turn, and those that it then used */
    double wait_seconds;            /* computing had nothing to do but wait for the file */
} rl_cache_stats;
/* False (and *out zero but for residency) when experts are used in place. */
bool rl_engine_cache_stats(const rl_engine *e, rl_cache_stats *out);

/* Counts how often experts are chosen, while on. False when something else looks on. */
bool rl_engine_watch_routing(rl_engine *e, bool on);
/* The counts so far, n_layer rows of n_expert. */
void rl_engine_routing(const rl_engine *e, uint64_t *counts);

/* Where the time of passes went since opening, by the backend's own phases; decode is passes of single rows, the rest is
 * prefill. Bytes and FLOPs are computed from shapes: what a phase must move at least once, and two per multiply-add. */
#define RL_PROFILE_STAGES_MAX 32
typedef struct rl_profile_stage {
    const char *name;
    uint64_t calls, bytes, flops;
    double seconds;
} rl_profile_stage;
typedef struct rl_profile {
    uint64_t passes, rows;
    double seconds;
    uint32_t n_stages;
    rl_profile_stage stages[RL_PROFILE_STAGES_MAX];
} rl_profile;
/* False when nothing was collected: the option is off, the backend has no profile, or there was no such pass. */
bool rl_engine_profile(const rl_engine *e, bool decode, rl_profile *out);

/* ---- Sessions -------------------------------------------------------------------------------------------------------- */

/* A session is one sequence: its token ids and the model's state after them. The state cannot be cut back (it is a recurrence),
 * only copied; so a session can *mark* positions, and going back to position n means restoring the last mark at or before n
 * and computing the ids between the mark and n again. That recomputation is lazy: it happens in the next call that needs
 * the state, as part of its first passes. rl_session_computed tells how many leading ids the state covers.
 *
 * A call that fails or is cancelled leaves the session at the last good position: ids whose passes were complete stay, the rest
 * is gone, and every later call works (after a failure inside a backend the state is rebuilt lazily from the last mark). */
typedef struct rl_session rl_session;

/* capacity = positions it can hold, 0 = the engine's context. RL_ERR_MEMORY names the bytes needed and at hand. */
rl_status rl_session_create(rl_engine *e, uint32_t capacity, rl_session **out, rl_error *err);
void rl_session_free(rl_session *s);
void rl_session_reset(rl_session *s); /* empty, without marks */
/* An independent copy at the same position (marks are not copied). capacity as above, at least the position. */
rl_status rl_session_fork(const rl_session *s, uint32_t capacity, rl_session **out, rl_error *err);

/* The same, cut to its first n ids: where it stands, a mark, or 0. RL_ERR_ARGUMENT at another position. */
rl_status rl_session_fork_at(const rl_session *s, uint32_t n, uint32_t capacity, rl_session **out, rl_error *err);

rl_engine *rl_session_engine(const rl_session *s);
uint32_t rl_session_capacity(const rl_session *s);
uint32_t rl_session_position(const rl_session *s);     /* number of ids it holds */
uint32_t rl_session_computed(const rl_session *s);     /* leading ids the state covers, <= position */
const int32_t *rl_session_tokens(const rl_session *s); /* valid until the session changes */

/* Logits after the last id, one row of rl_engine_vocab_size() floats; valid until the session changes. NULL when the session is
 * empty or computed < position (extend by nothing then computes them). */
const float *rl_session_logits(const rl_session *s);

/* Appends n ids (n may be 0: only makes the state and logits current) and computes them in passes of at most
 * rl_engine_prefill_batch() rows. One id is a decode step. progress (may be NULL) is called between passes with the ids done
 * and to do in this call, recomputation included. RL_ERR_ARGUMENT: an id outside the vocabulary (its index and value are
 * named). RL_ERR_LIMIT: more ids than the capacity holds; nothing is changed. */
rl_status rl_session_extend(rl_session *s, const int32_t *ids, size_t n, rl_progress_fn progress, void *ctx, rl_error *err);

/* As extend, and shows the logits of every new position to fn, in order (row is valid during the call). A status other than
 * RL_OK from fn ends the call with it. */
typedef rl_status (*rl_logits_fn)(void *ctx, uint32_t position, const float *row, rl_error *err);
rl_status rl_session_extend_logits(rl_session *s, const int32_t *ids, size_t n, rl_logits_fn fn, void *ctx, rl_error *err);

/* Appends one id without computing it: the next extend does. For the last token of an answer. */
rl_status rl_session_append(rl_session *s, int32_t id, rl_error *err);

/* Extends the session by n ids and by `generate` more that it continues with greedily, and adds every token's routing to the
 * trace, which was created for the model's shape. */
rl_status rl_trace_record(rl_session *s, const int32_t *ids, size_t n, uint32_t generate, rl_progress_fn progress, void *ctx,
                          rl_trace *trace, rl_error *err);

/* Marks the current position (computing what is pending). Marking a marked position again is free. At most RL_SESSION_MARKS
 * are held: when full, the second oldest position goes (the oldest is usually the system prompt, the newest the last turn). */
#define RL_SESSION_MARKS 8
rl_status rl_session_mark(rl_session *s, rl_error *err);
/* Writes the marked positions in rising order to out (at most cap); returns how many there are. */
uint32_t rl_session_marks(const rl_session *s, uint32_t *out, uint32_t cap);
void rl_session_unmark(rl_session *s, uint32_t position); /* nothing happens when it is not marked */

/* Cuts the session to its first n ids (n <= position). Marks beyond n go. */
rl_status rl_session_truncate(rl_session *s, uint32_t n, rl_error *err);

/* How many leading ids s and the list have in common, and how many of those need no recomputation (the current state or a
 * mark). The last id of the list always needs its logits: a mark or state exactly at n counts only with logits, which both
 * keep. */
uint32_t rl_session_common_prefix(const rl_session *s, const int32_t *ids, size_t n);
uint32_t rl_session_reusable_prefix(const rl_session *s, const int32_t *ids, size_t n);

/* Makes the session hold exactly these ids, computed, reusing what it can: truncate to the common prefix, then extend.
 * *reused (may be NULL) = ids that were not computed. */
rl_status rl_session_set_tokens(rl_session *s, const int32_t *ids, size_t n, rl_progress_fn progress, void *ctx,
                                uint32_t *reused, rl_error *err);

/* One pass (or few) over the weights for several sessions of one engine: each item appends its ids (one for decoding, a chunk
 * for a prefill that shares the pass) and gets its logits at the end. A session may appear once. Rows of one call are packed
 * into passes of at most rl_engine_prefill_batch() rows, in order. With RL_PRECISION_EXACT a session's results are the same
 * bits alone and in company. Arguments are checked before anything is computed; when a pass fails, items[i].status tells which
 * sessions did not advance (their ids of this call are gone), the others are complete. */
typedef struct rl_batch_item {
    rl_session *session;
    const int32_t *ids;
    uint32_t n;
    rl_status status; /* out */
} rl_batch_item;
rl_status rl_engine_extend_batch(rl_engine *e, rl_batch_item *items, uint32_t n, rl_error *err);

/* Saved states. A state holds the ids, the sequence's state and the last logits (not the marks), little-endian, versioned, with
 * checksums over the head and the whole. It can be read into any session of an engine with the same model (fingerprint),
 * backend, precision and KV type, and capacity enough; results continue bit-identically. A state of another kind is
 * RL_ERR_UNSUPPORTED, a damaged one RL_ERR_FORMAT; the session is then empty. */
rl_status rl_session_write(rl_session *s, rl_put_fn put, void *ctx, rl_error *err); /* computes what is pending first */
rl_status rl_session_read(rl_session *s, rl_get_fn get, void *ctx, rl_error *err);
/* The same with a file, written atomically. */
rl_status rl_session_save(rl_session *s, const char *path, rl_error *err);
rl_status rl_session_load(rl_session *s, const char *path, rl_error *err);
/* The ids in a state file (only the head is read and verified; free() *ids). RL_ERR_UNSUPPORTED when it is not for this engine.
 */
rl_status rl_state_tokens(const rl_engine *e, const char *path, int32_t **ids, uint32_t *n, rl_error *err);

/* ---- Sampling -------------------------------------------------------------------------------------------------------- */

/* Order and arithmetic are those of llama.cpp's default chain: bias, penalties, top-k, top-p, min-p, temperature, then one draw
 * from the remaining probabilities with a Mersenne twister (MT19937, two 32-bit outputs make one double), so equal logits and
 * seed give equal tokens.
 *
 *   bias        l[id] += bias
 *   penalties   for an id seen c > 0 times in the last `penalty_last_n` accepted ids:
 *               l = l <= 0 ? l * repeat : l / repeat;  l -= c * frequency + presence
 *   top-k       the k largest logits (ties: lower id first); k <= 0 keeps all
 *   top-p       the shortest run of the most probable whose probabilities sum to >= p; p >= 1 keeps all
 *   min-p       those with l >= max + ln(p); p <= 0 keeps all
 *   temperature l / t; t <= 0 takes the largest logit (after the penalties) and nothing else is drawn */
typedef struct rl_logit_bias {
    int32_t id;
    float bias; /* -INFINITY forbids */
} rl_logit_bias;

#define RL_SEED_RANDOM 0xFFFFFFFFu

typedef struct rl_sampling {
    float temperature;         /* 0..100 */
    int32_t top_k;             /* 0 = off */
    float top_p;               /* 0..1, 1 = off */
    float min_p;               /* 0..1, 0 = off */
    float repeat_penalty;      /* > 0, 1 = off */
    float presence_penalty;    /* -100..100, 0 = off */
    float frequency_penalty;   /* -100..100, 0 = off */
    int32_t penalty_last_n;    /* window of the penalties; 0 = off, -1 = everything accepted */
    uint32_t seed;             /* RL_SEED_RANDOM draws one from the system: rl_sampler_seed tells it */
    const rl_logit_bias *bias; /* copied by rl_sampler_create */
    size_t n_bias;
} rl_sampling;

/* The defaults: temperature 0.7, top-k 20, top-p 0.8, min-p 0, no penalties (window 64), random seed; with an engine (may be
 * NULL) the values its model file recommends. */
void rl_sampling_init(rl_sampling *p, const rl_engine *e);
/* Ranges as above; RL_ERR_ARGUMENT names the field, the value and the range. */
rl_status rl_sampling_check(const rl_sampling *p, rl_error *err);

typedef struct rl_sampler rl_sampler;
rl_status rl_sampler_create(const rl_engine *e, const rl_sampling *p, rl_sampler **out, rl_error *err);
void rl_sampler_free(rl_sampler *s);
void rl_sampler_reset(rl_sampler *s); /* forgets accepted ids, restarts the generator at the seed */
uint32_t rl_sampler_seed(const rl_sampler *s);

/* Tells the sampler an id of the sequence (prompt or answer), for the penalties. rl_generate does it itself. */
void rl_sampler_accept(rl_sampler *s, int32_t id);

/* Constrained decoding. A token is drawn freely first; `allows` (may be NULL) then judges that one id, and only if it is
 * refused `mask` is asked for the whole vocabulary and the draw repeated among what it allows. Without `allows` the mask is
 * asked first. mask clears the bits of forbidden ids (bit id % 64 of word id / 64; all set on entry). An empty set is
 * RL_ERR_LIMIT. */
typedef struct rl_constraint {
    bool (*allows)(void *ctx, int32_t id);
    void (*mask)(void *ctx, uint64_t *bits, uint32_t n_vocab);
    void *ctx;
} rl_constraint;
void rl_sampler_set_constraint(rl_sampler *s, const rl_constraint *c); /* copied; NULL = none */

/* Chooses an id from a row of logits (not changed). Does not accept it. RL_ERR_INTERNAL when the row holds no finite number. */
rl_status rl_sampler_sample(rl_sampler *s, const float *logits, int32_t *id, rl_error *err);

/* Log probabilities of the model itself: log softmax of the row, before bias, penalties, cuts and temperature. */
typedef struct rl_logprob {
    int32_t id;
    float logprob;
} rl_logprob;
float rl_logprob_of(const float *logits, uint32_t n_vocab, int32_t id);
/* The n most probable, falling (ties: lower id first); returns how many were written. */
uint32_t rl_logprobs_top(const float *logits, uint32_t n_vocab, rl_logprob *out, uint32_t n);

/* ---- Generation ------------------------------------------------------------------------------------------------------ */

typedef enum rl_finish {
    RL_FINISH_LENGTH,    /* max_tokens were produced */
    RL_FINISH_EOG,       /* the model ended its answer */
    RL_FINISH_CONTEXT,   /* the session is full */
    RL_FINISH_CANCELLED, /* on_token or progress returned false */
} rl_finish;
const char *rl_finish_name(rl_finish f); /* "length", "stop", "context", "cancelled" */

/* A produced id, before it is computed. The logits row it was drawn from is valid during the call. */
typedef bool (*rl_token_fn)(void *ctx, int32_t id, const float *logits);

typedef struct rl_generate_options {
    uint32_t max_tokens;
    bool ignore_eog;      /* goes on after an end token */
    rl_token_fn on_token; /* may be NULL; false stops after this token */
    rl_progress_fn on_prefill;
    void *ctx; /* of both */
} rl_generate_options;

typedef struct rl_generate_result {
    rl_finish finish;
    uint32_t n_prompt;                      /* ids computed before the first token (reused ones not counted) */
    uint32_t n_generated;                   /* tokens given to on_token */
    int32_t eog;                            /* the end token, -1 when it did not end with one; not part of the session */
    double prefill_seconds, decode_seconds; /* decode: from the first logits to the end */
} rl_generate_result;

/* Produces tokens after the session's ids (at least one). Every produced token but the end token is appended to the session;
 * the last one may be left uncomputed. The sampler is given all ids of the session first when it has accepted none. Cancelling
 * is RL_OK with RL_FINISH_CANCELLED; *result is filled on failure too. */
rl_status rl_generate(rl_session *s, rl_sampler *sampler, const rl_generate_options *options, rl_generate_result *result,
                      rl_error *err);

/* ---- Measures -------------------------------------------------------------------------------------------------------- */

/* Perplexity as llama-perplexity defines it: the ids in chunks of n_ctx, each from an empty session; ids n_ctx/2 + 1 .. n_ctx -
 * 1 of a chunk are scored given all before them; exp of the mean negative log probability. */
typedef struct rl_perplexity_result {
    double perplexity;
    double error; /* standard error of the perplexity */
    double nll;   /* mean negative log probability */
    uint32_t n_chunks;
    uint64_t n_scored;
    double seconds;
} rl_perplexity_result;
/* After each chunk with the values so far; false stops. */
typedef bool (*rl_perplexity_fn)(void *ctx, const rl_perplexity_result *so_far, uint32_t total_chunks);
/* max_chunks 0 = all. RL_ERR_ARGUMENT when there is not one whole chunk or n_ctx < 4. */
rl_status rl_perplexity(rl_engine *e, const int32_t *ids, size_t n, uint32_t n_ctx, uint32_t max_chunks, rl_perplexity_fn fn,
                        void *ctx, rl_perplexity_result *out, rl_error *err);

/* Parity: one backend against another, stage by stage. Both run the same ids; after every stage the judge's values replace the
 * tested backend's, so each stage is judged alone and errors do not add up. A second, free run compares logits only. */
typedef struct rl_parity_options {
    const char *model;
    const char *judge;  /* default "ref" */
    const char *tested; /* default "auto" */
    const char *isa;
    rl_precision precision; /* of the tested backend; the judge is always exact */
    rl_kv_type kv;
    int threads;
    uint32_t batch; /* rows of a pass of the tested backend, 0 = all ids in one */
    const int32_t *ids;
    uint32_t n;
    rl_progress_fn progress;
    void *progress_ctx;
} rl_parity_options;

typedef struct rl_parity_stage {
    const char *name;
    uint64_t values;
    double max_abs;      /* worst absolute difference */
    double rms;          /* of the judge's values */
    double rms_error;    /* of the differences */
    uint32_t layer, row; /* where the worst was */
    uint32_t layers;     /* how many layers were compared; 0 = the tested backend does not show this stage */
} rl_parity_stage;

typedef struct rl_parity_layer {
    bool recurrent;
    double max_abs; /* worst of the layer's output */
    uint32_t router_mismatches;
} rl_parity_layer;

typedef struct rl_parity_report {
    const rl_parity_stage *stages; /* n_stages, in the order of the data flow */
    uint32_t n_stages;
    const rl_parity_layer *layers;
    uint32_t n_layers;
    uint32_t router_mismatches; /* (row, layer) pairs whose set of experts differs, judge's input to both */
    double router_gap;          /* smallest gap in probability between the last chosen and the first refused, by the judge */
    double logits_max_abs;      /* free run */
    double logits_rms;          /* of the judge's logits */
    double kl_max, kl_mean;     /* KL(judge || tested) per position, nats */
    uint32_t positions, argmax_mismatches;
    double argmax_gap; /* largest gap of the judge's top two logits among the mismatches */
    const char *judge, *tested, *isa;
} rl_parity_report;

rl_status rl_parity(const rl_parity_options *options, rl_parity_report **out, rl_error *err);
void rl_parity_report_free(rl_parity_report *r);

/* Speed of one case in the manner of llama-bench: a session is brought to `depth` (not timed), then `prompt` ids in one extend
 * or `generate` single ids (or both, one after the other) are timed, `reps` times from the same depth. One run before is not
 * counted when warm_up is set. seconds gets reps values; tokens of a run = prompt + generate. */
typedef struct rl_bench_case {
    uint32_t prompt, generate, depth;
    uint32_t sessions; /* generate in so many sessions at once; 1 = a single one */
} rl_bench_case;
rl_status rl_bench_run(rl_engine *e, const rl_bench_case *c, uint32_t reps, bool warm_up, double *seconds,
                       rl_progress_fn progress, void *ctx, rl_error *err);

/* Speed of the CPU's matrix kernels alone, on the calling thread, on random weights. */
typedef struct rl_kernel_options {
    const char *type; /* of the weights: "Q4_K", "iq2_xxs", ... (any case) */
    const char *isa;  /* as rl_engine_options */
    rl_precision precision;
    bool repack;         /* the layout re-encoded for the kernels instead of the file's */
    uint32_t tokens;     /* activation rows: 1 is decode */
    uint32_t rows, cols; /* of each matrix; cols a multiple of 256 */
    uint64_t bytes;      /* matrices are walked in turn until they add up to this: larger than the caches measures memory */
    double seconds;      /* lower bound of the measured time */
} rl_kernel_options;
typedef struct rl_kernel_speed {
    bool repacked;           /* false when the type has no other layout */
    double bytes_per_weight; /* of the layout used */
    double bytes_per_second, weights_per_second, macs_per_second;
} rl_kernel_speed;
rl_status rl_kernel_measure(const rl_kernel_options *o, rl_kernel_speed *out, rl_error *err);

/* ---- Models with random weights -------------------------------------------------------------------------------------- */

/* Such a file opens, runs and costs what a real one of its shape costs, so that loading and speed can be measured and tested
 * without a download. Its text is noise and its routing near uniform. The same options give the same bytes on every machine
 * and for any number of threads. */
typedef struct rl_synth_options {
    const char *preset; /* shape, a name of rl_synth_presets(); NULL = "80b" */
    /* Quantisation: "iq2_xxs", "iq3_xxs", "q4_k" mix types the way published files of that name do; any other weight type's
     * name in lower case ("q8_0", "bf16", "mxfp4", ...) gives every matrix that type. NULL = "iq2_xxs". */
    const char *mix;
    uint32_t n_layer; /* trunk layers; 0 = the preset's */
    bool mtp;         /* adds the MTP block */
    uint64_t seed;
    int threads; /* 0 = one per physical core */
    /* Called from the calling thread after every few MiB of data; returning false cancels with RL_ERR_CANCELLED
     * and leaves no file. May be NULL. */
    rl_progress_fn progress;
    void *progress_ctx;
} rl_synth_options;

typedef struct rl_synth_info {
    uint32_t n_tensors;
    uint64_t n_weights;
    uint64_t tensor_bytes; /* the file adds metadata and padding, a few MiB for the 80b vocabulary */
} rl_synth_info;

/* NULL-terminated lists for help and completion: shapes, and the mixes that are more than one type's name. */
const char *const *rl_synth_presets(void);
const char *const *rl_synth_mixes(void);

/* What rl_synth would write, without writing. Checks the options. */
rl_status rl_synth_plan(const rl_synth_options *opt, rl_synth_info *out, rl_error *err);

/* Writes the file: checks the free disk space first, writes to a temporary neighbour, and renames at the end. `out` may be
 * NULL. */
rl_status rl_synth(const char *path, const rl_synth_options *opt, rl_synth_info *out, rl_error *err);

#ifdef __cplusplus
}
#endif

#endif
