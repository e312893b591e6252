#!/usr/bin/env bash
# Commands of the README with the programs in a folder, where PyTorch is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "$1")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
model=${2:-nano}
! "$bin/python" -c "import torch" 2>/dev/null || { echo "expected no PyTorch in $bin, got one"; exit 1; }
"$bin/sottovoce" models info "$model" | grep runtime | grep native
"$bin/sottovoce" transcribe examples/clips/en.flac --model "$model"
"$bin/sottovoce" transcribe examples/clips/en.flac --model "$model" -o "$out/en.srt"
"$bin/sottovoce" transcribe examples/clips/*.flac --model "$model" -f docx,json -o "$out/transcripts" --skip-existing
"$bin/sottovoce" stream examples/clips/en.flac --model "$model" --jsonl > "$out/events"
"$bin/sottovoce" detect-language examples/clips/en.flac --model "$model"
"$bin/sottovoce" ctc examples/clips/en.flac --model "$model"
grep -q '"final"' "$out/events"
"$bin/sottovoce" transcribe examples/clips/en.flac --model "$model" --speakers auto 2> "$out/error" && exit 1
grep "needs the package 'torch'" "$out/error"
du -sh "$(dirname "$bin")"
