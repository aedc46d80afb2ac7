/* tests/peer/records: Red Lite's side of the tokenizer and dequantisation comparisons.
 *
 *   records make SEED N OUT         N random texts (records: length in 4 bytes, little-endian, then the bytes)
 *   records tokenize MODEL RECORDS  ids of each record, once as plain text and once with control tokens, one line each
 *   records dequantized MODEL F32   every tensor of MODEL, decoded, against the same tensor of a file that holds float32:
 *                                   the same bits; prints how many tensors and weights of which types were compared */
#include "gguf/gguf.h"
#include "quant/quant.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

static rl_error err;

static int complain(const char *what)
{
    fprintf(stderr, "records: %s\n", what);
    return 1;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------------- */

/* What splitting rules stumble over: contractions, blanks of all kinds, marks, digits, control tokens whole and in parts,
 * and ill-formed UTF-8 (no sequence above U+10FFFF, on which the reference ends). */
static const char *const fragments[] = {"the",
                                        " king",
                                        " and",
                                        "'s",
                                        "'T",
                                        "'re",
                                        "'VE",
                                        "'ll",
                                        "'",
                                        "\xe2\x80\x99s",
                                        " ",
                                        "  ",
                                        "   ",
                                        "\t",
                                        "\n",
                                        "\r\n",
                                        "\n\n",
                                        " \n ",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "\xe2\x80\x89",
                                        "\xc2\x85",
                                        "1",
                                        "42",
                                        "2026",
                                        "\xc2\xbd",
                                        "\xd9\xa3",
                                        "\xe2\x85\xa7",
                                        ".",
                                        "...",
                                        "!?",
                                        " --",
                                        "\xe2\x80\x94",
                                        "(",
                                        ")",
                                        "{}",
                                        "<|im_start|>",
                                        "<|im_end|>",
                                        "<|endoftext|>",
                                        "<|im_",
                                        "end|>",
                                        "<tool_call>",
                                        "</think>",
                                        "<think>",
                                        "\xc3\xa9",
                                        "e\xcc\x81",
                                        "\xc3\x84",
                                        "\xce\xb1\xce\xb2",
                                        "\xd0\x9f\xd1\x80",
                                        "\xe4\xbd\xa0\xe5\xa5\xbd",
                                        "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa5\x8d",
                                        "\xea\xb0\x80",
                                        "\xf0\x9f\x98\x80",
                                        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
                                        "\xef\xbb\xbf",
                                        "\xe2\x80\x8b",
                                        "\xff",
                                        "\xc3",
                                        "\xe2\x82",
                                        "\x80",
                                        "\xc0\x80",
                                        "\xed\xa0\x80",
                                        "\x01",
                                        "\x1f",
                                        "\x7f",
                                        "aaaaaaaa",
                                        "A",
                                        "Z",
                                        "_",
                                        "x=1;",
                                        "https://",
                                        "\\n"};

static size_t random_code_point(rl_rng *rng, char *out)
{
    static const uint32_t limit[] = {0x80, 0x300, 0x3000, 0x10000, 0x110000};
    uint32_t c = rl_rng_below(rng, limit[rl_rng_below(rng, 5)]);
    if (c < 0x80) return out[0] = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf0 << (4 - n)) | c);
    return n;
}

static int make(uint64_t seed, uint32_t n, const char *path)
{
    rl_rng rng = rl_rng_seed(seed);
    FILE *f = fopen(path, "wb");
    if (!f) return complain("output cannot be written");
    for (uint32_t r = 0; r < n; r++) {
        char text[4096];
        uint32_t size = 0, pieces = rl_rng_below(&rng, 40);
        for (uint32_t i = 0; i < pieces && size < sizeof text - 64; i++) {
            if (rl_rng_below(&rng, 4) == 0) {
                size += (uint32_t)random_code_point(&rng, text + size);
            } else {
                const char *piece = fragments[rl_rng_below(&rng, sizeof fragments / sizeof *fragments)];
                memcpy(text + size, piece, strlen(piece));
                size += (uint32_t)strlen(piece);
            }
        }
        if (fwrite(&size, 4, 1, f) != 1 || fwrite(text, 1, size, f) != size) return complain("output cannot be written");
    }
    return fclose(f) == 0 ? 0 : complain("output cannot be written");
}

