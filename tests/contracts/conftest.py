from __future__ import annotations

import pytest

from tests.contracts.subjects import NAMES, Subject, subject_of


@pytest.fixture(scope="session", params=NAMES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return subject_of(request.param)
