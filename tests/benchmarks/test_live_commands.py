"""What the live commands count: words by clip and by border, sounds without speech, translations, names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")
pytest.importorskip("matplotlib")

from benchmarks.live.hour import Meter, Part, Said, joined, shared, show, show_long
from benchmarks.live.noise import invented, music
from benchmarks.live.plots import line_of
from benchmarks.live.runs import Item, Live, Setting, Whole
from benchmarks.live.settings import said_on
from benchmarks.live.switching import Recording, border_errors, known_well, language_at, put_together
from sottovoce.evaluation.live_run import LiveRun
from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.types import SAMPLE_RATE, Word


def silence(seconds: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def words(text: str, start: float = 0.0, length: float = 0.5, language: str = "en") -> list[Word]:
    parts = text.split()
    return [
        Word(f" {p}", start + i * length, start + (i + 1) * length, 1.0, language)
        for i, p in enumerate(parts)
    ]


def live(said: Sequence[Word], duration_s: float = 10.0) -> Live:
    delays = tuple(word.end for word in said)
    return Live(LiveRun(tuple(said), delays, delays, None, (), duration_s, 1.0, 1.0))


def test_words_of_an_hour_belong_to_the_clip_they_begin_in() -> None:
    said = [Said(Item("a", Path("a")), 0.0, 2.0), Said(Item("b", Path("b")), 3.0, 5.0)]
    texts = shared(
        said, [Word(" one", 0.0, 0.2, 1.0), Word(" two", 2.6, 2.9, 1.0), Word(" six", 2.8, 3.2, 1.0)]
    )
    assert texts == [" one two", " six"]


def test_an_hour_is_said_over_and_over_in_another_order() -> None:
    items = [Item(name, silence(1.0)) for name in "abcd"]
    said, audio = joined(items, 20.0)
    assert said[-1].end_s <= len(audio) / SAMPLE_RATE
    assert said[0].start_s == 0.0
    assert said[1].start_s == pytest.approx(1.3)
    rounds = [[one.item.name for one in said[at : at + 4]] for at in (0, 4)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == list("abcd")
    assert rounds[0] != rounds[1]


def test_a_meter_has_a_point_a_minute() -> None:
    encoded = count(start=0, step=60 * 50)  # a frame for each frame of a minute, at every look
    meter = Meter(lambda: next(encoded))
    for at in np.arange(0.5, 180.5, 0.5):
        meter.read(float(at), [])
    assert meter.minutes == [1.0, 2.0, 3.0]
    assert meter.frames == [1.0, 1.0, 1.0]
    assert all(0.0 <= one < 0.1 for one in meter.cpu_s)


def test_what_is_too_long_is_shown_beside_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    item = Item("a", Path("a"), text="red green blue")
    parts = [Part(Said(item, 1.0, 2.0), "red green blue " + 5 * "blue ", item.text)]
    run = live(words("red green blue", 1.0)).run
    show(parts, run, Meter(minutes=[1.0], cpu_s=[0.25], frames=[9.0], resident_mb=[700.0]), 10.0, "name")
    show_long(parts)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| 0–10 min | 166.7% | 0.0% | 1 | 1 | 0 | 0.250 | 9.0 | 700 MB |"
    assert lines[5] == "a loop at 1.0–2.0 s, a"
    assert lines[7] == f"  live: {parts[0].heard.strip()}"


def test_clips_of_a_set_and_language_are_said_one_after_the_other() -> None:
    items = [Item(f"s/{i}", Path(f"{i}"), ("de",), f"t{i}", "s") for i in range(5)]
    assert [(one.name, one.text) for one in said_on(items, 2)] == [("s/0+1", "t0 t1"), ("s/2+3", "t2 t3")]
    assert said_on(items, 1)[4].name == "s/4"


SPANS = (LabelledSpan(0.0, 4.0, "en", "red green"), LabelledSpan(5.0, 9.0, "de", "rot blau"))


def test_words_near_a_border_are_lost_or_doubled() -> None:
    spans = Recording(Item("a", Path("a"), ("en", "de"), "red green rot blau"), SPANS).triples
    reference = [*words("red", 0.5), *words("green", 3.4), *words("rot", 5.2), *words("blau", 7.0)]
    heard = [*words("green", 3.4), *words("rot rot", 5.0), *words("blau", 7.0)]
    assert border_errors(spans, reference, heard) == (0, 1)  # "red" is missing far from the border
    assert border_errors(spans, reference, [*words("red", 0.5), *words("blau", 7.0)]) == (2, 0)


def test_the_language_of_a_word_is_that_of_its_middle() -> None:
    assert language_at(SPANS, Word("a", 3.5, 4.2, 1.0)) == "en"
    assert language_at(SPANS, Word("a", 4.2, 4.6, 1.0)) is None


def test_languages_with_few_errors_as_files_are_known_well() -> None:
    found = Recording(Item("a", Path("a"), ("en", "de"), "red green rot blau"), SPANS)
    assert known_well([found], [[words("red green"), words("roh grau")]]) == {"en"}


def test_spans_of_what_is_put_together_follow_the_pauses() -> None:
    made = put_together(
        "x", [Item("a", silence(1.0), ("en",), "one"), Item("b", silence(2.0), ("de",), "zwei")]
    )
    assert [(span.start_s, span.end_s, span.language) for span in made.spans] == [
        (0.0, 1.0, "en"),
        (pytest.approx(1.3), pytest.approx(3.3), "de"),
    ]
    assert len(made.item.samples()) == round(3.3 * SAMPLE_RATE)
    assert made.item.text == "one zwei"


def test_music_has_its_level_and_no_silence() -> None:
    found = music(4 * SAMPLE_RATE)
    assert 20 * np.log10(np.sqrt(np.mean(found.astype(float) ** 2))) == pytest.approx(-20.0, abs=0.5)
    assert min(np.abs(second).max() for second in np.split(found, 16)) > 0.05


def test_invented_words_are_counted_by_kind() -> None:
    items = [Item("a", silence(1), group="hum"), Item("b", silence(1), group="noise")]
    lives = [live(words("Thank you.")), live([Word("你好", 0.0, 1.0, 1.0)])]
    assert invented(items, lives, "hum") == 2
    assert invented(items, lives, "noise") == 2


def test_settings_of_a_line_differ_in_their_threshold() -> None:
    ours = Setting(stream={"frame_threshold": 10, "chunk_s": 0.5}).name
    assert line_of(ours) == ("0.5 s, float32", "10")
    assert line_of("SimulStreaming, 25 frames, 0.5 s") == ("SimulStreaming, 0.5 s", "25")


def test_a_translation_that_was_not_translated_is_counted() -> None:
    pytest.importorskip("sacrebleu")
    from benchmarks.live.translate import figures_of

    items = [Item("a", Path("a"), ("de",), "Guten Morgen, wie geht es dir?")] * 2
    said = [Whole("Guten Morgen, wie geht es dir?", ())] * 2
    whole = [Whole("Good morning, how are you?", tuple(words("Good morning, how are you?")))] * 2
    found = figures_of(items, said, whole, [live(words(said[0].text)), live(words(whole[0].text))])
    assert found["left"] == 1
    assert found["loops"] == 0
    assert figures_of(items, said, whole, [live(words(whole[0].text))] * 2)["chrf"] == pytest.approx(100.0)


def test_what_was_shown_before_a_final_is_counted() -> None:
    pytest.importorskip("sacrebleu")
    from benchmarks.live.beside import Beside, figures_of

    found = [
        Beside(("Good morning.", "And you?"), ("Good", "But"), (0.5, 1.5), 2.0, 4.0, 10.0),
        Beside(("Good evening.",), ("",), (1.0,), 2.0, 4.0, 10.0),
    ]
    figures = figures_of(found, ["Good morning. And you?", "Good evening."])
    assert figures["chrf"] == pytest.approx(100.0)
    assert (figures["early"], figures["kept"], figures["finals"]) == (2, 1, 3)
    assert (figures["behind_s"], figures["cpu"], figures["session_cpu"]) == pytest.approx((1.0, 0.4, 0.2))
