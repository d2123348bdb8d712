"""The reference policy that the KL is measured against: the policy as it was loaded."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.algorithm.batch import Batch
from grpo_core.models.policy import Policy


class Reference:
    """Scores with the starting weights. With adapters this costs no memory; full training keeps a frozen copy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._frozen: Policy | None = None
        if policy.adapter is None:
            model = copy.deepcopy(policy.model).requires_grad_(False)
            self._frozen = Policy(model, share_prompts=policy.trunk.share_prompts, autocast=policy.autocast)

    @torch.no_grad()
    def logprobs(self, batch: Batch, *, temperature: float) -> Float[Tensor, "rollout token"]:
        """Log-probs (nats) of the response tokens under the reference, at the same temperature as the policy's."""
        if self._frozen is not None:
            return self._frozen.score(batch, temperature=temperature).logprobs
        with self._policy.reference_weights():
            return self._policy.score(batch, temperature=temperature).logprobs
