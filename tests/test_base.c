/* base: errors, memory, files, cores. The pool has a program of its own. */
#include "support/support.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/cpu_cores.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- error --------------------------------------------------------------------------------------------------------------- */

static void test_fail_writes_sentence(void **state)
{
    (void)state;
    rl_error err = {RL_OK, ""};
    assert_int_equal(rl_fail(&err, RL_ERR_FORMAT, "block %d of %s", 3, "x"), RL_ERR_FORMAT);
    assert_int_equal(err.status, RL_ERR_FORMAT);
    assert_string_equal(err.text, "block 3 of x");
    assert_int_equal(rl_fail(NULL, RL_ERR_IO, "nobody listens"), RL_ERR_IO);

    rl_fail_errno(&err, RL_ERR_IO, ENOENT, "cannot open '%s'", "f");
    assert_string_equal(err.text, "cannot open 'f': No such file or directory");

    rl_fail(&err, RL_ERR_LIMIT, "inner");
    assert_int_equal(rl_error_prefix(&err, "layer %d", 7), RL_ERR_LIMIT);
    assert_string_equal(err.text, "layer 7: inner");
    rl_fail(&err, RL_ERR_MEMORY, "again: %s", err.text); /* the text is its own argument */
    assert_string_equal(err.text, "again: layer 7: inner");
}

static void test_fail_cuts_at_character(void **state)
{
    (void)state;
    static char text[3000];
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    rl_error err;
    for (int shift = 0; shift < 3; shift++) {
        rl_fail(&err, RL_ERR_IO, "%.*s%s", shift, "ab", text);
        size_t n = strlen(err.text), lead = (size_t)(shift < 2 ? shift : 2);
        assert_true(n > RL_ERROR_TEXT_MAX - 4);
        assert_int_equal((n - lead) % 3, 0);
    }
}

static void test_escape(void **state)
{
    (void)state;
    char out[64], tiny[8];
    assert_string_equal(rl_escape(out, sizeof out, "a.b/\xc3\xa4", 6), "a.b/\xc3\xa4");
    assert_string_equal(rl_escape(out, sizeof out, "a\n\x1b[31m'\"", 9), "a\\x0a\\x1b[31m\\x27\\x22");
    assert_string_equal(rl_escape(out, sizeof out, "\xff\xc3", 2), "\\xff\\xc3");
    assert_string_equal(rl_escape(out, sizeof out, "\0z", 2), "\\x00z");
    assert_string_equal(rl_escape(out, sizeof out, "\xed\xa0\x80", 3), "\\xed\\xa0\\x80"); /* surrogate */
    assert_string_equal(rl_escape(out, sizeof out, "\xc0\xaf", 2), "\\xc0\\xaf");          /* overlong */
    assert_string_equal(rl_escape(out, sizeof out, "\xe2\x80\xae", 3), "\\xe2\\x80\\xae"); /* right-to-left override */
    assert_string_equal(rl_escape(out, sizeof out, "\xc2\x9b", 2), "\\xc2\\x9b");          /* one-byte CSI */
    assert_string_equal(rl_escape(out, sizeof out, "", 0), "");
    assert_string_equal(rl_escape(tiny, sizeof tiny, "abcdefg", 7), "abcdefg");
    assert_string_equal(rl_escape(tiny, sizeof tiny, "abcdefgh", 8), "abcd...");
    assert_string_equal(rl_escape(tiny, sizeof tiny, "abc\xe2\x82\xac\xe2\x82\xac", 9), "abc...");
    for (size_t cap = 1; cap < 12; cap++) {
        char small[12];
        memset(small, 'x', sizeof small);
        rl_escape(small, cap, "\n\n\n\n\n\n", 6);
        assert_true(strnlen(small, cap) < cap);
    }
}

static void test_status_names(void **state)
{
    (void)state;
    assert_string_equal(rl_status_name(RL_OK), "ok");
    for (int i = RL_ERR_ARGUMENT; i <= RL_ERR_INTERNAL; i++)
        for (int k = RL_OK; k < i; k++)
            assert_string_not_equal(rl_status_name((rl_status)i), rl_status_name((rl_status)k));
}

