/* cli/pull_fetch: one file, from the network to its name.
 *
 * Bytes go to NAME.part; NAME.part.info says what they are part of (the server's tag and the size), so that a later attempt
 * only goes on with the same file. NAME appears by a rename, after size and hash are right and the bytes are on the disk. */
#include "pull.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define CHUNK      ((size_t)1 << 20)
#define SPACE_LEFT ((uint64_t)64 << 20) /* a full disk harms other programs */

typedef struct fetch {
    const pull_file *file;
    char path[PATH_MAX], part[PATH_MAX], info[PATH_MAX];
    int fd; /* of the part */
    bool locked;
    uint64_t have; /* bytes in the part */
    bool has_size, begun, restarted;
    uint64_t size;
    char etag[HTTP_TEXT_MAX];
    struct sha256_ctx sha;
    double start; /* of the transfer, and the bytes there were then: for the speed */
    uint64_t start_bytes;
    bool shown;
    double shown_at;
} fetch;

const char *pull_size(char out[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int unit = 0;
    for (; v >= 1024 && unit < 6; unit++)
        v /= 1024;
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.2f %s", v, units[unit]);
    return out;
}

static rl_status fail_file(rl_error *err, const char *what, const char *path)
{
    int cause = errno;
    char shown[300];
    return cli_fail(err, RL_ERR_IO, "cannot %s '%s': %s", what, rl_escape(shown, sizeof shown, path, strlen(path)),
                    strerror(cause));
}

/* ---- Space ----------------------------------------------------------------------------------------------------------- */

rl_status pull_check_space(const char *folder, uint64_t bytes, rl_error *err)
{
    struct statvfs fs;
    char need[32], have[32], shown[300];
    if (statvfs(folder, &fs) != 0) return fail_file(err, "look at the free space of", folder);
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes == 0 || (room >= bytes && room - bytes >= SPACE_LEFT)) return RL_OK;
    return cli_fail(err, RL_ERR_IO,
                    "not enough space in '%s': %s are to be fetched and %s are free; --output names another folder",
                    rl_escape(shown, sizeof shown, folder, strlen(folder)), pull_size(need, bytes), pull_size(have, room));
}

uint64_t pull_missing(const pull_files *f, const char *folder)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < f->n; i++) {
        static const char *const ends[] = {"", ".part"};
        uint64_t missing = f->v[i].has_size ? f->v[i].size : 0;
        for (size_t k = 0; k < 2; k++) {
            char path[PATH_MAX];
            struct stat st;
            if ((size_t)snprintf(path, sizeof path, "%s/%s%s", folder, f->v[i].name, ends[k]) >= sizeof path) continue;
            if (stat(path, &st) != 0) continue;
            uint64_t there = (uint64_t)st.st_blocks * 512;
            missing = k == 0 || there >= missing ? 0 : missing - there;
            if (k == 0) break;
        }
        if (missing > UINT64_MAX - sum) return UINT64_MAX;
        sum += missing;
    }
    return sum;
}

/* ---- Progress -------------------------------------------------------------------------------------------------------- */

static void show_progress(fetch *f, const char *what, uint64_t done, uint64_t total)
{
    double now = rl_now(), passed = now - f->start;
    if (cli_engine.quiet || !isatty(STDERR_FILENO) || now - f->shown_at < 0.2) return;
    f->shown_at = now;
    f->shown = true;
    char a[32], b[32], c[32];
    double speed = passed > 0 && done > f->start_bytes ? (double)(done - f->start_bytes) / passed : 0;
    fprintf(stderr, "\r%s %s: %s", what, f->file->name, pull_size(a, done));
    if (total) fprintf(stderr, " of %s, %.1f %%", pull_size(b, total), 100.0 * (double)done / (double)total);
    fprintf(stderr, ", %s/s", pull_size(c, (uint64_t)speed));
    if (total > done && speed > 0) {
        double left = (double)(total - done) / speed;
        fprintf(stderr, left < 100 ? ", %.0f s left" : ", %.0f min left", left < 100 ? left : left / 60);
    }
    fputs("\033[K", stderr);
}

static void begin_progress(fetch *f)
{
    f->start = f->shown_at = rl_now();
    f->start_bytes = f->have;
}

static void clear_progress(fetch *f)
{
    if (f->shown) fputs("\r\033[K", stderr);
    f->shown = false;
}

/* ---- What is there --------------------------------------------------------------------------------------------------- */

