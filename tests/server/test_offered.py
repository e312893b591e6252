"""What is said of models that are not in memory: which languages they speak."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import httpx
import pytest

from sottovoce.api import Model
from sottovoce.models.checkpoint.compact import compact_languages
from sottovoce.server.apis.wyoming import info_document
from sottovoce.server.models import ModelRegistry, expected_languages
from sottovoce.server.scheduler import Scheduler
from sottovoce.server.services import Services
from sottovoce.server.settings import ModelSettings
from sottovoce.server.telemetry import Metrics
from tests.server.servers import ServerThread, SlowModel, settings

MODELS = ModelSettings("nano", others=("base", "tiny.en"), preload=False, unload_s=0.0)


def registry_of(models: ModelSettings) -> ModelRegistry:
    return ModelRegistry(models, lambda name: cast(Model, SlowModel()), lambda model: Scheduler(model))


def described(registry: ModelRegistry) -> dict[str, list[str]]:
    document = info_document(Services(settings(models=registry.settings), registry, Metrics()))
    (program,) = cast("list[dict[str, list[dict[str, list[str]]]]]", document["asr"])
    return {str(model["name"]): model["languages"] for model in program["models"]}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(settings(models=MODELS), lambda name: cast(Model, SlowModel())) as running:
        yield running


def test_models_that_are_not_loaded_speak_what_whisper_speaks(server: ServerThread) -> None:
    listed = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    languages = {model["id"]: model["languages"] for model in listed}
    assert len(languages["base"]) == 99
    assert {"en", "de", "fi", "ja"} <= set(languages["base"])
    assert languages["tiny.en"] == ["en"]
    assert languages["whisper-1"] == languages["nano"]
    assert languages["nano"][0] == "en"
    assert described(server.services.registry) == {name: languages[name] for name in MODELS.names}


def test_languages_are_remembered_when_a_model_is_put_away() -> None:
    registry = registry_of(MODELS)

    async def use_once() -> None:
        async with registry.use("base"):
            pass

    asyncio.run(use_once())
    registry.unload_idle()
    assert "base" not in registry.running
    assert described(registry)["base"] == ["en", "de"]


def test_what_names_promise(nano: Model) -> None:
    assert expected_languages("nano") == compact_languages() == nano.languages
    assert expected_languages("distil-small.en") == expected_languages("ggml-tiny.en-q5_1.bin") == ("en",)
    assert "yue" in expected_languages("large-v3-turbo")
    assert "yue" not in expected_languages("large-v2")
