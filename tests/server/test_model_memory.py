"""Several models and the memory for all of them: who goes, who stays, and what is told of them."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import httpx
import pytest
import torch

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.models.dims import ModelDims
from sottovoce.models.load import n_parameters
from sottovoce.server import models
from sottovoce.server.apis.wyoming import info_document
from sottovoce.server.errors import ApiError
from sottovoce.server.models import N_YOUNG, ModelRegistry, free_memory
from sottovoce.server.scheduler import Scheduler
from sottovoce.server.services import Services
from sottovoce.server.settings import ModelSettings, ServerSettings, Work
from sottovoce.server.telemetry import Metrics
from tests.server.conversation import connected, received, refusal
from tests.server.servers import QuietModel, SlowModel, post, serving

NAMES = ("a", "b", "c")


def scheduler_of(model: Model) -> Scheduler:
    return Scheduler(model, Work(forecast=False))


class Loaded:
    """A registry of models that take 100 MB each, and how often each was loaded."""

    def __init__(self, memory_mb: float | None, **sizes_mb: float) -> None:
        self.counts = dict.fromkeys(NAMES, 0)
        self._names: dict[int, str] = {}
        self._sizes_mb = sizes_mb
        models = ModelSettings("a", others=("b", "c"), memory_mb=memory_mb)
        self.registry = ModelRegistry(models, self._open, scheduler_of, self._size)

    def _open(self, name: str) -> Model:
        self.counts[name] += 1
        model = SlowModel()
        self._names[id(model)] = name
        return cast(Model, model)

    def _size(self, model: Model) -> int:
        return round(1e6 * self._sizes_mb.get(self._names[id(model)], 100.0))

    @property
    def now(self) -> set[str]:
        return set(self.registry.running)


@pytest.fixture
def load() -> Iterator[Callable[..., Loaded]]:
    result: list[Loaded] = []

    def make(memory_mb: float | None, **sizes_mb: float) -> Loaded:
        result.append(Loaded(memory_mb, **sizes_mb))
        return result[-1]

    yield make
    for item in result:
        item.registry.close()


async def use(loaded: Loaded, *names: str) -> None:
    for name in names:
        async with loaded.registry.use(name):
            assert name in loaded.now


def test_who_was_not_used_for_longest_goes(load: Callable[..., Loaded]) -> None:
    loaded = load(250.0)
    asyncio.run(use(loaded, "a", "b", "a", "c"))
    assert loaded.now == {"a", "c"}
    asyncio.run(use(loaded, "b"))
    assert loaded.now == {"b", "c"}
    assert loaded.counts == {"a": 1, "b": 2, "c": 1}
    assert loaded.registry.n_bytes <= 250e6


def test_without_a_limit_all_stay(load: Callable[..., Loaded]) -> None:
    loaded = load(None)
    asyncio.run(use(loaded, *NAMES, *NAMES))
    assert loaded.now == set(NAMES)


def test_who_is_in_use_stays_and_the_other_is_told_to_come_again(load: Callable[..., Loaded]) -> None:
    async def run() -> None:
        await use(loaded, *NAMES)  # from now on their sizes are known
        async with loaded.registry.use("a"), loaded.registry.use("b"):
            with pytest.raises(ApiError, match="in use") as refused:
                await use(loaded, "c")
            assert (refused.value.status, refused.value.code) == (503, "model_memory")
            assert refused.value.retry_after >= 1
            assert loaded.now == {"a", "b"}
        await use(loaded, "c")

    loaded = load(250.0)
    asyncio.run(run())
    assert "c" in loaded.now


def test_a_model_has_its_memory_while_it_is_measured(
    load: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        await use(loaded, *NAMES, "c")  # from now on their sizes are known
        is_measured = asyncio.Event()

        async def measure(self: Scheduler) -> None:
            is_measured.set()
            await asyncio.sleep(0.2)

        monkeypatch.setattr(Scheduler, "calibrate", measure)
        loading = asyncio.create_task(use(loaded, "b"))
        await is_measured.wait()
        assert loaded.registry.n_bytes == 240e6
        with pytest.raises(ApiError, match="in use"):
            await use(loaded, "c")
        await loading
        assert loaded.now == {"b"}

    loaded = load(250.0, b=240.0)
    asyncio.run(run())


def test_no_model_is_loaded_before_the_memory_that_others_give_up_is_free(
    load: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another model had it freed: here `a` goes for the first of two that need half of it each."""
    freed: list[bool] = []
    free, open_model = models.free_memory, Loaded._open

    def free_slowly(gone: list[Scheduler]) -> None:
        time.sleep(0.3)
        free(gone)
        freed.append(True)

    def open_when_free(self: Loaded, name: str) -> Model:
        assert freed, f"{name} is loaded while the other model is in memory"
        return open_model(self, name)

    async def run() -> None:
        await use(loaded, "b", "c", "a")
        assert loaded.now == {"a"}
        monkeypatch.setattr(models, "free_memory", free_slowly)
        monkeypatch.setattr(loaded.registry, "_open_model", partial(open_when_free, loaded))
        await asyncio.gather(use(loaded, "b"), use(loaded, "c"))
        assert loaded.now == {"b", "c"}

    loaded = load(250.0, a=200.0)
    asyncio.run(run())


