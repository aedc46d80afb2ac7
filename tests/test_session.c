/* engine/session and engine/state: whatever happens to a session, its logits are those of its ids. */
#include "support/support.h"
#include "support/tiny_engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 40, CONTEXT = 96 };

static rl_engine *e;
static int32_t ids[N];

static int setup(void **state)
{
    (void)state;
    e = tiny_engine(8, CONTEXT);
    tiny_ids(ids, N, 7);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(e->n_sessions, 0);
    rl_engine_close(e);
    return 0;
}

static rl_session *create(void)
{
    rl_session *s = NULL;
    rl_error err = {0};
    rl_assert_ok(rl_session_create(e, 0, &s, &err), &err);
    return s;
}

static void extend(rl_session *s, const int32_t *list, size_t n)
{
    rl_error err = {0};
    rl_assert_ok(rl_session_extend(s, list, n, NULL, NULL, &err), &err);
}

/* The session's logits equal those of a fresh session that is given its ids. */
static void assert_right(rl_session *s)
{
    rl_session *fresh = create();
    extend(s, NULL, 0);
    extend(fresh, rl_session_tokens(s), rl_session_position(s));
    assert_non_null(rl_session_logits(s));
    assert_int_equal(rl_session_computed(s), rl_session_position(s));
    rl_assert_close(rl_session_logits(s), rl_session_logits(fresh), rl_engine_vocab_size(e), 1e-6, 1e-6);
    rl_session_free(fresh);
}

/* ---- Going forward --------------------------------------------------------------------------------------------------- */

static void test_chunks_and_single_steps_agree(void **state)
{
    (void)state;
    rl_session *a = create(), *b = create();
    assert_null(rl_session_logits(a));
    extend(a, ids, N); /* five passes of eight */
    for (int i = 0; i < N; i++)
        extend(b, ids + i, 1);
    assert_int_equal(rl_session_position(b), N);
    rl_assert_close(rl_session_logits(a), rl_session_logits(b), rl_engine_vocab_size(e), 1e-6, 1e-6);
    assert_memory_equal(rl_session_tokens(a), ids, sizeof ids);
    rl_session_free(a);
    rl_session_free(b);
}

static void test_bad_arguments_change_nothing(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    extend(s, ids, 5);
    int32_t bad[] = {1, 2, -1}, large[] = {1, (int32_t)rl_engine_vocab_size(e)};
    rl_assert_fails(rl_session_extend(s, bad, 3, NULL, NULL, &err), RL_ERR_ARGUMENT, &err, "token 2 is -1");
    rl_assert_fails(rl_session_extend(s, large, 2, NULL, NULL, &err), RL_ERR_ARGUMENT, &err, "token 1 is");
    static int32_t many[CONTEXT];
    rl_assert_fails(rl_session_extend(s, many, CONTEXT - 4, NULL, NULL, &err), RL_ERR_LIMIT, &err, "position 5 of 96");
    rl_assert_fails(rl_session_truncate(s, 6, &err), RL_ERR_ARGUMENT, &err, "have to grow");
    assert_int_equal(rl_session_position(s), 5);
    assert_right(s);
    rl_session_free(s);
    rl_assert_fails(rl_session_create(e, RL_MAX_CONTEXT + 1, &s, &err), RL_ERR_ARGUMENT, &err, "expected at most");
}

static void test_full_context(void **state)
{
    (void)state;
    static int32_t all[CONTEXT];
    tiny_ids(all, CONTEXT, 3);
    rl_session *s = create();
    rl_error err = {0};
    extend(s, all, CONTEXT);
    rl_assert_fails(rl_session_append(s, 1, &err), RL_ERR_LIMIT, &err, "do not fit");
    rl_session_free(s);
}

static rl_status note_row(void *ctx, uint32_t position, const float *row, rl_error *err)
{
    (void)err;
    float *rows = ctx;
    memcpy(rows + (size_t)position * rl_engine_vocab_size(e), row, rl_engine_vocab_size(e) * sizeof *row);
    return RL_OK;
}

