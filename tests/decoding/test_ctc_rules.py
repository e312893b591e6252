"""Every rule of the CTC search in tensors and compiled: the table of docs/ctc-search.md, walked."""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.decoding.ctc.align import align
from sottovoce.decoding.ctc.emission_decoder import EmissionDecoder
from sottovoce.decoding.ctc.emissions import checked
from sottovoce.decoding.ctc.labels import Labels
from sottovoce.decoding.ctc.prefix_search import PrefixSearch
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.errors import InputError
from tests.decoding import model_rules
from tests.decoding.enumeration import emissions
from tests.decoding.rule_parts import BLANK, SEPARATOR, V, fusion, reached, searches
from tests.decoding.test_ctc_engines import differences

pytest.importorskip("numba", reason="the extra fast is not installed")

ROOT = Path(__file__).parents[2]
PAGE, KERNEL = ROOT / "docs" / "ctc-search.md", ROOT / "src" / "sottovoce" / "decoding" / "ctc" / "kernel"
ROW = re.compile(r"^\| (?P<rule>[^|`]+) \| `(?P<tensors>[\w.]+)` \| `(?P<compiled>[\w.]+)` \|$", re.MULTILINE)
ALONE = re.compile(r"^\| (`\w+\.\w+`(?:, `\w+\.\w+`)*) \| [^|`]+ \|$", re.MULTILINE)
"""A row of compiled functions, by module and name, and why they stand alone."""


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
    from sottovoce.decoding.ctc.kernel.candidates import likeliest, new_tokens

    frames = emissions(20, 30, 1)
    plain = PrefixSearch(30, 7, 4)
    tokens, scores = plain._ranked_tokens(frames[None])
    found = new_tokens(30)
    for t, frame in enumerate(frames.numpy()):
        n = likeliest(frame, np.float32(-np.inf), 7, plain.n_tokens, found)
        assert found.ids[:n].tolist() == tokens[0, t].tolist()
        assert found.log_probs[:n].tolist() == pytest.approx(scores[0, t].tolist())


def others() -> None:
    from sottovoce.decoding.ctc.kernel.candidates import N_FIRST, likeliest, new_tokens
    from sottovoce.decoding.ctc.kernel.candidates import others as rest

    frames = emissions(20, 60, 2)
    for top_tokens in (None, 40):
        plain = PrefixSearch(60, 7, 4, scorer=fusion(SEPARATOR), top_tokens=top_tokens)
        tokens, _ = plain._ranked_tokens(frames[None])
        found = new_tokens(60)
        for t, frame in enumerate(frames.numpy()):
            n = likeliest(frame, np.float32(-np.inf), 7, N_FIRST, found)
            first = found.ids[:n].tolist()
            n = rest(frame, np.float32(-np.inf), 7, plain.n_tokens - n, n, found)
            assert sorted(first + found.ids[:n].tolist()) == sorted(tokens[0, t].tolist())


