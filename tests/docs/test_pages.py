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
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from benchmarks.__main__ import benchmarks
from sottovoce.cli.main import cli
from tests.docs.command_tables import MODEL, rewritten
from tests.docs.command_tables import PAGES as TABLED
from tests.fresh_process import run_code

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
TEST = re.compile(r'^\[yes\]\(\.\./(?P<file>tests/[\w/]+\.py) "(?P<test>test_\w+)"\)$')
GIVEN_UP = (
    r"(?i)\b(?:mended|seams?|the house|misheard|unheard|(?:is|are) told|anew|in company|chose nothing|of now"
    r"|believed of|by ear|sureness)\b"
)
"""Words of an earlier style (style: the field's terms)."""
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


def commands() -> Iterator[object]:
    for name, match in blocks():
        for line in match[3].replace("\\\n", " ").splitlines():
            if line.startswith("sottovoce "):
                yield pytest.param(line, id=f"{name}: {line[:60]}")


def rows(page: str) -> list[list[str]]:
    """Cells of the rows of a page's tables, with heads."""
    lines = [line for line in text(f"docs/{page}").splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in found if "---" not in row[0]]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Anchors that GitHub and the site make of headings, and those that the page names."""
    prose = FENCE.sub("", text(page))
    heads = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)
        for head in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    ]
    made = [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads]
    return frozenset([*made, *re.findall(r'<a id="([^"]+)"', prose)])


def names_of(path: Path) -> set[str]:
    """Names of functions and classes anywhere in a file, and of what it assigns at its top."""
    tree = ast.parse(text(path))
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


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


def assert_runs(code: str, folder: Path, output: Path) -> None:
    result = run_code(code, folder, output)
    if "needs the native kernels" in output.read_text():
        pytest.skip("sottovoce-kernels is not installed")
    assert result == 0, output.read_text()


@pytest.mark.parametrize("code", [*python_blocks()])
def test_python_examples_run(code: str, examples: Path, tmp_path: Path) -> None:
    assert_runs(code, examples.parent, tmp_path / "said")


def test_the_example_with_a_nemo_file_runs(kernels: None, tmp_path: Path) -> None:
    config = b"decoder: {vocabulary: [' ', a, b]}"
    with tarfile.open(tmp_path / "stt_en_conformer_ctc.nemo", "w") as file:
        entry = tarfile.TarInfo("model_config.yaml")
        entry.size = len(config)
        file.addfile(entry, io.BytesIO(config))
    grams = "\n".join(f"-1 {word}" for word in ("<s>", "</s>", "<unk>", "ab", "a"))
    (tmp_path / "words.arpa").write_text(f"\\data\\\nngram 1=5\n\n\\1-grams:\n{grams}\n\n\\end\\\n")
    (code,) = re.findall(r"^```py\n(.*?)^```$", text("docs/guides/ctc-model.md"), re.MULTILINE | re.DOTALL)
    code = f"import torch\nlogits = torch.eye(4)[[1, 2, 0, 1]] * 9\n{code}\nprint(hypotheses[0][0].text)"
    assert run_code(code, tmp_path, tmp_path / "printed") == 0, (tmp_path / "printed").read_text()
    assert (tmp_path / "printed").read_text() == "ab a\n"


def test_every_block_of_python_is_run() -> None:
    """Blocks `py` are fragments: tests/server/test_docs.py runs those of the server's pages."""
    fragments = {name.rpartition("-")[0] for name, match in blocks() if match[1] == "py"}
    assert fragments == {"ctc-model.md", "protocol.md", "serving.md"}
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


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_keeps_nothing_printed(notebook: Path, examples: Path, tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = json.loads(text(notebook))["cells"]
    sources = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in sources if cell["outputs"] or cell["execution_count"] is not None] == []
    code = "\n".join("".join(cell["source"]) for cell in sources)
    assert_runs(code, examples / "notebooks", tmp_path / "said")


def test_what_examples_need_is_installed_by_make_test() -> None:
    """Else they would skip wherever nobody happens to have it."""
    needed = {name for _, match in blocks() for name in match[2].split(",") if name}
    installed = re.findall(r"[\w-]+(?=[=>]=)", text("Makefile") + text("pyproject.toml"))
    assert needed
    assert {DISTRIBUTIONS.get(name, name) for name in needed} <= {name.lower() for name in installed}


