/* base/file: files as mappings and as whole buffers. Output files are in out_file.c. */
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_MAX_SHOWN 512
#define TRANSFER_MAX   ((size_t)1 << 30) /* systems cut or refuse single transfers above 2 GiB */

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

/* Closes fd and reports. */
static rl_status give_up(int fd, rl_status status)
{
    close(fd);
    return status;
}

rl_status rl_mapping_open(const char *path, rl_mapping *out, rl_error *err)
{
    static const uint8_t nothing[1];
    char name[NAME_MAX_SHOWN];
    struct stat st;
    /* O_NONBLOCK: opening a pipe must not wait for its writer; regular files ignore it. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return rl_fail_errno(err, RL_ERR_IO, errno, "cannot open '%s'", rl_escape_str(name, sizeof name, path));
    if (fstat(fd, &st) != 0)
        return give_up(fd, rl_fail_errno(err, RL_ERR_IO, errno, "cannot examine '%s'", rl_escape_str(name, sizeof name, path)));
    if (!S_ISREG(st.st_mode))
        return give_up(fd, rl_fail(err, RL_ERR_IO, "'%s' is %s, expected a file", rl_escape_str(name, sizeof name, path),
                                   kind_of(st.st_mode)));
    if ((uint64_t)st.st_size > SIZE_MAX)
        return give_up(fd, rl_fail(err, RL_ERR_UNSUPPORTED, "'%s' is larger than the address space",
                                   rl_escape_str(name, sizeof name, path)));
    const uint8_t *data = nothing;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            return give_up(fd, rl_fail_errno(err, RL_ERR_IO, errno, "cannot map '%s' (%" PRIu64 " bytes)",
                                             rl_escape_str(name, sizeof name, path), (uint64_t)st.st_size));
        data = p;
    }
    *out = (rl_mapping){data, (uint64_t)st.st_size, fd};
    return RL_OK;
}

void rl_mapping_close(rl_mapping *m)
{
    if (!m || !m->data) return;
    if (m->size > 0) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    close(m->fd);
    *m = (rl_mapping){NULL, 0, -1};
}

void rl_mapping_advise(const rl_mapping *m, uint64_t offset, uint64_t bytes, rl_advice advice)
{
    int hint = POSIX_MADV_NORMAL;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (offset >= m->size || bytes == 0) return;
    if (bytes > m->size - offset) bytes = m->size - offset;
    uint64_t begin = offset / page * page, end = offset + bytes;
    if (advice == RL_ADVICE_DONTNEED) {
        /* Only whole pages of the range: the neighbours' data stays in memory. */
        begin = (offset + page - 1) / page * page;
        if (end != m->size) end = end / page * page;
        if (begin >= end) return;
    }
    void *at = (void *)(uintptr_t)(m->data + begin);
    size_t length = (size_t)(end - begin);
    switch (advice) {
    case RL_ADVICE_NORMAL:
        break;
    case RL_ADVICE_WILLNEED:
        hint = POSIX_MADV_WILLNEED;
        break;
    case RL_ADVICE_RANDOM:
        hint = POSIX_MADV_RANDOM;
        break;
    case RL_ADVICE_DONTNEED:
        (void)madvise(at, length, MADV_DONTNEED);
        return; /* glibc makes the POSIX call do nothing */
    case RL_ADVICE_HUGEPAGE:
#if defined(MADV_HUGEPAGE)
        (void)madvise(at, length, MADV_HUGEPAGE);
#endif
        return;
    }
    (void)posix_madvise(at, length, hint);
}

