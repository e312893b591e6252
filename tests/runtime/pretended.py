"""A device that is not there, for tests of what an accelerator would be asked to do.

Tensors "on" it wrap tensors of the host, so it computes what the host computes. Computing with tensors of
both raises an error. Operators, host reads, copies and allocations are counted by the line that caused them.
Functions can be recorded as by a CUDA graph: the operators run again on the same tensors, whatever Python
does.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

import pytest
import torch
from torch import Tensor, library
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
"""PyTorch runs nothing on it, so that a forgotten tensor is noticed."""
READS = (
    "_local_scalar_dense",
    "nonzero",
    "equal",
    "is_nonzero",
    "masked_select",
    "unique",
    "repeat_interleave",
)
SOURCE = "src/sottovoce/"


class On(Tensor):
    """A tensor on the device; elem: the host's."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> On:
        created: On = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=DEVICE,
        )
        created.elem = elem
        return created

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert _active is not None, "a tensor of the device was used outside of it"
        return _active.run(func, args, kwargs or {})

    def tolist(self) -> object:
        return self.cpu().tolist()

    def item(self) -> object:
        return self.cpu().item()

    def numpy(self, *, force: bool = False) -> object:
        raise RuntimeError(f"numpy() of a tensor on the device at {_site()}")

    __int__ = lambda self: int(self.item())  # noqa: E731
    __float__ = lambda self: float(self.item())  # noqa: E731
    __bool__ = lambda self: bool(self.item())  # noqa: E731
    __index__ = lambda self: int(self.item())  # noqa: E731

    def __repr__(self, **_: object) -> str:
        return f"On({self.elem})"


@library.custom_op("pretended::attention", mutates_args=())
def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """One operator, as on a card; PyTorch splits it on devices that it does not know."""
    return _fused(query, key, value, attn_mask=attn_mask, is_causal=is_causal).contiguous()


_fused = torch.nn.functional.scaled_dot_product_attention
_active: PretendedDevice | None = None


def _site() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if SOURCE in name:
            return f"{name.split(SOURCE)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside"


@dataclass
class Counts:
    """By name and line: operators but views, reads by the host, copies to the device, and new tensors."""

    operators: Counter[str] = field(default_factory=Counter)
    views: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    allocations: Counter[str] = field(default_factory=Counter)


class InThread(TorchDispatchMode):
    """The device in another thread, as a context."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return self._device.run(func, args, kwargs or {})


class PretendedDevice(TorchDispatchMode):
    """The device, as a context."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.recorded: list[Recorded] = []
        self._in_thread = threading.local()
        """With the function that a thread records."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return self.run(func, args, kwargs or {})

    def run(self, func, args, kwargs):  # type: ignore[no-untyped-def]
        name, site = func._schema.name.split("::")[1], _site()
        tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        on = [tensor for tensor in tensors if isinstance(tensor, On)]
        host = [tensor for tensor in tensors if not isinstance(tensor, On) and tensor.dim() > 0]
        given = kwargs.get("device")
        to_device = None if given is None else torch.device(given).type == DEVICE.type
        is_copy = name in ("_to_copy", "copy_")
        if on and host and not is_copy:
            raise RuntimeError(
                f"{name} of tensors on both devices at {site}: {[tuple(tensor.shape) for tensor in host]}"
            )
        stays = bool(on) if to_device is None else to_device
        if name == "copy_":
            stays = isinstance(args[0], On)
        if on and (name in READS or (is_copy and not stays) or _masks(name, args)):
            self.counts.reads[f"{name} {site}"] += 1
        if stays and is_copy and not isinstance(args[1 if name == "copy_" else 0], On):
            self.counts.copies[f"{name} {site}"] += 1
        kwargs = dict(kwargs) | ({"device": torch.device("cpu")} if given is not None else {})
        plain_args, plain_kwargs = tree_map(
            lambda tensor: tensor.elem if isinstance(tensor, On) else tensor, (args, kwargs)
        )
        result = func(*plain_args, **plain_kwargs)
        if not stays:
            return result
        kind = _kind(func, result, plain_args, plain_kwargs)
        (self.counts.views if kind == "view" else self.counts.operators)[f"{name} {site}"] += 1
        recording: Recorded | None = getattr(self._in_thread, "recording", None)
        if recording is not None:
            recording.add(func, plain_args, plain_kwargs, result, kind, f"{name} {site}")
        elif kind == "new":
            self.counts.allocations[f"{name} {site}"] += 1
        if kind == "in place":
            return args[0] if func._schema.returns else None
        return tree_map(lambda tensor: On(tensor) if isinstance(tensor, Tensor) else tensor, result)

    def record(self, function: Callable[[], Sequence[Tensor]]) -> Callable[[], Sequence[Tensor]]:
        """Record the operators of a function, as `runtime.graphs.Record`."""
        self._in_thread.recording = recorded = Recorded()
        try:
            outputs = function()
        finally:
            self._in_thread.recording = None
        self.recorded.append(recorded)

        def replay() -> Sequence[Tensor]:
            recorded.replay()
            return outputs

        return replay

    def __enter__(self) -> PretendedDevice:
        global _active
        _active = self
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active
        super().__exit__(kind, error, trace)
        _active = None


def _masks(name: str, args: Sequence[object]) -> bool:
    """Whether an index is a mask, whose number of places the host must read."""
    if (
        not name.startswith(("index", "_index_put"))
        or len(args) < 2
        or not isinstance(args[1], (list, tuple))
    ):
        return False
    return any(isinstance(arg, Tensor) and arg.dtype == torch.bool for arg in args[1])


def _kind(func: torch._ops.OpOverload, result: object, args: object, kwargs: object) -> str:
    if func._schema.is_mutable:
        return "in place"
    if all(item.numel() == 0 for item in tree_leaves(result) if isinstance(item, Tensor)):
        return "view"  # nothing is allocated for it
    given = {
        item.untyped_storage().data_ptr() for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)
    }
    created = {item.untyped_storage().data_ptr() for item in tree_leaves(result) if isinstance(item, Tensor)}
    return "view" if created & given else "new"


@dataclass
class Recorded:
    """The operators of a recorded function, with the tensors of the host that they used and made."""

    calls: list[tuple[Callable[..., object], object, object, object]] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def add(  # type: ignore[no-untyped-def]
        self, func, args: object, kwargs: object, result: object, kind: str, name: str
    ) -> None:
        if kind != "view":
            self.names[name] += 1
            self.calls.append((func, args, kwargs, result if kind == "new" else None))

    def replay(self) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)  # type: ignore[misc]
                if result is not None:
                    for into, value in zip(tree_leaves(result), tree_leaves(again), strict=True):
                        if isinstance(into, Tensor):
                            into.copy_(value)


@contextmanager
def pretended_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """Make the device, on which inference mode, which knows no wrapped tensors, is `no_grad`."""
    entered: dict[int, list[torch.no_grad]] = defaultdict(list)

    def enter(self: torch.inference_mode) -> None:
        owned = entered[threading.get_ident()]
        owned.append(torch.no_grad())
        owned[-1].__enter__()

    def leave(self: torch.inference_mode, *error: object) -> None:
        entered[threading.get_ident()].pop().__exit__(None, None, None)

    created = torch.tensor

    def tensor(
        data: object, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        return created(data, dtype=dtype).to(device or "cpu")  # PyTorch would make it past the mode

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", _attention)
    monkeypatch.setattr(torch.inference_mode, "__enter__", enter)
    monkeypatch.setattr(torch.inference_mode, "__exit__", leave)
    with PretendedDevice() as device:
        yield device
