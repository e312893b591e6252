"""Ids of models that clients of other servers send mean the weights that are here, on every API alike."""

from __future__ import annotations

import httpx
import pytest

from sottovoce.models.sources import published_repository
from sottovoce.server.apis.deepgram import recording_params
from sottovoce.server.errors import ApiError
from sottovoce.server.models import ModelRegistry
from sottovoce.server.settings import ModelSettings
from tests.server.conversation import connected, received, say
from tests.server.servers import TRANSCRIPTIONS, ServerThread, SlowModel, post, serving, wav

HEADER = "x-ignored-parameters"
BASE = ModelSettings("base")
SEVERAL = ModelSettings("large-v3-turbo", others=("base", "tiny.en"), aliases={"Mine": "base"})

SAME = (
    *("openai/whisper-base", "Systran/faster-whisper-base", "guillaumekln/faster-whisper-base"),
    *("ggml-base.bin", "ggml-base-q5_1.bin", "base-q8_0", "whisper-base", "openai_whisper-base", "BASE"),
    *("Xenova/whisper-base", "onnx-community/whisper-base", "mlx-community/whisper-base-mlx-4bit"),
    *("mlx-community/whisper-base-mlx", "faster-whisper-base", "whisper-base-ct2"),
    "openai/whisper-base-int8",
)
"""Ids of the weights of base."""
HOSTED = (
    *("whisper-1", "openai/whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe-2025-12-15"),
    *("gpt-realtime", "gpt-realtime-2025-08-28", "gpt-4o-realtime-preview", "gpt-4o-transcribe-diarize"),
    *("nova-3", "nova-2-phonecall", "nova", "enhanced", "flux-general-en", "base-general", "whisper"),
)
"""Models of services, whose weights nobody has."""
ELSEWHERE = (
    *("whisper-large-v3", "openai/whisper-large-v3", "Systran/faster-whisper-small", "whisper-large"),
    *("distil-whisper/distil-large-v3", "Systran/faster-distil-whisper-large-v3", "ggml-medium.en.bin"),
    *("@cf/openai/whisper-large-v3-turbo", "groq/whisper-large-v3", "openai/whisper-large"),
)
"""Weights by an id of another program, that are not those of base."""
UNKNOWN = (
    *("large-v3", "small", "tiny.en", "large-v9", "other", "acme/whisper-base", "acme/whisper-german"),
    *("/models/ggml-base.bin", "../base", "base\n", "gpt-4o", "q5_1" * 1000, "-q5" * 2000 + "a/base"),
)
"""Names of this library for other weights, and what nobody knows."""


def registry(settings: ModelSettings) -> ModelRegistry:
    def nothing(*_: object) -> None:
        raise AssertionError

    return ModelRegistry(settings, nothing, nothing)  # type: ignore[arg-type]


def test_ids_mean_weights_that_are_here() -> None:
    """The model's own, of a service, or the default one's, which is told; an English-only size is that of the
    multilingual one where it is not here."""
    for name in (*SAME, *HOSTED, "", "base"):
        assert (registry(BASE).resolve(name), registry(BASE).ignored(name)) == ("base", ()), name
    for name in ELSEWHERE:
        assert registry(BASE).resolve(name) == "base", name
        assert registry(BASE).ignored(name, ("other",)) == ("other", "model"), name
    for name in SAME:
        assert registry(SEVERAL).resolve(name) == "base", name
        theirs = ModelSettings("small", others=("Systran/faster-whisper-base",))
        for other in ("base", name):
            assert registry(theirs).resolve(other) == "Systran/faster-whisper-base", name
    for name in ("base.en", "whisper-base.en", "ggml-base.en.bin", "whisper-base-en"):
        for request, result in (
            (name, ("base", ("model",))),
            (name.replace("base", "tiny"), ("tiny.en", ())),
        ):
            assert (registry(SEVERAL).resolve(request), registry(SEVERAL).ignored(request)) == result, request


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_means_nothing_here_is_404(name: str) -> None:
    with pytest.raises(ApiError, match="expected one of base") as refused:
        registry(BASE).resolve(name)
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


