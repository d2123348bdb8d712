"""Small policies with independent float64 oracles: a bandit of 49 weights, and a tiny transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from tiny_batches import random_batch
from tiny_models import tiny_model
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_core.algorithm.batch import Batch, PolicyOutputs
from grpo_core.algorithm.objective import Algorithm, regularized_gradient, surrogate
from grpo_core.algorithm.passes import Part
from grpo_core.algorithm.penalty import Penalty
from grpo_core.algorithm.policy_losses import unclipped
from grpo_core.algorithm.reductions import token_mean
from grpo_core.models.policy import Policy
from grpo_core.training.shares import Seen, Share

LAM = 0.3


def unused(batch: Batch) -> Tensor:
    raise AssertionError("the advantages are given")


ALGORITHM = Algorithm(advantage=unused, policy_loss=unclipped, reduction=token_mean)


def literal(product: Any, lam: float = LAM) -> Penalty:
    return Penalty(product=product, strength=lam, mode="literal", cap=None)


def gradients(params: Sequence[Tensor]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


class Bandit(nn.Module):
    """Five actions, three features, 49 weights; `batch` rows are (state, action) pairs kept outside."""

    def __init__(self, *, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(3, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 5)]
        if norm:
            layers.insert(1, nn.BatchNorm1d(4))
        self.layers = nn.Sequential(*layers).double()
        self.temperature = nn.Parameter(torch.linspace(0.5, 1.5, 8).double())

    def forward(self, states: Tensor) -> Tensor:
        return (self.layers(states) * self.temperature[:5] + self.temperature[5:].sum()).log_softmax(-1)


GEN = torch.Generator().manual_seed(1)
STATES = torch.randn(8, 3, generator=GEN, dtype=torch.float64)
ACTIONS = torch.randint(0, 5, (8,), generator=GEN)
BANDIT_BATCH = replace(
    random_batch(rollouts=8).select(torch.arange(8)),
    response_ids=ACTIONS[:, None],
    response_mask=torch.ones(8, 1, dtype=torch.bool),
    loss_mask=torch.ones(8, 1, dtype=torch.bool),
    advantages=torch.randn(8, 1, generator=GEN, dtype=torch.float64),
    weights=torch.full((8, 1), 1 / 8, dtype=torch.float64),
    old_logprobs=-1.2 - torch.rand(8, 1, generator=GEN, dtype=torch.float64),
)


def bandit_parts(
    model: nn.Module, micro_batches: int = 1, calls: list[int] | None = None
) -> list[Callable[[], Tensor]]:
    """The library's surrogate on the bandit, cut into micro-batches."""

    def part(rows: Tensor) -> Callable[[], Tensor]:
        batch = BANDIT_BATCH.select(rows)

        def share() -> Tensor:
            if calls is not None:
                calls.append(len(rows))
            logprobs = model(STATES[rows]).gather(1, ACTIONS[rows, None])
            return surrogate(PolicyOutputs(logprobs=logprobs), batch, ALGORITHM).total

        return share

    return [part(rows) for rows in torch.arange(8).tensor_split(micro_batches)]


def bandit_loss(model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """J written out once more, without the library: -mean(ratio * A)."""
    logprobs = functional_call(model, weights, (STATES,))[torch.arange(8), ACTIONS]
    assert BANDIT_BATCH.old_logprobs is not None
    assert BANDIT_BATCH.advantages is not None
    return -((logprobs - BANDIT_BATCH.old_logprobs[:, 0]).exp() * BANDIT_BATCH.advantages[:, 0]).mean()


def oracle(loss: Callable[[dict[str, Tensor]], Tensor], model: nn.Module, lam: float = LAM) -> Tensor:
    """grad(J + lam * ||grad J||^2) by differentiating that very sum."""
    weights = {name: p.detach().clone().requires_grad_(True) for name, p in model.named_parameters()}
    j = loss(weights)
    first = torch.autograd.grad(j, list(weights.values()), create_graph=True)
    whole = j + lam * torch.stack([g.square().sum() for g in first]).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(whole, list(weights.values()))])


