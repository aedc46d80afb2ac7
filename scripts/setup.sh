#!/usr/bin/env bash
# Installs what building and testing Red Lite needs: nothing when all is there; on Debian 12/13 and Ubuntu 24.04 the missing
# packages through apt (as root or with sudo); elsewhere it names what is missing. Run again at any time.
#   scripts/setup.sh           what `make build` and `make test` need
#   scripts/setup.sh --checks  besides, what `make fuzz format-check tidy` need
set -u

have() { command -v "$1" >/dev/null 2>&1; }
lib() { pkg-config --exists "$1" 2>/dev/null; }
fuzzer() { have clang && [ -e "$(clang -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a" ]; }

# need TEST ARGUMENT DEBIAN-PACKAGE HOMEBREW-FORMULA WHAT-FOR
missing_deb=() missing_brew=() missing_text=()
need() {
    "$1" $2 && return
    missing_deb+=("$3")
    missing_brew+=("$4")
    missing_text+=("  $3: $5")
}

compiler() { have gcc || have clang; }
need compiler "" gcc llvm "C11 compiler (gcc 12 or clang 14, or later)"
# Debian's compilers only recommend them, and recommendations are not installed below.
headers() { echo '#include <stdio.h>' | { gcc -E -x c - || clang -E -x c -; } >/dev/null 2>&1; }
need headers "" libc6-dev llvm "headers of the C library"
need have cmake cmake cmake "build system, 3.22 or later"
need have ninja ninja-build ninja "build tool"
need have pkg-config pkg-config pkg-config "finds the libraries"
need lib jansson libjansson-dev jansson "JSON"
need lib cmocka libcmocka-dev cmocka "tests"
need have python3 python3 python3 "test of the generated tables"
need lib libmicrohttpd libmicrohttpd-dev libmicrohttpd "HTTP server"
need lib libcurl libcurl4-openssl-dev curl "HTTP client"
need lib nettle nettle-dev nettle "SHA-256 of downloads"
need lib libedit libedit-dev libedit "line editing"
[ "$(uname -s)" = Linux ] && need lib liburing liburing-dev liburing "asynchronous reads"
if [ "${1:-}" = --checks ]; then
    need have clang clang llvm "second compiler, sanitizers, fuzzers"
    need have clang-format clang-format clang-format "format-check"
    need have clang-tidy clang-tidy llvm "tidy"
    if [ "$(uname -s)" = Linux ] && ! fuzzer; then
        version=$(clang --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p' | head -1)
        missing_deb+=("libclang-rt-${version:-14}-dev")
        missing_text+=("  libclang-rt-${version:-14}-dev: fuzzer runtime")
    fi
fi

[ ${#missing_text[@]} -eq 0 ] && exit 0

if [ "$(uname -s)" = Darwin ]; then
    echo "setup: missing; install with: brew install $(printf '%s\n' "${missing_brew[@]}" | sort -u | tr '\n' ' ')" >&2
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then as_root=(sudo); else as_root=(none); fi
fi
if ! have apt-get || [ "${as_root[*]:-}" = none ]; then
    echo "setup: these are missing (Debian's names); install them and run again:" >&2
    printf '%s\n' "${missing_text[@]}" >&2
    exit 1
fi

echo "setup: installing ${missing_deb[*]}"
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing_deb[@]}"; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists of a fresh machine are empty or old: fetch them once, and again if a package is not found.
if ! { "${as_root[@]}" apt-get update -q && install; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get could not install: ${missing_deb[*]}" >&2
    exit 1
fi
echo "setup: done"
