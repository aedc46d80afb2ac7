/* tests/support/program: see program.h. */
#include "support/program.h"
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM       REDLITE_BINARY_DIR "/redlite"
#define SEEN_MAX      ((size_t)4 << 20)
#define AWAIT_SECONDS 30

static void execute(const char *const *args)
{
    const char *words[64] = {PROGRAM};
    for (int i = 0; args[i] && i < 62; i++)
        words[i + 1] = args[i];
    execv(PROGRAM, (char *const *)words);
    _exit(127);
}

static int wait_status(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* ---- Pipes --------------------------------------------------------------------------------------------------------------- */

/* Streams go through files, so that no order of reading and writing can block. */
static int stream_file(const char *data, size_t n)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    if (n) assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fflush(f), 0);
    int fd = fcntl(fileno(f), F_DUPFD_CLOEXEC, 3);
    assert_true(fd >= 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    fclose(f);
    return fd;
}

static char *contents(int fd, size_t *n)
{
    off_t size = lseek(fd, 0, SEEK_END);
    assert_true(size >= 0);
    char *data = calloc(1, (size_t)size + 1);
    assert_non_null(data);
    assert_int_equal(pread(fd, data, (size_t)size, 0), size);
    close(fd);
    *n = (size_t)size;
    return data;
}

program_result program_run(const char *const *args, const char *input, size_t n)
{
    int in = stream_file(input, input ? n : 0), out = stream_file("", 0), err = stream_file("", 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in, STDIN_FILENO);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        execute(args);
    }
    close(in);
    size_t n_err;
    program_result r = {.status = wait_status(pid)};
    r.out = contents(out, &r.n_out);
    r.err = contents(err, &n_err);
    return r;
}

void program_free(program_result *r)
{
    free(r->out);
    free(r->err);
}

/* ---- A terminal ---------------------------------------------------------------------------------------------------------- */

void program_pty_start(program_pty *p, const char *const *args)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    *p = (program_pty){.seen = calloc(1, SEEN_MAX + 1)};
    assert_non_null(p->seen);
    p->pid = forkpty(&p->fd, NULL, NULL, &size);
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        setenv("TERM", "xterm", 1);
        setenv("LC_ALL", "C", 1);
        setenv("HOME", "/nonexistent", 1);
        execute(args);
    }
}

void program_pty_type(program_pty *p, const char *keys)
{
    size_t n = strlen(keys);
    assert_int_equal(write(p->fd, keys, n), n);
}

/* False at the end. A terminal whose program has ended gives EIO. */
static bool read_more(program_pty *p, int timeout_ms)
{
    struct pollfd f = {.fd = p->fd, .events = POLLIN};
    if (poll(&f, 1, timeout_ms) <= 0) return false;
    ssize_t n = read(p->fd, p->seen + p->n, SEEN_MAX - p->n);
    if (n <= 0) return false;
    for (ssize_t i = 0; i < n; i++) /* the terminal sends no NUL on purpose */
        if (p->seen[p->n + (size_t)i] == 0) p->seen[p->n + (size_t)i] = ' ';
    p->n += (size_t)n;
    return true;
}

void program_pty_await(program_pty *p, const char *text)
{
    time_t end = time(NULL) + AWAIT_SECONDS;
    for (;;) {
        char *found = strstr(p->seen + p->from, text);
        if (found) {
            p->from = (size_t)(found - p->seen) + strlen(text);
            return;
        }
        if (read_more(p, 1000)) continue;
        if (time(NULL) < end && waitpid(p->pid, NULL, WNOHANG | WNOWAIT) == 0) continue;
        print_error("\"%s\" did not appear; the terminal shows:\n%s\n", text, p->seen);
        kill(p->pid, SIGKILL);
        fail();
    }
}

int program_pty_end(program_pty *p)
{
    while (read_more(p, AWAIT_SECONDS * 1000))
        ;
    close(p->fd);
    int status = wait_status(p->pid);
    free(p->seen);
    return status;
}