def test_nobody_is_sent_away_for_one_that_fits_in_no_case(load: Callable[..., Loaded]) -> None:
    async def run() -> None:
        await use(loaded, "b", "c")
        await use(loaded, "a")
        assert loaded.now == {"a"}
        with pytest.raises(ApiError, match="expected one that fits") as refused:
            await use(loaded, "b")
        assert refused.value.retry_s is None
        assert loaded.now == {"a"}

    loaded = load(150.0, b=200.0)
    asyncio.run(run())


def test_models_that_are_loaded_together_count_together(load: Callable[..., Loaded]) -> None:
    async def run() -> list[BaseException | None]:
        await use(loaded, *NAMES)
        return await asyncio.gather(*(hold(name) for name in NAMES), return_exceptions=True)

    async def hold(name: str) -> None:
        async with loaded.registry.use(name):
            await asyncio.sleep(0.3)
            assert loaded.registry.n_bytes <= 250e6

    loaded = load(250.0)
    results = asyncio.run(run())
    assert sum(isinstance(result, ApiError) for result in results) == 1
    assert sum(result is None for result in results) == 2


def test_the_weights_of_a_model_have_its_size(nano: Model) -> None:
    assert nano.n_bytes == 4 * n_parameters(nano.backend.dims)


def test_a_default_that_cannot_fit_is_refused_at_the_start() -> None:
    with pytest.raises(OptionError, match="model memory: expected 296 MB or more for 'base', got 100"):
        registry_of(ModelSettings("base", memory_mb=100.0))
    with pytest.raises(OptionError, match="model memory: expected more than 0"):
        ModelSettings("base", memory_mb=0.0)


def registry_of(models: ModelSettings) -> ModelRegistry:
    return ModelRegistry(models, lambda name: cast(Model, SlowModel()), scheduler_of)


def test_the_memory_of_a_model_that_went_is_free_before_the_next_one_is_loaded() -> None:
    """What holds itself in a circle is freed too."""
    alive: list[weakref.ref[SlowModel]] = []

    def open_model(name: str) -> Model:
        assert len(alive) < len(NAMES) or all(model() is None for model in alive), "their sizes are known"
        model = SlowModel()
        model.work = model.session  # type: ignore[assignment]
        alive.append(weakref.ref(model))
        return cast(Model, model)

    async def run() -> None:
        for name in NAMES:
            async with registry.use(name):
                pass

    models = ModelSettings("a", others=("b", "c"), memory_mb=100.0)
    work = Work(forecast=False)
    registry = ModelRegistry(models, open_model, lambda model: Scheduler(model, work), lambda _: 100_000_000)
    asyncio.run(run())
    asyncio.run(run())
    registry.close()


