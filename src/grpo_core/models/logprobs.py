"""From hidden states to log-probabilities in chunks: no [rollout, token, vocab] tensor ever exists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Float[Tensor, "row hidden"]], Float[Tensor, "row vocab"]]

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once (16.8 million: 64 MiB in float32)."""


def _chunk(
    hidden: Float[Tensor, "row hidden"], targets: Int[Tensor, "row"], head: Head, temperature: float, entropy: bool
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"] | None]:
    logits = head(hidden)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    logits = logits if temperature == 1.0 else logits / temperature
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    if not entropy:
        return chosen, None
    return chosen, normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1)


def token_logprobs(
    hidden: Float[Tensor, "row hidden"],
    targets: Int[Tensor, "row"],
    head: Head,
    *,
    vocab: int,
    temperature: float = 1.0,
    entropy: bool = False,
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"] | None]:
    """log softmax(head(h) / T)[target] in nats, and the entropy of the same distribution if asked for.

    The log-softmax is taken in float32 at least, outside autocast, whatever the model computes in. Under grad each
    chunk's logits are dropped and made again in the backward pass.
    """
    rows = max(1, CHUNK_ELEMENTS // vocab)
    logprobs, entropies = [], []
    for h, y in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        if torch.is_grad_enabled() and h.requires_grad:
            chosen, spread = checkpoint(
                _chunk, h, y, head, temperature, entropy, use_reentrant=False, preserve_rng_state=False
            )
        else:
            chosen, spread = _chunk(h, y, head, temperature, entropy)
        logprobs.append(chosen)
        entropies.append(spread)
    if not logprobs:
        empty = hidden.new_zeros(0)
        return empty, (empty if entropy else None)
    return torch.cat(logprobs), (torch.cat(entropies) if entropy else None)
