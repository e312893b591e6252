"""The examples for other toolkits, on stand-ins of the parts of the toolkits that they use."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import sottovoce
from sottovoce.audio.io import load_audio
from sottovoce.types import Partial, Samples

EXAMPLES = Path(__file__).parents[2] / "examples"
CHUNK = 4000


@dataclass
class IncrementalOutput:
    new_tokens: list[str]
    new_string: str
    deleted_tokens: list[str]
    deleted_string: str


class SpeechProcessor:
    def __init__(self, config: SimpleNamespace) -> None:
        self.config = config


@dataclass
class States:
    source: list[float] = field(default_factory=list)
    source_finished: bool = False
    source_sample_rate: int = 0


class SpeechToTextAgent:
    def __init__(self, args: Namespace) -> None:
        self.states = States()
        self.reset()

    def reset(self) -> None:
        self.states.__init__()  # type: ignore[misc]


@dataclass
class WriteAction:
    content: str
    finished: bool


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def audio() -> Samples:
    return load_audio(str(EXAMPLES / "clips" / "en.flac"))


def spoken(audio: Samples) -> str:
    session = sottovoce.load_model("nano").session("en")
    events = [*session.push(audio), *session.close()]
    return "".join(event.text for event in events if isinstance(event, Partial)).strip()


@pytest.mark.long
@pytest.mark.parametrize("captions", [pytest.param("firm", marks=pytest.mark.long), "revisable"])
def test_simulstream_gets_what_a_session_says(
    monkeypatch: pytest.MonkeyPatch, audio: Samples, captions: str
) -> None:
    folder = "simulstream.server.speech_processors"
    module(monkeypatch, folder, SpeechProcessor=SpeechProcessor)
    module(monkeypatch, f"{folder}.incremental_output", IncrementalOutput=IncrementalOutput)
    config = SimpleNamespace(model="nano", speech_chunk_size=0.25, captions=captions)
    kind = example("simulstream_processor").SottovoceProcessor
    kind.load_model(config)
    processor = kind(config)
    processor.set_source_language("en")
    processor.set_target_language("en")
    for _ in range(2):
        tokens: list[str] = []
        outputs = [processor.process_chunk(audio[at : at + CHUNK]) for at in range(0, len(audio), CHUNK)]
        for output in [*outputs, processor.end_of_stream()]:
            n_kept = len(tokens) - len(output.deleted_tokens)
            assert tokens[n_kept:] == output.deleted_tokens
            assert captions == "revisable" or not output.deleted_tokens
            tokens = tokens[:n_kept] + output.new_tokens
        assert processor.tokens_to_string(tokens) == spoken(audio) != ""
        processor.clear()


@pytest.mark.long
def test_simuleval_gets_what_a_session_says(monkeypatch: pytest.MonkeyPatch, audio: Samples) -> None:
    module(monkeypatch, "simuleval.agents", SpeechToTextAgent=SpeechToTextAgent)
    module(monkeypatch, "simuleval.agents.actions", Action=object, ReadAction=object, WriteAction=WriteAction)
    module(monkeypatch, "simuleval.utils", entrypoint=lambda kind: kind)
    args = Namespace(
        model="nano", language="en", latency="balanced", translate=False, source_segment_size=250
    )
    agent = example("simuleval_agent").SottovoceAgent(args)
    for _ in range(2):
        said: list[str] = []
        agent.states.source_sample_rate = 16_000
        for at in range(0, len(audio), CHUNK):
            agent.states.source += audio[at : at + CHUNK].tolist()
            agent.states.source_finished = at + CHUNK >= len(audio)
            action = agent.policy()
            if isinstance(action, WriteAction):
                said.append(action.content)
        assert action.finished
        assert "".join(said).replace(" ", "") == spoken(audio).replace(" ", "") != ""
        agent.reset()
    agent.states.source_sample_rate = 8_000
    with pytest.raises(ValueError, match="expected audio at 16000 Hz, got 8000"):
        agent.policy()
