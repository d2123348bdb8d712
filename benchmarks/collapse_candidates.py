"""Penalties that might not drive a policy into a wrong corner, on a policy small enough to differentiate each exactly.

A contextual bandit: 16 states with random features, 6 actions, uniform random rewards, and a tanh network of one hidden
layer in float64 whose logits are multiplied by SCALE, so that at lambda 0.2 the literal penalty outweighs the gradient
as much as it does when a language model is fine-tuned in full. All networks (a seed at a strength) train side by side:
no network's loss depends on another's weights, so the gradient of a sum is the gradient of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot

STATES, FEATURES, HIDDEN, ACTIONS = 16, 8, 32, 6
SHAPES = ((HIDDEN, FEATURES), (HIDDEN,), (ACTIONS, HIDDEN), (ACTIONS,))
SCALE = 40.0
WIDTHS = (1 / math.sqrt(FEATURES), 0.0, 1.6 / (SCALE * math.sqrt(HIDDEN)), 0.0)
"""Of the random weights at the start: logits of about unit size."""
STEPS, LEARNING_RATE, GRAD_CLIP = 150, 5e-4, 1.0
DAMPING = 0.01
"""Of the Fisher matrix, in units of the mean diagonal of its dual over states and actions."""
TINY = 1e-30


@dataclass(frozen=True)
class Strength:
    """`literal`: the factor lambda. `relative`: the norm of the penalty's gradient over that of the loss's."""

    mode: str
    value: float

    def __str__(self) -> str:
        return f"{self.mode} {self.value:g}"


STRENGTHS = (Strength("literal", 0.2), Strength("relative", 0.3), Strength("relative", 1.0), Strength("relative", 30.0))


@dataclass(frozen=True)
class Outcome:
    """What one candidate at one strength came to, one value for each seed."""

    candidate: str
    strength: str
    ratio: Tensor
    """Norm of the penalty's gradient over that of the loss's at the start."""
    start: Tensor
    """Expected reward at the start as a share of the best possible."""
    reward: Tensor
    """The same at the end."""
    entropy: Tensor
    """Entropy at the end as a share of that at the start."""

    @property
    def collapsed(self) -> int:
        """Seeds whose reward is not above the start's while their entropy is below a tenth of it."""
        return int(((self.reward <= self.start) & (self.entropy < 0.1)).sum())


@dataclass(frozen=True)
class Bandit:
    """One problem for each network."""

    features: Tensor
    rewards: Tensor

    def share(self, policy: Tensor) -> Tensor:
        """Expected reward over the best possible."""
        return (policy * self.rewards).sum((-1, -2)) / self.rewards.amax(-1).sum(-1)

    def signal(self, policy: Tensor, noise: Tensor) -> Tensor:
        """Each action's probability times its advantage over the mean; its share of a group where `noise` draws one."""
        if noise.shape[-1]:
            picked = torch.searchsorted(policy.cumsum(-1), noise).clamp_max(ACTIONS - 1)
            policy = one_hot(picked, ACTIONS).to(policy.dtype).mean(-2)
        return policy * (self.rewards - (policy * self.rewards).sum(-1, keepdim=True))


class Point:
    """The networks at their current weights, and all that a penalty is made of."""

    def __init__(self, weights: Tensor, bandit: Bandit, noise: Tensor, start_entropy: Tensor | None) -> None:
        self.weights, self.features = weights, bandit.features
        parts = torch.split(weights, [math.prod(shape) for shape in SHAPES], dim=-1)
        w1, b1, self.w2, b2 = (part.unflatten(-1, shape) for part, shape in zip(parts, SHAPES, strict=True))
        self.hidden = torch.tanh(self.features @ w1.mT + b1.unsqueeze(1))
        self.logp = (SCALE * (self.hidden @ self.w2.mT + b2.unsqueeze(1))).log_softmax(-1)
        self.policy = self.logp.exp()
        self.entropy = -(self.policy * self.logp).sum(-1).mean(-1)
        self.start_entropy = self.entropy.detach() if start_entropy is None else start_entropy
        self.signal = bandit.signal(self.policy.detach(), noise)

    def slope(self, value: Tensor, *, again: bool = False) -> Tensor:
        """The gradient of each network's value; with `again` it can be differentiated once more."""
        slope: Tensor = torch.autograd.grad(value.sum(), self.weights, retain_graph=True, create_graph=again)[0]
        return slope

    @cached_property
    def pull(self) -> Tensor:
        """d J / d log pi, [network, state, action]. J is its sum: minus signal times ratio, the signal frozen."""
        return -self.signal * (self.logp - self.logp.detach()).exp() / STATES

    @cached_property
    def gradient(self) -> Tensor:
        """grad J, which can be differentiated once more."""
        return self.slope(self.pull.sum((-1, -2)), again=True)

    @cached_property
    def kernel(self) -> Tensor:
        """Inner products of the gradients of log pi, [network, state, action, state, action].

        grad J is the sum of these gradients times `pull`, so norms of it and of its parts are forms in the kernel.
        """
        back = self.w2.unsqueeze(1) * (1 - self.hidden.square()).unsqueeze(2)
        outer = torch.einsum("nst,ab->nsatb", self.hidden @ self.hidden.mT + 1, torch.eye(ACTIONS))
        inner = torch.einsum("nsak,ntbk,nst->nsatb", back, back, self.features @ self.features.mT + 1)
        logits = SCALE**2 * (outer + inner)
        left = logits - torch.einsum("nsa,nsatb->nstb", self.policy, logits).unsqueeze(2)
        return left - torch.einsum("ntb,nsatb->nsat", self.policy, left).unsqueeze(4)