/* Feeds the first `bytes` of a file to the hash. */
static rl_status hash_file(fetch *f, int fd, const char *path, uint64_t bytes, rl_error *err)
{
    unsigned char *buffer = malloc(CHUNK);
    if (!buffer) return cli_fail(err, RL_ERR_MEMORY, "no memory to check a file");
    rl_status st = RL_OK;
    f->have = 0;
    begin_progress(f);
    sha256_init(&f->sha);
    while (st == RL_OK && f->have < bytes) {
        size_t want = bytes - f->have < CHUNK ? (size_t)(bytes - f->have) : CHUNK;
        ssize_t n = pread(fd, buffer, want, (off_t)f->have);
        if (n < 0 && errno == EINTR && !cli_interrupted()) continue;
        if (cli_interrupted()) {
            st = cli_fail(err, RL_ERR_CANCELLED, "stopped");
        } else if (n <= 0) {
            if (n == 0) errno = EIO;
            st = fail_file(err, "read", path);
        } else {
            sha256_update(&f->sha, (size_t)n, buffer);
            f->have += (uint64_t)n;
            show_progress(f, "checking", f->have, bytes);
        }
    }
    clear_progress(f);
    free(buffer);
    return st;
}

static bool hash_is_right(fetch *f)
{
    uint8_t got[32];
    struct sha256_ctx copy = f->sha;
    sha256_digest(&copy, sizeof got, got);
    return memcmp(got, f->file->sha256, sizeof got) == 0;
}

/* *done: the file is there and is the right one. Another file of that name is not ours to replace. */
static rl_status look_for_file(fetch *f, bool *done, rl_error *err)
{
    struct stat st;
    char shown[300];
    *done = false;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return RL_OK;
    if (fd < 0 || fstat(fd, &st) != 0) {
        if (fd >= 0) close(fd);
        return fail_file(err, "open", f->path);
    }
    rl_status status = RL_OK;
    bool right = S_ISREG(st.st_mode) && (!f->file->has_size || (uint64_t)st.st_size == f->file->size);
    if (right && f->file->has_sha256) {
        status = hash_file(f, fd, f->path, (uint64_t)st.st_size, err);
        right = status == RL_OK && hash_is_right(f);
    }
    close(fd);
    if (status != RL_OK) return status;
    *done = right;
    if (right) return RL_OK;
    return cli_fail(err, RL_ERR_IO,
                    "'%s' is there but is not the file that was asked for; remove it, or choose another folder with "
                    "--output",
                    rl_escape(shown, sizeof shown, f->path, strlen(f->path)));
}

/* The tag and size of the file that the part belongs to: two lines. */
static bool read_info(fetch *f, char *etag, uint64_t *size)
{
    FILE *in = fopen(f->info, "r");
    unsigned long long v = 0;
    if (!in) return false;
    bool ok = fscanf(in, "%llu\n", &v) == 1 && fgets(etag, HTTP_TEXT_MAX, in) != NULL;
    fclose(in);
    if (!ok) return false;
    etag[strcspn(etag, "\n")] = 0;
    *size = v;
    return true;
}

static rl_status write_info(const fetch *f, rl_error *err)
{
    FILE *out = fopen(f->info, "w");
    if (!out) return fail_file(err, "write", f->info);
    bool ok = fprintf(out, "%llu\n%s\n", (unsigned long long)f->size, f->etag) > 0;
    ok = fclose(out) == 0 && ok;
    return ok ? RL_OK : fail_file(err, "write", f->info);
}

static rl_status start_over(fetch *f, rl_error *err)
{
    f->have = 0;
    sha256_init(&f->sha);
    if (ftruncate(f->fd, 0) != 0) return fail_file(err, "empty", f->part);
    begin_progress(f);
    return RL_OK;
}

/* A tag proves that the bytes are the same only when it is a strong one. */
static bool is_strong(const char *etag)
{
    size_t n = strlen(etag);
    return n > 2 && etag[0] == '"' && etag[n - 1] == '"';
}

/* Opens the part and takes over what an earlier attempt left, if that can be trusted. */
static rl_status open_part(fetch *f, rl_error *err)
{
    struct stat st;
    uint64_t size = 0;
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) return fail_file(err, "create", f->part);
    f->locked = flock(f->fd, LOCK_EX | LOCK_NB) == 0;
    if (!f->locked) return cli_fail(err, RL_ERR_IO, "%s is being fetched by another process", f->file->name);
    bool known = read_info(f, f->etag, &size);
    bool same_size = known && (!f->has_size || f->size == size);
    if (st.st_size == 0 || !same_size || (uint64_t)st.st_size > size || (!is_strong(f->etag) && !f->file->has_sha256)) {
        f->etag[0] = 0;
        return start_over(f, err);
    }
    f->size = size;
    f->has_size = true;
    return hash_file(f, f->fd, f->part, (uint64_t)st.st_size, err);
}

