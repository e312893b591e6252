"""Text in a wrong language is found by how improbable it is, and read in the language that is heard."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sottovoce.decoding.decode import DecodingResult
from sottovoce.decoding.search import Candidate
from sottovoce.language.chain import Spans
from sottovoce.offline import languages as languages_module
from sottovoce.offline.pipeline import LanguageWindow, SeekWindows
from sottovoce.offline.verify import LanguageHypothesis, joined, segment_means, speech_in, text_mean
from sottovoce.offline.windows import SpeechSpan
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import Mode, TranscribeOptions
from sottovoce.types import Floats, Segment
from tests.offline.test_skipped_speech import WORLDS
from tests.offline.transcribing import TOKENIZER, at, read, rustle
from tests.runtime.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage

EOT = TOKENIZER.eot
LENGTH_S = 12.0
GERMAN_S = (4.0, 8.0)


def result(tokens: tuple[int, ...], sums: tuple[float, ...]) -> DecodingResult:
    best = Candidate(tokens, sums[-1] - 1.0, sums[-1] - 1.0, sums)
    return DecodingResult("en", tokens, "", -0.3, 0.0, 0.0, 1.0, candidates=(best,))


def segment(start: float, end: float, *tokens: int) -> Segment:
    return Segment(0, start, end, " so", "en", tokens=tokens)


def test_segments_have_the_mean_of_their_text() -> None:
    """Timestamps do not count, and a segment that was left out harms no other."""
    tokens = (at(0), 1, 2, at(2), at(2), 3, at(3), at(3), 1, 4, at(5))
    actual = result(tokens, (-9.0, -10.0, -13.0, -20.0, -20.0, -24.0, -24.0, -24.0, -24.5, -25.0, -30.0))
    segments = [segment(0, 2, *tokens[:4]), segment(2, 3, *tokens[4:7]), segment(3, 5, *tokens[7:])]
    assert segment_means(actual, segments, EOT) == [-2.0, -4.0, -0.5]
    assert segment_means(actual, segments[::2], EOT) == [-2.0, -0.5]
    assert segment_means(actual, [segment(0, 2, at(0), at(2))], EOT) == [None]
    assert text_mean(actual, EOT) == pytest.approx(-1.8)


def test_a_prefix_was_not_searched_for() -> None:
    actual = replace(result((1, 2), (-1.0, -3.0)), tokens=(7, 8, 1, 2))
    assert actual.token_logprobs == [0.0, 0.0, -1.0, -2.0]
    assert replace(actual, candidates=()).token_logprobs == [0.0] * 4


def test_a_segment_is_asked_where_it_has_enough_speech() -> None:
    pieces = [SpeechSpan(0, 90), SpeechSpan(120, 200)]
    assert speech_in(segment(0.5, 3.0), pieces) == SpeechSpan(50, 200)
    assert speech_in(segment(0.5, 1.5), pieces) is None
    assert speech_in(segment(2.5, 9.0), pieces) is None


def hypothesis(
    *segments: Segment, mean: float = -0.7, language: str = "de", nats: float = 6.0
) -> LanguageHypothesis:
    start, end = (round(100 * at_s) for at_s in (segments[0].start, segments[-1].end))
    return LanguageHypothesis(segments, SpeechSpan(start, end), mean, language, nats)


def test_text_has_to_be_better_and_its_language_likely_enough() -> None:
    item = hypothesis(segment(0, 2), mean=-0.7, nats=6.0)
    assert item.is_accepted_by(-0.7, 0.0)
    assert not item.is_accepted_by(-0.71, 0.0)
    assert item.is_accepted_by(-0.5, 6.0)
    assert not item.is_accepted_by(-0.5, 6.1)


def test_hypotheses_that_follow_each_other_are_one() -> None:
    item, two, three, four = (segment(at_s, at_s + 1.0) for at_s in range(4))
    actual = joined(
        [hypothesis(item), hypothesis(two, mean=-0.9), hypothesis(four)],
        [item, two, three, four],
    )
    assert [each.segments for each in actual] == [(item, two), (four,)]
    assert actual[0].speech == SpeechSpan(0, 200)
    assert (actual[0].mean, actual[0].log_likelihood_ratio) == (pytest.approx(-0.8), 12.0)
    apart = joined([hypothesis(item), hypothesis(two, language="es")], [item, two])
    assert [each.language for each in apart] == ["de", "es"]


def spoken(mel: Floats, _: int) -> Script:
    """English, with a German sentence within; of a shorter window one of them, by its sound."""
    is_whole = mel.shape[1] > 100 * LENGTH_S
    bounds = (0.0, *GERMAN_S, LENGTH_S) if is_whole else (0.0, GERMAN_S[1] - GERMAN_S[0])
    content = mel[:, :50]
    is_deep = bool(content[:20].mean() > content[60:].mean() + 0.25)
    codes = ("en", "de", "en") if is_whole else ("de" if is_deep else "en",)
    tokens: list[ScriptedToken] = []
    for start, end in pairwise(bounds):
        first = round(50 * start)
        tokens.append(ScriptedToken(at(start), first + 1))
        tokens += [
            ScriptedToken(WORLDS[frame % len(WORLDS)], frame)
            for frame in range(first + 10, round(50 * end) - 5, 15)
        ]
        tokens.append(ScriptedToken(at(end), round(50 * end) - 1))
    spans = [
        SpokenLanguage(code, round(50 * start), round(50 * end))
        for code, start, end in zip(codes, bounds[:-1], bounds[1:], strict=True)
    ]
    return Script(tuple(tokens), tuple(spans))


def ask_texts_from(surprisal: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages_module, "SURPRISAL", surprisal)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard of another language but in text, whose probabilities are those of a script."""
    monkeypatch.setattr(Spans, "question", lambda self: None)
    ask_texts_from(0.05, monkeypatch)


