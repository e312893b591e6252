"""Rows of several languages: each reads as alone, words win by time, phrases inside sentences are kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce.audio.mel import log_mel, window_features
from sottovoce.language.probe import ProbeOptions
from sottovoce.language.switching import SwitchOptions
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.models.checkpoint.compact import ENCODER_MODE
from sottovoce.models.dims import default_encoder_mode
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.streaming.alignatt import (
    AlignAttDecoder,
    AlignAttRequest,
    DecoderPrefix,
    LiveVocabulary,
    StopRules,
)
from sottovoce.streaming.alignatt import AlignAttHypothesis as Read
from sottovoce.streaming.options import ParallelOptions, StreamOptions
from sottovoce.streaming.parallel import (
    MultiLanguage,
    RowInputs,
    RowWord,
    in_sequence,
    merge_rows,
    open_frames,
    pin_committed,
    snap_boundaries,
)
from sottovoce.streaming.session import SessionOptions, StrategyFactory
from sottovoce.streaming.utterance import CommittedWords, LiveUtterance, PromptContext
from sottovoce.streaming.words import HypothesisWord
from sottovoce.types import EncoderOutput, Event, LanguageChanged, Partial, Samples, Word
from tests.runtime.fake import FAKE_DIMS
from tests.streaming.sessions import ALIGNATT, TOKENIZER, blank_window, changes_of, said_words, session
from tests.streaming.sessions import listen as listen_to
from tests.streaming.speech import TOKEN_OF, WORDS, backend, say, silence

VOCABULARY = LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab, torch.device("cpu"))
OPTIONS = SessionOptions(
    ("en", "de"),
    switching="parallel",
    probe=ProbeOptions(width_s=0.8, hop_s=0.1, min_width_s=0.4),
    stream=replace(ALIGNATT, chunk_s=0.5),
)


def listen(audio: Samples, options: SessionOptions = OPTIONS) -> list[Event]:
    given = {
        name: getattr(options, name)
        for name in ("switching", "probe", "smoothing", "switch", "stream", "parallel")
    }
    return listen_to(session(options.languages, **given), audio)


def said(events: list[Event]) -> list[tuple[str, str | None]]:
    return [(word.word.strip(), word.language) for word in said_words(events)]


def test_a_phrase_inside_a_sentence_keeps_its_language() -> None:
    parts = [("en", ["time", "year", "people", "way", "day"]), ("de", ["und", "der", "die", "nicht", "auch"])]
    parts.append(("en", ["man", "thing", "woman", "life", "child"]))
    audio = np.concatenate([silence(0.5), *(say(words) for _, words in parts), silence(1.0)])
    found = said(listen(audio))
    assert [word for word, _ in found] == [word for _, words in parts for word in words]
    expected = [language for language, words in parts for _ in words]
    assert sum(a != b for (_, a), b in zip(found, expected, strict=True)) <= 2, "at most a word a boundary"


def test_no_border_loses_or_doubles_a_word() -> None:
    """A word that two rows hear, each in part, is said once, wherever the timeline puts the boundary."""
    for seed in range(10):
        rng = random.Random(seed)
        outer, inner = rng.sample(sorted(WORDS), 2)
        sentence, phrase = rng.sample(WORDS[outer], 8), rng.sample(WORDS[inner], rng.choice([2, 3, 4, 6]))
        words = [*sentence[:4], *phrase, *sentence[4:]]
        spoken = say(words, gap_s=rng.choice([0.04, 0.1, 0.2]), word_s=rng.choice([0.24, 0.3, 0.4]))
        options = SessionOptions(
            (outer, inner),
            switching="parallel",
            stream=replace(ALIGNATT, chunk_s=rng.choice([0.3, 0.5, 1.0])),
        )
        found = said(listen(np.concatenate([silence(0.5), spoken, silence(1.0)]), options))
        assert [word for word, _ in found] == words


def test_one_language_is_as_in_a_plain_stream() -> None:
    words = ["time", "year", "people", "way", "day", "man", "thing", "woman"] * 2
    audio = np.concatenate([silence(0.5), say(words), silence(1.0)])
    assert said(listen(audio)) == [(word, "en") for word in words]


def test_a_switch_between_sentences_loses_and_doubles_nothing() -> None:
    first, second = ["time", "year", "people", "way", "day"] * 2, ["und", "der", "die", "nicht", "auch"] * 2
    audio = np.concatenate([silence(0.5), say(first), silence(0.3), say(second), silence(1.0)])
    events = listen(audio)
    assert [word for word, _ in said(events)] == first + second
    changes = [(change.source, change.target) for change in changes_of(events)]
    assert changes == [(None, "en"), ("en", "de")]


def test_nothing_is_said_before_the_first_language_is_known() -> None:
    """Words of the language that stands first in the list would come in a language nobody speaks."""
    options = replace(OPTIONS, switch=SwitchOptions(first_frames=12, first_wait_s=2.5))
    audio = np.concatenate([silence(0.5), say(["und", "der", "die", "nicht", "auch"] * 3), silence(1.0)])
    events = listen(audio, options)
    kinds = [type(event) for event in events]
    assert kinds.index(LanguageChanged) < kinds.index(Partial)
    assert {language for _, language in said(events)} == {"de"}


def test_confirmed_languages_alone_have_rows() -> None:
    options = replace(OPTIONS, languages=("fr", "en", "de"), parallel=ParallelOptions(confirmed=True))
    first, second = ["time", "year", "people", "way", "day"] * 2, ["und", "der", "die", "nicht", "auch"] * 2
    audio = np.concatenate([silence(0.5), say(first), silence(0.3), say(second), silence(1.0)])
    assert [word for word, _ in said(listen(audio, options))] == first + second


def test_real_whisper_hears_longer_stretches_than_a_toy() -> None:
    real, toy = (
        ParallelOptions.suited_to(default_encoder_mode(FAKE_DIMS)),
        ParallelOptions.suited_to(ENCODER_MODE),
    )
    assert real.confirmed
    assert not toy.confirmed
    assert real.stretch_s > toy.stretch_s
    given = SessionOptions(parallel=ParallelOptions(stretch_s=2.0))
    assert given.suited_to(default_encoder_mode(FAKE_DIMS)) is given, "what was asked for stays"


def test_a_third_language_has_a_row_though_two_own_most_of_what_is_held() -> None:
    """Rows go to the languages of what is not said yet: the third one's words were read by other rows."""
    options = replace(OPTIONS, languages=("en", "de", "es"))
    parts = [("en", WORDS["en"][:8]), ("de", WORDS["de"][:8]), ("es", WORDS["es"][:4])]
    audio = np.concatenate([silence(0.5), *(say(words) for _, words in parts), silence(1.0)])
    found = said(listen(audio, options))
    assert [word for word, _ in found] == [word for _, words in parts for word in words]
    assert [language for _, language in found[-3:]] == ["es"] * 3


