/* cli: what the commands share. Includes redlite.h and nothing else of the project. */
#ifndef RL_CLI_H
#define RL_CLI_H

#include "options.h"
#include "redlite.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    CLI_EXIT_OK = 0,
    CLI_EXIT_FAILURE = 1,
    CLI_EXIT_USAGE = 2,
    CLI_EXIT_INTERRUPTED = 130 /* as shells report SIGINT */
};

/* Commands: argv[0] is the command's name; the result is the exit status. */
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_parity(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_kernel_bench(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_cache_sim(int argc, char **argv);
int cmd_kernel_selftest(int argc, char **argv);

/* "redlite: sentence" on stderr; returns CLI_EXIT_FAILURE, or CLI_EXIT_INTERRUPTED for a call the user cancelled. */
int cli_error(const rl_error *err);

/* Fills err (may be NULL) and returns the status. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
rl_status
cli_fail(rl_error *err, rl_status status, const char *fmt, ...);

/* ---- Interrupt ------------------------------------------------------------------------------------------------------- */

/* The first SIGINT or SIGTERM sets a flag that commands look at; a second one ends the process at once. */
void cli_catch_signals(void);
bool cli_interrupted(void);
/* For a command that outlives an interrupt: so many signals are caught before the next one ends the process (1). */
void cli_set_patience(int n);
void cli_forget_interrupt(void);
bool cli_terminated(void); /* by SIGTERM: never forgotten */
/* For calls whose progress nobody watches: only asks whether to go on. */
bool cli_keep_going(void *ctx, uint64_t done, uint64_t total);

/* ---- Standard output ------------------------------------------------------------------------------------------------- */

/* Buffered until cli_out_flush. False once standard output cannot be written: a closed pipe (nobody reads any more, no error)
 * or an error, which cli_out_status tells apart. */
bool cli_out(const void *data, size_t n);
bool cli_out_text(const char *text);
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
bool cli_outf(const char *fmt, ...);
bool cli_out_flush(void);
/* Flushes; exit status so far: OK also for a closed pipe, failure after printing the reason. */
int cli_out_status(void);
/* The same for what was printed with stdio (help). */
int cli_finish_stdout(void);

/* ---- The engine ------------------------------------------------------------------------------------------------------ */

extern const cli_option cli_engine_options[]; /* -m, --backend, --isa, --threads, --precision, --kv, --context, --batch */
extern const cli_option cli_model_options[];  /* -m only */
extern const cli_option cli_output_options[]; /* --quiet */

typedef struct cli_engine_values {
    const char *model, *backend, *isa, *cache;
    uint32_t threads, context, batch;
    int precision, kv;
    float route_bias;
    bool quiet, profile, force, page_in, lock;
} cli_engine_values;
extern cli_engine_values cli_engine;

/* The model to use: -m, else $REDLITE_MODEL, else the bundled model in $REDLITE_MODEL_DIR, beside the program or where it was
 * built. A name that is no file here is looked for in the models folder, with .gguf added or as part 1 of a split model too.
 * NULL after an error message. */
const char *cli_model_path(void);
/* Where `redlite pull` puts models: $XDG_DATA_HOME/redlite/models, else ~/.local/share/redlite/models. False: neither is set,
 * or the name does not fit. */
bool cli_models_folder(char *out, size_t cap);
/* The values above as options; false after an error message. */
bool cli_engine_options_from(rl_engine_options *o, int *status);
/* Opens with the values above; false after an error message, *status then holds the exit status. */
bool cli_open_engine(rl_engine **out, int *status);
/* The tables of --profile on stderr; nothing without it. */
void cli_print_profile(const rl_engine *e);
/* A vocabulary only. */
bool cli_open_tokenizer(rl_tokenizer **out, int *status);

/* ---- Prompts --------------------------------------------------------------------------------------------------------- */

extern const cli_option cli_prompt_options[]; /* -p, -f, --tokens, --plain */
typedef struct cli_prompt_values {
    const char *text, *file;
    cli_ids tokens;
    bool plain;
} cli_prompt_values;
extern cli_prompt_values cli_prompt;

/* The text given by -p, -f or standard input (not a terminal). free(*text). False after an error message. */
bool cli_read_text(const char *command, char **text, size_t *size, int *status);
/* The ids given by --tokens or by tokenising that text. */
bool cli_read_ids(const char *command, const rl_tokenizer *t, int32_t **ids, size_t *n, int *status);

/* ---- Progress -------------------------------------------------------------------------------------------------------- */

/* A line on stderr that is overwritten, only on a terminal and not when quiet, only after half a second. */
typedef struct cli_progress {
    const char *what; /* "loading", "prompt" */
    bool rate;        /* units are tokens: show them, their speed and the time left */
    double start;
    bool shown;
} cli_progress;
bool cli_show_progress(void *progress, uint64_t done, uint64_t total); /* an rl_progress_fn; false after SIGINT */
void cli_clear_progress(cli_progress *p);

/* cmd_plan.c: lines on stderr about the expert cache after `tokens` tokens in `seconds`. */
void cli_print_cache(const rl_engine *e, uint64_t tokens, double seconds);

uint64_t cli_peak_memory(void); /* bytes, of this process */

#endif
