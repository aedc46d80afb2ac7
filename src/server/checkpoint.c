/* server/checkpoint: states of prompts on disk.
 *
 * A file is a saved session (docs/engine.md: versioned, with checksums, bound to model and settings) at the end of a prompt or
 * of a system turn, which is where a later request can continue. It appears under its name only when it is complete. The folder
 * is bounded: the files used longest ago go first; the time of use is the file's own, so that it outlives the server. */
#include "sessions.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX     "redlite-"
#define SUFFIX     ".state"
#define MIN_TOKENS 64 /* shorter prompts are computed faster than read */

typedef struct checkpoint {
    char name[64];
    int32_t *ids;
    uint32_t n;
    uint64_t bytes;
    double used; /* Unix time */
} checkpoint;

struct srv_checkpoints {
    rl_server *server;
    const char *dir;
    uint64_t cap, bytes;
    checkpoint *list;
    size_t n, room;
};

static bool path_of(const struct srv_checkpoints *c, const char *name, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%s/%s", c->dir, name);
    return n > 0 && (size_t)n < cap;
}

static checkpoint *add(struct srv_checkpoints *c)
{
    if (c->n == c->room) {
        size_t room = c->room ? c->room * 2 : 16;
        checkpoint *grown = realloc(c->list, room * sizeof *grown);
        if (!grown) return NULL;
        c->list = grown;
        c->room = room;
    }
    c->list[c->n] = (checkpoint){0};
    return &c->list[c->n++];
}

static void forget(struct srv_checkpoints *c, size_t i, bool remove_file)
{
    char path[4096];
    if (remove_file && path_of(c, c->list[i].name, path, sizeof path)) unlink(path);
    c->bytes -= c->list[i].bytes;
    free(c->list[i].ids);
    c->list[i] = c->list[--c->n];
}

static void keep_within_cap(struct srv_checkpoints *c)
{
    while (c->bytes > c->cap && c->n > 0) {
        size_t oldest = 0;
        for (size_t i = 1; i < c->n; i++)
            if (c->list[i].used < c->list[oldest].used) oldest = i;
        forget(c, oldest, true);
    }
}

/* A file that is not for this server stays where it is: it may be for another model. */
static void read_file(struct srv_checkpoints *c, const char *name)
{
    char path[4096];
    struct stat st;
    rl_error err = {0};
    if (!path_of(c, name, path, sizeof path) || stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return;
    checkpoint *p = add(c);
    if (!p) return;
    snprintf(p->name, sizeof p->name, "%s", name);
    if (rl_state_tokens(c->server->engine, path, &p->ids, &p->n, &err) != RL_OK) {
        rl_log(RL_LOG_WARN, "checkpoint skipped: %s", err.text);
        c->n--;
        return;
    }
    p->bytes = (uint64_t)st.st_size;
    p->used = (double)st.st_mtime;
    c->bytes += p->bytes;
}

/* A file that was being written when its process died. */
static void remove_remains(const struct srv_checkpoints *c, const char *name)
{
    char path[4096];
    const char *at = strstr(name, SUFFIX ".");
    long pid = at ? strtol(at + strlen(SUFFIX "."), NULL, 10) : 0;
    if (pid <= 0 || pid == (long)getpid() || kill((pid_t)pid, 0) == 0 || errno != ESRCH) return;
    if (path_of(c, name, path, sizeof path)) unlink(path);
}

struct srv_checkpoints *srv_checkpoints_open(rl_server *s)
{
    struct srv_checkpoints *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s;
    c->dir = s->o.state_dir;
    c->cap = (uint64_t)s->o.state_mib << 20;
    mkdir(c->dir, 0700); /* states hold what people wrote */
    DIR *d = opendir(c->dir);
    if (!d) {
        rl_log(RL_LOG_ERROR, "cannot open the folder %s: %s", c->dir, strerror(errno));
        free(c);
        return NULL;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), suffix = strlen(SUFFIX);
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0) continue;
        if (n > suffix && n < sizeof c->list->name && strcmp(e->d_name + n - suffix, SUFFIX) == 0)
            read_file(c, e->d_name);
        else if (n > 4 && strcmp(e->d_name + n - 4, ".tmp") == 0)
            remove_remains(c, e->d_name);
    }
    closedir(d);
    keep_within_cap(c);
    return c;
}

