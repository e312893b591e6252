"""The library's face: wishes, results, several files."""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import sottovoce
from sottovoce import DecodingOptions, FallbackOptions, Model, TranscribeOptions, Transcript
from sottovoce.audio.io import Source, load_audio
from sottovoce.errors import AudioError, OptionError
from sottovoce.options.transcribe import SpeakerOptions
from tests.models import tiny

CLIPS = Path(__file__).parents[1] / "examples" / "clips"


@pytest.fixture(autouse=True)
def commands_load_nano_once() -> None:
    """Not here: models are pickled."""


@pytest.mark.parametrize(
    "call",
    [
        lambda model, source, code: model.transcribe(source, language=code),
        lambda model, source, code: model.transcribe_files([source], language=code),
        lambda model, source, code: model.detect_language(source, languages=code),
        lambda model, source, code: model.language_spans(source, languages=code),
        lambda model, source, code: model.align(source, "So.", language=code),
        lambda model, source, code: model.find(source, "so", language=code),
        lambda model, source, code: model.session(code),
    ],
)
def test_an_unknown_language_is_an_error_of_the_call(call: Callable[..., object], model: Model) -> None:
    with pytest.raises(OptionError, match="klingon"):
        call(model, CLIPS / "en.flac", "klingon")


@pytest.mark.parametrize("wrong", [{"audio_filter": "nonsense"}, {"input_format": "nonsense"}])
def test_a_source_that_cannot_be_opened_so_is_an_error_of_its_own(wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="nonsense"):
        Source(CLIPS / "en.flac", **wrong)  # type: ignore[arg-type]


def test_keywords_win_wherever_they_are_given(model: Model) -> None:
    options = TranscribeOptions(
        DecodingOptions(language="de", task="translate", beam_size=4), word_timestamps=True
    )
    kept = model.options(options)
    assert (kept.decoding, kept.word_timestamps) == (options.decoding, True)
    won = model.options(options, language="en", task="transcribe", word_timestamps=False, beam_size=1)
    assert (won.decoding.language, won.decoding.task, won.decoding.beam_size) == ("en", "transcribe", None)
    assert won.word_timestamps is False


def test_languages_are_followed_in_a_list_only(model: Model) -> None:
    auto = model.options(language="auto")
    assert (auto.decoding.language, auto.follows_languages) == (None, False)
    assert auto.decoding.allowed_languages == model.languages
    assert model.options(language="en,de").follows_languages
    assert model.options(language=list(model.languages)).follows_languages  # a list of all is a list
    assert not model.options(language="en").follows_languages
    listed = TranscribeOptions(DecodingOptions(allowed_languages=("en", "de")))
    assert model.options(listed).follows_languages
    assert not model.options(replace(listed, follow_languages=False)).follows_languages
    assert model.options(TranscribeOptions(follow_languages=True)).follows_languages
    assert model.options(language=None) == auto
    again = model.options(model.options(language="auto"))
    assert not again.follows_languages


def test_what_is_known_of_a_recording(model: Model) -> None:
    result = model.transcribe(CLIPS / "en.flac")
    text = result.text
    assert text == "".join(segment.text for segment in result.segments).strip() != ""
    transcript = result.collect()
    assert transcript.text == text
    assert (transcript.language, transcript.model) == ("en", "nano")
    assert transcript.duration == result.duration
    assert transcript.language_probability == result.language_probability
    assert result.language_probability is not None
    assert 0.5 < result.language_probability <= 1.0
    assert sum(transcript.language_probabilities.values()) == pytest.approx(1.0, abs=1e-3)
    given = model.transcribe(CLIPS / "en.flac", language="en").collect()
    assert (given.language_probability, dict(given.language_probabilities)) == (None, {})


def test_a_result_is_read_again_and_becomes_a_table(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with model.transcribe(CLIPS / "de.flac", language="de", word_timestamps=True) as result:
        assert repr(result).endswith("0 segments, not done)")
        segments = list(result)
        assert list(result) == segments != []
    assert repr(result).endswith(f"'de', {len(segments)} segments, done)")
    assert result.words == tuple(word for segment in segments for word in segment.words or ())
    assert result.to_dict()["segments"][0]["text"].strip() == segments[0].text.strip()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    first, *_ = result.to_dataframe()
    assert (first["text"], first["start"], first["language"]) == ("Wir", result.words[0].start, "de")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match="to_dataframe: needs the package 'pandas'"):
        result.to_dataframe()


