"""What the address of a job is told: signed, told again where it is not taken, never in our own network."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from sottovoce.errors import OptionError
from sottovoce.server.apis import jobs
from sottovoce.server.apis.jobs import PostError, may_call, post, target_of
from sottovoce.server.errors import ApiError
from sottovoce.server.settings import Access, JobSettings, secret_of
from tests.server.servers import QuietModel, ServerThread, serving, wait_until
from tests.server.test_jobs import created, deleted, job, post_job

SECRET = "whsec_c290dG92b2NlLXNvdHRvdm9jZS1zb3R0b3ZvY2U="
HERE = ("127.0.0.0/8",)


@dataclass
class Receiver:
    """A listener, and what came."""

    port: int
    came: list[tuple[dict[str, str], bytes]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    """statuses: of its answers, the last one again and again."""
    left, came = list(statuses), list[tuple[dict[str, str], bytes]]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as threads:
        threads.submit(server.serve_forever, 0.05)
        try:
            yield Receiver(server.server_port, came)
        finally:
            server.shutdown()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other without waiting for long."""
    monkeypatch.setattr("sottovoce.server.apis.jobs.WAITS_S", (0.0, 0.1, 0.1, 0.1))


@contextmanager
def calling(tmp_path: Path, networks: tuple[str, ...] = HERE) -> Iterator[ServerThread]:
    secret = secret_of("secret", SECRET)
    settings = JobSettings(str(tmp_path / "jobs"), webhook_secret=secret, webhook_networks=networks)
    with serving(QuietModel(), jobs=settings) as server:
        yield server


def told(server: ServerThread, name: str, status: str) -> Any:
    """A job, whose webhook is waited for."""
    wait_until(lambda: job(server, name)["webhook"]["status"] == status)
    return job(server, name)


def test_openais_client_knows_the_signature_and_what_is_told(tmp_path: Path) -> None:
    with receiver(204) as listener, calling(tmp_path) as server:
        name = created(server, webhook_url=listener.url)
        result = told(server, name, "delivered")
    ((headers, body),) = listener.came
    client = OpenAI(api_key="none", webhook_secret=SECRET)
    client.webhooks.verify_signature(body, headers)
    for other in (body + b" ", body.replace(b"succeeded", b"failed")):
        with pytest.raises(InvalidWebhookSignatureError):
            client.webhooks.verify_signature(other, headers)
    event = json.loads(body)
    assert event["type"] == "transcription.job.succeeded"
    assert event["id"] == headers["webhook-id"]
    assert {**event["data"], "webhook": result["webhook"], "result": result["result"]} == result
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60


@pytest.mark.usefixtures("at_once")
def test_who_does_not_take_it_is_told_again_with_the_same_id(tmp_path: Path) -> None:
    with receiver(500, 302, 200) as listener, calling(tmp_path) as server:
        name = created(server, webhook_url=listener.url)
        assert told(server, name, "delivered")["webhook"]["tries"] == 3
        written = httpx.get(f"{server.url}/metrics").text
    assert len({headers["webhook-id"] for headers, _ in listener.came}) == 1
    assert len(listener.came) == 3, "a redirect is not followed"
    assert 'sottovoce_webhooks_total{status="delivered"} 1.0' in written


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("status", "n_tries"), [(500, 4), (410, 1)])
def test_tries_have_an_end(tmp_path: Path, status: int, n_tries: int) -> None:
    with receiver(status) as listener, calling(tmp_path) as server:
        name = created(server, webhook_url=listener.url)
        assert told(server, name, "failed")["status"] == "succeeded"
    assert len(listener.came) == n_tries


def test_what_was_not_told_before_a_new_start_is_told_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, receiver(500) as listener:
        patch.setattr(jobs, "WAITS_S", (0.0, 100.0))
        with calling(tmp_path) as server:
            name = created(server, webhook_url=listener.url)
            wait_until(lambda: len(listener.came) == 1)
            wait_until(lambda: job(server, name)["webhook"]["tries"] == 1)
        port = listener.port
    with socket.create_server(("127.0.0.1", port)) as again:
        monkeypatch.setattr(jobs, "WAITS_S", (0.0, 0.0, 0.0))
        again.settimeout(20)
        with calling(tmp_path):
            taken, _ = again.accept()
            with taken:
                assert taken.recv(65_536).startswith(b"POST /hook?a=b HTTP/1.1\r\n")
                taken.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


def test_a_job_that_is_deleted_is_not_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "WAITS_S", (30.0,))
    with receiver(200) as listener, calling(tmp_path) as server:
        name = created(server, webhook_url=listener.url)
        wait_until(lambda: job(server, name)["status"] == "succeeded")
        deleted(server, name)
        wait_until(lambda: {path.name for path in (tmp_path / "jobs").iterdir()} == {".lock"})
        assert server.state.jobs is not None
        assert server.state.jobs._scopes == {}, "it is waited for no longer"
    assert listener.came == []


PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::1"),
)
PUBLIC = ("8.8.8.8", "93.184.215.14", "2606:4700::1111", "::ffff:8.8.8.8")


