"""YAML text to plain data that remembers where every key was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from grpo_core.config.problem import Problem
from grpo_core.errors import ConfigError

Path = tuple[str | int, ...]
MINIMAL = "data: {kind: arithmetic}\nreward: number"


class Loader(yaml.SafeLoader):
    """YAML with the numbers people write: `1e-5` is one, and `0010`, `1:30` and `2024-01-01` are text."""


class Dumper(yaml.SafeDumper):
    """Quotes whatever either this loader or the usual one would not read back as text."""


Loader.yaml_implicit_resolvers = {}
_DIGIT_STARTS = list("-+.0123456789")
_RULES: list[tuple[str, str, list[str]]] = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"(?i:yes|no|true|false|on|off)", list("yYnNtTfFoO")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", _DIGIT_STARTS),
    (
        "float",
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        _DIGIT_STARTS,
    ),
    ("merge", r"<<", ["<"]),
]
for _tag, _pattern, _starts in _RULES:
    for _side in (Loader, Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _starts)

_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() in ("yes", "true", "on"),
    "int": lambda text: int(text.replace("_", "")),
    "float": lambda text: float(re.sub(r"_|\.(?=inf|nan)", "", text.lower())),
    "str": str,
}


def dotted(path: Path) -> str:
    """`("reward", "parts", 0)` as `reward.parts.0`."""
    return ".".join(map(str, path))


@dataclass
class Document:
    """Plain data, with the label of every key (`config.yaml:12: `) and what was wrong with the text
    itself."""

    source: str
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, path: Path) -> str:
        """The label of a key, or of a key in it, or of the nearest key around it, or of the file."""
        if path and path not in self.origins:
            inner = [label for key, label in self.origins.items() if key[: len(path)] == path]
            if inner:
                return inner[0]
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return f"{self.source}: " if self.source else ""


@dataclass
class _Reader:
    """Turns nodes into data, noting origins and problems in the document."""

    document: Document
    numbered: bool = True
    open: set[int] = field(default_factory=set)

    def label(self, node: Node) -> str:
        source = self.document.source
        return f"{source}:{node.start_mark.line + 1}: " if self.numbered else f"{source} "

    def complain(self, node: Node, path: Path, text: str, fix: str) -> None:
        self.document.problems.append(Problem((dotted(path),) if path else (), text, fix, self.label(node)))

    def value(self, node: Node, path: Path) -> Any:
        if id(node) in self.open:
            return self.complain(node, path, "refers to itself", "write the value out instead of `*name`")
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.item(child, (*path, index)) for index, child in enumerate(node.value)]
            return self.scalar(node, path)
        finally:
            self.open.discard(id(node))

    def item(self, node: Node, path: Path) -> Any:
        self.document.origins[path] = self.label(node)
        return self.value(node, path)

    def scalar(self, node: Node, path: Path) -> Any:
        tag = node.tag.rpartition(":")[2]
        try:
            return _SCALARS[tag](node.value)
        except (KeyError, ValueError):
            self.complain(node, path, f"{node.value!r} cannot be read as {node.tag!r}", "remove the YAML tag")

    def mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag.endswith(":merge"):
                bases = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                for base in reversed(bases):
                    merged |= self.base(base, path)
                continue
            if not isinstance(key_node, ScalarNode):
                self.complain(key_node, path, "a key must be a word", "write `key: value`")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            here = (*path, key)
            if key in lines:
                first = f", first on line {lines[key]}" if self.numbered else ""
                self.complain(key_node, here, f"duplicate key{first}", "keep one of the two")
            lines.setdefault(key, line)
            self.document.origins[here] = self.label(key_node)
            own[key] = self.value(value_node, here)
        return merged | own

    def base(self, node: Node, path: Path) -> dict[str, Any]:
        value = self.value(node, path)
        if isinstance(value, dict):
            return value
        self.complain(node, path, "`<<` needs a mapping", "point it at a mapping with `*name`")
        return {}


def _compose(text: str, source: str, *, numbered: bool = True) -> Node | None:
    """The YAML node of a text; broken YAML is a `ConfigError` with its line."""
    try:
        node: Node | None = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark and numbered else ""
        tab = "\\t" in str(error.problem)
        fix = "indent with spaces, not tabs" if tab else "check the indentation, colons and quotes on this line"
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem}", fix=fix) from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{source}: not valid YAML: {reason}", fix="save the file as UTF-8 text") from None
    return node


def read_document(text: str, source: str) -> Document:
    """The data of a config text.

    Raises `ConfigError` for text that is no YAML, empty, or no mapping; what is wrong with single keys
    (duplicates) is collected in `problems`.
    """
    node = _compose(text, source)
    if node is None or (isinstance(node, ScalarNode) and node.value == ""):
        raise ConfigError(f"{source}: the config is empty", fix=f"a smallest config is:\n{MINIMAL}")
    if not isinstance(node, MappingNode):
        raise ConfigError(
            f"{source}:{node.start_mark.line + 1}: a config must be a mapping of `key: value` lines",
            fix=f"a smallest config is:\n{MINIMAL}",
        )
    document = Document(source)
    document.data = _Reader(document).mapping(node, ())
    return document


def read_value(text: str, path: Path, document: Document) -> Any:
    """One value of an override, its origins and problems noted in the document under `path`."""
    override = Document("--set")
    node = _compose(text, f"--set {dotted(path)}", numbered=False)
    value = _Reader(override, numbered=False).item(node, path) if node is not None else None
    document.origins = {key: label for key, label in document.origins.items() if key[: len(path)] != path}
    document.origins |= override.origins | {path: "--set "}
    document.problems += override.problems
    return value
