/* tests/peer/peer: runs a prebuilt llama.cpp, for comparison with Red Lite. It links nothing of Red Lite, so that what it
 * prints cannot depend on what is being tested.
 *
 *   peer [OPTIONS] LIBRARIES MODEL COMMAND ARGUMENTS...
 *
 *     version                       release of the library
 *     logits OUT IDS                float32 [positions][vocabulary]; --last N: of the last N positions; --steps: token by token
 *     greedy N IDS                  N likeliest continuations, on one line
 *     perplexity IDS CHUNK CHUNKS   as llama-perplexity defines it: "perplexity nats tokens"
 *     tokenize RECORDS              ids of each record, once as plain text and once with control tokens, one line each
 *     quantize OUT TYPE             rewrites the model; TYPE is F32, BF16, Q8_0, Q4_K_M, ...
 *     bench PROMPT N REPETITIONS    tokens a second of prefill and decode, a line for each repetition
 *
 * LIBRARIES is the folder with libllama and its companions, IDS a file with ids in decimal. Options: --threads N, --batch N
 * (tokens of a call), --exact (float32 cache, no flash attention, weights as they lie in the file: the library at its most
 * precise), --last N, --steps. */
#include "llama_abi.h"

#include <ctype.h>
#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DECLARE(name, result, arguments) static result(*name) arguments;
LLAMA_ABI_FUNCTIONS(DECLARE)

static struct {
    int threads, batch, last;
    bool exact, steps;
} opt = {.threads = 1, .batch = 512};

typedef struct id_list {
    int32_t *id;
    int n;
} id_list;

static void die(const char *what, const char *name)
{
    fprintf(stderr, "peer: %s: %s\n", what, name);
    exit(1);
}

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) die("out of memory", "allocation");
    return p;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The library ------------------------------------------------------------------------------------------------------ */

static void *open_library(const char *folder, const char *pattern)
{
    char path[4096];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s", folder, pattern);
    if (glob(path, 0, NULL, &found) != 0) die("not found", path);
    void *handle = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL);
    if (!handle) die("cannot be loaded", dlerror());
    globfree(&found);
    return handle;
}

/* POSIX promises that a function's address fits a void*, C does not: hence memcpy. */
static void bind(void *handle, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(handle, name);
    if (!symbol) die("no such function in the library", name);
    memcpy(function, &symbol, size);
}

static void log_errors(int level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == 4) fputs(text, stderr);
}

static void check_layout(void)
{
    if (!strstr(llama_version(), LLAMA_ABI_VERSION)) die("declared for release " LLAMA_ABI_VERSION ", found", llama_version());
    llama_abi_model_params m = llama_model_default_params();
    llama_abi_context_params c = llama_context_default_params();
    llama_abi_quantize_params q = llama_model_quantize_default_params();
    if (!m.extra_buffers || m.vocab_only) die("layout differs from the declared one", "model parameters");
    if (c.n_ctx != 512 || c.n_batch != 2048 || c.n_ubatch != 512 || c.n_seq_max != 1 || c.key_type != 1 || c.value_type != 1 ||
        c.flash_attention != -1 || c.samplers)
        die("layout differs from the declared one", "context parameters");
    if (q.importance || q.pure || !q.quantize_output) die("layout differs from the declared one", "quantisation parameters");
}

static void open_libraries(const char *folder)
{
    open_library(folder, "libggml-base.so*");
    void *ggml = open_library(folder, "libggml.*so*");
    void *llama = open_library(folder, "libllama.*so*");
#define BIND(name, result, arguments) bind(llama, #name, (void *)&name, sizeof name);
    LLAMA_ABI_FUNCTIONS(BIND)
    void (*load_backends)(const char *) = NULL;
    bind(ggml, "ggml_backend_load_all_from_path", (void *)&load_backends, sizeof load_backends);
    check_layout();
    llama_log_set(log_errors, NULL);
    llama_backend_init();
    load_backends(folder);
}

static void *open_model(const char *path, bool vocab_only)
{
    llama_abi_model_params p = llama_model_default_params();
    p.n_gpu_layers = 0;
    p.vocab_only = vocab_only;
    if (opt.exact) p.extra_buffers = false;
    void *model = llama_model_load_from_file(path, p);
    if (!model) die("model cannot be loaded", path);
    return model;
}

static void *open_context(void *model, int positions)
{
    llama_abi_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)(positions < 512 ? 512 : positions);
    p.n_batch = (uint32_t)opt.batch;
    p.n_ubatch = (uint32_t)opt.batch;
    p.n_threads = p.n_threads_batch = opt.threads;
    p.no_perf = true;
    if (opt.exact) {
        p.key_type = p.value_type = 0;
        p.flash_attention = 0;
    }
    void *context = llama_init_from_model(model, p);
    if (!context) die("no context", "out of memory?");
    return context;
}

