"""How many processes of a Ray cluster a command uses."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.options.schema import Option, check_options


@dataclass(frozen=True, slots=True)
class Replicas:
    """Servers or actors of a Ray cluster. cpus, gpus: of each."""

    n_min: int = 1
    n_max: int = 1
    cpus: float = 1.0
    gpus: float = Option(
        "GPUs for each server; with 0.25, four share one.", key="gpus_per_replica", least=0.0
    ).as_field(0.0)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.cpus > 0:
            raise OptionError(f"processes: expected more than 0 CPUs of each, got {self.cpus:g}")
        if not 1 <= self.n_min <= self.n_max:
            raise OptionError(
                f"processes: expected 1 or more, MIN-MAX in order, got {self.n_min}-{self.n_max}"
            )


def parse_range(option: str, text: str) -> tuple[int, int]:
    """Read N or MIN-MAX. Raises: OptionError."""
    least, dash, most = text.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()):
        raise OptionError(f"{option}: expected a number or MIN-MAX, got '{text}'")
    return int(least), int(most) if dash else int(least)
