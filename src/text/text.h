/* text: bytes to token ids and back, and chat messages to prompts.
 *
 * The tokenizer is byte-level BPE with the qwen2 splitting rules; ids equal llama.cpp's (one stated exception: the ordinary
 * token </s> is not special). Immutable after creation, so threads may share it. */
#ifndef RL_TEXT_H
#define RL_TEXT_H

#include "gguf/gguf.h"

typedef struct rl_tokenizer rl_tokenizer;

typedef enum rl_token_kind {
    RL_TOKEN_NORMAL = 1,
    RL_TOKEN_UNKNOWN,
    RL_TOKEN_CONTROL,
    RL_TOKEN_USER,
    RL_TOKEN_UNUSED,
    RL_TOKEN_BYTE
} rl_token_kind;

/* From the metadata of a model; checks the tables (sizes, ids in range, all bytes present). g may be closed afterwards. */
rl_status rl_tokenizer_create(const rl_gguf *g, rl_tokenizer **out, rl_error *err);
void rl_tokenizer_free(rl_tokenizer *t);

uint32_t rl_tokenizer_n_vocab(const rl_tokenizer *t);
rl_token_kind rl_token_kind_of(const rl_tokenizer *t, int32_t id);
int32_t rl_token_eos(const rl_tokenizer *t);
int32_t rl_token_im_start(const rl_tokenizer *t); /* -1 when the vocabulary has none */
int32_t rl_token_im_end(const rl_tokenizer *t);
bool rl_token_is_eog(const rl_tokenizer *t, int32_t id); /* ends generation */
/* The id of a control or user-defined token by its exact text, -1 when there is none. */
int32_t rl_token_find_special(const rl_tokenizer *t, const char *text, size_t n);
/* False for ids that must never be sampled (unused fillers). */
bool rl_token_is_samplable(const rl_tokenizer *t, int32_t id);

/* Ids of n bytes of text (any bytes; ill-formed UTF-8 follows the reference's rule). parse_special turns control tokens' text
 * into their ids; user-defined tokens are always recognised. *ids is allocated: free(). */
rl_status rl_tokenize(const rl_tokenizer *t, const char *text, size_t n, bool parse_special, int32_t **ids, size_t *n_ids,
                      rl_error *err);

/* Bytes of one token (pointer into the tokenizer). With show_special false control and unknown tokens are empty. */
rl_slice rl_token_bytes(const rl_tokenizer *t, int32_t id, bool show_special);

/* Incremental detokenisation: whole UTF-8 characters only. */
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

#endif
