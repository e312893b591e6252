"""CTC networks in a runtime: the call that computes emissions, and the backend that it needs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

from sottovoce.ctc.network import AcousticModel
from sottovoce.models.backend import Backend
from sottovoce.models.devices import Device
from sottovoce.runtime.calls import DirectRuntime, ModelCall
from sottovoce.types import Floats, Samples

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True, eq=False)
class EmissionsCall(ModelCall[list[Floats]]):
    """Compute the emissions (T, V) of windows of samples, as `AcousticModel.emissions`."""

    network: AcousticModel
    windows: Sequence[Samples]

    @property
    def batch_key(self) -> Hashable:
        return id(self.network)

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[Floats]]:
        rows = iter(calls[0].network.emissions([window for call in calls for window in call.windows]))
        return [list(islice(rows, len(call.windows))) for call in calls]


@dataclass(frozen=True, slots=True)
class NetworkBackend:
    """What a runtime asks of a backend whose only calls are `EmissionsCall` and `RunOnHost`."""

    device: Device
    own_threads: bool = False
    runtime: str = "a CTC network"


def network_runtime(device: str = "cpu") -> DirectRuntime:
    """Return the runtime of a CTC network."""
    return DirectRuntime(cast(Backend, NetworkBackend(Device(device))))
