"""The in-process engine: samples from the policy's own weights, so there is nothing to copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_core.records import Completion, FinishReason, Prompt, Sampling
from grpo_core.rollout.sampling import draw


class Decoder(Protocol):
    """What the engine needs from a model. States carry `.logits`, [row, vocab], of the next token."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Any:
        """One row for each prompt."""
        ...

    def keep(self, state: Any, rows: Tensor) -> Any:
        """The given rows; a row named twice is forked."""
        ...

    def advance(self, state: Any, tokens: Tensor) -> Any:
        """Append one token to every row."""
        ...


@dataclass
class _Row:
    prompt_id: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_logprobs: list[float] = field(default_factory=list)
    reason: FinishReason = "length"


class TorchEngine:
    """Prefills each distinct prompt once, forks it `n` times, and drops rows as they finish.

    `batch_size` bounds the completions decoded at once.
    """

    def __init__(self, decoder: Decoder, eos: Iterable[int], *, batch_size: int | None = None) -> None:
        self._decoder = decoder
        self._eos = frozenset(eos)
        self._batch_size = batch_size

    def generate(self, prompts: Sequence[Prompt], how: Sampling) -> list[Completion]:
        """See `RolloutEngine.generate`. The same prompts, weights and `how` give the same tokens."""
        generator = torch.Generator().manual_seed(how.seed)
        jobs = [prompt for prompt in prompts for _ in range(how.n)]
        size = self._batch_size or max(1, len(jobs))
        rows: list[_Row] = []
        for start in range(0, len(jobs), size):
            rows += self._decode(jobs[start : start + size], how, generator)
        return [
            Completion(
                prompt_id=row.prompt_id,
                token_ids=tuple(row.tokens),
                logprobs=tuple(row.logprobs),
                policy_logprobs=tuple(row.policy_logprobs),
                finish_reason=row.reason,
            )
            for row in rows
        ]

    def load_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Nothing to do: the weights are the policy's own."""

    def close(self) -> None:
        """Nothing is held between calls."""

    def _decode(self, jobs: Sequence[Prompt], how: Sampling, generator: torch.Generator) -> list[_Row]:
        distinct = list(dict.fromkeys(job.token_ids for job in jobs))
        place = {ids: row for row, ids in enumerate(distinct)}
        state = self._decoder.prefill(distinct)
        state = self._decoder.keep(state, torch.tensor([place[job.token_ids] for job in jobs]))
        rows = [_Row(job.id) for job in jobs]
        alive = list(rows)
        eos = torch.tensor(sorted(self._eos))
        for count in range(how.max_new_tokens):
            banned = eos if count < how.min_new_tokens else None
            tokens, logprobs, policy = draw(state.logits, how, generator, banned)
            going = self._record(alive, tokens.tolist(), logprobs.tolist(), policy.tolist())
            if not going or count == how.max_new_tokens - 1:
                break
            if len(going) < len(alive):
                index = torch.tensor(going)
                state, tokens = self._decoder.keep(state, index), tokens[index.to(tokens.device)]
                alive = [alive[row] for row in going]
            state = self._decoder.advance(state, tokens)
        return rows

    def _record(self, rows: Sequence[_Row], tokens: list[int], logprobs: list[float], policy: list[float]) -> list[int]:
        """Append one token to each row; returns the positions of the rows that go on."""
        going = []
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            row.tokens.append(token)
            row.logprobs.append(logprobs[place])
            row.policy_logprobs.append(policy[place])
            if token in self._eos:
                row.reason = "eos"
            else:
                going.append(place)
        return going
