"""Every rule of the CTC search in tensors and compiled: the table of docs/ctc-search.md, walked."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.decoding.ctc.align import align
from sottovoce.decoding.ctc.compiled import CompiledSearch
from sottovoce.decoding.ctc.emission_decoder import EmissionDecoder
from sottovoce.decoding.ctc.emissions import checked
from sottovoce.decoding.ctc.search import PrefixSearch
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.text import Labels
from sottovoce.errors import InputError
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.words import WordFusion, WordModel
from tests.decoding.enumeration import RandomBigram, emissions
from tests.decoding.test_ctc_engines import differences

pytest.importorskip("numba", reason="the extra fast is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "ctc-search.md"
ROW = re.compile(r"^\| (?P<rule>[^|`]+) \| `(?P<tensors>[\w.]+)` \| `(?P<compiled>[\w.]+)` \|$", re.MULTILINE)
V, BLANK, SEPARATOR = 5, 0, 4
WORDS = [("ab", (1, 2)), ("abc", (1, 2, 3)), ("b", (2,)), ("bee", (2,)), ("cc", (3, 3))]


def fusion(separator: int | None, *, unknown: bool = False) -> WordFusion:
    lexicon = Lexicon(WORDS, V, separator=separator, allow_unknown=unknown)
    n_words = len(lexicon.words)
    return WordFusion(
        lexicon,
        [WordModel(RandomBigram(n_words, 2), torch.arange(n_words), 0.7)],
        word_score=0.2,
        unknown_score=-0.9,
        look_ahead=True,
        tokens=ShallowFusion([RandomBigram(V, 3)], [0.4]),
    )


def searches(scorer: WordFusion | None, beam_size: int = 8) -> tuple[PrefixSearch, CompiledSearch]:
    plain = PrefixSearch(V, BLANK, beam_size, scorer=scorer)
    return plain, CompiledSearch(plain)


def reached(scorer: WordFusion) -> torch.Tensor:
    """States (N, s) that a search comes to."""
    plain, _ = searches(scorer)
    state = plain.start(3, torch.device("cpu"))
    frames = torch.stack([emissions(7, V, seed) for seed in range(3)])
    plain.run(state, frames, torch.tensor([7, 7, 7]), 7)
    found = state.scores[state.is_alive]
    assert len(found) > 8
    return found


def plausible() -> None:
    """What the compiled look trusts the close one takes; what that refuses is never trusted."""
    rows = torch.stack([emissions(9, V, seed) for seed in range(3)])
    _, compiled = searches(None)
    lengths = torch.tensor([9, 4, 0])
    assert compiled.trusts(rows, lengths)
    checked(rows, lengths, V)
    broken = rows.clone()
    broken[2, 5, 1] = float("nan")
    for wrong in (rows + 1.0, rows * 3, broken):
        assert not compiled.trusts(wrong, torch.tensor([9, 9, 9]))
        with pytest.raises(InputError):
            checked(wrong, None, V)
    assert compiled.trusts(broken, torch.tensor([9, 9, 5]))


def ranked() -> None:
    from sottovoce.decoding.ctc.kernel.tokens import likeliest, new_tokens

    frames = emissions(20, 30, 1)
    plain = PrefixSearch(30, 7, 4)
    tokens, scores = plain._ranked_tokens(frames[None])
    found = new_tokens(30)
    for t, frame in enumerate(frames.numpy()):
        n = likeliest(frame, np.float32(-np.inf), 7, plain.n_tokens, found)
        assert found.ids[:n].tolist() == tokens[0, t].tolist()
        assert found.log_probs[:n].tolist() == pytest.approx(scores[0, t].tolist())


def arcs() -> None:
    from sottovoce.decoding.ctc.kernel.arcs import arc_of, child_of, score_arc

    for separator, unknown in ((SEPARATOR, False), (SEPARATOR, True), (None, False), (None, True)):
        scorer = fusion(separator, unknown=unknown)
        flat, states = scorer.flat(), reached(scorer)
        assert flat is not None
        labels = torch.arange(1, V).expand(len(states), -1)
        truth = scorer.arcs(states, labels)
        after = np.zeros(states.shape[1], np.int64)
        rows = states.numpy()
        for row, place, arc in np.ndindex(*truth.scores.shape):
            label, node = int(labels[row, place]), int(rows[row, 0])
            child = child_of(flat.lexicon, node, label)
            target, mark = arc_of(flat.lexicon, node, child, label, arc)
            expected = float(truth.scores[row, place, arc])
            assert (target >= 0) == (expected > -np.inf)
            if target >= 0:
                score = score_arc(flat, rows, row, label, target, mark, after)
                assert score == pytest.approx(expected, abs=1e-4)
                assert mark == int(truth.marks[row, place, arc])
                assert after.tolist() == truth.states[row, place, arc].tolist()


def endings() -> None:
    for separator in (SEPARATOR, None):
        scorer = fusion(separator)
        plain, compiled = searches(scorer)
        states = reached(scorer)
        ours, theirs = compiled.endings(states), plain.endings(states)
        assert ours is not None
        assert theirs is not None
        exists = theirs.scores > -np.inf
        assert torch.equal(ours.scores > -np.inf, exists)
        torch.testing.assert_close(ours.scores[exists], theirs.scores[exists], atol=1e-4, rtol=0)
        assert torch.equal(ours.marks[exists], theirs.marks[exists])


def frames() -> None:
    # Not with open unknown words: to be inside one scores as to have ended it, and either may be kept.
    for scorer in (None, fusion(SEPARATOR), fusion(SEPARATOR, unknown=True), fusion(None)):
        rows, lengths = torch.stack([emissions(9, V, seed) for seed in range(4)]), torch.tensor([9, 3, 0, 7])
        found = []
        for search in searches(scorer):
            state = search.start(4, torch.device("cpu"))
            search.run(state, rows, lengths, 0)
            total = (state.acoustic + state.lm).masked_fill(~state.is_alive, -1e9)
            found.append((total, state.length * state.is_alive, state.last * state.is_alive))
        (ours, *exact), (theirs, *others) = found
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
        assert all(torch.equal(a, b) for a, b in zip(exact, others, strict=True))


def left_out() -> None:
    scorer = fusion(SEPARATOR)
    named = Labels(tuple("-abc|"), BLANK, SEPARATOR)
    rows = torch.stack([emissions(12, V, seed) for seed in range(4)])
    for n_best in (1, 2):
        lists = []
        for engine in ("compiled", "tensors"):
            options = CtcOptions(beam_size=6, n_best=n_best, engine=engine)  # type: ignore[arg-type]
            words = scorer.words
            lists.append(EmissionDecoder(named, options, scorer=scorer, lexicon=words).decode(rows))
        assert not differences(*lists)


def said() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Emissions (3, 12, V), and label sequences (9, 4) with their lengths."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.stack([emissions(12, V, seed) for seed in range(3)])
    labels = torch.randint(1, V, (9, 4), generator=generator)
    return rows, labels, torch.randint(0, 5, (9,), generator=generator)


def paths() -> None:
    rows, labels, counts = said()
    _, compiled = searches(None)
    of, lengths = torch.arange(9) % 3, torch.tensor([12, 9, 11])
    theirs = align(rows, lengths, labels, counts, rows=of, blank=BLANK)
    ours = compiled.align(rows, lengths, labels, counts, rows=of, blank=BLANK)
    torch.testing.assert_close(ours.score, theirs.score, atol=1e-4, rtol=0)
    inside = torch.arange(4) < counts[:, None]
    for a, b in ((ours.first, theirs.first), (ours.last, theirs.last)):
        assert torch.equal(a[inside], b[inside])
    impossible_paths()


def impossible_paths() -> None:
    """Texts that are longer than their emissions: no step leads to their ends, and none is followed."""
    generator = torch.Generator().manual_seed(2)
    _, compiled = searches(None)
    for n_frames in range(1, 8):
        for n_tokens in range(n_frames + 1, 12):
            rows = torch.stack([emissions(n_frames, V, seed) for seed in range(2)])
            labels = torch.randint(1, V, (6, n_tokens), generator=generator)
            counts, of = torch.tensor([n_tokens, 0, 1] * 2), torch.arange(6) % 2
            lengths = torch.full((2,), n_frames)
            junk = [np.full((n_frames, 2 * n_tokens + 1), 255, np.uint8) for _ in range(20)]
            del junk  # what memory held before is not followed either
            ours = compiled.align(rows, lengths, labels, counts, rows=of, blank=BLANK)
            theirs = align(rows, lengths, labels, counts, rows=of, blank=BLANK)
            torch.testing.assert_close(ours.score, theirs.score, atol=1e-4, rtol=0)
            assert ((ours.score == -math.inf) == (counts == n_tokens)).all()
            assert (ours.first >= 0).all()
            assert (ours.last < n_frames).all()


def cuts() -> None:
    rows, labels, counts = said()
    plain, compiled = searches(None)
    for sharpness in (3, 300):  # where one path is hundreds of nats before the others, few are walked
        frames = (sharpness * rows[0]).log_softmax(dim=1)
        for n_shared in range(5):
            for is_late in (False, True):
                ours = compiled.settled(frames, labels, counts, n_shared, is_late=is_late)
                assert ours == plain.settled(frames, labels, counts, n_shared, is_late=is_late)
    said_by_none = labels[:1], torch.tensor([4])
    for search in (plain, compiled):
        assert search.settled(frames[:2], *said_by_none, 0, is_late=True) == (0, 0)


COMPARISONS: dict[str, Callable[[], None]] = {
    "log-probabilities beyond doubt": plausible,
    "labels to extend by": ranked,
    "arcs of a label": arcs,
    "endings of a state": endings,
    "a frame": frames,
    "readings that are left out": left_out,
    "the likeliest path": paths,
    "what is settled": cuts,
}


def table() -> dict[str, tuple[str, str]]:
    rows = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return {row["rule"].strip(): (row["tensors"], row["compiled"]) for row in rows}


def find(name: str) -> object:
    """A function or method below `sottovoce`."""
    parts = f"sottovoce.{name}".split(".")
    for n in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[n:], module)
    raise LookupError(name)


def test_every_rule_of_the_page_is_compared() -> None:
    assert list(table()) == list(COMPARISONS)


@pytest.mark.parametrize("rule", COMPARISONS)
def test_both_say_the_same(rule: str) -> None:
    assert all(callable(find(name)) for name in table()[rule])
    COMPARISONS[rule]()