@pytest.mark.parametrize("is_used", [True, False])
def test_cuda_gives_back_the_memory_of_weights_that_are_gone(
    monkeypatch: pytest.MonkeyPatch, is_used: bool
) -> None:
    """PyTorch keeps freed memory of CUDA for itself until it is told to give it back."""
    model = SlowModel()
    model.work = model.session  # type: ignore[assignment]
    alive = weakref.ref(model)
    unloaded = [Scheduler(cast(Model, model), Work(forecast=False))]
    unloaded[0].close()
    del model
    had_weights: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: had_weights.append(alive() is not None))
    free_memory(unloaded)
    assert had_weights == ([False] if is_used else [])


def test_collections_leave_out_what_is_there_once_a_model_is_loaded(load: Callable[..., Loaded]) -> None:
    """Live sessions wait while one runs."""
    there = [SlowModel()]
    assert any(each is there for each in gc.get_objects())
    asyncio.run(use(load(None), "a"))
    assert not any(each is there for each in gc.get_objects())
    assert gc.get_threshold()[0] == N_YOUNG
    gc.unfreeze()


DIMS = {
    "nano": ModelDims(80, 1500, 128, 2, 1, 51864, 448, 128, 2, 1),
    "tiny.en": ModelDims(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4),
    "base": ModelDims(80, 1500, 512, 8, 6, 51865, 448, 512, 8, 6),
}


class Sized(QuietModel):
    """A model that is as large as its name says."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.n_bytes = 4 * n_parameters(DIMS[name])


def test_every_api_says_that_there_is_no_memory_in_its_own_way_and_which_are_loaded() -> None:
    def loaded() -> set[str]:
        listed = httpx.get(f"{server.url}/v1/models").json()["data"]
        return {model["id"] for model in listed if model["loaded"] and model["id"] == model["model"]}

    models = ModelSettings("nano", others=("tiny.en", "base"), memory_mb=400.0)
    with serving(Sized, models=models) as server:
        assert loaded() == {"nano"}
        assert post(server, model="tiny.en").status_code == 200
        assert loaded() == {"nano", "tiny.en"}
        with connected(server, "/v1/live?model=tiny.en") as socket:
            received(socket)
            answer = post(server, model="base")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_memory")
            assert int(answer.headers["retry-after"]) >= 1
            refused = refusal(server, "/v1/listen?encoding=linear16&model=base")
            assert refused.status_code == 503
            assert b"err_code" in refused.body
            assert loaded() == {"nano", "tiny.en"}
        assert post(server, model="base").status_code == 200
        assert loaded() == {"base"}, "nano was used before tiny.en"
        assert post(server, model="unknown").json()["error"]["code"] == "model_not_found"
        assert "sottovoce_model_bytes" in httpx.get(f"{server.url}/metrics").text


OFFERED = ModelSettings("nano", others=("base", "tiny.en"), preload=False, unload_s=0.0)


def described(registry: ModelRegistry) -> dict[str, list[str]]:
    """The languages of models, as a client of Home Assistant is told them."""
    document = info_document(Services(ServerSettings(registry.settings), registry, Metrics()))
    (program,) = cast("list[dict[str, list[dict[str, list[str]]]]]", document["asr"])
    return {str(model["name"]): model["languages"] for model in program["models"]}


def test_models_that_are_not_loaded_speak_what_whisper_speaks() -> None:
    with serving(SlowModel(), models=OFFERED) as server:
        listed = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
        languages = {model["id"]: model["languages"] for model in listed}
        assert len(languages["base"]) == 99
        assert {"en", "de", "fi", "ja"} <= set(languages["base"])
        assert languages["tiny.en"] == ["en"]
        assert languages["whisper-1"] == languages["nano"]
        assert languages["nano"][0] == "en"
        assert described(server.services.registry) == {name: languages[name] for name in OFFERED.names}


def test_languages_are_remembered_when_a_model_is_put_away() -> None:
    registry = registry_of(OFFERED)

    async def use_once() -> None:
        async with registry.use("base"):
            pass

    asyncio.run(use_once())
    registry.unload_idle()
    assert "base" not in registry.running
    assert described(registry)["base"] == ["en", "de"]