static void test_logits_of_every_position(void **state)
{
    (void)state;
    size_t v = rl_engine_vocab_size(e);
    float *rows = calloc(N * v, sizeof *rows);
    assert_non_null(rows);
    rl_session *a = create(), *b = create();
    rl_error err = {0};
    extend(a, ids, 3);
    rl_assert_ok(rl_session_extend_logits(a, ids + 3, N - 3, note_row, rows, &err), &err);
    for (int i = 0; i < N; i++) {
        extend(b, ids + i, 1);
        if (i >= 3) rl_assert_close(rows + (size_t)i * v, rl_session_logits(b), v, 1e-6, 1e-6);
    }
    assert_right(a);
    rl_session_free(a);
    rl_session_free(b);
    free(rows);
}

static rl_status refuse_row(void *ctx, uint32_t position, const float *row, rl_error *err)
{
    (void)row;
    return position == *(uint32_t *)ctx ? rl_fail(err, RL_ERR_IO, "no more rows") : RL_OK;
}

static void test_logits_callback_may_stop(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    uint32_t stop = 10;
    rl_assert_fails(rl_session_extend_logits(s, ids, N, refuse_row, &stop, &err), RL_ERR_IO, &err, "no more rows");
    assert_int_equal(rl_session_position(s), 16); /* two whole passes */
    assert_right(s);
    rl_session_free(s);
}

/* ---- Going back ------------------------------------------------------------------------------------------------------ */

static void test_truncate_without_marks_recomputes(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    extend(s, ids, N);
    rl_assert_ok(rl_session_truncate(s, 21, &err), &err);
    assert_int_equal(rl_session_position(s), 21);
    assert_int_equal(rl_session_computed(s), 0);
    assert_null(rl_session_logits(s));
    assert_right(s);
    rl_session_free(s);
}

static void test_marks(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    uint32_t at[RL_SESSION_MARKS];
    for (uint32_t i = 4; i <= 20; i += 8) { /* 4, 12, 20 */
        extend(s, ids + rl_session_position(s), i - rl_session_position(s));
        rl_assert_ok(rl_session_mark(s, &err), &err);
        rl_assert_ok(rl_session_mark(s, &err), &err);
    }
    assert_int_equal(rl_session_marks(s, at, RL_SESSION_MARKS), 3);
    assert_int_equal(at[2], 20);
    extend(s, ids + 20, N - 20);
    float *want = malloc(rl_engine_vocab_size(e) * sizeof *want);
    assert_non_null(want);

    rl_assert_ok(rl_session_truncate(s, 20, &err), &err); /* exactly a mark: the logits are there at once */
    assert_int_equal(rl_session_computed(s), 20);
    assert_non_null(rl_session_logits(s));
    assert_right(s);
    extend(s, ids + 20, 4);
    rl_assert_ok(rl_session_truncate(s, 17, &err), &err); /* between marks: from the one before */
    assert_int_equal(rl_session_computed(s), 12);
    assert_int_equal(rl_session_marks(s, at, RL_SESSION_MARKS), 2);
    tiny_engine_heal(e);
    extend(s, NULL, 0);
    assert_int_equal(tiny_engine_passes(), 1); /* five ids */
    assert_right(s);
    rl_session_unmark(s, 12);
    rl_session_unmark(s, 5); /* not marked */
    assert_int_equal(rl_session_marks(s, at, RL_SESSION_MARKS), 1);
    rl_session_reset(s);
    assert_int_equal(rl_session_marks(s, at, RL_SESSION_MARKS), 0);
    assert_int_equal(rl_session_position(s), 0);
    rl_session_free(s);
    free(want);
}

static void test_marks_are_bounded(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    for (int i = 0; i < RL_SESSION_MARKS + 3; i++) {
        extend(s, ids + i, 1);
        rl_assert_ok(rl_session_mark(s, &err), &err);
    }
    uint32_t at[RL_SESSION_MARKS];
    assert_int_equal(rl_session_marks(s, at, RL_SESSION_MARKS), RL_SESSION_MARKS);
    assert_int_equal(at[0], 1); /* the oldest stays, the ones after it went */
    assert_int_equal(at[1], 5);
    assert_int_equal(at[RL_SESSION_MARKS - 1], RL_SESSION_MARKS + 3);
    rl_session_free(s);
}

