/* cli/conversation: the turns of a chat, and their file.
 *
 * The file is JSON in the shape of the OpenAI API, so that other programs can read and write it:
 *   {"model": NAME, "messages": [{"role": "system" | "user" | "assistant", "content": TEXT, "reasoning_content": TEXT}, ...]}
 * Texts are valid UTF-8: whoever adds a turn has made sure of it. */
#ifndef RL_CLI_CONVERSATION_H
#define RL_CLI_CONVERSATION_H

#include "redlite.h"

typedef struct conv_text {
    char *data; /* allocated, NUL-terminated; NULL when empty */
    size_t size;
} conv_text;

typedef struct conv_turn {
    rl_role role; /* user or assistant */
    conv_text content, reasoning;
} conv_turn;

typedef struct conversation {
    conv_text system; /* empty: no system turn */
    conv_turn *turns;
    size_t n, room;
} conversation;

/* Appends n bytes. False: no memory, nothing is changed. */
bool conv_append(conv_text *t, const char *data, size_t n);
void conv_text_free(conv_text *t);

/* The same for a whole turn; it takes the texts over, also when it fails. */
bool conv_add(conversation *c, rl_role role, conv_text content, conv_text reasoning);
bool conv_set_system(conversation *c, const char *text, size_t n); /* n = 0: none */
void conv_keep(conversation *c, size_t n);                         /* drops the turns after the first n */
void conv_free(conversation *c);

/* Atomic: the file is the whole conversation or what it was before. */
rl_status conv_save(const conversation *c, const char *path, const char *model, rl_error *err);
/* The whole file is checked before *c is replaced; on failure *c is what it was. A bare array of messages is accepted, members
 * this program does not know are ignored. */
rl_status conv_load(conversation *c, const char *path, rl_error *err);

#endif
