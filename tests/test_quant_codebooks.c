/* The generated codebooks against the file they come from: their values, and the generator's text where python3 is there. */
#include "support/support.h"

#include "quant/quant.h"

#include <stdlib.h>
#include <string.h>

/* The text behind "table NAME COUNT" of codebooks.txt. */
static char *table_of(char *text, const char *name, int count)
{
    char head[64];
    snprintf(head, sizeof head, "\ntable %s %d\n", name, count);
    char *at = strstr(text, head);
    assert_non_null(at);
    return at + strlen(head);
}

static char *read_codebooks(void)
{
    return rl_test_read(REDLITE_SOURCE_DIR "/src/quant/codebooks.txt", NULL);
}

/* values[code] is a component; entry n of the C array is at bytes n * components. */
static void check_vectors(const char *name, int count, int components, int bits, const int *values, const void *table)
{
    char *text = read_codebooks(), *p = table_of(text, name, count);
    for (int n = 0; n < count; n++) {
        unsigned long packed = strtoul(p, &p, 16);
        uint64_t entry = components == 8 ? ((const uint64_t *)table)[n] : ((const uint32_t *)table)[n];
        for (int k = 0; k < components; k++) {
            unsigned code = packed >> (bits * k) & ((1u << bits) - 1);
            assert_true(bits == 3 || code < 3);
            assert_int_equal((int8_t)(entry >> (8 * k)), values[code]);
        }
    }
    assert_true(*p == '\n');
    free(text);
}

static void vectors_are_those_of_the_file(void **state)
{
    (void)state;
    static const int ternary[] = {-1, 0, 1}, three[] = {8, 25, 43};
    static const int eight[] = {4, 12, 20, 28, 36, 44, 52, 62}, odd[] = {1, 3, 5, 7, 9, 11, 13, 15};
    check_vectors("iq1s", 2048, 8, 2, ternary, rl_iq1s_grid);
    check_vectors("iq2xxs", 256, 8, 2, three, rl_iq2xxs_grid);
    check_vectors("iq2xs", 512, 8, 2, three, rl_iq2xs_grid);
    check_vectors("iq2s", 1024, 8, 2, three, rl_iq2s_grid);
    check_vectors("iq3xxs", 256, 4, 3, eight, rl_iq3xxs_grid);
    check_vectors("iq3s", 512, 4, 3, odd, rl_iq3s_grid);
}

static void values_are_those_of_the_file(void **state)
{
    (void)state;
    char *text = read_codebooks(), *iq4nl = table_of(text, "iq4nl", 16), *fp4 = table_of(text, "fp4", 16);
    for (int n = 0; n < 16; n++) {
        assert_int_equal(rl_iq4nl_values[n], strtol(iq4nl, &iq4nl, 10));
        assert_int_equal(rl_fp4_values[n], strtol(fp4, &fp4, 10));
        /* Twice an E2M1 number by its definition: subnormals 0 and 1, then (2 + mantissa) * 2^(exponent - 1). */
        int exponent = n >> 1 & 3, mantissa = n & 1;
        int twice = exponent ? (2 + mantissa) << (exponent - 1) : mantissa;
        assert_int_equal(rl_fp4_values[n], n & 8 ? -twice : twice);
    }
    free(text);
}

static void sign_masks_have_even_parity(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 128; n++) {
        assert_int_equal(rl_ksigns[n] & 127, n);
        unsigned ones = 0;
        for (unsigned m = rl_ksigns[n]; m != 0; m &= m - 1)
            ones++;
        assert_int_equal(ones % 2, 0);
    }
}

static void generated_file_is_current(void **state)
{
    (void)state;
    if (system("python3 -c '' 2>/dev/null") != 0) {
        print_message("[ SKIP     ] %s: needs python3\n", __func__);
        skip();
    }
    assert_int_equal(system("python3 '" REDLITE_SOURCE_DIR "/scripts/gen_codebooks.py' --check"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_the_file),
        cmocka_unit_test(values_are_those_of_the_file),
        cmocka_unit_test(sign_masks_have_even_parity),
        cmocka_unit_test(generated_file_is_current),
    };
    return cmocka_run_group_tests_name("quant_codebooks", tests, NULL, NULL);
}
