/* text/split: the qwen2 rules that cut a text fragment into the pieces BPE works on. */
#ifndef RL_TEXT_SPLIT_H
#define RL_TEXT_SPLIT_H

#include <stddef.h>

/* End of the piece that starts at p < n. Every lead byte in the text must be followed by its continuation bytes. */
size_t rl_split_next(const char *text, size_t n, size_t p);

#endif
