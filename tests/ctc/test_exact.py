"""Full-width searches equal enumeration: scores, order, with language models, lexicon and boosting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.decoder import EmissionDecoder
from sottovoce.ctc.emissions import log_softmax
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixScorer, PrefixSearch
from sottovoce.lm.boosting import Phrase, PhraseBooster
from sottovoce.lm.lexicon import Lexicon
from sottovoce.types import Hypothesis
from tests.ctc.enumeration import (
    RandomBigram,
    Reading,
    Tokens,
    all_texts,
    best_of,
    emissions,
    likely,
    one_reading,
    readings,
    separated_readings,
    without_idle,
)

WIDE = CtcOptions(beam_size=1500, n_best=30, times=False)
SPELLINGS = [(0, (1,)), (1, (1,)), (2, (1, 2)), (3, (2, 2)), (4, (2,)), (5, (1, 2, 1)), (0, (2, 1))]
"""Homophones (0 and 1), a word with two spellings (0), prefixes of each other (0, 2, 5)."""
WORDS = ("zero", "one", "two", "three", "four", "five")


def labels(n: int, blank: int) -> Labels:
    return Labels(tuple("-abcdef"[:n]), blank)


def search(
    scorer: PrefixScorer | None, log_probs: np.ndarray, blank: int, words: tuple[str | None, ...] = ()
) -> list[Hypothesis]:
    decoder = EmissionDecoder(labels(log_probs.shape[1], blank), WIDE, scorer=scorer, lexicon=words)
    return decoder.decode(log_probs)[0]


@pytest.mark.parametrize("blank", [0, 1, 3])
@pytest.mark.parametrize("n_frames", [1, 3, 6])
def test_equals_enumeration(n_frames: int, blank: int) -> None:
    log_probs = emissions(n_frames, 4, seed=n_frames)
    truth = best_of(all_texts(log_probs, blank), one_reading, lambda *_: 0.0)[:30]
    result = search(None, log_probs, blank)
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)
    assert [h.tokens for h in result] == [tokens for _, tokens, _ in truth]


def test_posteriors_are_shares_of_all_texts() -> None:
    log_probs = emissions(4, 3, seed=5)
    texts = all_texts(log_probs, 0)
    total = np.logaddexp.reduce(list(texts.values()))
    result = search(None, log_probs, 0)
    assert [h.posterior for h in result] == pytest.approx(
        [math.exp(texts[h.tokens] - float(total)) for h in result], abs=1e-5
    )
    few = EmissionDecoder(labels(3, 0), CtcOptions(beam_size=1500, n_best=2)).decode(log_probs)[0]
    assert [h.posterior for h in few] == [h.posterior for h in result[:2]]  # whatever is returned


@pytest.mark.parametrize("seed", range(15))
def test_narrow_beams_never_list_a_prefix_twice_nor_overestimate_it(seed: int) -> None:
    """Prefixes are pruned and found again here: what is merged must be what is equal."""
    blank = seed % 3
    log_probs = emissions(6, 3, seed)
    texts = all_texts(log_probs, blank)
    decoder = EmissionDecoder(labels(3, blank), CtcOptions(beam_size=2 + seed % 5, n_best=9, times=False))
    result = decoder.decode(log_probs)[0]
    assert len({h.tokens for h in result}) == len(result)
    for hypothesis in result:
        assert hypothesis.score <= texts[hypothesis.tokens] + 1e-5


@pytest.mark.parametrize("blank", [0, 2])
def test_token_models_equal_enumeration(blank: int) -> None:
    log_probs = emissions(5, 4, seed=7)
    first, second = RandomBigram(4, 1), RandomBigram(4, 2)
    fusion = PrefixScorer(4, [(first.automaton(), 0.7), (second.automaton(), 0.4)])

    def score(tokens: Tokens, _: Reading) -> float:
        return 0.7 * first.sentence(tokens) + 0.4 * second.sentence(tokens)

    truth = best_of(all_texts(log_probs, blank), one_reading, score)[:30]
    result = search(fusion, log_probs, blank)
    assert [h.tokens for h in result] == [tokens for _, tokens, _ in truth]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)


def test_hotwords_of_pieces_are_whole_words() -> None:
    """Every occurrence between two words' beginnings counts once; none inside a longer word."""
    names = ["-", "▁ann", "a", "▁b"]
    phrases = {"ann": 2.0, "b ann": 0.5, "ba": 1.0, "anna b": 0.8, "b b": -0.4}
    log_probs = emissions(6, 4, seed=9)

    def score(tokens: Tokens, _: Reading) -> float:
        said = "".join(names[token] for token in tokens) + "▁"
        return sum(
            weight * n * sum(said.startswith(f"▁{text.replace(' ', '▁')}▁", at) for at in range(len(said)))
            for (text, weight), n in zip(phrases.items(), (1, 2, 2, 3, 2), strict=True)
        )

    truth = best_of(all_texts(log_probs, 0), one_reading, score)[:30]
    result = CtcDecoder(names, 0, hotwords=phrases, options=WIDE).decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)