/* Reads ids[0..n) at positions from..; logits are wanted from position `want` on. */
static void decode(void *context, int32_t *ids, int from, int n, int want)
{
    int32_t zero = 0;
    llama_abi_batch b = {.n_tokens = n,
                         .token = ids,
                         .position = allocate((size_t)n, sizeof *b.position),
                         .n_sequences = allocate((size_t)n, sizeof *b.n_sequences),
                         .sequences = allocate((size_t)n, sizeof *b.sequences),
                         .want_logits = allocate((size_t)n, sizeof *b.want_logits)};
    for (int i = 0; i < n; i++) {
        b.position[i] = from + i;
        b.n_sequences[i] = 1;
        b.sequences[i] = &zero;
        b.want_logits[i] = from + i >= want;
    }
    if (llama_decode(context, b) != 0) die("llama_decode failed", "decode");
    llama_synchronize(context);
    free(b.position);
    free(b.n_sequences);
    free(b.sequences);
    free(b.want_logits);
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* ---- Files ------------------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) die("cannot be read", path);
    long n = ftell(f);
    if (n < 0) die("cannot be read", path);
    rewind(f);
    char *data = allocate((size_t)n + 1, 1);
    if (fread(data, 1, (size_t)n, f) != (size_t)n) die("cannot be read", path);
    fclose(f);
    *size = (size_t)n;
    return data;
}

static id_list read_ids(const char *path)
{
    size_t size;
    char *text = read_file(path, &size);
    id_list list = {.id = allocate(size / 2 + 1, sizeof *list.id)};
    for (char *p = text; *p;) {
        if (isspace((unsigned char)*p) || *p == ',') {
            p++;
            continue;
        }
        char *end;
        list.id[list.n++] = (int32_t)strtol(p, &end, 10);
        if (end == p) die("holds something that is no id", path);
        p = end;
    }
    free(text);
    if (list.n == 0) die("holds no ids", path);
    return list;
}

/* ---- Commands ---------------------------------------------------------------------------------------------------------- */

static void write_logits(void *model, const char *out, id_list ids)
{
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), want = opt.last ? ids.n - opt.last : 0;
    void *context = open_context(model, ids.n);
    FILE *f = fopen(out, "wb");
    if (!f) die("cannot be written", out);
    for (int from = 0, n; from < ids.n; from += n) {
        n = opt.steps ? 1 : opt.batch;
        if (n > ids.n - from) n = ids.n - from;
        decode(context, ids.id + from, from, n, want);
        for (int i = 0; i < n; i++) {
            if (from + i < want) continue;
            if (fwrite(llama_get_logits_ith(context, i), sizeof(float), (size_t)vocab, f) != (size_t)vocab)
                die("cannot be written", out);
        }
    }
    if (fclose(f) != 0) die("cannot be written", out);
    llama_free(context);
}

static void print_greedy(void *model, int n, id_list ids)
{
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    void *context = open_context(model, ids.n + n);
    for (int from = 0; from < ids.n; from += opt.batch)
        decode(context, ids.id + from, from, ids.n - from < opt.batch ? ids.n - from : opt.batch, ids.n - 1);
    int32_t id = argmax(llama_get_logits_ith(context, -1), vocab);
    for (int i = 0; i < n; i++) {
        printf(i ? " %d" : "%d", id);
        if (i + 1 == n) break;
        decode(context, &id, ids.n + i, 1, 0);
        id = argmax(llama_get_logits_ith(context, 0), vocab);
    }
    printf("\n");
    llama_free(context);
}

static double nats(const float *logits, int vocab, int32_t id)
{
    double top = (double)logits[argmax(logits, vocab)], sum = 0;
    for (int i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[id];
}

/* Each chunk is read from an empty context; the tokens of its second half are scored, the first of them unseen. */
static void print_perplexity(void *model, id_list ids, int chunk, int chunks)
{
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), scored = 0;
    if (chunk > opt.batch) opt.batch = chunk;
    void *context = open_context(model, chunk);
    double sum = 0;
    for (int c = 0; (c + 1) * chunk <= ids.n && (chunks == 0 || c < chunks); c++) {
        int32_t *id = ids.id + (size_t)c * (size_t)chunk;
        llama_memory_clear(llama_get_memory(context), true);
        decode(context, id, 0, chunk, chunk / 2);
        for (int i = chunk / 2; i + 1 < chunk; i++, scored++)
            sum += nats(llama_get_logits_ith(context, i), vocab, id[i + 1]);
    }
    if (scored == 0) die("text is shorter than a chunk", "perplexity");
    printf("%.6f %.8f %d\n", exp(sum / scored), sum / scored, scored);
    llama_free(context);
}

