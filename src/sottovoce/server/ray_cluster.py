"""The server on a Ray cluster: replicas behind Ray's proxies, and the transcription of an archive.

A removed replica ends with its last connection or after `DRAIN_S`. Ray Data repeats blocks of actors that
died. Recordings still without a row are tried once more one by one, since one of them may end every process;
then they get a row with an error.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

from starlette.applications import Starlette

from sottovoce.api import Model
from sottovoce.archive.results import BatchOptions, Item, Row, failed_row, transcribe_items
from sottovoce.errors import MissingExtraError, OptionError, SottovoceError
from sottovoce.formats.document import json_text
from sottovoce.server.app import make_app
from sottovoce.server.auth import KEY_BYTES
from sottovoce.server.settings import Replicas, ServerSettings
from sottovoce.server.telemetry import log_as_json

if TYPE_CHECKING:
    from ray.serve import Deployment

MAX_BLOCKS = 10_000
N_RETRIES = 2
FATAL = "fatal"
DIED = "the process that read it ended before it was done, twice"
NAME = "sottovoce"
_NAMED = re.compile(r"[\w.]*Error: (?P<what>.+)")
PLACES_BESIDE = 16
CONNECTIONS = 8
MORE_AFTER_S, FEWER_AFTER_S = 30.0, 600.0
DRAIN_S = 600.0
MAX_QUEUED = 256


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


def parse_range(option: str, text: str) -> tuple[int, int]:
    """Read N or MIN-MAX. Raises: OptionError."""
    least, dash, most = text.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()):
        raise OptionError(f"{option}: expected a number or MIN-MAX, got '{text}'")
    return int(least), int(most) if dash else int(least)


class Block(TypedDict):
    """paths are bytes."""

    id: Sequence[str]
    path: Sequence[bytes]


class TranscribingActor:
    def __init__(self, open_model: Callable[[], Model], batch: BatchOptions) -> None:
        self._open_model = open_model
        self._batch = batch
        self._model: Model | None = None

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
    items: Sequence[Item], open_model: Callable[[], Model], batch: BatchOptions, actors: Replicas
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
    open_model: Callable[[], Model],
    batch: BatchOptions,
    actors: Replicas,
    n_in_block: int,
) -> Iterator[Row]:
    data = import_ray("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    n_blocks = min(math.ceil(len(items) / n_in_block), MAX_BLOCKS)
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
    for found in rows.iter_rows():
        row: Row = json.loads(found["row"])
        if FATAL in row:
            raise OptionError(str(row[FATAL]))
        yield row


@contextmanager
def serving_on_ray(
    settings: ServerSettings,
    open_model: Callable[[str], Model],
    replicas: Replicas,
) -> Iterator[None]:
    """Deploy the app, which then answers at its address on every machine of the cluster.

    open_model: called in the replicas. Raises: MissingExtraError, OptionError.
    """
    serve = import_ray("ray.serve")
    connect(None)
    key = settings.access.secret_key or secrets.token_bytes(KEY_BYTES)
    shared = replace(settings, access=replace(settings.access, secret_key=key))
    listening = settings.listening
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={
                "host": listening.host,
                "port": listening.port,
                "ssl_certfile": listening.certificate,
                "ssl_keyfile": listening.key,
            },
        )
        serve.run(deployment(serve, shared, open_model, replicas).bind(), name=NAME, route_prefix="/")
    except (RuntimeError, ValueError) as error:
        app = serve.status().applications.get(NAME)
        messages = [] if app is None else [app.message, *(part.message for part in app.deployments.values())]
        serve.shutdown()
        why = reason([str(error), *messages])
        raise OptionError(f"--replicas: expected servers that come up, got '{why}'") from error
    try:
        yield
    finally:
        serve.shutdown()


def deployment(
    serve: ModuleType, settings: ServerSettings, open_model: Callable[[str], Model], replicas: Replicas
) -> Deployment:
    def build() -> Starlette:
        log_as_json(logging.INFO)
        opened = {name: open_model(name) for name in settings.models.at_start}
        return make_app(settings, lambda name: opened.get(name) or open_model(name))

    limits = settings.limits
    made: Deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        max_ongoing_requests=limits.sessions + limits.requests + PLACES_BESIDE,
        max_queued_requests=MAX_QUEUED,
        autoscaling_config={
            "min_replicas": replicas.n_min,
            "max_replicas": replicas.n_max,
            "target_ongoing_requests": CONNECTIONS,
            "upscale_delay_s": MORE_AFTER_S,
            "downscale_delay_s": FEWER_AFTER_S,
        },
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        graceful_shutdown_timeout_s=DRAIN_S,
    )
    return made


def reason(texts: Sequence[str]) -> str:
    """Return the last line of texts and tracebacks that names an error, without the name."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    named = [found["what"] for line in lines if (found := _NAMED.match(line))]
    return (named or lines or ["no reason given"])[-1][:300]
