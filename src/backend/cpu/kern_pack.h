/* backend/cpu/kern_pack: 16 rows of blocks, interleaved.
 *
 * Vector kernels hold one weight row per 32-bit lane. For that the bytes of 16 rows' blocks are cut into 32-bit words and word
 * i of all rows stored side by side: a plane of 64 bytes. What does not fit whole words (the scale in front of most blocks) is
 * kept apart. Nothing is recoded: the packed form has the same bytes and the same size as the file's.
 *
 * A packed row group is, for all blocks of the rows: the scales [block][row], padded to 64 bytes, then the planes
 * [block][word][row]. Plain types are one element per column: planes of 16 elements, no scales. */
#ifndef RL_CPU_KERN_PACK_H
#define RL_CPU_KERN_PACK_H

#include "gguf/gguf.h"

/* first: offset of the first word in the block; words: their number; scale_at, scale_bytes: the part kept apart. words == 0: no
 * packed form. element: bytes of a plane's element, 4 but for 16-bit plain types. */
typedef struct rl_pack {
    uint8_t first, words, scale_at, scale_bytes, element;
} rl_pack;

const rl_pack *rl_pack_of(rl_type type);

/* Bytes of a packed row group of n_blocks blocks, and of the scales in front. */
uint64_t rl_pack_scales_bytes(const rl_pack *p, uint32_t n_blocks);
uint64_t rl_pack_group_bytes(const rl_pack *p, uint32_t n_blocks);

/* Packs n_blocks blocks of 16 rows; rows[r] == NULL packs zeros. */
void rl_pack_rows(rl_type type, const uint8_t *const *rows, uint32_t n_blocks, uint8_t *group);
/* Block b of row r again, as in the file. */
void rl_unpack_block(rl_type type, const uint8_t *planes, const uint8_t *scales, uint32_t b, uint32_t r, uint8_t *block);

#endif