@pytest.mark.parametrize("names", [["-", "a", "b", " "], ["-", "A", "B", " "], ["-", "▁a", "b", "▁b"]])
def test_hotwords_are_spelled_in_the_case_of_the_labels(names: list[str]) -> None:
    log_probs = emissions(7, 4, seed=2)
    case = str.upper if "A" in names else str.lower
    given = CtcDecoder(names, hotwords={"Ab": 2.0, "aB b": 1.0}, options=WIDE).decode(log_probs)[0]
    plain = CtcDecoder(names, hotwords={case("ab"): 2.0, case("ab b"): 1.0}, options=WIDE).decode(log_probs)[
        0
    ]
    assert [(h.text, h.score) for h in given] == [(h.text, h.score) for h in plain]


def test_a_label_of_a_capital_spells_a_capital() -> None:
    (result,) = CtcDecoder(["-", "a", "A"], hotwords={"A": 9.0}).decode(np.array([[-9.0, -0.7, -0.7]]))[0]
    assert result.text == "A"


def test_a_hotword_of_the_lexicon_stays_the_known_word() -> None:
    """Whatever its capitals: as a word of its own it would be an unknown one to the language model."""
    names, log_probs = ["-", "a", "b", " "], emissions(6, 4, seed=5)
    lexicon = [("ab", [1, 2]), ("b", [2])]
    given = CtcDecoder(names, lexicon=lexicon, hotwords={"Ab": 2.0}, options=WIDE).decode(log_probs)[0]
    plain = CtcDecoder(names, lexicon=lexicon, hotwords={"ab": 2.0}, options=WIDE).decode(log_probs)[0]
    assert [(h.text, h.score) for h in given] == [(h.text, h.score) for h in plain]


def test_unknown_words_of_pieces_begin_where_a_piece_says_so() -> None:
    names, said = ["-", "▁the", "re", "▁is", "▁a"], [1, 0, 2, 0, 3]
    log_probs = likely(said, 5, share=0.96)
    fusion = CtcFusionOptions(unknown_score=-0.5)
    decoder = CtcDecoder(names, 0, lexicon=[("a", [4])], unknown_words=True, fusion=fusion)
    best = decoder.decode(log_probs)[0][0]
    assert [word.word for word in best.words] == ["there", "is"]
    assert best.lm_score == pytest.approx(-1.0)


@pytest.mark.parametrize("separator", [None, 3])
@pytest.mark.parametrize("look_ahead", [False, True])
def test_utterances_that_end_inside_a_word_give_it_as_far_as_it_goes(
    look_ahead: bool, separator: int | None
) -> None:
    """No word of the lexicon fits into two frames: all beginnings of words, as the search ranks them."""
    log_probs = np.stack([emissions(2, 4, 1), emissions(2, 4, 2)])
    lexicon = Lexicon([("abba", (1, 2, 2, 1)), ("baa", (2, 1, 1))], 4, separator=separator)
    model = RandomBigram(2, 1)
    fusion = PrefixScorer(
        4,
        lexicon=lexicon,
        words=[(model.automaton(), 0.7)],
        unigrams=0.7 * model.unigrams(range(2)) if look_ahead else None,
    )
    log_probs[:, :, 0] -= 60  # the empty text ends as well
    log_probs[:, :, 3] -= 60
    decoder = EmissionDecoder(
        Labels(tuple("-ab|"), 0, separator),
        CtcOptions(beam_size=2, n_best=2),
        scorer=fusion,
        lexicon=lexicon.words,
    )
    for result, rows in zip(decoder.decode(log_softmax(log_probs)), log_softmax(log_probs), strict=True):
        texts = all_texts(rows, 0)
        assert all(h.is_unfinished for h in result)
        assert {h.text for h in result} <= {"a", "b", "ab", "ba"}
        assert [h.acoustic_score for h in result] == pytest.approx(
            [texts[h.tokens] for h in result], abs=1e-4
        )
        assert [h.score for h in result] == sorted((h.score for h in result), reverse=True)
        assert [word.word for h in result for word in h.words] == [h.text for h in result]
        assert sum(h.posterior or 0 for h in result) == pytest.approx(1)


