#!/usr/bin/env bash
# The tests of the kernels with address and undefined-behaviour sanitizers: kernels/sanitize.sh [python] [pytest …]
set -euo pipefail
python=${1:-python3}
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S "$here" -B "$build" -DSOTTOVOCE_SANITIZE=ON > "$build/log"
cmake --build "$build" --parallel 2 >> "$build/log" 2>&1 || { cat "$build/log"; exit 1; }
cp -r "$here/src/sottovoce_kernels" "$build/"
cp "$build/_kernels.so" "$build/sottovoce_kernels/"
cd "$here/.."
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
PYTHONPATH="$build:$here/../src" OMP_NUM_THREADS=1 \
    "$python" -m pytest -q -p no:cacheprovider -k "not tensors" tests/kernels tests/ctc/test_native.py tests/ctc/test_kenlm.py \
    tests/ctc/test_engines.py tests/ctc/test_streams.py "${@:2}"
