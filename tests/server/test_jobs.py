"""Recordings that are answered later: what they become, who sees them, how many, and how long they stay."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.server.apis import jobs as jobs_module
from sottovoce.server.apis import openai_files
from sottovoce.server.apis.jobs import MOST_TRIES, TranscriptionJob, Webhook, create_job, load_jobs
from sottovoce.server.settings import Access, JobSettings, ServerLimits
from tests.server.servers import (
    CLIPS,
    Gate,
    QuietModel,
    ServerThread,
    SlowModel,
    bearer,
    post,
    serving,
    threads_of_servers,
    wait_until,
    wav,
)

ENGLISH = (CLIPS / "en.flac").read_bytes()
WAV = wav(16_000)


@pytest.fixture
def job_server(tmp_path: Path) -> Iterator[ServerThread]:
    with serving(QuietModel(), jobs=JobSettings(str(tmp_path / "jobs"), most=4)) as server:
        yield server


post_job = partial(post, path="/v1/jobs")


def created(server: ServerThread, data: bytes = WAV, **fields: str) -> str:
    answer = post_job(server, data=data, **fields)
    assert answer.status_code == 202, answer.text
    result = str(answer.json()["id"])
    assert answer.headers["location"] == f"/v1/jobs/{result}"
    return result


def listed(server: ServerThread, query: str = "", key: str = "") -> Any:
    return httpx.get(f"{server.url}/v1/jobs{query}", headers=bearer(key)).json()


def deleted(server: ServerThread, name: str) -> httpx.Response:
    return httpx.delete(f"{server.url}/v1/jobs/{name}")


def job(server: ServerThread, name: str) -> Any:
    return httpx.get(f"{server.url}/v1/jobs/{name}").json()


def ended(server: ServerThread, name: str) -> Any:
    wait_until(lambda: job(server, name)["status"] in ("succeeded", "failed"), 60.0)
    return job(server, name)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_result_is_that_of_an_answer_at_once(nano: Model, tmp_path: Path) -> None:
    with serving(nano, jobs=JobSettings(str(tmp_path))) as server:
        for response_format in ("json", "srt"):
            fields = {"response_format": response_format, "language": "en"}
            name = created(server, ENGLISH, **fields)
            result = ended(server, name)
            now = post(server, data=ENGLISH, **fields)
            assert result["status"] == "succeeded"
            assert result["result"] == (now.text if response_format == "srt" else now.json())
            assert (result["progress"], result["error"], result["webhook"]) == (1.0, None, None)
            assert result["created_at"] <= result["started_at"] <= result["finished_at"]
            kept = files_of(tmp_path / name)
            assert kept == {"job.json", "result.json"}, "the recording has gone"


def test_what_is_wrong_is_told_at_once_and_nothing_of_it_stays(
    job_server: ServerThread, tmp_path: Path
) -> None:
    for fields, param in (
        ({"temperature": "9"}, "temperature"),
        ({"model": "other"}, "model"),
        ({"stream": "true"}, "stream"),
        ({"webhook_url": "https://example.org"}, "webhook_url"),
    ):
        answer = post_job(job_server, **fields)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"] == param
    assert post_job(job_server, data=b"no recording").json()["error"]["code"] == "invalid_audio"
    assert listed(job_server)["data"] == []
    assert files_of(tmp_path / "jobs") == {".lock"}


def test_without_a_folder_for_them_there_are_none() -> None:
    with serving(SlowModel()) as server:
        assert post_job(server).status_code == 403
        for method, path in (("GET", ""), ("GET", "/job_1"), ("DELETE", "/job_1")):
            answer = httpx.request(method, f"{server.url}/v1/jobs{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")


def fail(*_: object) -> None:
    raise RuntimeError("secret of the inside")


def test_a_recording_that_fails_says_so_and_nothing_of_the_inside(tmp_path: Path) -> None:
    with serving(QuietModel(fail), jobs=JobSettings(str(tmp_path))) as server:
        result = ended(server, created(server))
        written = httpx.get(f"{server.url}/metrics").text
    assert (result["status"], result["error"]["code"], result["result"]) == ("failed", "internal_error", None)
    assert "secret" not in json.dumps(result)
    assert 'sottovoce_jobs_total{status="failed"} 1.0' in written


def test_jobs_are_listed_newest_first_in_pages(job_server: ServerThread) -> None:
    names = [created(job_server) for _ in range(3)][::-1]
    first = listed(job_server, "?limit=2")
    assert [item["id"] for item in first["data"]] == names[:2]
    assert first["has_more"]
    assert "result" not in first["data"][0]
    second = listed(job_server, f"?after={names[1]}")
    assert ([item["id"] for item in second["data"]], second["has_more"]) == (names[2:], False)
    for query in ("limit=0", "limit=101", "limit=x", "after=job_0"):
        assert httpx.get(f"{job_server.url}/v1/jobs?{query}").status_code == 400


def test_a_job_that_is_deleted_stops_and_nothing_of_it_stays(tmp_path: Path, gate: Gate) -> None:
    model = SlowModel(gate)  # whose recordings never end by themselves
    with serving(model, jobs=JobSettings(str(tmp_path)), limits=ServerLimits(requests=4)) as server:
        running = created(server)
        wait_until(lambda: model.n_calls == 1)
        waiting = created(server)
        assert [job(server, name)["status"] for name in (running, waiting)] == ["running", "queued"]
        for name in (waiting, running):
            gone = {"id": name, "object": "transcription.job", "deleted": True}
            assert deleted(server, name).json() == gone
            assert httpx.get(f"{server.url}/v1/jobs/{name}").status_code == 404
            assert deleted(server, name).status_code == 404
        gate.open()
        wait_until(lambda: files_of(tmp_path) == {".lock"})
        n_calls = model.n_calls
        time.sleep(0.5)
        assert model.n_calls == n_calls


def test_a_job_of_a_model_that_is_deleted_under_way_harms_no_other(
    nano: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(nano, jobs=JobSettings(str(tmp_path))) as server, caplog.at_level("WARNING"):
        long = created(server, wav(16_000 * 90, 3), response_format="verbose_json")
        wait_until(lambda: job(server, long)["status"] == "running")
        short = created(server, ENGLISH)
        assert deleted(server, long).status_code == 200
        assert "garden" in ended(server, short)["result"]["text"].lower()
        wait_until(lambda: files_of(tmp_path) == {".lock", f"{short}/job.json", f"{short}/result.json"})
    assert [record.getMessage() for record in caplog.records] == []


def test_a_job_that_went_well_has_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def write_slowly(path: Path, data: bytes) -> int:
        time.sleep(0.3)
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_slowly)
    with serving(QuietModel(), jobs=JobSettings(str(tmp_path))) as server:
        name = created(server)
        while (answer := httpx.get(f"{server.url}/v1/jobs/{name}")).json()["status"] != "succeeded":
            assert answer.status_code == 200
        assert answer.json()["result"] is not None


def test_a_job_has_its_place_before_it_is_here(job_server: ServerThread) -> None:
    """Recordings on their way count: nobody sends more at once than may be kept."""
    jobs = job_server.state.jobs
    assert jobs is not None
    with jobs.new(""), jobs.new(""), jobs.new(""):
        name = created(job_server)
        assert post_job(job_server).status_code == 429
    deleted(job_server, name)
    created(job_server)


def test_jobs_are_bounded_in_number_and_bytes(job_server: ServerThread, tmp_path: Path, gate: Gate) -> None:
    names = [created(job_server) for _ in range(4)]
    refused = post_job(job_server)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    deleted(job_server, names[0])
    created(job_server)
    with serving(QuietModel(gate), jobs=JobSettings(str(tmp_path / "b"), most_mb=0.05)) as server:
        created(server)
        refused = post_job(server)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert len(listed(server)["data"]) == 1
        gate.open()


def test_a_result_goes_when_its_time_is_over(tmp_path: Path) -> None:
    with serving(QuietModel(), jobs=JobSettings(str(tmp_path), keep_s=1.0)) as server:
        name = created(server)
        wait_until(lambda: httpx.get(f"{server.url}/v1/jobs/{name}").status_code == 404)
        assert listed(server)["data"] == []
        wait_until(lambda: files_of(tmp_path) == {".lock"})
        assert httpx.get(f"{server.url}/v1/jobs/{name}").json()["error"]["code"] == "job_not_found"


KEYS = '[anna]\nkey = "key-of-anna"\n[bert]\nkey = "key-of-bert"\n'


def test_jobs_are_those_of_a_key(tmp_path: Path, gate: Gate) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    settings, access = JobSettings(str(tmp_path / "jobs"), most=4), Access(keys_file=str(file))
    with serving(QuietModel(gate), jobs=settings, access=access) as server:
        name = post_job(server, data=wav(64_000), key="key-of-anna").json()["id"]
        url, bert = f"{server.url}/v1/jobs/{name}", "key-of-bert"
        for method in ("GET", "DELETE"):
            assert httpx.request(method, url, headers=bearer(bert)).status_code == 404
        assert listed(server, key=bert)["data"] == []
        statuses = [post_job(server, key=bert).status_code for _ in range(3)]
        assert statuses == [202, 202, 429], "half of all"
        assert httpx.get(url).status_code == 401
        gate.open()


def test_owners_take_turns(tmp_path: Path, gate: Gate) -> None:
    """Who sends many keeps nobody waiting who sends one."""
    settings = JobSettings(str(tmp_path))
    for i, owner in enumerate(["anna"] * 5 + ["bert"]):
        create_job(tmp_path, made(i, owner=owner), io.BytesIO(WAV))
    with serving(QuietModel(gate), jobs=settings, limits=ServerLimits(requests=8)) as server:
        jobs = server.state.jobs
        assert jobs is not None
        wait_until(lambda: jobs.count("running") == 2)
        owners = {
            item.owner for item in [*jobs.jobs_of("anna"), *jobs.jobs_of("bert")] if item.status == "running"
        }
        assert owners == {"anna", "bert"}
        gate.open()


def made(created_at: int, **more: Any) -> TranscriptionJob:
    return TranscriptionJob(f"job_{created_at:032x}", created_at=created_at, filename="talk.wav", **more)


def test_a_new_start_has_finished_jobs_and_reads_unfinished_ones_again(tmp_path: Path, gate: Gate) -> None:
    settings = JobSettings(str(tmp_path))
    with serving(QuietModel(), jobs=settings) as server:
        done = created(server)
        result = ended(server, done)["result"]
    slow = QuietModel(gate)
    with serving(slow, jobs=settings, limits=ServerLimits(requests=4, shutdown_s=1.0)) as server:
        running = created(server)
        wait_until(lambda: slow.n_calls == 1)
        waiting = created(server)
        threading.Timer(1.0, gate.open).start()
    records = [json.loads((tmp_path / name / "job.json").read_text()) for name in (running, waiting)]
    assert [(record["status"], record["n_tries"]) for record in records] == [("queued", 0)] * 2
    with serving(QuietModel(), jobs=settings) as server:
        for name in (running, waiting):
            assert ended(server, name)["status"] == "succeeded"
        assert job(server, done)["result"] == result


def test_a_server_ends_whole_while_many_jobs_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is under way is not taken up anew by another worker as the server ends; and every thread ends."""
    jobs = [made(i) for i in range(30)]
    for item in jobs:
        create_job(tmp_path, item, io.BytesIO(WAV))
    model, before = QuietModel(lambda: time.sleep(0.1)), threads_of_servers()
    with caplog.at_level("WARNING"):
        for n_calls in (0, 1, 2):
            with serving(model, jobs=JobSettings(str(tmp_path)), limits=ServerLimits(requests=32)) as server:
                wait_until(lambda n=n_calls: model.n_calls > n)  # type: ignore[misc]
            assert server.state.jobs is not None
            assert server.state.jobs.count("running") > 0
    assert [record.getMessage() for record in caplog.records] == []
    assert threads_of_servers() <= before, "those of other servers, of this run of tests"
    records = [json.loads((tmp_path / item.id / "job.json").read_text()) for item in jobs]
    assert {record["n_tries"] for record in records if record["status"] == "queued"} <= {0}
    assert "running" not in {record["status"] for record in records}