static void test_lazy_ids(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    extend(s, ids, 6);
    rl_assert_ok(rl_session_append(s, ids[6], &err), &err);
    assert_int_equal(rl_session_position(s), 7);
    assert_int_equal(rl_session_computed(s), 6);
    assert_null(rl_session_logits(s));
    rl_assert_ok(rl_session_truncate(s, 6, &err), &err); /* nothing computed is lost */
    assert_int_equal(rl_session_computed(s), 6);
    assert_non_null(rl_session_logits(s));
    rl_assert_ok(rl_session_append(s, ids[6], &err), &err);
    assert_right(s);
    rl_session_free(s);
}

static void test_prefix_reuse(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    uint32_t reused = 99;
    int32_t other[30];
    memcpy(other, ids, sizeof other);
    other[20] = 249 - other[20];
    rl_assert_ok(rl_session_set_tokens(s, ids, 16, NULL, NULL, &reused, &err), &err);
    assert_int_equal(reused, 0);
    rl_assert_ok(rl_session_mark(s, &err), &err);
    rl_assert_ok(rl_session_set_tokens(s, ids, 24, NULL, NULL, &reused, &err), &err);
    assert_int_equal(reused, 16); /* where it stood */
    assert_int_equal(rl_session_common_prefix(s, other, 30), 20);
    assert_int_equal(rl_session_reusable_prefix(s, other, 30), 16);
    rl_assert_ok(rl_session_set_tokens(s, other, 30, NULL, NULL, &reused, &err), &err);
    assert_int_equal(reused, 16); /* the mark */
    assert_memory_equal(rl_session_tokens(s), other, sizeof other);
    assert_right(s);
    tiny_engine_heal(e);
    rl_assert_ok(rl_session_set_tokens(s, other, 30, NULL, NULL, &reused, &err), &err);
    assert_int_equal(reused, 30);
    assert_int_equal(tiny_engine_passes(), 0);
    rl_assert_ok(rl_session_set_tokens(s, other, 16, NULL, NULL, &reused, &err), &err);
    assert_int_equal(reused, 16);
    assert_right(s);
    rl_session_free(s);
}

static void test_fork(void **state)
{
    (void)state;
    rl_session *a = create(), *b = NULL;
    rl_error err = {0};
    extend(a, ids, 10);
    rl_assert_ok(rl_session_append(a, ids[10], &err), &err);
    rl_assert_fails(rl_session_fork(a, 10, &b, &err), RL_ERR_LIMIT, &err, "position 11");
    rl_assert_ok(rl_session_fork(a, 0, &b, &err), &err);
    extend(a, ids + 20, 5);
    assert_int_equal(rl_session_position(b), 11);
    extend(b, ids + 11, 7);
    assert_right(a);
    rl_session_free(a);
    assert_right(b);
    assert_memory_equal(rl_session_tokens(b), ids, 18 * sizeof *ids);
    rl_session_free(b);
}

/* ---- Cancelling and failing ------------------------------------------------------------------------------------------ */

typedef struct watch {
    int calls, stop_at;
    uint64_t last, total;
} watch;

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    watch *w = ctx;
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_at;
}

static void test_progress_and_cancel(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    watch w = {0};
    rl_assert_ok(rl_session_extend(s, ids, 20, on_progress, &w, &err), &err);
    assert_int_equal(w.last, 20);
    assert_int_equal(w.total, 20);
    assert_int_equal(w.calls, 4); /* before each of three passes and at the end */
    rl_session_reset(s);
    w = (watch){.stop_at = 3};
    rl_assert_fails(rl_session_extend(s, ids, N, on_progress, &w, &err), RL_ERR_CANCELLED, &err, "position 16");
    assert_int_equal(rl_session_position(s), 16);
    assert_non_null(rl_session_logits(s)); /* usable where it stopped */
    assert_right(s);
    w = (watch){.stop_at = 1};
    rl_assert_fails(rl_session_extend(s, ids + 16, 4, on_progress, &w, &err), RL_ERR_CANCELLED, &err, "");
    assert_int_equal(rl_session_position(s), 16);
    extend(s, ids + 16, N - 16);
    assert_right(s);
    rl_session_free(s);
}

