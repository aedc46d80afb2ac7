/* bench_text VOCABULARY.gguf [TEXT]: time to open a tokenizer, to tokenise 1 MiB of hard inputs, and to tokenise a file. */
#include "redlite.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE    ((size_t)1 << 20)
#define REPEATS 5

/* Best of REPEATS, in milliseconds. */
static double measure(const rl_tokenizer *t, const char *text, size_t n, size_t *n_ids)
{
    double best = 1e9;
    for (int r = 0; r < REPEATS; r++) {
        rl_error err;
        int32_t *ids = NULL;
        double start = rl_now();
        if (rl_tokenize(t, text, n, false, &ids, n_ids, &err) != RL_OK) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        double took = (rl_now() - start) * 1e3;
        if (took < best) best = took;
        free(ids);
    }
    return best;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *unit;
    } inputs[] = {
        {"a", "a"},
        {"spaces", " "},
        {"newlines", "\n"},
        {"one word", "supercalifragilistic"},
        {"digits", "1"},
        {"CJK", "\xE4\xB8\xAD\xE6\x96\x87"},
        {"emoji", "\xF0\x9F\x98\x80"},
        {"ill-formed UTF-8", "\xFF"},
        {"control tokens", "<|im_end|>"},
        {"English", "The quick brown fox jumps over the lazy dog. "},
        {"code", "    return x;\n"},
    };
    rl_error err;
    rl_tokenizer *t = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_text VOCABULARY.gguf [TEXT]\n");
        return 2;
    }
    double start = rl_now();
    if (rl_tokenizer_open(argv[1], &t, &err) != RL_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("open %.1f ms, %u tokens\n", (rl_now() - start) * 1e3, rl_tokenizer_n_vocab(t));
    char *text = malloc(SIZE);
    if (text == NULL) return 1;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        size_t n_ids = 0, unit = strlen(inputs[i].unit);
        for (size_t k = 0; k < SIZE; k++)
            text[k] = inputs[i].unit[k % unit];
        double ms = measure(t, text, SIZE, &n_ids);
        printf("%-18s %8zu ids %8.1f ms\n", inputs[i].name, n_ids, ms);
    }
    free(text);
    if (argc > 2) {
        size_t n = 0, n_ids = 0;
        if (rl_read_file(argv[2], SIZE_MAX / 2, &text, &n, &err) != RL_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        double ms = measure(t, text, n, &n_ids);
        printf("%s: %zu bytes, %zu ids, %.1f ms\n", argv[2], n, n_ids, ms);
        free(text);
    }
    rl_tokenizer_free(t);
    return 0;
}
