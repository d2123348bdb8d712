"""Where prompts come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from grpo_core.config.section import Flag, Section


class ColumnMap(Section):
    """Which column of the rows holds what. Every other column is handed to the reward by its own name."""

    prompt: str = "prompt"
    """Text, or a list of chat messages `{role, content}`."""
    answer: str = "answer"
    """The reference answer; may be missing when no reward needs it."""


class Rows(Section):
    """What every kind of row-based data shares."""

    columns: ColumnMap = ColumnMap()
    system: str | None = None
    """A system message put before each chat prompt that has none."""
    chat: Flag = True
    """Render plain-text prompts as one user turn with the chat template; false feeds the text as it is."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows."""


class FileData(Rows):
    """A JSONL, JSON, CSV or Parquet file."""

    kind: Literal["file"] = "file"
    path: str
    """The file; the ending names the format: .jsonl, .json, .csv, .parquet (also .jsonl.gz)."""
    held_out: str | None = None
    """A file of held-out rows. Without it the last rows of `path` are kept aside, as many as
    evaluation.prompts."""


class HubData(Rows):
    """A data set by the name `datasets.load_dataset` knows, or a folder it can read."""

    kind: Literal["hub"] = "hub"
    name: str
    """Name or local folder."""
    config: str | None = None
    """Configuration name, e.g. `main` for `openai/gsm8k`."""
    split: str = "train"
    """Split to train on."""
    held_out_split: str | None = None
    """Split for evaluation. Without it the last rows of `split` are kept aside."""


class ReasoningGymData(Section):
    """A task of reasoning-gym by name; the extra `tasks` installs it."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    task: str
    """Task name, e.g. `chain_sum`."""
    size: int = Field(default=1000, ge=1)
    """Training items made. As many held-out items as evaluation.prompts come from another seed."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task, e.g. {min_terms: 2, max_digits: 1}."""
    suffix: str = ""
    """Text put after each question, e.g. " Answer with just the number."."""
    system: str | None = None
    """A system message."""
    seed: int = Field(default=0, ge=0)
    """Seed of the items."""


class ArithmeticData(Section):
    """The built-in seeded task: small questions with one right answer, made on the fly."""

    kind: Literal["arithmetic"] = "arithmetic"
    task: Literal["addition", "subtraction", "larger", "next_number"] = "addition"
    """`addition` and `subtraction` of two numbers, the `larger` of two, or the `next_number`."""
    digits: int = Field(default=1, ge=1, le=6)
    """Most digits a number may have."""
    worked_examples: int = Field(default=0, ge=0, le=8)
    """Solved questions shown before the real one as chat turns."""
    size: int = Field(default=2000, ge=1)
    """Training questions made. Held-out questions never occur among them."""
    system: str | None = None
    """A system message; by default one that asks for just the answer when there are worked examples."""
    seed: int = Field(default=0, ge=0)
    """Seed of the questions."""


def expand_data(value: Any) -> Any:
    """Write `data: rows.jsonl` in full."""
    return {"kind": "file", "path": value} if isinstance(value, str) else value


DataConfig = Annotated[
    Annotated[FileData | HubData | ReasoningGymData | ArithmeticData, Field(discriminator="kind")],
    BeforeValidator(expand_data),
]
