"""Language models over words and over labels together: each counts, as enumeration has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import OptionError
from sottovoce.lm.ngram import NgramModel
from tests.ctc.enumeration import all_texts, best_of, emissions, separated_readings, without_idle

NAMES = ["-", "a", "b", "|"]
WORDS = [("ab", (1, 2)), ("b", (2,)), ("ba", (2, 1))]
WORD_ARPA = (
    "\\data\\\nngram 1=6\nngram 2=2\n\n\\1-grams:\n-2 <unk>\n-99 <s> -0.2\n-0.5 </s>\n"
    "-0.9 ab -0.3\n-0.4 b -0.1\n-1.3 ba\n\n\\2-grams:\n-0.1 ab b\n-0.6 <s> ba\n\n\\end\\\n"
)
LABEL_ARPA = (
    "\\data\\\nngram 1=6\nngram 2=2\n\n\\1-grams:\n-3 <unk>\n-99 <s> -0.1\n-0.8 </s>\n"
    "-0.3 a -0.4\n-0.7 b -0.2\n-0.6 |\n\n\\2-grams:\n-0.2 a b\n-0.9 b |\n\n\\end\\\n"
)


@pytest.fixture
def models(tmp_path: Path) -> tuple[NgramModel, NgramModel]:
    (tmp_path / "words.arpa").write_text(WORD_ARPA)
    (tmp_path / "labels.arpa").write_text(LABEL_ARPA)
    return NgramModel.load(tmp_path / "words.arpa"), NgramModel.load(tmp_path / "labels.arpa")


def sentence(model: NgramModel, said: Sequence[str]) -> float:
    """The log-probability of a whole sentence, step by step."""
    state, total = model.start(1), 0.0
    for token in model.ids(list(said)):
        score, state = model.score(state, np.array([token]))
        total += score[0]
    return float(total + model.finish(state)[0])


@pytest.mark.parametrize("look_ahead", [False, True])
def test_both_count(models: tuple[NgramModel, NgramModel], look_ahead: bool) -> None:
    words, labels = models
    log_probs = emissions(5, 4, seed=3)

    def score(tokens: tuple[int, ...], read: tuple[int, ...]) -> float:
        spoken = sentence(words, [WORDS[word][0] for word in read])
        return 0.7 * spoken + 0.4 * sentence(labels, [NAMES[token] for token in tokens])

    spellings = [(index, spelling) for index, (_, spelling) in enumerate(WORDS)]
    texts = without_idle(all_texts(log_probs, 0), 3)
    truth = best_of(texts, lambda tokens: separated_readings(tokens, spellings, 3), score)[:20]
    decoder = CtcDecoder(
        NAMES,
        0,
        lm=words,
        label_lm=labels,
        lexicon=WORDS,
        fusion=CtcFusionOptions(lm_weight=0.7, label_lm_weight=0.4, look_ahead=look_ahead),
        options=CtcOptions(beam_size=1500, n_best=20, times=False),
    )
    result = decoder.decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)


@pytest.mark.parametrize("look_ahead", [False, True])
def test_every_word_model_counts_with_its_weight(
    models: tuple[NgramModel, NgramModel], tmp_path: Path, look_ahead: bool
) -> None:
    """Words of one are unknown to the other, and those of neither are unknown words."""
    domain = tmp_path / "domain.arpa"
    domain.write_text(
        "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-1.5 <unk>\n-99 <s> -0.4\n-0.7 </s>\n-0.2 aa -0.3\n\n"
        "\\2-grams:\n-0.3 aa </s>\n\n\\end\\\n"
    )
    weighted = [(models[0], 0.4), (NgramModel.load(domain), 0.3)]
    names = [*(word for word, _ in WORDS), "aa", "<unk>"]
    log_probs = emissions(6, 4, seed=3)

    def score(_: tuple[int, ...], read: tuple[int, ...]) -> float:
        spoken = [names[word] for word in read]
        return sum(weight * sentence(model, spoken) for model, weight in weighted) - spoken.count("<unk>")

    spellings = [*((index, spelling) for index, (_, spelling) in enumerate(WORDS)), (3, (1, 1))]
    texts = without_idle(all_texts(log_probs, 0), 3)
    truth = best_of(texts, lambda tokens: separated_readings(tokens, spellings, 3, unknown=True), score)[:20]
    fusion = CtcFusionOptions(look_ahead=look_ahead, unknown_score=-1.0)
    options = CtcOptions(beam_size=3000, n_best=20, times=False)
    for lm in (weighted, {str(tmp_path / "words.arpa"): 0.4, str(domain): 0.3}):
        result = CtcDecoder(NAMES, 0, lm=lm, fusion=fusion, options=options).decode(log_probs)[0]
        assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)
    with pytest.raises(OptionError, match="lm: expected models with their weights, got"):
        CtcDecoder(NAMES, 0, lm=["words.arpa", "domain.arpa"])  # type: ignore[list-item]


def test_a_model_over_labels_needs_no_other(models: tuple[NgramModel, NgramModel]) -> None:
    _, labels = models
    log_probs = emissions(6, 4, seed=4)
    alone = CtcDecoder(NAMES, 0, lm=labels, fusion=CtcFusionOptions(lm_weight=0.6)).decode(log_probs)[0][0]
    nearby = CtcDecoder(NAMES, 0, label_lm=labels, fusion=CtcFusionOptions(label_lm_weight=0.6))
    assert nearby.decode(log_probs)[0][0].score == pytest.approx(alone.score, abs=1e-5)


def test_two_models_over_labels_are_refused(models: tuple[NgramModel, NgramModel]) -> None:
    with pytest.raises(OptionError, match="lm: expected a model over words beside label_lm"):
        CtcDecoder(NAMES, 0, lm=models[1], label_lm=models[1], fusion=CtcFusionOptions(level="token"))


def test_a_space_separates_words_where_there_is_a_bar_too(tmp_path: Path) -> None:
    """Recognisers of text lines have both, the bar first."""
    names = ["-", "|", "a", "b", " "]
    arpa = tmp_path / "labels.arpa"
    arpa.write_text(
        "\\data\\\nngram 1=6\n\n\\1-grams:\n-3 <unk>\n-99 <s>\n-0.8 </s>\n"
        "-0.3 a\n-2.0 |\n-0.1 <space>\n\n\\end\\\n"
    )
    decoder = CtcDecoder(names, 0, label_lm=arpa, fusion=CtcFusionOptions(label_lm_weight=1.0), beam_size=4)
    log_probs = np.full((1, 3, 5), 0.02)
    for frame, label in enumerate((2, 4, 2)):
        log_probs[0, frame, label] = 0.92
    best = decoder.decode(np.log(log_probs))[0][0]
    assert best.text == "a a"
    assert [word.word for word in best.words] == ["a", "a"]
    assert best.lm_score == pytest.approx(-(0.3 + 0.1 + 0.3 + 0.8) * math.log(10), abs=1e-4)


@pytest.mark.parametrize("share", [-0.1, 2.0])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(OptionError, match="lm_kept: expected a share from 0 to 1"):
        CtcFusionOptions(lm_kept=share)
