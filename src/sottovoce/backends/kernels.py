"""The package of native kernels: found, or said why not, and what it has room for."""

from __future__ import annotations

import importlib
from types import ModuleType

from sottovoce.errors import OptionError

WIDEST_HEAD = 256
"""Numbers of an attention head that the native kernels have room for."""


def load_kernels() -> ModuleType:
    """Import the package of native kernels, which chooses an instruction set, and its encoder.

    Raises: ImportError where it is not installed, is too old or cannot be loaded; OptionError where the
    environment names an instruction set that does not run here.
    """
    try:
        kernels = importlib.import_module("sottovoce_kernels")
        importlib.import_module("sottovoce_kernels.encoder")
        return kernels
    except ModuleNotFoundError as error:
        lack = "too old" if error.name == "sottovoce_kernels.encoder" else "not installed"
        raise ImportError(f"sottovoce-kernels is {lack} (pip install ./kernels)") from error
    except (OSError, AttributeError) as error:
        raise ImportError(f"sottovoce-kernels cannot be loaded: {error}") from error
    except ValueError as error:
        raise OptionError(str(error)) from error
