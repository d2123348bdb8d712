"""From hidden states to log-probabilities in chunks: no [rollout, token, vocab] tensor ever exists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_core.algorithm.batch import Statistic

Head = Callable[[Float[Tensor, "row hidden"]], Float[Tensor, "row vocab"]]

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once (16.8 million: 64 MiB in float32)."""


Wanted = tuple[Statistic, ...]


def _chunk(
    hidden: Float[Tensor, "row hidden"], targets: Int[Tensor, "row"], head: Head, temperature: float, wanted: Wanted
) -> tuple[Float[Tensor, "row"], ...]:
    logits = head(hidden)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    logits = logits if temperature == 1.0 else logits / temperature
    normaliser = logits.logsumexp(-1)
    found = [logits.gather(-1, targets[:, None])[:, 0] - normaliser]
    if wanted:
        probabilities = (logits - normaliser[:, None]).exp()
        statistics = {
            "entropy": lambda: normaliser - (probabilities * logits).sum(-1),
            "collision": lambda: probabilities.square().sum(-1),
        }
        found += [statistics[name]() for name in wanted]
    return tuple(found)


def token_logprobs(
    hidden: Float[Tensor, "row hidden"],
    targets: Int[Tensor, "row"],
    head: Head,
    *,
    vocab: int,
    temperature: float = 1.0,
    wanted: Wanted = (),
) -> tuple[Float[Tensor, "row"], ...]:
    """log softmax(head(h) / T)[target] in nats, then the `wanted` figures of the same distribution.

    `entropy` in nats; `collision` is sum_k p_k^2. The log-softmax is taken in float32 at least, outside autocast,
    whatever the model computes in. Under grad each chunk's logits are dropped and made again in the backward pass.
    """
    rows = max(1, CHUNK_ELEMENTS // vocab)
    chunks = []
    for h, y in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        if torch.is_grad_enabled() and h.requires_grad:
            chunk = checkpoint(_chunk, h, y, head, temperature, wanted, use_reentrant=False, preserve_rng_state=False)
        else:
            chunk = _chunk(h, y, head, temperature, wanted)
        chunks.append(chunk)
    if not chunks:
        return (hidden.new_zeros(0),) * (1 + len(wanted))
    return tuple(torch.cat(pieces) for pieces in zip(*chunks, strict=True))
