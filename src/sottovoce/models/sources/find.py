"""From a model's name to a file or folder: bundled, on disk, in a cache, on the hub, in the package index."""

from __future__ import annotations

import os
from pathlib import Path

from sottovoce.errors import ModelNotFoundError, OptionError, cause_of
from sottovoce.models.sources import cache, hub, package_index
from sottovoce.models.sources.base import SourceError, Sources
from sottovoce.models.sources.names import (
    NANO,
    NANO_ASSET,
    list_models,
    looks_like_path,
    repository_of,
    unknown,
)


def resolve(name_or_path: str | Path, sources: Sources | None = None) -> Path:
    """Find the file or folder of a model, and fetch it if need be; a local path wins over a name.

    Raises: ModelNotFoundError; CheckpointError when what was fetched is not what it should be;
        OptionError for a revision or source of what comes from neither.
    """
    sources = sources or Sources()
    name = str(name_or_path)
    if not name:
        raise ModelNotFoundError("model: expected a name or a path, got ''")
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
    return _Search(name, repository, sources).path()


def local_path(name_or_path: str | Path) -> Path | None:
    """Return the file or folder that is meant; None where there is none, and a name is.

    A folder that is called like a model, where a command happens to run, is not meant unless it holds one:
    `./base` is.
    """
    path = Path(name_or_path).expanduser()
    is_name = str(name_or_path) in list_models() and not isinstance(name_or_path, Path)
    if is_name and path.is_dir() and not any((path / name).exists() for name in ("config.json", "model.bin")):
        return None
    return path if path.exists() else None


def cached(name: str, sources: Sources | None = None) -> Path | None:
    """Find a named model on this machine, whole and checked, without a network; None where it must be
    fetched.
    """
    if name == NANO:
        return NANO_ASSET if NANO_ASSET.exists() else None
    return _Search(name, repository_of(name), sources or Sources()).local()


def _plain(path: Path, name: str, sources: Sources) -> Path:
    """Return a path that needs no source.

    Raises: OptionError where one was given.
    """
    given = {"revision": sources.revision, "source": sources.only}
    for option, value in given.items():
        if value is not None:
            raise OptionError(f"{option} {value!r} given, but {name} is on this machine already")
    return path


class _Search:
    """The places of one name, in their order."""

    def __init__(self, name: str, repository: str | None, sources: Sources) -> None:
        self._name = name
        self._repository = None if sources.only == "index" else repository
        self._sources = sources
        self._entry = sources.in_index(name)
        self._folder = sources.folder(name)
        self._fault: str | None = None

    def path(self) -> Path:
        """What is here, else what can be fetched."""
        here = self.local()
        if here is not None:
            return here
        if self._sources.local_only:
            where = self._fault or f"not in {' or '.join(str(place) for place in self._places())}"
            raise ModelNotFoundError(f"{self._name}: {where}, and nothing is fetched with local_only")
        return self._fetched()

    def local(self) -> Path | None:
        """What is here: a person's own in the model folder, the hub's cache, ours."""
        own = self._own()
        if own is not None:
            return own
        if self._repository is not None:
            sources = self._sources
            found = hub.in_cache(self._repository, cache_dir=sources.model_dir, revision=sources.revision)
            if found is not None:
                return found
        if self._entry is not None and os.path.isdir(self._folder):
            self._fault = cache.fault(self._folder, self._entry.files)
            return None if self._fault else self._folder
        return None

    def _own(self) -> Path | None:
        """`model_dir/NAME` or `model_dir/NAME.pt`, put there by a person: used as any path is."""
        folder, sources = self._sources.model_dir, self._sources
        if folder is None or sources.only is not None or sources.revision is not None:
            return None
        whole = folder / self._name
        if os.path.exists(whole) and not cache.is_stamped(whole):
            return whole
        file = folder / f"{self._name}.pt"
        return file if os.path.isfile(file) else None

    def _fetched(self) -> Path:
        """From the hub, else from the package index; why one failed is said when the next is asked."""
        reasons = [self._fault] if self._fault else []
        for ask in (self._from_hub, self._from_index):
            try:
                found = ask("".join(f"{reason}; " for reason in reasons))
            except SourceError as error:
                if error.has_answered and self._entry is None:
                    raise ModelNotFoundError(f"{self._name}: {error}") from error
                reasons.append(str(error))
            except OSError as error:
                where = cause_of(error) + (f": {error.filename}" if error.filename else "")
                raise ModelNotFoundError(f"{self._name}: cannot be written to the cache ({where})") from error
            else:
                if found is not None:
                    return found
        raise ModelNotFoundError(self._nowhere(reasons))

    def _from_hub(self, _: str) -> Path | None:
        if self._repository is None:
            return None
        sources = self._sources
        return hub.fetch(self._repository, cache_dir=sources.model_dir, revision=sources.revision)

    def _from_index(self, why: str) -> Path | None:
        if self._entry is None:
            return None
        is_ours = self._sources.model_dir is None
        return package_index.fetch(self._name, self._entry, self._folder, why=why, replace=is_ours)

    def _nowhere(self, reasons: list[str]) -> str:
        """One line: why each source failed, and every way that is left."""
        others = ", ".join(self._sources.table)
        if self._entry is None and self._sources.only != "hub" and self._sources.revision is None:
            reasons = [*reasons, f"the package index has only {others}"]
        return (
            f"{self._name}: not in the cache; {'; '.join(reasons)}; a file or folder works too "
            "(--model PATH), and --model nano is bundled for a trial"
        )

    def _places(self) -> list[Path]:
        if self._sources.model_dir is not None:
            return [self._sources.model_dir]
        places = [hub.cache_folder()] if self._repository is not None else []
        return [*places, cache.cache_folder()] if self._entry is not None else places