def test_a_call_without_options_uses_the_beam_of_the_command(model: Model) -> None:
    def beam_of(**given: Any) -> int | None:
        return model.transcribe(CLIPS / "en.flac", **given)._transcriber.options.decoding.beam_size

    assert (beam_of(), beam_of(beam_size=1), beam_of(options=TranscribeOptions())) == (5, None, None)


def test_a_missing_recording_is_named_at_the_call(model: Model, tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"missing.wav: no such file"):
        model.transcribe(tmp_path / "missing.wav")
    with pytest.raises(AudioError, match="is a folder"):
        model.transcribe(tmp_path)


def test_a_session_is_a_context_manager(model: Model) -> None:
    samples = (load_audio(CLIPS / "en.flac") * 32767).astype(np.int16).repeat(3)
    with model.session(["en"]) as session:
        events = session.push(samples, sample_rate=48_000)
        assert repr(session).startswith("Session(en, ")
        events += session.close()
    (final,) = [event for event in events if isinstance(event, sottovoce.Final)]
    assert final.text.startswith("The garden")
    with pytest.raises(OptionError, match="options: expected LiveOptions, got 'x'"):
        model.session(options="x")  # type: ignore[arg-type]
    assert repr(model) == f"Model('nano', {len(model.languages)} languages, {model.backend.runtime})"


def test_progress_and_abort(model: Model) -> None:
    positions_s: list[float] = []
    result = model.transcribe(
        CLIPS / "en.flac",
        on_progress=lambda position, duration: positions_s.append(position),
        abort=lambda: bool(positions_s),
    )
    segments = list(result)
    assert len(positions_s) == 1
    assert result.segments == tuple(segments)


def test_several_files_at_once(model: Model) -> None:
    names = ["en.flac", "missing.flac", "de.flac"]
    pairs = list(model.transcribe_files([CLIPS / name for name in names], batch_size=3))
    assert [Path(str(source)).name for source, _ in pairs] == names
    assert isinstance(pairs[1][1], AudioError)
    for source, outcome in (pairs[0], pairs[2]):
        assert isinstance(outcome, Transcript)
        alone = model.transcribe(source).collect()
        assert (outcome.text, outcome.language) == (alone.text, alone.language)
    with pytest.raises(OptionError, match="batch_size"):
        model.transcribe_files([], batch_size=0)


def test_an_unreadable_source_is_named_by_every_way_in(model: Model) -> None:
    with pytest.raises(AudioError):
        model.transcribe(io.BytesIO(b"no audio")).collect()


@pytest.mark.parametrize("given", [[0.1, 0.2], None, 5, iter(())], ids=lambda value: type(value).__name__)
def test_audio_of_another_type_is_one_line(model: Model, given: object) -> None:
    with pytest.raises(AudioError, match=f"expected a path, .* got {type(given).__name__}$"):
        model.transcribe(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["talk.mp3", Path("talk.mp3"), b"RIFF"])
def test_one_recording_is_not_several_files(model: Model, given: object) -> None:
    with pytest.raises(OptionError, match="expected a list of recordings, got one"):
        model.transcribe_files(given)  # type: ignore[arg-type]


