"""Runs the tests of a module twice: with the search in tensors, and with the native one alone."""

from __future__ import annotations

import pytest
import torch

from sottovoce.ctc import decoder
from sottovoce.ctc.native import choose_engine
from sottovoce.ctc.search import PrefixSearch


@pytest.fixture(params=["native", "tensors"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen: str = request.param
    if chosen == "native":
        pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")

        def refuse(*_: object) -> None:
            raise AssertionError("the native search handed over to the one in tensors")

        monkeypatch.setattr(PrefixSearch, "run", refuse)

    def choose(search: PrefixSearch, _: object, device: torch.device) -> PrefixSearch:
        return choose_engine(search, chosen, device)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "choose_engine", choose)
    return chosen
