"""The JSON schema and the reference page."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config.keys import all_keys
from grpo_core.config.load import dump_config, parse_config
from grpo_core.config.schema import json_schema, reference_markdown

PAGE = Path(__file__).parents[2] / "docs/config.md"
GOOD = [
    "data: {kind: arithmetic}\nreward: number",
    "data: rows.jsonl\nreward: [number, {kind: format}]\nalgorithm: ppo\npreset: math\nmodel: {lora: {}}",
    "data: rows.jsonl\nreward: {kind: exact, weight: 2, max_failure_rate: 0.1}",
    "data: {kind: file, path: x}\nreward: {parts: [number]}\ntrain: {lambda: 0.3, betas: [0.9, 0.99]}",
]
BAD = [
    "data: {kind: arithmetic}",
    "data: {kind: arithmetic}\nreward: nubmer",
    "data: 3\nreward: number",
    "data: {kind: arithmetic}\nreward: number\ntrain: {lamda: 0.3}",
    "data: {kind: arithmetic}\nreward: number\ntrain: {lambda: -1}",
    "data: {kind: arithmetic}\nreward: number\nalgorithm: {name: gpro}",
]
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "null": (type(None),),
}


def fits(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> bool:
    """The part of JSON Schema that ours uses."""
    if "$ref" in rule and not fits(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root):
        return False
    if "anyOf" in rule and not any(fits(value, option, root) for option in rule["anyOf"]):
        return False
    if "oneOf" in rule and sum(fits(value, option, root) for option in rule["oneOf"]) != 1:
        return False
    if "type" in rule and not (
        isinstance(value, TYPES[rule["type"]])
        and (value not in (True, False) or rule["type"] in ("boolean", "number", "integer"))
    ):
        return False
    if ("const" in rule and value != rule["const"]) or ("enum" in rule and value not in rule["enum"]):
        return False
    if isinstance(value, dict) and "properties" in rule:
        known, closed = rule["properties"], rule.get("additionalProperties") is False
        return (
            set(rule.get("required", ())) <= set(value)
            and (not closed or set(value) <= set(known))
            and all(fits(item, known[key], root) for key, item in value.items() if key in known)
        )
    if isinstance(value, list) and "items" in rule:
        return all(fits(item, rule["items"], root) for item in value)
    limits = {
        "minimum": float.__ge__,
        "maximum": float.__le__,
        "exclusiveMinimum": float.__gt__,
        "exclusiveMaximum": float.__lt__,
    }
    return all(check(float(value), float(rule[word])) for word, check in limits.items() if word in rule)


@pytest.mark.parametrize("text", GOOD)
def test_the_schema_admits_good_configs(text: str) -> None:
    schema = json_schema()
    assert fits(yaml.safe_load(text), schema, schema)
    assert fits(yaml.safe_load(dump_config(parse_config(text))), schema, schema)


@pytest.mark.parametrize("text", BAD)
def test_the_schema_refuses_bad_configs(text: str) -> None:
    schema = json_schema()
    assert not fits(yaml.safe_load(text), schema, schema)


def test_the_schema_says_what_it_is_and_what_keys_mean() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "AdamW" in schema["$defs"]["TrainConfig"]["properties"]["learning_rate"]["description"]


def test_the_reference_page_is_the_generated_text() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_markdown(), "run: grpo config reference > docs/config.md"


def test_every_key_has_a_meaning_and_a_row() -> None:
    page = reference_markdown()
    for key in all_keys():
        if key.name != "kind":
            row = re.search(rf"^\| `{key.name}` \|.*\| (.+) \|$", page, flags=re.M)
            assert row, key.path
            assert row[1].strip(), key.path
