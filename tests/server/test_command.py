"""`sottovoce serve`: what it says, how it ends, and where its options may stand."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from starlette.formparsers import MultiPartParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sottovoce.cli.main import cli, run
from sottovoce.cli.serve import model_paths, say_where, settings_of
from sottovoce.server.settings import Listening, ModelSettings, ServerSettings, wyoming_address
from sottovoce.server.telemetry import PlainLogFormatter
from tests.server.servers import CLIPS, TRANSCRIPTIONS, bearer, wait_until, working


@contextmanager
def started(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and where it listens."""
    command = [sys.executable, "-m", "sottovoce", "serve", "-m", "nano", "--port", "0", *words]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, encoding="utf-8", env={**os.environ, **environment}
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            result = re.fullmatch(r"listening on (\S+)\n", line)
            if result:
                yield process, result[1]
                break
        else:
            raise AssertionError("it never listened")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 0, marks=pytest.mark.long), (signal.SIGTERM, 143)]
)
def test_it_reads_keys_and_a_signal_ends_it_when_requests_are_answered(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """A hangup reads the file of keys again, also where its size and time are those of before."""
    file = tmp_path / "keys.toml"
    file.write_text('[newsroom]\nkey = "newsroom-key-1"\n')
    with started("--keys", str(file), SOTTOVOCE_SERVE_API_KEYS="a-key-of-the-environment") as (process, url):
        client = httpx.Client(headers=bearer("newsroom-key-2"))
        assert client.get(f"{url}/v1/models", headers=bearer("a-key-of-the-environment")).status_code == 200
        changed_ns = file.stat().st_mtime_ns
        file.write_text(file.read_text().replace("key-1", "key-2"))
        os.utime(file, ns=(changed_ns, changed_ns))
        time.sleep(1.5)
        assert client.get(f"{url}/v1/models").status_code == 401
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: client.get(f"{url}/v1/models").status_code == 200)
        wait_until(lambda: client.get(f"{url}/ready").status_code == 200, 60.0)
        recording = {"file": ("en.flac", (CLIPS / "en.flac").read_bytes())}
        request = {"data": {"stream": "true"}, "files": recording, "timeout": 60}
        with client.stream("POST", url + TRANSCRIPTIONS, **request) as answer:  # type: ignore[arg-type]
            process.send_signal(number)
            assert '"transcript.text.done"' in answer.read().decode()
        assert process.wait(30) == code
        assert process.stderr is not None
        logged = process.stderr.read()
        client.close()
    assert '"route": "/v1/audio/transcriptions"' in logged
    assert [word for word in ("garden", "en.flac", "Traceback", "newsroom-key") if word in logged] == []


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line with which the command refuses words."""
    assert run(["serve", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("owner", "name"), [(HttpToolsProtocol, "on_body"), (MultiPartParser, "on_part_data")]
)
def test_a_library_without_what_the_server_uses_is_one_line(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(owner, name)
    assert run(["serve", "-m", "nano", "--port", "0"]) == 2
    assert f"expected {owner.__name__} with {name}, got none" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capsys, "-m", "nano", "--port", str(port))
    assert line.startswith(f"error: port {port} is in use")


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--also-model", "whisper-1="], "NAME=MODEL"),
        (["--tls", "nowhere.pem", "key.pem"], "'nowhere.pem' and 'key.pem'"),
        (["--tls", __file__, __file__], "PEM files"),
        (["--keys", "nowhere.toml"], "nowhere.toml"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--max-uploads-mb", "nan"], "--max-uploads-mb"),
        (["--allow-origin", "example.org"], "https://example.org"),
    ],
)
def test_wrong_options_are_one_line(
    words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reported in refused(capsys, "-m", "nano", *words)


def test_two_models_of_a_name_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (other := tmp_path / "nano").mkdir()
    line = refused(capsys, "-m", "nano", "--second-model", str(other))
    assert line.startswith(f"error: --second-model '{other}': has the same name as 'nano'")


def options_of(words: list[str]) -> dict[str, Any]:
    """What the command would be called with."""
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    command = cli.get_command(context, "serve")
    assert command is not None
    return command.make_context("serve", list(words), parent=context).params


def test_typed_options_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'model = "nano"\nport = 1\nmax-sessions = 2\nmax_requests = 3\nmax-duration = "10:00"\n'
        'also-model = ["whisper-1=nano"]\ntls = ["a.pem", "b.pem"]\nmax-uploads-mb = 400\n'
    )
    monkeypatch.setenv("SOTTOVOCE_SERVE_PORT", "4")
    monkeypatch.setenv("SOTTOVOCE_SERVE_MAX_SESSIONS", "5")
    result = options_of(["--config", str(file), "--max-sessions", "6"])
    settings = settings_of(result, ["nano"])
    assert settings.limits.sessions == 6
    assert settings.listening.port == 4
    assert settings.limits.requests == 3
    assert settings.limits.duration_s == 600.0
    assert settings.models.aliases == {"whisper-1": "nano"}
    assert (settings.listening.certificate, settings.listening.key) == ("a.pem", "b.pem")
    assert settings.limits.upload_bytes == 100e6
    assert result["model"] == "nano"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("prot = 1", "'prot'"),
        ("[limits]\na = 1", "'limits'"),
        ("port = ", "serve.toml"),
        ("port = 99999", "'--port'"),
        ("[port]\na = 1", "port"),
    ],
)
def test_a_wrong_file_is_one_line(
    text: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    assert reported in refused(capsys, "--config", str(file))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "abc"),
        ("MAX_SESSIONS", "0"),
        ("MAX_DURATION", "0"),
        ("MAX_DURATION", "x"),
        ("CONFIG", "none"),
    ],
)
def test_a_wrong_variable_is_named(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SOTTOVOCE_SERVE_{name}", value)
    line = refused(capsys, "--model", "nano")
    assert f"SOTTOVOCE_SERVE_{name}'" in line or line.startswith(f"error: SOTTOVOCE_SERVE_{name}: ")
    assert "--" not in line.partition("(see")[0]


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_SERVE_API_KEYS", "first-key, second-key,first-key,")
    monkeypatch.setenv("SOTTOVOCE_SERVE_WEBHOOK_SECRET", "whsec_MTIzNDU2Nzg5MDEyMzQ1Ng==")
    settings = settings_of(options_of(["--jobs-dir", "jobs"]), ["nano"])
    assert settings.access.api_keys == ("first-key", "second-key")
    assert settings.jobs is not None
    assert settings.jobs.webhook_secret == b"1234567890123456"


def test_variables_that_name_nothing_are_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blank keys would leave the server open; Kubernetes sets variables too, so those are warnings."""
    monkeypatch.setenv("SOTTOVOCE_SERVE_PROT", "1")
    monkeypatch.setenv("SOTTOVOCE_SERVE_API_KEYS", " ,")
    assert run(["serve", "--model", "nano"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "warning: SOTTOVOCE_SERVE_PROT: there is no option of that name",
        "error: SOTTOVOCE_SERVE_API_KEYS: expected keys separated by commas, got none",
    ]


def test_a_model_of_a_path_is_called_by_its_last_part(tmp_path: Path) -> None:
    file = tmp_path / "ggml-base.bin"
    file.touch()
    result = model_paths(
        {"model": str(file), "also_model": ("whisper-1=nano",), "second_model": None, "device": "cpu"}
    )
    assert result == {"ggml-base.bin": str(file), "nano": "nano"}


def test_on_all_addresses_without_a_key_it_warns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sottovoce.server.server import Server

    monkeypatch.setattr(Server, "serve_until_ended", lambda self: self._listening.close())
    with working():  # of another server in this process: the command must not end it all for its sake
        assert run(["serve", "-m", "nano", "--host", "0.0.0.0", "--port", "0"]) == 0
    assert "open to everybody" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "no-such-model"],
        ["-m", "ctc:no-such-model"],
        ["-m", "nano", "--also-model", "other=no-such-model"],
        ["-m", "openai/no-such-model"],
    ],
)
def test_a_model_that_is_not_there_ends_it_with_one_line(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a server listens is said when its models are loaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(["serve", *words, "--port", "0"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "no-such-model: no" in line


def test_a_terminal_is_told_where_the_page_is_and_a_pipe_gets_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerSettings(ModelSettings("base"), wyoming=wyoming_address("tcp://127.0.0.1:10300"))
    say_where(settings, 8000)
    assert capsys.readouterr().err == "listening on http://127.0.0.1:8000\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    say_where(settings, 8000)
    shown = capsys.readouterr().err
    for part in (
        "Live captions  http://127.0.0.1:8000\n",
        "http://127.0.0.1:8000/v1\n",
        "10300\n",
    ):
        assert part in shown
    monkeypatch.setattr("sottovoce.server.settings.address_of_network", lambda: "192.0.2.7")
    say_where(ServerSettings(ModelSettings("base"), Listening("0.0.0.0", 8000)), 8000)
    shown = capsys.readouterr().err
    assert "Live captions  http://127.0.0.1:8000\n" in shown
    assert "Other machines http://192.0.2.7:8000\n" in shown
    loaded = logging.makeLogRecord(
        {"msg": "model loaded", "model": "base", "seconds": 2.14, "runtime": "native"}
    )
    assert PlainLogFormatter().format(loaded) == "base loaded in 2.1 s (native)"
