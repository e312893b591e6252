"""The server's pages are true: requests of curl, examples of clients, the file of options, the fields."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from sottovoce.audio.io import load_audio
from sottovoce.server.apis.deepgram import COMMON_PARAMS, RECORDING_PARAMS, STREAM_PARAMS
from sottovoce.server.apis.flux import TURN_PARAMS
from sottovoce.server.apis.openai_files import SUPPORTED
from sottovoce.server.apis.sottovoce_live import FIELDS
from sottovoce.server.fields import WITHOUT_EFFECT, fields_of
from tests.fresh_process import run_code
from tests.server.servers import CLIPS, ServerThread
from tests.server.test_command import options_of

ROOT = Path(__file__).parents[2]
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guides" / "server.md").read_text(encoding="utf-8")
PAGES = SERVING + GUIDE + (ROOT / "README.md").read_text(encoding="utf-8")
CLIENTS = re.findall(r"^```py\n(.*?)^```$", PROTOCOL + SERVING + GUIDE, re.MULTILINE | re.DOTALL)
BEFORE = {
    "speech.raw": "",
    "verify_signature": """
import base64, hashlib, hmac, time
from openai import OpenAI
body, now = "{}", str(int(time.time()))
mac = hmac.digest(b"0123456789abcdef", f"m.{now}.{body}".encode(), "sha256")
headers = {"webhook-id": "m", "webhook-timestamp": now}
headers["webhook-signature"] = "v1," + base64.b64encode(mac).decode()
""",
    "audio.transcriptions": "",
    "AsyncOpenAI": """
import base64
import numpy as np
from sottovoce.audio.io import load_audio
half = np.repeat(load_audio("talk.flac"), 3)[::2]  # 16 to 24 kHz
base64_of_24_khz_pcm = base64.b64encode((np.append(half, np.zeros(48000)) * 32767).astype("<i2")).decode()
""",
    "DeepgramClient": "pcm = open('speech.raw', 'rb').read()",
}
"""A word of each block of a client, and the code that defines the names that it expects."""
CURL = sorted(set(re.findall(r"^curl .*$", PAGES, re.MULTILINE)))


@pytest.mark.quick(2)
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("line", CURL)
def test_requests_of_curl_are_answered(server: ServerThread, line: str, tmp_path: Path) -> None:
    word = {"word": " one", "start": 0.0, "end": 1.0}
    transcript = tmp_path / "talk.json"
    transcript.write_text(json.dumps({"segments": [{"start": 0, "end": 1, "text": " one", "words": [word]}]}))
    words = line.partition("  #")[0].replace("http://127.0.0.1:8000", server.url)
    words = re.sub(r"talk\.mp3|film\.mkv|examples/speech/en\.flac", str(CLIPS / "en.flac"), words)
    words = words.replace("talk.json", str(transcript)).replace(" -o film.srt", "")
    done = subprocess.run([*shlex.split(words), "-sS", "--fail-with-body"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "error" not in done.stdout


@pytest.mark.parametrize("block", CLIENTS, ids=lambda block: block.split("\n")[0])
def test_examples_of_clients_run(server: ServerThread, block: str, tmp_path: Path) -> None:
    (before,) = (code for word, code in BEFORE.items() if word in block)
    shutil.copy(CLIPS / "en.flac", tmp_path / "talk.flac")
    samples = load_audio(CLIPS / "en.flac")
    (tmp_path / "speech.raw").write_bytes((samples * 32767).astype("<i2").tobytes())
    code = block.replace("127.0.0.1:8000", server.address).replace(
        "whsec_…", "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="
    )
    if "\nasync with" in code:
        code = "import asyncio\nasync def main():\n" + textwrap.indent(code, "    ") + "asyncio.run(main())"
    result = run_code(f"{before}\n{code}", tmp_path, tmp_path / "printed")
    printed = (tmp_path / "printed").read_text()
    assert result == 0, printed
    assert "error" not in printed.lower()
    assert printed or "print(" not in block


def test_the_file_of_options_is_understood(tmp_path: Path) -> None:
    result = re.search(r"```toml\n([^[].*?)```", SERVING, re.DOTALL)
    assert result
    file = tmp_path / "serve.toml"
    file.write_text(result[1], encoding="utf-8")
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
    assert set(re.findall(r"^\| `([\w\[\]]+)` \|", PROTOCOL, re.MULTILINE)) >= set(FIELDS)
    for name in SUPPORTED["transcribe"]:
        assert f"`{name}`" in SERVING
