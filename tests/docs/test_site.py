"""The documentation site is built without a warning, and what stands around the code agrees with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sottovoce.cli.main import cli

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
REPOSITORY = "https://github.com/sottovoce/sottovoce"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    assert "load_model" in page


def test_every_page_is_in_the_menu() -> None:
    menu = text("mkdocs.yml").partition("\nnav:")[2]
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", menu)) == pages


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "mkdocs.yml", "CITATION.cff", "CONTRIBUTING.md"], ids=lambda name: name
)
def test_one_address(name: str) -> None:
    found = re.findall(r"https://github\.com/[\w-]+/[\w-]+", text(name))
    assert set(found) == {REPOSITORY}


def test_the_citation_has_the_version() -> None:
    found: dict[str, Any] = yaml.safe_load(text("CITATION.cff"))
    assert f'version = "{found["version"]}"' in PROJECT
    assert found["license"] in PROJECT


@pytest.mark.parametrize("name", ["llms.txt", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_of_other_files_lead_somewhere(name: str) -> None:
    targets = [link for link in re.findall(r"\]\(([^)#\s]+)", text(name)) if "://" not in link]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_version_of_python_is_tested() -> None:
    told = set(re.findall(r"Python :: (3\.\d+)", PROJECT))
    matrix = yaml.safe_load(text(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]["matrix"]
    assert told == set(matrix["python"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_workflows_run_what_is_there(path: Path) -> None:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {word for line in lines for word in re.findall(r"^make (\S+)", line)}
    assert targets <= set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    for line in lines:
        for command in re.findall(r"sottovoce (\w+)", line):
            assert command in cli.commands or cli.get_command(None, command)  # type: ignore[arg-type]
