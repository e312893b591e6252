"""A transcription leaves the threads of PyTorch unchanged."""

from __future__ import annotations

import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sottovoce.runtime.calls import DirectRuntime, RunOnHost
from sottovoce.threads import all_torch_threads, n_threads, one_torch_thread
from tests.runtime.fake import FakeBackend, Script

MAY_SET = sys.platform == "linux" and "MKL" in torch.__config__.parallel_info()
pytestmark = pytest.mark.skipif(not MAY_SET, reason="PyTorch's OpenMP and MKL are not reachable here")


class KernelBackend(FakeBackend):
    """A backend whose work is done by threads of its own."""

    def __init__(self, hear: Script) -> None:
        super().__init__(hear)
        self.own_threads = True


def in_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.fixture
def three_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_operators_of_this_thread_alone_run_on_one_thread() -> None:
    with one_torch_thread():
        assert (torch.get_num_threads(), n_threads(), in_a_new_thread()) == (1, 3, 3)
        with all_torch_threads():
            assert (torch.get_num_threads(), n_threads()) == (3, 3)
            with one_torch_thread():
                assert (torch.get_num_threads(), n_threads()) == (1, 3)
        with pytest.raises(ZeroDivisionError), all_torch_threads():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 1
    assert (torch.get_num_threads(), n_threads()) == (3, 3)


@pytest.mark.usefixtures("three_threads")
def test_kernels_have_the_cores_while_they_work() -> None:
    def of(backend: FakeBackend) -> list[int]:
        runtime = DirectRuntime(backend)
        with runtime.torch_threads():
            return [torch.get_num_threads(), runtime.run(RunOnHost(torch.get_num_threads))]

    assert of(KernelBackend(Script())) == [1, 3]
    assert of(FakeBackend(Script())) == [3, 3]
    assert torch.get_num_threads() == 3
