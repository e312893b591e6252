"""Lexicons: what is refused, what files hold, look-ahead, and what an ending inside a word becomes."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import NEVER
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.models import DecoderParts
from sottovoce.ctc.search import UNKNOWN_SHARE, PrefixScorer
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.lm.kenlm import KenlmModel
from sottovoce.lm.lexicon import Lexicon, read_lexicon
from sottovoce.lm.ngram import NgramModel
from tests.ctc.enumeration import RandomBigram
from tests.lm.test_trie import write_probing

LABELS = ["-", "a", "b", "|"]


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_says_of_every_beginning_which_words_go_on_from_it(seed: int) -> None:
    chooser = random.Random(seed)
    spellings = [
        (f"w{chooser.randrange(12)}", chooser.choices((1, 2, 4), k=chooser.randint(1, 5))) for _ in range(20)
    ]
    lexicon = Lexicon([(word, [*tokens, 3]) for word, tokens in spellings], 5, separator=3)
    assert lexicon.words == tuple(dict.fromkeys(word for word, _ in spellings))
    scores = np.random.default_rng(0).random(len(lexicon.words), np.float32) - 3.0
    ahead = lexicon.look_ahead(scores)
    assert float(ahead[0]) == 0.0
    for said in {tuple(tokens[:n]) for _, tokens in spellings for n in range(1, len(tokens) + 1)}:
        node = 0
        for token in said:
            node = 2 + lexicon.keys.tolist().index(node * 5 + token)
        ended = lexicon.words_of[lexicon.first_word[node] :][: lexicon.n_words_of[node]].tolist()
        spelled = dict.fromkeys(word for word, tokens in spellings if tuple(tokens) == said)
        assert [lexicon.words[word] for word in ended] == [*spelled]
        below = {word for word, tokens in spellings if tuple(tokens[: len(said)]) == said}
        assert float(ahead[node]) == max(float(scores[lexicon.words.index(word)]) for word in below)


@pytest.mark.parametrize(
    ("spellings", "message"),
    [
        ([], "at least one word"),
        ([("a", [])], "'a'"),
        ([("a", [3])], "'a'"),
        ([("a", [7])], "0 to 3"),
        ([("ab", [1, 3, 2])], "separator"),
        ([("ok", [1, 3]), ("bb", [3]), ("ab", [1, 3, 2])], "'bb', got none"),
        ([("ok", [1, 3]), ("ab", [1, 3, 2, 3])], r"'ab' .* got \[1, 3, 2\]"),
        ([("a", [-1])], "0 to 3"),
    ],
)
def test_lexicons_that_cannot_be_used_are_refused(
    spellings: list[tuple[str, list[int]]], message: str
) -> None:
    with pytest.raises(LanguageModelError, match=message):
        Lexicon(spellings, 4, separator=3)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("ab a b |\r\nread\ta b b\nread b\n")
    assert read_lexicon(path, LABELS) == [("ab", (1, 2, 3)), ("read", (1, 2, 2)), ("read", (2,))]
    path.write_text("ab\nba\n")
    assert read_lexicon(path, LABELS) == [("ab", (1, 2)), ("ba", (2, 1))]
    path.write_text("ab a c\n")
    with pytest.raises(LanguageModelError, match=r"got none: 'ab' \(line 1, no label 'c'\)"):
        read_lexicon(path, LABELS)
    path.write_text("")
    with pytest.raises(LanguageModelError, match="expected at least one word, got none"):
        CtcDecoder(LABELS, lexicon=path)
    with pytest.raises(LanguageModelError, match="none"):
        read_lexicon(tmp_path / "none", LABELS)


def test_fusions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OptionError, match="same tokens"):
        ShallowFusion([(RandomBigram(5, 0), 1.0), (RandomBigram(4, 0), 1.0)])


class Forbidding(RandomBigram):
    """Never says token 0."""

    def score(self, states: np.ndarray, tokens: np.ndarray | None = None) -> tuple:
        scores, after = super().score(states, tokens)
        if tokens is None:
            scores = scores.copy()
            scores[:, 0] = NEVER
            return scores, after
        return np.where(tokens == 0, NEVER, scores), after


def test_a_weight_of_zero_times_minus_infinity_is_no_nan() -> None:
    fusion = ShallowFusion([(Forbidding(4, 0), 0.0)])
    states = fusion.start(2)
    rows, _ = fusion.score(states)
    assert rows[:, 0].tolist() == [NEVER, NEVER]
    assert not np.isnan(rows).any()
    assert not np.isnan(fusion.score(states, np.array([0, 1]))[0]).any()


def test_tokens_beyond_the_models_keep_the_state() -> None:
    fusion = ShallowFusion([(RandomBigram(4, 0), 1.0)])
    _, states = fusion.score(fusion.start(2), np.array([2, 3]))
    scores, after = fusion.score(states, np.array([9, 1]))
    assert float(scores[0]) == 0.0
    assert after[:, 0].tolist() == [2, 1]


def test_unknown_words_are_paid_for_where_they_begin_and_where_they_end() -> None:
    lexicon = Lexicon([("ab", [1, 2]), ("a", [1])], 4, separator=3, allow_unknown=True)
    model = RandomBigram(3, 5)
    scorer = PrefixScorer(
        4,
        lexicon=lexicon,
        words=[(model.automaton(), 0.5)],
        word_score=0.25,
        unknown_score=-7.0,
        unigrams=0.5 * model.unigrams(range(3)),
    )
    price = 0.5 * float(model.score(np.array([3]), np.array([2]))[0][0]) + 0.25 - 7.0
    assert float(scorer.ahead[1]) == pytest.approx(UNKNOWN_SHARE * price)


STARTS = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-1\t<unk>
-9\t<s>\t-2
-1\t</s>
-0.5\tab\t0
-0.7\tba\t0

\\2-grams:
-0.1\t<s> ba

\\end\\
"""
"""Sentences begin with "ba", but everywhere else "ab" is likelier."""


def models_of(path: Path) -> list[NgramModel | KenlmModel]:
    path.write_text(STARTS)
    unigrams = {"<unk>": (-1, 0), "<s>": (-9, -2), "</s>": (-1, 0), "ab": (-0.5, 0), "ba": (-0.7, 0)}
    bigrams = {("<s>", "ba"): (-0.1, 0)}
    write_probing(path.with_suffix(".bin"), {(word,): pair for word, pair in unigrams.items()} | bigrams)
    return [NgramModel.load(path), KenlmModel(path.with_suffix(".bin"))]


def test_look_ahead_is_of_unigrams_not_of_how_sentences_begin(tmp_path: Path) -> None:
    pytest.importorskip("sottovoce_kernels.kenlm", reason="the native kernels are not installed, or too old")
    lexicon = Lexicon([("ab", [1, 2]), ("ba", [2, 1])], 4, separator=3, allow_unknown=True)
    for model in models_of(tmp_path / "words.arpa"):
        parts = DecoderParts(Labels.of(LABELS, 0), CtcFusionOptions(unknown_score=0.0))
        scorer, _ = parts.scorer([(model, 0.5)], lexicon, [], None)
        assert scorer is not None
        expected = [0.5 * log10 * math.log(10) for log10 in (-0.5, -0.7)]
        assert scorer.ahead[2:4].tolist() == pytest.approx(expected)