def hessian_times(
    loss: Callable[[dict[str, Tensor]], Tensor], model: nn.Module, v: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(grad, Hessian times v) by differentiating <grad, v>; v is the gradient where none is given."""
    weights = {name: p.detach().clone().requires_grad_(True) for name, p in model.named_parameters()}
    first = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss(weights), list(weights.values()), create_graph=True)]
    )
    inner = first @ (first.detach() if v is None else v)
    second = torch.autograd.grad(inner, list(weights.values()))
    return first.detach(), torch.cat([h.flatten() for h in second])


def bandit_score(model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """Sum of w c log pi, c = -ratio A held constant: the gradient of J, and another Hessian."""
    logprobs = functional_call(model, weights, (STATES,))[torch.arange(8), ACTIONS]
    assert BANDIT_BATCH.old_logprobs is not None
    assert BANDIT_BATCH.advantages is not None
    ratio = (logprobs - BANDIT_BATCH.old_logprobs[:, 0]).exp()
    return -(ratio.detach() * BANDIT_BATCH.advantages[:, 0] * logprobs).mean()


def run(model: nn.Module, penalty: Penalty | None, micro_batches: int = 1, **more: Any) -> tuple[Tensor, Any]:
    model.zero_grad(set_to_none=True)
    report = regularized_gradient(bandit_parts(model, micro_batches), list(model.parameters()), (), penalty, **more)
    return gradients(list(model.parameters())), report


class Stop(BaseException):
    """Neither an Exception nor anything anybody catches by accident."""


# A real transformer, through the policy's own scoring function.

# GPT-2 computes in float64 throughout once its weights are; Llama's norm and eager softmax go through float32 whatever
# the weights are (and give NaN on padded float64 queries), so it gets prompts of one length and a wider tolerance.


class Row(NamedTuple):
    """Logits by temperature, log-probs, loss weights, ratio x advantage of one completion's tokens."""

    z: Tensor
    logprobs: Tensor
    weights: Tensor
    ratio_a: Tensor


class Transformer:
    """A tiny random model, a batch for it, and J of that batch in two independent ways."""

    def __init__(self, kind: str, attention: str) -> None:
        self.policy = Policy(tiny_model(kind, dtype=torch.float64, attention=attention))
        batch = random_batch(rollouts=8, prompts=3, ragged=kind == "gpt2")
        draw = torch.Generator().manual_seed(4)
        noise = torch.rand(batch.response_mask.shape, generator=draw, dtype=torch.float64)
        self.batch = replace(batch, old_logprobs=-5.5 - noise)

    def step(self, penalty: Penalty | None, micro_batches: int = 1, **more: Any) -> Tensor:
        def part(batch: Batch) -> Callable[[], Tensor]:
            return lambda: surrogate(self.policy.score(batch, temperature=0.8), batch, ALGORITHM).total

        self.policy.model.zero_grad(set_to_none=True)
        cut = torch.arange(len(self.batch)).tensor_split(micro_batches)
        parts = [part(self.batch.select(rows)) for rows in cut]
        with sdpa_kernel(SDPBackend.MATH):
            regularized_gradient(parts, self.policy.policy_parameters(), (), penalty, self.policy.buffers(), **more)
        return gradients(self.policy.policy_parameters())

    def share_step(
        self, penalty: Penalty | None, micro_batches: int = 1, *, updates_per_step: int = 2, **more: Any
    ) -> Any:
        """(gradient, report) through the training's own parts."""
        algorithm = replace(ALGORITHM, **more)
        parts = share_parts(
            self.policy,
            self.batch,
            micro_batches,
            algorithm=algorithm,
            updates_per_step=updates_per_step,
            temperature=0.8,
        )
        with sdpa_kernel(SDPBackend.MATH):
            return of_parts(parts, self.policy.policy_parameters(), penalty)

    def rows(self, weights: dict[str, Tensor]) -> Iterator[Row]:
        """Each completion alone, without padding, from the whole model's logits."""
        batch = self.batch
        assert batch.old_logprobs is not None
        assert batch.advantages is not None
        assert batch.weights is not None
        for row in range(len(batch)):
            place, kept = batch.prompt_index[row], batch.response_mask[row]
            prompt, answer = batch.prompt_ids[place][batch.prompt_mask[place]], batch.response_ids[row][kept]
            ids = torch.cat([prompt, answer])[None]
            logits = functional_call(self.policy.model, weights, kwargs={"input_ids": ids, "use_cache": False}).logits
            z = logits[0, len(prompt) - 1 : -1] / 0.8
            logprobs = z.log_softmax(-1).gather(1, answer[:, None])[:, 0]
            ratio_a = (logprobs - batch.old_logprobs[row][kept]).exp() * batch.advantages[row][kept]
            yield Row(z, logprobs, batch.weights[row][kept], ratio_a)

    def loss(self, weights: dict[str, Tensor]) -> Tensor:
        """J, once more."""
        return -torch.stack([(row.weights * row.ratio_a).sum() for row in self.rows(weights)]).sum()

    def score_loss(self, weights: dict[str, Tensor]) -> Tensor:
        """Sum of w c log pi, c = -ratio A held constant: the gradient of J, and another Hessian."""
        rows = self.rows(weights)
        return -torch.stack([(row.weights * row.ratio_a.detach() * row.logprobs).sum() for row in rows]).sum()

    def logit_penalty(self, weights: dict[str, Tensor]) -> Tensor:
        """Sum of w ||d loss / d logits||^2 by autograd."""
        return torch.stack(
            [
                (row.weights[:, None] * torch.autograd.grad(-row.ratio_a.sum(), row.z, create_graph=True)[0] ** 2).sum()
                for row in self.rows(weights)
            ]
        ).sum()

    def oracle(self, lam: float) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return oracle(self.loss, self.policy.model, lam)


class BanditPolicy:
    """The bandit behind the interface that the training's `Share` asks for; a row's state is its prompt."""

    device = torch.device("cpu")

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def score(
        self, batch: Batch, *, temperature: float, wanted: tuple[str, ...] = (), values: bool = False
    ) -> PolicyOutputs:
        assert (temperature, values) == (1.0, False)
        logprobs = self.model(STATES[batch.prompt_ids[batch.prompt_index, 0]])
        collision = logprobs.exp().square().sum(1, keepdim=True) if "collision" in wanted else None
        return PolicyOutputs(logprobs=logprobs.gather(1, batch.response_ids), collision=collision)


ROWS_AS_PROMPTS = replace(
    BANDIT_BATCH,
    prompt_ids=torch.arange(8)[:, None],
    prompt_mask=torch.ones(8, 1, dtype=torch.bool),
    prompt_index=torch.arange(8),
)


def share_parts(
    policy: Any,
    batch: Batch,
    micro_batches: int = 1,
    *,
    algorithm: Algorithm = ALGORITHM,
    updates_per_step: int = 1,
    temperature: float = 1.0,
) -> list[Part]:
    """The training's own parts, around any policy."""
    config = SimpleNamespace(updates_per_step=updates_per_step, rollout=SimpleNamespace(temperature=temperature))
    run: Any = SimpleNamespace(policy=policy, algorithm=algorithm, config=config, kl=SimpleNamespace(coef=0.0))
    cut = torch.arange(len(batch)).tensor_split(micro_batches)
    return [Share(run, batch.select(rows), Seen()) for rows in cut]


def of_parts(
    parts: Sequence[Part], params: Sequence[Tensor], penalty: Penalty | None, **more: Any
) -> tuple[Tensor, Any]:
    """(gradient, report) of one step of the library."""
    for p in params:
        p.grad = None
    report = regularized_gradient(parts, params, (), penalty, **more)
    return gradients(params), report
