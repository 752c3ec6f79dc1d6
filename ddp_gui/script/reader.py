"""Analyses a script without running it: options, how its ranks start, and requests for GPUs."""

from __future__ import annotations

import ast
import builtins
import math
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MAX_OPTIONS = 100
MAX_TEXT = 500

Start = Literal["torchrun", "python"]


@dataclass(frozen=True, kw_only=True)
class ScriptOption:
    """An option of a script's command line.

    Attributes:
        flag: the flag, such as --lr, or the name of a positional argument.
        kind: text, number, whole, switch, or choice.
        default: the default value; None if missing or not a constant.
        is_list: True if it takes several values, separated by spaces.
    """

    flag: str
    kind: str
    default: Any = None
    choices: tuple[str, ...] = ()
    help: str = ""
    is_required: bool = False
    is_positional: bool = False
    is_list: bool = False


@dataclass(frozen=True, kw_only=True)
class CodeMark:
    """A line of the script that the page marks, with the reason."""

    line: int
    message: str
    level: Literal["error", "gpu", "added"]


@dataclass(frozen=True, kw_only=True)
class ScriptReading:
    """Facts from the text of a script.

    Attributes:
        start: the program that starts the script, with the reason as a sentence in `why`.
        num_ranks: the number of ranks in the script's source, or None.
        marks: lines that request GPUs, or the line of a syntax error.
        missing: names that are used but not defined.
        uncalled: the function that trains, if it is never called. `uncalled_setup` and `uncalled_cleanup`:
            likewise, the functions that join and leave the process group.
    """

    start: Start = "torchrun"
    why: str = ""
    num_ranks: int | None = None
    options: tuple[ScriptOption, ...] = ()
    marks: tuple[CodeMark, ...] = ()
    missing: tuple[str, ...] = ()
    uncalled: str | None = None
    uncalled_setup: str | None = None
    uncalled_cleanup: str | None = None
    problem: str | None = None
    uses_watch: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the reading as JSON values."""
        return asdict(self)


def read(text: str) -> ScriptReading:
    """Read the text of a script."""
    try:
        tree = ast.parse(text)
        table = symtable.symtable(text, "script", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        detail = getattr(error, "msg", None) or str(error)
        message = f"Line {line}: {detail}."
        return ScriptReading(problem=message, marks=(CodeMark(line=line, message=message, level="error"),))
    facts = ScriptFacts(tree, table)
    start, reason = facts.start()
    return ScriptReading(
        start=start,
        why=reason,
        num_ranks=facts.num_ranks(),
        options=tuple(_options(tree))[:MAX_OPTIONS],
        marks=tuple(facts.gpu_marks()),
        missing=tuple(facts.missing_names()),
        uncalled=facts.uncalled(),
        uncalled_setup=facts.uncalled("init_process_group"),
        uncalled_cleanup=facts.uncalled("destroy_process_group"),
        uses_watch="watch" in facts.imported,
    )


def _called_name(node: ast.Call) -> str:
    """Return the dotted name of the called function, or ""."""
    parts: list[str] = []
    function: ast.expr = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    elif not parts:
        return ""
    return ".".join(reversed(parts))


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _constant(node: ast.expr | None) -> Any:
    """Return the value of a constant, a negative number or a list of constants; else None."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(item) for item in node.elts]
    return None


# Names of variables whose numbers select a GPU, as in `.to(rank)`.
_GPU_VARIABLES = ("rank", "local_rank", "gpu", "gpu_id", "device_id")