static int tokenize(const char *model, const char *path)
{
    rl_tokenizer *t;
    char *data;
    size_t size, at = 0;
    if (rl_tokenizer_open(model, &t, &err) || rl_read_file(path, SIZE_MAX / 2, &data, &size, &err)) return complain(err.text);
    while (at + 4 <= size) {
        uint32_t n;
        memcpy(&n, data + at, 4);
        at += 4;
        if (n > size - at) return complain("records are cut");
        for (int special = 0; special < 2; special++) {
            int32_t *ids;
            size_t count;
            if (rl_tokenize(t, data + at, n, special, &ids, &count, &err)) return complain(err.text);
            for (size_t i = 0; i < count; i++)
                printf(i ? " %d" : "%d", ids[i]);
            printf("\n");
            free(ids);
        }
        at += n;
    }
    free(data);
    rl_tokenizer_free(t);
    return 0;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------------- */

static int compare_tensor(const rl_gguf_tensor *t, const rl_gguf *judge, uint64_t *weights)
{
    const rl_gguf_tensor *j = rl_gguf_find_tensor(judge, t->name);
    const rl_quant_traits *traits = rl_quant_get(t->type);
    const rl_type_info *info = rl_type_get(t->type);
    if (!j || !traits) return fprintf(stderr, "records: %s: no counterpart, or its type holds no weights\n", t->name), 1;
    uint64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
    if (j->type != RL_F32 || j->ne[0] != t->ne[0] || j->ne[1] * j->ne[2] * j->ne[3] != rows)
        return fprintf(stderr, "records: %s: other type or shape in the judge's file\n", t->name), 1;
    float *row = malloc(t->ne[0] * sizeof *row);
    if (!row) return complain("out of memory");
    uint64_t in = rl_type_row_bytes(t->type, t->ne[0]), out = t->ne[0] * sizeof *row;
    int status = 0;
    for (uint64_t r = 0; r < rows && !status; r++) {
        traits->decode(t->data + r * in, row, t->ne[0] / info->block_weights);
        if (memcmp(row, j->data + r * out, out) != 0)
            status = fprintf(stderr, "records: %s (%s): row %llu differs\n", t->name, info->name, (unsigned long long)r) > 0;
    }
    free(row);
    *weights += rows * t->ne[0];
    return status;
}

static int dequantized(const char *model, const char *path)
{
    rl_gguf *m, *judge;
    if (rl_gguf_open(model, &m, &err) || rl_gguf_open(path, &judge, &err)) return complain(err.text);
    uint32_t n = rl_gguf_n_tensors(m), of_type[RL_TYPE_END] = {0};
    uint64_t weights = 0;
    if (n == 0) return complain("the model has no tensors");
    for (uint32_t i = 0; i < n; i++) {
        const rl_gguf_tensor *t = rl_gguf_tensor_at(m, i);
        if (compare_tensor(t, judge, &weights)) return 1;
        of_type[t->type]++;
    }
    printf("%u tensors, %llu weights:", n, (unsigned long long)weights);
    for (uint32_t i = 0; i < RL_TYPE_END; i++)
        if (of_type[i]) printf(" %s %u", rl_type_get(i)->name, of_type[i]);
    printf("\n");
    rl_gguf_close(m);
    rl_gguf_close(judge);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "make") == 0)
        return make(strtoull(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10), argv[4]);
    if (argc == 4 && strcmp(argv[1], "tokenize") == 0) return tokenize(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "dequantized") == 0) return dequantized(argv[2], argv[3]);
    return complain("usage: records make SEED N OUT | tokenize MODEL RECORDS | dequantized MODEL F32");
}