static void test_failed_pass(void **state)
{
    (void)state;
    rl_session *s = create();
    rl_error err = {0};
    extend(s, ids, 6);
    rl_assert_ok(rl_session_mark(s, &err), &err);
    extend(s, ids + 6, 4);
    tiny_engine_fail_at(e, 2);
    rl_assert_fails(rl_session_extend(s, ids + 10, 20, NULL, NULL, &err), RL_ERR_DEVICE, &err, "failed in pass 2");
    assert_int_equal(rl_session_position(s), 18); /* one pass was complete */
    assert_int_equal(rl_session_computed(s), 6);  /* and will be computed again from the mark */
    tiny_engine_fail_at(e, 1);
    rl_assert_fails(rl_session_extend(s, NULL, 0, NULL, NULL, &err), RL_ERR_DEVICE, &err, "pass 1");
    assert_int_equal(rl_session_position(s), 18);
    tiny_engine_heal(e);
    assert_right(s);
    assert_memory_equal(rl_session_tokens(s), ids, 18 * sizeof *ids);
    rl_session_free(s);
}

/* ---- Several sessions ------------------------------------------------------------------------------------------------ */

static void test_batch_equals_alone(void **state)
{
    (void)state;
    enum { S = 5 };
    rl_session *s[S];
    rl_batch_item items[S];
    rl_error err = {0};
    for (int i = 0; i < S; i++) {
        s[i] = create();
        items[i] = (rl_batch_item){.session = s[i], .ids = ids + i, .n = (uint32_t)(i * 4)}; /* the first adds nothing */
    }
    extend(s[0], ids + 30, 2);
    tiny_engine_heal(e);
    rl_assert_ok(rl_engine_extend_batch(e, items, S, &err), &err);
    assert_int_equal(tiny_engine_passes(), 1); /* 4 + 8 + 12 + 16 rows fit one pass */
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < S; i++)
            items[i] = (rl_batch_item){.session = s[i], .ids = ids + 20 + i + round, .n = 1};
        rl_assert_ok(rl_engine_extend_batch(e, items, S, &err), &err);
    }
    assert_int_equal(tiny_engine_passes(), 4);
    for (int i = 0; i < S; i++) {
        assert_int_equal(rl_session_position(s[i]), (i ? i * 4 : 2) + 3);
        rl_session *alone = create();
        extend(alone, rl_session_tokens(s[i]), rl_session_position(s[i]) - 3);
        for (int r = 3; r > 0; r--)
            extend(alone, rl_session_tokens(s[i]) + rl_session_position(s[i]) - r, 1);
        rl_assert_same_bits(rl_session_logits(s[i]), rl_session_logits(alone), rl_engine_vocab_size(e));
        rl_session_free(alone);
        rl_session_free(s[i]);
    }
}

static void test_batch_larger_than_a_pass(void **state)
{
    (void)state;
    enum { S = 3 };
    static int32_t list[60];
    tiny_ids(list, 60, 11);
    rl_session *s[S];
    rl_batch_item items[S];
    rl_error err = {0};
    for (int i = 0; i < S; i++) {
        s[i] = create();
        items[i] = (rl_batch_item){.session = s[i], .ids = list + i, .n = 50};
    }
    tiny_engine_heal(e);
    rl_assert_ok(rl_engine_extend_batch(e, items, S, &err), &err);
    assert_int_equal(tiny_engine_passes(), 3); /* 150 rows, 64 a pass */
    for (int i = 0; i < S; i++) {
        assert_int_equal(items[i].status, RL_OK);
        assert_right(s[i]);
        rl_session_free(s[i]);
    }
}

static void test_batch_refuses_before_it_starts(void **state)
{
    (void)state;
    rl_session *a = create(), *b = create();
    rl_error err = {0};
    int32_t bad = -5;
    rl_batch_item twice[] = {{.session = a, .ids = ids, .n = 1}, {.session = a, .ids = ids, .n = 1}};
    rl_assert_fails(rl_engine_extend_batch(e, twice, 2, &err), RL_ERR_ARGUMENT, &err, "item 1 of the batch names a session");
    rl_batch_item wrong[] = {{.session = a, .ids = ids, .n = 3}, {.session = b, .ids = &bad, .n = 1}};
    rl_assert_fails(rl_engine_extend_batch(e, wrong, 2, &err), RL_ERR_ARGUMENT, &err, "item 1 of the batch: token 0 is -5");
    assert_int_equal(wrong[0].status, RL_ERR_ARGUMENT);
    assert_int_equal(rl_session_position(a), 0);
    extend(a, ids, 9);
    assert_right(a);
    rl_session_free(a);
    rl_session_free(b);
}

