/* base/file, output: a file appears under its name only when it is complete and on the disk. */
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES   ((size_t)256 << 10)
#define NAME_MAX_SHOWN 512

struct rl_out_file {
    int fd;
    rl_status failed; /* the first failure: later writes and the commit repeat it */
    uint64_t position;
    size_t buffered;
    char *path;      /* the final name, links resolved */
    char *temporary; /* its neighbour, so that rename stays within one file system */
    char buffer[BUFFER_BYTES];
};

static void release(rl_out_file *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f->temporary);
    free(f);
}

/* The name that rename will replace. Links are followed, so that the file is replaced and not the link to it. */
static rl_status resolve(const char *path, char **out, mode_t *mode, rl_error *err)
{
    char name[NAME_MAX_SHOWN];
    struct stat st;
    *mode = 0;
    if (stat(path, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            return rl_fail(err, RL_ERR_IO, "cannot write '%s': it exists and is not a file",
                           rl_escape_str(name, sizeof name, path));
        *mode = st.st_mode & 07777;
        *out = realpath(path, NULL);
    } else {
        *out = strdup(path);
    }
    if (!*out) return rl_fail_errno(err, RL_ERR_IO, errno, "cannot resolve '%s'", rl_escape_str(name, sizeof name, path));
    return RL_OK;
}

/* Creates a neighbour whose name no other writer uses: process id and a counter, retried on collision. */
static int create_neighbour(const char *path, char *out, size_t cap)
{
    static atomic_uint serial;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(out, cap, "%s.%ld-%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
        int fd = open(out, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    errno = EEXIST;
    return -1;
}

rl_status rl_out_open(const char *path, rl_out_file **out, rl_error *err)
{
    char name[NAME_MAX_SHOWN];
    mode_t mode;
    rl_out_file *f = rl_alloc(1, sizeof *f);
    if (!f) return rl_fail(err, RL_ERR_MEMORY, "not enough memory to write '%s'", rl_escape_str(name, sizeof name, path));
    f->fd = -1;
    f->failed = RL_OK;
    f->position = 0;
    f->buffered = 0;
    f->path = f->temporary = NULL;
    rl_status status = resolve(path, &f->path, &mode, err);
    if (status != RL_OK) {
        release(f);
        return status;
    }
    size_t cap = strlen(f->path) + 48;
    f->temporary = rl_alloc(cap, 1);
    if (f->temporary) f->fd = create_neighbour(f->path, f->temporary, cap);
    if (f->fd < 0) {
        int cause = f->temporary ? errno : ENOMEM;
        release(f);
        return rl_fail_errno(err, RL_ERR_IO, cause, "cannot create a file beside '%s'", rl_escape_str(name, sizeof name, path));
    }
    if (mode != 0) (void)fchmod(f->fd, mode); /* a replaced file keeps its permissions where the system lets it */
    *out = f;
    return RL_OK;
}

static rl_status write_through(rl_out_file *f, const void *data, size_t n, rl_error *err)
{
    char name[NAME_MAX_SHOWN];
    const char *p = data;
    while (n > 0) {
        ssize_t done = write(f->fd, p, n < (size_t)1 << 30 ? n : (size_t)1 << 30);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            f->failed = RL_ERR_IO;
            return rl_fail_errno(err, RL_ERR_IO, done < 0 ? errno : ENOSPC, "cannot write '%s'",
                                 rl_escape_str(name, sizeof name, f->path));
        }
        p += done;
        n -= (size_t)done;
    }
    return RL_OK;
}

static rl_status flush(rl_out_file *f, rl_error *err)
{
    size_t n = f->buffered;
    f->buffered = 0;
    return write_through(f, f->buffer, n, err);
}

static rl_status already_failed(const rl_out_file *f, rl_error *err)
{
    char name[NAME_MAX_SHOWN];
    return rl_fail(err, f->failed, "cannot write '%s': an earlier write failed", rl_escape_str(name, sizeof name, f->path));
}

rl_status rl_out_write(rl_out_file *f, const void *data, size_t n, rl_error *err)
{
    if (f->failed != RL_OK) return already_failed(f, err);
    if (n > BUFFER_BYTES - f->buffered) {
        rl_status status = flush(f, err);
        if (status == RL_OK && n >= BUFFER_BYTES) {
            status = write_through(f, data, n, err);
            if (status == RL_OK) f->position += n;
            return status;
        }
        if (status != RL_OK) return status;
    }
    if (n > 0) memcpy(f->buffer + f->buffered, data, n);
    f->buffered += n;
    f->position += n;
    return RL_OK;
}

uint64_t rl_out_position(const rl_out_file *f)
{
    return f->position;
}

/* Makes the rename itself durable; file systems that cannot sync a directory are as safe as they can be. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = dir ? open(dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(dir);
}

rl_status rl_out_commit(rl_out_file *f, rl_error *err)
{
    char name[NAME_MAX_SHOWN];
    rl_status status = f->failed != RL_OK ? already_failed(f, err) : flush(f, err);
    if (status == RL_OK && fsync(f->fd) != 0)
        status =
            rl_fail_errno(err, RL_ERR_IO, errno, "cannot write '%s' to the disk", rl_escape_str(name, sizeof name, f->path));
    if (status == RL_OK) {
        int fd = f->fd;
        f->fd = -1;
        /* Network file systems report a full disk here. EINTR leaves the descriptor closed on Linux. */
        if (close(fd) != 0 && errno != EINTR)
            status = rl_fail_errno(err, RL_ERR_IO, errno, "cannot finish '%s'", rl_escape_str(name, sizeof name, f->path));
    }
    if (status == RL_OK && rename(f->temporary, f->path) != 0)
        status = rl_fail_errno(err, RL_ERR_IO, errno, "cannot put '%s' in place", rl_escape_str(name, sizeof name, f->path));
    if (status != RL_OK) {
        rl_out_abort(f);
        return status;
    }
    sync_directory(f->path);
    release(f);
    return RL_OK;
}

void rl_out_abort(rl_out_file *f)
{
    if (!f) return;
    (void)unlink(f->temporary);
    release(f);
}