def encoded_words(words: Sequence[str], n_mels: int = 400) -> EncoderOutput:
    return backend().encode(window_features([log_mel(say(words))], n_mels))


def requests() -> list[AlignAttRequest]:
    """An English row, and a German one that has said a word."""
    english = TOKENIZER.with_language("en").sot_sequence_including_notimestamps
    german = (*TOKENIZER.with_language("de").sot_sequence_including_notimestamps, TOKEN_OF["time"])
    rules = StopRules(frame_threshold=25)
    return [
        AlignAttRequest(DecoderPrefix(english, 0, 0), rules),
        AlignAttRequest(DecoderPrefix(german, 0, 1), rules),
    ]


def assert_same(ours: Sequence[Read], theirs: Sequence[Read]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens
        assert (one.tokens, one.frames, one.stop_reason) == (other.tokens, other.frames, other.stop_reason)
        assert one.held_back_token == other.held_back_token
        assert one.no_speech_prob == pytest.approx(other.no_speech_prob)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.avg_logprob == pytest.approx(other.avg_logprob, abs=1e-5)


EVERY_SEARCH = pytest.mark.parametrize("beam_size", [1, 3])


@EVERY_SEARCH
@pytest.mark.parametrize("started", [False, True])
def test_windows_of_different_length_are_read_as_alone(beam_size: int, started: bool) -> None:
    """What is behind a shorter window is hidden. started: keys and values are there already, or are not."""
    heard = [
        encoded_words(["time", "year", "people"], 160),
        encoded_words(["time", "way", "day", "man"], 240),
    ]
    model = backend()
    if started:
        for window in heard:
            model.rows().admit(window)
    reader = AlignAttDecoder(model, TOKENIZER.eot, VOCABULARY, beam_size)
    alone = [reader.decode([one], [request])[0] for one, request in zip(heard, requests(), strict=True)]
    assert [reading.tokens[0] for reading in alone] == [TOKEN_OF["time"], TOKEN_OF["way"]]
    assert_same(reader.decode(heard, requests()), alone)
    assert_same(reader.decode(heard[::-1], requests()[::-1]), alone[::-1])


def test_the_frames_of_a_language_have_a_margin() -> None:
    shares = np.zeros((100, 2))
    shares[:50, 0], shares[50:, 1] = 0.9, 0.9
    for margin_s, reach in ((0.0, 0), (0.1, 5)):
        assert np.flatnonzero(open_frames(shares, 0, margin_s)).tolist() == list(range(50 + reach))
        assert np.flatnonzero(open_frames(shares, 1, margin_s)).tolist() == list(range(50 - reach, 100))
    assert open_frames(np.zeros((10, 2)), 1, 0.0).all(), "no frame is hidden from all rows"


def test_what_was_committed_stays_its_language() -> None:
    shares = np.tile([0.1, 0.9], (100, 1))
    window = blank_window(100, 16_000)
    fixed = pin_committed(shares, window, [(0, 1.5, 2.0)])
    assert fixed[:50].tolist() == [[1.0, 0.0]] * 50, "nothing before a committed word is open any more"
    assert (fixed[50:] == shares[50:]).all()
    fixed = pin_committed(shares, window, [(0, 1.0, 1.2), (1, 1.4, 1.6)])
    assert fixed[:30].tolist() == [[1.0, 0.0]] * 15 + [[0.0, 1.0]] * 15, "the pause is shared by halves"


def candidate(
    text: str, at: float, score: float, *, entropy: float = 0.0, margin: float = 1.0, own: float = 1.0
) -> RowWord:
    return RowWord(HypothesisWord(Word(text, at, at + 0.1, 0.5), (1,), entropy), score, own, margin)


def test_the_better_word_wins_and_ties_go_to_certainty_then_margin() -> None:
    def winner(a: RowWord, b: RowWord) -> list[str]:
        return [read.word.word for read in merge_rows([[a], [b]])]

    assert winner(candidate("a", 1.0, -1.0), candidate("b", 1.05, -2.0)) == ["a"]
    assert winner(candidate("a", 1.0, -1.0, entropy=2.0), candidate("b", 1.0, -1.0, entropy=1.0)) == ["b"]
    assert winner(candidate("a", 1.0, -1.0, margin=0.1), candidate("b", 1.0, -1.0, margin=0.9)) == ["b"]
    assert winner(candidate("a", 1.0, -1.0), candidate("b", 2.0, -9.0)) == ["a", "b"]
    assert winner(candidate("a", 1.0, -1.0, own=0.1), candidate("b", 1.0, -9.0)) == ["b"]
    assert winner(candidate(" Con", 1.0, -1.0), candidate(" con,", 1.3, -2.0)) == [" Con"], "one word in two"
    assert winner(candidate("a", 1.0, -1.0), candidate("a", 1.6, -2.0)) == ["a", "a"]


def multi_language() -> tuple[MultiLanguage, LiveUtterance]:
    """A plan of English and German, and an utterance that nothing was said in."""
    timeline = LanguageTimeline(("en", "de"), OPTIONS.smoothing, OPTIONS.switch, full_width_s=1.0)
    factory = StrategyFactory(DirectRuntime(backend()), TOKENIZER, OPTIONS, timeline)
    return factory.multi(), factory.utterance(0, None)


def test_a_word_that_is_attended_to_early_is_not_lost() -> None:
    """Attention is not quite in order: what a row reads next may lie before the end of what it said last."""
    strategy, utterance = multi_language()

    def take(text: str, start: float, end: float, language: str) -> list[tuple[str, float, float]]:
        read = HypothesisWord(Word(text, start, end, 0.5, language), (1,), 0.0)
        new = [read] if strategy._is_new(utterance, read.word) else []
        taken = in_sequence(new, utterance.committed.until_s)
        utterance.commit(taken)
        return [(one.word.word, one.word.start, one.word.end) for one in taken]

    assert take(" vielleicht", 3.8, 4.1, "de") == [(" vielleicht", 3.8, 4.1)]
    assert take(" maybe", 4.0, 4.2, "en") == [], "the audio is taken"
    assert take(" vielleicht", 4.0, 4.2, "de") == [], "said before"
    assert take(" schon", 3.7, 4.2, "de") == [], "too far back"
    assert take(" schon", 4.0, 4.05, "de") == [(" schon", 4.1, 4.1)]


def test_a_word_lies_in_the_stretch_that_holds_most_of_it() -> None:
    """Attention may leave a row's own audio at its boundary; the word does not."""
    inputs = RowInputs((blank_window(100).encoded,), (np.arange(100),), (True,), (((10, 40), (60, 90)),))
    assert inputs.clip(0, (12.0, 20.0)) == (12.0, 20.0)
    assert inputs.clip(0, (30.0, 50.0)) == (30.0, 40)
    assert inputs.clip(0, (35.0, 80.0)) == (60, 80.0)
    assert inputs.clip(0, (44.0, 45.0)) == (39, 40), "the nearer stretch, in its last frame"


def test_words_at_the_end_of_a_stretch_are_judged_by_its_frames() -> None:
    """All words of a row may be attended to where its audio ends; the frame after it is another row's."""
    window = blank_window(100)
    shares = np.repeat([[1.0, 0.0], [0.0, 1.0]], [40, 60], axis=0)
    inputs = RowInputs((window.encoded,), (np.arange(40),), (False,), (((0, 40),),))
    start, end = inputs.clip(0, (40.0, 40.0))
    read = HypothesisWord(Word(" x", start / 50, end / 50, 0.5, "en"), (1,), 0.0)
    assert RowWord.of(read, window, shares, 0, weight=0.5).ownership == 1.0


def test_borders_go_where_it_is_quiet() -> None:
    shares = np.repeat([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [40, 30, 30], axis=0)
    loudness = np.zeros(100)
    assert np.array_equal(snap_boundaries(shares, loudness, 12), shares), "equally loud everywhere"
    loudness[[35, 36, 50, 90]] = -5.0
    owners = snap_boundaries(shares, loudness, 12).argmax(axis=1)
    expected = np.repeat([0, 1, 0], [36, 34, 30])
    assert np.array_equal(owners, expected), "the quiet beside the first; none is within reach of the second"
    alone = shares[:40]
    assert np.array_equal(snap_boundaries(alone, loudness[:40], 12), alone), "no boundary"


def test_borders_keep_their_order() -> None:
    shares = np.repeat([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [40, 6, 54], axis=0)
    loudness = np.zeros(100)
    loudness[42:44] = -5.0
    owners = snap_boundaries(shares, loudness, 12).argmax(axis=1)
    assert np.flatnonzero(np.diff(owners)).size == 2, "the island is still there"


def test_a_row_begins_anew_after_another_language() -> None:
    committed = CommittedWords(0.0)
    for token, end, language in ((1, 1.0, "de"), (2, 2.0, "de"), (3, 3.0, "es"), (4, 4.0, "de")):
        committed.add(HypothesisWord(Word(" x", end - 0.5, end, 0.5, language), (token,), 0.0))
    assert committed.run_of("de") == (3.0, (1, 2), (4,))
    assert committed.run_of("es") == (4.0, (3,), ())
    assert committed.run_of("fr") == (4.0, (), ())
    alone = CommittedWords(0.0)
    alone.add(HypothesisWord(Word(" x", 0.5, 1.0, 0.5, "de"), (1,), 0.0))
    assert alone.run_of("de") == (None, (), (1,))


def test_what_is_not_heard_any_more_is_the_prompt() -> None:
    context = PromptContext(TOKENIZER.with_language("de"), StreamOptions(max_context_tokens=3), [7, 8])
    prefix = context.prefix([4], [1, 2])
    assert prefix.tokens[: prefix.sot] == (TOKENIZER.sot_prev, 8, 1, 2)
    assert prefix.committed == (4,)
