/* cli/conversation: see conversation.h. */
#include "conversation.h"
#include "cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT (64u << 20) /* bytes of a conversation file */

/* ---- Turns ----------------------------------------------------------------------------------------------------------- */

bool conv_append(conv_text *t, const char *data, size_t n)
{
    if (n == 0) return true;
    if (n >= SIZE_MAX - t->size) return false;
    char *grown = realloc(t->data, t->size + n + 1);
    if (!grown) return false;
    memcpy(grown + t->size, data, n);
    t->data = grown;
    t->size += n;
    grown[t->size] = 0;
    return true;
}

void conv_text_free(conv_text *t)
{
    free(t->data);
    *t = (conv_text){0};
}

static bool grow(conversation *c)
{
    if (c->n < c->room) return true;
    size_t room = c->room ? c->room * 2 : 16;
    if (room > SIZE_MAX / sizeof *c->turns) return false;
    conv_turn *grown = realloc(c->turns, room * sizeof *grown);
    if (!grown) return false;
    c->turns = grown;
    c->room = room;
    return true;
}

bool conv_add(conversation *c, rl_role role, conv_text content, conv_text reasoning)
{
    if (!grow(c)) {
        conv_text_free(&content);
        conv_text_free(&reasoning);
        return false;
    }
    c->turns[c->n++] = (conv_turn){role, content, reasoning};
    return true;
}

bool conv_set_system(conversation *c, const char *text, size_t n)
{
    conv_text t = {0};
    if (!conv_append(&t, text, n)) return false;
    conv_text_free(&c->system);
    c->system = t;
    return true;
}

void conv_keep(conversation *c, size_t n)
{
    while (c->n > n) {
        c->n--;
        conv_text_free(&c->turns[c->n].content);
        conv_text_free(&c->turns[c->n].reasoning);
    }
}

void conv_free(conversation *c)
{
    conv_keep(c, 0);
    conv_text_free(&c->system);
    free(c->turns);
    *c = (conversation){0};
}

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

static const char *role_name(rl_role role)
{
    return role == RL_ROLE_USER ? "user" : role == RL_ROLE_ASSISTANT ? "assistant" : "system";
}

static bool add_message(json_t *list, rl_role role, const conv_text *content, const conv_text *reasoning)
{
    json_t *m = json_pack("{s:s, s:s%}", "role", role_name(role), "content", content->data ? content->data : "", content->size);
    if (m && reasoning && reasoning->size)
        (void)json_object_set_new(m, "reasoning_content", json_stringn(reasoning->data, reasoning->size));
    return m && json_array_append_new(list, m) == 0;
}

static char *to_json(const conversation *c, const char *model)
{
    json_t *list = json_array();
    bool ok = list && (c->system.size == 0 || add_message(list, RL_ROLE_SYSTEM, &c->system, NULL));
    for (size_t i = 0; ok && i < c->n; i++)
        ok = add_message(list, c->turns[i].role, &c->turns[i].content, &c->turns[i].reasoning);
    json_t *top = ok ? json_pack("{s:s, s:O}", "model", model, "messages", list) : NULL;
    char *text = top ? json_dumps(top, JSON_INDENT(2)) : NULL;
    json_decref(list);
    json_decref(top);
    return text;
}

rl_status conv_save(const conversation *c, const char *path, const char *model, rl_error *err)
{
    char *text = to_json(c, model);
    if (!text) return cli_fail(err, RL_ERR_MEMORY, "no memory to write the conversation");
    rl_out_file *f = NULL;
    rl_status st = rl_out_open(path, &f, err);
    if (st == RL_OK) {
        st = rl_out_write(f, text, strlen(text), err);
        if (st == RL_OK) st = rl_out_write(f, "\n", 1, err);
        if (st == RL_OK)
            st = rl_out_commit(f, err);
        else
            rl_out_abort(f);
    }
    free(text);
    return st;
}

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

static rl_status take_text(const json_t *message, const char *member, bool needed, size_t i, conv_text *out, rl_error *err)
{
    const json_t *text = json_object_get(message, member);
    if (json_is_null(text) || (!text && !needed)) return RL_OK;
    if (!json_is_string(text))
        return cli_fail(err, RL_ERR_FORMAT, "message %zu: \"%s\" %s; expected a string", i + 1, member,
                        text ? "is not a string" : "is missing");
    if (conv_append(out, json_string_value(text), json_string_length(text))) return RL_OK;
    return cli_fail(err, RL_ERR_MEMORY, "no memory for message %zu", i + 1);
}

static rl_status take_message(conversation *c, const json_t *message, size_t i, rl_error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    char shown[64];
    if (!role) return cli_fail(err, RL_ERR_FORMAT, "message %zu has no \"role\"; expected system, user or assistant", i + 1);
    bool system = strcmp(role, "system") == 0, user = strcmp(role, "user") == 0;
    if (!system && !user && strcmp(role, "assistant") != 0)
        return cli_fail(err, RL_ERR_FORMAT, "message %zu has the role \"%s\"; expected system, user or assistant", i + 1,
                        rl_escape(shown, sizeof shown, role, strlen(role)));
    if (system && i > 0) return cli_fail(err, RL_ERR_FORMAT, "message %zu is a system message; only the first can be", i + 1);
    conv_text content = {0}, reasoning = {0};
    rl_status st = take_text(message, "content", true, i, &content, err);
    if (st == RL_OK && !system && !user) st = take_text(message, "reasoning_content", false, i, &reasoning, err);
    if (st != RL_OK) {
        conv_text_free(&content);
        conv_text_free(&reasoning);
        return st;
    }
    if (system) {
        c->system = content;
        return RL_OK;
    }
    if (conv_add(c, user ? RL_ROLE_USER : RL_ROLE_ASSISTANT, content, reasoning)) return RL_OK;
    return cli_fail(err, RL_ERR_MEMORY, "no memory for message %zu", i + 1);
}

static rl_status from_json(conversation *c, const char *text, size_t n, rl_error *err)
{
    json_error_t where;
    json_t *top = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!top) return cli_fail(err, RL_ERR_FORMAT, "line %d: %s", where.line, where.text);
    const json_t *list = json_is_array(top) ? top : json_object_get(top, "messages");
    rl_status st = RL_OK;
    if (!json_is_array(list)) st = cli_fail(err, RL_ERR_FORMAT, "there is no array \"messages\"");
    for (size_t i = 0; st == RL_OK && i < json_array_size(list); i++)
        st = take_message(c, json_array_get(list, i), i, err);
    json_decref(top);
    return st;
}

rl_status conv_load(conversation *c, const char *path, rl_error *err)
{
    char *text = NULL, shown[256];
    size_t n = 0;
    rl_status st = rl_read_file(path, FILE_LIMIT, &text, &n, err);
    if (st != RL_OK) return st;
    conversation loaded = {0};
    rl_error why = {0};
    st = from_json(&loaded, text, n, &why);
    free(text);
    if (st != RL_OK) {
        conv_free(&loaded);
        return cli_fail(err, st, "'%s' is not a conversation: %s", rl_escape(shown, sizeof shown, path, strlen(path)),
                        why.text);
    }
    conv_free(c);
    *c = loaded;
    return RL_OK;
}
