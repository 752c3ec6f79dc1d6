"""User input is never executed, except a user's script: no pickle, no shell, no evaluation of text."""

from __future__ import annotations

import ast
from pathlib import Path

# Suffixes of forbidden calls: the first six pickle objects, and unpickle data received over a socket.
FORBIDDEN = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list", "joblib.load", "cloudpickle.load", "read_pickle", "torch.hub.load", "torch.jit.load",
    "load_dataset", "eval", "exec", "compile", "__import__",
)  # fmt: skip
# Suffix of a call, and the argument that it requires; None if the call is forbidden. The linter (rules S) and
# bandit find pickle, marshal, YAML's loaders and shells.
RULES: dict[str, tuple[str, object] | None] = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "from_pretrained": ("trust_remote_code", False),
    "from_config": ("trust_remote_code", False),
    "dcp.save": ("no_dist", True),
    "dcp.load": ("no_dist", True),
    **dict.fromkeys(FORBIDDEN),
}
# These evaluate nothing: a module's mode, a regular expression, torch's compiler.
HARMLESS = {"re.compile", "torch.compile", "network.eval", "network.compile", "model.eval"}


def unsafe_calls(source: str) -> list[str]:
    """Return the calls in a program that could execute code from untrusted input."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        given = {word.arg: word.value for word in call.keywords}
        shell = given.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            found.append(f"line {call.lineno}: {name}(shell=…)")
        for rule, needed in RULES.items():
            is_meant = name == rule or (("." in rule or "_" in rule) and name.endswith(f".{rule}"))
            if not is_meant or name in HARMLESS:
                continue
            value = given.get(needed[0]) if needed is not None else None
            if needed is None or not (isinstance(value, ast.Constant) and value.value is needed[1]):
                found.append(f"line {call.lineno}: {name}")
    return found


def test_no_program_of_ours_runs_what_a_person_gave(repository: Path) -> None:
    sources = [repository / "app.py", *(repository / "ddp_gui").rglob("*.py")]
    sources += (repository / "trainers").rglob("*.py")
    assert len(sources) > 100
    found = {
        str(path.relative_to(repository)): calls
        for path in sources
        if (calls := unsafe_calls(path.read_text(encoding="utf-8")))
    }
    # A user's script is executed on purpose, in a separate process, by this module alone (docs/security.md).
    runner = found.pop("trainers/watch/__main__.py")
    assert [call.partition(": ")[2] for call in runner] == ["exec", "compile"]
    assert found == {}


def test_the_one_unpickler_takes_classes_of_its_list_only(repository: Path) -> None:
    """torch's sharded checkpoints have pickled metadata; its reader accepts only the classes of a list."""
    users = [
        path.relative_to(repository).as_posix()
        for folder in ("ddp_gui", "trainers")
        for path in (repository / folder).rglob("*.py")
        if "Unpickler)" in path.read_text(encoding="utf-8")
    ]
    assert users == ["trainers/checkpoint/sharded_files.py"]
    tree = ast.parse((repository / users[0]).read_text(encoding="utf-8"))
    unpickler = next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "Unpickler" in node.name
    )
    assert "find_class" in {item.name for item in unpickler.body if isinstance(item, ast.FunctionDef)}
