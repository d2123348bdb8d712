"""The house and its doors: who may import whom, what stays free of torch, and how long things may get."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo_core

PACKAGE = "grpo_core"
ROOT = Path(grpo_core.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

FOUNDATION = {"records", "errors"}
DOORS = {"api", "cli", "__init__"}
"""Single files above the composition root: what people call."""

ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "config": FOUNDATION,
    "algorithm": FOUNDATION,
    "models": FOUNDATION | {"config.model", "algorithm.batch"},
    "rollout": FOUNDATION | {"config.rollout"},
    "grading": FOUNDATION | {"config.reward"},
    "data": FOUNDATION | {"config.data"},
    "runtime": FOUNDATION | {"config.run"},
    "tracking": FOUNDATION | {"config.run"},
    "rewards": FOUNDATION | {"config.reward", "grading"},
    "training": FOUNDATION | {"algorithm", "config", "runtime", "rollout.engine", "tracking.names"},
}
"""What each room may import besides itself: whole rooms, or single modules of a room."""

ABOVE: dict[str, set[str]] = {
    "trained": set(ALLOWED) - {"training", "algorithm"},
    "composition": {*ALLOWED},
    "assemble": {"composition", "trained", *ALLOWED},
    "api": {"assemble", "trained", *ALLOWED},
}
"""The files that compose the rooms: reading a finished run, building one, and the Python door."""

TORCH_FREE = ["records", "errors", "config", "data", "tracking.names", "tracking.watch", "cli", ""]
HEAVY = ["torch", "transformers", "peft", "accelerate", "datasets"]
PURE = {
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "safetensors",
    "logging",
    "os",
    "pathlib",
    "json",
    "yaml",
}
"""What `algorithm` may not touch: it is tensor maths without models, files, or logs."""

LONGEST_FILE, MEDIAN_FILE, LONGEST_FUNCTION = 260, 150, 50
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc"}


def module_of(file: Path) -> str:
    """`algorithm.kl` for .../grpo_core/algorithm/kl.py; the room itself for its `__init__`."""
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of every import in the file, those inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import hides which room it reaches"
            base = node.module or ""
            for alias in node.names:
                inner = ROOT.joinpath(*base.split(".")[1:], alias.name)
                is_module = base.split(".")[0] == PACKAGE and (inner.is_dir() or inner.with_suffix(".py").is_file())
                yield (f"{base}.{alias.name}" if is_module else base), node.lineno


def own(file: Path) -> Iterator[tuple[str, int]]:
    """The imports of the library's own modules, without the package's name."""
    for name, line in imported(file):
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            yield name.removeprefix(PACKAGE).removeprefix("."), line


def may(target: str, allowed: set[str]) -> bool:
    return any(target == place or target.startswith(place + ".") for place in allowed)


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_who_imports_whom(file: Path) -> None:
    room = module_of(file).split(".")[0]
    if room in {"cli", "__init__"}:
        return
    assert room in ALLOWED | ABOVE, f"{room}: a new room needs a row in this test and in the design"
    allowed = (ALLOWED | ABOVE)[room] | {room}
    wrong = [f"{file.name}:{line} imports {target}" for target, line in own(file) if not may(target, allowed)]
    assert not wrong, f"{room} may import {sorted(allowed)}: {wrong}"


def test_a_door_imports_inside_functions_only() -> None:
    for name in ("cli", "__init__"):
        found = []
        for node in tree_of(ROOT / f"{name}.py").body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
                found.append(node.module)
        assert not found, f"{name}.py pays for {found} before anything is asked of it"


def test_nobody_below_imports_a_door() -> None:
    wrong = [
        f"{module_of(file)}:{line} imports {target}"
        for file in FILES
        if module_of(file).split(".")[0] in ALLOWED
        for target, line in own(file)
        if target.split(".")[0] in DOORS | set(ABOVE) | {""}
    ]
    assert not wrong


def test_the_algorithm_is_tensor_maths_alone() -> None:
    wrong = [
        f"{file.name}:{line} imports {name}"
        for file in FILES
        if module_of(file).split(".")[0] == "algorithm"
        for name, line in imported(file)
        if name.split(".")[0] in PURE
    ]
    assert not wrong


@pytest.mark.parametrize("place", TORCH_FREE, ids=lambda place: place or "package")
def test_torch_free_in_a_fresh_interpreter(place: str) -> None:
    modules = [m for m in map(module_of, FILES) if m == place or (place and m.startswith(place + "."))]
    names = [f"{PACKAGE}.{m}" for m in modules] or [PACKAGE]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "", f"importing {place or PACKAGE} loads {done.stdout.strip()}"


def test_no_vague_names() -> None:
    places = {part for file in FILES for part in file.relative_to(ROOT).with_suffix("").parts}
    assert not places & VAGUE


def test_files_stay_short() -> None:
    lengths = {module_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    long = {name: length for name, length in lengths.items() if length > LONGEST_FILE}
    assert not long, f"over {LONGEST_FILE} lines: {long}"
    assert statistics.median(lengths.values()) <= MEDIAN_FILE


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_functions_stay_short() -> None:
    long = {
        f"{module_of(file)}.{node.name}": length
        for file in FILES
        for node in functions(tree_of(file))
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert not long, f"over {LONGEST_FUNCTION} lines: {long}"


def undocumented(body: list[ast.stmt], prefix: str, *, protocol: bool = False) -> Iterator[str]:
    """Public classes, functions and methods without a docstring; one-line stubs of a protocol may go without."""
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        is_stub = protocol and len(node.body) == 1 and isinstance(node.body[0], ast.Expr)
        if ast.get_docstring(node) is None and not is_stub:
            yield f"{prefix}.{node.name}"
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base) for base in node.bases}
            yield from undocumented(node.body, f"{prefix}.{node.name}", protocol="Protocol" in bases)


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_everything_public_has_a_docstring(file: Path) -> None:
    tree = tree_of(file)
    assert ast.get_docstring(tree) is not None, f"{module_of(file)} has no docstring"
    assert not list(undocumented(tree.body, module_of(file)))
