/* cli/options: command lines by tables.
 *
 * A command describes its options in tables; parsing, ranges, help and error sentences come from them. Values are checked as
 * written: nothing is cut, wrapped or guessed. */
#ifndef RL_CLI_OPTIONS_H
#define RL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cli_kind {
    CLI_FLAG,   /* bool: set to true */
    CLI_TEXT,   /* const char *: pointer into argv */
    CLI_INT,    /* int32_t within min..max */
    CLI_UINT,   /* uint32_t within min..max */
    CLI_FLOAT,  /* float within min..max */
    CLI_CHOICE, /* int: index into choices */
    CLI_UINTS,  /* cli_uints, comma separated, each within min..max */
    CLI_IDS,    /* cli_ids, comma or space separated */
    CLI_BIASES  /* cli_biases, ID=BIAS comma separated */
} cli_kind;

#define CLI_UINTS_MAX  64
#define CLI_BIASES_MAX 1024

typedef struct cli_uints {
    uint32_t v[CLI_UINTS_MAX];
    uint32_t n;
} cli_uints;

typedef struct cli_ids {
    int32_t *ids; /* allocated */
    size_t n;
    bool given;
} cli_ids;

typedef struct cli_biases {
    int32_t id[CLI_BIASES_MAX];
    float bias[CLI_BIASES_MAX];
    uint32_t n;
} cli_biases;

typedef struct cli_option {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* short form, 0 = none */
    cli_kind kind;
    void *value;
    double min, max;
    const char *const *choices; /* NULL-terminated */
    const char *arg;            /* name of the value in the help */
    const char *help;           /* lines separated by \n */
} cli_option;

typedef struct cli_table {
    const char *title;
    const cli_option *options;
} cli_table;

typedef struct cli_command_line {
    const char *command;     /* "generate" */
    const char *usage;       /* after the command's name */
    const char *about;       /* a paragraph or more */
    const cli_table *tables; /* title NULL ends */
    int max_positional;
    /* out */
    const char **positional; /* pointers into argv */
    int n_positional;
} cli_command_line;

/* CLI_GO_ON, or the status to exit with (help was printed: 0, an error was: 2). argv[0] is the command's name. */
#define CLI_GO_ON (-1)
int cli_parse(cli_command_line *cl, int argc, char **argv);

/* "redlite COMMAND: sentence" and a hint to the help on stderr; returns 2. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int cli_usage_error(const char *command, const char *fmt, ...);

/* Of names (NULL-terminated), the one that differs least from `given`, or NULL when none is near. */
const char *cli_nearest(const char *given, const char *const *names);

/* Ids in text, separated by commas or white space; false after an error sentence in `why`. free(*ids). */
bool cli_parse_ids(const char *text, size_t n, int32_t **ids, size_t *n_ids, char *why, size_t why_cap);

#endif