/* ---- The transfer ---------------------------------------------------------------------------------------------------- */

/* What the first bytes of a response belong to. */
static rl_status begin_body(fetch *f, const http_head *h, rl_error *err)
{
    uint64_t total = h->code == 206 ? h->range_total : h->length;
    bool known = h->code == 206 ? h->has_range : h->has_length;
    rl_status st = RL_OK;
    if (h->code == 206 && (!h->has_range || h->range_from != f->have))
        return cli_fail(err, RL_ERR_FORMAT, "the server sent another range of %s than was asked for", f->file->name);
    if (h->code == 200 && f->have > 0) st = start_over(f, err); /* no ranges here, or the file has changed */
    if (st == RL_OK && f->file->has_size && known && total != f->file->size)
        st = cli_fail(err, RL_ERR_FORMAT, "%s has %llu bytes on the server, %llu were expected", f->file->name,
                      (unsigned long long)total, (unsigned long long)f->file->size);
    if (st != RL_OK) return st;
    f->has_size = known || f->file->has_size;
    f->size = known ? total : f->file->size;
    snprintf(f->etag, sizeof f->etag, "%s", h->etag);
    if (f->has_size) {
        st = write_info(f, err);
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s", f->part);
        *strrchr(folder, '/') = 0;
        if (st == RL_OK && f->size > f->have) st = pull_check_space(folder[0] ? folder : "/", f->size - f->have, err);
    }
    return st;
}

static rl_status take_body(void *ctx, const http_head *h, const void *data, size_t n, rl_error *err)
{
    fetch *f = ctx;
    const char *p = data;
    if (!f->begun) {
        rl_status st = begin_body(f, h, err);
        if (st != RL_OK) return st;
        f->begun = true;
    }
    if (f->has_size && n > f->size - f->have)
        return cli_fail(err, RL_ERR_FORMAT, "%s is longer than the %llu bytes it should have", f->file->name,
                        (unsigned long long)f->size);
    sha256_update(&f->sha, n, data);
    while (n > 0) {
        ssize_t w = pwrite(f->fd, p, n, (off_t)f->have);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return fail_file(err, "write", f->part);
        p += w;
        n -= (size_t)w;
        f->have += (uint64_t)w;
    }
    show_progress(f, "fetching", f->have, f->has_size ? f->size : 0);
    return RL_OK;
}

static rl_status code_error(const fetch *f, long code, bool *again, rl_error *err)
{
    char shown[300];
    rl_escape(shown, sizeof shown, f->file->url, strlen(f->file->url));
    *again = code == 408 || code == 425 || code == 429 || code >= 500;
    if (code == 404 || code == 410) return cli_fail(err, RL_ERR_IO, "%s: there is no such file (%ld)", shown, code);
    if (code == 401 || code == 403)
        return cli_fail(err, RL_ERR_IO, "%s: not allowed (%ld); files behind a login need HF_TOKEN", shown, code);
    return cli_fail(err, RL_ERR_IO, "%s: the server answers %ld", shown, code);
}

/* One request. RL_OK: the file is complete. */
static rl_status request(fetch *f, bool *again, rl_error *err)
{
    http_head h;
    http_request r = {.url = f->file->url,
                      .from = f->have,
                      .if_range = f->have && is_strong(f->etag) ? f->etag : NULL,
                      .body = take_body,
                      .ctx = f};
    f->begun = false;
    rl_status st = http_run(&r, &h, again, err);
    clear_progress(f);
    if (st != RL_OK) return st;
    if (h.code == 416 && f->have > 0 && !f->restarted) { /* what is there does not fit the file: once from the beginning */
        f->restarted = *again = true;
        st = start_over(f, err);
        return st == RL_OK ? cli_fail(err, RL_ERR_IO, "%s: the server has no such range", f->file->name) : st;
    }
    if (h.code != 200 && h.code != 206) return code_error(f, h.code, again, err);
    if (!f->begun) { /* an empty body */
        st = begin_body(f, &h, err);
        if (st != RL_OK) return st;
    }
    if (!f->has_size || f->have == f->size) return RL_OK;
    *again = true;
    return cli_fail(err, RL_ERR_IO, "%s ended after %llu of %llu bytes", f->file->name, (unsigned long long)f->have,
                    (unsigned long long)f->size);
}