@dataclass
class ScriptFacts:
    """Names and calls of a script."""

    tree: ast.Module
    table: symtable.SymbolTable
    calls: list[tuple[str, ast.Call]] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                self.calls.append((_called_name(node), node))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imported |= {alias.name.partition(".")[0] for alias in node.names}
                if isinstance(node, ast.ImportFrom) and node.module:
                    self.imported.add(node.module.partition(".")[0])
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def first(self, *names: str) -> ast.Call | None:
        """Return the first call of a function with one of these names."""
        matches = [call for name, call in self.calls if name.rpartition(".")[2] in names]
        return min(matches, key=lambda call: call.lineno, default=None)

    def reads(self, *names: str) -> bool:
        """True if the script contains a string with one of these names."""
        return any(isinstance(node, ast.Constant) and node.value in names for node in ast.walk(self.tree))

    # How it starts

    def start(self) -> tuple[Start, str]:
        spawn = next(
            (call for name, call in self.calls if name.endswith(("mp.spawn", "multiprocessing.spawn"))), None
        )
        spawn = spawn or next(
            (call for name, call in self.calls if name in ("spawn", "start_processes")), None
        )
        if spawn is not None:
            return "python", f"Started with python: line {spawn.lineno} starts the ranks (mp.spawn)."
        process = next((call for name, call in self.calls if name.rpartition(".")[2] == "Process"), None)
        if process is not None and self.first("init_process_group") is not None:
            return "python", f"Started with python: line {process.lineno} starts the ranks (Process)."
        launcher = self.first("notebook_launcher", "elastic_launch")
        if launcher is not None:
            return "python", f"Started with python: line {launcher.lineno} starts the ranks."
        init_call = self.first("init_process_group")
        if init_call is None:
            if self.first("Trainer", "Accelerator", "fully_shard", "init_device_mesh") is not None:
                return (
                    "torchrun",
                    "Started with torchrun: the script's library joins the ranks that torchrun starts.",
                )
            rank_call = self.first("DistributedDataParallel", "DDP", "DistributedSampler", "get_rank")
            if rank_call is not None:
                reason = f"line {rank_call.lineno} uses ranks, and another file may create the process group"
                return "torchrun", f"Started with torchrun: {reason}."
            return (
                "python",
                "Started with python: the script has no process group, so it is a single process.",
            )
        if _keyword(init_call, "rank") is not None and not self.reads("RANK", "LOCAL_RANK"):
            reason = f"line {init_call.lineno} needs rank and world_size, which torchrun provides"
            return "torchrun", f"Started with torchrun: {reason}."
        reason = f"line {init_call.lineno} joins the ranks that torchrun starts"
        return "torchrun", f"Started with torchrun: {reason}."

    def num_ranks(self) -> int | None:
        """Return the number of ranks in the script's source, or None."""
        spawn, init_call = self.first("spawn", "start_processes"), self.first("init_process_group")
        if self.start()[0] == "python" and spawn is None and init_call is None:
            return 1
        for call, name in ((spawn, "nprocs"), (init_call, "world_size")):
            value = None if call is None else self._number(_keyword(call, name))
            if value is not None and 1 <= value <= 1024:
                return value
        return None

    def _number(self, node: ast.expr | None) -> int | None:
        if isinstance(node, ast.Name):
            for statement in ast.walk(self.tree):
                is_assignment = isinstance(statement, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == node.id for target in statement.targets
                )
                if is_assignment and isinstance(number := _constant(statement.value), int):  # type: ignore[attr-defined]
                    return number
            return None
        value = _constant(node)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    # GPUs

    def gpu_marks(self) -> Iterator[CodeMark]:
        seen = set()
        for name, call in sorted(self.calls, key=lambda item: item[1].lineno):
            message = self._gpu_request(name, call)
            if message and (call.lineno, message) not in seen:
                seen.add((call.lineno, message))
                yield CodeMark(line=call.lineno, message=message, level="gpu")

    def _gpu_request(self, name: str, call: ast.Call) -> str:
        function = name.rpartition(".")[2]
        values = [
            *call.args,
            *(keyword.value for keyword in call.keywords if keyword.arg in ("device", "backend")),
        ]
        if function == "init_process_group" and any(
            _constant(self._resolve(value)) == "nccl" for value in values
        ):
            return "requests NCCL, which needs GPUs"
        if isinstance(call.func, ast.Attribute) and function == "cuda":
            return ".cuda() needs a GPU"
        if name.endswith("cuda.set_device"):
            return "set_device needs a GPU"
        if function == "to" and any(self._is_gpu(value) for value in call.args[:1]):
            return ".to(…) needs a GPU"
        if function in ("DistributedDataParallel", "DDP") and _keyword(call, "device_ids") is not None:
            return "device_ids needs a GPU"
        if any(self._is_gpu(keyword.value) for keyword in call.keywords if keyword.arg == "device"):
            return "requests a tensor on a GPU"
        return ""

    def _resolve(self, node: ast.expr) -> ast.expr:
        """Return the value of a global name that is assigned once at the top of the script."""
        if isinstance(node, ast.Name):
            values = [
                statement.value
                for statement in self.tree.body
                if isinstance(statement, ast.Assign)
                and any(isinstance(target, ast.Name) and target.id == node.id for target in statement.targets)
            ]
            if len(values) == 1:
                return values[0]
        return node

    def _is_gpu(self, node: ast.expr) -> bool:
        """True if an argument certainly selects a GPU: "cuda…", or the rank in `.to(rank)`."""
        is_rank = isinstance(node, ast.Name) and node.id.lower() in _GPU_VARIABLES
        node = self._resolve(node)
        if isinstance(node, ast.IfExp):
            return False  # a condition selects "cuda" only if a GPU exists
        if isinstance(node, ast.JoinedStr):
            node = node.values[0] if node.values else node
        if isinstance(node, ast.Call) and _called_name(node) == "torch.device":
            return bool(node.args) and self._is_gpu(node.args[0])
        text = _constant(node)
        return text.startswith("cuda") if isinstance(text, str) else is_rank

    # Missing parts of a listing

    def missing_names(self) -> list[str]:
        """Return the names that are used but not defined, in the order of their first use."""
        star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in self.tree.body)
        if star:
            return []  # a star import may define any name
        tables = list(_tables(self.table))
        defined = {symbol.get_name() for symbol in tables[0].get_symbols() if _is_defined(symbol)}
        for table in tables[1:]:  # `global NAME` in a function defines it, too
            defined |= {
                symbol.get_name()
                for symbol in table.get_symbols()
                if symbol.is_declared_global() and symbol.is_assigned()
            }
        referenced = {
            symbol.get_name()
            for number, table in enumerate(tables)
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (number == 0 or symbol.is_global())
        }
        missing = referenced - defined - _BUILTINS
        used = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id in missing]
        used.sort(key=lambda node: (node.lineno, node.col_offset))
        return list(dict.fromkeys(node.id for node in used))

    def uncalled(self, callee: str = "backward") -> str | None:
        """Return a function that calls `callee` (by default `backward`) and is never called, or None."""
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        if "globals" in used:
            return None  # the script may call any function by its name
        for name, function in self.functions.items():
            calls = (
                _called_name(node).rpartition(".")[2]
                for node in ast.walk(function)
                if isinstance(node, ast.Call)
            )
            if name not in used and callee in calls:
                return name
        return None