void srv_checkpoints_free(struct srv_checkpoints *c)
{
    if (!c) return;
    while (c->n > 0)
        forget(c, c->n - 1, false);
    free(c->list);
    free(c);
}

uint32_t srv_checkpoint_find(const struct srv_checkpoints *c, const int32_t *ids, size_t n, size_t *which)
{
    uint32_t most = 0;
    for (size_t i = 0; c && i < c->n; i++) {
        const checkpoint *p = &c->list[i];
        if (p->n <= most || p->n > n || memcmp(p->ids, ids, p->n * sizeof *ids) != 0) continue;
        most = p->n;
        *which = i;
    }
    return most;
}

bool srv_checkpoint_load(struct srv_checkpoints *c, size_t which, rl_session *session)
{
    char path[4096];
    rl_error err = {0};
    checkpoint *p = &c->list[which];
    if (!path_of(c, p->name, path, sizeof path)) return false;
    rl_status st = rl_session_load(session, path, &err);
    bool same = st == RL_OK && rl_session_position(session) == p->n &&
                memcmp(rl_session_tokens(session), p->ids, p->n * sizeof *p->ids) == 0;
    if (same) {
        struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
        utimensat(AT_FDCWD, path, now, 0);
        p->used = (double)time(NULL);
        return true;
    }
    rl_log(RL_LOG_WARN, "checkpoint not used: %s", st == RL_OK ? "it holds another text than it did" : err.text);
    rl_session_reset(session);
    forget(c, which, st == RL_ERR_FORMAT);
    return false;
}

static uint64_t hash_ids(const int32_t *ids, uint32_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)ids[i]) * 0x100000001b3ull;
    return h;
}

static bool is_saved(const struct srv_checkpoints *c, const int32_t *ids, uint32_t n)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].n == n && memcmp(c->list[i].ids, ids, n * sizeof *ids) == 0) return true;
    return false;
}

static void save_at(struct srv_checkpoints *c, rl_session *session, uint32_t at)
{
    char path[4096];
    rl_error err = {0};
    struct stat st;
    rl_session *copy = NULL;
    const int32_t *ids = rl_session_tokens(session);
    checkpoint fresh = {.n = at, .used = (double)time(NULL), .ids = malloc(at * sizeof *ids)};
    if (!fresh.ids) return;
    memcpy(fresh.ids, ids, at * sizeof *ids);
    snprintf(fresh.name, sizeof fresh.name, PREFIX "%016llx-%u" SUFFIX, (unsigned long long)hash_ids(ids, at), at);
    bool ok = path_of(c, fresh.name, path, sizeof path) &&
              rl_session_fork_at(session, at, rl_session_capacity(session), &copy, &err) == RL_OK &&
              rl_session_save(copy, path, &err) == RL_OK && stat(path, &st) == 0;
    rl_session_free(copy);
    checkpoint *p = ok ? add(c) : NULL;
    if (!p) {
        rl_log(RL_LOG_WARN, "no checkpoint of %u tokens: %s", at, err.text);
        free(fresh.ids);
        return;
    }
    *p = fresh;
    p->bytes = (uint64_t)st.st_size;
    c->bytes += p->bytes;
    keep_within_cap(c);
}

void srv_checkpoint_save(struct srv_checkpoints *c, rl_session *session)
{
    uint32_t marks[RL_SESSION_MARKS], n = session ? rl_session_marks(session, marks, RL_SESSION_MARKS) : 0;
    for (uint32_t i = 0; i < n && i < RL_SESSION_MARKS; i++)
        if (marks[i] >= MIN_TOKENS && !is_saved(c, rl_session_tokens(session), marks[i])) save_at(c, session, marks[i]);
}
