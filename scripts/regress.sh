#!/usr/bin/env bash
# regress.sh [MODEL]: everything that must stay as it is, as numbered checks of one line each: warnings, unit tests, and the
# program on a model (default: the bundled one) in all its modes. What cannot run here is skipped by name with the reason.
# CHECKS_JSON=FILE writes the list as JSON. The comparison with llama.cpp in depth is parity.sh and quick_parity.sh.
. "$(dirname "$0")/checks.sh"
model=${1:-$bundled}
[ -f "$model" ] || { echo "regress: no file $model" >&2 && exit 2; }
cd "$root" || exit 2
has_option() { "$redlite" "$1" --help 2>/dev/null | grep -q -e "^ *\(-., \)\? *--$2\b"; }
has_command() { "$redlite" help | grep -q "^  $1 "; }

# ---- Build ---------------------------------------------------------------------------------------------------------------

no_warnings() { # COMPILER
    local folder=$root/build-warnings-$1
    cmake --preset release -B "$folder" -DCMAKE_C_COMPILER="$1" -DREDLITE_WERROR=ON &&
        cmake --build "$folder" && echo "$("$1" -dumpversion), warnings are errors"
}
for compiler in gcc clang; do
    if command -v $compiler >/dev/null; then
        check "no warnings, $compiler" no_warnings $compiler
    else
        skip "no warnings, $compiler" "not installed"
    fi
done
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    check "format" make -s format-check
else
    skip "format" "clang-format 14 is not installed"
fi
check "program is current" cmake --build build

# ---- Unit tests ----------------------------------------------------------------------------------------------------------

unit() {
    ctest --test-dir build -R "^$1\$" --output-on-failure --no-tests=error || return 1
    awk '/^\[  PASSED  \]/ { p += $4 } /^\[  SKIPPED \]/ { s += $4 } END { printf "%d passed, %d skipped\n", p, s }' \
        build/Testing/Temporary/LastTest.log
}
for name in $(ctest --test-dir build -N | sed -n 's/^ *Test *#[0-9]*: //p'); do
    check "unit tests: ${name#test_}" unit "$name"
done

# ---- Tokenizer -----------------------------------------------------------------------------------------------------------

text=$root/tests/data/eval.txt
round_trip() {
    "$redlite" tokenize -q --ids --plain -m "$model" -f "$text" >"$work/ids" &&
        "$redlite" detokenize -q -m "$model" -f "$work/ids" >"$work/text" && cmp "$text" "$work/text" &&
        echo "$(count "$work/ids") ids, $(wc -c <"$text") bytes"
}
control_tokens() {
    local one many
    one=$("$redlite" tokenize -q --count -m "$model" -p '<|im_end|>') &&
        many=$("$redlite" tokenize -q --count --plain -m "$model" -p '<|im_end|>') &&
        echo "$one id as control token, $many as text" && [ "$one" -eq 1 ] && [ "$many" -gt 1 ]
}
check "tokenizer: text comes back byte by byte" round_trip
if "$redlite" tokenize -q --ids -m "$model" -p '<|im_end|>' | grep -q '^ *[0-9]* *$'; then
    check "tokenizer: control tokens only where asked for" control_tokens
else
    skip "tokenizer: control tokens only where asked for" "the vocabulary has none"
fi

# ---- Kernels, passes, threads: against ref and against each other ----------------------------------------------------------

vocab=$(vocabulary "$model")
check "ids for what follows" text_ids "$model" 96 "$work/ids96"
head -n 19 "$work/ids96" >"$work/ids19"
isas="scalar $("$redlite" version | grep -o 'up to [a-z0-9]*' | cut -d' ' -f3 | sed 's/avx512/avx2 avx512/')"
for isa in $isas; do
    check "kernels: $isa, exact" parity_of "$model" "$work/ids19" --backend cpu --isa "$isa" --precision exact
    check "kernels: $isa, fast" parity_of "$model" "$work/ids19" --backend cpu --isa "$isa" --precision fast
done
if "$redlite" version | grep -q '^backends:.*cuda' && "$redlite" version | grep '^GPU:' | grep -qv 'none'; then
    check "kernels: cuda against plain code" "$redlite" kernel-selftest
    check "kernels: cuda, exact" parity_of "$model" "$work/ids96" --backend cuda --precision exact
    check "kernels: cuda, fast" parity_of "$model" "$work/ids96" --backend cuda --precision fast
else
    skip "kernels: cuda" "$("$redlite" version | sed -n 's/^GPU: none: //p')"