def sums() -> None:
    from sottovoce.decoding.ctc.kernel.beams import log_add

    state = searches(None)[0].start(4, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    state.blank, state.token = (-40 * torch.rand(4, 8, generator=generator) for _ in range(2))
    state.blank[0], state.token[:, 0] = -math.inf, -math.inf
    state.blank[1], state.blank[2] = state.token[1], state.token[2] + 1e-3
    state.blank[3, :4] = state.token[3, :4] + torch.tensor([17.9999, 18.0, 18.0001, 30.0])
    pairs = zip(state.blank.flatten().numpy(), state.token.flatten().numpy(), strict=True)
    assert [float(log_add(a, b)) for a, b in pairs] == pytest.approx(state.acoustic.flatten().tolist())


def best() -> None:
    from sottovoce.decoding.ctc.kernel.candidates import candidate_of, clear, new_candidates, offer, sort

    generator = torch.Generator().manual_seed(1)
    for beam_size, threshold in ((1, None), (7, None), (7, 1.5), (40, 4.0), (200, None)):
        plain = PrefixSearch(V, BLANK, beam_size, beam_threshold=threshold)
        scores = 3 * torch.randn(1, beam_size * V, generator=generator)
        scores[0, ::9] = -math.inf
        choice = plain._choose(scores[:, :beam_size], scores[:, beam_size:])
        n_alive = int(choice.alive.sum())
        found = new_candidates(beam_size)
        for _ in range(2):  # what was there before is forgotten
            clear(found, np.inf if threshold is None else threshold)
            for place, score in enumerate(scores[0].numpy()):
                offer(found, score, place % beam_size, place, 0, score)
        sort(found)
        head = found.head[0]
        ranked = found.list[[candidate_of(key) for key in found.order[: head["count"]]]]
        ranked = ranked[ranked["score"] >= head["best"] - np.float32(threshold or np.inf)]
        places = torch.where(choice.stays, choice.source, choice.extension + beam_size)
        assert ranked["token"].tolist() == places[0, :n_alive].tolist()


def arcs() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import arc_of, child_of, score_arc

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


def histories() -> None:
    for scorer in (None, fusion(SEPARATOR), fusion(None)):
        rows, lengths = torch.stack([emissions(9, V, seed) for seed in range(4)]), torch.tensor([9, 3, 1, 7])
        found = []
        for search in searches(scorer):
            state = search.start(4, torch.device("cpu"))
            for chunk, counts in (
                (rows[:, :4], lengths.clamp(max=4)),
                (rows[:, 4:], (lengths - 4).clamp(min=0)),
            ):
                search.run(state, chunk, counts, 0)
            alive = state.is_alive
            n_places = int(state.length.max()) + 1
            inside = (torch.arange(n_places) <= state.length[..., None]) & alive[..., None]
            said = state.symbols[:, :, :n_places].masked_fill(~inside, -1)
            found.append((said, state.is_prefix & alive[:, :, None], state.scores * alive[..., None], alive))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        assert int(found[0][0].max()) > 0


def left_out() -> None:
    """Of whole utterances, and in chunks, so that what is kept of homophones is carried on."""
    scorer = fusion(SEPARATOR)
    named = Labels(tuple("-abc|"), BLANK, SEPARATOR)
    rows = torch.stack([emissions(12, V, seed) for seed in range(4)])
    for n_best, chunk in itertools.product((1, 2), (12, 5)):
        lists = []
        for engine in ("compiled", "tensors"):
            options = CtcOptions(beam_size=6, n_best=n_best, engine=engine)  # type: ignore[arg-type]
            decoder = EmissionDecoder(named, options, scorer=scorer, lexicon=scorer.words)
            state = decoder.start(4)
            for part in rows.split(chunk, dim=1):
                decoder.decode_chunk(state, part)
            lists.append(decoder.finish(state))
        assert not differences(*lists)
        for ours, theirs in zip(*lists, strict=True):
            assert [h.posterior for h in ours] == pytest.approx([h.posterior for h in theirs], rel=1e-3)


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
    for around in blanks():
        theirs = align(rows, lengths, labels, counts, rows=of, blank=around)
        ours = compiled.align(rows, lengths, labels, counts, rows=of, blank=around)
        torch.testing.assert_close(ours.score, theirs.score, atol=1e-4, rtol=0)
        assert torch.equal(ours.first[inside], theirs.first[inside])
    impossible_paths()


def blanks() -> list[torch.Tensor]:
    """Labels (9, 5) of the blanks around those of `said`: all blank, and separators among them."""
    some = torch.randint(0, 2, (9, 5), generator=torch.Generator().manual_seed(3))
    return [torch.full((9, 5), BLANK), torch.where(some == 1, SEPARATOR, BLANK)]


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
        for n_shared, around in itertools.product(range(5), blanks()):
            for is_late in (False, True):
                ours = compiled.common_cut(
                    frames, labels, counts, n_shared=n_shared, is_late=is_late, blank=around
                )
                assert ours == plain.common_cut(
                    frames, labels, counts, n_shared=n_shared, is_late=is_late, blank=around
                )
    said_by_none = labels[:1], torch.tensor([4])
    for search in (plain, compiled):
        assert search.common_cut(frames[:2], *said_by_none, n_shared=0, is_late=True, blank=BLANK) == (0, 0)


def words_of_labels() -> None:
    """With room for all readings, and for few."""
    sequences = [(1, 2, 2, 1, 2), (), (2, 3, 3), (1, 2, 3, 2), (1, 1)]
    said = [(1, 2, SEPARATOR, 2), (2, SEPARATOR, 1, 2, 3, SEPARATOR), (), (3, 3, 2), (SEPARATOR,)]
    for separator, unknown in itertools.product((SEPARATOR, None), (False, True)):
        plain, compiled = searches(fusion(separator, unknown=unknown))
        given = sequences if separator is None else [*said, *sequences]
        for most in (1, 3, 200):
            ours = compiled.readings(given, most, torch.device("cpu"))
            theirs = plain.readings(given, most, torch.device("cpu"))
            for found, expected in zip(ours, theirs, strict=True):
                assert [one.score for one in found] == pytest.approx(
                    [one.score for one in expected], abs=1e-4
                )
                assert {one[:2] for one in found} == {one[:2] for one in expected}


COMPARISONS: dict[str, Callable[[], None]] = {
    "log-probabilities beyond doubt": plausible,
    "labels to extend by": ranked,
    "labels after the likeliest": others,
    "all paths of a prefix": sums,
    "the best candidates": best,
    "arcs of a label": arcs,
    "arcs of the lexicon": model_rules.lexicon_arcs,
    "looking an arc up": model_rules.found_arcs,
    "a step that may back off": model_rules.backed_off,
    "a word boundary scored implicitly": model_rules.silently,
    "a model's weight": model_rules.weights,
    "models over labels": model_rules.label_models,
    "a word that ends": model_rules.ended_words,
    "a model behind a callback": model_rules.answers,
    "endings of a state": endings,
    "a frame": frames,
    "histories, and their prefixes": histories,
    "homophones that are pruned": left_out,
    "words of given labels": words_of_labels,
    "the likeliest path": paths,
    "the cut of the common prefix": cuts,
}


def table() -> dict[str, tuple[str, str]]:
    rows = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return {row["rule"].strip(): (row["tensors"], row["compiled"]) for row in rows}


def compiled_functions() -> set[str]:
    """Names below `sottovoce` of all functions in the compiled search that others may call."""
    return {
        f"decoding.ctc.kernel.{path.stem}.{node.name}"
        for path in KERNEL.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def alone() -> list[str]:
    """The compiled functions that the page names as parts of others, or as having no twin."""
    rows = ALONE.finditer(PAGE.read_text(encoding="utf-8"))
    return [f"decoding.ctc.kernel.{name}" for row in rows for name in re.findall(r"`([\w.]+)`", row[1])]


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


def test_every_compiled_function_is_on_the_page_once() -> None:
    """In a row beside its twin, or among those that have none."""
    named = Counter([*(compiled for _, compiled in table().values()), *alone()])
    missing = {name for name in compiled_functions() if not named[name]}
    assert not missing
    assert not [name for name, n in named.items() if n > 1 or not find(name)]


@pytest.mark.parametrize("rule", COMPARISONS)
def test_both_say_the_same(rule: str) -> None:
    assert all(callable(one) or isinstance(one, property) for one in map(find, table()[rule]))
    COMPARISONS[rule]()
