/* cli: the program as a person meets it: output, exit statuses, and every kind of bad input. */
#include "support/support.h"
#include "support/tiny_model.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM    REDLITE_BINARY_DIR "/redlite"
#define ARGS_MAX   32
#define OUTPUT_MAX (16u << 20)

static char dir[PATH_MAX], model[PATH_MAX];

/* ---- Running the program ------------------------------------------------------------------------------------------------- */

typedef struct result {
    int status; /* exit status, 1000 + signal when it was killed */
    char *out, *err;
    size_t n_out;
} result;

typedef struct run_options {
    const char *input; /* standard input; NULL = /dev/null */
    size_t input_size;
    const char *stdout_path; /* instead of what is collected */
    int close_after;         /* close the reading end after so many bytes of output; 0 = never */
    int interrupt_after;     /* SIGINT after so many bytes of output; 0 = never */
} run_options;

static void drain(int fd, char **data, size_t *n)
{
    *data = calloc(1, OUTPUT_MAX + 1);
    assert_non_null(*data);
    *n = 0;
    for (;;) {
        ssize_t r = read(fd, *data + *n, OUTPUT_MAX - *n);
        if (r <= 0) break;
        *n += (size_t)r;
    }
    close(fd);
}

static void child(char *const *args, const run_options *o, int in, int out, int err)
{
    if (o->stdout_path) out = open(o->stdout_path, O_WRONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execv(PROGRAM, args);
    _exit(127);
}

/* Input goes through a file, so that no order of reading and writing can block; errors too. */
static int temp_file(const char *data, size_t n)
{
    char path[PATH_MAX];
    rl_test_join(path, dir, "streamXXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    while (n > 0) {
        ssize_t w = write(fd, data, n);
        assert_true(w > 0);
        data += w;
        n -= (size_t)w;
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static void read_some(int fd, char *data, size_t *n, int want)
{
    while (*n < (size_t)want) {
        ssize_t r = read(fd, data + *n, 1);
        if (r <= 0) return;
        (*n)++;
    }
}

static result run_with(const run_options *o, const char *const *words)
{
    char *args[ARGS_MAX + 2] = {(char *)PROGRAM};
    for (int i = 0; words[i]; i++) {
        assert_true(i < ARGS_MAX);
        args[i + 1] = (char *)words[i];
    }
    int in = o->input ? temp_file(o->input, o->input_size) : open("/dev/null", O_RDONLY), err = temp_file("", 0), pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    fcntl(pipe_fd[0], F_SETFD, FD_CLOEXEC);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child(args, o, in, pipe_fd[1], err);
    close(pipe_fd[1]);
    close(in);
    result r = {0};
    if (o->close_after) {
        r.out = calloc(1, 4096);
        read_some(pipe_fd[0], r.out, &r.n_out, o->close_after);
        close(pipe_fd[0]);
    } else if (o->interrupt_after) {
        r.out = calloc(1, OUTPUT_MAX + 1);
        read_some(pipe_fd[0], r.out, &r.n_out, o->interrupt_after);
        kill(pid, SIGINT);
        ssize_t n;
        while ((n = read(pipe_fd[0], r.out + r.n_out, OUTPUT_MAX - r.n_out)) > 0)
            r.n_out += (size_t)n;
        close(pipe_fd[0]);
    } else {
        drain(pipe_fd[0], &r.out, &r.n_out);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    lseek(err, 0, SEEK_SET);
    size_t n_err;
    drain(err, &r.err, &n_err);
    return r;
}

#define RUN_WITH(o, ...) run_with(o, (const char *const[]){__VA_ARGS__, NULL})
#define RUN(...)         RUN_WITH(&(run_options){0}, __VA_ARGS__)

static const run_options *input(const char *data, size_t n)
{
    static run_options o;
    o = (run_options){.input = data, .input_size = n};
    return &o;
}

static void release(result *r)
{
    free(r->out);
    free(r->err);
}

#define CHECK(r, want_status, out_part, err_part) check(&(r), want_status, out_part, err_part, __LINE__)
static void check(result *r, int status, const char *out_part, const char *err_part, int line)
{
    bool ok = r->status == status && (!out_part || strstr(r->out, out_part)) && (!err_part || strstr(r->err, err_part));
    if (!ok)
        print_error(
            "line %d: status %d (expected %d), stdout \"%.300s\" (expected \"%s\"), stderr \"%.500s\" (expected \"%s\")\n",
            line, r->status, status, r->out, out_part ? out_part : "", r->err, err_part ? err_part : "");
    assert_true(ok);
    release(r);
}

static int setup(void **state)
{
    (void)state;
    rl_test_tmpdir(dir);
    rl_test_join(model, dir, "tiny.gguf");
    tiny_params p = tiny_defaults();
    tiny_write(&p, model);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rl_test_rmdir(dir);
    return 0;
}

/* ---- The expert cache ---------------------------------------------------------------------------------------------------- */

static void test_expert_cache(void **state)
{
    (void)state;
    result r = RUN("plan", "-m", model);
    CHECK(r, 0, "experts       mapped", NULL);
    r = RUN("doctor", "-m", model, "--cache-mib", "1");
    CHECK(r, 0, "experts       bounded: a cache of", NULL);
    r = RUN("plan", "-m", model, "--cache-mib", "0");
    CHECK(r, 1, NULL, "expected auto, full, mapped or 1 to");
    r = RUN("plan", "-m", "/nowhere");
    CHECK(r, 1, NULL, "/nowhere");
    static const char *const caches[] = {"mapped", "full", "1"};
    char *first = NULL;
    for (int i = 0; i < 3; i++) {
        r = RUN("generate", "-m", model, "--tokens", "1,2,3", "-n", "8", "--temp", "0", "--cache-mib", caches[i], "--stats");
        if (i == 0)
            first = strdup(r.out);
        else
            assert_string_equal(r.out, first);
        CHECK(r, 0, NULL, i == 0 ? "experts   in place" : i == 1 ? "experts   full" : "experts   bounded");
    }
    free(first);
    char trace[PATH_MAX];
    rl_test_join(trace, dir, "trace");
    r = RUN("trace", "-m", model, "--tokens", "1,2,3", "-n", "4", "-o", trace);
    CHECK(r, 0, "7 tokens", NULL);
    r = RUN("cache-sim", trace, "--percent", "50,100");
    CHECK(r, 0, "optimal (Belady)", NULL);
    r = RUN("cache-sim", model);
    CHECK(r, 1, NULL, "is not a routing trace");
    r = RUN("trace", "-m", model, "--tokens", "1,2,3");
    CHECK(r, 2, NULL, "-o FILE");
}

/* ---- Help and options ---------------------------------------------------------------------------------------------------- */

static void test_help(void **state)
{
    (void)state;
    static const char *const commands[] = {"generate", "tokenize", "detokenize", "logits", "perplexity", "info",      "parity",
                                           "bench",    "synth",    "plan",       "doctor", "trace",      "cache-sim", NULL};
    result r = RUN("help");
    for (int i = 0; commands[i]; i++)
        assert_non_null(strstr(r.out, commands[i]));
    CHECK(r, 0, "Usage: redlite COMMAND", NULL);
    for (int i = 0; commands[i]; i++) {
        r = RUN(commands[i], "--help");
        CHECK(r, 0, "Usage: redlite ", NULL);
        r = RUN("help", commands[i]);
        CHECK(r, 0, "-h, --help", NULL);
    }
    r = RUN("help", "--help");
    CHECK(r, 0, "Usage: redlite COMMAND", NULL);
    r = RUN("--version");
    CHECK(r, 0, "Red Lite ", NULL);
    r = RUN("genrate");
    CHECK(r, 2, NULL, "unknown command \"genrate\"; did you mean generate?");
    r = RUN("zzz\n");
    CHECK(r, 2, NULL, "unknown command \"zzz\\x0a\"");
    r = run_with(&(run_options){0}, (const char *const[]){NULL});
    CHECK(r, 2, "Usage", NULL);
}

static void test_options(void **state)
{
    (void)state;
    const struct {
        const char *option, *value, *says;
    } bad[] = {
        {"--tmp", "1", "unknown option --tmp; did you mean --temp?"},
        {"--colour", "1", "unknown option --colour"},
        {"-x", "1", "unknown option -x"},
        {"--temp", "-1", "--temp: -1 is out of range; expected 0 to 100"},
        {"--temp", "warm", "--temp: \"warm\" is not a number"},
        {"--temp", "nan", "not a number"},
        {"--temp", "0x10", "not a number"},
        {"--temp", "1e999", "not a number"},
        {"--temp", "", "not a number"},
        {"-n", "-2", "-n: -2 is out of range; expected -1 to"},
        {"-n", "99999999999999999999", "out of range"},
        {"-n", "12abc", "\"12abc\" is not a whole number"},
        {"-n", "", "not a whole number"},
        {"-n", " 5", "not a whole number"},
        {"--threads", "-1", "--threads: -1 is out of range"},
        {"--threads", "100000", "out of range"},
        {"--context", "0", "--context: 0 is out of range"},
        {"--context", "99999999", "out of range"},
        {"--batch", "1000000", "out of range"},
        {"--top-p", "1.01", "out of range; expected 0 to 1"},
        {"--seed", "4294967296", "out of range"},
        {"--precision", "exactly", "\"exactly\" is not one of: exact, fast"},
        {"--kv", "q8", "not one of: f32, f16"},
        {"--tokens", "1,2,x", "\"x\" is not a whole number"},
        {"--tokens", "1,-2", "out of range"},
        {"--logit-bias", "5", "expected ID=BIAS"},
        {"--logit-bias", "5=hot", "not a number"},
        {"--stats=yes", "", "--stats takes no value"},
        {"--system", "be brief", "--system needs --chat"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        result r = RUN("generate", "-m", model, "-p", "x", bad[i].option, bad[i].value);
        CHECK(r, 2, NULL, bad[i].says);
    }
    result r = RUN("generate", "-m", model, "-p");
    CHECK(r, 2, NULL, "-p needs a value (TEXT)");
    r = RUN("generate", "-m", model, "-p", "x", "stray");
    CHECK(r, 2, NULL, "unexpected argument \"stray\"; a text is given with -p");
    r = RUN("info", "-m", model, "--json", model, "x.gguf");
    CHECK(r, 2, NULL, "unexpected argument \"x.gguf\"; a model is named with -m FILE");
    r = RUN("generate", "-m", "nothing-of-that-name", "-p", "x");
    CHECK(r, 1, NULL, "there is no model \"nothing-of-that-name\"");
    r = RUN("bench", "-m", model, "-p", "0", "-n", "0");
    CHECK(r, 2, NULL, "nothing to time");
    r = RUN("generate", "-m", model, "-p", "x", "-f", "y");
    CHECK(r, 2, NULL, "only one of -p, -f and --tokens");
    r = RUN("generate", "-m", model, "-p", "x", "--backend", "abacus");
    CHECK(r, 1, NULL, "no backend \"abacus\"; expected one of: auto");
    r = RUN("generate", "-m", model, "-p", "x", "--isa", "mmx");
    CHECK(r, 1, NULL, "mmx");
    r = RUN("logits", "-m", model, "-p", "x");
    CHECK(r, 2, NULL, "name the output with -o");
}

/* ---- Generating ------------------------------------------------------------------------------------------------------------
 */

static void test_generate(void **state)
{
    (void)state;
    result a = RUN("generate", "-m", model, "--tokens", "1,2,3", "-n", "8", "--temp", "0", "--ids", "--ignore-eog");
    assert_int_equal(a.status, 0);
    int ids[8], n = 0;
    for (char *p = a.out; n < 8 && sscanf(p, "%d", &ids[n]) == 1; n++) {
        p += strspn(p, " ");
        p += strcspn(p, " \n");
    }
    assert_int_equal(n, 8);
    assert_string_equal(a.err, ""); /* nothing but the answer unless asked */
    result b = RUN("generate", "-m", model, "--tokens=1 2 3", "-n=8", "--temp=0", "--json", "--ignore-eog", "--logprobs", "2");
    assert_int_equal(b.status, 0);
    json_t *o = json_loads(b.out, 0, NULL);
    assert_non_null(o);
    json_t *list = json_object_get(o, "ids"), *logprobs = json_object_get(o, "logprobs");
    assert_int_equal(json_array_size(list), 8);
    assert_int_equal(json_array_size(logprobs), 8);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(json_integer_value(json_array_get(list, i)), ids[i]);
    assert_string_equal(json_string_value(json_object_get(o, "finish")), "length");
    assert_true(json_is_string(json_object_get(o, "text")));
    json_decref(o);
    release(&a);
    release(&b);
    result r = RUN("generate", "-m", model, "-p", "abc", "-n", "0", "--stats");
    assert_int_equal(r.n_out, 0);
    CHECK(r, 0, NULL, "answer    0 tokens");
    r = RUN("generate", "-m", model, "--tokens", "1,2,3", "-n", "1", "--temp", "0", "--ignore-eog", "--stats");
    assert_null(strstr(r.err, "tok/s, finish")); /* no token was decoded: there is no speed */
    CHECK(r, 0, NULL, "answer    1 tokens");
    r = RUN("generate", "-m", model, "-p", "abc", "-n", "5", "--seed", "3", "--temp", "1");
    result again = RUN("generate", "-m", model, "-p", "abc", "-n", "5", "--seed", "3", "--temp", "1");
    assert_string_equal(r.out, again.out);
    release(&again);
    CHECK(r, 0, NULL, NULL);
    r = RUN("generate", "-m", model, "--chat", "--system", "Be brief.", "-p", "Hello", "-n", "3");
    CHECK(r, 0, NULL, NULL);
    r = RUN("generate", "-m", model, "--chat", "--tokens", "1");
    CHECK(r, 2, NULL, "--chat takes text");
    r = RUN_WITH(input("abc", 3), "generate", "-m", model, "-n", "2", "-q");
    CHECK(r, 0, NULL, NULL);
}

static void test_odd_prompts(void **state)
{
    (void)state;
    result r = RUN("generate", "-m", model, "-p", "");
    CHECK(r, 1, NULL, "the prompt is empty");
    r = RUN("generate", "-m", model); /* standard input is /dev/null */
    CHECK(r, 1, NULL, "the prompt is empty");
    r = RUN("generate", "-m", model, "--tokens", "");
    CHECK(r, 1, NULL, "the prompt is empty");
    r = RUN("generate", "-m", model, "--tokens", "5,400000");
    CHECK(r, 1, NULL, "token 1 is 400000, which is not in the vocabulary");
    r = RUN("generate", "-m", model, "--tokens", "2147483647", "-n", "1");
    CHECK(r, 1, NULL, "token 0 is 2147483647");
    static const char nul[] = "a\0b\xff\xfe\xc3(\xe2\x82", half[] = "\xf0\x9f\x98";
    r = RUN_WITH(input(nul, sizeof nul - 1), "generate", "-m", model, "-n", "4");
    CHECK(r, 0, NULL, NULL);
    r = RUN_WITH(input(nul, sizeof nul - 1), "tokenize", "-m", model, "--json");
    json_t *o = json_loads(r.out, JSON_ALLOW_NUL, NULL);
    assert_true(json_is_array(o));
    json_decref(o);
    CHECK(r, 0, NULL, NULL);
    r = RUN("generate", "-m", model, "-p", half, "-n", "2");
    CHECK(r, 0, NULL, NULL);
    char *large = malloc(5u << 20);
    assert_non_null(large);
    for (size_t i = 0; i < 5u << 20; i++)
        large[i] = i % 7 == 6 ? ' ' : (char)('a' + i * 31 % 26);
    r = RUN_WITH(input(large, 5u << 20), "generate", "-m", model, "-n", "1");
    free(large);
    CHECK(r, 1, NULL, "tokens but the context holds 4096; give --context");
    r = RUN("generate", "-m", model, "-f", "/nonexistent/prompt");
    CHECK(r, 1, NULL, "/nonexistent/prompt");
    r = RUN("generate", "-m", model, "-f", dir);
    CHECK(r, 1, NULL, "directory");
}

static void test_full_context(void **state)
{
    (void)state;
    result r = RUN("generate", "-m", model, "--tokens", "1,2,3,4", "-n", "-1", "--context", "16", "--ignore-eog", "--stats");
    CHECK(r, 0, NULL, "answer    12 tokens");
    r = RUN("generate", "-m", model, "--tokens", "1,2,3,4,5", "-n", "1", "--context", "4");
    CHECK(r, 1, NULL, "the prompt has 5 tokens but the context holds 4");
}

/* ---- Models that are none -------------------------------------------------------------------------------------------------
 */

static void test_bad_models(void **state)
{
    (void)state;
    char path[PATH_MAX];
    result r = RUN("info", "-m", "/nonexistent.gguf");
    CHECK(r, 1, NULL, "/nonexistent.gguf");
    r = RUN("info", dir);
    CHECK(r, 1, NULL, "directory");
    r = RUN("info", "/dev/null");
    CHECK(r, 1, NULL, "/dev/null");
    rl_test_join(path, dir, "text.gguf");
    rl_test_write(path, "This is a text and not a model, whatever its name says.", 56);
    r = RUN("info", path);
    CHECK(r, 1, NULL, "text.gguf");
    r = RUN("generate", "-m", path, "-p", "x");
    CHECK(r, 1, NULL, "text.gguf");
    rl_test_write(path, "", 0);
    r = RUN("info", path);
    CHECK(r, 1, NULL, "text.gguf");
    size_t size;
    char *data = rl_test_read(model, &size);
    for (size_t cut = 3; cut < size; cut = cut * 5 / 2) { /* in the head, the keys, the tensor list, the data */
        rl_test_write(path, data, cut);
        r = RUN("info", path);
        CHECK(r, 1, NULL, "text.gguf");
    }
    free(data);
    if (geteuid() != 0) { /* root reads everything */
        chmod(path, 0);
        r = RUN("info", path);
        CHECK(r, 1, NULL, "Permission denied");
    }
    unlink(path);
    tiny_params p = tiny_defaults();
    tiny_file *f = tiny_build(&p);
    free(tiny_key_at(f, "general.architecture")->text);
    tiny_key_at(f, "general.architecture")->text = strdup("llama");
    tiny_save(f, path);
    tiny_free(f);
    r = RUN("generate", "-m", path, "-p", "x");
    CHECK(r, 1, NULL, "llama");
}

/* ---- Output that cannot be written -----------------------------------------------------------------------------------------
 */

static void test_disk_full(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0) skip();
    run_options o = {.stdout_path = "/dev/full"};
    result r = RUN_WITH(&o, "generate", "-m", model, "--tokens", "1,2", "-n", "4", "--ids");
    CHECK(r, 1, NULL, "cannot write to standard output: No space left on device");
    r = RUN_WITH(&o, "info", model);
    CHECK(r, 1, NULL, "No space left");
    r = RUN_WITH(&o, "help", "generate");
    CHECK(r, 1, NULL, "No space left");
    r = RUN_WITH(&o, "logits", "-m", model, "--tokens", "1,2", "-o", "-");
    CHECK(r, 1, NULL, "No space left");
    r = RUN("logits", "-m", model, "--tokens", "1,2", "-o", "/dev/full/x");
    CHECK(r, 1, NULL, "/dev/full/x");
    r = RUN("logits", "-m", model, "--tokens", "1,2", "-o", dir);
    CHECK(r, 1, NULL, dir);
}

static void test_closed_pipe_ends_quietly(void **state)
{
    (void)state;
    result r = RUN_WITH(&(run_options){.close_after = 3}, "generate", "-m", model, "--tokens", "1,2", "-n", "-1", "--ids",
                        "--ignore-eog");
    assert_string_equal(r.err, "");
    CHECK(r, 0, NULL, NULL);
    r = RUN_WITH(&(run_options){.close_after = 1}, "info", "--json", model);
    assert_string_equal(r.err, "");
    CHECK(r, 0, NULL, NULL);
}

static void test_interrupt_keeps_the_partial_answer(void **state)
{
    (void)state;
    result r = RUN_WITH(&(run_options){.interrupt_after = 12}, "generate", "-m", model, "--tokens", "1,2", "-n", "-1",
                        "--context", "1000000", "--ids", "--ignore-eog", "--stats");
    assert_true(r.n_out >= 12 && r.out[r.n_out - 1] == '\n');
    CHECK(r, 130, NULL, "finish: cancelled");
}

/* ---- The other commands
 * ------------------------------------------------------------------------------------------------------ */

static void test_tokenize_round_trip(void **state)
{
    (void)state;
    static const char text[] = "One day,\n\tthe  h\xc3\xa9n said \xf0\x9f\x90\x94!";
    result r = RUN("tokenize", "-m", model, "--ids", "-p", text);
    assert_int_equal(r.status, 0);
    result back = RUN_WITH(input(r.out, r.n_out), "detokenize", "-m", model);
    assert_string_equal(back.out, text);
    CHECK(back, 0, NULL, NULL);
    release(&r);
    r = RUN("tokenize", "-m", model, "--count", "-p", "<|im_end|>");
    CHECK(r, 0, "1\n", NULL);
    r = RUN("tokenize", "-m", model, "--count", "--plain", "-p", "<|im_end|>");
    assert_true(atoi(r.out) > 1);
    CHECK(r, 0, NULL, NULL);
    r = RUN("detokenize", "-m", model, "--tokens", "1,400000");
    CHECK(r, 1, NULL, "token 1 is 400000");
    r = RUN("tokenize", "-m", model, "--tokens", "1");
    CHECK(r, 2, NULL, "unknown option --tokens");
    r = RUN("tokenize", "-m", model, "-p", "");
    assert_int_equal(r.n_out, 0);
    CHECK(r, 0, NULL, NULL);
}

static void test_logits(void **state)
{
    (void)state;
    char path[PATH_MAX], last[PATH_MAX];
    rl_test_join(path, dir, "logits.f32");
    rl_test_join(last, dir, "last.f32");
    result r = RUN("logits", "-m", model, "--tokens", "3,1,4,1,5", "-o", path);
    CHECK(r, 0, NULL, "5 positions x ");
    size_t n, n_last, n_pipe;
    char *all = rl_test_read(path, &n);
    assert_int_equal(n % (5 * 4), 0);
    r = RUN("logits", "-m", model, "--tokens", "3,1,4,1,5", "-o", last, "--last", "2", "-q");
    assert_string_equal(r.err, "");
    CHECK(r, 0, NULL, NULL);
    char *two = rl_test_read(last, &n_last);
    assert_int_equal(n_last, n / 5 * 2);
    rl_assert_close((float *)(void *)two, (float *)(void *)(all + n / 5 * 3), n_last / 4, 1e-5, 1e-5);
    r = RUN("logits", "-m", model, "--tokens", "3,1,4,1,5", "-o", "-");
    n_pipe = r.n_out;
    assert_int_equal(n_pipe, n);
    assert_memory_equal(r.out, all, n);
    CHECK(r, 0, NULL, NULL);
    r = RUN("logits", "-m", model, "--tokens", "", "-o", path);
    CHECK(r, 1, NULL, "text is empty");
    char *still = rl_test_read(path, &n); /* a failed call leaves the old file */
    assert_memory_equal(still, all, n);
    free(all);
    free(two);
    free(still);
}

static json_t *json_output(result *r)
{
    assert_int_equal(r->status, 0);
    json_t *o = json_loads(r->out, 0, NULL);
    assert_non_null(o);
    release(r);
    return o;
}

static void test_measures(void **state)
{
    (void)state;
    result r = RUN("info", "--json", model);
    json_t *o = json_output(&r);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "shape"), "layers")), 4);
    assert_int_equal(json_array_size(json_object_get(json_object_get(o, "shape"), "layer_map")), 4);
    json_decref(o);
    r = RUN("info", model);
    CHECK(r, 0, "cache for every one", NULL);
    char text[2048];
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = "the hen said no. "[i % 17];
    text[sizeof text - 1] = 0;
    r = RUN("perplexity", "-m", model, "-p", text, "--chunk", "64", "--chunks", "3", "--json", "-q");
    o = json_output(&r);
    assert_int_equal(json_integer_value(json_object_get(o, "chunks")), 3);
    assert_true(json_real_value(json_object_get(o, "perplexity")) > 1);
    json_decref(o);
    r = RUN("perplexity", "-m", model, "-p", "short");
    CHECK(r, 1, NULL, "expected at least one chunk of 512");
    r = RUN("parity", "-m", model, "--tokens", "1,2,3,4,5,6", "--backend", "ref", "--precision", "exact");
    CHECK(r, 0, "verdict            pass", NULL);
    r = RUN("parity", "-m", model, "--tokens", "1,2,3", "--backend", "ref", "--precision", "exact", "--json");
    o = json_output(&r);
    assert_true(json_is_true(json_object_get(o, "pass")));
    json_decref(o);
    r = RUN("bench", "-m", model, "-p", "32", "-n", "4", "-d", "0,8", "--parallel", "1,2", "-r", "2", "--json");
    o = json_output(&r);
    json_t *list = json_object_get(o, "results");
    assert_int_equal(json_array_size(list), 6); /* at two depths: one prompt, one and two sequences */
    for (size_t i = 0; i < 6; i++)
        assert_true(json_real_value(json_object_get(json_array_get(list, i), "median_tokens_per_second")) > 0);
    json_decref(o);
    r = RUN("bench", "-m", model, "-p", "16", "-n", "2", "-r", "1", "--profile", "--backend", "cpu");
    CHECK(r, 0, "| pp16", "decode: ");
    r = RUN("bench", "-m", model, "-p", "16", "-n", "2", "-r", "1", "--profile", "--backend", "ref");
    CHECK(r, 0, "| tg2", "backend ref has no profile");
    r = RUN("kernel-bench", "--type", "q4_k", "--tokens", "1,4", "--mib", "1", "--seconds", "0.002", "--json");
    o = json_output(&r);
    assert_int_equal(json_array_size(o), 2);
    assert_true(json_real_value(json_object_get(json_array_get(o, 1), "macs_per_second")) > 0);
    json_decref(o);
    r = RUN("kernel-bench", "--type", "q9");
    CHECK(r, 1, NULL, "no weight type \"q9\"");
    r = RUN("synth", "--plan");
    CHECK(r, 0, "tensors", NULL);
    r = RUN("synth", "--preset", "huge", "--plan");
    CHECK(r, 1, NULL, "huge");
    r = RUN("synth");
    CHECK(r, 2, NULL, "name the file to write");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_expert_cache),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_odd_prompts),
        cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_closed_pipe_ends_quietly),
        cmocka_unit_test(test_interrupt_keeps_the_partial_answer),
        cmocka_unit_test(test_tokenize_round_trip),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_measures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
