/* text/unicode: the three character classes the splitter needs, and UTF-8 at the level of single characters. */
#ifndef RL_TEXT_UNICODE_H
#define RL_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum rl_char_class { RL_CHAR_OTHER, RL_CHAR_LETTER, RL_CHAR_NUMBER, RL_CHAR_SPACE } rl_char_class;

/* General categories L* and N*, property White_Space, everything else; any value of cp is allowed. */
rl_char_class rl_char_class_of(uint32_t cp);

/* Bytes of the character that starts at s (n > 0 bytes available) if it is well-formed UTF-8 (shortest form, no surrogates, at
 * most U+10FFFF), else 0. */
size_t rl_utf8_valid_length(const char *s, size_t n);
/* True when all n bytes are well-formed. */
bool rl_utf8_is_valid(const char *s, size_t n);
/* Writes cp (<= 0x10FFFF; surrogates are written as they are) and returns 1..4. */
size_t rl_utf8_encode(uint32_t cp, char *out);

#endif
