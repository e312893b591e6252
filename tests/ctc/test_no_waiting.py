"""The frame loop in tensors never waits for a device: it runs where there are shapes and no values.

On the "meta" device reading a value (`.item()`, `.tolist()`, a tensor in an `if`) or making a tensor whose
size depends on values (`nonzero`, a boolean index) is an error. What it does not notice, a tensor
that would be copied to the device first, is looked for among the operations.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.align import align
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import BLOCK_FRAMES, PrefixSearch
from sottovoce.lm.fusion import ShallowFusion, WordFusion, WordModel
from sottovoce.lm.lexicon import Lexicon
from tests.ctc.enumeration import RandomBigram
from tests.ctc.test_engines import LABELS, random_arpa, spellings, uncertain

META = torch.device("meta")
N_BATCH, N_BEAMS, N_FRAMES = 4, 16, 2 * BLOCK_FRAMES
FUSIONS = {
    "no language model": {},
    "hotwords": {"hotwords": {"bad": 3.0, "ab bad": 4.0}},
    "word n-gram": {"lm": True},
    "lexicon, n-gram and hotwords": {"lm": True, "lexicon": spellings(homophones=True), "hotwords": ["cab"]},
    "lexicon with unknown words": {"lm": True, "lexicon": spellings(homophones=False), "unknown_words": True},
}


class NothingOfTheHost(TorchDispatchMode):
    """Refuses operations that read or make tensors elsewhere than on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for part in tree_leaves((args, kwargs or {}, made)):
            if isinstance(part, torch.Tensor) and part.device != META:
                raise AssertionError(f"{func}: expected tensors of the device, got one of {part.device}")
        return made