fi
check "passes: 19 tokens in passes of 8" parity_of "$model" "$work/ids19" --precision exact --batch 8
check "passes: 96 tokens in passes of 32" parity_of "$model" "$work/ids96" --precision exact --batch 32
check "passes: 96 tokens in passes of 32, fast" parity_of "$model" "$work/ids96" --precision fast --batch 32

same_bits() { # same_bits PRECISION OPTIONS...: as without the options
    local precision=$1
    shift
    our_logits "$work/a" "$model" "$work/ids96" --precision "$precision" &&
        our_logits "$work/b" "$model" "$work/ids96" --precision "$precision" "$@" &&
        [ "$(stat -c %s "$work/a")" -eq $((96 * vocab * 4)) ] && cmp "$work/a" "$work/b" && echo "96 rows the same bits"
}
close() { # close OPTIONS...: float32 rounding apart
    our_logits "$work/a" "$model" "$work/ids96" --precision exact &&
        our_logits "$work/b" "$model" "$work/ids96" --precision exact "$@" &&
        "$compare" --max-abs 1e-3 --max-kl 1e-6 "$vocab" 96 "$work/a" "$work/b"
}
for threads in 1 2 3; do
    check "threads: $threads, exact" same_bits exact --threads $threads
    check "threads: $threads, fast" same_bits fast --threads $threads
done
check "passes: 64, the same bits" same_bits exact --batch 64
check "passes: token by token" close --batch 1
check "passes: of 7" close --batch 7
check "keys and values as f16" parity_of "$model" "$work/ids96" --precision exact --kv f16 --max-abs 0.5 --max-kl 1e-2 --mean-kl 1e-3 --max-stage 1e-3

# ---- Residency of experts -------------------------------------------------------------------------------------------------

if has_option logits cache-mib; then
    all_mib=$("$redlite" info --json -m "$model" | python3 -c 'import json, sys; print(max(1, json.load(sys.stdin)["memory"]["all_experts_bytes"] >> 20))')
    for share in 90 50 30; do
        check "experts: a cache of $share %, exact" same_bits exact --cache-mib $((all_mib * share / 100 + 1))
        check "experts: a cache of $share %, fast" same_bits fast --cache-mib $((all_mib * share / 100 + 1))
    done
    check "experts: all in the cache" same_bits exact --cache-mib full
    check "experts: used in place" same_bits exact --cache-mib mapped
    too_small() {
        ! our_logits "$work/b" "$model" "$work/ids19" --cache-mib 1 2>"$work/says" && [ ! -e "$work/b" ] && grep -i 'cache' "$work/says"
    }
    if [ "$all_mib" -ge 8 ]; then
        check "experts: a budget too small is refused with the one needed" too_small
    else
        skip "experts: a budget too small is refused" "this model's experts fit in the smallest"
    fi
else
    skip "experts: residency modes and budgets" "the program has no option for them"
fi

# ---- Answers ---------------------------------------------------------------------------------------------------------------

answer() { "$redlite" generate -q -m "$model" "$@"; }
repeats() { # OPTIONS...: twice the same, not empty
    answer "$@" >"$work/a" && answer "$@" >"$work/b" && [ -s "$work/a" ] && cmp "$work/a" "$work/b" && wc -c <"$work/a"
}
differs() {
    answer -p "Once upon a time" -n 24 --temp 1.2 --top-k 0 --top-p 1 --seed 1 >"$work/a" &&
        answer -p "Once upon a time" -n 24 --temp 1.2 --top-k 0 --top-p 1 --seed 2 >"$work/b" && ! cmp -s "$work/a" "$work/b"
}
chat() {
    answer --chat -p "Who lives in the forest?" -n 48 --temp 0 --json >"$work/chat.json" && python3 - "$work/chat.json" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
print(d["finish"], len(d["ids"]), "ids")
sys.exit(not d["text"] or "<|im_" in d["text"] or d["finish"] not in ("stop", "eog", "length"))
END
}
length() { # N: exactly N ids
    answer -p "Once upon a time" -n "$1" --temp 0 --ids --ignore-eog >"$work/a" && [ "$(count "$work/a")" -eq "$1" ]
}
prefix() { # a longer answer begins with the shorter one
    answer -p "The king" -n 12 --temp 0 --ids --ignore-eog | xargs >"$work/a"
    answer -p "The king" -n 40 --temp 0 --ids --ignore-eog | xargs | cut -d' ' -f1-12 >"$work/b"
    [ -s "$work/a" ] && cmp "$work/a" "$work/b"
}
check "answer: greedy repeats" repeats -p "Once upon a time" -n 40 --temp 0
check "answer: a seed repeats" repeats -p "Once upon a time" -n 40 --temp 0.9 --seed 7
check "answer: seeds differ" differs
check "answer: with penalties repeats" repeats -p "Once upon a time" -n 40 --temp 0.9 --seed 7 --repeat-penalty 1.2 --presence-penalty 0.5
check "answer: as long as asked" length 33
check "answer: a longer one begins with the shorter" prefix
check "answer: chat in its frame" chat

