"""Processes of a Ray cluster, and the transcription of an archive on it.

Ray Data repeats blocks of actors that died. Recordings still without a row are tried once more one by one,
since one of them may end every process; then they get a row with an error.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

from sottovoce.archive.results import BatchOptions, Item, Row, failed_row, transcribe_items
from sottovoce.errors import MissingExtraError, OptionError, SottovoceError
from sottovoce.formats.document import json_text
from sottovoce.options.schema import Option, check_options

if TYPE_CHECKING:
    from sottovoce.recogniser import Recogniser


@dataclass(frozen=True, slots=True)
class Replicas:
    """Servers or actors of a Ray cluster. cpus, gpus: of each."""

    n_min: int = 1
    n_max: int = 1
    cpus: float = 1.0
    gpus: float = Option(
        "GPUs for each server; with 0.25, four share one.", key="gpus_per_replica", least=0.0
    ).as_field(0.0)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.cpus > 0:
            raise OptionError(f"processes: expected more than 0 CPUs of each, got {self.cpus:g}")
        if not 1 <= self.n_min <= self.n_max:
            raise OptionError(
                f"processes: expected 1 or more, MIN-MAX in order, got {self.n_min}-{self.n_max}"
            )


def parse_range(option: str, text: str) -> tuple[int, int]:
    """Read N or MIN-MAX. Raises: OptionError."""
    least, dash, most = text.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()):
        raise OptionError(f"{option}: expected a number or MIN-MAX, got '{text}'")
    return int(least), int(most) if dash else int(least)


N_RETRIES = 2
FATAL = "fatal"
DIED = "the process that read it ended before it was done, twice"


def connect(address: str | None) -> None:
    """Join a cluster, or start one on this machine. Raises: MissingExtraError, OptionError."""
    ray = import_ray("ray")
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_worker_niceness", "0")  # they are the job itself
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        where = "RAY_ADDRESS" if address is None else f"--ray-address '{address}'"
        raise OptionError(f"{where}: expected a Ray cluster ({first_line})") from error


def import_ray(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError((error.name or "ray").partition(".")[0], "ray", "a Ray cluster") from error


class Block(TypedDict):
    """paths are bytes."""

    id: Sequence[str]
    path: Sequence[bytes]


class TranscribingActor:
    def __init__(self, open_model: Callable[[], Recogniser], batch: BatchOptions) -> None:
        self._open_model = open_model
        self._batch = batch
        self._model: Recogniser | None = None

    def __call__(self, block: Block) -> dict[str, list[str]]:
        """Return the rows of a block as JSON, or one that ends the job."""
        items = [
            Item(str(name), os.fsdecode(path)) for name, path in zip(block["id"], block["path"], strict=True)
        ]
        try:
            if self._model is None:
                self._model = self._open_model()
            return {"row": [json_text(row) for row in transcribe_items(self._model, items, self._batch)]}
        except SottovoceError as error:  # the model, or wishes that hold for all: no recording could be read
            return {"row": [json_text({FATAL: str(error)})]}


def transcribe_on_ray(
    items: Sequence[Item], open_model: Callable[[], Recogniser], batch: BatchOptions, actors: Replicas
) -> Iterator[Row]:
    """Yield a row for each recording in any order; requires `connect`. Raises: OptionError."""
    left = {item.id: item for item in items}
    model = ""
    for n_in_block in (batch.n_together, 1):
        if not left:
            return
        for row in _round(list(left.values()), open_model, batch, actors, n_in_block):
            if left.pop(str(row["id"]), None) is not None:
                model = str(row["model"])
                yield row
    for item in left.values():
        yield failed_row(item, model, DIED)


def _round(
    items: Sequence[Item],
    open_model: Callable[[], Recogniser],
    batch: BatchOptions,
    actors: Replicas,
    n_in_block: int,
) -> Iterator[Row]:
    data = import_ray("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # A larger archive has larger blocks.
    n_blocks = min(math.ceil(len(items) / n_in_block), 10_000)
    listed = data.from_items(
        [{"id": item.id, "path": os.fsencode(item.path)} for item in items], override_num_blocks=n_blocks
    )
    rows = listed.map_batches(
        TranscribingActor,
        fn_constructor_args=(open_model, batch),
        batch_size=n_in_block,
        batch_format="numpy",
        compute=data.ActorPoolStrategy(
            min_size=min(actors.n_min, n_blocks),
            max_size=min(actors.n_max, n_blocks),
            max_tasks_in_flight_per_actor=2,
        ),
        num_cpus=actors.cpus,
        num_gpus=actors.gpus,
        ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": N_RETRIES},
    )
    for answer in rows.iter_rows():
        row: Row = json.loads(answer["row"])
        if FATAL in row:
            raise OptionError(str(row[FATAL]))
        yield row