def test_what_fails_beside_a_job_ends_that_job_alone(
    job_server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(openai_files, "json_answer", fail)
        assert ended(job_server, created(job_server))["status"] == "failed"
    assert ended(job_server, created(job_server))["status"] == "succeeded"


def test_a_recording_that_ends_the_server_again_and_again_is_given_up(tmp_path: Path) -> None:
    deadly = made(1, status="running", n_tries=MOST_TRIES - 1)
    create_job(tmp_path, deadly, io.BytesIO(WAV))
    model = QuietModel()
    with serving(model, jobs=JobSettings(str(tmp_path))) as server:
        assert ended(server, deadly.id)["error"]["code"] == "gave_up"
    assert model.n_calls == 0


def test_only_whole_jobs_are_found_and_names_of_others_are_left_alone(tmp_path: Path) -> None:
    whole, half, torn = (
        made(1, fields=[("language", "en")], webhook=Webhook("https://a.org")),
        made(2),
        made(3),
    )
    for item in (whole, half, torn):
        create_job(tmp_path, item, io.BytesIO(b"abc"))
    (tmp_path / half.id / "job.json").unlink()
    (tmp_path / torn.id / "job.json").write_text('{"id": ')
    (tmp_path / "notes").mkdir()
    assert load_jobs(tmp_path) == [whole]
    assert {path.name for path in tmp_path.iterdir()} == {"notes", whole.id}


def test_a_folder_is_of_one_server_and_can_be_written(tmp_path: Path) -> None:
    with (
        serving(QuietModel(), jobs=JobSettings(str(tmp_path))),
        pytest.raises(OptionError, match="another server has it"),
        serving(QuietModel(), jobs=JobSettings(str(tmp_path))),
    ):
        pass
    with serving(QuietModel(), jobs=JobSettings(str(tmp_path))):
        (tmp_path / "file").write_text("")
    with (
        pytest.raises(OptionError, match="expected a folder to write to"),
        serving(QuietModel(), jobs=JobSettings(str(tmp_path / "file"))),
    ):
        pass


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_is_full_refuses_jobs_and_ends_nothing(
    job_server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = created(job_server)
    ended(job_server, name)
    for place in ("save_job", "shutil.copyfileobj"):
        with monkeypatch.context() as patch:
            patch.setattr(f"{jobs_module.__name__}.{place}", full)
            refused = post_job(job_server)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_space")
    assert files_of(tmp_path / "jobs") == {".lock", f"{name}/job.json", f"{name}/result.json"}
    assert ended(job_server, created(job_server))["status"] == "succeeded"


def test_a_result_that_cannot_be_written_is_a_job_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    model = QuietModel(gate)
    with serving(model, jobs=JobSettings(str(tmp_path))) as server:
        name = created(server)
        wait_until(lambda: model.n_calls == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            gate.open()
            assert ended(server, name)["error"]["code"] == "no_space"
        assert ended(server, created(server))["status"] == "succeeded"


def test_a_job_needs_no_place_of_those_who_wait_and_keeps_few(tmp_path: Path, gate: Gate) -> None:
    """Who waits has all places; jobs are taken nevertheless, and the other way round."""
    model = QuietModel(gate)
    limits = ServerLimits(requests=4)
    with serving(model, jobs=JobSettings(str(tmp_path)), limits=limits) as server:
        for _ in range(6):
            created(server)
        wait_until(lambda: model.n_calls == 1)
        states = [item["status"] for item in listed(server)["data"]]
        assert sorted(states) == ["queued"] * 5 + ["running"]
        assert server.services.n_requests == 0
        with ThreadPoolExecutor() as threads:
            answers = [threads.submit(post, server) for _ in range(4)]
            wait_until(lambda: server.services.n_requests == 4)
            assert post_job(server).status_code == 202
            gate.open()
            assert [item.result().status_code for item in answers] == [200] * 4


def test_names_in_an_address_are_no_paths(job_server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for name in ("..%2f..%2fsecret", "%2e%2e", ".lock", "job_" + "0" * 32):
        for method in ("GET", "DELETE"):
            assert httpx.request(method, f"{job_server.url}/v1/jobs/{name}").status_code == 404
    assert (tmp_path / "secret").is_file()
