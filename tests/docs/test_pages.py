"""What the pages show and name is there: examples run, links lead somewhere, commands know their options."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import sottovoce
from benchmarks.__main__ import benchmarks
from sottovoce.api import Model
from sottovoce.cli.main import cli
from sottovoce.ctc import CtcOptions
from tests.docs.command_tables import MODEL, rewritten
from tests.docs.command_tables import PAGES as TABLED
from tests.docs.reference_page import field_table
from tests.docs.reference_page import rewritten as reference_rewritten

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sottovoce"
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "recipes").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *(ROOT / name for name in ("llms.txt", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
]
DISTRIBUTIONS = {"rapidocr_onnxruntime": "rapidocr-onnxruntime", "PIL": "pillow"}
"""Names of packages in an index, where they differ."""
FENCE = re.compile(r"^```(\w*)(?: needs=)?([\w,]*)(?: .*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Blocks: their language, packages that they need and the project does not, and their text."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
REPOSITORY = "https://github.com/sottovoce/sottovoce"


def text(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks() -> Iterator[tuple[str, re.Match[str]]]:
    for page in PAGES:
        for number, match in enumerate(FENCE.finditer(text(page))):
            yield f"{page.name}-{number}", match


def python_blocks() -> Iterator[object]:
    for name, match in blocks():
        if match[1] == "python":
            needs = [name for name in match[2].split(",") if name and not find_spec(name)]
            skip = pytest.mark.skipif(bool(needs), reason=f"{', '.join(needs)}: not installed")
            yield pytest.param(match[3], id=name, marks=[skip, pytest.mark.long] if match[2] else [])


def rows(page: str) -> list[list[str]]:
    """Cells of the rows of a page's tables, with heads."""
    lines = [line for line in text(f"docs/{page}").splitlines() if line.startswith("|")]
    result = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in result if "---" not in row[0]]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Anchors that GitHub and the site make of headings, and those that the page names."""
    prose = FENCE.sub("", text(page))
    heads = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)
        for head in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    ]
    created = [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads]
    return frozenset([*created, *re.findall(r'<a id="([^"]+)"', prose)])


def names_of(path: Path) -> set[str]:
    """Names of functions and classes anywhere in a file, and of what it assigns at its top."""
    tree = ast.parse(text(path))
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    result = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        result |= {target.id for target in targets if isinstance(target, ast.Name)}
    return result


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `examples` with short clips alone: the examples run in a quarter of the time."""
    folder = tmp_path_factory.mktemp("project") / "examples"
    (folder / "clips").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    for name, clip in (("en", "en"), ("de", "de"), ("mixed", "de")):
        shutil.copy(ROOT / "examples" / "clips" / f"{clip}.flac", folder / "clips" / f"{name}.flac")
    shutil.copytree(ROOT / "examples" / "phonemes", folder / "phonemes")
    return folder


@pytest.fixture
def run_example(
    model: Model, examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run code in a folder, with the bundled model that is loaded once; returns what it prints."""
    for home in (sottovoce, sottovoce.api):
        monkeypatch.setattr(home, "load_model", lambda name, **_: model if name == "nano" else None)

    def run(code: str, folder: Path = examples.parent) -> str:
        monkeypatch.chdir(folder)
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run


@pytest.mark.long
@pytest.mark.parametrize("code", [*python_blocks()])
def test_python_examples_run(
    code: str, run_example: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    if "CtcDecoder" in code:
        request.getfixturevalue("kernels")
    printed = run_example(code)
    promised = re.findall(r"^print\(.*\)  # ([^,\n]+)", code, re.MULTILINE)
    assert [each for each in promised if each not in printed] == []


def test_the_example_with_a_nemo_file_runs(
    kernels: None, tmp_path: Path, run_example: Callable[..., str]
) -> None:
    config = b"decoder: {vocabulary: [' ', a, b]}"
    with tarfile.open(tmp_path / "stt_en_conformer_ctc.nemo", "w") as file:
        entry = tarfile.TarInfo("model_config.yaml")
        entry.size = len(config)
        file.addfile(entry, io.BytesIO(config))
    grams = "\n".join(f"-1 {word}" for word in ("<s>", "</s>", "<unk>", "ab", "a"))
    (tmp_path / "words.arpa").write_text(f"\\data\\\nngram 1=5\n\n\\1-grams:\n{grams}\n\n\\end\\\n")
    (code,) = re.findall(r"^```py\n(.*?)^```$", text("docs/guides/ctc-model.md"), re.MULTILINE | re.DOTALL)
    code = f"import torch\nlogits = torch.eye(4)[[1, 2, 0, 1]] * 9\n{code}\nprint(hypotheses[0][0].text)"
    assert run_example(code, tmp_path) == "ab a\n"


def test_every_block_of_python_is_run() -> None:
    """Blocks `py` are fragments: tests/server/test_openapi.py runs those of the server's pages."""
    fragments = {name.rpartition("-")[0] for name, match in blocks() if match[1] == "py"}
    assert fragments == {"ctc-model.md", "protocol.md", "server.md", "serving.md"}
    fences = sum(line.startswith("```") for page in PAGES for line in text(page).splitlines())
    assert fences == 2 * len([*blocks()])
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    trees = [ast.parse(text(path)) for path in SOURCE.rglob("*.py")]
    docstrings = [
        ast.get_docstring(node) for tree in trees for node in ast.walk(tree) if isinstance(node, documented)
    ]
    shown = re.compile(r"^ *(?:>>>|```)", re.MULTILINE)
    assert [docstring for docstring in docstrings if docstring and shown.search(docstring)] == [], (
        "nothing runs these"
    )


def test_blocks_of_json_are_json() -> None:
    for name, match in blocks():
        if match[1] == "json":
            assert json.loads(match[3]), name


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_keeps_nothing_printed(
    kernels: None, notebook: Path, examples: Path, run_example: Callable[..., str]
) -> None:
    cells: list[dict[str, Any]] = json.loads(text(notebook))["cells"]
    sources = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in sources if cell["outputs"] or cell["execution_count"] is not None] == []
    run_example("\n".join("".join(cell["source"]) for cell in sources), examples / "notebooks")