@pytest.mark.parametrize(
    ("name", "separated"),
    [*((name, True) for name in FUSIONS), *((name, False) for name in FUSIONS if "lexicon" in name)],
)
@pytest.mark.parametrize("options", [{}, {"beam_threshold": 5.0, "top_tokens": 3}], ids=["plain", "pruned"])
def test_frames_are_stepped_without_values(
    name: str,
    separated: bool,
    options: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = dict(FUSIONS[name])
    labels = LABELS if separated else [*LABELS[:-1], "f"]
    if given.get("lm"):
        given["lm"] = tmp_path / "words.arpa"
        given["lm"].write_text(random_arpa())
    decoder = CtcDecoder(
        labels,
        0,
        beam_size=5,
        fusion=CtcFusionOptions(word_score=0.5),
        options=CtcOptions(engine="tensors", **options),  # type: ignore[arg-type]
        **given,
    )
    # The decoder without its values: every tensor in it becomes one of that device.
    monkeypatch.setattr(torch.Tensor, "__deepcopy__", lambda tensor, memo: tensor.to(META))
    search = copy.deepcopy(decoder._search)
    state = search.start(3, META)
    assert state.scores.device == META
    emissions = torch.empty((3, 40, len(labels)), device=META)
    lengths = torch.empty(3, dtype=torch.int64, device=META)
    with NothingOfTheHost():
        search.run(state, emissions, lengths, 20)
    assert state.n_steps == 40


def test_reading_a_value_would_be_noticed() -> None:
    values = torch.zeros(3, device=META)
    for read in (lambda: bool(values[0]), values.tolist, values.nonzero, lambda: values[values > 0]):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read()


def test_a_tensor_of_the_host_would_be_noticed() -> None:
    values = torch.zeros(3, device=META)
    with NothingOfTheHost(), pytest.raises(AssertionError, match="got one of cpu"):
        torch.where(values > 0, values, torch.tensor(1.0))


def test_alignment_reads_no_values() -> None:
    """Times are told without waiting at every frame."""
    log_probs, lengths = torch.empty((3, 40, 6), device=META), torch.empty(3, dtype=torch.int64, device=META)
    tokens, n_tokens = torch.empty((5, 9), dtype=torch.int64, device=META), lengths.new_empty(5)
    with NothingOfTheHost():
        spans = align(log_probs, lengths, tokens, n_tokens, rows=n_tokens, blank=0)
    assert spans.first.shape == spans.peak.shape == (5, 9)


def test_a_lexicon_without_models_lies_on_the_device_of_its_tree() -> None:
    lexicon = Lexicon(list(enumerate_words()), len(LABELS), separator=LABELS.index("|"), allow_unknown=True)
    fusion = WordFusion(lexicon.to(META), word_score=0.5, unknown_score=-1.0)
    states = fusion.start(4, META)
    with NothingOfTheHost():
        arcs = fusion.arcs(states, torch.empty((4, 3), dtype=torch.int64, device=META))
    assert arcs.scores.device == META


def enumerate_words() -> list[tuple[str, tuple[int, ...]]]:
    return [(word, tuple(LABELS.index(letter) for letter in word)) for word in ("ab", "bad", "cab")]


class OnTheHost(RandomBigram):
    """A model that runs on the CPU whatever the device of the search, as KenLM and neural ones do."""


def test_models_of_the_host_start_on_the_device_of_the_search() -> None:
    words = enumerate_words()
    lexicon = Lexicon(words, len(LABELS), separator=LABELS.index("|")).to(META)
    spoken = WordModel(OnTheHost(len(words), 1), torch.arange(len(words)), 0.5)
    beside = ShallowFusion([OnTheHost(len(LABELS), 2), OnTheHost(len(LABELS), 3)], [0.3, 0.2])
    assert beside.start(2, META).device == META
    assert WordFusion(lexicon, [spoken], tokens=beside).start(2, META).device == META


@pytest.mark.parametrize("n_words", [1, 2])
def test_the_separator_alone_is_scored(n_words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words end under one token: a model is asked for that one's arcs, and what comes out is the same."""
    words = [*enumerate_words(), *([("bat", (2, 1, 4))] if n_words > 1 else [])]
    separator = LABELS.index("|")
    lexicon = Lexicon(words, len(LABELS), separator=separator, allow_unknown=True)
    model = CountingBigram(len(lexicon.words), 1)
    fusion = WordFusion(lexicon, [WordModel(model, torch.arange(len(lexicon.words)), 0.5)], word_score=0.3)
    states = torch.stack((torch.arange(30) % lexicon.n_nodes, torch.arange(30) % len(lexicon.words)), dim=1)
    tokens = torch.stack([torch.randperm(len(LABELS) - 1)[:3] + 1 for _ in range(30)])
    expected = fusion.arcs(states, tokens)
    monkeypatch.setattr(WordFusion, "_may_wait", staticmethod(lambda device: False))
    model.n_cached = 0
    found = fusion.arcs(states, tokens)
    assert model.n_cached == 30 * lexicon.n_arcs, "one column of three"
    torch.testing.assert_close(found.scores, expected.scores)
    exists = torch.isfinite(expected.scores)
    assert torch.equal(found.states[exists], expected.states[exists])


class CountingBigram(RandomBigram):
    n_cached = 0

    def score(
        self, states: torch.Tensor, tokens: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.n_cached += 0 if tokens is None else len(tokens)
        return super().score(states, tokens)


def test_of_very_many_labels_the_likeliest_are_looked_at() -> None:
    """A frame of 5,000 labels, batch 64 and beam 100 would be 26 GB otherwise."""
    fusion = ShallowFusion([RandomBigram(1500, 1)], [0.5])
    assert PrefixSearch(1500, 0, 100, scorer=fusion).n_tokens == 128
    assert PrefixSearch(1500, 0, 100, scorer=fusion, top_tokens=1499).n_tokens == 1499
    assert PrefixSearch(1024, 0, 100, scorer=ShallowFusion([RandomBigram(1024, 1)], [0.5])).n_tokens == 1023


class Written(TorchDispatchMode):
    """Counts the bytes of what operations make or write, views aside."""

    n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        returned = func._schema.returns
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returned)
        parts = [] if is_view else [part for part in tree_leaves(made) if isinstance(part, torch.Tensor)]
        self.n_bytes += sum(part.numel() * part.element_size() for part in parts)
        return made


def n_written(n_places: int) -> int:
    """Bytes that the search writes in two blocks of frames, with histories of so many places."""
    search = PrefixSearch(32, 0, N_BEAMS)
    state = search.start(N_BATCH, META)
    state.reserve(n_places - 1)
    emissions = torch.empty((N_BATCH, N_FRAMES, 32), device=META)
    lengths = torch.empty(N_BATCH, dtype=torch.int64, device=META)
    with Written() as written:
        search.run(state, emissions, lengths, N_FRAMES)
    return written.n_bytes


def test_long_histories_are_copied_once_a_block() -> None:
    more = n_written(2048) - n_written(1024)
    n_bytes = N_BATCH * N_BEAMS * 1024 * 8  # of that much more history
    per_block = more / (N_FRAMES // BLOCK_FRAMES) / n_bytes
    assert per_block < 5, "a few copies of each history a block, not one or more a frame"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", FUSIONS)
def test_cuda_equals_cpu(name: str, tmp_path: Path) -> None:
    given = dict(FUSIONS[name])
    if given.get("lm"):
        given["lm"] = tmp_path / "words.arpa"
        given["lm"].write_text(random_arpa())
    log_probs = torch.stack([uncertain(70, row) for row in range(5)])
    lengths = torch.tensor([70, 31, 0, 12, 70])
    options = CtcOptions(beam_size=12, n_best=3, engine="tensors")
    on_cpu, on_cuda = (
        CtcDecoder(LABELS, 0, options=options, device=device, **given).decode(log_probs, lengths)
        for device in ("cpu", "cuda")
    )
    for ours, theirs in zip(on_cuda, on_cpu, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], rel=1e-4)
