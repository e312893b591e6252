"""The server on a Ray cluster: replicas behind Ray's proxies.

A removed replica ends with its last connection or after ten minutes.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from sottovoce.archive.ray_cluster import connect, import_ray
from sottovoce.errors import OptionError
from sottovoce.options.replicas import Replicas
from sottovoce.recogniser import Recogniser
from sottovoce.server.app import make_app
from sottovoce.server.settings import ServerSettings
from sottovoce.server.telemetry import log_as_json

if TYPE_CHECKING:
    from ray.serve import Deployment

NAME = "sottovoce"
_NAMED = re.compile(r"[\w.]*Error: (?P<what>.+)")
EXTRA_REQUESTS = 16
MORE_AFTER_S, FEWER_AFTER_S = 30.0, 600.0
MAX_QUEUED = 256


@contextmanager
def serving_on_ray(
    settings: ServerSettings, open_model: Callable[[str], Recogniser], replicas: Replicas
) -> Iterator[None]:
    """Deploy the app, which then answers at its address on every machine of the cluster.

    open_model: called in the replicas. Raises: MissingExtraError, OptionError.
    """
    serve = import_ray("ray.serve")
    connect(None)
    key = settings.access.secret_key or secrets.token_bytes()
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
    serve: ModuleType, settings: ServerSettings, open_model: Callable[[str], Recogniser], replicas: Replicas
) -> Deployment:
    def build() -> Starlette:
        log_as_json(logging.INFO)
        opened = {name: open_model(name) for name in settings.models.at_start}
        return make_app(settings, lambda name: opened.get(name) or open_model(name))

    limits = settings.limits
    deployment: Deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        max_ongoing_requests=limits.sessions + limits.requests + EXTRA_REQUESTS,
        max_queued_requests=MAX_QUEUED,
        autoscaling_config={
            "min_replicas": replicas.n_min,
            "max_replicas": replicas.n_max,
            "target_ongoing_requests": 8,
            "upscale_delay_s": MORE_AFTER_S,
            "downscale_delay_s": FEWER_AFTER_S,
        },
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        graceful_shutdown_timeout_s=600.0,
    )
    return deployment


def reason(texts: Sequence[str]) -> str:
    """Return the last line of texts and tracebacks that names an error, without the name."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    named = [match["what"] for line in lines if (match := _NAMED.match(line))]
    return (named or lines or ["no reason given"])[-1][:300]
