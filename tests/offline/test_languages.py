"""The language of a recording is found once, over its windows with speech."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.decoding.decode import LanguageDetection, combine_detections
from sottovoce.offline.languages import FARTHEST_WINDOWS, SURE_ALONE, FoundLanguage, find_language
from sottovoce.offline.transcriber import Transcriber
from sottovoce.offline.windows import Window
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Features, Floats
from tests.runtime.fake import FakeBackend, Script, SpokenLanguage

TOKENIZER = Tokenizer.for_model(51865)
CODES = ("", "en", "de", "fr")


def hear(mel: Floats, row: int) -> Script:
    code = CODES[int(mel[0, 0])]
    return Script((), (SpokenLanguage(code, 0, 1500),) if code else ())


class Codes:
    """Features of windows of 30 s, in languages ("" is silence). n_read: windows that were asked for."""

    def __init__(self, codes: Sequence[str]) -> None:
        self.codes, self.n_read = codes, 0

    def has(self, frame: int) -> bool:
        return True

    def is_blank(self, start: int, end: int) -> bool:
        return False

    def window(self, start: int, end: int, *, n_frames: int, fill: str) -> Features:
        self.n_read += 1
        code = float(CODES.index(self.codes[start // 3000]))
        return Features(np.full((1, 80, n_frames), code, np.float32), (end - start,))


def found_in(*codes: str, lengths: Sequence[int] = (), **options: object) -> tuple[FoundLanguage, int]:
    """The language of windows, and how many of them were read."""
    kept = TranscribeOptions(**{"follow_languages": False, **options})  # type: ignore[arg-type]
    transcriber = Transcriber(DirectRuntime(FakeBackend(hear)), TOKENIZER, kept)
    windows = (
        Window.of(3000 * index, 3000 * index + length)
        for index, length in enumerate(lengths or [3000] * len(codes))
    )
    features = Codes(codes)
    result = find_language(transcriber, features, windows, n_kept=1)  # type: ignore[arg-type]
    assert result is not None
    return result, features.n_read


def test_several_windows_outvote_an_odd_beginning() -> None:
    assert found_in("de", "en", "en", language_windows=3)[0].detection.language == "en"
    assert found_in("de", "en", "en", language_windows=1)[0].detection.language == "de"
    short = found_in("de", "en", lengths=(3000, 200), language_windows=3)[0]
    assert short.detection.language == "de"  # two seconds count for less than thirty


def test_no_more_windows_are_read_than_needed() -> None:
    result, asked = found_in(*["en"] * 9, language_windows=2)
    assert asked == 2
    assert [window.start for window in result.encoded] == [0]


def test_windows_without_speech_are_passed_over() -> None:
    result, asked = found_in("", "", "fr", "fr", "de", language_windows=2)
    assert (result.detection.language, asked) == ("fr", 4)
    assert result.detection.no_speech_prob < 0.5
    assert [window.start for window in result.encoded] == [0]  # the first one is still the first


def test_silence_is_not_searched_to_the_end_of_a_long_recording() -> None:
    result, asked = found_in(*[""] * 40, "en", language_windows=2)
    assert asked == FARTHEST_WINDOWS
    assert result.detection.no_speech_prob > 0.9


def test_a_recording_without_audio_has_no_language() -> None:
    transcriber = Transcriber(DirectRuntime(FakeBackend(hear)), TOKENIZER, TranscribeOptions())
    assert find_language(transcriber, Codes(()), (), n_kept=1) is None  # type: ignore[arg-type]


def detection(**shares: float) -> LanguageDetection:
    rest = (1.0 - sum(shares.values())) / (len(TOKENIZER.language_codes) - len(shares))
    table = {code: shares.get(code, rest) for code in TOKENIZER.language_codes}
    best = max(table, key=lambda code: table[code])
    return LanguageDetection(best, table[best], table, 1.0, 0.0)


def test_what_is_common_decides_between_likely_ones_only() -> None:
    def language(prior: float, **shares: float) -> str:
        heard = [detection(**shares)]
        return combine_detections(heard, TOKENIZER, log_prior={"en": prior}).language

    assert language(0.0, cy=0.5, en=0.4) == "cy"
    assert language(2.0, cy=0.5, en=0.4) == "en"
    assert language(2.0, cy=0.9, en=0.05) == "cy"


def test_a_listed_language_is_as_likely_as_any() -> None:
    heard = [detection(cy=0.5, en=0.4)]
    by_all = Transcriber(DirectRuntime(FakeBackend(hear)), TOKENIZER, TranscribeOptions())
    by_list = DecodingOptions(allowed_languages=("cy", "en"))
    by_two = Transcriber(DirectRuntime(FakeBackend(hear)), TOKENIZER, TranscribeOptions(decoding=by_list))
    assert by_all.combine(heard, [1.0]).language == "en"
    assert by_two.combine(heard, [1.0]).language == "cy"


def test_windows_that_agree_are_enough() -> None:
    assert found_in(*["en"] * 9, language_windows=4)[1] == 2
    result, asked = found_in("de", "en", "fr", "en", "en", language_windows=4)
    assert (result.detection.language, asked) == ("en", 4)


def test_one_sure_window_is_enough_where_changes_are_followed() -> None:
    """What comes later is heard for itself."""
    result, asked = found_in(*["de"] * 3, follow_languages="auto")
    assert (result.detection.language, asked) == ("de", 1)
    assert result.detection.probability >= SURE_ALONE
    result, asked = found_in("", "de", "en", "en", follow_languages="auto")
    assert (result.detection.language, asked) == ("de", 2), "a window without speech tells nothing"


def test_the_prior_changes_the_choice_and_not_what_was_heard() -> None:
    plain = combine_detections([detection(cy=0.5, en=0.4)], TOKENIZER)
    common = combine_detections([detection(cy=0.5, en=0.4)], TOKENIZER, log_prior={"en": 2.0})
    assert common.probabilities == pytest.approx(plain.probabilities)
    assert 0.5 < common.probability < 1.0
    assert plain.probability == pytest.approx(0.5)
