#!/usr/bin/env node
// Writes a GGUF file that holds nothing but a tokenizer.
//   vocab_gguf.mjs MODEL.gguf OUT.gguf         the tokenizer keys of a model, as they are
//   vocab_gguf.mjs tokenizer.json OUT.gguf     a Qwen tokenizer description (151,936 entries after
//                                              padding), with the chat template of tokenizer_config.json beside it
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const [input, output] = process.argv.slice(2);
if (!output) {
  console.error('usage: vocab_gguf.mjs MODEL.gguf|tokenizer.json OUT.gguf');
  process.exit(2);
}
const U32 = 4, I32 = 5, BOOL = 7, STR = 8, ARR = 9;
const SIZES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };

const u32 = (v) => { const b = Buffer.alloc(4); b.writeUInt32LE(v); return b; };
const i32 = (v) => { const b = Buffer.alloc(4); b.writeInt32LE(v); return b; };
const u64 = (v) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(v)); return b; };
const str = (s) => { const b = Buffer.from(s, 'utf8'); return Buffer.concat([u64(b.length), b]); };
const array = (type, items, put) => Buffer.concat([u32(type), u64(items.length), ...items.map(put)]);

function write(entries) { // [key, type, bytes of the value]
  const parts = [Buffer.from('GGUF'), u32(3), u64(0), u64(entries.length)];
  for (const [key, type, bytes] of entries) parts.push(str(key), u32(type), bytes);
  writeFileSync(output, Buffer.concat(parts));
}

function fromModel(file) {
  let at = 24;
  const skip = (type) => {
    if (type === STR) at += 8 + Number(file.readBigUInt64LE(at));
    else if (type === ARR) {
      const of = file.readUInt32LE(at), n = Number(file.readBigUInt64LE(at + 4));
      at += 12;
      if (of in SIZES) at += n * SIZES[of];
      else for (let i = 0; i < n; i++) skip(of);
    } else at += SIZES[type];
  };
  const entries = [];
  const n = Number(file.readBigUInt64LE(16));
  for (let i = 0; i < n; i++) {
    const len = Number(file.readBigUInt64LE(at));
    const key = file.toString('utf8', at + 8, at + 8 + len);
    at += 8 + len;
    const type = file.readUInt32LE(at);
    const start = (at += 4);
    skip(type);
    if (key.startsWith('tokenizer.') || key === 'general.architecture') entries.push([key, type, file.subarray(start, at)]);
  }
  return entries;
}

function fromDescription(json) {
  const SIZE = 151936;
  const tokens = Array.from({ length: SIZE }, (_, i) => `[PAD${i}]`), types = new Array(SIZE).fill(5);
  for (const [text, id] of Object.entries(json.model.vocab)) { tokens[id] = text; types[id] = 1; }
  for (const t of json.added_tokens) {
    tokens[t.id] = t.content;
    types[t.id] = t.special || /^<\|.*\|>$/.test(t.content) ? 3 : 4;
  }
  const merges = json.model.merges.map((m) => (Array.isArray(m) ? m.join(' ') : m));
  const id = (text) => json.added_tokens.find((t) => t.content === text).id;
  return [
    ['general.architecture', STR, str('qwen3next')],
    ['tokenizer.ggml.model', STR, str('gpt2')],
    ['tokenizer.ggml.pre', STR, str('qwen2')],
    ['tokenizer.ggml.tokens', ARR, array(STR, tokens, str)],
    ['tokenizer.ggml.token_type', ARR, array(I32, types, i32)],
    ['tokenizer.ggml.merges', ARR, array(STR, merges, str)],
    ['tokenizer.ggml.eos_token_id', U32, u32(id('<|im_end|>'))],
    ['tokenizer.ggml.padding_token_id', U32, u32(id('<|endoftext|>'))],
    ['tokenizer.ggml.add_bos_token', BOOL, Buffer.from([0])],
  ];
}

function chatTemplate(path) {
  const text = existsSync(path) && JSON.parse(readFileSync(path, 'utf8')).chat_template;
  return text ? [['tokenizer.chat_template', STR, str(text)]] : [];
}

const file = readFileSync(input);
write(file.toString('latin1', 0, 4) === 'GGUF'
  ? fromModel(file)
  : [...fromDescription(JSON.parse(file.toString('utf8'))), ...chatTemplate(join(dirname(input), 'tokenizer_config.json'))]);
