"""The library's face: wishes, results, several files."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

import sottovoce
from sottovoce import DecodingOptions, FallbackOptions, Model, TranscribeOptions, Transcript
from sottovoce.audio.io import load_audio
from sottovoce.errors import AudioError, OptionError

CLIPS = Path(__file__).parents[1] / "examples" / "clips"


@pytest.fixture(scope="module")
def model() -> Model:
    return sottovoce.load_model("nano", device="cpu", dtype="float32")


def asked(model: Model, options: TranscribeOptions | None = None, **given: object) -> TranscribeOptions:
    """The options that come of keywords and options."""
    names = ("language", "task", "word_timestamps", "beam_size")
    wishes = [given.get(name) for name in names]
    return model.options(*wishes, options or TranscribeOptions())  # type: ignore[arg-type]


def test_keywords_win_wherever_they_are_given(model: Model) -> None:
    options = TranscribeOptions(
        DecodingOptions(language="de", task="translate", beam_size=4), word_timestamps=True
    )
    kept = asked(model, options)
    assert (kept.decoding, kept.word_timestamps) == (options.decoding, True)
    won = asked(model, options, language="en", task="transcribe", word_timestamps=False, beam_size=1)
    assert (won.decoding.language, won.decoding.task, won.decoding.beam_size) == ("en", "transcribe", None)
    assert won.word_timestamps is False


def test_languages_are_followed_in_a_list_only(model: Model) -> None:
    auto = asked(model, language="auto")
    assert (auto.decoding.language, auto.follows_languages) == (None, False)
    assert auto.decoding.allowed_languages == model.languages
    assert asked(model, language="en,de").follows_languages
    assert asked(model, language=list(model.languages)).follows_languages  # a list of all is a list
    assert not asked(model, language="en").follows_languages
    listed = TranscribeOptions(DecodingOptions(allowed_languages=("en", "de")))
    assert asked(model, listed).follows_languages
    assert not asked(model, replace(listed, follow_languages=False)).follows_languages
    assert asked(model, TranscribeOptions(follow_languages=True)).follows_languages
    assert asked(model, language=None) == auto
    again = asked(model, asked(model, language="auto"))
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


def test_progress_and_abort(model: Model) -> None:
    told: list[float] = []
    result = model.transcribe(
        CLIPS / "en.flac",
        on_progress=lambda position, duration: told.append(position),
        abort=lambda: bool(told),
    )
    segments = list(result)
    assert len(told) == 1
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


def test_fallback_options_are_public(model: Model) -> None:
    options = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,), best_of=2))
    assert model.transcribe(CLIPS / "de.flac", options=options).collect().language == "de"


@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_languages_within_a_recording(model: Model, mode: Literal["seek", "vad"]) -> None:
    """Followed by default and in a list; found once where following is off, in a part with two of them."""

    def spoken(language: str | None, *, follow: bool | None = None) -> list[str]:
        part_s = None if follow is None else 7.0
        options = TranscribeOptions(mode=mode, follow_languages=follow, duration_s=part_s)
        segments = model.transcribe(CLIPS / "mixed.flac", language=language, options=options)
        return list(dict.fromkeys(segment.language for segment in segments))

    assert spoken("auto") == ["en", "de", "es", "fr"]
    assert len(spoken("auto", follow=False)) == 1
    assert spoken("de,es", follow=False) in (["de"], ["es"])
    assert spoken("en,de,es,fr") == ["en", "de", "es", "fr"]


STREAM_FIELDS = "whose fields are threshold, neg_threshold, onset_ms, hangover_ms, pre_roll_ms, post_roll_ms"


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ({"unstable": "foo"}, "unstable: expected True or False, got 'foo'"),
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
    live, of_arrays = model.session("en"), model.session("en")
    assert [*live.push(tensor), *live.close()] == [*of_arrays.push(samples), *of_arrays.close()]
    with pytest.raises(AudioError, match="expected float32 samples"):
        model.session("en").push(tensor.double())


def test_the_dictionary_of_faster_whisper_is_told_the_names_here() -> None:
    with pytest.raises(
        OptionError, match=r"VadOptions, whose fields are threshold, .*min_silence_ms.*, got {"
    ):
        TranscribeOptions(mode="vad", vad={"min_silence_duration_ms": 500})  # type: ignore[arg-type]
