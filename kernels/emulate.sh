#!/usr/bin/env bash
# The kernels of 64-bit ARM beside the portable ones, in an emulator: kernels/emulate.sh
# Needs a cross compiler and an emulator: on Debian g++-aarch64-linux-gnu and qemu-user-static.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++17 -O2 -Wall -Wextra -ffp-contract=off -DSOTTOVOCE_NEON"
for file in "$here"/cpp/*.cpp "$here/cpp/simd/portable.cpp" "$here/tests/alike.cpp"; do
  aarch64-linux-gnu-g++ $flags -c "$file" -o "$build/$(basename "$file").o"
done
aarch64-linux-gnu-g++ $flags -march=armv8.2-a+dotprod -c "$here/cpp/simd/neon.cpp" -o "$build/neon.o"
aarch64-linux-gnu-g++ "$build"/*.o -static -pthread -o "$build/alike"
qemu-aarch64-static -cpu max "$build/alike"