rl_status rl_mapping_load(const rl_mapping *m, uint64_t offset, uint64_t bytes, bool lock, rl_error *err)
{
    if (offset >= m->size || bytes == 0) return RL_OK;
    if (bytes > m->size - offset) bytes = m->size - offset;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = offset / page * page, end = offset + bytes;
    rl_mapping_advise(m, begin, end - begin, RL_ADVICE_WILLNEED); /* large reads; page by page would be many small ones */
    if (lock && mlock(m->data + begin, (size_t)(end - begin)) != 0)
        return rl_fail_errno(err, RL_ERR_MEMORY, errno, "cannot lock %" PRIu64 " bytes of the file in memory (see ulimit -l)",
                             end - begin);
    if (lock) return RL_OK;
    uint8_t sum = 0;
    for (uint64_t at = begin; at < end; at += page)
        sum ^= *(const volatile uint8_t *)(m->data + at);
    (void)sum;
    return RL_OK;
}

rl_status rl_pread_all(int fd, void *buf, size_t n, uint64_t offset, const char *name, rl_error *err)
{
    char safe[NAME_MAX_SHOWN];
    size_t done = 0;
    if (offset > INT64_MAX || n > INT64_MAX - offset)
        return rl_fail(err, RL_ERR_IO, "cannot read '%s': offset %" PRIu64 " is out of range",
                       rl_escape_str(safe, sizeof safe, name), offset);
    while (done < n) {
        size_t want = n - done < TRANSFER_MAX ? n - done : TRANSFER_MAX;
        ssize_t got = pread(fd, (char *)buf + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return rl_fail_errno(err, RL_ERR_IO, errno, "cannot read '%s' at offset %" PRIu64,
                                 rl_escape_str(safe, sizeof safe, name), offset + done);
        if (got == 0)
            return rl_fail(err, RL_ERR_IO, "'%s' ends at offset %" PRIu64 ", expected %zu bytes from offset %" PRIu64,
                           rl_escape_str(safe, sizeof safe, name), offset + done, n, offset);
        done += (size_t)got;
    }
    return RL_OK;
}

/* Makes room for at least one more byte and the terminator; the buffer never grows much beyond the limit. */
static bool grow(char **data, size_t *cap, size_t used, size_t limit)
{
    if (used + 2 <= *cap) return true;
    size_t bigger = *cap < 32768 ? 65536 : *cap > SIZE_MAX / 2 ? SIZE_MAX : *cap * 2;
    if (limit < SIZE_MAX - 2 && bigger > limit + 2) bigger = limit + 2; /* one byte more shows that there is too much */
    char *p = bigger > *cap ? rl_realloc(*data, bigger, 1) : NULL;
    if (!p) return false;
    *data = p;
    *cap = bigger;
    return true;
}

static rl_status read_stream(int fd, const char *name, size_t limit, char **data, size_t *size, rl_error *err)
{
    char *buf = NULL;
    size_t cap = 0, used = 0;
    rl_status status = RL_OK;
    for (;;) {
        if (!grow(&buf, &cap, used, limit)) {
            status = rl_fail(err, RL_ERR_MEMORY, "not enough memory to read %s", name);
            break;
        }
        size_t want = cap - 1 - used < TRANSFER_MAX ? cap - 1 - used : TRANSFER_MAX;
        ssize_t got = read(fd, buf + used, want);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = rl_fail_errno(err, RL_ERR_IO, errno, "cannot read %s", name);
            break;
        }
        if (got == 0) break;
        used += (size_t)got;
        if (used > limit) {
            status = rl_fail(err, RL_ERR_LIMIT, "%s is larger than the limit of %zu bytes", name, limit);
            break;
        }
    }
    if (status != RL_OK) {
        free(buf);
        return status;
    }
    buf[used] = 0;
    *data = buf;
    *size = used;
    return RL_OK;
}

rl_status rl_read_file(const char *path, size_t limit, char **data, size_t *size, rl_error *err)
{
    char name[NAME_MAX_SHOWN], quoted[NAME_MAX_SHOWN + 2];
    if (strcmp(path, "-") == 0) return read_stream(STDIN_FILENO, "standard input", limit, data, size, err);
    snprintf(quoted, sizeof quoted, "'%s'", rl_escape_str(name, sizeof name, path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return rl_fail_errno(err, RL_ERR_IO, errno, "cannot open %s", quoted);
    return give_up(fd, read_stream(fd, quoted, limit, data, size, err));
}
