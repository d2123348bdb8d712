"""From hidden states to log-probabilities in chunks: no [rollout, token, vocab] tensor ever exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_core.algorithm.batch import Statistic

Head = Callable[[Float[Tensor, "row hidden"]], Float[Tensor, "row vocab"]]

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once (16.8 million: 64 MiB in float32)."""

SLAB_ELEMENTS = 1 << 20
"""Logits swept at once (1 million: 4 MiB in float32): intermediate results stay small, on a CPU in its cache."""


Wanted = tuple[Statistic, ...]


class _Statistics(torch.autograd.Function):
    """log p_y, and the wanted figures of p = softmax(z), with the gradient of all of them in one sweep over z.

    d log p_y / dz = 1_y - p;   d H / dz = -p (log p + H);   d (sum_k p_k^2) / dz = 2 p (p - sum_k p_k^2)
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, wanted: Wanted) -> tuple[Tensor, ...]:
        normaliser = logits.logsumexp(-1)
        found = [logits.gather(-1, targets[:, None])[:, 0] - normaliser]
        figures: list[list[Tensor]] = [[] for _ in wanted]
        for z, total in _slabs(logits, normaliser) if wanted else ():
            p = (z - total[:, None]).exp_()
            for name, parts in zip(wanted, figures, strict=True):
                parts.append(total - torch.linalg.vecdot(p, z) if name == "entropy" else torch.linalg.vecdot(p, p))
        found += [torch.cat(parts) for parts in figures]
        ctx.save_for_backward(logits, targets, normaliser, *found[1:])
        ctx.wanted = wanted
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, normaliser, *figures = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated once more
            (result,) = torch.autograd.grad(_plain(logits, targets, ctx.wanted), logits, grads, create_graph=True)
            return result, None, None
        result = torch.empty_like(logits)
        for z, p, total, *rest in _slabs(logits, result, normaliser, *grads, *figures):
            grad, others, known = rest[0], rest[1 : len(grads)], rest[len(grads) :]
            torch.sub(z, total[:, None], out=p).exp_()
            factor: Tensor = -grad[:, None]
            for name, figure, other in zip(ctx.wanted, known, others, strict=True):
                if name == "collision":
                    factor = (p - figure[:, None]).mul_(2 * other[:, None]).add_(factor)
                else:
                    factor = (z - (total - figure)[:, None]).mul_(-other[:, None]).add_(factor)
            p.mul_(factor)
        result.scatter_add_(-1, targets[:, None], grads[0][:, None])
        return result, None, None


def _slabs(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of all tensors together, few enough that what is made from their logits stays in the processor's cache."""
    rows = max(1, SLAB_ELEMENTS // tensors[0].shape[-1])
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)


def _plain(logits: Tensor, targets: Tensor, wanted: Wanted) -> tuple[Tensor, ...]:
    """The same figures, written so that autograd can differentiate them as often as it likes."""
    log_p = logits.log_softmax(-1)
    figures = {"entropy": lambda: -(log_p.exp() * log_p).sum(-1), "collision": lambda: log_p.exp().square().sum(-1)}
    return (log_p.gather(-1, targets[:, None])[:, 0], *(figures[name]() for name in wanted))


def _chunk(
    hidden: Float[Tensor, "row hidden"], targets: Int[Tensor, "row"], head: Head, temperature: float, wanted: Wanted
) -> tuple[Float[Tensor, "row"], ...]:
    logits = head(hidden)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    found: tuple[Tensor, ...] = _Statistics.apply(  # type: ignore[no-untyped-call]
        logits if temperature == 1.0 else logits / temperature, targets, wanted
    )
    return found


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
