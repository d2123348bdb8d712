"""Drawing tokens: against listed distributions, and by counting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import case_params
from torch import Tensor

from grpo_core.algorithm.batch import collate
from grpo_core.records import Prompt, Rollout, Sampling
from grpo_core.rollout.sampling import draw, kept_tokens
from grpo_core.rollout.torch_engine import TorchEngine


def how(**settings: Any) -> Sampling:
    return Sampling(max_new_tokens=1, **settings)


def sample(
    logits: Sequence[float], settings: Sampling, count: int, seed: int = 0, banned: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.tensor([list(logits)], dtype=torch.float32).repeat(count, 1)
    return draw(rows, settings, uniform(count, seed), banned)


def uniform(count: int, seed: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kept(logits: Sequence[float], settings: Sampling) -> list[int]:
    logprobs = (torch.tensor([list(logits)], dtype=torch.float64) / settings.temperature).log_softmax(-1)
    mask = kept_tokens(logprobs, settings)
    return list(range(len(logits))) if mask is None else mask[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("row", case_params("sampling_logprobs.jsonl"))
def test_kf17_kf18_listed_distributions(row: dict[str, Any]) -> None:
    settings = how(temperature=row["temperature"], top_k=row["top_k"], top_p=row["top_p"])
    assert kept(row["logits"], settings) == row["expected"]["kept_tokens"]
    tokens, under, alone = sample(row["logits"], settings, 4000)
    assert sorted(set(tokens.tolist())) == row["expected"]["kept_tokens"]
    here = tokens == row["token"]
    wanted = row["expected"]["logprob_under_sampling_distribution"]
    if wanted is None:
        assert not bool(here.any())
        return
    assert under[here][0].item() == pytest.approx(wanted, abs=1e-5)
    assert alone[here][0].item() == pytest.approx(row["expected"]["logprob_temperature_only"], abs=1e-5)
    assert under[here].unique().numel() == 1


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.3},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
]
LOGITS = [1.2, -0.3, 0.8, -2.0, 0.0, 1.1]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("banned", [None, [0]])
def test_kf18_frequencies_are_those_of_the_reported_logprobs(settings: dict[str, Any], banned: Any) -> None:
    count = 20000
    tokens, under, _ = sample(LOGITS, how(**settings), count, 7, None if banned is None else torch.tensor(banned))
    seen = tokens.unique()
    reported = torch.tensor([float(under[tokens == t][0]) for t in seen]).double().exp()
    assert float(reported.sum()) == pytest.approx(1.0, abs=1e-5), "every token of the distribution was drawn"
    expected = reported * count
    observed = torch.tensor([float((tokens == t).sum()) for t in seen])
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = max(1, len(seen) - 1)
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)
    assert banned is None or not bool(torch.isin(tokens, torch.tensor(banned)).any())


def test_cuts_by_hand() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert kept(logits, how(top_k=3)) == [0, 1, 2]
    assert kept(logits, how(top_k=9)) == [0, 1, 2, 3]
    assert kept(logits, how(top_p=0.65)) == [0, 1], "0.4 + 0.3 crosses"
    assert kept(logits, how(top_p=0.75)) == [0, 1, 2]
    assert kept(logits, how(top_p=1e-9)) == [0], "never nothing"
    assert kept(logits, how(min_p=0.45)) == [0, 1, 2], "0.2 / 0.4 = 0.5, 0.1 / 0.4 = 0.25"
    assert kept(logits, how(top_k=2, top_p=0.5)) == [0], "top-p sees 4/7 once top-k has cut"
    assert kept(logits, how(min_p=1.0)) == [0]
    # ties at the edge of top-k: exactly k are left, the first ones
    assert kept([1.0, 1.0, 1.0, 0.0], how(top_k=2)) == [0, 1]


def test_greedy_takes_the_best_that_is_allowed() -> None:
    tokens, under, alone = sample(LOGITS, how(temperature=0), 3)
    assert tokens.tolist() == [0, 0, 0]
    assert under.tolist() == [0.0] * 3
    assert alone[0].item() == pytest.approx(torch.tensor(LOGITS).log_softmax(-1)[0].item(), abs=1e-6)
    tokens, _, _ = sample(LOGITS, how(temperature=0), 1, banned=torch.tensor([0, 5]))
    assert tokens.tolist() == [2]


def test_a_token_without_mass_is_never_drawn() -> None:
    logits = [-torch.inf, 0.0, -torch.inf, -torch.inf, 0.0, -torch.inf]
    tokens, under, _ = sample(logits, how(), 5000)
    assert set(tokens.tolist()) == {1, 4}
    assert bool(under.isfinite().all())


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0])
def test_no_uniform_number_leads_to_a_token_without_mass(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    tokens, under, _ = draw(logits, how(), torch.tensor([number], dtype=torch.float64))
    assert tokens.tolist() == [1 if number == 0.0 else 3]
    assert under.item() == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("banned", [None, [0, 5]])
def test_tokens_are_those_of_the_plain_cumulative_sum(vocab: int, banned: list[int] | None) -> None:
    """Oracle: softmax, running sum and search in float64 over the whole vocabulary, where the library sums by blocks."""
    if banned is not None and vocab < 10:
        pytest.skip("nothing would be left")
    count = 2000
    logits = 3 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(vocab), dtype=torch.float64)
    numbers = uniform(count, 3)
    tokens, under, alone = draw(logits, how(), numbers, None if banned is None else torch.tensor(banned))
    plain = logits.log_softmax(-1)
    cut = plain if banned is None else plain.index_fill(-1, torch.tensor(banned), -torch.inf).log_softmax(-1)
    expected = torch.searchsorted(cut.exp().cumsum(-1), numbers[:, None], right=True)[:, 0].clamp(max=vocab - 1)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(under, cut.gather(-1, tokens[:, None])[:, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(alone, plain.gather(-1, tokens[:, None])[:, 0], rtol=1e-12, atol=1e-12)


def test_rows_are_drawn_independently() -> None:
    tokens, _, _ = sample([0.0, 0.0], how(), 4000)
    pairs = tokens.reshape(-1, 2)
    assert abs(float((pairs[:, 0] == pairs[:, 1]).double().mean()) - 0.5) < 0.05


class Scripted:
    """A decoder that says the listed ids, whatever it is given."""

    def __init__(self, script: Sequence[int], vocab: int) -> None:
        self._script, self._vocab, self._place = list(script), vocab, 0

    def _state(self) -> Any:
        logits = torch.full((1, self._vocab), -1e9)
        logits[0, self._script[min(self._place, len(self._script) - 1)]] = 0.0
        return SimpleNamespace(logits=logits)

    def prefill(self, prompts: Any) -> Any:
        return self._state()

    def keep(self, state: Any, rows: Tensor) -> Any:
        return state

    def advance(self, state: Any, tokens: Tensor) -> Any:
        self._place += 1
        return self._state()


@pytest.mark.parametrize("row", case_params("eos_masks.jsonl"))
def test_kf11_kf12_kf15_completions_end_at_the_first_of_any_eos(row: dict[str, Any]) -> None:
    script, expected = row["completion_ids"], row["expected"]
    engine = TorchEngine(Scripted(script, max(script) + 1), row["eos_ids"])
    settings = Sampling(max_new_tokens=len(script))
    prompt = Prompt(id="p", text="-", token_ids=(1,))
    completion = engine.generate([prompt], settings)[0]
    assert completion.token_ids == tuple(script[: expected["length"]]), "the ids that were sampled, bit for bit"
    assert completion.finish_reason == ("eos" if expected["finished"] else "length")
    assert len(completion.logprobs) == len(completion.policy_logprobs) == expected["length"]
    rollout = Rollout(prompt=prompt, group_id=0, completion=completion, text="", sampling=settings, policy_version=0)
    batch = collate([rollout], fill=row["pad_id"])
    assert int(batch.response_mask.sum()) == sum(expected["mask"])
    assert batch.response_ids[0].tolist() == script[: expected["length"]]
