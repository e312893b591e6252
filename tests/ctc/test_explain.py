"""Explanations of hypotheses: parts sum to the scores, and rivals are the best of an enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import OptionError
from tests.ctc.enumeration import all_texts, best_of, collapsed, emissions, separated_readings, without_idle
from tests.ctc.test_two_models import LABEL_ARPA, NAMES, WORD_ARPA, WORDS

History = tuple[str, ...]


class Lengths:
    """A neural model that likes words after others of the same length."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        return {(past, word): -0.3 - abs(len(word) - len((*past, "b")[-1])) for past, word in pairs}

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        return {past: -0.2 * len(past) for past in histories}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words.arpa").write_text(WORD_ARPA)
    (tmp_path / "labels.arpa").write_text(LABEL_ARPA)
    return tmp_path


def decoder(folder: Path, names: list[str], *, neural: bool) -> CtcDecoder:
    return CtcDecoder(
        names,
        0,
        lm=[(str(folder / "words.arpa"), 0.5), (str(folder / "words.arpa"), 0.2)],
        label_lm=folder / "labels.arpa",
        lexicon=[(word, spelling) for word, spelling in WORDS],
        neural_lm=Lengths() if neural else None,
        unknown_words="▁b" not in names,
        fusion=CtcFusionOptions(word_score=0.7, unknown_score=-0.4, lm_kept=0.25, neural_weight=0.6),
        options=CtcOptions(beam_size=40, n_best=6, adjust_every_frames=3, acoustic_scale=0.8),
        hotwords={"b": 0.6, "ab b": 0.3},
    )


@pytest.mark.parametrize("neural", [False, True])
@pytest.mark.parametrize("names", [NAMES, ["-", "a", "b", "c"], ["-", "▁a", "b", "▁b"]])
def test_parts_sum_to_the_scores(folder: Path, names: list[str], neural: bool) -> None:
    log_probs = emissions(6, 4, seed=8)
    explained = decoder(folder, names, neural=neural)
    (result,) = explained.decode(log_probs)
    paths = {}
    for path in itertools.product(range(4), repeat=6):
        score = 0.8 * float(log_probs[range(6), path].sum())
        (tokens,) = without_idle({collapsed(path, 0): 0.0}, 3 if "|" in names else None)
        paths[tokens] = max(score, paths.get(tokens, score))
    assert max(len(each.words) for each in result) > 1
    for hypothesis in result:
        words = explained.explain(log_probs, hypothesis)
        assert [each.word for each in words] == list(hypothesis.words)
        if not words:
            continue
        of_models = sum(each.ngram + each.hotword + each.neural + each.bonus for each in words)
        assert of_models == pytest.approx(hypothesis.lm_score, abs=1e-4)
        likeliest = sum(each.acoustic for each in words)
        assert likeliest == pytest.approx(paths[hypothesis.tokens], abs=0.01)  # idle separators: less 0.001
        assert likeliest <= hypothesis.acoustic_score + 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_a_rival_is_the_best_that_lacks_the_word(folder: Path, seed: int) -> None:
    log_probs = emissions(5, 4, seed)
    explained = CtcDecoder(NAMES, lexicon=WORDS, beam_size=200, fusion=CtcFusionOptions(word_score=0.5))
    spellings = [(index, spelling) for index, (_, spelling) in enumerate(WORDS)]
    truth = best_of(
        without_idle(all_texts(log_probs, 0), 3),
        lambda tokens: separated_readings(tokens, spellings, 3),
        lambda _, read: 0.5 * len(read),
    )
    (best,) = explained.decode(log_probs)[0]
    for each in explained.explain(log_probs, best):
        wanted = [word for word, _ in WORDS].index(each.word.word)
        without = next(score for score, _, read in truth if wanted not in read)
        assert each.margin is not None
        assert each.margin <= best.score - without + 1e-4  # other places may have the word
        if len(best.words) == 1:
            assert each.rival != each.word.word
    short = CtcDecoder(NAMES, lexicon=WORDS, options=CtcOptions(times=False))
    with pytest.raises(OptionError, match="explain: expected a hypothesis with times"):
        short.explain(log_probs, short.decode(np.log([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]]))[0][0])
