"""The only composition root: every choice by name happens here. `RunConfig` in, `Run` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_core.composition import build_algorithm, build_kl, build_optimizer, build_policy
from grpo_core.config.root import RunConfig
from grpo_core.config.stored import CONFIG, store_config
from grpo_core.config.summary import summary
from grpo_core.data.order import PromptOrder
from grpo_core.data.prompts import PromptSets, from_iterable, load_prompts
from grpo_core.errors import CheckpointError, ConfigError, DataError
from grpo_core.models.decoding import PolicyDecoder
from grpo_core.models.loading import LoadedModel, load_model
from grpo_core.models.reference import Reference
from grpo_core.models.saving import load_policy, save_policy
from grpo_core.models.tokens import decode, encode_prompt
from grpo_core.records import Prompt
from grpo_core.rewards.build import build_reward, from_callable, needs_answer
from grpo_core.rewards.reward import Reward
from grpo_core.rollout.torch_engine import TorchEngine
from grpo_core.runtime.memory import reuse_freed_memory
from grpo_core.runtime.seeding import seed_everything
from grpo_core.tracking.tracker import RunTracker
from grpo_core.training.run import Run, Storage
from grpo_core.training.snapshot import restore_latest


@dataclass(frozen=True)
class _Preparer:
    """Tokenises a prompt and refuses one that leaves no room for a completion."""

    tokenizer: Any
    limit: int

    def __call__(self, prompt: Prompt) -> Prompt:
        ready = prompt if prompt.token_ids else encode_prompt(self.tokenizer, prompt)
        if len(ready.token_ids) > self.limit:
            raise DataError(
                f"prompt {prompt.id} has {len(ready.token_ids)} tokens; train.seq_length minus "
                f"rollout.max_new_tokens leaves room for {self.limit}",
                fix="raise train.seq_length, lower rollout.max_new_tokens, or remove the prompt",
            )
        return ready


def assemble(
    config: RunConfig,
    folder: Path,
    *,
    reward: Callable[..., Any] | None = None,
    data: Iterable[Mapping[str, Any] | str] | None = None,
    loaded: LoadedModel | None = None,
    resume: bool = False,
    quiet: bool = False,
    notes: Sequence[str] = (),
) -> Run:
    """Load data, reward and model, in that order, so that bad input is refused before the slow part.

    `reward`, `data` and `loaded` replace what the config names; `notes` are shown first. With `resume` the run goes on
    from its newest checkpoint. Raises GrpoCoreError: nothing is written before everything is known to fit.
    """
    check_folder(folder, resume)
    seed_everything(config.run.seed)
    if config.run.reuse_memory:
        reuse_freed_memory()
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    held_out = config.evaluation.prompts
    sets = load_prompts(config.data, held_out=held_out) if data is None else from_iterable(data, held_out=held_out)
    columns = {name for prompt in sets.train for name in prompt.columns}
    if reward is None:
        check_answers(config, sets)
        judge = build_reward(config.reward, columns=columns)
    else:
        judge = from_callable(reward, columns=columns)
    loaded = loaded or load_model(config.model)
    check_length(config, loaded)
    run = _put_together(config, folder, sets, judge, loaded, quiet)
    for note in (*notes, *sets.notes):
        run.tracker.note(note)
    if resume:
        restore_latest(run)
    return run


def _put_together(
    config: RunConfig, folder: Path, sets: PromptSets, reward: Reward, loaded: LoadedModel, quiet: bool
) -> Run:
    """The run's parts, and its folder with the resolved config in it."""
    policy = build_policy(config, loaded)
    prepare = _Preparer(loaded.tokenizer, config.train.seq_length - config.rollout.max_new_tokens)
    ready = [prepare(prompt) for prompt in sets.held_out]
    folder.mkdir(parents=True, exist_ok=True)
    store_config(config, folder)
    return Run(
        config=config,
        folder=folder,
        policy=policy,
        reference=Reference(policy) if config.algorithm.kl != "none" else None,
        engine=TorchEngine(PolicyDecoder(policy), loaded.eos, batch_size=config.rollout.batch_size),
        reward=reward,
        prepare=prepare,
        decode=partial(decode, loaded.tokenizer),
        order=PromptOrder(sets.train, seed=config.run.seed),
        held_out=ready,
        algorithm=build_algorithm(config),
        kl=build_kl(config),
        optimizer=build_optimizer(config, policy),
        storage=Storage(save=partial(save_policy, policy, loaded.tokenizer), load=partial(load_policy, policy)),
        tracker=RunTracker(
            folder,
            config.run,
            total_steps=config.train.steps,
            facts=dict(summary(config)),
            groups=config.algorithm.advantage not in ("gae", "batch_baseline"),
            quiet=quiet,
        ),
    )


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse to write over another run, and to resume what is none."""
    there = (folder / CONFIG).is_file()
    if resume and not there:
        raise CheckpointError(f"{folder} is not a run folder (no {CONFIG})", fix="name the folder of a run")
    if there and not resume and (folder / "metrics.jsonl").is_file():
        raise CheckpointError(
            f"{folder} already holds a run",
            fix=f"go on with it (grpo train --resume {folder}), name another (--set run.name=NAME), or delete it",
        )


def check_answers(config: RunConfig, sets: PromptSets) -> None:
    """Refuse rows without a reference answer where a reward part compares with one."""
    if not needs_answer(config.reward):
        return
    for prompt in [*sets.train, *sets.held_out]:
        if prompt.answer is None:
            raise DataError(
                f"prompt {prompt.id} has no answer, but a reward part compares with one",
                fix="name the column in data.columns.answer, or use a reward that needs none",
            )


def check_length(config: RunConfig, loaded: LoadedModel) -> None:
    """Refuse sequences longer than the model's positions."""
    limit = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and config.train.seq_length > limit:
        raise ConfigError(
            f"train.seq_length is {config.train.seq_length}, but the model has {limit} positions",
            fix=f"set train.seq_length to {limit} or less",
        )
