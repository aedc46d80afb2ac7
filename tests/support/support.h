/* tests/support: what most test programs need. Include it instead of cmocka's headers. */
#ifndef RL_TEST_SUPPORT_H
#define RL_TEST_SUPPORT_H

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/error.h"

/* ---- Data --------------------------------------------------------------------------------------------------------------- */

/* Path of a file of tests/data. The caller's buffer of PATH_MAX is filled and returned. */
const char *rl_test_data(char out[PATH_MAX], const char *name);

/* Path of a file outside the repository: $REDLITE_SHARED/name (default ../shared beside the repository), or NULL when it is not
 * there. */
const char *rl_test_shared(char out[PATH_MAX], const char *name);

/* Fills `path` (char[PATH_MAX]) or skips the test, saying which file it needs. */
#define RL_REQUIRE_SHARED(path, name)                                                                                          \
    do {                                                                                                                       \
        if (!rl_test_shared(path, name)) {                                                                                     \
            print_message("[ SKIP     ] %s: needs %s (set REDLITE_SHARED)\n", __func__, name);                                 \
            skip();                                                                                                            \
        }                                                                                                                      \
    } while (0)

/* The whole file, NUL-terminated; fails the test when it cannot be read. free() it. size may be NULL. */
char *rl_test_read(const char *path, size_t *size);

/* Writes a whole file; fails the test when it cannot. */
void rl_test_write(const char *path, const void *data, size_t size);

/* A fresh directory under $TMPDIR, and its removal with everything in it. */
void rl_test_tmpdir(char out[PATH_MAX]);
void rl_test_rmdir(const char *path);

/* "dir/name" in out. */
const char *rl_test_join(char out[PATH_MAX], const char *dir, const char *name);

/* ---- Random numbers: the same on every machine and run ------------------------------------------------------------------- */

typedef struct rl_rng {
    uint64_t state;
} rl_rng;

rl_rng rl_rng_seed(uint64_t seed);
uint64_t rl_rng_u64(rl_rng *rng);
uint32_t rl_rng_below(rl_rng *rng, uint32_t n); /* 0 <= x < n */
float rl_rng_uniform(rl_rng *rng);              /* -1 <= x < 1 */
float rl_rng_normal(rl_rng *rng);               /* mean 0, deviation 1 */
void rl_rng_fill_uniform(rl_rng *rng, float *out, size_t n, float scale);
void rl_rng_fill_normal(rl_rng *rng, float *out, size_t n, float scale);
void rl_rng_fill_bytes(rl_rng *rng, void *out, size_t n);

/* ---- Comparisons --------------------------------------------------------------------------------------------------------- */

/* Root of sum (a-b)^2 / sum b^2 (b is the judge); infinite when a number is not finite. Zero judge: root of the mean of a^2. */
double rl_relative_rms(const float *a, const float *b, size_t n);
double rl_max_abs_diff(const float *a, const float *b, size_t n);

/* Every |a - b| <= atol + rtol * |b|; the message names the worst index and both values. NaN equals nothing. */
#define rl_assert_close(a, b, n, atol, rtol) rl_assert_close_at(a, b, n, atol, rtol, __FILE__, __LINE__)
void rl_assert_close_at(const float *a, const float *b, size_t n, double atol, double rtol, const char *file, int line);

/* The same bits. */
#define rl_assert_same_bits(a, b, n) rl_assert_same_bits_at(a, b, n, __FILE__, __LINE__)
void rl_assert_same_bits_at(const float *a, const float *b, size_t n, const char *file, int line);

/* status == RL_OK, else the error's sentence is the failure's message. */
#define rl_assert_ok(status, err) rl_assert_ok_at(status, err, #status, __FILE__, __LINE__)
void rl_assert_ok_at(rl_status status, const rl_error *err, const char *expression, const char *file, int line);

/* The call failed with this status and a sentence that contains `part`. */
#define rl_assert_fails(status, expected, err, part) rl_assert_fails_at(status, expected, err, part, __FILE__, __LINE__)
void rl_assert_fails_at(rl_status status, rl_status expected, const rl_error *err, const char *part, const char *file,
                        int line);

#endif
