"""`sottovoce transcribe`: documents, tracks, speakers, progress, errors and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import click
import numpy as np
import pytest
import torch

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.cli.invocation import Invocation
from sottovoce.cli.main import run
from sottovoce.cli.progress import for_each_file
from sottovoce.cli.transcribe import transcribe
from sottovoce.errors import AudioError, OutputError, is_out_of_memory
from sottovoce.offline import transcription
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import WINDOW_VAD, FallbackOptions, VadOptions
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import ClusteringDiarizer
from sottovoce.text.disfluency import DISFLUENCIES, VERBATIM_PROMPTS
from sottovoce.types import Turn
from tests.audio.media import Sound, pipe, wav_bytes, write_tracks
from tests.cli.conftest import Call
from tests.fresh_process import start_command
from tests.speakers.tones import ToneSpeakers, ToneVoices, recording

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
FIVE = FallbackOptions(best_of=5)
FAST = ["--model", "nano", "--beam-size", "1", "--temperature", "0", "--language", "de"]


def one_error(text: str) -> str:
    """The only line of standard error, which must be an error; a count of several recordings may follow."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("note: 1 of ")]
    assert len(lines) == 1, text
    assert lines[0].startswith("error: ")
    return lines[0]


def test_subtitles_are_laid_out_for_reading_unless_segments_are_asked_for(call: Call) -> None:
    """Lines are short, for which words are timed, also in the other documents; or Whisper's segments."""
    words = ["transcribe", str(CLIPS / "de.flac"), *FAST, "-o", "-", "-f", "vtt,json"]
    *narrow, _ = call(*words, "--max-line-width", "12").out.splitlines()
    assert max(len(line) for line in narrow if "-->" not in line) <= 12
    timed, plain = (
        json.loads(call(*words, *more).out.splitlines()[-1]) for more in ([], ["--layout", "segments"])
    )
    assert timed["segments"][0]["words"]
    assert not plain["segments"][0]["words"]


def test_formats_come_in_the_order_given_on_standard_output(call: Call) -> None:
    words = ["transcribe", str(CLIPS / "de.flac"), "--model", "nano", "-l", "de", "-o", "-"]
    for formats, begins in (("txt,srt", "Wir haben"), ("srt,txt", "1\n00:00:00")):
        assert call(*words, "-f", formats).out.startswith(begins)


def test_json_to_standard_output_is_one_document_a_line(clip: Path, tmp_path: Path, call: Call) -> None:
    """A recording that is given twice is written twice: documents stand in the order of the files."""
    other = Path(shutil.copy(clip, tmp_path / "other.flac"))
    files = [str(clip), str(other), str(clip)]
    output = call("transcribe", *files, *FAST, "--output-format", "json", "--output-dir", "-")
    first, *others = [json.loads(line) for line in output.out.splitlines()]
    assert output.err == ""
    assert others == [first, first]
    assert set(first) == {"text", "language", "duration", "model", "segments", "unread"}
    assert (first["language"], first["model"]) == ("de", "nano")
    assert first["duration"] == pytest.approx(3.13, abs=0.02)


def test_a_checkpoint_that_marks_no_turns_is_told(clip: Path, call: Call) -> None:
    output = call("transcribe", clip, *FAST, "--tinydiarize")
    assert output.out
    assert "note:" in output.err
    assert "no change of speaker was marked: --tinydiarize needs a checkpoint" in output.err


def test_words_are_coloured_by_confidence(clip: Path, call: Call) -> None:
    plain = call("transcribe", clip, *FAST, "--audio-track", "1")
    shown = call("transcribe", clip, *FAST, "--word-timestamps", "--colour-confidence").out
    assert "\x1b[" in shown
    assert plain.err == ""
    assert plain.out.strip() in re.sub(r"\x1b\[[\d;]*m", "", shown)


