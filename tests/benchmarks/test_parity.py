"""The benchmark of parity explains differences, of which there may be none when it is changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.files.parity import Decoded, Sides, explain
from sottovoce.api import Model
from sottovoce.types import Features


@pytest.mark.parametrize("greedy", [True, False])
def test_a_difference_of_equal_networks_is_explained(model: Model, greedy: bool) -> None:
    encoded = model.backend.encode(Features(np.zeros((1, 80, 100), np.float32), (100,)))

    def logits(tokens: Tensor, _: object) -> Tensor:
        rows = model.backend.rows()
        rows.admit(encoded)
        step = rows.step(tokens.tolist(), [range(tokens.shape[1])])
        return torch.from_numpy(step.logits)[None]

    reference: Any = SimpleNamespace(logits=logits)
    sides = Sides(model.backend, reference, encoded, torch.zeros(0))
    start = model.tokenizer.timestamp_begin
    decoded = Decoded((start, 100, 101), (start, 100, 102), greedy)
    tokenizer = model.tokenizer.with_language("en")
    assert explain(sides, tokenizer, decoded).endswith("noise 0.0e+00")
