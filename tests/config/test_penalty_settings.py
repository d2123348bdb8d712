"""The penalty's settings: the shift that suits the arithmetic, and keys that a chosen estimator does not read."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_core.config.load import config_from_mapping
from grpo_core.config.notes import notes

BASE: dict[str, Any] = {"data": {"kind": "arithmetic"}, "reward": "number"}


@pytest.mark.parametrize(
    ("sections", "length"),
    [
        ({}, 0.002),
        ({"model": {"matmul_precision": "high"}}, 0.02),
        ({"train": {"autocast": "bfloat16"}}, 0.1),
        ({"model": {"dtype": "bfloat16", "lora": {}}}, 0.1),
        ({"model": {"dtype": "bfloat16", "lora": {}, "matmul_precision": "high"}}, 0.1),
        ({"train": {"autocast": "bfloat16"}, "penalty": {"shift": 0.03}}, 0.03),
    ],
)
def test_the_shift_is_longer_where_the_arithmetic_is_coarser(sections: dict[str, Any], length: float) -> None:
    assert config_from_mapping({**BASE, **sections}).penalty_shift == length


@pytest.mark.parametrize(
    ("estimator", "key", "value", "noted"),
    [
        ("finite_difference", "refresh_every", 3, True),
        ("finite_difference", "measure_every", 3, True),
        ("finite_difference", "max_shift", 0.1, True),
        ("finite_difference", "form", "literal", False),
        ("every_k", "refresh_every", 3, False),
        ("reuse", "measure_every", 3, False),
        ("reuse", "direction", "gradient", False),
        ("logit_space", "measure_every", 3, False),
        ("logit_space", "form", "literal", True),
        ("logit_space", "shift", 0.1, True),
        ("exact", "shift", 0.1, True),
        ("none", "warmup_steps", 3, True),
    ],
)
def test_a_key_that_the_estimator_does_not_read_is_noted_once(
    estimator: str, key: str, value: Any, noted: bool
) -> None:
    sections = {
        "algorithm": {"penalty": estimator}, "penalty": {key: value}, "model": {"attention": "eager"},
    }  # fmt: skip
    found = notes(config_from_mapping({**BASE, **sections}), {f"penalty.{key}"})
    assert len([text for text in found if text.startswith(f"penalty.{key} has no effect")]) == noted
