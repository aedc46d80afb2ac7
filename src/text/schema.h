/* text/schema: the declared functions of a request, as far as reading calls needs them: names and types of parameters. */
#ifndef RL_TEXT_SCHEMA_H
#define RL_TEXT_SCHEMA_H

#include "text/buffer.h"

typedef struct rl_schema_tool {
    rl_buffer json; /* canonical */
    rl_buffer name;
    rl_slice properties; /* in json; empty when none are declared */
} rl_schema_tool;

typedef struct rl_schema {
    rl_schema_tool *tools;
    size_t n;
} rl_schema;

/* Types a parameter may have, as bits. No bit: nothing is declared. */
enum {
    RL_SCHEMA_STRING = 1,
    RL_SCHEMA_NUMBER = 2,
    RL_SCHEMA_BOOL = 4,
    RL_SCHEMA_OBJECT = 8,
    RL_SCHEMA_ARRAY = 16,
    RL_SCHEMA_NULL = 32
};

/* Tools as in rl_chat_request; one that is not JSON or has no name is RL_ERR_ARGUMENT. */
rl_status rl_schema_create(rl_schema *s, const rl_slice *tools, size_t n, rl_error *err);
void rl_schema_free(rl_schema *s);

/* NULL when there is no function of that name. */
const rl_schema_tool *rl_schema_find(const rl_schema *s, rl_slice name);
/* The position of a parameter among the declared ones, SIZE_MAX when it is not (t may be NULL), and its types. */
size_t rl_schema_parameter(const rl_schema_tool *t, rl_slice name, unsigned *types);

/* Appends the JSON value that the text of a parameter stands for: what the types allow, else a string. */
void rl_schema_convert(unsigned types, rl_slice text, rl_buffer *out);

#endif
