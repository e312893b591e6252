"""KenLM's probing tables in the native search: the same hypotheses, each state and word asked for once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.errors import OptionError
from sottovoce.lm.arpa import read_arpa
from sottovoce.lm.kenlm import KenlmModel
from tests.ctc.enumeration import emissions
from tests.ctc.test_engines import LABELS, random_arpa
from tests.lm.test_trie import write_probing

pytest.importorskip("sottovoce_kernels.kenlm", reason="the native kernels are not installed, or too old")

WORDS = ["ab", "ba", "a", "aab", "bb"]
LEXICON = [(word, [LABELS.index(letter) for letter in word]) for word in WORDS]
ROWS = np.stack([emissions(40, len(LABELS), seed) for seed in range(6)])


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "words.arpa"
    path.write_text(random_arpa())
    return path


def probing(arpa: Path) -> KenlmModel:
    table = read_arpa(arpa)
    ngrams = {
        tuple(table.words[word] for word in row): (log10, backoff)
        for order in table.orders
        for row, log10, backoff in zip(
            order.words.tolist(), order.log10.tolist(), order.backoff.tolist(), strict=True
        )
    }
    write_probing(arpa.with_suffix(".bin"), ngrams)
    return KenlmModel(arpa.with_suffix(".bin"))


def decoder(model: KenlmModel | Path, **fusion: float) -> CtcDecoder:
    return CtcDecoder(
        LABELS,
        0,
        lm=model,
        lexicon=LEXICON,
        unknown_words=True,
        fusion=CtcFusionOptions(level="word", **fusion),  # type: ignore[arg-type]
        n_best=4,
    )


def scores(result: CtcDecoder) -> list[tuple[str, float]]:
    return [(best.text, best.score) for row in result.decode(ROWS) for best in row]


def assert_same(ours: CtcDecoder, theirs: CtcDecoder) -> None:
    for (text, score), (wanted, expected) in zip(scores(ours), scores(theirs), strict=True):
        assert text == wanted
        assert score == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_native_search_finds_the_same(
    arpa: Path, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.ctc.emissions._LEAST_FRAMES", 0)
    monkeypatch.setattr("sottovoce.ctc.emissions.n_threads", lambda: n_threads)
    assert_same(decoder(probing(arpa)), decoder(arpa))


def test_threads_give_a_state_one_number(arpa: Path) -> None:
    model = probing(arpa)
    tokens = np.random.default_rng(0).integers(model.n_tokens, size=(8, 3000))

    def walk(texts: np.ndarray) -> tuple[list[float], list[int]]:
        states, scores = model.start(len(texts)), np.zeros(len(texts), np.float32)
        for column in texts.T:
            result, states = model.score(states, column)
            scores += result
        return scores.tolist(), states.tolist()

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(walk, [tokens] * 4))
    assert together == [walk(tokens)] * 4
    other = probing(arpa)
    states, theirs = model.start(8), other.start(8)
    for column in tokens[:, :50].T:
        (result, states), (expected, theirs) = model.score(states, column), other.score(theirs, column)
        assert np.array_equal(result, expected)


def test_a_negative_weight_has_no_bound(arpa: Path) -> None:
    """Nothing says then how much a word can add at most."""
    assert_same(decoder(probing(arpa), lm_weight=-0.5), decoder(arpa, lm_weight=-0.5))


BINARIES = Path(__file__).parents[1] / "lm" / "binaries"


@pytest.mark.parametrize("kind", ["probing", "trie"])
def test_a_binary_spells_its_own_words(kind: str) -> None:
    """Without a lexicon, as the ARPA file does that it was made of."""
    fusion = CtcFusionOptions(level="word", unknown_score=-1.0)
    lists = []
    for file in ("small.arpa", f"{kind}.bin"):
        searcher = CtcDecoder(["-", "a", "b", " "], lm=BINARIES / file, fusion=fusion, n_best=6)
        assert searcher.lexicon is not None
        assert {word for word in searcher.lexicon.words if word is not None} == {"a", "b"}
        lists.append([(h.text, h.score) for h in searcher.decode(emissions(7, 4, seed=2))[0]])
    assert [text for text, _ in lists[0]] == [text for text, _ in lists[1]]
    assert [score for _, score in lists[0]] == pytest.approx([score for _, score in lists[1]], abs=1e-4)


def test_whether_a_binary_is_over_labels_is_told_by_its_words() -> None:
    """As of ARPA files: that it knows every label is not enough."""
    labels = ["-", "a", "b"]
    assert CtcDecoder(labels, lm=BINARIES / "trie.bin").lexicon is None
    with pytest.raises(OptionError, match="expected a lexicon beside a word model"):
        CtcDecoder(labels, lm=BINARIES / "trie.bin", fusion=CtcFusionOptions(level="word"))
