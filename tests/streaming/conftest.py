from __future__ import annotations

import pytest

from sottovoce.api import Model, load_model


@pytest.fixture(scope="session")
def model() -> Model:
    return load_model("nano", device="cpu", dtype="float32")
