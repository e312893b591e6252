"""Replacements: whole words in any case, times kept, live as in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.offline.transcription import in_style
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.streaming.session import EventEmitter
from sottovoce.text.filters import Replacements, Rules, phrases_alone
from sottovoce.types import Final, Partial, Segment, Word

RULES = {
    "cooper netties": "Kubernetes",
    "new york": "New York",
    "york city hall": "the Hall",
    "colour": "color",
    "um": "",
    r"/(\d+) euros?/": r"€\1",
    "机器": "機器",
    "c++": "C plus plus",
}


def words_of(text: str) -> list[Word]:
    return [Word(f" {part}", float(i), i + 0.9, 1 - i / 64) for i, part in enumerate(text.split())]


def rewriter(rules: Rules = RULES) -> Replacements:
    replacements = Replacements.of(rules)
    assert replacements is not None
    return replacements


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (" We run Cooper  netties.", " We run Kubernetes."),
        (" Colour, and no colours.", " Color, and no colours."),
        (" Um, we um go to new york.", " we go to New York."),
        (" in new york city hall", " in New York city hall"),
        (" York City Hall!", " the Hall!"),
        (" It takes 20 euros.", " It takes €20."),
        ("这个机器好", "这个機器好"),
        (" I write C++, they write c.", " I write C plus plus, they write c."),
    ],
)
def test_whole_words_are_rewritten_in_any_case(said: str, written: str) -> None:
    assert rewriter().text(said) == written


def test_words_keep_their_times_and_share_them_where_they_become_one() -> None:
    words = words_of("In new york, Cooper netties. Um, 5 euros")
    assert rewriter().words(words) == (
        words[0],
        Word(" New", 1.0, 1.9, words[1].probability),
        Word(" York,", 2.0, 2.9, words[2].probability),
        Word(" Kubernetes.", 3.0, 4.9, words[4].probability),
        Word(" €5", 6.0, 7.9, words[7].probability),
    )


@pytest.mark.parametrize(
    ("rules", "reported"),
    [
        ({"Ada": "a", "ada": "b"}, "one text for 'ada', got 'a' and 'b'"),
        ({" ": "b"}, "got nothing"),
        ({"/(/": "b"}, "regular expression"),
        ({"/a*/": "b"}, "matches none"),
        ({"/a/": r"\2"}, "invalid group"),
        ("a => b\nc", "line 2: expected 'what is said => what is written', got 'c'"),
        (Path("missing.txt"), "missing.txt"),
        (5, "got 5"),
    ],
)
def test_invalid_rules_are_one_line(rules: Rules, reported: str) -> None:
    with pytest.raises(OptionError, match=r"^.*$") as caught:
        Replacements.of(rules)
    assert reported in str(caught.value)


def test_a_request_has_no_expressions(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("# names\nada lovelace => Ada Lovelace\n", encoding="utf-8")
    for arrow in ("=>", " -> ", "→", "\t"):
        assert Replacements.of(tmp_path / "rules.txt") == phrases_alone(f"ada lovelace{arrow}Ada Lovelace")
    with pytest.raises(OptionError, match="got a regular expression"):
        phrases_alone("/a/ => b")


def segment(text: str, language: str) -> Segment:
    return Segment(0, 0.0, 9.0, text, language, words=tuple(words_of(text)))


def test_segments_of_a_file_are_rewritten_and_chosen_by_language() -> None:
    segments = [segment(" Um.", "en"), segment(" The colour.", "en"), segment(" Die Farbe.", "de")]
    options = TranscribeOptions(replacements={"colour": "color", "um": "", ".": ""})
    assert [each.text for each in in_style(iter(segments), options)] == [" The color", " Die Farbe"]
    for languages, texts in (
        ({"only_languages": ("German",)}, [" Die Farbe."]),
        ({"except_languages": ("de",)}, [" Um.", " The colour."]),
    ):
        chosen = in_style(iter(segments), TranscribeOptions(**languages))
        assert [each.text for each in chosen] == texts
    with pytest.raises(OptionError, match="only_languages"):
        TranscribeOptions(only_languages=("de",), except_languages=("en",))


SPOKEN = ["new", "york", "city", "hall", "cooper", "netties", "um,", "5", "euros", "colour."]


@given(st.lists(st.sampled_from(SPOKEN), max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_live_words_become_what_the_whole_becomes(spoken: list[str], sizes: list[int]) -> None:
    words, emitter = words_of(" ".join(spoken)), EventEmitter(1e9, 1e9, filters=[rewriter()])
    rest = list(words)
    for size in [*sizes, len(words)]:
        emitter.emit_words(rest[:size], "en", 0.0)
        del rest[:size]
    emitter.emit_final("en", 0.0)
    events = emitter.take()
    whole = rewriter().words(words)
    assert tuple(word for event in events if isinstance(event, Partial) for word in event.words) == whole
    assert [event.words for event in events if isinstance(event, Final)] == ([whole] if whole else [])


def test_only_words_that_begin_a_phrase_wait() -> None:
    emitter = EventEmitter(1e9, 1e9, filters=[rewriter({"new york city": "NYC", "colour": "color"})])
    texts = []
    for word in words_of("a colour in New York, or new york city"):
        emitter.emit_words([word], "en", 0.0)
        texts.append("".join(event.text for event in emitter.take() if isinstance(event, Partial)))
    assert texts == [" a", " color", " in", "", " New York,", " or", "", "", " NYC"]
