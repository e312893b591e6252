"""The tools of an assistant: called by the protocol's client, they give what the library gives."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import AudioChunk, load_audio
from sottovoce.cli.mcp import Tools, make_server

mcp: Any = pytest.importorskip("mcp", reason="the extra mcp is not installed")
CLIPS = Path(__file__).parents[2] / "examples" / "clips"


class Speaking:
    """A microphone that hears a recording."""

    def __enter__(self) -> Speaking:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Any:
        samples = load_audio(CLIPS / "en.flac")
        return (AudioChunk(samples[at : at + 4000], at) for at in range(0, len(samples), 4000))


def test_the_tools(model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    n_loaded = SimpleNamespace(n=0)

    def load() -> Model:
        n_loaded.n += 1
        return model

    monkeypatch.setattr("sottovoce.audio.io.Microphone", Speaking)
    answers: dict[str, Any] = {}

    async def ask() -> None:
        async with mcp.Client(make_server(Tools(load))) as client:
            answers["tools"] = [tool.name for tool in (await client.list_tools()).tools]
            german, english = str(CLIPS / "de.flac"), str(CLIPS / "en.flac")
            for name, tool, given in (
                ("text", "transcribe", {"path": german}),
                ("srt", "transcribe", {"path": german, "format": "srt"}),
                ("found", "find", {"path": english, "phrase": "garden"}),
                ("heard", "listen", {"seconds": 30, "language": "en"}),
                ("wrong", "transcribe", {"path": str(tmp_path / "none.wav")}),
                ("format", "transcribe", {"path": german, "format": "exe"}),
            ):
                answers[name] = await client.call_tool(tool, given)

    anyio.run(ask)
    assert answers["tools"] == ["transcribe", "find", "listen"]
    assert n_loaded.n == 1
    text = {name: answer.content[0].text for name, answer in answers.items() if name != "tools"}
    expected = model.transcribe(CLIPS / "de.flac", language="auto").text
    assert " ".join(text["text"].split()) == expected.strip()
    assert text["srt"].startswith("1\n00:00:0")
    assert json.loads(text["found"])["text"].strip(".").endswith("garden")
    assert "garden" in text["heard"]
    assert answers["wrong"].is_error
    assert "no such file" in text["wrong"]
    assert "expected one of txt" in text["format"]
