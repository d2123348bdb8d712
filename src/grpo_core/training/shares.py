"""A micro-batch's share of J as functions of the current weights, and what the first pass over it showed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_core.algorithm.batch import Batch, PolicyOutputs, Statistic
from grpo_core.algorithm.kl import k3
from grpo_core.algorithm.objective import Algorithm, Terms, surrogate
from grpo_core.training.micro_batches import micro_batches
from grpo_core.training.run import Run


@dataclass
class Seen:
    """What the first pass over a minibatch showed: sums over its micro-batches."""

    policy: float = 0.0
    value: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    tokens: float = 0.0
    clipped: float = 0.0
    kl_rollout: float = 0.0
    ratio_max: float = 0.0

    def add(self, terms: Terms, batch: Batch, algorithm: Algorithm, here: Tensor) -> None:
        """Count a micro-batch; `here` are its log-probs at theta."""
        self.policy += float(terms.policy.detach())
        self.value += float(terms.value.detach())
        self.entropy += float(terms.entropy.detach())
        self.kl += float(terms.kl.detach())
        old = here if batch.old_logprobs is None else batch.old_logprobs
        mask, log_ratio = batch.response_mask, here - old
        self.tokens += float(mask.sum())
        if algorithm.clipped is not None and batch.advantages is not None:
            self.clipped += float((algorithm.clipped(here, old, batch.advantages) & mask).sum())
        # KL(old || now) from tokens drawn by the old policy: k3 of d = log pi_old - log pi
        self.kl_rollout += float((k3(-log_ratio, torch.zeros_like(log_ratio)) * mask).sum())
        self.ratio_max = max(self.ratio_max, float(torch.where(mask, log_ratio, 0.0).max().exp()))


class Share:
    """One micro-batch: an `algorithm.passes.Part`.

    Log-probs at theta are frozen when first known: old log-probs that are "the current ones" must stay those of
    theta in a second pass, else the ratio would be 1 there too.
    """

    def __init__(self, run: Run, batch: Batch, seen: Seen) -> None:
        self.run, self.batch, self.seen = run, batch, seen
        self.counted = False
        self.at: Tensor | None = None
        """Log-probs at theta; None as long as they are unknown, or equal to the old ones by construction."""

    def freeze(self) -> None:
        """Log-probs at theta: the old ones if this is the rollout's only update, else by a pass without a gradient.

        The literal form does not need them; its figures are then those of the shifted weights.
        """
        if self.run.config.updates_per_step == 1:
            self.at = self.batch.old_logprobs
        elif self.run.algorithm.penalty_form == "score":
            with torch.no_grad():
                self.at = self._score().logprobs

    def loss(self, logit_lam: float = 0.0) -> Tensor:
        """J, plus `logit_lam` times the penalty in the space of the logits."""
        out = self._score("collision") if logit_lam else self._score()
        self._fix(out.logprobs.detach())
        return self._terms(out, logit_lam=logit_lam).total

    def again(self) -> Tensor:
        """The penalty's function at the current weights, in the form the algorithm asks for."""
        out = self._score()
        if self.run.algorithm.penalty_form == "literal":
            return self._terms(out).total
        return self._terms(out, at=out.logprobs.detach() if self.at is None else self.at).total

    def logit_penalty(self) -> Tensor:
        """The penalty in the space of the logits, alone."""
        return self._terms(self._score("collision"), logit_lam=1.0).penalty

    def _fix(self, logprobs: Tensor) -> None:
        self.at = logprobs
        if self.batch.old_logprobs is None:
            self.batch = replace(self.batch, old_logprobs=logprobs)

    def _score(self, *more: Statistic) -> PolicyOutputs:
        algorithm = self.run.algorithm
        entropy: tuple[Statistic, ...] = ("entropy",) if algorithm.entropy_coef > 0 else ()
        return self.run.policy.score(
            self.batch,
            temperature=self.run.config.rollout.temperature,
            wanted=(*entropy, *more),
            values=algorithm.critic,
        )

    def _terms(self, out: PolicyOutputs, *, at: Tensor | None = None, logit_lam: float = 0.0) -> Terms:
        run = self.run
        terms = surrogate(out, self.batch, run.algorithm, run.kl.coef, at=at, logit_lam=logit_lam)
        if not self.counted:
            here = out.logprobs.detach() if self.at is None else self.at
            self.seen.add(terms, self.batch, run.algorithm, here)
            self.counted = True
        return terms


def shares(run: Run, batch: Batch) -> tuple[Seen, list[Share]]:
    """The rows as micro-batches on the policy's device, and where their first pass is counted."""
    seen = Seen()
    cut = micro_batches(batch, run.config.train.gradient_accumulation)
    return seen, [Share(run, micro.to(run.policy.device), seen) for _, micro in cut]
