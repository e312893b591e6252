"""Parts of the native search against what they stand for."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.align import align, common_cut
from sottovoce.ctc.emissions import checked
from sottovoce.ctc.native import choose_engine
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixSearch
from sottovoce.errors import InputError
from tests.ctc.enumeration import emissions
from tests.ctc.test_engines import differences, random_arpa

kernels = pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")


@pytest.mark.parametrize("n_labels", [3, 40, 200])
@pytest.mark.parametrize("least", [-np.inf, -4.0, 10.0])
def test_likeliest_tokens_and_the_others_are_those_above_a_bar(n_labels: int, least: float) -> None:
    # Few different values, so that many are equal.
    frame = np.random.default_rng(0).integers(-9, 0, n_labels).astype(np.float32)
    blank = n_labels // 2
    above = [token for token in range(n_labels) if token != blank and frame[token] > least]
    ranked = sorted(above, key=lambda token: (-frame[token], token))
    for most in (n_labels, 20):
        found = kernels.likeliest(frame.ctypes.data, n_labels, least, blank, 7, most)
        assert list(found[:7]) == ranked[:7]
        assert sorted(-frame[list(found[7:])]) == [-frame[token] for token in ranked[7 : 7 + most]]
        assert set(found[7:]) <= set(ranked[7:])


@pytest.mark.parametrize("top_tokens", [None, 16, 17, 40])
@pytest.mark.parametrize("unknown_words", [False, True])
def test_word_pieces_of_many_labels(top_tokens: int | None, unknown_words: bool, tmp_path: Path) -> None:
    """Far more labels than are looked at first, most of them beginning no word of the lexicon."""
    path = tmp_path / "words.arpa"
    path.write_text(random_arpa())
    chooser, words = random.Random(1), ("ab", "a", "bad", "cab", "dd", "abba", "be", "decade", "ace")
    lexicon = [(word, chooser.sample(range(1, 150), 1 + len(word) // 2)) for word in words]
    labels = ["-", *(f"▁{i}" if i < 75 else str(i) for i in range(149))]
    log_probs = torch.stack([emissions(10, 150, seed) for seed in range(3)]).log_softmax(dim=2)
    # With look-ahead to be inside a first unknown word scores as to have ended it: either may be kept.
    fusion = CtcFusionOptions(unknown_score=-1.3, level="word", look_ahead=not unknown_words)
    found = [
        CtcDecoder(
            labels,
            0,
            lm=path,
            lexicon=lexicon,
            unknown_words=unknown_words,
            beam_size=8,
            n_best=4,
            fusion=fusion,
            options=CtcOptions(engine=engine, top_tokens=top_tokens),  # type: ignore[arg-type]
        ).decode(log_probs)
        for engine in ("native", "tensors")
    ]
    assert not differences(*found)


V, BLANK, SEPARATOR = 5, 0, 4


def native_search() -> PrefixSearch:
    return choose_engine(PrefixSearch(V, BLANK, 8), "native", torch.device("cpu"))


def test_emissions_that_are_trusted_would_pass_the_full_check() -> None:
    search, rows = native_search(), torch.stack([emissions(9, V, seed) for seed in range(3)])
    lengths = torch.tensor([9, 4, 0])
    assert search.trusts(rows, lengths)
    checked(rows, lengths, V)
    broken = rows.clone()
    broken[2, 5, 1] = float("nan")
    for wrong in (rows + 1.0, rows * 3, broken):
        assert not search.trusts(wrong, torch.tensor([9, 9, 9]))
        with pytest.raises(InputError):
            checked(wrong, None, V)
    assert search.trusts(broken, torch.tensor([9, 9, 5]))


def test_sums_of_probabilities_equal_logaddexp() -> None:
    first, second = -40 * torch.rand(2, 40, generator=torch.Generator().manual_seed(1))
    first[:5], second[3:8] = -math.inf, -math.inf
    first[8:10], first[10] = second[8:10], second[10] + 1e-3
    first[11:15] = second[11:15] + torch.tensor([17.9999, 18.0, 18.0001, 30.0])
    ours = [kernels.log_add(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    assert ours == pytest.approx(torch.logaddexp(first, second).tolist())


def texts_to_align() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int | torch.Tensor]]:
    """Emissions (3, 12, V), label sequences (9, 4), their lengths, and labels of the blanks around them."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.stack([emissions(12, V, seed) for seed in range(3)])
    labels = torch.randint(1, V, (9, 4), generator=generator)
    counts = torch.randint(0, 5, (9,), generator=generator)
    mixed = torch.where(torch.randint(0, 2, (9, 5), generator=generator) == 1, SEPARATOR, BLANK)
    return rows, labels, counts, [BLANK, mixed]


def test_alignments_equal_the_plain_ones() -> None:
    rows, labels, counts, blanks = texts_to_align()
    of, lengths = torch.arange(9) % 3, torch.tensor([12, 9, 11])
    inside = torch.arange(4) < counts[:, None]
    for blank in blanks:
        ours, theirs = (
            each(rows, lengths, labels, counts, rows=of, blank=blank)
            for each in (native_search().align, align)
        )
        torch.testing.assert_close(ours.score, theirs.score, atol=1e-4, rtol=0)
        assert torch.equal(ours.first[inside], theirs.first[inside])
        assert torch.equal(ours.last[inside], theirs.last[inside])


def test_texts_longer_than_their_emissions_have_no_path() -> None:
    """No step leads to their ends, and none that memory held before is followed."""
    generator = torch.Generator().manual_seed(2)
    for n_frames in range(1, 8):
        for n_tokens in range(n_frames + 1, 12):
            rows = torch.stack([emissions(n_frames, V, seed) for seed in range(2)])
            labels = torch.randint(1, V, (6, n_tokens), generator=generator)
            counts, of = torch.tensor([n_tokens, 0, 1] * 2), torch.arange(6) % 2
            lengths = torch.full((2,), n_frames)
            junk = [np.full((n_frames, 2 * n_tokens + 1), 255, np.uint8) for _ in range(20)]
            del junk
            ours, theirs = (
                each(rows, lengths, labels, counts, rows=of, blank=BLANK)
                for each in (native_search().align, align)
            )
            torch.testing.assert_close(ours.score, theirs.score, atol=1e-4, rtol=0)
            assert ((ours.score == -math.inf) == (counts == n_tokens)).all()
            assert (ours.first >= 0).all()
            assert (ours.last < n_frames).all()


def test_common_cuts_equal_the_plain_ones() -> None:
    rows, labels, counts, blanks = texts_to_align()
    native_cut = native_search().common_cut
    for sharpness in (3, 300):  # where one path is hundreds of nats before the others, few are walked
        frames = (sharpness * rows[0]).log_softmax(dim=1)
        for n_shared, blank, is_late in itertools.product(range(5), blanks, (False, True)):
            ours, theirs = (
                each(frames, labels, counts, n_shared=n_shared, is_late=is_late, blank=blank)
                for each in (native_cut, common_cut)
            )
            assert ours == theirs
    for each in (native_cut, common_cut):  # a text that no path spells
        found = each(frames[:2], labels[:1], torch.tensor([4]), n_shared=0, is_late=True, blank=BLANK)
        assert found == (0, 0)
