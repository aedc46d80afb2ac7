# Red Lite: `make run` and `make test` do everything on a fresh machine, set-up included. The build itself is CMake's
# (CMakePresets.json); these are its short names.
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SOURCES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.m')
C_SOURCES = $(shell git ls-files 'src/*.c' 'tests/*.c' 'bench/*.c')

.PHONY: build cuda run test test-server parity asan tsan fuzz format format-check tidy coverage install clean help

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 22

# What is missing is installed when setup.sh is new or has changed; afterwards a build costs no look around.
build/.setup: scripts/setup.sh
	@scripts/setup.sh
	@mkdir -p build && touch $@

build/build.ninja: | build/.setup
	@cmake --preset release

build: build/.setup build/build.ninja ## optimised build in build/
	@cmake --build build

cuda: build ## the CUDA backend beside the program (nvcc)
	@cmake --build build --target redlite_cuda

run: build ## generate a short text with the bundled model
	@build/redlite generate -p "Once upon a time" -n 120

test: build ## all tests
	@ctest --test-dir build --output-on-failure -j$(JOBS)

parity: build ## live comparison with a prebuilt llama.cpp
	@scripts/parity.sh

test-server: build ## the official openai and Anthropic clients, and a browser, against the server (node, npm)
	@scripts/test_server.sh

asan: build/.setup ## tests with the address and undefined behaviour sanitizers
	@cmake --preset asan
	@cmake --build --preset asan
	@ctest --test-dir build-asan --output-on-failure -j$(JOBS) -LE slow

tsan: build/.setup ## thread team, sessions and expert cache with the thread sanitizer
	@cmake --preset tsan
	@cmake --build --preset tsan --target test_base_pool test_session test_experts test_experts_cpu
	@ctest --test-dir build-tsan --output-on-failure -R '^test_(base_pool|session|experts|experts_cpu)$$'

fuzz: build/.setup ## every fuzzer for FUZZ_SECONDS (clang)
	@scripts/setup.sh --checks
	@cmake --preset fuzz
	@cmake --build --preset fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

format: ## format the sources in place
	@clang-format -i $(SOURCES)

format-check: ## fail where formatting would change a source
	@clang-format --dry-run -Werror $(SOURCES)

tidy: build/.setup ## clang-tidy over all C files
	@cmake --preset debug -B build-tidy -DCMAKE_C_COMPILER=clang >/dev/null
	@printf '%s\n' $(C_SOURCES) | grep -v tests/fuzz/ | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build-tidy 2>/dev/null

coverage: build/.setup ## lines of src/ that the tests execute
	@scripts/coverage.sh

install: build ## install program, header and library under PREFIX
	@cmake --install build --prefix $(PREFIX)

clean: ## remove all build folders
	@rm -rf build build-*
