"""What a release depends on beyond a checkout: the native kernels, which have wheels of the same release.

In a checkout they are built from `kernels/`, or left out where there is no compiler.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsOfReleases(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("SOTTOVOCE_RELEASE"):
            build_data["dependencies"].append("sottovoce-kernels>=0.6")