static void test_batch_failure(void **state)
{
    (void)state;
    enum { S = 3 };
    static int32_t list[60];
    tiny_ids(list, 60, 12);
    rl_session *s[S];
    rl_batch_item items[S];
    rl_error err = {0};
    for (int i = 0; i < S; i++) {
        s[i] = create();
        extend(s[i], ids + i, 5);
        items[i] = (rl_batch_item){.session = s[i], .ids = list, .n = 50};
    }
    tiny_engine_fail_at(e, 2); /* the first pass completes session 0 and 14 rows of session 1 */
    rl_assert_fails(rl_engine_extend_batch(e, items, S, &err), RL_ERR_DEVICE, &err, "pass 2");
    tiny_engine_heal(e);
    assert_int_equal(items[0].status, RL_OK);
    assert_int_equal(items[1].status, RL_ERR_DEVICE);
    assert_int_equal(items[2].status, RL_ERR_DEVICE);
    assert_int_equal(rl_session_position(s[0]), 55);
    assert_int_equal(rl_session_position(s[1]), 19);
    assert_int_equal(rl_session_position(s[2]), 5);
    for (int i = 0; i < S; i++) {
        assert_right(s[i]);
        rl_session_free(s[i]);
    }
}

/* ---- Saved states ---------------------------------------------------------------------------------------------------- */

typedef struct buffer {
    uint8_t *data;
    size_t size, at;
} buffer;

static rl_status put(void *ctx, const void *data, size_t n, rl_error *err)
{
    (void)err;
    buffer *b = ctx;
    b->data = realloc(b->data, b->size + n + 1);
    assert_non_null(b->data);
    memcpy(b->data + b->size, data, n);
    b->size += n;
    return RL_OK;
}

static rl_status get(void *ctx, void *data, size_t n, rl_error *err)
{
    buffer *b = ctx;
    if (n > b->size - b->at) return rl_fail(err, RL_ERR_IO, "the buffer ends after %zu bytes", b->size);
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return RL_OK;
}

static void test_state_continues_bit_identically(void **state)
{
    (void)state;
    rl_session *a = create(), *b = create();
    rl_error err = {0};
    buffer buf = {0};
    extend(a, ids, 13);
    rl_assert_ok(rl_session_append(a, ids[13], &err), &err); /* pending: computed on the way out */
    rl_assert_ok(rl_session_write(a, put, &buf, &err), &err);
    extend(b, ids + 5, 20); /* what was there goes */
    rl_assert_ok(rl_session_read(b, get, &buf, &err), &err);
    assert_int_equal(buf.at, buf.size);
    assert_int_equal(rl_session_position(b), 14);
    assert_memory_equal(rl_session_tokens(b), ids, 14 * sizeof *ids);
    rl_assert_same_bits(rl_session_logits(a), rl_session_logits(b), rl_engine_vocab_size(e));
    for (int i = 14; i < 20; i++) {
        extend(a, ids + i, 1);
        extend(b, ids + i, 1);
        rl_assert_same_bits(rl_session_logits(a), rl_session_logits(b), rl_engine_vocab_size(e));
    }
    free(buf.data);
    rl_session_free(a);
    rl_session_free(b);
}

static void test_empty_state(void **state)
{
    (void)state;
    rl_session *a = create();
    rl_error err = {0};
    buffer buf = {0};
    rl_assert_ok(rl_session_write(a, put, &buf, &err), &err);
    rl_assert_ok(rl_session_read(a, get, &buf, &err), &err);
    assert_int_equal(rl_session_position(a), 0);
    extend(a, ids, 4);
    assert_right(a);
    free(buf.data);
    rl_session_free(a);
}

