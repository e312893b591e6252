"""Readings into words: times that subtitles can use, whole characters, punctuation, scripts without space."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.streaming.alignatt import AlignAttHypothesis, StopReason
from sottovoce.streaming.commit_policy import MIN_WORD_S, HypothesisWord, Reading, WordBuilder, nondecreasing
from sottovoce.text.tokenizer import Tokenizer
from tests.streaming.sessions import blank_window

TOKENIZER = Tokenizer.for_model(51865)
N_FRAMES = 500
WINDOW = blank_window(N_FRAMES, 32_000)
frames = st.lists(st.integers(0, 6), max_size=5)


@given(st.lists(st.integers(0, 1500), max_size=60))
def test_frames_rise_and_rising_frames_stay(frames: list[int]) -> None:
    rising = nondecreasing(frames)
    assert len(rising) == len(frames)
    assert rising == sorted(rising)
    assert nondecreasing(rising) == rising


@given(frames)
def test_no_rising_sequence_is_nearer(frames: list[int]) -> None:
    """Against every rising sequence over the same range."""
    nearest = min(
        sum(abs(a - b) for a, b in zip(frames, other, strict=True))
        for other in itertools.combinations_with_replacement(range(7), len(frames))
    )
    assert sum(abs(a - b) for a, b in zip(frames, nondecreasing(frames), strict=True)) == nearest


def test_a_stray_frame_moves_no_other() -> None:
    assert nondecreasing([134, 36, 49, 59]) == [36, 36, 49, 59]  # a first word heard at the end of the audio
    assert nondecreasing([60, 80, 100, 40]) == [60, 80, 80, 80]
    assert nondecreasing([10, 90, 30, 40, 50]) == [10, 30, 30, 40, 50]


def reading(
    tokens: tuple[int, ...],
    at: list[int],
    ending: StopReason = StopReason.END_OF_TEXT,
    held_back: int | None = None,
) -> AlignAttHypothesis:
    nothing = (0.0,) * len(tokens)
    return AlignAttHypothesis(tokens, tuple(at), nothing, ending, held_back_token=held_back)


def words_of(
    text: str,
    language: str = "en",
    *,
    ending: StopReason = StopReason.END_OF_TEXT,
    held_back: str = "",
    final: bool = False,
    after_s: float = 0.0,
) -> list[HypothesisWord]:
    """Words of a text that is attended to evenly; held_back: the text whose first token comes next."""
    tokens = tuple(TOKENIZER.encode(text))
    at = [20 * i for i in range(len(tokens))]
    last = TOKENIZER.encode(held_back)[0] if held_back else None
    return built(reading(tokens, at, ending, last), language, final=final, after_s=after_s)


def built(
    hypothesis: AlignAttHypothesis, language: str = "en", *, final: bool, after_s: float = 0.0
) -> list[HypothesisWord]:
    builder = WordBuilder(TOKENIZER.with_language(language))
    return Reading(WINDOW, builder, after_s).words(hypothesis, final=final)


def texts(words: list[HypothesisWord]) -> list[str]:
    return [read.word.word for read in words]


PIECES = [" the", " candidate", "ing", "'s", ",", ".", " -", "?", " 10", "%", " Müller", " «", "…", " $", "“"]
BYTES = [
    TOKENIZER.vocabulary.encoding.encode_single_token(bytes([value]))
    for value in (0x20, 0x41, 0xC3, 0xA4, 0xE4, 0xBD, 0xA0)
]
TOKENS = [token for piece in PIECES for token in TOKENIZER.encode(piece)] + BYTES
said = st.lists(st.tuples(st.sampled_from(TOKENS), st.integers(0, N_FRAMES - 1)), max_size=30)


@given(said, st.sampled_from(["en", "de", "zh", "km"]), st.booleans(), st.floats(2.0, 12.0))
def test_words_have_a_length_and_an_order(
    pairs: list[tuple[int, int]], language: str, final: bool, after_s: float
) -> None:
    """Of whatever tokens and frames: within the window, each after the one before."""
    tokens, at = tuple(token for token, _ in pairs), [frame for _, frame in pairs]
    timed = built(reading(tokens, at), language, final=final, after_s=after_s)
    words = [word.word for word in timed]
    for word in words:
        assert after_s <= word.start < word.end <= max(after_s + 0.02, WINDOW.end_s) + 1e-9
        assert word.word
        assert "\ufffd" not in word.word
    for a, b in pairwise(words):
        assert a.end <= b.start + 1e-9


@given(st.lists(st.integers(10, 40), min_size=1, max_size=12))
def test_words_apart_last_at_least_as_long_as_a_word_does(gaps: list[int]) -> None:
    """Words that are attended to at one frame each, 0.2 s and more apart."""
    at = list(itertools.accumulate(gaps))
    tokens = tuple(TOKENIZER.encode(" time")) * len(at)
    words = built(reading(tokens, at), final=True)
    assert len(words) == len(at)
    for read, frame in zip(words, at, strict=True):
        assert read.word.end - read.word.start >= MIN_WORD_S - 1e-9
        assert read.word.start <= WINDOW.seconds(frame) < read.word.end
        assert read.last_frame == frame


def test_words_attended_to_at_one_frame_have_an_order_still() -> None:
    tokens = tuple(TOKENIZER.encode(" one two three four"))
    words = built(reading(tokens, [100] * 4), final=True)
    spans = [(read.word.start, read.word.end) for read in words]
    assert spans == sorted(spans)
    assert all(start < end for start, end in spans), "none is a point"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" Hello, world.", [" Hello,", " world."]),
        (". Hello", [". Hello"]),
        (" - Hello you", [" - Hello", " you"]),
        (" he said – no", [" he said –", " no"]),
        (' he said: "No!" She', [" he said:", ' "No!"', " She"]),
        (" what ?! No", [" what ?!", " No"]),
    ],
)
def test_punctuation_goes_with_a_word(text: str, words: list[str]) -> None:
    parts = texts(words_of(text, final=True))
    assert "".join(parts) == text
    assert all(any(map(str.isalnum, word)) for word in parts)
    assert parts[-1] == words[-1]


def test_a_mark_alone_waits_for_its_word_and_is_said_at_the_end() -> None:
    assert texts(words_of(".")) == []
    assert texts(words_of(" –", ending=StopReason.FRONTIER, held_back=" no")) == []
    assert texts(words_of(".", final=True)) == ["."]


def test_half_a_character_waits_and_a_broken_one_is_never_said() -> None:
    broken = reading((TOKENIZER.encode(" time")[0], BYTES[5], TOKENIZER.encode(" year")[0]), [10, 30, 50])
    assert "\ufffd" in TOKENIZER.decode(broken.tokens)
    for final in (False, True):
        said = built(broken, final=final)
        assert "\ufffd" not in "".join(texts(said))
        assert " year" in texts(said)
    half = replace(
        broken,
        tokens=(broken.tokens[0], BYTES[4], BYTES[5]),
        stop_reason=StopReason.FRONTIER,
        held_back_token=BYTES[6],
    )
    for final in (False, True):
        assert "\ufffd" not in "".join(texts(built(half, final=final)))


SCRIPTS = {
    "km": "ខ្ញុំចង់ទៅផ្សារ",
    "bo": "བོད་ཡིག་སློབ་སྦྱོང་",
    "lo": "ຂ້ອຍຢາກໄປຕະຫຼາດ",
    "my": "ကျွန်တော်ဈေးသွားချင်တယ်",
    "th": "ฉันอยากไปตลาด",
    "zh": "我想去市场",
    "ja": "市場に行きたい",
}


@pytest.mark.parametrize("language", SCRIPTS)
def test_scripts_without_spaces_wait_for_none(language: str) -> None:
    """Nothing but the end of the audio holds a word back, and that holds the newest one at most."""
    text = SCRIPTS[language]
    shown = words_of(text, language, ending=StopReason.FRONTIER, held_back=text[0])
    assert len(shown) > 1
    assert text.startswith("".join(texts(shown)))
    assert len("".join(texts(shown))) >= len(text) - 3
    assert all(any(map(str.isalnum, word)) for word in texts(shown)), "signs stay with their letters"


def test_a_word_grows_until_the_next_one_begins() -> None:
    assert texts(words_of(" time year", ending=StopReason.FRONTIER, held_back="s")) == [" time"]
    assert texts(words_of(" time year", ending=StopReason.FRONTIER, held_back=" man")) == [
        " time",
        " year",
    ]
    assert texts(words_of(" time year", ending=StopReason.FULL)) == [" time"]
    assert texts(words_of(" time year", ending=StopReason.FULL, final=True)) == [" time", " year"]


def test_no_word_begins_before_what_was_said() -> None:
    words = words_of(" time year", after_s=2.6, final=True)
    assert [read.word.start for read in words] == sorted(read.word.start for read in words)
    assert all(read.word.start >= 2.6 for read in words)


def test_words_that_repeat_at_the_end_wait_for_others() -> None:
    def without_loop(text: str, committed: tuple[str, ...] = ()) -> list[str]:
        tokens = tuple(TOKENIZER.encode(text))
        hypothesis = reading(tokens, [20 * i for i in range(len(tokens))], StopReason.END_OF_TEXT, None)
        window = Reading(WINDOW, WordBuilder(TOKENIZER.with_language("en")), 0.0, committed)
        return texts(window.without_loop(hypothesis))

    assert without_loop(" yes no no") == [" yes", " no", " no"]
    assert without_loop(" yes no no, no") == [" yes", " no"]
    assert without_loop(" no no no yes") == [" no", " no", " no", " yes"]
    assert without_loop(" I see I see I see") == [" I", " see"]
    assert without_loop(" no", ("no", "no")) == []
