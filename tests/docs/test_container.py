"""The Dockerfile and the compose file: what linters say, and that what they name is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sottovoce.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    assert HADOLINT is not None
    done = subprocess.run([HADOLINT, str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_command_of_the_image_is_understood() -> None:
    result = re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert result
    program, command, *words = json.loads(result[1])
    context = click.Context(cli, info_name=program, **cli.context_settings)
    known = cli.get_command(context, command)
    assert known is not None
    given = known.make_context(command, words, parent=context).params
    assert (given["host"], given["port"]) == ("0.0.0.0", 8000)


def test_what_the_image_copies_is_there_and_sent_to_it() -> None:
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for names in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in names.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in sent


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_has_no_privileges_and_listens_on_this_machine_alone(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") and port.endswith(":8000") for port in service["ports"])
    assert all(volume.split(":")[0] in COMPOSE["volumes"] for volume in service["volumes"])
    variables = {variable.removeprefix("SOTTOVOCE_SERVE_").lower() for variable in service["environment"]}
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    known = cli.get_command(context, "serve")
    assert known is not None
    assert variables - {"api_keys"} <= {parameter.name for parameter in known.params}


def test_the_images_user_has_no_rights() -> None:
    *_, user = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert int(user) > 0