/* Every flipped byte and every cut is noticed, and leaves an empty, working session. */
static void test_damaged_states(void **state)
{
    (void)state;
    rl_session *a = create(), *b = create();
    rl_error err = {0};
    buffer buf = {0};
    extend(a, ids, 9);
    rl_assert_ok(rl_session_write(a, put, &buf, &err), &err);
    for (size_t i = 0; i < buf.size; i += i < 200 ? 1 : 977) {
        buf.data[i] ^= 0x10;
        buf.at = 0;
        assert_int_not_equal(rl_session_read(b, get, &buf, &err), RL_OK);
        assert_int_equal(rl_session_position(b), 0);
        buf.data[i] ^= 0x10;
    }
    size_t size = buf.size;
    for (size_t cut = 0; cut < size; cut += cut < 100 ? 7 : 1013) {
        buf.size = cut;
        buf.at = 0;
        rl_assert_fails(rl_session_read(b, get, &buf, &err), RL_ERR_IO, &err, "ends after");
        assert_int_equal(rl_session_position(b), 0);
    }
    extend(b, ids, 9);
    assert_right(b);
    free(buf.data);
    rl_session_free(a);
    rl_session_free(b);
}

static void test_state_files(void **state)
{
    (void)state;
    char dir[PATH_MAX], path[PATH_MAX], missing[PATH_MAX];
    rl_test_tmpdir(dir);
    rl_test_join(path, dir, "state");
    rl_test_join(missing, dir, "none");
    rl_session *a = create(), *b = NULL;
    rl_error err = {0};
    extend(a, ids, 17);
    rl_assert_ok(rl_session_save(a, path, &err), &err);
    int32_t *list = NULL;
    uint32_t n = 0;
    rl_assert_ok(rl_state_tokens(e, path, &list, &n, &err), &err);
    assert_int_equal(n, 17);
    assert_memory_equal(list, ids, 17 * sizeof *ids);
    free(list);
    rl_assert_ok(rl_session_create(e, 16, &b, &err), &err);
    rl_assert_fails(rl_session_load(b, path, &err), RL_ERR_LIMIT, &err, "17 tokens; this one holds 16");
    rl_session_free(b);
    b = create();
    rl_assert_ok(rl_session_load(b, path, &err), &err);
    rl_assert_same_bits(rl_session_logits(a), rl_session_logits(b), rl_engine_vocab_size(e));
    rl_assert_fails(rl_session_load(b, missing, &err), RL_ERR_IO, &err, "cannot open");
    assert_int_equal(rl_session_position(b), 0);
    rl_assert_fails(rl_session_load(b, "no\nsuch\xff", &err), RL_ERR_IO, &err, "'no\\x0asuch\\xff'");
    assert_int_equal(mkfifo(missing, 0600), 0); /* nobody writes to it: waiting would not end */
    rl_assert_fails(rl_session_load(b, missing, &err), RL_ERR_IO, &err, "cannot read");
    unlink(missing);
    rl_test_write(missing, "something else, long enough to hold a head of the size it has", 61);
    rl_assert_fails(rl_session_load(b, missing, &err), RL_ERR_FORMAT, &err, "not a saved session");

    rl_engine *other = tiny_engine(0, 64); /* the same model with another KV type is another state */
    other->kv = RL_KV_F16;
    rl_assert_fails(rl_state_tokens(other, path, &list, &n, &err), RL_ERR_UNSUPPORTED, &err, "other settings");
    other->kv = RL_KV_F32;
    other->info->fingerprint ^= 1;
    rl_assert_fails(rl_state_tokens(other, path, &list, &n, &err), RL_ERR_UNSUPPORTED, &err, "another model");
    rl_engine_close(other);
    rl_session_free(a);
    rl_session_free(b);
    rl_test_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_and_single_steps_agree),
        cmocka_unit_test(test_bad_arguments_change_nothing),
        cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_logits_of_every_position),
        cmocka_unit_test(test_logits_callback_may_stop),
        cmocka_unit_test(test_truncate_without_marks_recomputes),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_marks_are_bounded),
        cmocka_unit_test(test_lazy_ids),
        cmocka_unit_test(test_prefix_reuse),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_progress_and_cancel),
        cmocka_unit_test(test_failed_pass),
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_batch_larger_than_a_pass),
        cmocka_unit_test(test_batch_refuses_before_it_starts),
        cmocka_unit_test(test_batch_failure),
        cmocka_unit_test(test_state_continues_bit_identically),
        cmocka_unit_test(test_empty_state),
        cmocka_unit_test(test_damaged_states),
        cmocka_unit_test(test_state_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
