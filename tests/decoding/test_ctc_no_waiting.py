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
from sottovoce.decoding.ctc.search_options import CtcOptions
from tests.decoding.test_ctc_engines import LABELS, random_arpa, spellings

META = torch.device("meta")
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
    search = copy.deepcopy(decoder._decoder._search)
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
