"""Select the tests that the changes of the working tree can affect, for `./test.sh` and `make quick`.

    python -m tools.select_tests [FOLDER]

Prints one argument for pytest per line: the affected test files, and a smoke test of each other area; or
`tests`, if everything must run. With a folder, prints only what is in it. A test file is affected if a
changed file can be reached from it:

- by an import, at the top of a file or in a function; of the helpers of tests, by the definitions in use;
- by a string that names a module or a Python file of this project, because it may be started as a program;
- by the conftest files above the test, and everything that the fixtures it uses refer to;
- by the registry, which discovers plug-ins.

A unit test is assumed to start only programs that it names itself.

Everything runs if no change is known, or if a changed file is not in this graph: data, assets, requirements,
configuration, scripts, a conftest, a deleted file, a module that no test needs. Pages of the documentation
affect only the tests that read all of them.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).resolve().parent.parent
EVERYTHING = ["tests"]
# Read all sources of the project: documentation, imports, unsafe calls.
ALWAYS = ("tests/unit/project", "tests/unit/attacks/test_unsafe_calls.py")
# By the folder that each represents.
SMOKE_TESTS = {
    "tests/integration": "tests/integration/test_run.py::"
    "test_run_goes_from_starting_over_running_to_finished",
    "tests/ui": "tests/ui/train/test_page.py::test_start_watch_checkpoint_reload_stop",
    "tests/faults": "tests/faults/test_bad_plugin.py::"
    "test_rank_that_raises_is_named_with_reason_and_traceback_within_15_s",
}
PLUG_INS = ("datasets", "mistakes", "models", "strategies", "tasks")
# Modules that import others by computed names.
DISCOVERED = {
    "trainers/registry.py": tuple(f"trainers/{kind}/" for kind in PLUG_INS),
    "tests/faults/scenes/__init__.py": ("tests/faults/scenes/",),
}
NAME = re.compile(r"[A-Za-z_]\w*(?:[./][A-Za-z_]\w*)*")
CONFTEST = "conftest.py"
TOPS = ("benchmarks", "ddp_gui", "rankscope", "tests", "tools", "trainers")
OF_TESTS = ("tests/", "tools/")
WHOLE = "*"


def main() -> None:
    """Print the selected tests."""
    selected = select(REPOSITORY, changed_files(REPOSITORY))
    print("\n".join(inside(sys.argv[1], selected) if sys.argv[1:] else selected))


def inside(folder: str, selected: list[str]) -> list[str]:
    """Return the selected tests of one folder; the folder itself, if everything must run."""
    if selected == EVERYTHING:
        return [folder]
    return [test for test in selected if test.startswith(f"{folder}/")]


def changed_files(repository: Path) -> list[str]:
    """Return the files that differ from the last commit, including untracked ones and both names of a move.

    The list is empty if that is unknown: without git, or in a copy without its history.
    """
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z"]
    if shutil.which(command[0]) is None:
        return []
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False).stdout
    return [entry[3:] for entry in found.split("\0") if entry]


def select(repository: Path, changed: Iterable[str]) -> list[str]:
    """Return the arguments for pytest.

    Args:
        changed: Paths of the changed files, relative to the repository.
    """
    wanted = set(changed)
    graph = Graph(repository)
    texts = {path for path in wanted if is_text(path)}
    unknown = wanted - texts - graph.files.keys()
    if not wanted or unknown or any(path.endswith(CONFTEST) for path in wanted):
        return EVERYTHING
    reached = {test: graph.reachable(test) for test in graph.tests()}
    if (wanted - texts).difference(*reached.values()):
        return EVERYTHING  # not needed by any test in this graph
    affected = sorted(test for test, needed in reached.items() if needed & wanted)
    selected = [test for test in affected if not test.startswith(ALWAYS)]
    smoke = [
        test for area, test in SMOKE_TESTS.items() if not any(each.startswith(area) for each in selected)
    ]
    return [*ALWAYS, *selected, *smoke]


def is_text(path: str) -> bool:
    """True if only the tests of the documentation read a file."""
    place = PurePosixPath(path)
    return place.suffix == ".md" and place.parent.as_posix() in (".", "docs", "benchmarks")


@dataclass(frozen=True)
class Part:
    """Statements of a file: the names in them, the modules they import, and the words of their strings."""

    names: frozenset[str]
    modules: frozenset[str]
    texts: frozenset[str]

    @classmethod
    def of(cls, nodes: Iterable[ast.AST], path: str) -> Part:
        """Return the combined part of these statements of a file."""
        names, modules, texts = set[str](), set[str](), set[str]()
        for node in (each for top in nodes for each in ast.walk(top)):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules.update(imported_names(node, path).values())
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.update(NAME.findall(node.value))
        return cls(frozenset(names), frozenset(modules), frozenset(texts))


class File:
    """A Python file.

    Attributes:
        whole: All of its statements.
        parts: Its definitions by name; "" contains all other statements.
        imports: The dotted names of imports at the top, by their name in this file.
        always: The names of its definitions that pytest uses for every test below its folder.
    """

    def __init__(self, path: str, source: bytes) -> None:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
                node, False
            ):
                del node.body[0]  # a docstring starts no program
        self.imports: dict[str, str] = {}
        self.parts: dict[str, Part] = {}
        self.always: set[str] = {""}
        rest = []
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= imported_names(node, path)
                continue
            names = defined_names(node)
            part = Part.of([node], path)
            self.parts |= dict.fromkeys(names, part)
            if "autouse" in source.decode() and "autouse=True" in ast.unparse(node):
                self.always.update(names)
            self.always.update(name for name in names if name.startswith("pytest_"))
            rest += [] if names else [node]
        self.parts[""] = Part.of(rest, path)
        self.whole = Part.of(tree.body, path)


class Graph:
    """The Python files of the project and their dependencies.

    A test needs only the definitions that it uses of test helpers, but all definitions of other files.

    Attributes:
        files: All files by their path, relative to the repository.
    """

    def __init__(self, repository: Path) -> None:
        paths = [
            *repository.glob("*.py"),
            *(path for top in TOPS for path in (repository / top).rglob("*.py")),
        ]
        names = [path.relative_to(repository).as_posix() for path in paths]
        self.files = {name: File(name, path.read_bytes()) for name, path in zip(names, paths, strict=True)}
        self._needed: dict[tuple[str, str, bool], set[tuple[str, str]]] = {}
        by_name = Counter(path.name for path in paths)
        self._unique = {
            PurePosixPath(path).name: path for path in names if by_name[PurePosixPath(path).name] == 1
        }

    def tests(self) -> list[str]:
        """Return the test files."""
        return [path for path in self.files if PurePosixPath(path).name.startswith("test_")]

    def reachable(self, test: str) -> set[str]:
        """Return the files that a test file needs, itself included."""
        done, names = set[tuple[str, str]](), set[str]()
        self._follow({(test, WHOLE)}, done, names, is_unit=test.startswith("tests/unit/"))
        conftests = {
            (place / CONFTEST).as_posix() for place in PurePosixPath(test).parents
        } & self.files.keys()
        for path in sorted(
            conftests, key=len, reverse=True
        ):  # nearest first, because a conftest uses the fixtures of those above it
            fixtures = {
                (path, name) for name in self.files[path].parts.keys() & (names | self.files[path].always)
            }
            self._follow(fixtures, done, names, is_unit=test.startswith("tests/unit/"))
        return {path for path, _ in done}

    def _follow(
        self, todo: set[tuple[str, str]], done: set[tuple[str, str]], names: set[str], *, is_unit: bool
    ) -> None:
        """Add what the definitions in `todo` depend on to `done`, and names in tests' files to `names`."""
        while todo:
            path, name = item = todo.pop()
            done.add(item)
            if path.startswith(OF_TESTS):
                names |= self._part(path, name).names
            key = (path, name, is_unit)
            if key not in self._needed:
                self._needed[key] = self._find_needed(path, name, is_unit)
            todo |= self._needed[key] - done

    def _part(self, path: str, name: str) -> Part:
        file = self.files[path]
        return file.whole if name == WHOLE else file.parts[name]

    def _find_needed(self, path: str, name: str, is_unit: bool) -> set[tuple[str, str]]:
        """Return the dependencies of a definition, or of a complete file."""
        file, part = self.files[path], self._part(path, name)
        found = {item for module in part.modules for item in self._resolve(module)}
        if name != WHOLE:
            imported = [file.imports[each] for each in part.names & file.imports.keys()]
            found |= {item for module in imported for item in self._resolve(module)}
            found |= {(path, each) for each in part.names & file.parts.keys()} | {(path, "")}
        if path.startswith(OF_TESTS) or not is_unit:  # unit tests start only programs that they name
            found |= {item for text in part.texts for item in self._of_text(text)}
        for start in DISCOVERED.get(path, ()):
            found |= {(each, WHOLE) for each in self.files if each.startswith(start)}
        return found

    def _resolve(self, name: str) -> set[tuple[str, str]]:
        """Return the definition or module with a dotted name, and the packages that contain it."""
        parts, found = name.split("."), set[tuple[str, str]]()
        for end in range(1, len(parts) + 1):
            place = "/".join(parts[:end])
            for path in (f"{place}.py", f"{place}/__init__.py"):
                if path in self.files:
                    is_helper = path.startswith("tests/") and not PurePosixPath(path).name.startswith("test_")
                    is_definition = (
                        is_helper and end == len(parts) - 1 and parts[-1] in self.files[path].parts
                    )
                    found.add((path, parts[-1] if is_definition else WHOLE))
        return found

    def _of_text(self, name: str) -> set[tuple[str, str]]:
        """Return the file that a string names, or the main module of a package that it names."""
        if (path := self._unique.get(name, name)) in self.files:
            return self._resolve(path.removesuffix(".py").replace("/", "."))
        if "." not in name or "/" in name:
            return set()
        return self._resolve(name) | self._resolve(f"{name}.__main__")


def defined_names(node: ast.AST) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return []


def imported_names(node: ast.Import | ast.ImportFrom, path: str) -> dict[str, str]:
    """Return the dotted names of all imports of a statement, by their name in this file."""
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name: alias.name for alias in node.names}
    parents = PurePosixPath(path).parts[: -node.level] if node.level else ()
    module = ".".join([*parents, *([node.module] if node.module else [])])
    return {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}


if __name__ == "__main__":
    main()