@pytest.mark.parametrize("line", [*commands()])
def test_commands_are_understood(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    for stop in ("|", ">", "<"):
        words = words[: words.index(stop)] if stop in words else words
    command: click.Command = cli
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command = found
        context = click.Context(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(words)


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
    found = (
        {flag for one in cli.get_command(click.Context(cli), "transcribe").params for flag in one.opts}
        if is_passed_on
        else set()
    )
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(OPTION.findall(node.value))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            module = (ROOT / str(node.module).replace(".", "/")).with_suffix(".py")
            found |= benchmark_options(module) if module.exists() else set()
    return frozenset(found)


def test_every_benchmark_that_a_page_names_is_there_with_its_options() -> None:
    """Those of the past are named by their commit."""
    named = set(benchmark_commands())
    assert len(named) > 40
    there = {topic: benchmarks(topic) for topic, _, _ in named}
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
        name for found in re.findall(r"pip install '\.\[([\w,-]+)\]", whole) for name in found.split(",")
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


@pytest.mark.parametrize(("page", "marks", "made"), TABLED)
def test_the_tables_of_options_are_true(page: Path, marks: Any, made: Any) -> None:
    assert text(page) == rewritten(text(page), marks, made), (
        "bring it up to date: python -m tests.docs.command_tables"
    )


def test_the_model_options_are_named() -> None:
    sentence = text("docs/cli.md").partition("**Model options**")[2].partition(".")[0]
    assert tuple(re.findall(r"`(--[\w-]+)`", sentence)) == MODEL


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", text(page))
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose)
    targets += re.findall(r' (?:src|srcset|href)="([^"#]+)"', prose)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
    anchors = [link for link in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", prose) if "://" not in link[0]]
    places = [((page.parent / target) if target else page, anchor) for target, anchor in anchors]
    assert [
        anchor for path, anchor in places if path.suffix == ".md" and anchor not in anchors_of(path)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_source_that_a_page_names_are_there(page: Path) -> None:
    """But for those of a commit, and those that a reader writes."""
    prose = re.sub(r"git show [^`]*", "", FENCE.sub("", text(page)))
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", prose)) - {"src/sottovoce/runtime/yours.py"}
    missing = [name for name in named if not any((root / name).exists() for root in (ROOT, SOURCE))]
    assert missing == []


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_words_that_were_given_up_stay_away(page: Path) -> None:
    assert re.findall(GIVEN_UP, FENCE.sub("", text(page))) == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "research").glob("*.md")), ids=lambda page: page.name
)
def test_every_section_with_a_table_of_research_says_where_its_figures_are_from(page: Path) -> None:
    whole = FENCE.sub(lambda block: block[3], text(page))
    sections = [part for part in re.split(r"^#+ ", whole, flags=re.MULTILINE) if "\n|" in part]
    source = (
        r"python -m|git\s+show|git ls-files|pytest|sottovoce [a-z]|tests/|a script|by hand|[Bb]y arithmetic"
    )
    heads = {part.split("\n")[0] for part in sections if not re.search(source, part)}
    assert heads <= {"Research", "Data", "Renamed in Python"}


def test_every_table_of_figures_has_its_command() -> None:
    sections = re.split(
        r"^##+ ", FENCE.sub(lambda block: block[3], text("docs/benchmarks.md")), flags=re.MULTILINE
    )
    with_tables = [section for section in sections if "\n|" in section]
    assert len(with_tables) > 8
    heads = [section.split("\n")[0] for section in with_tables if "python -m benchmarks" not in section]
    assert heads == []


def test_a_task_of_a_newcomer_begins_where_it_says() -> None:
    tasks = [row for row in rows("architecture.md") if len(row) == 3 and row[0].endswith("?")]
    assert len(tasks) > 5
    for question, file, name in tasks:
        path = ROOT / file.strip("`")
        assert path.exists(), f"{question} {file} is not there"
        assert name.strip("`") in names_of(path), f"{question} {file} has no {name}"


def test_a_term_of_the_glossary_is_in_the_code() -> None:
    paths = list(SOURCE.rglob("*.py"))
    words = {word for path in paths for word in re.findall(r"\w+", text(path))}
    files = {path.name for path in paths}
    terms = [row for row in rows("glossary.md") if len(row) == 4 and row[0] != "term"]
    assert terms
    for term, meaning, place, _ in terms:
        name = place.strip("`")
        assert meaning, term
        if name.endswith(".py"):
            assert Path(name).name in files, f"{term}: there is no {name}"
        elif name != "–":
            assert name in words, f"{term}: the code has no {name}"


def test_what_is_ours_beside_other_projects_has_its_test() -> None:
    table = [[cell.strip() for cell in row] for row in rows("compared.md") if row[0].strip()]
    assert len(table) > 20
    assert {len(row) for row in table} == {7}
    assert all(all(row) for row in table)
    assert len({row[0] for row in table}) == len(table)
    for row in table:
        if row[-1] != "–":
            found = TEST.match(row[-1])
            assert found is not None, f'{row[0]}: expected [yes](../tests/file.py "test"), got {row[-1]}'
            assert found["test"] in names_of(ROOT / found["file"]), f"{row[0]}: no {found['test']}"


@pytest.mark.long
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    assert "load_model" in reference
    assert "Hypotheses of the beam search; 1 is greedy." in reference
    assert "<!-- fields of" not in reference


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
    told = set(re.findall(r"Python :: (3\.\d+)", text("pyproject.toml")))
    matrix = yaml.safe_load(text(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]["matrix"]
    assert told == set(matrix["python"])


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
