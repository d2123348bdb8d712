"""Drawing one token for each row, with its log-probability under exactly the distribution it was drawn from."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.records import Sampling

Logits = Float[Tensor, "row vocab"]


def kept_tokens(logits: Logits, how: Sampling) -> Bool[Tensor, "row vocab"] | None:
    """Which tokens the cuts leave, applied in the order top-k, top-p, min-p; None when nothing is cut."""
    if how.top_k <= 0 and how.top_p >= 1 and how.min_p <= 0:
        return None
    ordered, order = logits.sort(stable=True, dim=-1, descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if how.top_k > 0:
        keep[:, how.top_k :] = False
    if how.top_p < 1:
        mass = torch.where(keep, ordered, -torch.inf).softmax(-1)
        keep &= mass.cumsum(-1) - mass < how.top_p
    if how.min_p > 0:
        keep &= ordered >= ordered[:, :1] + torch.log(torch.tensor(how.min_p, dtype=ordered.dtype))
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter(-1, order, keep)


def draw(
    logits: Logits, how: Sampling, uniform: Float[Tensor, "row"], banned: Int[Tensor, "id"] | None = None
) -> tuple[Int[Tensor, "row"], Float[Tensor, "row"], Float[Tensor, "row"]]:
    """(tokens, log-probs under the sampling distribution, log-probs under the temperature alone), nats.

    `uniform` holds one number of [0, 1) for each row, in float64; a row's token depends on no other row.
    Greedy (`temperature=0`) takes the arg max; its log-probs are 0 and those of the plain softmax. `banned` ids cannot
    be drawn. The order is temperature, ban, top-k, top-p, min-p, renormalise.
    """
    greedy = how.temperature == 0
    scaled = logits if greedy or how.temperature == 1 else logits / how.temperature
    top = scaled.amax(-1, keepdim=True)
    weights = (scaled - top).exp_()
    policy_total = weights.sum(-1)
    allowed = scaled if banned is None else scaled.index_fill(-1, banned.to(scaled.device), -torch.inf)
    if greedy:
        tokens = allowed.argmax(-1)
    else:
        keep = kept_tokens(allowed, how)
        if banned is not None:
            weights.index_fill_(-1, banned.to(scaled.device), 0)
        if keep is not None:
            weights.masked_fill_(~keep, 0)
        tokens = _inverse_cdf(weights, uniform.to(weights.device))
    above = scaled.gather(-1, tokens[:, None])[:, 0] - top[:, 0]
    policy = above - policy_total.log()
    if greedy:
        return tokens, torch.zeros_like(policy), policy
    if keep is None and banned is None:
        return tokens, policy, policy
    return tokens, above - weights.sum(-1).log(), policy


BLOCK = 64
"""Weights summed before the float64 sums begin: a vocabulary is read once instead of written twice in float64."""


def _inverse_cdf(weights: Logits, uniform: Float[Tensor, "row"]) -> Int[Tensor, "row"]:
    """Each row's number, looked up in the cumulative distribution: first its block, then its token.

    The sums over blocks are float64, so no mass is lost; a token of weight 0 is never drawn.
    """
    rows, vocab = weights.shape
    padding = -vocab % BLOCK
    blocks = (torch.nn.functional.pad(weights, (0, padding)) if padding else weights).view(rows, -1, BLOCK)
    bounds = blocks.sum(-1).double().cumsum(-1)
    target = uniform * bounds[:, -1]
    block = _first_above(bounds, target)
    target = target - torch.nn.functional.pad(bounds, (1, 0)).gather(-1, block[:, None])[:, 0]
    within = blocks[torch.arange(rows, device=weights.device), block].double().cumsum(-1)
    return block * BLOCK + _first_above(within, target)


def _first_above(cumulative: Logits, target: Float[Tensor, "row"]) -> Int[Tensor, "row"]:
    """The first column whose sum exceeds the target; where rounding left none, the last that adds anything."""
    found = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())[:, 0]
    return torch.minimum(found, last)
