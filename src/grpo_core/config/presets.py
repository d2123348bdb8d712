"""Presets: settings that suit a kind of task, merged beneath the user's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PresetName = Literal["dialogue", "code", "math"]


@dataclass(frozen=True)
class Preset:
    """A description of one line, and the settings as they would stand in the YAML file."""

    description: str
    settings: Mapping[str, Any]


def _preset(description: str, *, strength: float, learning_rate: float) -> Preset:
    """The two values that differ by task, with the settings that fit a 24 GB card."""
    train = {"lambda": strength, "learning_rate": learning_rate, "gradient_accumulation": 4}
    return Preset(
        description,
        {"train": train, "model": {"gradient_checkpointing": True, "matmul_precision": "high"}},
    )


PRESETS: Mapping[str, Preset] = {
    "dialogue": _preset("Chat and preference data; lambda may go from 0.1 to 0.2.", strength=0.15, learning_rate=1e-5),
    "code": _preset(
        "Programs judged by tests: a stronger penalty and smaller steps.", strength=0.3, learning_rate=8e-6
    ),
    "math": _preset("Problems with one checkable answer: slightly larger steps.", strength=0.15, learning_rate=1.2e-5),
}


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, section by section; where they meet, `over` wins."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def beneath(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its preset's settings put under it; an unknown preset is left for validation to
    refuse."""
    preset = PRESETS.get(str(config.get("preset")))
    return merge(preset.settings, config) if preset else dict(config)