/* Records: length in 4 bytes, little-endian, then the bytes. */
static void print_tokens(void *model, const char *path)
{
    const void *vocab = llama_model_get_vocab(model);
    size_t size, at = 0;
    char *data = read_file(path, &size);
    while (at + 4 <= size) {
        uint32_t n;
        memcpy(&n, data + at, 4);
        at += 4;
        if (n > size - at || n > INT32_MAX / 4) die("is cut inside a record", path);
        int32_t cap = 3 * (int32_t)n + 8; /* a byte that is no UTF-8 becomes U+FFFD, at most three ids */
        int32_t *ids = allocate((size_t)cap, sizeof *ids);
        for (int special = 0; special < 2; special++) {
            int count = llama_tokenize(vocab, data + at, (int32_t)n, ids, cap, false, special);
            if (count < 0) die("more ids than expected in", path);
            for (int i = 0; i < count; i++)
                printf(i ? " %d" : "%d", ids[i]);
            printf("\n");
        }
        free(ids);
        at += n;
    }
    free(data);
}

static int file_type(const char *name)
{
    static const struct {
        const char *name;
        int type;
    } known[] = {{"F32", 0},     {"F16", 1},   {"Q4_0", 2},    {"Q8_0", 7},   {"Q2_K", 10},   {"Q3_K_M", 12}, {"Q4_K_M", 15},
                 {"Q5_K_M", 17}, {"Q6_K", 18}, {"IQ4_NL", 25}, {"IQ3_S", 26}, {"IQ4_XS", 30}, {"BF16", 32}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].type;
    die("unknown type", name);
    return 0;
}

static void quantize(const char *model, const char *out, const char *type)
{
    llama_abi_quantize_params p = llama_model_quantize_default_params();
    p.n_threads = opt.threads;
    p.file_type = file_type(type);
    p.requantize = true;
    if (llama_model_quantize(model, out, &p) != 0) die("cannot be quantised", model);
}

static void bench(void *model, int prompt, int n, int repetitions)
{
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    void *context = open_context(model, prompt + n);
    int32_t *ids = allocate((size_t)(prompt > n ? prompt : n), sizeof *ids);
    uint64_t state = 1;
    for (int i = 0; i < prompt || i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)vocab);
    }
    for (int r = -1; r < repetitions; r++) { /* the first run warms up */
        llama_memory_clear(llama_get_memory(context), true);
        double start = seconds();
        for (int from = 0; from < prompt; from += opt.batch)
            decode(context, ids + from, from, prompt - from < opt.batch ? prompt - from : opt.batch, prompt - 1);
        double middle = seconds();
        for (int i = 0; i < n; i++)
            decode(context, ids + i, prompt + i, 1, 0);
        double end = seconds();
        if (r >= 0) printf("%.3f %.3f\n", prompt ? prompt / (middle - start) : 0, n ? n / (end - middle) : 0);
    }
    free(ids);
    llama_free(context);
}

/* ---- Command line ------------------------------------------------------------------------------------------------------ */

static int number(const char *text)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < 0 || v > 1 << 24) die("not a number in range", text);
    return (int)v;
}

static int options(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--exact") == 0)
            opt.exact = true;
        else if (strcmp(argv[i], "--steps") == 0)
            opt.steps = true;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            opt.threads = number(argv[++i]);
        else if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc)
            opt.batch = number(argv[++i]);
        else if (strcmp(argv[i], "--last") == 0 && i + 1 < argc)
            opt.last = number(argv[++i]);
        else
            die("unknown option", argv[i]);
    }
    return i;
}

int main(int argc, char **argv)
{
    int at = options(argc, argv), rest = argc - at - 3;
    if (rest < 0) die("usage", "peer [OPTIONS] LIBRARIES MODEL COMMAND ARGUMENTS...");
    const char *path = argv[at + 1], *command = argv[at + 2];
    char **arg = argv + at + 3;
    open_libraries(argv[at]);
    if (strcmp(command, "version") == 0) {
        printf("%s\n", llama_version());
        return 0;
    }
    if (strcmp(command, "quantize") == 0 && rest == 2) {
        quantize(path, arg[0], arg[1]);
        return 0;
    }
    void *model = open_model(path, strcmp(command, "tokenize") == 0);
    if (strcmp(command, "logits") == 0 && rest == 2)
        write_logits(model, arg[0], read_ids(arg[1]));
    else if (strcmp(command, "greedy") == 0 && rest == 2)
        print_greedy(model, number(arg[0]), read_ids(arg[1]));
    else if (strcmp(command, "perplexity") == 0 && rest == 3)
        print_perplexity(model, read_ids(arg[0]), number(arg[1]), number(arg[2]));
    else if (strcmp(command, "tokenize") == 0 && rest == 1)
        print_tokens(model, arg[0]);
    else if (strcmp(command, "bench") == 0 && rest == 3)
        bench(model, number(arg[0]), number(arg[1]), number(arg[2]));
    else
        die("unknown command or wrong number of arguments", command);
    llama_model_free(model);
    return 0;
}
