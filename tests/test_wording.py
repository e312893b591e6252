"""The source has one vocabulary: no name that was given up, shapes and errors in docstrings, no class name
twice.

A room is a folder or a module of `src/sottovoce`. Once a room follows these rules it is added to
`ROOMS_DONE`, and is held to them from then on.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import sottovoce
from sottovoce.cli.main import COMMANDS

ROOMS_DONE = (
    "alignment",
    "api",
    "archive",
    "audio",
    "backends",
    "cli",
    "ctc",
    "decoding",
    "engine",
    "errors",
    "evaluation",
    "formats",
    "jit",
    "language",
    "lm",
    "models",
    "offline",
    "options",
    "pictures",
    "serving",
    "speakers",
    "streaming",
    "text",
    "translation",
    "types",
)
"""Rooms, or parts of them ("decoding/ctc"), that hold to all of this."""
SOURCE = Path(sottovoce.__file__).parent

GIVEN_UP = {
    "asked": "callback, requested",
    "grow": "incremental, update",
    "growing": "incremental",
    "grown": "incremental result",
    "growth": "encoder update",
    "hear": "encode, detect, attend",
    "heard": "encoded, detected, acoustic, attended",
    "hearing": "encoding",
    "kept": "cache, survivors, retained",
    "known": "cache, prefix, supported, enrolled",
    "remembered": "cache, self_attention",
    "said": "tokens, committed, text",
    "settle": "commit, resolve",
    "settled": "committed, certain, common prefix",
    "settling": "common prefix",
    "teller": "emitter",
    "tell": "emit, report",
    "told": "emitted, reported",
    "weighing": "scaling",
    "wish": "request, params, config",
    "wished": "from_option",
    "wishes": "requests",
}
"""Everyday words that meant many things, and the field's words to take instead."""
NAMES_THAT_STAY = {"lm_kept", "tell"}
"""Public names that users write, and those of file objects."""
FIELDS_THAT_STAY = {
    "options/speakers.py": {"known"},
    "offline/languages.py": {"Heard", "heard"},
    "serving/recordings/known_speakers.py": {"known_speakers"},
}
"""The same, in one module alone."""
SHARED_MODULES = {"__init__", "base", "cache", "options", "follow", "languages", "timeline", "words"}
"""Module names that every room may have: its seam, its options, what it caches; and what recordings and live
speech each have their own of."""
ARRAYS = re.compile(r"\b(Tensor|ndarray|NDArray|Floats|Doubles|Ints|SmallInts|Bools|Records)\b")
SHAPE = re.compile(r"\((?:\.\.\.|[\w'*+/ -]+)(?:,(?: *[\w.'*+/() -]+)?)+\)|\bscalar\b|\bshape")
"""A shape: "(n,)", "(B, T, V)", "(..., n_frames)"."""
NOT_VERBS = {"a", "an", "all", "as", "for", "how", "in", "no", "of", "one", "the", "those", "what", "when",
             "where", "whether", "which", "who", "whose", "with"}  # fmt: skip
