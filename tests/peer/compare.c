/* tests/peer/compare: two files of logits, float32 [positions][vocabulary], judged by stated bounds.
 *
 *   compare [BOUNDS] VOCABULARY POSITIONS JUDGE TESTED
 *
 * Bounds: --max-abs X, --max-kl X (worst position), --mean-kl X, --argmax N (at most N positions differ, default 0), --top-k X
 * (at least this share of each other's ten likeliest, on average). A file that is empty, short, long, not finite or the same
 * number throughout is refused: a comparison of nothing must not pass. One line of figures; exit status 1 beyond a bound, 2 for
 * a file that is refused. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOP_K 10

static struct {
    double max_abs, max_kl, mean_kl, argmax, top_k;
} bound = {.max_abs = HUGE_VAL, .max_kl = HUGE_VAL, .mean_kl = HUGE_VAL};

static void refuse(const char *what, const char *name)
{
    fprintf(stderr, "compare: %s: %s\n", name, what);
    exit(2);
}

static double number(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (*end || end == text || !(v >= 0)) refuse("not a number", text);
    return v;
}

static FILE *open_dump(const char *path, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f) refuse("cannot be opened", path);
    if (fseek(f, 0, SEEK_END) != 0) refuse("cannot be read", path);
    long size = ftell(f);
    if (size == 0) refuse("is empty", path);
    if (size < 0 || (size_t)size < bytes) refuse("is shorter than the positions asked for", path);
    if ((size_t)size > bytes) refuse("is longer than the positions asked for", path);
    rewind(f);
    return f;
}

static void read_row(FILE *f, float *row, size_t n, const char *path)
{
    if (fread(row, sizeof *row, n, f) != n) refuse("cannot be read", path);
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(row[i])) refuse("holds a number that is not finite", path);
        same = same && row[i] == row[0];
    }
    if (same) refuse("holds a row of equal numbers", path);
}

static double log_sum(const float *x, size_t n)
{
    double top = (double)x[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        if ((double)x[i] > top) top = (double)x[i];
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* Indices of the TOP_K largest, in order. */
static void likeliest(const float *x, size_t n, size_t out[TOP_K])
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = count;
        while (at > 0 && x[i] > x[out[at - 1]])
            at--;
        if (at == TOP_K) continue;
        if (count < TOP_K) count++;
        memmove(out + at + 1, out + at, (count - at - 1) * sizeof *out);
        out[at] = i;
    }
}

int main(int argc, char **argv)
{
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        double v = number(argv[at + 1]);
        if (strcmp(argv[at], "--max-abs") == 0)
            bound.max_abs = v;
        else if (strcmp(argv[at], "--max-kl") == 0)
            bound.max_kl = v;
        else if (strcmp(argv[at], "--mean-kl") == 0)
            bound.mean_kl = v;
        else if (strcmp(argv[at], "--argmax") == 0)
            bound.argmax = v;
        else if (strcmp(argv[at], "--top-k") == 0)
            bound.top_k = v;
        else
            refuse("unknown bound", argv[at]);
    }
    if (argc - at != 4) refuse("compare [BOUNDS] VOCABULARY POSITIONS JUDGE TESTED", "usage");
    size_t vocab = (size_t)number(argv[at]), positions = (size_t)number(argv[at + 1]);
    const char *name_a = argv[at + 2], *name_b = argv[at + 3];
    if (vocab < TOP_K || vocab > 1u << 24 || positions == 0 || positions > 1u << 20) refuse("not a sensible shape", "usage");
    FILE *fa = open_dump(name_a, positions * vocab * sizeof(float)), *fb = open_dump(name_b, positions * vocab * sizeof(float));
    float *a = malloc(vocab * sizeof *a), *b = malloc(vocab * sizeof *b);
    if (!a || !b) refuse("out of memory", name_a);

    double max_abs = 0, max_kl = 0, sum_kl = 0, shared = 0;
    size_t differ = 0, worst = 0;
    for (size_t p = 0; p < positions; p++) {
        read_row(fa, a, vocab, name_a);
        read_row(fb, b, vocab, name_b);
        double la = log_sum(a, vocab), lb = log_sum(b, vocab), kl = 0;
        for (size_t i = 0; i < vocab; i++) {
            double d = fabs((double)a[i] - (double)b[i]);
            if (d > max_abs) max_abs = d, worst = p;
            kl += exp((double)a[i] - la) * (((double)a[i] - la) - ((double)b[i] - lb));
        }
        if (kl < 0) kl = 0; /* rounding of equal rows */
        if (kl > max_kl) max_kl = kl;
        sum_kl += kl;
        size_t ka[TOP_K], kb[TOP_K];
        likeliest(a, vocab, ka);
        likeliest(b, vocab, kb);
        differ += ka[0] != kb[0];
        for (size_t i = 0; i < TOP_K; i++)
            for (size_t j = 0; j < TOP_K; j++)
                shared += ka[i] == kb[j];
    }
    double mean_kl = sum_kl / (double)positions, top_k = shared / (double)(positions * TOP_K);
    bool ok = max_abs <= bound.max_abs && max_kl <= bound.max_kl && mean_kl <= bound.mean_kl &&
              (double)differ <= bound.argmax && top_k >= bound.top_k;
    printf("max-abs %.3e (position %zu), KL worst %.3e mean %.3e, argmax %zu/%zu, top-%d %.4f\n", max_abs, worst, max_kl,
           mean_kl, positions - differ, positions, TOP_K, top_k);
    free(a);
    free(b);
    fclose(fa);
    fclose(fb);
    return ok ? 0 : 1;
}