if has_option generate speculate || has_option generate draft; then
    option=$(has_option generate speculate && echo --speculate || echo --draft)
    speculative() {
        answer -p "Once upon a time" -n 60 --temp 0 --ids --precision exact >"$work/a" &&
            answer -p "Once upon a time" -n 60 --temp 0 --ids --precision exact "$option" "$1" >"$work/b" && [ -s "$work/a" ] && cmp "$work/a" "$work/b"
    }
    check "answer: speculation changes nothing" speculative mtp
else
    skip "answer: speculation changes nothing" "the program has no option for it"
fi

if has_command chat; then
    talk() {
        printf 'Who lives in the forest?\n/reset\n/quit\n' | "$redlite" chat -q -m "$model" --temp 0 -n 24 >"$work/a" 2>"$work/b" &&
            [ -s "$work/a" ] && ! grep -q '<|im_' "$work/a" && wc -c <"$work/a"
    }
    check "answer: chat from a pipe, and its end" talk
else
    skip "answer: chat from a pipe" "the program has no command chat"
fi

# ---- Server ----------------------------------------------------------------------------------------------------------------

if has_command serve; then
    check "server: health, models, answer, stream, end" python3 "$root/scripts/server_smoke.py" "$redlite" "$model"
else
    skip "server" "the program has no command serve"
fi

# ---- Measures and other commands -------------------------------------------------------------------------------------------

json_of() { # json_of EXPRESSION COMMAND...: the expression over d must be true
    local expression=$1
    shift
    "$redlite" "$@" >"$work/out.json" &&
        python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$work/out.json" "$expression"
}
check "info: groups add up to all weights" json_of \
    'sum(g["weights"] for g in d["groups"]) == d["parameters"] and sum(g["bytes"] for g in d["groups"]) < d["file_bytes"]' info --json -m "$model"
check "bench: speeds are numbers" json_of 'all(r["median_tokens_per_second"] > 1 for r in d["results"]) and len(d["results"]) == 2' \
    bench -q --json -m "$model" -p 64 -n 8 -r 1
check "perplexity: between 1 and the vocabulary" json_of "1 < d['perplexity'] < $vocab and d['scored'] == 254" \
    perplexity -q --json -m "$model" -f "$text" --chunk 256 --chunks 2
if has_command plan; then
    check "plan: says how the model will run" "$redlite" plan -m "$model"
fi
synth_repeats() {
    "$redlite" synth -q --preset tiny --seed 5 --threads 1 "$work/a" && "$redlite" synth -q --preset tiny --seed 5 --threads 3 "$work/b" &&
        cmp "$work/a" "$work/b" && "$redlite" info -m "$work/a" | head -n 1
}
check "synth: the same bytes on any number of threads" synth_repeats

# ---- llama.cpp, in brief ---------------------------------------------------------------------------------------------------

if find_peer; then
    tokenizer() {
        "$records" make 1 500 "$work/texts" && "$records" tokenize "$model" "$work/texts" >"$work/a" &&
            run_peer "$model" tokenize "$work/texts" >"$work/b" && [ -s "$work/b" ] && cmp "$work/a" "$work/b" && echo "$(wc -l <"$work/a") lists"
    }
    check "llama.cpp: tokenizer" tokenizer
    if check "llama.cpp: model" make_judge "$model"; then
        if $judge_exact; then
            check "llama.cpp: dequantisation, every weight" "$records" dequantized "$model" "$judge"
            against() {
                peer_logits "$work/judge" "$judge" "$work/ids96" --exact && our_logits "$work/a" "$model" "$work/ids96" --precision exact &&
                    "$compare" --max-abs 1e-3 --max-kl 1e-6 "$vocab" 96 "$work/judge" "$work/a"
            }
            check "llama.cpp: logits" against
        else
            skip "llama.cpp: dequantisation, logits" "the model as float32 is larger than CHECKS_F32_MIB; see quick_parity.sh"
        fi
    fi
else
    skip "llama.cpp" "$peer_missing"
fi
finish