def test_what_examples_need_is_installed_by_make_test() -> None:
    """Else they would skip wherever nobody happens to have it."""
    needed = {name for _, match in blocks() for name in match[2].split(",") if name}
    installed = re.findall(r"[\w-]+(?=[=>]=)", text("Makefile") + text("pyproject.toml"))
    assert needed
    assert {DISTRIBUTIONS.get(name, name) for name in needed} <= {name.lower() for name in installed}


def test_commands_are_understood() -> None:
    lines = [
        line
        for _, match in blocks()
        for line in match[3].replace("\\\n", " ").splitlines()
        if line.startswith("sottovoce ")
    ]
    assert len(lines) > 100
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        for stop in ("|", ">", "<"):
            words = words[: words.index(stop)] if stop in words else words
        command: click.Command = cli
        context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
        while isinstance(command, click.Group):
            name = words.pop(0)
            named = command.get_command(context, name)
            assert named is not None, f"{line}: no command {name}"
            command = named
            context = click.Context(command, parent=context, info_name=name)
        try:
            command.make_parser(context).parse_args(words)
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")


def benchmark_commands() -> Iterator[tuple[str, str, str]]:
    """Topic, name and arguments of each `python -m benchmarks …` of the pages."""
    for page in PAGES:
        whole = text(page)
        code = [
            line for match in FENCE.finditer(whole) for line in match[3].replace("\\\n", " ").splitlines()
        ]
        code += re.findall(r"`([^`]+)`", FENCE.sub("", whole))
        for line in code:
            yield from re.findall(r"python -m benchmarks\s+([a-z]+)\s+([a-z_]+)([^#|]*)", line)


@cache
def benchmark_options(path: Path) -> frozenset[str]:
    """Options of a benchmark: those in its file, and in the files of benchmarks that it imports."""
    is_passed_on = "parse_known_args" in text(path)
    result = (
        {flag for param in cli.get_command(click.Context(cli), "transcribe").params for flag in param.opts}
        if is_passed_on
        else set()
    )
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            result |= set(OPTION.findall(node.value))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            module = (ROOT / str(node.module).replace(".", "/")).with_suffix(".py")
            result |= benchmark_options(module) if module.exists() else set()
    return frozenset(result)


def test_every_benchmark_that_a_page_names_is_there_with_its_options() -> None:
    """Those of the past are named by their commit."""
    named = set(benchmark_commands())
    assert len(named) > 40
    there = {topic: benchmarks(topic) for topic in {topic for topic, _, _ in named}}
    assert [(topic, name) for topic, name, _ in named if name not in there[topic]] == []
    paths = [(ROOT / "benchmarks" / topic / f"{name}.py", arguments) for topic, name, arguments in named]
    options = [(path, option) for path, arguments in paths for option in OPTION.findall(arguments)]
    assert [(path.name, option) for path, option in options if option not in benchmark_options(path)] == []


def test_other_commands_name_what_is_there() -> None:
    """Targets of make, extras of pip, recipes, and, in a whole clone, scripts of the history."""
    whole = "\n".join(text(page) for page in PAGES)
    targets = set(re.findall(r"(?:^|`)make ([\w-]+)", whole, re.MULTILINE))
    assert targets <= set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    extras = {
        name for result in re.findall(r"pip install '\.\[([\w,-]+)\]", whole) for name in result.split(",")
    }
    assert extras <= set(re.findall(r"^([\w-]+) = \[", text("pyproject.toml"), re.MULTILINE))
    recipes = set(re.findall(r"python -m recipes\.(\w+)", whole))
    assert [name for name in recipes if not (ROOT / "recipes" / name).exists()] == []
    scripts = set(re.findall(r"git show\s+([0-9a-f]{7,8}\b[\w/.:]*)", whole))
    assert len(scripts) > 40
    git = ["git", "-C", str(ROOT), "cat-file", "-e"]
    if subprocess.run([*git, "7820649"], capture_output=True, check=False).returncode == 0:
        scripts = {name for name in scripts if "NAME" not in name and "FOLDER" not in name}
        gone = [name for name in scripts if subprocess.run([*git, name.rstrip(".")], check=False).returncode]
        assert gone == []


