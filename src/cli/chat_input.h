/* cli/chat_input: messages of a person at a terminal, or lines of a pipe. */
#ifndef RL_CLI_CHAT_INPUT_H
#define RL_CLI_CHAT_INPUT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum chat_input_end {
    CHAT_INPUT_TEXT,
    CHAT_INPUT_END,       /* end of the input, or the person asked to leave */
    CHAT_INPUT_INTERRUPT, /* Ctrl-C: what was typed is dropped */
    CHAT_INPUT_FAILED     /* after an error message */
} chat_input_end;

typedef struct chat_input chat_input;

/* Line editing when standard input is a terminal and the build has libedit. NULL: no memory. */
chat_input *chat_input_open(void);
void chat_input_close(chat_input *in);
bool chat_input_is_terminal(const chat_input *in);

/* One message as valid UTF-8 (free()). It is a line; a line that ends in a backslash goes on in the next one; three double
 * quotes begin a block that three double quotes end. At a terminal that marks pastes, a paste is taken whole. */
chat_input_end chat_input_read(chat_input *in, char **text, size_t *n);

#endif
