/* tests/support: see support.h. */
#include "support/support.h"

#include "base/file.h"

#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Data --------------------------------------------------------------------------------------------------------------- */

const char *rl_test_join(char out[PATH_MAX], const char *dir, const char *name)
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX) fail_msg("path too long: %s/%s", dir, name);
    return out;
}

const char *rl_test_data(char out[PATH_MAX], const char *name)
{
    return rl_test_join(out, REDLITE_TEST_DATA, name);
}

const char *rl_test_shared(char out[PATH_MAX], const char *name)
{
    const char *dir = getenv("REDLITE_SHARED");
    rl_test_join(out, dir && *dir ? dir : REDLITE_SOURCE_DIR "/../shared", name);
    return access(out, R_OK) == 0 ? out : NULL;
}

char *rl_test_read(const char *path, size_t *size)
{
    rl_error err = {RL_OK, ""};
    char *data = NULL;
    size_t n = 0;
    if (rl_read_file(path, (size_t)1 << 30, &data, &n, &err) != RL_OK) fail_msg("%s", err.text);
    if (size) *size = n;
    return data;
}

void rl_test_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f) {
        fail_msg("cannot create %s", path);
        return;
    }
    bool ok = size == 0 || fwrite(data, 1, size, f) == size;
    if (fclose(f) != 0 || !ok) fail_msg("cannot write %s", path);
}

void rl_test_tmpdir(char out[PATH_MAX])
{
    const char *base = getenv("TMPDIR");
    rl_test_join(out, base && *base ? base : "/tmp", "redlite-test-XXXXXX");
    if (!mkdtemp(out)) fail_msg("cannot create a directory like %s", out);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st, (void)kind, (void)walk;
    return remove(path);
}

void rl_test_rmdir(const char *path)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0) fail_msg("cannot remove %s", path);
}

/* ---- Random numbers ------------------------------------------------------------------------------------------------------ */

rl_rng rl_rng_seed(uint64_t seed)
{
    return (rl_rng){seed};
}

/* SplitMix64: one word of state, every seed is good. */
uint64_t rl_rng_u64(rl_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t rl_rng_below(rl_rng *rng, uint32_t n)
{
    return (uint32_t)((rl_rng_u64(rng) >> 32) * n >> 32);
}

float rl_rng_uniform(rl_rng *rng)
{
    return (float)(rl_rng_u64(rng) >> 40) * 0x1p-23f - 1.0f;
}

/* Twelve uniform numbers: near enough to normal, and free of libm, whose last bits differ between systems. */
float rl_rng_normal(rl_rng *rng)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(rl_rng_u64(rng) >> 11) * 0x1p-53;
    return (float)(sum - 6.0);
}

void rl_rng_fill_uniform(rl_rng *rng, float *out, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        out[i] = scale * rl_rng_uniform(rng);
}

void rl_rng_fill_normal(rl_rng *rng, float *out, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        out[i] = scale * rl_rng_normal(rng);
}

void rl_rng_fill_bytes(rl_rng *rng, void *out, size_t n)
{
    uint8_t *p = out;
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(rl_rng_u64(rng) >> 56);
}

/* ---- Comparisons --------------------------------------------------------------------------------------------------------- */

double rl_relative_rms(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        double d = (double)a[i] - (double)b[i];
        diff += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (n == 0) return 0;
    return sqrt(norm > 0 ? diff / norm : diff / (double)n);
}

double rl_max_abs_diff(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    }
    return most;
}

void rl_assert_close_at(const float *a, const float *b, size_t n, double atol, double rtol, const char *file, int line)
{
    size_t worst = n, bad = 0;
    double excess = 0;
    for (size_t i = 0; i < n; i++) {
        if (a[i] == b[i]) continue; /* also equal infinities */
        double over = fabs((double)a[i] - (double)b[i]) - (atol + rtol * fabs((double)b[i]));
        if (over <= 0) continue;
        bad++;
        if (worst == n || over > excess || isnan(over)) {
            worst = i;
            excess = over;
        }
    }
    if (bad == 0) return;
    print_error("%zu of %zu numbers differ too much; worst at [%zu]: %.9g, expected %.9g (atol %g, rtol %g)\n", bad, n, worst,
                (double)a[worst], (double)b[worst], atol, rtol);
    _fail(file, line);
}

void rl_assert_same_bits_at(const float *a, const float *b, size_t n, const char *file, int line)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) == 0) continue;
        print_error("bits differ at [%zu] of %zu: %a, expected %a\n", i, n, (double)a[i], (double)b[i]);
        _fail(file, line);
    }
}

void rl_assert_ok_at(rl_status status, const rl_error *err, const char *expression, const char *file, int line)
{
    if (status == RL_OK) return;
    print_error("%s failed (%s): %s\n", expression, rl_status_name(status), err ? err->text : "");
    _fail(file, line);
}

void rl_assert_fails_at(rl_status status, rl_status expected, const rl_error *err, const char *part, const char *file, int line)
{
    if (status == expected && err->status == expected && strstr(err->text, part)) return;
    print_error("status %s, expected %s; text \"%s\", expected it to contain \"%s\"\n", rl_status_name(status),
                rl_status_name(expected), err->text, part);
    _fail(file, line);
}
