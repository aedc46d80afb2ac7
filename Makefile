.PHONY: build
build:
	@test -f build/build.ninja || cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release
	@cmake --build build
