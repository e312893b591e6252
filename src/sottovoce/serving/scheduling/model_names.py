"""Ids of models that clients of other servers send, and the models of this server that they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sottovoce.models.sources.names import REPOSITORIES, published_repository
from sottovoce.serving.settings import ModelSettings

HOSTED = re.compile(
    r"whisper(-1)?"
    r"|gpt-[a-z0-9.-]{0,40}(transcribe|whisper|realtime|audio)[a-z0-9.-]{0,40}"
    r"|(nova|enhanced|flux)(-[a-z0-9-]{0,40})?|base-[a-z0-9-]{1,40}"
)
"""Models of OpenAI's and Deepgram's services, whose weights nobody else has."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model of this server that a client's id means. is_stand_in: the id names other weights."""

    name: str
    is_stand_in: bool = False


def resolve_model_id(requested: str, settings: ModelSettings) -> ResolvedModel | None:
    """Return the model that an id means; None: none of this server.

    In this order: a name or alias of the server; the same published weights by another program's id; for an
    English-only model the multilingual one of its size; for a model of a hosted service, and for weights by
    another program's id that are not here, the default model. A name of published weights as this library
    has it (`large-v3`) never means other weights.
    """
    known = dict.fromkeys(settings.names) | settings.all_aliases
    by_case = {name.lower(): name for name in reversed(known)}
    exact = requested if requested in known else by_case.get(requested.lower())
    if exact is not None:
        return ResolvedModel(known[exact] or exact)
    here = {published_repository(name): name for name in reversed(settings.names)}
    weights = published_repository(requested)
    if weights is not None and weights in here:
        return ResolvedModel(here[weights])
    if weights is not None and (multilingual := weights.removesuffix(".en")) in here:
        return ResolvedModel(here[multilingual], is_stand_in=True)
    is_hosted = HOSTED.fullmatch(requested.lower().rpartition("/")[2]) is not None
    if is_hosted or (weights is not None and requested.lower() not in REPOSITORIES):
        return ResolvedModel(settings.model, is_stand_in=weights is not None)
    return None