_BUILTINS = frozenset({*dir(builtins), "__file__", "__annotations__"})


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _is_defined(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


_KINDS = {"int": "whole", "INT": "whole", "float": "number", "FLOAT": "number"}
_KIND_BY_DEFAULT = {int: "whole", float: "number"}
# Actions of argparse for which a form has no field.
_UNSUPPORTED_ACTIONS = ("help", "version", "append", "extend", "count")


def _options(tree: ast.Module) -> Iterator[ScriptOption]:
    for node in ast.walk(tree):
        name = _called_name(node) if isinstance(node, ast.Call) else ""
        is_click = name in ("click.option", "click.argument", "option")
        if is_click or name.endswith(".add_argument"):
            assert isinstance(node, ast.Call)
            if (option := _option(node, is_click=is_click)) is not None:
                yield option


def _option(node: ast.Call, *, is_click: bool) -> ScriptOption | None:
    """Return the option that a call of argparse or click declares; None if a form cannot offer it."""
    names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    flag = next((name for name in names if name.startswith("--")), names[0] if names else "")
    action_node = _keyword(node, "action")
    action = _constant(action_node) or _last_name(action_node)
    choices, nargs, required, default, help_text = (
        _constant(_keyword(node, name)) for name in ("choices", "nargs", "required", "default", "help")
    )
    kind_node = _keyword(node, "type")
    is_positional = _called_name(node) == "click.argument" if is_click else not flag.startswith("-")
    is_switch = action in ("store_true", "store_false", "BooleanOptionalAction")
    if action == "BooleanOptionalAction" and default is True:
        flag = f"--no-{flag.removeprefix('--')}"
    if not flag or action in _UNSUPPORTED_ACTIONS or not (is_positional or flag.startswith("-")):
        return None
    if is_click:
        is_switch = _constant(_keyword(node, "is_flag")) is True or "/" in flag
        flag, _, off_flag = flag.partition("/")
        flag = off_flag if off_flag and default is True else flag
        if isinstance(kind_node, ast.Call) and _called_name(kind_node).endswith("Choice") and kind_node.args:
            choices = _constant(kind_node.args[0])
    is_list = nargs in ("+", "*") or isinstance(nargs, int)
    if is_list and isinstance(default, list):
        default = " ".join(map(str, default))
    if isinstance(default, float) and not math.isfinite(default):
        default = None
    offered: Sequence[Any] = choices if isinstance(choices, list) and None not in choices else ()
    type_name = _last_name(kind_node)
    kind = _KINDS.get(type_name, "text") if type_name else _KIND_BY_DEFAULT.get(type(default), "text")
    return ScriptOption(
        flag=flag[:100],
        kind="switch" if is_switch else "choice" if offered else kind,
        default=default if isinstance(default, str | int | float | bool) else None,
        choices=tuple(str(choice)[:100] for choice in offered)[:50],
        help=help_text[:MAX_TEXT] if isinstance(help_text, str) else "",
        is_required=required is True or (is_positional and required is None and nargs not in ("?", "*")),
        is_positional=is_positional,
        is_list=is_list,
    )


def _last_name(node: ast.expr | None) -> str:
    """Return the last name of `NAME` or `MODULE.NAME`, or ""."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
