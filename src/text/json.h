/* text/json: JSON as chat templates need it: the text of numbers and the order of members are kept, and text that is still
 * being written can be passed on at any moment as something that can be closed into a valid value.
 *
 * Canonical text is what Python's json.dumps(value, ensure_ascii=False) writes: ", " and ": " between, escapes only for quotes,
 * backslashes and control characters. The models were trained on it. */
#ifndef RL_TEXT_JSON_H
#define RL_TEXT_JSON_H

#include "text/buffer.h"

#define RL_JSON_DEPTH 256 /* nested containers */

typedef enum rl_json_state {
    RL_JSON_VALUE,
    RL_JSON_ELEMENT,     /* a value after a comma in an array */
    RL_JSON_FIRST_VALUE, /* a value or ] */
    RL_JSON_KEY,         /* after a comma in an object */
    RL_JSON_FIRST_KEY,   /* a key or } */
    RL_JSON_COLON,
    RL_JSON_NEXT, /* a comma or the container's end */
    RL_JSON_STRING,
    RL_JSON_ESCAPE,
    RL_JSON_HEX,
    RL_JSON_SCALAR,
    RL_JSON_DONE,
    RL_JSON_BAD
} rl_json_state;

/* Reads JSON a byte at a time and writes canonical text. Zero-initialise; set lenient to accept what models get wrong: raw
 * control characters in strings, unknown escapes, a comma before a closing bracket, True, False and None. */
typedef struct rl_json_stream {
    rl_json_state state;
    bool lenient;
    bool in_key; /* the string being read is a key */
    uint16_t depth;
    uint8_t is_object[RL_JSON_DEPTH / 8]; /* kind of each open container */
    uint8_t n_hex;
    uint16_t hex, high; /* of \uXXXX; a high surrogate that waits for its other half */
    rl_buffer ahead;    /* a comma, key and colon not written yet: they go out with their value */
    rl_buffer scalar;   /* a number or word, whole before it is judged */
} rl_json_stream;

/* Takes one byte of well-formed UTF-8 text. At DONE and BAD nothing more is taken. */
void rl_json_push(rl_json_stream *j, char c, rl_buffer *out);
/* End of the input: completes a number at the top level. */
void rl_json_end(rl_json_stream *j, rl_buffer *out);
/* Closes what is open, so that everything written so far is a valid value (if anything was written). */
void rl_json_close(rl_json_stream *j, rl_buffer *out);
void rl_json_free(rl_json_stream *j);

/* Canonical text of one value, strictly read; false (out then holds rubbish) when it is not valid JSON in valid UTF-8. */
bool rl_json_normalise(rl_slice text, rl_buffer *out);

/* ---- Walking canonical text ---------------------------------------------------------------------------------------------- */

/* First character of the value tells its kind: { [ " t f n or a number. '\0' for an empty slice. */
static inline char rl_json_kind(rl_slice value)
{
    return value.size > 0 ? value.data[0] : '\0';
}
/* The next member or element of a container. *cursor starts at 0; key (may be NULL) keeps its quotes and is empty for arrays.
 */
bool rl_json_next(rl_slice container, size_t *cursor, rl_slice *key, rl_slice *value);
/* The member of that name (plain ASCII), or an empty slice. */
rl_slice rl_json_member(rl_slice object, const char *name);
/* Appends the text of a string value. */
void rl_json_decode(rl_slice string, rl_buffer *out);
/* Appends text as the inside of a JSON string (without quotes). */
void rl_json_escape(rl_slice text, rl_buffer *out);

#endif
