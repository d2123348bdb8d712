"""The records that travel between the rooms. Frozen, and free of torch.

Records decide, nothing is guessed: groups come from `group_id` and never from position, masks from lengths and
never from comparing ids with the pad id, and a failed score is a declared failure and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["eos", "length"]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One chat turn, e.g. `Message(role="user", content="What is 2 + 3?")`."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One row of the data: what the model is asked, and what the reward needs to judge the answer.

    Exactly one of `messages` and `text` is set. `token_ids` is empty until the prompt has been tokenised, which
    happens once; from then on ids are the truth and the text is only for people.

    Example: `Prompt(id="train:17", messages=(Message(role="user", content="2 + 3 ="),), answer="5")`.
    """

    id: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the row, by its own name; handed to user rewards."""
    token_ids: tuple[int, ...] = ()

    @property
    def plain(self) -> str:
        """The prompt as text for logs and rewards: `text`, or the content of the last message."""
        return self.text if self.text is not None else self.messages[-1].content


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    The order is temperature, top-k, top-p, min-p, renormalise. `temperature=0` is greedy.
    `seed` fixes every draw of the call it is passed to.
    """

    max_new_tokens: int
    n: int = 1
    """Completions per prompt."""
    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set with at least this mass; the token that crosses the line is kept."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most likely token's probability."""
    min_new_tokens: int = 0
    """No end-of-sequence token before this many tokens."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What an engine returns for one sample. `token_ids` ends with the EOS id when `finish_reason` is "eos"."""

    prompt_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token in nats, under exactly the distribution it was drawn from."""
    policy_logprobs: tuple[float, ...]
    """The same under the temperature alone, without top-k, top-p, min-p: what training compares with."""
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.policy_logprobs):
            raise ValueError(
                f"prompt {self.prompt_id}: {len(self.token_ids)} tokens, but {len(self.logprobs)} and "
                f"{len(self.policy_logprobs)} log-probs"
            )


@dataclass(frozen=True, kw_only=True)
class Score:
    """A reward and its unweighted parts. `failure` set means there is no reward: the rollout is left out."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One scored sample with its provenance: which prompt, which group, which policy, which settings."""

    prompt: Prompt
    group_id: int
    completion: Completion
    text: str
    """The completion decoded once, without special tokens; rewards read this."""
    sampling: Sampling
    policy_version: int
    """Optimizer steps the sampling policy had taken."""
    score: Score | None = None

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it."""
        return self.completion.finish_reason == "length"


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one training step did: metric name to value. Names and meanings are in `tracking.names`."""

    step: int
    metrics: Mapping[str, float]