def test_the_servers_own_names_and_aliases_come_first() -> None:
    assert registry(SEVERAL).resolve("mine") == "base"
    owned = ModelSettings("base", others=("nova-3",), aliases={"openai/whisper-base": "nova-3"})
    assert registry(owned).resolve("nova-3") == registry(owned).resolve("openai/whisper-base") == "nova-3"


def test_openai_names_its_first_large_model_without_a_number() -> None:
    assert published_repository("openai/whisper-large") == published_repository("large-v1")
    assert published_repository("whisper-large") == published_repository("large-v3")


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, "/v1/audio/translations", "/v1/jobs"])
@pytest.mark.parametrize(
    ("model", "status", "reported"),
    [("gpt-4o-transcribe", 200, None), ("openai/whisper-base", 200, "model"), ("other", 404, None)],
)
def test_forms(quiet_server: ServerThread, path: str, model: str, status: int, reported: str | None) -> None:
    """On a server whose model is called nano."""
    answer = post(quiet_server, path, model=model)
    assert (answer.status_code if answer.status_code != 202 else 200) == status, answer.text
    assert answer.headers.get(HEADER) == reported


def model_of(server: ServerThread, path: str) -> tuple[str | None, str]:
    """The parameters that a handshake names as ignored, and the model that the socket tells of."""
    with connected(server, path) as socket:
        assert socket.response is not None
        reported = socket.response.headers.get(HEADER)
        if path.startswith("/v1/listen"):
            say(socket, {"type": "CloseStream"})
            return reported, received(socket)["models"][0]
        first = received(socket)
    if path.startswith("/v2"):
        return reported, "nano"
    session = first["session"]
    is_own = isinstance(session, str)
    return reported, first["model"] if is_own else session["audio"]["input"]["transcription"]["model"]


@pytest.mark.parametrize(
    "address",
    [
        "/v1/live?model={}",
        "/v1/realtime?model={}",
        "/v1/listen?encoding=linear16&model={}",
        "/v2/listen?encoding=linear16&model={}",
    ],
)
def test_sockets(quiet_server: ServerThread, address: str) -> None:
    for model, reported in (
        ("gpt-realtime", None),
        ("nova-3", None),
        ("Systran/faster-whisper-base", "model"),
    ):
        assert model_of(quiet_server, address.format(model)) == (reported, "nano")


def test_base_on_deepgrams_routes_may_be_deepgrams_own(quiet_server: ServerThread) -> None:
    """Deepgram has a model of that name; on other routes it is Whisper's, which is not on this server."""
    assert model_of(quiet_server, "/v1/listen?encoding=linear16&model=base") == ("model", "nano")
    listen = f"{quiet_server.url}/v1/listen?model="
    answer = httpx.post(f"{listen}Base", content=wav(16_000))
    assert (answer.status_code, answer.headers.get(HEADER)) == (200, "model")
    assert httpx.post(f"{listen}small", content=wav(16_000)).status_code == 404
    query = [("model", "base")]
    assert recording_params(query, registry(SEVERAL)).model == "base"
    assert recording_params(query, registry(SEVERAL)).ignored == ()
    assert recording_params(query, registry(ModelSettings("tiny", aliases={"base": "tiny"}))).ignored == ()


def test_the_list_of_models_and_load(quiet_server: ServerThread) -> None:
    result = httpx.get(f"{quiet_server.url}/v1/models/Systran/faster-whisper-base").json()
    assert (result["id"], result["model"]) == ("Systran/faster-whisper-base", "nano")
    assert httpx.get(f"{quiet_server.url}/v1/models/other").status_code == 404


def test_a_model_of_its_own_weights_is_loaded_by_another_programs_id() -> None:
    """`/load`, which loads one of several."""
    loaded: list[str] = []

    def open_model(name: str) -> SlowModel:
        loaded.append(name)
        return SlowModel()

    with serving(open_model, models=ModelSettings("tiny", others=("base",))) as server:
        form = {"model": (None, "ggml-base-q5_1.bin")}
        assert httpx.post(f"{server.url}/load", files=form, timeout=60).status_code == 200
    assert loaded == ["tiny", "base"]