def test_public_addresses_alone_may_be_called() -> None:
    assert [address for address in PRIVATE if may_call(address, ())] == []
    assert [address for address in PUBLIC if not may_call(address, ())] == []
    assert may_call("10.1.2.3", (ip_network("10.0.0.0/8"),))
    assert may_call("::ffff:10.1.2.3", (ip_network("10.0.0.0/8"),))
    assert not may_call("10.1.2.3", (ip_network("10.0.0.0/16"),))


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.org/", "file:///etc/passwd", "https:///path", "example.org", "https://"),
        *("https://user:word@example.org/", "https://example.org:25/", "https://example.org:99999/"),
        *("https://example.org/a b", "https://example.org/\r\nx: y", "https://exämple.org/", "http://[::1/"),
        *("http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/latest", "http://10.0.0.1:8080/"),
        "https://example.org/" + "a" * 2_000,
    ],
)
def test_what_could_not_be_called_is_refused_at_once(tmp_path: Path, url: str) -> None:
    with pytest.raises(ApiError) as refused:
        target_of(url, ())
    assert (refused.value.status, refused.value.param) == (400, "webhook_url")
    assert "\n" not in refused.value.message


def test_the_server_refuses_them_too(tmp_path: Path) -> None:
    with calling(tmp_path, networks=()) as server:
        answer = post_job(server, webhook_url="http://127.0.0.1:8080/")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "webhook_url")


def means(*addresses: str) -> Callable[..., Any]:
    """What an address is looked up with: every name means these."""

    async def look_up(host: object, port: int, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return look_up


def sent(url: str, networks: tuple[str, ...] = ()) -> int:
    allowed = [ip_network(network) for network in networks]
    return asyncio.run(post(target_of(url, allowed), [], b"{}", allowed))


def test_a_name_that_means_a_private_address_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(200) as listener:
        url = f"http://example.org:{listener.port}/"
        monkeypatch.setattr(jobs.anyio, "getaddrinfo", means("127.0.0.1"))
        with pytest.raises(PostError, match="not public"):
            sent(url)
        assert listener.came == []
        assert sent(url, HERE) == 200
        assert listener.came[0][0]["host"] == url.removeprefix("http://").rstrip("/")


def test_the_address_that_was_looked_at_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked up once: what it means a moment later changes nothing."""
    called: list[str] = []

    async def connect(host: str, port: int, **_: object) -> None:
        called.append(host)
        raise OSError

    monkeypatch.setattr(jobs.anyio, "getaddrinfo", means("10.0.0.1", "8.8.8.8"))
    monkeypatch.setattr(jobs.asyncio, "open_connection", connect)
    with pytest.raises(PostError):
        sent("https://example.org/")
    assert called == ["8.8.8.8"]


def test_the_next_address_is_called_where_one_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a host with an IPv6 address on a machine without a route there; one that never answers takes its
    part of the time."""
    connect = asyncio.open_connection

    async def unless_lost(host: str, port: int, **options: Any) -> Any:
        if host == "127.0.0.2":
            raise OSError("Network is unreachable")
        if host == "127.0.0.3":
            await asyncio.sleep(60)
        return await connect(host, port, **options)

    monkeypatch.setattr(jobs, "WITHIN_S", 2.0)
    monkeypatch.setattr(jobs.asyncio, "open_connection", unless_lost)
    monkeypatch.setattr(jobs.anyio, "getaddrinfo", means("127.0.0.2", "127.0.0.3", "127.0.0.1"))
    with receiver(200) as listener:
        assert sent(f"http://example.org:{listener.port}/", HERE) == 200
        assert len(listener.came) == 1


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000])
def test_an_answer_that_is_none_or_has_no_end_is_a_try_that_failed(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            taken, _ = listener.accept()
            with taken, suppress(OSError):
                taken.recv(65_536)
                taken.sendall(answer)

        with ThreadPoolExecutor(1) as threads:
            threads.submit(serve)
            with pytest.raises(PostError):
                sent(f"http://127.0.0.1:{listener.getsockname()[1]}/", HERE)


def test_who_answers_nothing_is_waited_for_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "WITHIN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(PostError, match="in time"):
        sent(f"http://127.0.0.1:{listener.getsockname()[1]}/", HERE)


def test_a_key_may_have_a_secret_of_its_own(tmp_path: Path) -> None:
    """Signed with it, and with that alone; another key has the server's, or none."""
    file = tmp_path / "keys.toml"
    owned = "whsec_YW5uYS1hbm5hLWFubmEtYW5uYS1hbm5h"
    file.write_text(f'[anna]\nkey = "key-of-anna"\nwebhook-secret = "{owned}"\n[bert]\nkey = "key-of-bert"\n')
    settings = JobSettings(str(tmp_path / "jobs"), webhook_networks=HERE)
    access = Access(keys_file=str(file))
    with receiver(200) as listener, serving(QuietModel(), jobs=settings, access=access) as server:
        assert post_job(server, key="key-of-bert", webhook_url=listener.url).status_code == 400
        assert post_job(server, key="key-of-anna", webhook_url=listener.url).status_code == 202
        wait_until(lambda: len(listener.came) == 1)
    ((headers, body),) = listener.came
    OpenAI(api_key="none", webhook_secret=owned).webhooks.verify_signature(body, headers)
    with pytest.raises(InvalidWebhookSignatureError):
        OpenAI(api_key="none", webhook_secret=SECRET).webhooks.verify_signature(body, headers)


@pytest.mark.parametrize("text", ["", "short", "whsec_c2hvcnQ=", "whsec_?"])
def test_a_secret_has_a_length(text: str) -> None:
    with pytest.raises(OptionError, match="expected a secret of 16 bytes or more") as error:
        secret_of("secret", text)
    assert not text or text not in str(error.value)