/* Waits longer after every failure: 0.2 s, 0.4 s, ... 10 s. */
static void pause_after(uint32_t failures)
{
    double end = rl_now() + (failures < 6 ? 0.1 * (double)(1u << failures) : 10);
    while (!cli_interrupted() && rl_now() < end) {
        struct timespec step = {.tv_nsec = 50000000};
        (void)nanosleep(&step, NULL);
    }
}

/* Requests until the file is complete; only failures in a row without a new byte count. */
static rl_status transfer(fetch *f, uint32_t retries, rl_error *err)
{
    uint32_t failures = 0;
    uint64_t furthest = f->have;
    while (!f->has_size || f->have < f->size || f->size == 0) {
        bool again = false;
        rl_status st = request(f, &again, err);
        if (st == RL_OK || !again) return st;
        failures = f->have > furthest ? 1 : failures + 1;
        if (f->have > furthest) furthest = f->have;
        if (failures > retries) return st;
        if (!cli_engine.quiet) fprintf(stderr, "redlite: %s; trying again\n", err->text);
        pause_after(failures);
        if (cli_interrupted()) return cli_fail(err, RL_ERR_CANCELLED, "stopped");
    }
    return RL_OK;
}

/* ---- The end --------------------------------------------------------------------------------------------------------- */

static void discard(const fetch *f)
{
    (void)unlink(f->part);
    (void)unlink(f->info);
}

/* What cannot become right by fetching the rest is removed. */
static rl_status check_contents(fetch *f, rl_error *err)
{
    char magic[4] = "";
    size_t n = strlen(f->file->name);
    if (f->file->has_sha256 && !hash_is_right(f)) {
        discard(f);
        return cli_fail(err, RL_ERR_FORMAT,
                        "%s arrived damaged: its SHA-256 is not the one announced; it was removed, try again", f->file->name);
    }
    if (n < 5 || strcmp(f->file->name + n - 5, ".gguf") != 0) return RL_OK;
    if (pread(f->fd, magic, 4, 0) == 4 && memcmp(magic, "GGUF", 4) == 0) return RL_OK;
    discard(f);
    return cli_fail(err, RL_ERR_FORMAT,
                    "%s is not a GGUF file: the server sent something else (a page to log in?); it was removed", f->file->name);
}

static rl_status put_in_place(fetch *f, rl_error *err)
{
    if (fsync(f->fd) != 0) return fail_file(err, "write to the disk", f->part);
    if (rename(f->part, f->path) != 0) return fail_file(err, "put in place", f->path);
    (void)unlink(f->info);
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", f->path);
    *strrchr(folder, '/') = 0;
    int fd = open(folder[0] ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) { /* makes the rename durable where the file system can */
        (void)fsync(fd);
        close(fd);
    }
    return RL_OK;
}

rl_status pull_fetch(const pull_file *file, const char *folder, uint32_t retries, char *path, rl_error *err)
{
    fetch *f = calloc(1, sizeof *f);
    if (!f) return cli_fail(err, RL_ERR_MEMORY, "no memory to fetch a file");
    f->file = file;
    f->fd = -1;
    f->has_size = file->has_size;
    f->size = file->size;
    bool done = false;
    rl_status st = RL_OK;
    if ((size_t)snprintf(f->info, sizeof f->info, "%s/%s.part.info", folder, file->name) >= sizeof f->info)
        st = cli_fail(err, RL_ERR_LIMIT, "the name of the folder is too long");
    snprintf(f->path, sizeof f->path, "%s/%s", folder, file->name);
    snprintf(f->part, sizeof f->part, "%s/%s.part", folder, file->name);
    if (st == RL_OK) st = look_for_file(f, &done, err);
    if (st == RL_OK && !done) {
        st = open_part(f, err);
        begin_progress(f);
        if (st == RL_OK) st = transfer(f, retries, err);
        if (st == RL_OK) st = check_contents(f, err);
        if (st == RL_OK) st = put_in_place(f, err);
        if (f->locked && (st == RL_ERR_FORMAT || (st != RL_OK && f->have == 0))) discard(f);
    }
    clear_progress(f);
    if (st == RL_OK) snprintf(path, PATH_MAX, "%s", f->path);
    if (f->fd >= 0) close(f->fd);
    free(f);
    return st;
}