def test_float_samples_on_the_scale_of_integers_are_refused(model: Model) -> None:
    """A file read as int16 and cast to float without division: its text would be made up."""
    samples = load_audio(CLIPS / "en.flac")[:16_000]
    assert model.transcribe(samples * 2, language="en").text
    message = "expected float samples from -1 to 1, got up to .*: divide by their full scale"
    for given in (samples * 32768, np.stack([samples, samples * 1e6])):
        with pytest.raises(AudioError, match=message):
            model.transcribe(given, language="en").collect()
    with pytest.raises(AudioError, match=message):
        model.session(["en"]).push(samples * 32768)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"language": 5}, "language: expected a code, a name or a list of them, got 5"),
        ({"language": ["en", 5]}, "language: expected codes or names, got 5"),
        ({"beam_size": "3"}, "beam_size: expected a whole number or None, got '3'"),
        ({"beam_size": 0}, "beam_size: expected at least 1, got 0"),
        (
            {"options": DecodingOptions()},
            "options: expected TranscribeOptions, got DecodingOptions(language=None",
        ),
        ({"second": "base"}, "second: expected SecondModel (as_second() of a model), got 'base'"),
        ({"resume": 5}, "resume: expected ResumePoint (resume_point of a transcription), got 5"),
        ({"fusion": "lm.arpa"}, "fusion: expected one of this Whisper model's `fusion`, got 'lm.arpa'"),
    ],
)
def test_arguments_of_another_type_are_one_line(
    model: Model, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        model.transcribe(CLIPS / "en.flac", **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"finals": "read"}}, "options: expected LiveOptions, got {'finals': 'read'}"),
        ({"stream": {"chunk_s": 1}}, "stream: expected StreamOptions, got {'chunk_s': 1}"),
        ({"final_model": "base"}, "final_model: expected Recogniser (load_model), got 'base'"),
    ],
)
def test_arguments_of_a_session_of_another_type_are_one_line(
    model: Model, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        model.session("en", **arguments)


@pytest.mark.parametrize(
    ("owner", "values", "message"),
    [
        (TranscribeOptions, {"initial_prompt": ["a"]}, "initial_prompt: expected text or None, got ['a']"),
        (
            TranscribeOptions,
            {"clip_timestamps": "1,3"},
            "clip_timestamps: expected a tuple of numbers, got '1,3'",
        ),
        (FallbackOptions, {"temperatures": 0.5}, "temperatures: expected a tuple of numbers, got 0.5"),
        (DecodingOptions, {"prefix": 3}, "prefix: expected text or a tuple of whole numbers or None, got 3"),
        (DecodingOptions, {"hotwords": ("a", "b")}, "hotwords: expected text or None, got ('a', 'b')"),
    ],
)
def test_options_of_another_type_are_one_line(
    owner: type[TranscribeOptions], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        owner(**values)


@pytest.mark.parametrize(("given", "n_speakers"), [(2, 2), ("2", 2), ("auto", None)])
def test_speakers_in_options_are_those_of_the_keyword(given: Any, n_speakers: int | None) -> None:
    assert TranscribeOptions(speakers=given).speakers == SpeakerOptions(n_speakers=n_speakers)


def test_speakers_of_another_type_are_one_line() -> None:
    with pytest.raises(OptionError, match=r"expected 'auto', a number, options or a diarizer, got \[2\]"):
        TranscribeOptions(speakers=[2])  # type: ignore[arg-type]


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_languages_within_a_recording(model: Model, mode: Literal["seek", "vad"]) -> None:
    """Found once where following is off, in a part with two of them."""
    options = TranscribeOptions(mode=mode, follow_languages=False, duration_s=7.0)

    def spoken(language: str) -> set[str]:
        segments = model.transcribe(CLIPS / "mixed.flac", language=language, options=options)
        return {segment.language for segment in segments}

    assert len(spoken("auto")) == 1
    assert spoken("de,es") in ({"de"}, {"es"})


STREAM_FIELDS = "whose fields are threshold, neg_threshold, onset_ms, hangover_ms, pre_roll_ms, post_roll_ms"


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ({"switching": "parallel"}, "switching: expected 'off' or 'restart', got 'parallel'"),
        ({"vad": 0.5}, f"vad: expected True, False or VadStreamOptions, {STREAM_FIELDS}, got 0.5"),
        (
            {"vad": {"min_silence_duration_ms": 500}},
            f"vad: expected True, False or VadStreamOptions, {STREAM_FIELDS}, "
            "got {'min_silence_duration_ms': 500}",
        ),
    ],
)
def test_what_a_session_is_not_told_to_do_is_refused(
    model: Model, bad: dict[str, object], expected: str
) -> None:
    with pytest.raises(OptionError) as refused:
        model.session("en", **bad)  # type: ignore[arg-type]
    assert str(refused.value) == expected


def test_a_tensor_is_audio_as_an_array_is(model: Model) -> None:
    samples = load_audio(CLIPS / "en.flac", duration_s=1.0)
    tensor = torch.from_numpy(samples)
    assert list(model.transcribe(tensor, language="en")) == list(model.transcribe(samples, language="en"))
    of_arrays = model.session("en")
    events = [*of_arrays.push(samples), *of_arrays.close()]
    for pushed in (tensor, tensor.double()):
        live = model.session("en")
        assert [*live.push(pushed), *live.close()] == events


def test_the_dictionary_of_faster_whisper_is_told_the_names_here() -> None:
    with pytest.raises(
        OptionError, match=r"VadOptions, whose fields are threshold, .*min_silence_ms.*, got {"
    ):
        TranscribeOptions(mode="vad", vad={"min_silence_duration_ms": 500})  # type: ignore[arg-type]


def test_models_are_copied_and_pickled(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.api.load_model", sottovoce.load_model)  # which a pickle names
    assert copy.copy(model).backend is model.backend
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (again.name, again.languages) == (model.name, model.languages)
        assert again.backend is not model.backend
    by_hand = Model(tiny.checkpoint(), model.backend)
    with pytest.raises(TypeError, match="model random: expected one of load_model to be pickled"):
        pickle.dumps(by_hand)