@pytest.mark.parametrize(("page", "marks", "created"), TABLED)
def test_the_tables_of_options_are_true(page: Path, marks: Any, created: Any) -> None:
    assert text(page) == rewritten(text(page), marks, created), (
        "bring it up to date: python -m tests.docs.command_tables"
    )


def test_the_reference_describes_every_public_name() -> None:
    headings = set(re.findall(r"^### (?:sottovoce\.)?(\w+)$", text("docs/reference.md"), re.MULTILINE))
    aliases = {"AudioSource", "Event"}
    assert set(sottovoce.__all__) - aliases - headings == set()
    assert all(f"`{alias}`" in text("docs/reference.md") for alias in aliases)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures differ between versions of Python")
def test_the_reference_is_that_of_the_docstrings() -> None:
    page = text("docs/reference.md")
    assert page == reference_rewritten(page), "bring it up to date: python -m tests.docs.reference_page"


def test_fields_of_the_reference_are_in_their_units() -> None:
    """An option is in milliseconds where its field is in seconds."""
    assert "| `frame_s` | `0.02` | `--frame-ms` | Seconds per frame. |" in field_table(CtcOptions)


def test_the_model_options_are_named() -> None:
    sentence = text("docs/cli.md").partition("**Model options**")[2].partition(".")[0]
    assert tuple(re.findall(r"`(--[\w-]+)`", sentence)) == MODEL


def broken_links(page: Path) -> Iterator[str]:
    """Links of a page to no file or anchor, and files of the source that it names and that are not there.

    Those of a commit, and those that a reader writes, are no links.
    """
    prose = FENCE.sub("", text(page))
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", prose)
    links += [(target, "") for target in re.findall(r' (?:src|srcset|href)="([^"#]+)"', prose)]
    for target, anchor in links:
        path = page.parent / target if target else page
        if "://" not in target and (
            not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors_of(path))
        ):
            yield f"{page.name}: {target}#{anchor}"
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", re.sub(r"git show [^`]*", "", prose)))
    for name in named - {"src/sottovoce/runtime/yours.py"}:
        if not any((root / name).exists() for root in (ROOT, SOURCE)):
            yield f"{page.name}: {name}"


def test_links_lead_somewhere_and_files_that_pages_name_are_there() -> None:
    assert [link for page in PAGES for link in broken_links(page)] == []


def test_spelling() -> None:
    pytest.importorskip("codespell_lib", reason="the extra check is not installed")
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        *(str(page) for page in PAGES),
        str(SOURCE),
        "benchmarks",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_task_of_a_newcomer_begins_where_it_says() -> None:
    tasks = [row for row in rows("architecture.md") if len(row) == 3 and row[0].endswith("?")]
    assert len(tasks) > 5
    for question, file, name in tasks:
        path = ROOT / file.strip("`")
        assert path.exists(), f"{question} {file} is not there"
        assert name.strip("`") in names_of(path), f"{question} {file} has no {name}"


@pytest.mark.long
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    assert "load_model" in reference
    assert "Hypotheses of the beam search; 1 is greedy." in reference
    assert "<!-- fields of" not in reference


def test_research_stays_within_its_words() -> None:
    """Old tables go when new ones come."""
    assert sum(len(text(page).split()) for page in PAGES if "research" in page.parts) <= 35_000


def test_every_page_is_in_the_menu() -> None:
    menu = text("mkdocs.yml").partition("\nnav:")[2]
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", menu)) == pages


def test_there_is_one_address_version_and_licence() -> None:
    files = ("pyproject.toml", "mkdocs.yml", "CITATION.cff", "CONTRIBUTING.md")
    for name in files:
        assert set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", text(name))) == {REPOSITORY}, name
    citation: dict[str, Any] = yaml.safe_load(text("CITATION.cff"))
    assert f'version = "{citation["version"]}"' in text("pyproject.toml")
    assert citation["license"] in text("pyproject.toml")


def test_every_version_of_python_is_tested() -> None:
    reported = set(re.findall(r"Python :: (3\.\d+)", text("pyproject.toml")))
    matrix = yaml.safe_load(text(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]["matrix"]
    assert reported == set(matrix["python"])


def test_workflows_run_what_is_there() -> None:
    paths = sorted((ROOT / ".github/workflows").glob("*.yml"))
    assert paths
    for path in paths:
        jobs: dict[str, Any] = yaml.safe_load(text(path))["jobs"]
        lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        targets = {word for line in lines for word in re.findall(r"^make (\S+)", line)}
        assert targets <= set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
        for line in lines:
            for command in re.findall(r"sottovoce (\w+)", line):
                assert command in cli.commands or cli.get_command(None, command)  # type: ignore[arg-type]