@pytest.mark.parametrize("names", [["a", "-", " ", "b"], ["▁", "-", "▁a", "b"], ["x", "-", "y", "zz"]])
def test_a_word_score_counts_the_words_of_the_text(names: list[str]) -> None:
    """Not separators: nor doubled ones, nor those at the ends; and without any other model."""
    named = Labels.of(names, 1)
    log_probs = emissions(6, 4, seed=3)
    truth = best_of(all_texts(log_probs, 1), one_reading, lambda tokens, _: 1.7 * len(named.words(tokens)))[
        :30
    ]
    fusion = CtcFusionOptions(word_score=1.7)
    result = CtcDecoder(names, 1, fusion=fusion, options=WIDE).decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)
    assert [h.tokens for h in result] == [tokens for _, tokens, _ in truth]


def test_whole_numbers_are_weights_as_others_are() -> None:
    """Under a lexicon too, whose words are scored as they end."""
    names, log_probs = ["-", "a", "b", " "], emissions(6, 4, seed=4)
    texts = without_idle(all_texts(log_probs, 0), 3)
    truth = best_of(
        texts,
        lambda tokens: separated_readings(tokens, [(0, (1,)), (1, (1, 2))], 3, unknown=True),
        lambda _, words: 1.0 * len(words) - 2.0 * words.count(-1),
    )[:20]
    result = CtcDecoder(
        names,
        lexicon=[("a", [1]), ("ab", [1, 2])],
        unknown_words=True,
        fusion=CtcFusionOptions(word_score=1, unknown_score=-2, lm_weight=1, hotword_weight=2),
        options=WIDE,
    ).decode(log_probs)[0][:20]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)


@pytest.mark.parametrize("boundary", [None, 3])
def test_boosting_equals_enumeration(boundary: int | None) -> None:
    log_probs = emissions(6, 4, seed=9)
    phrases = [Phrase((1, 2), 1.5), Phrase((1, 2, 1), 0.7), Phrase((2,), -0.4), Phrase((2, 2, 1), 2.0)]
    booster = PhraseBooster(phrases, 4, boundary=boundary)

    def score(tokens: Tokens, _: Reading) -> float:
        end = () if boundary is None else (boundary,)
        padded = (*end, *tokens, *end)
        return sum(
            phrase.weight * len(phrase.tokens)
            for phrase in phrases
            for at in range(len(padded))
            if padded[at : at + len(phrase.tokens) + 2 * len(end)] == (*end, *phrase.tokens, *end)
        )

    truth = best_of(all_texts(log_probs, 0), one_reading, score)[:30]
    result = search(PrefixScorer(4, [(booster.automaton(), 1.0)]), log_probs, 0)
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)


@pytest.mark.parametrize("look_ahead", [False, True])
def test_unknown_words_of_pieces_equal_enumeration(look_ahead: bool) -> None:
    """They begin with a piece that begins words, and go on to the next of those."""
    spellings = [(0, (1,)), (1, (1, 2)), (2, (3,)), (1, (3, 3))]
    log_probs = emissions(6, 4, seed=13)
    lexicon = Lexicon(
        [(WORDS[word], spelling) for word, spelling in spellings],
        4,
        allow_unknown=True,
        word_starts=[False, True, False, True],
    )
    model = RandomBigram(4, 3)
    fusion = PrefixScorer(
        4,
        lexicon=lexicon,
        words=[(model.automaton(), 0.8)],
        unknown_score=-0.6,
        unigrams=0.8 * model.unigrams(range(4)) if look_ahead else None,
    )
    truth = best_of(
        all_texts(log_probs, 0),
        lambda tokens: readings(tokens, spellings, unknown=True, starts={1, 3}),
        lambda _, words: 0.8 * model.sentence([word % 4 for word in words]) - 0.6 * words.count(-1),
    )[:30]
    result = search(fusion, log_probs, 0, lexicon.words)
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-5)


