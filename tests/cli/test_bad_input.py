"""Bad input to any command: exit code 2, one line that says what was expected and what came, and no file."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.types import SAMPLE_RATE, Segment, Transcript
from tests.audio.media import wav_bytes

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
CALLS = """
transcribe {clip} --nonsense | nonsense
transcribe {clip} --language klingon | klingon
transcribe {clip} --model nanoo | nano
transcribe {clip} --model "" | error: model: expected a name or a path, got ''
transcribe {clip} --model small --local-only --model-dir {tmp} | and nothing is fetched with --local-only
transcribe {clip} --model nothing --clean -l ja | clean: expected a language whose rules were checked
transcribe {clip} --model nothing --verbatim -l Polish | verbatim: expected a language that was measured
transcribe {tmp}/silent.wav | silent.wav
transcribe {tmp}/samples | known format (samples without a header need --input-format)
stream {tmp}/samples | known format (samples without a header need --input-format)
transcribe {clip} --input-format mp3 | --input-format: expected NAME[:RATE[:CHANNELS]]
transcribe "" | recording: expected the name of a file, got ''
transcribe {tmp}/out | is a folder; expected a file, or in `sottovoce transcribe` a folder with recordings
transcribe {clip} -o {tmp}/talk.mp3 | talk.mp3': expected an extension of a format
transcribe {clip} --beam-size 0 | '--beam-size': expected a whole number from 1, got '0'
transcribe {clip} --seed 0.5 | '--seed': expected a whole number, got '0.5'
serve --port http | '--port': expected a whole number from 0 to 65535, got 'http'
transcribe {clip} --verbatim --no-repeat-ngram-size 3 | verbatim: keeps repetitions
transcribe {clip} --suppress-tokens a | --suppress-tokens
transcribe {clip} --clip-timestamps 0,1 --batch-size 2 | --clip-timestamps:
transcribe {clip} --offset-n 3 -f vtt,json | --offset-n numbers the subtitles of srt
transcribe {clip} --offset-n -1 -f srt | --offset-n
transcribe {clip} --vocabulary-from {tmp}/file --beam-size 1 | --vocabulary-from
transcribe {clip} -o /dev/null -f srt,txt | /dev/null': is no folder; expected one format
transcribe /dev/zero | /dev/zero: expected a file or a pipe, got a device, which may have no end
align {tmp}/one.wav {tmp}/file | one.wav: expected audio, got none
transcribe {clip} --offset 100 | got 100.0 s
transcribe {clip} --offset 100 --vad | got 100.0 s
transcribe {clip} --offset -1 | '-1'
transcribe {clip} --duration 0 | got 0
transcribe {clip} --clip-timestamps 3,1 | ascending
transcribe {clip} --clip-timestamps a | 'a'
transcribe {clip} --clip-timestamps 0,1 --offset 1 | combined with --offset
transcribe {clip} --suppress-regex [ | regular expression, got '['
transcribe {clip} --suppress-tokens 999999 | 999999
transcribe {clip} --suppress-tokens=-7 | -7
transcribe {clip} --grammar {tmp}/none.gbnf | none.gbnf
transcribe {clip} --grammar {tmp}/empty.gbnf | grammar
transcribe {clip} --grammar {tmp}/unknown.gbnf | missing
transcribe {clip} --grammar {tmp}/endless.gbnf | allows nothing
transcribe {clip} --grammar {tmp}/empty.gbnf --beam-size 1 | beam search
transcribe {clip} --output-format rttm | --speakers
transcribe {clip} --output-dir {tmp}/file | cannot be written
transcribe {clip} --output-dir {tmp}/file/out | cannot be written
transcribe {clip} --output-format doc | 'doc'
transcribe {clip} -w --regroup cut | expected split or merge
transcribe {clip} -w --regroup 'split letters=0' | letters: expected more than 0
transcribe {clip} -w --regroup 'merge words=3' --print-special | --print-special
transcribe {clip} --speakers 0 | got 0
transcribe {clip} --speakers many | 'many'
transcribe {clip} --speakers 2 --channels energy | energy
transcribe {clip} --speakers 2 --tinydiarize | speaker
transcribe {clip} --channels apart | 1 channel
transcribe {clip} --channels energy | 1 channel
transcribe - --processors 2 | got standard input
transcribe {clip} --print-special -f srt | --print-special: needs --output-format txt
transcribe {clip} --audio-ctx 1501 | --audio-ctx: expected at most 1500
transcribe {clip} --temperature 2 | temperatures: expected 0 to 1, got 2
transcribe {clip} --temperature 0,1.5 | expected 0 to 1, got 1.5
transcribe {clip} --temperature 0.4 --lm words.arpa | --lm
transcribe {clip} --temperature 0.4 --grammar {tmp}/empty.gbnf | --grammar
transcribe {clip} --temperature 0.4 --hotwords {tmp}/file | need a beam search
transcribe {clip} --initial-prompt Anna --max-context 0 | --initial-prompt
transcribe {clip} --hotwords names.txt | or an existing file of phrases, got names.txt
transcribe {clip} --hotwords ./names | or an existing file of phrases, got ./names
transcribe {clip} --hotwords ~nobody/names | or an existing file of phrases, got ~nobody
stream {clip} --hotwords names.csv | or an existing file of phrases, got names.csv
transcribe {clip} -f srt --layout segments --max-line-count 2 | needs --max-line-width
transcribe {clip} --reading-speed nan -w | 'nan'
transcribe {clip} --max-line-width 20 | are for srt, vtt, ass and ttml
transcribe {clip} --translate-to klingon | klingon
transcribe {clip} --translate-to de | --translation-url
transcribe {clip} --translate-to en --task translate | --task translate
stream | FILE
stream {clip} --mic | FILE
stream {clip} --realtime --unaware | --realtime: cannot be combined with --unaware
stream {clip} --encoder exact --tail 5 | tail
stream {clip} --speakers many | 'many'
stream {clip} --sources caller,agent | --sources: expected 2 channels in
transcribe {clip} --replace none.txt | none.txt: no such file; expected lines
transcribe {clip} --replace out | out: expected lines 'what is said => what is written', got a folder
transcribe {clip} --mask-profanity none.txt | none.txt: no such file; expected words
stream {clip} --speakers 0 | got 0
stream {clip} --log {tmp}/file/log | cannot be written
stream {clip} --save-audio {tmp}/file/heard.wav | cannot be written
batch {clips} {tmp}/out.jsonl --model "" | error: model: expected a name or a path, got ''
batch {tmp}/none {tmp}/out.jsonl | a list of recordings
batch "" {tmp}/out.jsonl | input: expected a folder or a list of recordings, got ''
batch {clips} {tmp}/out.csv | .jsonl or .parquet
batch {clips} {tmp}/file/out.jsonl | cannot be written
batch {clips} {tmp}/out.jsonl --speakers many | 'many'
batch {clips} {tmp}/out.jsonl --speakers 2 --channels energy | channels
batch {clips} {tmp}/out.jsonl --actors some --ray | --actors
batch {clips} {tmp}/out.jsonl --actors 4 | error: --actors: needs --ray
serve --keep-jobs 5 | error: --keep-jobs: needs --jobs-dir
serve --gpus-per-replica 1 | error: --gpus-per-replica: needs --replicas
serve --glossary {tmp}/file | error: --glossary: needs --translation-url
transcribe {clip} --translation-url http://127.0.0.1:1 | error: --translation-url: needs --translate-to
stream --mic --input-format mulaw | error: --mic: cannot be combined with --input-format
stream {clip} --no-vad --hangover-ms 300 | error: --no-vad: cannot be combined with --hangover-ms
batch {clips} {tmp}/out.jsonl --language xx | xx
detect-language {clip} --revision v1 | revision 'v1' given, but nano is on this machine
align {clip} none.txt | text 'none.txt': no such file; expected a text
align - - | got both
align {clip} file --print-special | --print-special
align {clip} file -f tsx | output format 'tsx'
align {clip} file -l xx | xx
align {clip} {clip} | expected a text, got a null character in line 1
find {clip} "" | ''
find {clip} ?! | expected letters or digits to look for
find nowhere.json word | nowhere.json
karaoke {clip} --output {tmp}/none/video.mp4 | video.mp4
karaoke - --output {tmp}/video.mp4 | standard input
models info nowhere | nowhere
models info "" | a name or a path, got ''
models convert "" {tmp}/out.pt | a name or a path, got ''
models quantize nano --nonsense | nonsense
models quantize nano {tmp}/{long}.bin | cannot be written
models convert nano {tmp}/{long}.pt | cannot be written
models convert nano {tmp}/out.gguf | ends in .pt (OpenAI) or .bin (ggml), or a folder's
models convert nano {tmp}/out.safetensors | got '.safetensors'
models quantize nano {tmp}/out.gguf q5_0 | ends in .bin (ggml), got '.gguf'
models quantize nano {tmp}/out.pt q5_0 | ends in .bin (ggml), got '.pt'
bench --model nano, | expected different names between commas, got 'nano,'
bench --dtype int8,int8 | expected different names between commas, got 'int8,int8'
bench --model nano,nowhere | nowhere
ctc none.npy --labels none.txt | none
eval language {tmp}/ja.jsonl --model nano | ja.jsonl: expected recordings of one language each in
eval switching none.jsonl --plots {tmp}/file/plots | cannot be written
"""
BEFORE_MODEL = """
transcribe | expected FILE…, or - for standard input (see 'sottovoce transcribe --help')
trascribe | no command 'trascribe'; did you mean transcribe?
transcribe {clip} --lang de | no option --lang; did you mean --language or --languages?
missing.mp3 | missing.mp3: no such file
transcrib | no command 'transcrib'; did you mean transcribe? (see 'sottovoce --help')
transcribe x.wav --logprob-threshold=-inf | '-inf' (see 'sottovoce transcribe --help')
ctc x.npy --lm-weight inf | 'inf' (see 'sottovoce ctc decode --help')
bench --dtype float32,float8 | dtype 'float8' given, expected one of auto
bench --backend torch,onnx | backend 'onnx' given, expected one of auto
stream {clip} --save-audio none/heard.wav | none/heard.wav
stream {clip} --log none/log | none/log
transcribe missing.wav | missing
transcribe missing.wav -o talk.srt --second-model small | missing
detect-language missing.wav --timeline | missing
align missing.wav file | missing
find missing.wav word | missing
plot missing.wav -o talk.png | missing
karaoke missing.wav -o talk.mp4 | missing
stream missing.wav | missing
batch missing talk.jsonl | missing
bench missing.wav --model base,small | missing
ctc missing.wav --model base | missing
ctc tune missing.jsonl --model base | missing
eval wer missing.jsonl | missing
eval language ja.jsonl --noise missing.wav | missing
plot {clip} -o a.gif | picture 'a.gif': expected a name that ends in .png, .svg, .pdf
plot {clip} -o none/a.png | a.png': its folder is not there
plot {clip} -o a.png -l klingon | language 'klingon'
plot {clip} -o a.png --panels mel,nose | panels: expected some of mel
plot {clip} -o a.png --offset 99 | expected a start before its end
plot {clip} -o a.png --duration 31 | --duration: expected 0.1 to 30 s, got 31
plot {clip} -o a.png --text none.txt | text 'none.txt': no such file; expected a text
karaoke {clip} -o a.mp4 -l klingon | language 'klingon'
find {clip} Zeit -l klingon | language 'klingon'
align {clip} - -l klingon | language 'klingon'
detect-language {clip} -l de,klingon | language 'klingon'
stream {clip} -l de,klingon | language 'klingon'
eval wer list.jsonl --languages klingon | language 'klingon'
transcribe {clip} other.flac -o talk.srt | talk.srt': expected one input for one file, got 2
transcribe {clip} -o talk.doc | expected an extension of a format (txt, srt,
transcribe {clip} -o talk.doc -f srt | expected a name in .srt for --output-format srt, got .doc
transcribe {clip} -o talk.srt -f vtt | expected a name in .vtt for --output-format vtt, got .srt
transcribe {clip} -o talk.srt -f srt,json | expected one format for one file, got 'srt,json'
transcribe {clip} -o talk.srt -f all | expected one format for one file, got 'all'
transcribe {clip} -o talk.srt -f sbv | output format 'sbv'
transcribe in.txt -o in.txt | is the input; choose another name
transcribe {clip} -o {clip}/talk.srt | cannot be written
align {clip} file -o talk.json -f srt | expected a name in .srt
transcribe {clip} --speaker-names Ann | --speaker-names: need speakers or channels
transcribe {clip} --tinydiarize --speaker-names Ann | --speaker-names: need speakers or channels
transcribe {clip} --speakers 1 --speaker-names Ann,Bob | expected at most 1, as there are speakers, got 2
transcribe {clip} --speakers auto --max-speakers 1 --speaker-names Ann,Bob | expected at most 1
transcribe {clip} --speakers 2 --speaker-names Ann,Ann | 'Ann' twice
transcribe {clip} --speakers 2 --speaker-names Ann, | expected a name, got ''
transcribe {clip} --speakers 2 --known-voice Ann=2s.wav --speaker-names Ann | 'Ann' is a known voice already
transcribe {clip} --speakers 1 --known-voice Ann=2s.wav --speaker-names Bob | got 1 beside 1 known voices
transcribe {clip} --known-voice Ann=2s.wav | --known-voice: needs --speakers
transcribe {clip} --speakers 2 --known-voice 2s.wav | expected NAME=FILE
transcribe {clip} --speakers 2 --known-voice =x.wav | expected NAME=FILE
transcribe {clip} --speakers 2 --known-voice Ann=2s.wav --known-voice Ann=2s.wav | one file for each name
transcribe {clip} --speakers 2 --known-voice Ann=missing.wav | missing.wav: no such file
transcribe {clip} --speakers 2 --known-voice Ann=0.4s.wav | expected 1 to 120 seconds of speech
transcribe {clip} --speakers 2 --known-voice Ann=121s.wav | got more
transcribe {clip} --speakers 2 --known-voice Ann=2s.wav --speaker-engine pyannote | engine 'own'
transcribe {clip} --speakers 2 --min-speakers 3 | speakers: expected at least 3, the least, got 2
transcribe {clip} --speakers 3 --max-speakers 2 | --max-speakers: expected at least --speakers 3, got 2
transcribe {clip} --speakers auto --min-speakers 3 --max-speakers 2 | expected at most --max-speakers 2, got 3
transcribe {clip} --speakers auto --min-speakers 0 | --min-speakers
convert plain.json -o out -f srt --max-line-width 20 | expected words with times, got none
convert plain.json -o out -f vtt --regroup 'split words=3' | expected words with times, got none
convert plain.json -o out -f rttm | expected speakers for output format 'rttm', got none
convert plain.json -o out -f srf | did you mean 'srt'?
convert plain.json -o out -f txt --max-line-width 20 | line breaking and highlighting are for
convert plain.json -o out -f srt --regroup cut | regroup: expected split or merge
convert plain.json -o out -f html --embed-audio | --embed-audio: needs --recording
convert plain.json -o out -f html --recording none.mp3 | none.mp3
"""
"""Calls that end before a model is fetched or opened."""
WITHOUT_MODEL = ("models", "ctc", "eval")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of all calls, none of which changes it."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "file").write_text("no folder")
    (folder / "out").mkdir()
    (folder / "empty.gbnf").write_text("")
    (folder / "ja.jsonl").write_text('{"file": "a.wav", "language": "ja"}\n')
    (folder / "one.wav").write_bytes(wav_bytes(np.zeros(1, np.float32)))
    (folder / "silent.wav").write_bytes(wav_bytes(np.zeros(0, np.float32)))
    (folder / "samples").write_bytes(bytes(range(256)) * 100)
    for seconds in (0.4, 2, 121):
        samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
        (folder / f"{seconds}s.wav").write_bytes(wav_bytes(samples))
    for name in ("other.flac", "in.txt"):
        shutil.copy(CLIP, folder / name)
    (folder / "unknown.gbnf").write_text('root ::= "a" | missing')
    (folder / "endless.gbnf").write_text('root ::= root "a"')
    Transcript((Segment(0, 0.0, 1.0, " One.", "en"),), "en", 1.0, "nano").save(folder / "plain.json")
    return folder


def files(folder: Path) -> list[Path]:
    """But for the lock of a table, which stays, as another program may have opened it."""
    return sorted(path for path in folder.rglob("*") if path.suffix != ".lock")


@pytest.fixture
def refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, str]]:
    """Return the line of the error of a call, and what it must say, in lower case."""
    monkeypatch.chdir(folder)

    def check(call: str, *more: str) -> tuple[str, str]:
        line, _, message = call.partition(" | ")
        places = {"clip": CLIP.as_posix(), "clips": CLIP.parent.as_posix(), "tmp": folder.as_posix()}
        words = [word.format(**places, long="n" * 300) for word in shlex.split(line)]
        model = [] if words[0] in WITHOUT_MODEL or "--model" in words else more
        before = files(folder)
        assert run([*words, *model]) == 2
        assert files(folder) == before
        (error,) = capsys.readouterr().err.strip().splitlines()
        assert error.startswith("error: ")
        return error.lower(), message.lower()

    return check


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_one_line_says_what_is_wrong(call: str, refused: Callable[..., tuple[str, str]]) -> None:
    error, message = refused(call, "--model", "nano")
    assert message in error


@pytest.mark.parametrize("call", BEFORE_MODEL.strip().splitlines())
def test_inputs_and_options_are_read_before_a_model_is_fetched(
    call: str, refused: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("a model was fetched")

    monkeypatch.setattr("sottovoce.api.load_model", fetched)
    monkeypatch.setattr("sottovoce.models.sources.resolve", fetched)
    error, message = refused(call)
    assert message in error
