#!/bin/sh
# Makes the binaries of small.arpa, and of apart.arpa, whose accents are characters of their own, with KenLM's
# own build_binary, compiled from the source package of `kenlm`, whose wheel does not bring that program. Needs
# a C++ compiler and PyPI.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m pip download --quiet --no-binary :all: --no-deps --no-build-isolation kenlm==0.3.0
tar xzf kenlm-0.3.0.tar.gz
cd kenlm-0.3.0
sources=$(ls lm/*.cc util/*.cc util/double-conversion/*.cc | grep -v -e _main.cc -e _test.cc)
c++ -O1 -w -I. -DKENLM_MAX_ORDER=6 $sources lm/build_binary_main.cc -o build_binary -lpthread
for kind in probing trie; do
    ./build_binary $kind "$here/small.arpa" "$here/$kind.bin"
    ./build_binary $kind "$here/apart.arpa" "$here/apart-$kind.bin"
done
./build_binary -q 4 -b 3 trie "$here/small.arpa" "$here/trie-quantized.bin"
./build_binary -a 5 trie "$here/small.arpa" "$here/trie-array.bin"
./build_binary -q 4 -b 3 -a 5 trie "$here/small.arpa" "$here/trie-both.bin"
