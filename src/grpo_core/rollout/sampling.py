"""Drawing one token for each row, with its log-probability under exactly the distribution it was drawn from."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.records import Sampling

Logits = Float[Tensor, "row vocab"]


def kept_tokens(logprobs: Logits, how: Sampling) -> Bool[Tensor, "row vocab"] | None:
    """Which tokens the cuts leave, applied in the order top-k, top-p, min-p; None when nothing is cut."""
    if how.top_k <= 0 and how.top_p >= 1 and how.min_p <= 0:
        return None
    ordered, order = logprobs.sort(stable=True, dim=-1, descending=True)
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
    logits: Logits, how: Sampling, generator: torch.Generator, banned: Int[Tensor, "id"] | None = None
) -> tuple[Int[Tensor, "row"], Float[Tensor, "row"], Float[Tensor, "row"]]:
    """(tokens, log-probs under the sampling distribution, log-probs under the temperature alone), nats.

    Greedy (`temperature=0`) takes the arg max; its log-probs are 0 and those of the plain softmax. `banned` ids cannot
    be drawn. The order is temperature, ban, top-k, top-p, min-p, renormalise.
    """
    greedy = how.temperature == 0
    scaled = logits if greedy or how.temperature == 1 else logits / how.temperature
    policy = scaled.log_softmax(-1)
    allowed = policy if banned is None else policy.index_fill(-1, banned.to(policy.device), -torch.inf)
    if greedy:
        tokens = allowed.argmax(-1)
        return tokens, torch.zeros_like(policy[:, 0]), policy.gather(-1, tokens[:, None])[:, 0]
    cut = allowed
    keep = kept_tokens(allowed, how)
    if keep is not None:
        cut = allowed.masked_fill(~keep, -torch.inf)
    if keep is not None or banned is not None:
        cut = cut.log_softmax(-1)
    tokens = _inverse_cdf(cut.exp(), generator)
    pick = tokens[:, None]
    return tokens, cut.gather(-1, pick)[:, 0], policy.gather(-1, pick)[:, 0]


def _inverse_cdf(probabilities: Logits, generator: torch.Generator) -> Int[Tensor, "row"]:
    """One uniform number for each row, looked up in the cumulative distribution (float64, so no mass is lost)."""
    cumulative = probabilities.double().cumsum(-1)
    uniform = torch.rand(len(cumulative), 1, generator=generator, dtype=torch.float64).to(cumulative.device)
    target = uniform * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, target, right=True)[:, 0]
    last = probabilities.shape[-1] - 1 - (probabilities.flip(-1) > 0).long().argmax(-1)
    return torch.minimum(found, last)