@pytest.mark.parametrize("look_ahead", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("separator", [None, 3])
def test_lexicon_equals_enumeration(separator: int | None, unknown: bool, look_ahead: bool) -> None:
    log_probs = emissions(5, 4, seed=11)
    lexicon = Lexicon(
        [(WORDS[word], spelling) for word, spelling in SPELLINGS],
        4,
        separator=separator,
        allow_unknown=unknown,
    )
    model, tokens_model = RandomBigram(7, 3), RandomBigram(4, 4)
    ids = [4, 2, 0, 1, 3, 5] + [6] * unknown
    fusion = PrefixScorer(
        4,
        [(tokens_model.automaton(), 0.3)],
        lexicon=lexicon,
        words=[(model.over(ids), 0.8)],
        word_score=0.25,
        unknown_score=-0.6,
        unigrams=0.8 * model.unigrams(ids) if look_ahead else None,
    )

    def read(tokens: Tokens) -> Iterator[Reading]:
        if separator is None:
            return readings(tokens, SPELLINGS, unknown=unknown)
        return separated_readings(tokens, SPELLINGS, separator, unknown=unknown)

    def score(tokens: Tokens, words: Reading) -> float:
        extra = sum(0.25 - 0.6 * (word < 0) for word in words)
        said = 0.8 * model.sentence([int(ids[word]) for word in words])
        return said + extra + 0.3 * tokens_model.sentence(tokens)

    texts = all_texts(log_probs, 0)
    truth = best_of(texts if separator is None else without_idle(texts, separator), read, score)
    total = float(np.logaddexp.reduce([score for score, _, _ in truth]))
    # Readings that nothing to come can tell apart are left out where others of the kind fill the list: no
    # hypothesis is lost by that, nor any probability. (The beam is too narrow for all that may be unknown.)
    for n_best in (1, 2, 30):
        options = CtcOptions(beam_size=1500, n_best=n_best, times=False)
        named = Labels(tuple("-abcdef"[:4]), 0)
        searcher = EmissionDecoder(named, options, scorer=fusion, lexicon=lexicon.words)
        result = searcher.decode(log_probs)[0]
        best = truth[:n_best]
        assert [h.score for h in result] == pytest.approx([score for score, _, _ in best], abs=1e-5)
        shares = [math.exp(score - total) for score, _, _ in best]
        assert [h.posterior for h in result] == pytest.approx(shares, rel=5e-3 if unknown else 1e-4)
        if not unknown:
            spelled = [" ".join(WORDS[word] for word in words) for _, _, words in best]
            assert [h.text for h in result] == spelled


@pytest.mark.parametrize("separator", [None, 3])
@pytest.mark.parametrize("seed", range(5))
def test_word_sequences_equal_enumeration(seed: int, separator: int | None) -> None:
    sequences = [(1, 2, 2, 1, 2), (2, 1), (), (1, 1), (2,)]
    if separator is not None:
        sequences = [(1, 2, 3, 2, 3, 1, 2), (2, 3), (), (1, 3), (2,)]
    lexicon = Lexicon([(WORDS[word], spelling) for word, spelling in SPELLINGS], 4, separator=separator)
    model = RandomBigram(len(WORDS), seed)
    scorer = PrefixScorer(
        4,
        lexicon=lexicon,
        words=[(model.automaton(), 0.8)],
        word_score=0.3,
        unigrams=0.8 * model.unigrams(range(len(WORDS))),
    )
    searcher = PrefixSearch(4, 0, 4, scorer=scorer)
    result = searcher.readings(sequences, 40)
    for said, several in zip(sequences, result, strict=True):
        each = readings(said, SPELLINGS)
        if separator is not None:
            each = separated_readings(said, SPELLINGS, separator)
        truth = sorted((0.8 * model.sentence(read) + 0.3 * len(read) for read in each), reverse=True)
        assert [item.score for item in several] == pytest.approx(truth[:40], abs=1e-4)
        assert all(tuple(symbol % 4 for symbol in item.symbols) == said for item in several)


@pytest.mark.parametrize("n_best", [1, 3])
@pytest.mark.parametrize("separator", [None, 3])
def test_homophones_without_a_language_model_leave_room_for_others(
    separator: int | None, n_best: int
) -> None:
    """Every word has four: as many as are asked for are kept, and the beam holds other labels."""
    letters = [(1,), (2,), (1, 2), (2, 1, 1)]
    spelled = [(f"{letter}{i}", letter) for letter in letters for i in range(4)]
    lexicon = Lexicon(spelled, 4, separator=separator)
    fusion = PrefixScorer(4, lexicon=lexicon, word_score=0.3)
    options = CtcOptions(beam_size=24, n_best=n_best, times=False)
    named = Labels(tuple("-ab|"), 0, separator)
    state_of = EmissionDecoder(named, options, scorer=fusion, lexicon=lexicon.words)
    state = state_of.start()
    state_of.decode_chunk(state, emissions(8, 4, 1))
    kinds = []
    for k in np.flatnonzero(state.acoustic[0] > -1e30).tolist():
        said = state.symbols[0, k, 1 : int(state.length[0, k]) + 1] % 4
        kinds.append((*said.tolist(), None, *state.scores[0, k].tolist()))
    counts = [kinds.count(kind) for kind in kinds]
    assert max(counts) <= n_best
    (best, *_) = state_of.finish(state)[0]
    assert best.posterior is not None
    assert best.posterior < 0.3 ** len(best.text.split()) + 1e-6  # the others of the kind are as likely


def test_separators_that_say_nothing_make_no_other_hypothesis() -> None:
    log_probs = likely([3, 1, 3, 0, 3, 2, 3], 4, share=0.94)
    decoder = CtcDecoder(["-", "a", "b", "|"], 0, lexicon=[("a", [1]), ("b", [2])], n_best=4)
    result = decoder.decode(log_probs)[0]
    assert result[0].text == "a b"
    assert result[0].tokens == (1, 3, 2, 3)
    assert [(w.word, w.start, w.end) for w in result[0].words] == [
        ("a", pytest.approx(0.02), pytest.approx(0.04)),
        ("b", pytest.approx(0.1), pytest.approx(0.12)),
    ]
    assert len({h.tokens for h in result}) == 4


def runs_of(path: Sequence[int], separator: int) -> list[tuple[int, int, int]]:
    """Label, first and last frame of what a path says, without separators that say nothing."""
    result: list[tuple[int, int, int]] = []
    at, last = 0, separator
    for label, group in itertools.groupby(path):
        n = len(list(group))
        if label != 0 and not label == last == separator:
            result.append((label, at, at + n - 1))
            last = label
        at += n
    return result


@pytest.mark.parametrize("chunk", [7, 1])
@pytest.mark.parametrize("seed", range(4))
def test_times_are_those_of_the_likeliest_path_of_the_text(seed: int, chunk: int) -> None:
    """A separator passes for a blank where it says nothing, never inside a word, which it would end."""
    log_probs = emissions(7, 4, seed)
    log_probs[:, 3] += 1.5  # many separators
    log_probs = log_softmax(log_probs)
    lexicon = [("a", [1]), ("ab", [1, 2]), ("ba", [2, 1]), ("aba", [1, 2, 1])]
    decoder = CtcDecoder(["-", "a", "b", "|"], lexicon=lexicon, options=CtcOptions(beam_size=60, n_best=12))
    state = decoder.start()
    for part in np.split(log_probs, range(chunk, len(log_probs), chunk)):
        decoder.decode_chunk(state, part)
    best: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
    of_labels = log_probs.tolist()
    for path in itertools.product(range(4), repeat=7):
        runs = runs_of(path, 3)
        score = sum(of_labels[t][label] for t, label in enumerate(path))
        said = tuple(label for label, _, _ in runs)
        best[said] = max(best.get(said, (-math.inf, ())), (score, tuple(first for _, first, _ in runs)))
    for result in decoder.finish(state)[0]:
        assert result.token_frames == best[result.tokens][1]


@pytest.mark.parametrize("separator", [None, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_no_worse_because_more_are_listed(seed: int, separator: int | None) -> None:
    """Homophones of the best do not take the room of other labels."""
    letters = [(1,), (2,), (1, 2), (2, 1, 1)]
    spelled = [(f"{letter}{i}", letter) for letter in letters for i in range(4)]
    lexicon = Lexicon(spelled, 4, separator=separator)
    model = RandomBigram(len(spelled), seed)
    fusion = PrefixScorer(4, lexicon=lexicon, words=[(model.automaton(), 0.4)])
    named, log_probs = Labels(tuple("-ab|"), 0, separator), emissions(12, 4, seed)
    lists = []
    for n_best in (1, 5):
        options = CtcOptions(beam_size=6, n_best=n_best, times=False)
        decoder = EmissionDecoder(named, options, scorer=fusion, lexicon=lexicon.words)
        lists.append(decoder.decode(log_probs)[0])
    alone, listed = lists
    assert listed[0].score >= alone[0].score - 1e-4
    assert [h.score for h in listed] == sorted((h.score for h in listed), reverse=True)
    assert len({(h.tokens, h.text) for h in listed}) == len(listed) == 5
    assert sum(h.posterior or 0.0 for h in listed) <= 1 + 1e-6
