"""Loading of the native kernels package, and its limits."""

from __future__ import annotations

import importlib
from types import ModuleType

from sottovoce.errors import OptionError

WIDEST_HEAD = 256
"""Widest attention head of the native kernels."""


def load_kernels(part: str) -> ModuleType:
    """Import the package of native kernels with its module `part`.

    Raises:
        ImportError: not installed, too old or not loadable.
        OptionError: the environment names an instruction set that does not run here.
    """
    try:
        kernels = importlib.import_module("sottovoce_kernels")
        importlib.import_module(f"sottovoce_kernels.{part}")
        return kernels
    except ModuleNotFoundError as error:
        lack = "not installed" if error.name == "sottovoce_kernels" else "too old"
        raise ImportError(f"sottovoce-kernels is {lack} (pip install ./kernels)") from error
    except (OSError, AttributeError) as error:
        raise ImportError(f"sottovoce-kernels cannot be loaded: {error}") from error
    except ValueError as error:
        raise OptionError(str(error)) from error
