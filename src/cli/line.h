/* cli/line: one line of standard input, edited when it is a terminal (libedit where the build has it). */
#ifndef RL_CLI_LINE_H
#define RL_CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum line_end {
    LINE_TEXT,
    LINE_EOF,
    LINE_INTERRUPT, /* SIGINT or SIGTERM */
    LINE_FAILED     /* after an error message */
} line_end;

typedef struct line_reader line_reader;

line_reader *line_open(void); /* NULL: no memory */
void line_close(line_reader *r);
bool line_is_terminal(const line_reader *r);

/* Bytes of any kind without the line's end; free(*text). The prompt is shown at a terminal only. What comes after the last
 * line's end is a line too. */
line_end line_read(line_reader *r, const char *prompt, size_t limit, char **text, size_t *n);

#endif
