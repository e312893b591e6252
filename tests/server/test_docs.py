"""What the pages show of the server works: requests of curl, the options file, the fields of the socket."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sottovoce.options.requests import WITHOUT_EFFECT
from sottovoce.server.apis.deepgram import COMMON_PARAMS, RECORDING_PARAMS, STREAM_PARAMS
from sottovoce.server.apis.flux import TURN_PARAMS
from sottovoce.server.apis.sottovoce_live import FIELDS
from sottovoce.server.fields import fields_of
from sottovoce.server.openai_format import SUPPORTED
from tests.server.servers import CLIPS, ServerThread
from tests.server.test_command import options_of

ROOT = Path(__file__).parents[2]
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
PAGES = SERVING + (ROOT / "README.md").read_text(encoding="utf-8")
CURL = sorted(set(re.findall(r"^curl .*$", PAGES, re.MULTILINE)))


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("line", CURL)
def test_requests_of_curl_are_answered(server: ServerThread, line: str, tmp_path: Path) -> None:
    word = {"word": " one", "start": 0.0, "end": 1.0}
    transcript = tmp_path / "talk.json"
    transcript.write_text(json.dumps({"segments": [{"start": 0, "end": 1, "text": " one", "words": [word]}]}))
    words = line.partition("  #")[0].replace("http://127.0.0.1:8000", server.url)
    words = words.replace("talk.mp3", str(CLIPS / "en.flac")).replace("talk.json", str(transcript))
    done = subprocess.run([*shlex.split(words), "-sS", "--fail-with-body"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "error" not in done.stdout


def test_the_file_of_options_is_understood(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", SERVING, re.DOTALL)
    assert found
    file = tmp_path / "serve.toml"
    file.write_text(found[1], encoding="utf-8")
    given = options_of(["--config", str(file)])
    assert (given["port"], given["max_sessions"], given["unload_after"]) == (8080, 4, 1800.0)
    assert given["also_model"] == ("gpt-4o-transcribe=large-v3-turbo",)


def test_every_field_of_the_other_apis_is_told() -> None:
    for name in {*COMMON_PARAMS, *STREAM_PARAMS, *RECORDING_PARAMS, *TURN_PARAMS} | set(
        fields_of("whisper_cpp")
    ) - {
        *WITHOUT_EFFECT,
        "file",
    }:
        assert f"`{name}`" in SERVING, name


def test_every_field_of_the_socket_and_parameter_of_the_api_is_told() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", protocol, re.MULTILINE)) >= set(FIELDS)
    for name in SUPPORTED["transcribe"]:
        assert f"`{name}`" in SERVING