/* ---- log ----------------------------------------------------------------------------------------------------------------- */

static void test_log_levels(void **state)
{
    (void)state;
    char dir[PATH_MAX], path[PATH_MAX], expected[64];
    rl_test_tmpdir(dir);
    rl_test_join(path, dir, "log");
    int saved = dup(STDERR_FILENO), fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(saved >= 0 && fd >= 0);
    dup2(fd, STDERR_FILENO);
    rl_log(RL_LOG_INFO, "number %d", 5);
    rl_log(RL_LOG_DEBUG, "dropped");
    rl_log_set_level(RL_LOG_ERROR);
    rl_log(RL_LOG_WARN, "dropped");
    rl_log(RL_LOG_ERROR, "kept");
    rl_log_set_level(RL_LOG_INFO);
    rl_log(RL_LOG_WARN, "%03000d", 7); /* longer than a line may be */
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fd);
    size_t n;
    char *text = rl_test_read(path, &n);
    snprintf(expected, sizeof expected, "number 5\nerror: kept\nwarning: 000");
    assert_memory_equal(text, expected, strlen(expected));
    assert_int_equal(text[n - 1], '\n');
    assert_true(n < 1400);
    free(text);
    rl_test_rmdir(dir);
}

/* ---- mem ----------------------------------------------------------------------------------------------------------------- */