"""Words that no imperative begins with."""
CONTROL_FLOW = {"AssertionError", "KeyError", "NotImplementedError", "StopIteration", "AttributeError"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Public:
    """A public function or method, and the docstring of the class around it."""

    place: str
    node: Function
    owner: ast.ClassDef | None

    @property
    def text(self) -> str:
        """Its own docstring and that of its class, where its arguments are described."""
        around = ast.get_docstring(self.owner) if self.owner else None
        return f"{ast.get_docstring(self.node) or ''}\n{around or ''}"

    @property
    def is_command(self) -> bool:
        """Whether its docstring is the help of a command; its errors are lines for people there."""
        return any(".command(" in ast.unparse(each) for each in self.node.decorator_list)

    @property
    def is_property(self) -> bool:
        return any("property" in ast.unparse(each) for each in self.node.decorator_list)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules(*rooms: str) -> list[Path]:
    """The modules of some rooms; of all without any."""
    paths = (path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py")
    names = ((path, str(path.relative_to(SOURCE).with_suffix(""))) for path in paths)
    return [
        path for path, name in names if not rooms or any(f"{name}/".startswith(f"{room}/") for room in rooms)
    ]


def words_of(name: str) -> list[str]:
    """The words of a name in any case: `CtcDraft` and `ctc_draft` have two."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def public_functions(path: Path) -> Iterator[Public]:
    place = str(path.relative_to(SOURCE))
    for node in tree_of(path).body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield Public(f"{place}:{node.name}", node, None)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, Function) and not inner.name.startswith("_"):
                    yield Public(f"{place}:{node.name}.{inner.name}", inner, node)
                if isinstance(inner, Function) and inner.name in {"__init__", "__post_init__"}:
                    yield Public(f"{place}:{node.name}", inner, node)


def public_of(room: str) -> list[Public]:
    return [public for path in modules(room) for public in public_functions(path)]


@cache
def described_by_seams() -> frozenset[str]:
    """Methods that a Protocol describes with their shapes; classes behind it need not repeat them."""
    return frozenset(
        public.node.name
        for path in modules()
        for public in public_functions(path)
        if public.owner is not None
        and any("Protocol" in ast.unparse(base) for base in public.owner.bases)
        and SHAPE.search(public.text)
    )


def annotations(node: Function) -> str:
    """All annotations of a function, as text."""
    given = [arg.annotation for arg in (*node.args.args, *node.args.kwonlyargs)]
    return " ".join(ast.unparse(each) for each in (*given, node.returns) if each is not None)


def raised(node: Function) -> set[str]:
    """Names of the errors that a function raises itself, those that it catches again aside."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call):
            found.add(ast.unparse(inner.exc.func).split(".")[-1])
    return {name for name in found if name[0].isupper()} - CONTROL_FLOW


DONE = modules(*ROOMS_DONE)
each_room = pytest.mark.parametrize("room", ROOMS_DONE)


def test_every_room_is_there() -> None:
    assert [room for room in ROOMS_DONE if not modules(room)] == []


@each_room
def test_no_name_that_was_given_up(room: str) -> None:
    found = {
        f"{path.name}: {name}: {word}, rather {GIVEN_UP[word]}"
        for path in modules(room)
        for name in {path.stem, *defined_names(tree_of(path))}
        for word in words_of(name)
        if word in GIVEN_UP
        and name not in NAMES_THAT_STAY | FIELDS_THAT_STAY.get(str(path.relative_to(SOURCE)), set())
    }
    assert sorted(found) == []


@each_room
def test_functions_over_arrays_say_shapes(room: str) -> None:
    """In their own docstring, in that of their class, or in that of the Protocol that they stand behind."""
    missing = [
        public.place
        for public in public_of(room)
        if ARRAYS.search(annotations(public.node))
        and not SHAPE.search(public.text)
        and not (public.owner is not None and public.node.name in described_by_seams())
    ]
    assert missing == []


@each_room
def test_functions_that_raise_say_so(room: str) -> None:
    """By "Raises", or by the error's name, in their own docstring or that of their class."""
    missing = [
        f"{public.place}: {name}"
        for public in public_of(room)
        for name in sorted(raised(public.node))
        if name not in public.text and "Raises" not in public.text and not public.is_command
    ]
    assert missing == []


@each_room
def test_functions_begin_with_a_verb(room: str) -> None:
    """Properties and classes are things; functions do something."""
    found = []
    for public in public_of(room):
        words = re.findall(r"[\w']+", ast.get_docstring(public.node) or "")
        if words and not public.is_property and words[0].lower() in NOT_VERBS:
            found.append(f"{public.place}: {' '.join(words[:6])}")
    assert found == []


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for path in DONE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_module_names_are_unique() -> None:
    """Those of `options` aside, named after what they are of, and of commands, named as they are typed."""
    commands = {SOURCE.parent / f"{module.replace('.', '/')}.py" for module, _, _ in COMMANDS.values()}
    places = defaultdict(list)
    for path in set(DONE) - set(modules("options")) - commands:
        places[path.stem].append(str(path.relative_to(SOURCE)))
    assert {n: where for n, where in places.items() if len(where) > 1 and n not in SHARED_MODULES} == {}