def test_a_page_links_its_recording_or_holds_it(clip: Path, tmp_path: Path) -> None:
    shown = ["transcribe", str(clip), *FAST, "--output-format", "html,json-full", "-w"]
    assert run([*shown, "--output-dir", str(tmp_path / "out")]) == 0
    assert 'src="../clip.flac"' in (tmp_path / "out" / "clip.html").read_text()
    full = json.loads((tmp_path / "out" / "clip.full.json").read_text())
    for segment in full["segments"]:
        assert [t["id"] for t in segment["token_details"]] == segment["tokens"]
        spoken = [t for t in segment["token_details"] if t["start"] is not None]
        assert [t["id"] for t in spoken] == [t for t in segment["tokens"] if t < 50257]
        assert [t["id"] for t in spoken] == [t for word in segment["words"] for t in word["tokens"]]
        assert "".join(t["text"] for t in spoken).strip() == segment["text"].strip()
    assert run([*shown, "--output-dir", str(tmp_path / "out"), "--embed-audio"]) == 0
    assert 'src="data:audio/' in (tmp_path / "out" / "clip.html").read_text()


def test_other_files_are_done_when_one_fails(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_text("this is no sound")
    code = run(["transcribe", str(broken), str(clip), *FAST, "--output-dir", str(tmp_path)])
    assert code == 1
    assert "broken.wav" in one_error(capsys.readouterr().err)
    assert (tmp_path / "clip.txt").read_text().strip()
    assert not (tmp_path / "broken.txt").exists()


def test_the_folder_is_made_before_the_model_is_loaded(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is not there tells which came first."""
    created = tmp_path / "new" / "folder"
    assert run(["transcribe", str(clip), "-m", "nano", *FAST, "-o", str(created)]) == 0
    assert [path.name for path in created.iterdir()] == ["clip.txt"]
    assert capsys.readouterr().err == ""
    assert run(["transcribe", str(clip), "-m", "nothing", "-o", str(clip / "x")]) == 2
    line = one_error(capsys.readouterr().err)
    assert "cannot be written" in line
    assert str(clip / "x") in line


def test_recordings_of_one_name_have_documents_of_two(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other" / clip.name
    other.parent.mkdir()
    shutil.copy(CLIPS / "en.flac", other)
    out = tmp_path / "out"
    assert run(["transcribe", str(clip), str(other), str(clip), *FAST, "-o", str(out)]) == 0
    here = f"{tmp_path.name}-clip.flac.txt"
    assert {path.name for path in out.iterdir()} == {here, "other-clip.flac.txt"}
    assert (out / here).read_text() != (out / "other-clip.flac.txt").read_text()


def test_a_part_of_a_recording(tmp_path: Path, call: Call) -> None:
    def found(*more: str) -> list[tuple[float, float, str]]:
        arguments = ["transcribe", str(CLIPS / "mixed.flac"), *FAST, "-f", "json", "-o", "-", *more]
        segments = json.loads(call(*arguments).out)["segments"]
        return [(segment["start"], segment["end"], segment["text"]) for segment in segments]

    part = found("--offset", "0:04", "--duration", "5.5")
    assert [text for _, _, text in part] == [text for _, _, text in found("--clip-timestamps", "4,9.5")]
    assert part
    assert all(4 <= start <= end <= 9.5 for start, end, _ in part)
    rest = found("--offset", "0:00:04")
    assert rest[0][2] == part[0][2]
    assert all(4 <= start <= end for start, end, _ in rest)


def test_a_second_model_reads_what_is_in_doubt(clip: Path, call: Call) -> None:
    """The same model twice: the same words, and a line that says how much it read again."""
    command = ["transcribe", str(clip), *FAST]
    alone = call(*command).out
    sure = call(*command, "--second-model", "nano", "--defer-word", "0", "--defer-logprob", "-100")
    doubtful = call(*command, "--second-model", "nano", "--defer-logprob", "0")
    assert sure.out == doubtful.out == alone
    assert "in doubt" not in sure.err
    assert re.search(r"\(100%\) were in doubt and read by nano", doubtful.err)


def test_signs_join_the_words_that_are_asked_for(clip: Path, call: Call) -> None:
    def last_word(*more: str) -> str:
        said = call("transcribe", clip, *FAST, "-w", "-f", "json", "-o", "-", *more)
        word: str = json.loads(said.out)["segments"][-1]["words"][-1]["word"]
        return word

    assert len(last_word()) > 1
    assert last_word("--append-punctuations", "") == "."


def test_help_names_the_languages_of_the_styles() -> None:
    context = click.Context(transcribe)
    helps = {option.name: option.get_help_record(context) for option in transcribe.params}
    for name, languages in (("verbatim", VERBATIM_PROMPTS), ("clean", DISFLUENCIES)):
        record = helps[name]
        assert record is not None
        assert f"({', '.join(languages)})" in record[1]


def test_help_tells_the_defaults_of_the_vad() -> None:
    for field in fields(VadOptions):
        (option,) = [param for param in transcribe.params if param.name == f"vad_{field.name}"]
        assert isinstance(option, click.Option)
        assert option.help is not None
        value = getattr(WINDOW_VAD, field.name)
        shown = "threshold - 0.15" if value is None else f"{value:g}"
        assert option.help.endswith(f"[{shown}]")


def test_a_batch_that_runs_out_of_memory_goes_on(
    clip: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Path(shutil.copy(clip, tmp_path / "large.flac"))
    transcribe_one = Model.transcribe

    def lacking(model: Model, source: str, **options: Any) -> FileTranscription:
        if source == str(large):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return transcribe_one(model, source, **options)

    monkeypatch.setattr(Model, "transcribe", lacking)
    line = one_error(call("transcribe", large, clip, *FAST, "-o", tmp_path, code=1).err)
    assert "large.flac" in line
    assert line.endswith("try a smaller --batch-size or --beam-size, or a smaller --model")
    assert (tmp_path / "clip.txt").exists()
    assert not (tmp_path / "large.txt").exists()


def test_boosted_phrases_come_out(clip: Path, tmp_path: Path, call: Call) -> None:
    """A word that sounds alike, and is nowhere without the boost."""
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("Gartin\n", encoding="utf-8")
    search = ["--model", "nano", "--language", "de", "--temperature", "0"]
    assert "Gartin" not in call("transcribe", clip, *search).out
    boost = ["--hotwords", str(phrases), "--hotword-weight", "20"]
    assert "Gartin" in call("transcribe", clip, *search, *boost).out
    notes = tmp_path / "notes.md"
    notes.write_text("# Gartin\n\nThe Gartin is the Gartin.\n", encoding="utf-8")
    document = ["--vocabulary-from", str(notes), "--hotword-weight", "20"]
    assert "Gartin" in call("transcribe", clip, *search, *document).out


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_end_from_outside_leaves_nothing_half_written(
    number: signal.Signals, code: int, word: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000 * 600).astype(np.float32).clip(-1, 1)
    long = tmp_path / "long.wav"
    long.write_bytes(wav_bytes(noise))
    said = tmp_path_factory.mktemp("said") / "said"
    words = ["transcribe", str(CLIPS / "de.flac"), str(long), *FAST, "--output-dir", str(tmp_path)]
    process = start_command(words, said)
    while not list(tmp_path.glob(".long.txt.*")):  # until it has begun to write
        assert process.is_alive(), said.read_text()
        time.sleep(0.02)
    os.kill(process.pid or 0, number)
    process.join()
    *notes, last = said.read_text().splitlines()
    assert (process.exitcode, last) == (code, word)
    assert notes == ["note: 1 of 2 done; with --skip-existing the same call leaves out those with documents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["de.txt", "long.wav"]


def test_standard_input(clip: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe(clip.read_bytes())))
    given = call("transcribe", "-", *FAST).out
    assert given == call("transcribe", clip, *FAST).out
    assert given.strip()


@pytest.mark.parametrize("opened", [pipe, io.BytesIO])
def test_standard_input_without_sound_is_named(
    opened: Callable[[bytes], BinaryIO], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=opened(b"no sound here")))
    assert call("transcribe", "-", *FAST, code=2).err.startswith("error: standard input: expected an audio")


FAST_AUDIO = ["--model", "nano", "--beam-size", "1", "--temperature", "0"]


@pytest.fixture
def film(tmp_path: Path) -> Path:
    english, german = load_audio(CLIPS / "en.flac"), load_audio(CLIPS / "de.flac")
    tracks: list[Sound] = [(english, "eng", None), (german, "deu", "Kommentar")]
    return write_tracks(tmp_path / "film.mka", tracks, "pcm_s16le")


@pytest.mark.parametrize(("track", "mode"), [("2", []), ("de", ["--vad"]), ("ger", ["--offset", "0:00.1"])])
def test_the_track_is_read_and_told(track: str, mode: list[str], film: Path, call: Call) -> None:
    output = call("transcribe", film, *FAST_AUDIO, "--audio-track", track, *mode)
    assert "viel Zeit" in output.out
    (line,) = output.err.splitlines()
    assert line == (f"note: {film}: audio track 2 (deu, 'Kommentar') of 2; others: 1 (eng) (--audio-track)")


def test_the_track_that_ffmpeg_takes_is_told_too(film: Path, call: Call) -> None:
    output = call("transcribe", film, *FAST_AUDIO, "-f", "json", "-o", "-")
    assert '"language": "en"' in output.out
    assert "audio track 1 (eng) of 2" in output.err


def test_a_recording_without_the_track_is_one_line_and_others_are_read(
    film: Path, tmp_path: Path, call: Call
) -> None:
    other = Path(shutil.copy(CLIPS / "de.flac", tmp_path / "other.flac"))
    said = call("transcribe", film, other, *FAST_AUDIO, "--audio-track", "2", "-o", tmp_path, code=1)
    errors = [line for line in said.err.splitlines() if line.startswith("error")]
    assert errors == [f"error: {other}: expected an audio track among 1; got '2'"]
    assert "viel Zeit" in (tmp_path / "film.txt").read_text()


@pytest.mark.usefixtures("no_model")
def test_a_track_that_is_not_there_is_told_before_the_model_is_loaded(film: Path, call: Call) -> None:
    for track, reported in (("3", "among 1 (eng), 2 (deu, 'Kommentar'); got '3'"), ("0", "number from 1")):
        (line,) = call("transcribe", film, *FAST_AUDIO, "--audio-track", track, code=2).err.splitlines()
        assert line.startswith("error: ")
        assert reported in line


@pytest.mark.long
def test_several_processes_read_the_track(film: Path, call: Call) -> None:
    words = ["--processors", "2", "-l", "de", "--audio-track", "de"]
    assert "viel Zeit" in call("transcribe", film, *FAST_AUDIO, *words).out


LACKS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
]


def failing(error: Exception, done: list[str]) -> Callable[[str], None]:
    def work(name: str) -> None:
        if name == "bad":
            raise error
        done.append(name)

    return work


def code_of(error: Exception, files: list[str], done: list[str]) -> int:
    return for_each_file(files, failing(error, done), invocation=Invocation(), advice="--dtype int8")


OTHERS = [AudioError("bad: no sound"), RuntimeError("shape mismatch"), KeyError("x"), ZeroDivisionError()]


@pytest.mark.parametrize("error", [*LACKS, *OTHERS], ids=lambda error: repr(error)[:30])
def test_one_file_fails_in_one_line_and_the_next_is_done(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    assert code_of(error, ["a", "bad", "b"], done) == 1
    assert done == ["a", "b"]
    line, summary = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "bad" in line
    assert summary == "note: 1 of 3 failed (above)"
    assert ("--dtype int8" in line) == is_out_of_memory(error)
    assert code_of(error, ["bad"], done) == 2


def test_nothing_more_is_done_where_nothing_can_be_written() -> None:
    done: list[str] = []
    with pytest.raises(OutputError):
        code_of(OutputError("standard output: cannot be written"), ["a", "bad", "b"], done)
    assert done == ["a"]


def test_a_name_with_line_breaks_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(AudioError("a\nb\x1b[31m: no sound"), ["bad"], []) == 2
    assert capsys.readouterr().err == "error: a\\nb\\x1b[31m: no sound\n"


CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
TALK = (Turn(0.2, 4.0, "middle"), Turn(4.3, 8.0, "low"), Turn(8.2, 12.0, "high"), Turn(12.2, 15.6, "middle"))


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(wav_bytes(recording(TALK, 16.0)))
    return path


@pytest.fixture(autouse=True)
def _tones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that hear tones stand in for those that hear people: no weights are needed."""

    def tone_diarizer(wish: SpeakerOptions) -> ClusteringDiarizer:
        return ClusteringDiarizer(ToneSpeakers(), ToneVoices(), wish)

    monkeypatch.setattr(transcription, "make_diarizer", tone_diarizer)


def turns(talk: Path, *words: str) -> list[tuple[float, str]]:
    """Where turns begin, and whose they are, in the JSON document; tones are not read as speech."""
    out = talk.with_suffix(".json")
    assert run(["transcribe", str(talk), *FAST, "--vad", *words, "-o", str(out)]) == 0
    return [(round(turn["start"]), turn["speaker"]) for turn in json.loads(out.read_text())["turns"]]


def test_names_by_the_order_of_first_speech(talk: Path) -> None:
    assert turns(talk, "--speakers", "auto") == [(0, "A"), (4, "B"), (8, "C"), (12, "A")]
    named = turns(talk, "--speakers", "3", "--speaker-names", "Ann, Bob Lee")
    assert named == [(0, "Ann"), (4, "Bob Lee"), (8, "C"), (12, "Ann")]
    swapped = turns(talk, "--speakers", "auto", "--speaker-names", "B,A")
    assert swapped == [(0, "B"), (4, "A"), (8, "C"), (12, "B")]


def test_names_are_in_every_document(talk: Path, tmp_path: Path) -> None:
    words = ["--speakers", "auto", "--speaker-names", "Ann,Bob,Eve", "-f", "all", "-o", str(tmp_path / "out")]
    words += ["--no-read-again"]  # words over tones, where nobody speaks, are left out otherwise
    assert run(["transcribe", str(talk), *FAST, "--duration", "9", *words]) == 0
    document = json.loads((tmp_path / "out" / "talk.json").read_text())
    speakers = {segment["speaker"] for segment in document["segments"]}
    assert speakers <= {"Ann", "Bob", "Eve"}
    assert speakers
    for segment in document["segments"]:
        assert {word["speaker"] for word in segment["words"]} == {segment["speaker"]}
    assert (tmp_path / "out" / "talk.rttm").read_text().split()[7] == "Ann"
    for extension in ("txt", "srt", "vtt", "ass", "html", "TextGrid", "lrc"):
        text = (tmp_path / "out" / f"talk.{extension}").read_text(encoding="utf-8")
        assert any(name in text for name in speakers), extension


def test_known_voices_have_their_names_wherever_they_speak(talk: Path, tmp_path: Path) -> None:
    voice = tmp_path / "eve.wav"
    voice.write_bytes(wav_bytes(recording((Turn(0.0, 2.0, "high"),), 2.0)))
    names = turns(talk, "--speakers", "auto", "--known-voice", f"Eve={voice}", "--speaker-names", "Ann")
    assert names == [(0, "Ann"), (4, "B"), (8, "Eve"), (12, "Ann")]
    low = tmp_path / "low=1.wav"
    low.write_bytes(wav_bytes(recording((Turn(0.0, 2.0, "low"),), 2.0)))
    both = ["--known-voice", f"Eve={voice}", "--known-voice", f"Bob={low}"]
    assert turns(talk, "--speakers", "auto", *both) == [(0, "A"), (4, "Bob"), (8, "Eve"), (12, "A")]


def test_bounds_of_the_number_of_speakers(talk: Path) -> None:
    assert {name for _, name in turns(talk, "--speakers", "auto", "--max-speakers", "2")} == {"A", "B"}
    two = ["--speakers", "auto", "--min-speakers", "2", "--max-speakers", "12"]
    assert {name for _, name in turns(talk, *two)} == {"A", "B", "C"}
    alone = talk.with_name("one.wav")
    alone.write_bytes(wav_bytes(recording((Turn(0.2, 9.0, "low"), Turn(9.5, 14.0, "low")), 15.0)))
    assert {name for _, name in turns(alone, "--speakers", "auto")} == {"A"}


def test_a_part_has_its_own_order(talk: Path) -> None:
    names = turns(talk, "--speakers", "2", "--speaker-names", "Ann,Bob", "--offset", "8.1")
    assert names == [(8, "Ann"), (12, "Bob")]


def test_channels_are_named_in_their_order(tmp_path: Path) -> None:
    from sottovoce.audio.io import load_audio

    speech = load_audio(CLIP)
    nothing = np.zeros_like(speech)
    both = np.stack([np.concatenate([nothing, speech]), np.concatenate([speech, nothing])])
    path = tmp_path / "call.wav"
    path.write_bytes(wav_bytes(both))
    for channels in ("energy", "apart"):
        out = tmp_path / f"{channels}.json"
        words = ["--channels", channels, "--speaker-names", "Ann,Bob", "-o", str(out)]
        assert run(["transcribe", str(path), *FAST, *words]) == 0
        segments = json.loads(out.read_text())["segments"]
        assert (segments[0]["speaker"], segments[-1]["speaker"]) == ("Bob", "Ann")
