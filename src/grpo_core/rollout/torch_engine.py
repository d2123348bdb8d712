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


COMPACT = 8
"""Finished rows are dropped once they are one in so many: dropping copies the cache of all the others."""


class TorchEngine:
    """Prefills each distinct prompt once, forks it `n` times, and drops rows as they finish.

    `batch_size` bounds the completions decoded at once. Which tokens a completion gets depends on neither that nor on
    when other rows finish: each has its own random numbers.
    """

    def __init__(self, decoder: Decoder, eos: Iterable[int], *, batch_size: int | None = None) -> None:
        self._decoder = decoder
        self._eos = frozenset(eos)
        self._batch_size = batch_size

    def generate(self, prompts: Sequence[Prompt], how: Sampling) -> list[Completion]:
        """See `RolloutEngine.generate`. The same prompts, weights and `how` give the same tokens."""
        jobs = [prompt for prompt in prompts for _ in range(how.n)]
        generator = torch.Generator().manual_seed(how.seed)
        uniform = torch.rand(len(jobs), how.max_new_tokens, generator=generator, dtype=torch.float64)
        size = self._batch_size or max(1, len(jobs))
        rows: list[_Row] = []
        for start in range(0, len(jobs), size):
            rows += self._decode(jobs[start : start + size], how, uniform[start : start + size])
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

    def _decode(self, jobs: Sequence[Prompt], how: Sampling, uniform: Tensor) -> list[_Row]:
        distinct = list(dict.fromkeys(job.token_ids for job in jobs))
        place = {ids: row for row, ids in enumerate(distinct)}
        state = self._decoder.prefill(distinct)
        state = self._decoder.keep(state, torch.tensor([place[job.token_ids] for job in jobs]))
        rows = [_Row(job.id) for job in jobs]
        decoded = list(rows)
        eos = torch.tensor(sorted(self._eos))
        for count in range(how.max_new_tokens):
            banned = eos if count < how.min_new_tokens else None
            tokens, logprobs, policy = draw(state.logits, how, uniform[:, count], banned)
            self._record(decoded, tokens.tolist(), logprobs.tolist(), policy.tolist())
            going = [place for place, row in enumerate(decoded) if row.reason != "eos"]
            if not going or count == how.max_new_tokens - 1:
                break
            if (len(decoded) - len(going)) * COMPACT >= len(decoded):
                index = torch.tensor(going)
                state, tokens = self._decoder.keep(state, index), tokens[index.to(tokens.device)]
                decoded, uniform = [decoded[row] for row in going], uniform[index]
            state = self._decoder.advance(state, tokens)
        return rows

    def _record(self, rows: Sequence[_Row], tokens: list[int], logprobs: list[float], policy: list[float]) -> None:
        """Append one token to each row that has not finished."""
        for row, token, logprob, alone in zip(rows, tokens, logprobs, policy, strict=True):
            if row.reason == "eos":
                continue
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.policy_logprobs.append(alone)
            if token in self._eos:
                row.reason = "eos"
