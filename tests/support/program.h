/* tests/support/program: runs the redlite program through pipes or at a pseudo-terminal. */
#ifndef RL_TEST_PROGRAM_H
#define RL_TEST_PROGRAM_H

#include <stddef.h>
#include <sys/types.h>

typedef struct program_result {
    int status; /* exit status, 1000 + signal when it was killed */
    char *out, *err;
    size_t n_out;
} program_result;

/* args end with NULL. input: standard input (NULL: none). */
program_result program_run(const char *const *args, const char *input, size_t n);
void program_free(program_result *r);
#define PROGRAM_RUN(input, ...) program_run((const char *const[]){__VA_ARGS__, NULL}, input, sizeof(input) - 1)

/* The program at a terminal of 80 columns, standard error included. */
typedef struct program_pty {
    pid_t pid;
    int fd;
    char *seen; /* everything so far, NUL-terminated */
    size_t n, from;
} program_pty;
void program_pty_start(program_pty *p, const char *const *args);
void program_pty_type(program_pty *p, const char *keys);
/* Reads until `text` appears after what was awaited before; fails the test after 30 s. */
void program_pty_await(program_pty *p, const char *text);
/* Reads to the end; the exit status. */
int program_pty_end(program_pty *p);
#define PROGRAM_PTY_START(p, ...) program_pty_start(p, (const char *const[]){__VA_ARGS__, NULL})

#endif
