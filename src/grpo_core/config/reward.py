"""What is rewarded: one part, or a weighted sum of parts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grpo_core.config.section import Flag, Section


class Part(Section):
    """What every part of a reward has."""

    name: str | None = None
    """Name in logs; the kind by default. Two parts of the same kind need names."""
    weight: float = 1.0
    """Factor in the weighted sum."""


class MathReward(Part):
    """1 if the final answer equals the reference (numbers, fractions, LaTeX), else 0."""

    kind: Literal["math"] = "math"
    timeout: float = Field(default=5.0, gt=0)
    """Seconds for one comparison; past it the work is ended and the answer counts as wrong."""


class NumberReward(Part):
    """1 if the number found in the completion equals the reference number, else 0."""

    kind: Literal["number"] = "number"
    take: Literal["first_line", "first", "last"] = "last"
    """Which number counts: the last of the first line, the first, or the last of the text."""


class ExactReward(Part):
    """1 if the completion, stripped, equals the reference, else 0."""

    kind: Literal["exact"] = "exact"
    ignore_case: Flag = True
    """Compare without case."""
    strip: str = " \n\t."
    """Characters removed from both ends before comparing."""


class RegexReward(Part):
    """1 if the pattern is found. A group named `answer`, if the pattern has one, must equal the reference."""

    kind: Literal["regex"] = "regex"
    pattern: str
    """Python regular expression, searched in the completion (DOTALL)."""
    timeout: float = Field(default=2.0, gt=0)
    """Seconds for one search."""


class ChoiceReward(Part):
    """1 if the chosen option (A, B, ...) equals the reference letter, else 0."""

    kind: Literal["choice"] = "choice"
    choices: list[str] = Field(default_factory=lambda: ["A", "B", "C", "D"], min_length=2)
    """The option labels."""


class FormatReward(Part):
    """1 if the whole completion has the given shape, else 0."""

    kind: Literal["format"] = "format"
    pattern: str = r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*"
    """Regular expression the whole completion must match (DOTALL)."""


class LengthReward(Part):
    """1 up to `target` tokens, then falling in a straight line to 0 at `limit` tokens."""

    kind: Literal["length"] = "length"
    target: int = Field(ge=1)
    """Tokens that still earn the full reward."""
    limit: int = Field(ge=2)
    """Tokens from which the reward is 0; must be above `target`."""


class FunctionReward(Part):
    """Your own function."""

    kind: Literal["function"] = "function"
    path: str
    """`module:function` or `file.py:function`. Called with the arguments it names among: completion, prompt,
    answer, rollout, and any column; with batched: true the same in the plural, as lists."""
    batched: Flag = False
    """Call once with lists for the whole batch; it returns one number for each completion."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for one call. With a limit the function runs in a child process that is killed when it is
    late."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments passed to every call."""


class ModelReward(Part):
    """The score of a sequence-classification reward model."""

    kind: Literal["model"] = "model"
    path: str
    """Hub name or local folder of a model with one output label."""
    batch_size: int = Field(default=8, ge=1)
    """Completions scored at once."""
    device: str = "auto"
    """Device it runs on."""


class ReasoningGymReward(Part):
    """The verifier that comes with the reasoning-gym task of `data`."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    take: Literal["all", "first_line", "boxed"] = "all"
    """What is handed to the verifier: the whole stripped completion, its first line, or the last
    \\boxed{...}."""


RewardPart = Annotated[
    MathReward
    | NumberReward
    | ExactReward
    | RegexReward
    | ChoiceReward
    | FormatReward
    | LengthReward
    | FunctionReward
    | ModelReward
    | ReasoningGymReward,
    Field(discriminator="kind"),
]


def expand_reward(value: Any) -> Any:
    """Write `reward: exact`, a bare part, or a list of either in full."""
    if isinstance(value, str | list):
        value = {"parts": value if isinstance(value, list) else [value]}
    if isinstance(value, dict) and "kind" in value:
        around = {key: item for key, item in value.items() if key in RewardConfig.model_fields}
        value = {"parts": [{key: item for key, item in value.items() if key not in around}], **around}
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        parts = [{"kind": part} if isinstance(part, str) else part for part in value["parts"]]
        value = {**value, "parts": parts}
    return value


class RewardConfig(Section):
    """The weighted sum of the parts, and what happens when one cannot be computed."""

    parts: list[RewardPart] = Field(min_length=1)
    """At least one part; a bare kind such as `exact` is a part with its defaults, and `reward: exact` is
    short for one such part."""
    max_failure_rate: float = Field(default=0.5, ge=0, le=1)
    """The run stops when more than this share of a rollout's completions has no reward. A failure is never 0:
    the completion is left out of statistics and loss."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand_reward(value)
