"""Forced alignment with nano, whose clips tell when their sentences are said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sottovoce.alignment.forced import Unit, lines_of, units_of
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.errors import OptionError
from sottovoce.options.transcribe import AlignMethod, AlignOptions
from sottovoce.types import SAMPLE_RATE, Samples, Segment, Transcript

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
ROWS = {
    row["id"].split("/")[1]: row
    for row in map(json.loads, (CLIPS / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
}
METHODS: tuple[AlignMethod, ...] = ("attention", "ctc")


def long_recording(n_times: int) -> tuple[Samples, list[str], list[tuple[float, float]]]:
    """The English and the other clips with pauses, what is said, and when."""
    pieces, texts, spans, at = [], [], [], 0.0
    for _ in range(n_times):
        samples = load_audio(CLIPS / "en.flac")
        (part,) = ROWS["en"]["segments"]
        pieces += [samples, np.zeros(4 * SAMPLE_RATE, np.float32)]
        texts.append(part["text"])
        spans.append((at + part["start"], at + part["end"]))
        at += len(samples) / SAMPLE_RATE + 4.0
    return np.concatenate(pieces), texts, spans


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("language", ["en", "de", "es", "fr"])
def test_a_sentence_is_found_where_it_is(model: Model, language: str, method: AlignMethod) -> None:
    row = ROWS[language]
    (part,) = row["segments"]
    result = model.align(
        CLIPS / row["file"], part["text"], language=language, options=AlignOptions(method=method)
    )
    (segment,) = result.segments
    assert segment.words is not None
    assert segment.text.split() == part["text"].split()
    assert segment.start == pytest.approx(part["start"], abs=0.3)
    assert segment.end == pytest.approx(part["end"], abs=0.7)
    times = [time for word in segment.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert "".join(word.word for word in segment.words) == segment.text


def test_the_words_of_all_lines_are_gone_through_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    line, reads = vars(Unit)["line"], list[Unit]()

    def read(unit: Unit) -> int:
        reads.append(unit)
        return int(line.__get__(unit))

    monkeypatch.setattr(Unit, "line", property(read, line.__set__))
    words = ROWS["en"]["segments"][0]["text"].split()
    result = model.align(CLIPS / "en.flac", words, language="en")
    assert [segment.text.strip() for segment in result.segments] == words
    assert len(reads) <= 2 * len(words)


@pytest.mark.parametrize("method", METHODS)
def test_a_long_recording_is_searched_for_its_text(model: Model, method: AlignMethod) -> None:
    clip, silence = load_audio(CLIPS / "en.flac"), np.zeros(20 * SAMPLE_RATE, np.float32)
    (part,) = ROWS["en"]["segments"]
    samples = np.concatenate([silence, clip, silence])
    result = model.align(samples, part["text"], language="en", options=AlignOptions(method=method))
    (segment,) = result.segments
    assert segment.start == pytest.approx(20 + part["start"], abs=0.5)
    assert segment.end == pytest.approx(20 + part["end"], abs=0.8)


def test_the_times_of_a_transcript_are_refined(model: Model) -> None:
    samples, texts, spans = long_recording(5)
    rough = Transcript(
        tuple(
            Segment(i, max(0.0, start - 0.8), end + 0.9, text, "en", speaker="A")
            for i, (text, (start, end)) in enumerate(zip(texts, spans, strict=True))
        ),
        "en",
        len(samples) / SAMPLE_RATE,
        "other",
    )
    result = model.align(samples, rough)
    assert result.language == "en"
    for segment, (start, end) in zip(result.segments, spans, strict=True):
        assert segment.start == pytest.approx(start, abs=0.4)
        assert segment.end == pytest.approx(end, abs=0.8)
        assert segment.speaker == "A"


@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_is_hardly_said_is_doubted(
    model: Model, method: AlignMethod, caplog: pytest.LogCaptureFixture
) -> None:
    """In one window any text gets times."""
    options = AlignOptions(method=method)
    for row in (ROWS["en"], ROWS["de"]):
        (part,) = row["segments"]
        model.align(CLIPS / row["file"], part["text"], language=part["language"], options=options)
    assert not caplog.records
    model.align(CLIPS / "en.flac", "Bookkeepers quarrel over oxygen.", language="en", options=options)
    (record,) = caplog.records
    assert re.fullmatch(
        r"text: expected what is said in .*en\.flac, but its words are improbable there "
        r"\(0\.[01]\d in the mean\)",
        record.message,
    )


def test_a_model_without_a_ctc_head_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ctc_head", None)
    with pytest.raises(OptionError, match="expected a model with a CTC head, nano has none"):
        model.align(CLIPS / "en.flac", "The garden", language="en", options=AlignOptions(method="ctc"))


UNRELATED = "Wholly unrelated vocabulary concerning astronomy, jurisprudence and bookkeeping."


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("text", "seconds", "method", "message"),
    [
        *((text, 3.0, "attention", "expected words to align, got none") for text in ("", "  \n ", "...", [])),
        (UNRELATED, 35.0, "attention", r"expected what is said in .*, but \d of its 8 words were heard"),
        ("Доброе утро", 3.0, "ctc", r"in the letters of the model's head \(abc.*\), got none"),
        ("The garden is quiet in the morning.", 0.5, "ctc", r"expected what can be said in 0\.\d s"),
    ],
)
def test_texts_that_do_not_fit_the_recording_are_refused(
    model: Model, text: str | list[str], seconds: float, method: AlignMethod, message: str
) -> None:
    samples, _, _ = long_recording(5)
    options = AlignOptions(method=method)
    with pytest.raises(OptionError, match=message):
        model.align(samples[: round(seconds * SAMPLE_RATE)], text, language="en", options=options)


def test_lines_and_sentences_become_segments() -> None:
    lines = lines_of("First one. Second one! \n\n Third, e.g. this.\n…\n")
    assert [line.text for line in lines][:2] == ["First one.", "Second one!"]
    assert " ".join(line.text for line in lines) == "First one. Second one! Third, e.g. this."
    assert [line.text for line in lines_of(["One. Two.", "Three."])] == ["One. Two.", "Three."]


def test_units_spell_the_line(model: Model) -> None:
    (line,) = lines_of("«Tut mir leid», sagte sie.")
    units = units_of([line], model.tokenizer.with_language("de"))
    assert "".join(unit.text for unit in units).strip() == line.text
    assert [unit.letters for unit in units if unit.letters] == ["tut", "mir", "leid", "sagte", "sie"]


def test_a_phrase_is_found_in_a_recording(model: Model) -> None:
    (match,) = model.find(CLIPS / "en.flac", "quite in the mornings", language="en")
    assert "morning" in match.text
    assert 0.6 < match.start < match.end < 2.5