def squared(vectors: Tensor) -> Tensor:
    """||v||^2 of each network."""
    return vectors.square().sum(-1)


def none(at: Point) -> Tensor:
    """No penalty."""
    return torch.zeros_like(at.weights)


def literal(at: Point) -> Tensor:
    """||grad J||^2."""
    return at.slope(squared(at.gradient))


def score(at: Point) -> Tensor:
    """The same with d J / d log pi frozen: the form `score`."""
    return at.slope(squared(at.slope((at.pull.detach() * at.logp).sum((-1, -2)), again=True)))


def root(at: Point) -> Tensor:
    """||grad J||."""
    return at.slope((squared(at.gradient) + TINY).sqrt())


def projected(at: Point) -> Tensor:
    """`literal` without its component along the entropy's gradient, where following it would lower the entropy."""
    penalty, entropy = literal(at), at.slope(at.entropy)
    share = (penalty * entropy).sum(-1).clamp_min(0) / (squared(entropy) + TINY)
    return penalty - share.unsqueeze(-1) * entropy


def with_bonus(coefficient: float) -> Callable[[Point], Tensor]:
    """`literal` with an entropy bonus of `coefficient` times lambda."""
    return lambda at: literal(at) - coefficient * at.slope(at.entropy)


def gated(at: Point) -> Tensor:
    """`literal` while the entropy is above half of its start."""
    return literal(at) * (at.entropy.detach() > at.start_entropy / 2).unsqueeze(-1)


def natural(at: Point) -> Tensor:
    """grad J^T (F + damping)^-1 grad J, F the Fisher matrix; by Woodbury's identity in the space of the actions.

    In a tabular policy, undamped, it is the variance of the advantage under the policy: 0 at determinism as well.
    """
    rows = (at.policy / STATES).sqrt().flatten(1)
    kernel = at.kernel.flatten(3).flatten(1, 2)
    along = rows * (kernel @ at.pull.flatten(1).unsqueeze(-1)).squeeze(-1)
    dual = rows.unsqueeze(-1) * kernel * rows.unsqueeze(-2)
    damping = DAMPING * dual.detach().diagonal(dim1=-2, dim2=-1).mean(-1) + TINY
    solved = torch.linalg.solve(dual + damping.view(-1, 1, 1) * torch.eye(STATES * ACTIONS), along)
    return at.slope((squared(at.gradient) - (along * solved).sum(-1)) / damping)


def variance(at: Point) -> Tensor:
    """The trace of the covariance of the states' gradients."""
    own = torch.einsum("nsa,nsasb,nsb->n", at.pull, at.kernel, at.pull)
    return at.slope(STATES * own - squared(at.gradient))


CANDIDATES: Mapping[str, Callable[[Point], Tensor]] = {
    "none": none,
    "literal": literal,
    "score": score,
    "norm, not squared": root,
    "literal, entropy kept": projected,
    "literal + bonus 1": with_bonus(1.0),
    "literal + bonus 10": with_bonus(10.0),
    "literal, gated": gated,
    "natural gradient": natural,
    "variance of states": variance,
}
"""Each gives the gradient of its penalty at lambda 1."""


def train(name: str, strengths: Sequence[Strength], seeds: int, group: int) -> list[Outcome]:
    """Train a candidate at all strengths and seeds at once; `group` actions a state, or 0 for the exact expectation."""
    streams = [torch.Generator().manual_seed(seed) for seed in range(seeds)]

    def drawn(make: Callable[..., Tensor], *shape: int) -> Tensor:
        """Random numbers of the seeds, the same at every strength."""
        return torch.cat([torch.stack([make(*shape, generator=stream) for stream in streams])] * len(strengths))

    bandit = Bandit(drawn(torch.randn, STATES, FEATURES), drawn(torch.rand, STATES, ACTIONS))
    parts = [width * drawn(torch.randn, math.prod(shape)) for width, shape in zip(WIDTHS, SHAPES, strict=True)]
    weights = torch.cat(parts, dim=-1).requires_grad_()
    relative = torch.tensor([strength.mode == "relative" for strength in strengths]).repeat_interleave(seeds)
    values = torch.tensor([strength.value for strength in strengths]).repeat_interleave(seeds)
    optimizer = torch.optim.Adam([weights], lr=LEARNING_RATE)

    at = start = Point(weights, bandit, drawn(torch.rand, STATES, group), None)
    ratio = torch.zeros_like(values)
    for step in range(STEPS):
        gradient, penalty = at.gradient.detach(), CANDIDATES[name](at)
        size, penalty_size = squared(gradient).sqrt(), squared(penalty).sqrt()
        factor = torch.where(relative, values * size / (penalty_size + TINY), values)
        if step == 0:
            ratio = factor * penalty_size / size
        finished = gradient + factor.unsqueeze(-1) * penalty
        weights.grad = finished / (squared(finished).sqrt() / GRAD_CLIP).clamp_min(1).unsqueeze(-1)
        optimizer.step()
        at = Point(weights, bandit, drawn(torch.rand, STATES, group), start.start_entropy)

    entropy = at.entropy.detach() / start.start_entropy
    figures = (ratio, bandit.share(start.policy.detach()), bandit.share(at.policy.detach()), entropy)
    by_strength = zip(*(figure.split(seeds) for figure in figures), strict=True)
    return [Outcome(name, str(strength), *each) for strength, each in zip(strengths, by_strength, strict=True)]


def compare(seeds: int, group: int) -> list[Outcome]:
    """All candidates at all strengths."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    strengths = {name: STRENGTHS[:1] if name == "none" else STRENGTHS for name in CANDIDATES}
    return [outcome for name in CANDIDATES for outcome in train(name, strengths[name], seeds, group)]