static void test_sizes_do_not_wrap(void **state)
{
    (void)state;
    size_t out = 42;
    assert_false(rl_mul_size(SIZE_MAX / 2 + 1, 2, &out));
    assert_false(rl_add_size(SIZE_MAX, 1, &out));
    assert_int_equal(out, 42);
    assert_true(rl_mul_size(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_true(rl_mul_size(0, SIZE_MAX, &out) && out == 0);
    assert_true(rl_add_size(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_null(rl_alloc(SIZE_MAX / 4, 8));
    assert_null(rl_calloc(SIZE_MAX / 4, 8));
    assert_null(rl_realloc(NULL, SIZE_MAX / 4, 8));
    assert_null(rl_aligned_alloc(64, SIZE_MAX / 4, 8));
}

static void test_allocations(void **state)
{
    (void)state;
    void *empty = rl_alloc(0, 8);
    assert_non_null(empty);
    empty = rl_realloc(empty, 0, 0);
    assert_non_null(empty);
    free(empty);
    uint8_t *zero = rl_calloc(1000, 3);
    assert_non_null(zero);
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(zero[i], 0);
    free(zero);
    static const size_t sizes[] = {0, 1, 63, 4096, (size_t)2 << 20, ((size_t)5 << 20) + 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t align = sizeof(void *); align <= 4096; align *= 2) {
            uint8_t *p = rl_aligned_alloc(align, sizes[i], 1);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % align, 0);
            if (sizes[i] > 0) p[0] = p[sizes[i] - 1] = 1;
            rl_aligned_free(p);
        }
    rl_aligned_free(NULL);
}

/* ---- file ---------------------------------------------------------------------------------------------------------------- */

static char dir[PATH_MAX];

static int make_dir(void **state)
{
    (void)state;
    rl_test_tmpdir(dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    rl_test_rmdir(dir);
    return 0;
}

static void test_mapping(void **state)
{
    (void)state;
    char path[PATH_MAX];
    rl_error err = {RL_OK, ""};
    rl_mapping m;
    static uint8_t bytes[20000];
    rl_rng rng = rl_rng_seed(1);
    rl_rng_fill_bytes(&rng, bytes, sizeof bytes);
    rl_test_write(rl_test_join(path, dir, "map"), bytes, sizeof bytes);
    rl_assert_ok(rl_mapping_open(path, &m, &err), &err);
    assert_int_equal(m.size, sizeof bytes);
    for (int advice = RL_ADVICE_NORMAL; advice <= RL_ADVICE_HUGEPAGE; advice++) {
        rl_mapping_advise(&m, 0, m.size, (rl_advice)advice);
        rl_mapping_advise(&m, 5000, 3, (rl_advice)advice);
        rl_mapping_advise(&m, 19999, UINT64_MAX, (rl_advice)advice);
        rl_mapping_advise(&m, UINT64_MAX, UINT64_MAX, (rl_advice)advice);
    }
    rl_assert_ok(rl_mapping_load(&m, 5000, UINT64_MAX, false, &err), &err);
    rl_assert_ok(rl_mapping_load(&m, UINT64_MAX, 1, true, &err), &err);
    if (rl_mapping_load(&m, 100, 9000, true, &err) != RL_OK) /* refused where nothing may be locked */
        assert_non_null(strstr(err.text, "cannot lock"));
    assert_memory_equal(m.data, bytes, sizeof bytes);
    uint8_t part[100];
    rl_assert_ok(rl_pread_all(m.fd, part, sizeof part, 12345, "map", &err), &err);
    assert_memory_equal(part, bytes + 12345, sizeof part);
    rl_assert_fails(rl_pread_all(m.fd, part, sizeof part, 19950, "m'p", &err), RL_ERR_IO, &err,
                    "'m\\x27p' ends at offset 20000, expected 100 bytes from offset 19950");
    rl_assert_fails(rl_pread_all(m.fd, part, 1, UINT64_MAX, "map", &err), RL_ERR_IO, &err, "out of range");
    rl_assert_ok(rl_pread_all(m.fd, part, 0, 20000, "map", &err), &err);
    rl_mapping_close(&m);
    rl_mapping_close(&m);

    rl_test_write(path, "", 0);
    rl_assert_ok(rl_mapping_open(path, &m, &err), &err);
    assert_int_equal(m.size, 0);
    assert_non_null(m.data);
    rl_mapping_close(&m);
}

static void test_mapping_refuses(void **state)
{
    (void)state;
    char path[PATH_MAX];
    rl_error err = {RL_OK, ""};
    rl_mapping m = {NULL, 7, -2};
    rl_assert_fails(rl_mapping_open(dir, &m, &err), RL_ERR_IO, &err, "is a directory, expected a file");
    rl_assert_fails(rl_mapping_open("/dev/null", &m, &err), RL_ERR_IO, &err, "is a device");
    assert_int_equal(mkfifo(rl_test_join(path, dir, "pipe"), 0600), 0);
    rl_assert_fails(rl_mapping_open(path, &m, &err), RL_ERR_IO, &err, "is a pipe");
    rl_assert_fails(rl_mapping_open(rl_test_join(path, dir, "no\nne"), &m, &err), RL_ERR_IO, &err, "no\\x0ane': No such file");
    assert_true(m.data == NULL && m.size == 7 && m.fd == -2);
}

static void test_read_file(void **state)
{
    (void)state;
    char path[PATH_MAX];
    rl_error err = {RL_OK, ""};
    static uint8_t bytes[300000];
    char *data = NULL;
    size_t n = 0;
    rl_rng rng = rl_rng_seed(2);
    rl_rng_fill_bytes(&rng, bytes, sizeof bytes);
    rl_test_join(path, dir, "read");
    static const size_t sizes[] = {0, 1, 65534, 65535, 65536, 300000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rl_test_write(path, bytes, sizes[i]);
        static const size_t slack[] = {0, 1, SIZE_MAX - 300000};
        for (size_t k = 0; k < 3; k++) {
            rl_assert_ok(rl_read_file(path, sizes[i] + slack[k], &data, &n, &err), &err);
            assert_int_equal(n, sizes[i]);
            assert_memory_equal(data, bytes, n);
            assert_int_equal(data[n], 0);
            free(data);
        }
        if (sizes[i] > 0)
            rl_assert_fails(rl_read_file(path, sizes[i] - 1, &data, &n, &err), RL_ERR_LIMIT, &err, "larger than the limit");
    }
    rl_assert_fails(rl_read_file("/dev/zero", 1000000, &data, &n, &err), RL_ERR_LIMIT, &err, "limit of 1000000 bytes");
    rl_assert_fails(rl_read_file(dir, 100, &data, &n, &err), RL_ERR_IO, &err, "directory");
}

static void test_read_stdin(void **state)
{
    (void)state;
    int ends[2], saved = dup(STDIN_FILENO);
    rl_error err = {RL_OK, ""};
    char *data = NULL;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "hello", 5), 5);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    rl_status status = rl_read_file("-", 100, &data, &n, &err);
    dup2(saved, STDIN_FILENO);
    close(saved);
    rl_assert_ok(status, &err);
    assert_int_equal(n, 5);
    assert_string_equal(data, "hello");
    free(data);
}

static void test_out_file(void **state)
{
    (void)state;
    char path[PATH_MAX], link[PATH_MAX];
    rl_error err = {RL_OK, ""};
    rl_out_file *f = NULL;
    static uint8_t bytes[1000000];
    rl_rng rng = rl_rng_seed(3);
    rl_rng_fill_bytes(&rng, bytes, sizeof bytes);
    rl_test_join(path, dir, "out");
    rl_test_write(path, "old", 3);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(symlink(path, rl_test_join(link, dir, "link")), 0);
    rl_assert_ok(rl_out_open(link, &f, &err), &err);
    size_t at = 0;
    while (at < sizeof bytes) { /* small pieces, and some larger than the buffer */
        size_t n = rl_rng_below(&rng, 8) == 0 ? 300000 : rl_rng_below(&rng, 5000);
        if (n > sizeof bytes - at) n = sizeof bytes - at;
        rl_assert_ok(rl_out_write(f, bytes + at, n, &err), &err);
        at += n;
        assert_int_equal(rl_out_position(f), at);
    }
    size_t n;
    char *data = rl_test_read(path, &n);
    assert_string_equal(data, "old"); /* nothing shows before the commit */
    free(data);
    rl_assert_ok(rl_out_commit(f, &err), &err);
    data = rl_test_read(path, &n);
    assert_int_equal(n, sizeof bytes);
    assert_memory_equal(data, bytes, n);
    free(data);
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void test_out_file_abort_and_refusals(void **state)
{
    (void)state;
    char sub[PATH_MAX], path[PATH_MAX];
    rl_error err = {RL_OK, ""};
    rl_out_file *f = NULL;
    assert_int_equal(mkdir(rl_test_join(sub, dir, "sub"), 0700), 0);
    rl_assert_ok(rl_out_open(rl_test_join(path, sub, "gone"), &f, &err), &err);
    rl_assert_ok(rl_out_write(f, "x", 1, &err), &err);
    rl_out_abort(f);
    rl_out_abort(NULL);
    assert_int_equal(rmdir(sub), 0); /* the directory is empty: the temporary is gone too */
    rl_assert_fails(rl_out_open(path, &f, &err), RL_ERR_IO, &err, "cannot create a file beside");
    rl_assert_fails(rl_out_open(dir, &f, &err), RL_ERR_IO, &err, "it exists and is not a file");
    rl_assert_fails(rl_out_open("/dev/null", &f, &err), RL_ERR_IO, &err, "it exists and is not a file");
}

/* ---- clock, cpu ---------------------------------------------------------------------------------------------------------- */

static void test_clock(void **state)
{
    (void)state;
    uint64_t a = rl_now_ns();
    double t = rl_now();
    usleep(2000);
    assert_true(rl_now_ns() - a >= 2000000u);
    assert_true(rl_now() - t >= 0.002);
}

static void test_cpu(void **state)
{
    (void)state;
    const rl_cpu_info *c = rl_cpu();
    assert_ptr_equal(c, rl_cpu());
    assert_true(c->logical_cores >= 1 && c->physical_cores >= 1);
    assert_true(c->physical_cores <= c->logical_cores);
    assert_true(c->logical_cores <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(c->brand[0] != 0);
    print_message("%s: %d cores, %d threads, best %s, caches %u %u %u\n", c->brand, c->physical_cores, c->logical_cores,
                  rl_isa_name(c->best), c->l1d_bytes, c->l2_bytes, c->l3_bytes);
#if defined(__x86_64__)
    if (c->best >= RL_ISA_AVX2) assert_true(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    if (c->avx512) assert_true(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"));
    if (c->avx512_vnni) assert_true(__builtin_cpu_supports("avx512vnni"));
#endif
}

static void test_isa_parse(void **state)
{
    (void)state;
    rl_error err = {RL_OK, ""};
    rl_isa isa = RL_ISA_NEON;
    rl_assert_ok(rl_isa_parse("scalar", &isa, &err), &err);
    assert_int_equal(isa, RL_ISA_SCALAR);
    rl_assert_ok(rl_isa_parse("auto", &isa, &err), &err);
    assert_int_equal(isa, rl_cpu()->best);
    rl_assert_ok(rl_isa_parse(rl_isa_name(rl_cpu()->best), &isa, &err), &err);
#if defined(__x86_64__)
    rl_assert_fails(rl_isa_parse("neon", &isa, &err), RL_ERR_UNSUPPORTED, &err, "needs AArch64");
#endif
    rl_assert_fails(rl_isa_parse("sse\n", &isa, &err), RL_ERR_ARGUMENT, &err, "unknown instruction set 'sse\\x0a'");
}

static void put(const char *root, const char *sub, const char *name, const char *text)
{
    char folder[PATH_MAX], path[PATH_MAX];
    rl_test_join(folder, root, sub);
    for (char *p = folder + strlen(root) + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(folder, 0700);
        *p = '/';
    }
    mkdir(folder, 0700);
    rl_test_write(rl_test_join(path, folder, name), text, strlen(text));
}

static void test_cgroup_limits(void **state)
{
    (void)state;
    char root[PATH_MAX];
    mkdir(rl_test_join(root, dir, "cgroup"), 0700);
    put(root, "a", "cpu.max", "800000 100000\n");
    put(root, "a/b", "cpu.max", "max 100000\n");
    put(root, "a/b/c", "cpu.max", "350000 100000\n");
    put(root, "half", "cpu.max", "50000 100000\n");
    put(root, "odd", "cpu.max", "garbage");
    put(root, "cpu,cpuacct/x", "cpu.cfs_quota_us", "200000\n");
    put(root, "cpu,cpuacct/x", "cpu.cfs_period_us", "100000\n");
    put(root, "cpu,cpuacct/free", "cpu.cfs_quota_us", "-1\n");
    put(root, "cpu,cpuacct/free", "cpu.cfs_period_us", "100000\n");
    assert_int_equal(rl_cgroup_cpus(root, "0::/a/b\n"), 8);
    assert_int_equal(rl_cgroup_cpus(root, "0::/a/b/c\n"), 3);
    assert_int_equal(rl_cgroup_cpus(root, "0::/half\n"), 1);
    assert_int_equal(rl_cgroup_cpus(root, "0::/odd"), 0);
    assert_int_equal(rl_cgroup_cpus(root, "0::/"), 0);
    assert_int_equal(rl_cgroup_cpus(root, "5:memory:/x\n4:cpu,cpuacct:/x\n"), 2);
    assert_int_equal(rl_cgroup_cpus(root, "4:cpu,cpuacct:/free\n0::/a\n"), 8);
    assert_int_equal(rl_cgroup_cpus(root, "4:cpuset:/x\nnonsense\n:\n::\n"), 0);
    assert_int_equal(rl_cgroup_cpus(root, ""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_writes_sentence),
        cmocka_unit_test(test_fail_cuts_at_character),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_log_levels),
        cmocka_unit_test(test_sizes_do_not_wrap),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_mapping),
        cmocka_unit_test(test_mapping_refuses),
        cmocka_unit_test(test_read_file),
        cmocka_unit_test(test_read_stdin),
        cmocka_unit_test(test_out_file),
        cmocka_unit_test(test_out_file_abort_and_refusals),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_isa_parse),
        cmocka_unit_test(test_cgroup_limits),
    };
    return cmocka_run_group_tests_name("base", tests, make_dir, drop_dir);
}