def languages(options: TranscribeOptions) -> list[tuple[str, bool]]:
    """Of the segments, and whether they lie where German is spoken."""
    samples = rustle(LENGTH_S)
    german = slice(*(round(16_000 * at_s) for at_s in GERMAN_S))
    samples[german] = 1e-2 * np.cumsum(samples[german])  # deeper
    actual = read(FakeBackend(spoken), samples, options)
    return [(item.language, GERMAN_S[0] <= (item.start + item.end) / 2 < GERMAN_S[1]) for item in actual]


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("mode", ["seek", "vad"])
@pytest.mark.parametrize("listed", [(), ("en", "de")])
def test_a_sentence_in_another_language_is_read_in_it(mode: Mode, listed: tuple[str, ...]) -> None:
    options = TranscribeOptions(mode=mode, decoding=DecodingOptions(allowed_languages=listed))
    assert languages(options) == [("en", False), ("de", True), ("en", False)]


@pytest.mark.usefixtures("deaf")
def test_text_is_kept_where_one_language_was_asked_for_or_nothing_is_read_again() -> None:
    for options in (
        TranscribeOptions(follow_languages=False),
        TranscribeOptions(read_again=False),
        TranscribeOptions(decoding=DecodingOptions(language="en")),
    ):
        assert {code for code, _ in languages(options)} == {"en"}


@pytest.mark.usefixtures("deaf")
def test_a_probable_text_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_texts_from(1.0, monkeypatch)
    assert {code for code, _ in languages(TranscribeOptions())} == {"en"}


@pytest.mark.usefixtures("deaf")
def test_a_window_whose_text_shows_several_languages_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """SpeechSpan by piece; what was written of it as in one language is not kept."""
    windows: list[tuple[int, int, str]] = []
    load = SeekWindows._load

    def noted(self: SeekWindows, end: int | None) -> LanguageWindow:
        actual = load(self, end)
        windows.append((actual.window.start, actual.window.end, actual.window.language or ""))
        return actual

    monkeypatch.setattr(SeekWindows, "_load", noted)
    assert languages(TranscribeOptions()) == [("en", False), ("de", True), ("en", False)]
    assert windows[0] == (0, round(100 * LENGTH_S), "en")
    assert [(start, language) for start, _, language in windows[1:4]] == [
        (0, "en"),
        (pytest.approx(100 * GERMAN_S[0], abs=30), "de"),
        (pytest.approx(100 * GERMAN_S[1], abs=30), "en"),
    ]
