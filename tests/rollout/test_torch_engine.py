"""The in-process engine against transformers' own generate, and against its own promises."""

from __future__ import annotations

import pytest
import torch
from tiny_models import KINDS, byte_tokenizer, tiny_model

from grpo_core.config.model import ModelConfig
from grpo_core.models.decoding import PolicyDecoder
from grpo_core.models.kv_cache import SPARE
from grpo_core.models.loading import prepare
from grpo_core.models.policy import Policy
from grpo_core.records import Completion, Prompt, Sampling
from grpo_core.rollout.torch_engine import TorchEngine

PROMPTS = [
    Prompt(id=str(row), text="-", token_ids=ids)
    for row, ids in enumerate(
        [(5, 6, 7), (9,), (20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35), (40, 41)]
    )
]


def engine_for(kind: str, batch_size: int | None = None) -> tuple[TorchEngine, Policy]:
    model = tiny_model(kind)
    loaded = prepare(model, byte_tokenizer(), ModelConfig())
    policy = Policy(loaded.model)
    return TorchEngine(PolicyDecoder(policy), loaded.eos, batch_size=batch_size), policy


def greedy_by_transformers(model: torch.nn.Module, prompt: Prompt, limit: int) -> list[int]:
    ids = torch.tensor([prompt.token_ids])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_transformers_alone_and_in_a_batch(kind: str) -> None:
    engine, policy = engine_for(kind)
    how = Sampling(max_new_tokens=24, temperature=0)
    expected = [greedy_by_transformers(policy.model, prompt, 24) for prompt in PROMPTS]
    together = engine.generate(PROMPTS, how)
    alone = [engine.generate([prompt], how)[0] for prompt in PROMPTS]
    assert [list(c.token_ids) for c in together] == expected
    assert [list(c.token_ids) for c in alone] == expected
    assert len({tuple(c.token_ids) for c in together}) > 1, "a model that always says the same proves nothing"


def test_completions_come_prompt_by_prompt_and_batches_cut_nothing() -> None:
    engine, _ = engine_for("llama")
    completions = engine.generate(PROMPTS, Sampling(max_new_tokens=6, n=3, seed=1))
    assert [c.prompt_id for c in completions] == [p.id for p in PROMPTS for _ in range(3)]
    small, _ = engine_for("llama", batch_size=5)
    again = small.generate(PROMPTS, Sampling(max_new_tokens=6, n=3, temperature=0))
    whole = engine.generate(PROMPTS, Sampling(max_new_tokens=6, n=3, temperature=0))
    assert [c.token_ids for c in again] == [c.token_ids for c in whole]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sampled_depends_on_no_other_row(kind: str) -> None:
    """Neither the batch size nor rows that finish early change a completion: each has random numbers of its own."""
    how = Sampling(max_new_tokens=90, n=4, seed=5)
    whole, _ = engine_for(kind)
    small, _ = engine_for(kind, batch_size=3)
    ends = frozenset(range(0, 384, 20))
    whole._eos, small._eos = ends, ends
    together, apart = whole.generate(PROMPTS, how), small.generate(PROMPTS, how)
    assert [c.token_ids for c in together] == [c.token_ids for c in apart]
    lengths = {len(c.token_ids) for c in together}
    assert len(lengths) > 3, "rows must finish at different times"
    assert all((c.token_ids[-1] in ends) == (c.finish_reason == "eos") for c in together)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_that_grows_in_place_equals_the_copied_one(kind: str) -> None:
    """Long enough to outgrow its spare columns, with rows that leave on the way."""
    engine, policy = engine_for(kind)
    copying = TorchEngine(PolicyDecoder(policy, grow_in_place=False), [])
    engine._eos = copying._eos = frozenset(range(0, 384, 90))
    how = Sampling(max_new_tokens=150, n=4, seed=1)
    ours, plain = engine.generate(PROMPTS, how), copying.generate(PROMPTS, how)
    assert [c.token_ids for c in ours] == [c.token_ids for c in plain]
    for mine, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(other.logprobs), rtol=1e-5, atol=1e-5)
    assert max(len(c.token_ids) for c in ours) >= SPARE


def test_kf29_the_seed_reaches_the_sampler() -> None:
    engine, _ = engine_for("llama")

    def sample(seed: int) -> list[Completion]:
        return engine.generate(PROMPTS, Sampling(max_new_tokens=8, n=4, seed=seed))

    assert sample(3) == sample(3)
    assert sample(3) != sample(4)
    first = sample(3)[:4]
    assert len({c.token_ids for c in first}) > 1, "samples of one prompt differ from each other"


def test_min_new_tokens_holds_back_the_end() -> None:
    engine, _ = engine_for("llama")
    engine._eos = frozenset(range(0, 384, 2))
    free = engine.generate(PROMPTS, Sampling(max_new_tokens=10, n=8, seed=0))
    held = engine.generate(PROMPTS, Sampling(max_new_tokens=10, n=8, seed=0, min_new_tokens=4))
    assert min(len(c.token_ids) for c in free) == 1
    assert min(len(c.token_ids) for c in held) == 5, "four tokens that are not the end, then the end"
    assert all(c.token_ids[-1] % 2 == 0 for c in held if c.finish_reason == "eos")


def test_kf12_every_eos_id_ends_a_completion() -> None:
    engine, _ = engine_for("llama")
    plain = engine.generate(PROMPTS[:1], Sampling(max_new_tokens=12, temperature=0))[0]
    second = plain.token_ids[2]
    engine._eos = frozenset({256, second})
    ended = engine.generate(PROMPTS[:1], Sampling(max_new_tokens=12, temperature=0))[0]
    assert ended.token_ids == plain.token_ids[: plain.token_ids.index(second) + 1]
    assert ended.finish_reason == "eos"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_kf17_sampled_logprobs_equal_the_scoring_path(kind: str, temperature: float) -> None:
    from grpo_core.algorithm.batch import collate
    from grpo_core.records import Rollout

    engine, policy = engine_for(kind)
    how = Sampling(max_new_tokens=20, n=3, temperature=temperature, seed=2)
    completions = engine.generate(PROMPTS, how)
    by_id = {p.id: p for p in PROMPTS}
    rollouts = [
        Rollout(prompt=by_id[c.prompt_id], group_id=0, completion=c, text="", sampling=how, policy_version=0)
        for c in completions
    ]
    batch = collate(rollouts)
    for share in (True, False):
        policy.trunk.share_prompts = share
        with torch.no_grad():
            scored = policy.score(batch, temperature=temperature).logprobs
        for row, completion in enumerate(completions):
            ours = torch.tensor(completion.policy_logprobs)
            torch.testing.assert_close(scored[row, : len(ours)], ours, atol=1e-4, rtol=1e-4)
            assert completion.logprobs == completion.policy_logprobs
