/* tests/peer/compare: what it must refuse and what it must see, since every comparison with another program rests on it. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define VOCAB 16
#define ROWS  3

static char dir[PATH_MAX], judge[PATH_MAX], tested[PATH_MAX];
static float a[ROWS * VOCAB], b[ROWS * VOCAB];

static int setup(void **state)
{
    (void)state;
    rl_test_tmpdir(dir);
    rl_test_join(judge, dir, "judge");
    rl_test_join(tested, dir, "tested");
    rl_rng rng = rl_rng_seed(1);
    rl_rng_fill_normal(&rng, a, ROWS * VOCAB, 3);
    memcpy(b, a, sizeof a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rl_test_rmdir(dir);
    return 0;
}

/* Exit status of compare with these bounds over the first `bytes` of b. */
static int compare(const char *bounds, size_t bytes)
{
    char command[4 * PATH_MAX];
    rl_test_write(judge, a, sizeof a);
    rl_test_write(tested, b, bytes);
    snprintf(command, sizeof command, "'%s/peer/compare' %s %d %d '%s' '%s' >/dev/null 2>&1", REDLITE_BINARY_DIR, bounds, VOCAB,
             ROWS, judge, tested);
    int status = system(command); /* NOLINT(cert-env33-c): fixed words and our own paths */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void equal_dumps_pass(void **state)
{
    (void)state;
    assert_int_equal(compare("--max-abs 0 --max-kl 0 --mean-kl 0 --top-k 1", sizeof b), 0);
}

static void dumps_that_prove_nothing_are_refused(void **state)
{
    (void)state;
    float saved[ROWS * VOCAB];
    memcpy(saved, b, sizeof b);
    assert_int_equal(compare("", 0), 2);
    assert_int_equal(compare("", sizeof b - 4), 2);
    b[VOCAB + 3] = NAN;
    assert_int_equal(compare("", sizeof b), 2);
    b[VOCAB + 3] = INFINITY;
    assert_int_equal(compare("", sizeof b), 2);
    for (int i = 0; i < VOCAB; i++)
        b[VOCAB + i] = 0;
    assert_int_equal(compare("", sizeof b), 2);
    memcpy(b, saved, sizeof b);
    char longer[sizeof b + 4];
    memset(longer, 1, sizeof longer);
    rl_test_write(tested, longer, sizeof longer);
    char command[4 * PATH_MAX];
    snprintf(command, sizeof command, "'%s/peer/compare' %d %d '%s' '%s' 2>/dev/null", REDLITE_BINARY_DIR, VOCAB, ROWS, judge,
             tested);
    int status = system(command); /* NOLINT(cert-env33-c): fixed words and our own paths */
    assert_int_equal(WEXITSTATUS(status), 2);
    assert_int_equal(compare("--max-abs nothing", sizeof b), 2);
    assert_int_equal(compare("--maximum 1", sizeof b), 2);
}

static void differences_are_seen(void **state)
{
    (void)state;
    float saved[ROWS * VOCAB];
    memcpy(saved, b, sizeof b);
    b[2 * VOCAB + 5] += 0.5f;
    assert_int_equal(compare("--argmax 1 --max-abs 0.49", sizeof b), 1);
    assert_int_equal(compare("--argmax 1 --max-abs 0.51", sizeof b), 0);
    assert_int_equal(compare("--argmax 1 --max-kl 1e-9", sizeof b), 1);
    assert_int_equal(compare("--argmax 1 --mean-kl 1e-9", sizeof b), 1);
    for (int i = 0; i < VOCAB; i++) /* the likeliest of one row becomes the least likely */
        b[i] = -a[i];
    assert_int_equal(compare("", sizeof b), 1);
    assert_int_equal(compare("--argmax 2", sizeof b), 0);
    assert_int_equal(compare("--argmax 2 --top-k 1", sizeof b), 1);
    memcpy(b, saved, sizeof b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_dumps_pass),
        cmocka_unit_test(dumps_that_prove_nothing_are_refused),
        cmocka_unit_test(differences_are_seen),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
