/* cli/chat: what the parts of the chat share: its state, one answer, the commands. */
#ifndef RL_CLI_CHAT_H
#define RL_CLI_CHAT_H

#include "cli.h"
#include "conversation.h"

typedef struct chat_stats {
    uint32_t n_prompt, n_reused, n_answer; /* tokens; n_prompt counts reused ones too */
    double prompt_seconds, answer_seconds;
} chat_stats;

typedef struct chat {
    rl_engine *engine;
    const rl_tokenizer *tokenizer;
    rl_chat_format *format;
    rl_session *session; /* what is computed; it is brought to the conversation when an answer is asked for */
    rl_sampling sampling;
    conversation conv;
    uint32_t max_tokens, n_answers;
    bool no_thinking, show_stats;
    bool person; /* someone types: explain and go on after mistakes */
    bool colour; /* standard output shows dimmed text */
    bool leave;
    int status;               /* exit status so far */
    char *file;               /* of the last /save or /load; free() */
    uint64_t computed_tokens; /* in the whole chat, and the time they took */
    double computed_seconds;
    chat_stats last; /* n_answer and n_prompt 0: no answer yet */
} chat;

/* Answers the conversation, whose last turn is a person's, and adds the answer. When there is none (an error, Ctrl-C before its
 * first token) nothing is added and the result is false; the reason has been told. */
bool chat_answer(chat *c);

/* Tokens of the conversation as a prompt for the next message; false after an error message. */
bool chat_count_tokens(chat *c, size_t *n);

/* Carries out "/name rest". */
void chat_command(chat *c, const char *line, size_t n);
/* "/name" or "/name rest" with a name of letters: anything else that begins with a slash, a path for example, is a message. */
bool chat_is_command(const char *line, size_t n);
/* Adds a message and answers it; without an answer the message is taken back. */
void chat_say(chat *c, conv_text message);

void chat_print_stats(const chat *c);

/* A remark for the person on standard error, unless quiet. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void chat_note(const char *fmt, ...);

#endif
