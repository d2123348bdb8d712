"""A worker of vs_trl.py: this library."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import work
from safetensors.torch import load_file

from grpo_core.algorithm.batch import Batch, length_mask
from grpo_core.assemble import assemble
from grpo_core.config.load import config_from_mapping
from grpo_core.models.policy import Policy
from grpo_core.training.collect import collect
from grpo_core.training.run import Run
from grpo_core.training.shares import shares
from grpo_core.training.update import update


def settings(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The work as a config; `--set` chooses the method."""
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in work.questions(work.PROMPTS)))
    reward = {"kind": "model", "path": options.reward_model, "batch_size": work.PROMPTS * work.GROUP}
    return {
        "model": {"path": options.model, "lora": {"rank": 16, "alpha": 32} if options.train == "lora" else None},
        "data": {"kind": "file", "path": str(file)},
        "reward": reward if options.reward_model else {"kind": "function", "path": "python:reward"},
        "train": {"batch_size": work.PROMPTS * work.GROUP, "seq_length": 192, "learning_rate": 1e-6},
        "rollout": {"group_size": work.GROUP, "min_new_tokens": work.NEW, "max_new_tokens": work.NEW},
        "rl": {"init_kl_coef": 0.02},
        "evaluation": {"prompts": 0},
        "run": {"threads": options.threads, "tensorboard": False, "watch": "off"},
    }


def reward(completion: str) -> float:
    """The work's own."""
    return work.score(completion)


def frozen_batch(run: Run, file: dict[str, torch.Tensor]) -> Batch:
    """The peer's frozen batch as ours; raises ValueError where the two do not tokenise the prompts alike."""
    mask = file["prompt_mask"][:: work.GROUP].bool()
    prompts = file["prompt_ids"][:: work.GROUP]
    start = run.order.state()
    own = {run.prepare(prompt).token_ids for prompt in run.order.take(work.PROMPTS)}
    run.order.restore(start)
    if own != {tuple(ids[kept].tolist()) for ids, kept in zip(prompts, mask, strict=True)}:
        raise ValueError("the peer's prompts have other tokens than ours")
    response = torch.tensor(work.frozen_tokens())
    full = length_mask([work.NEW] * len(response))
    group = torch.arange(work.PROMPTS).repeat_interleave(work.GROUP)
    advantages = torch.tensor(work.frozen_advantages())[:, None].expand(-1, work.NEW).contiguous()
    batch = Batch(
        prompt_ids=prompts, prompt_mask=mask, prompt_index=group, response_ids=response, response_mask=full,
        loss_mask=full, group_ids=group, rewards=torch.zeros(len(response)), advantages=advantages,
        weights=run.algorithm.reduction(full),
    )  # fmt: skip
    return batch


def place(name: str) -> str:
    """A weight's name without what wrappers put before it."""
    return name.rpartition("model.")[2]


def check(run: Run, path: str) -> dict[str, Any]:
    """Loss and gradient on the peer's frozen batch, with the peer's adapters, through the path that training takes."""
    assert isinstance(run.policy, Policy)
    file = load_file(path)
    trained = {place(name): p for name, p in run.policy.model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, tensor in file.items():
            if name.startswith("weight."):
                trained[place(name)].copy_(tensor)
    _, parts = shares(run, frozen_batch(run, file))
    total = 0.0
    for part in parts:
        loss = part.loss()
        loss.backward()
        total += float(loss.detach())
    theirs = {place(name): tensor for name, tensor in file.items() if name.startswith("grad.")}
    if theirs.keys() != trained.keys():
        raise ValueError(f"trained by one side only: {sorted(theirs.keys() ^ trained.keys())[:3]}")
    apart = sum(float((trained[name].grad - grad).double().square().sum()) for name, grad in theirs.items())
    whole = sum(float(grad.double().square().sum()) for grad in theirs.values())
    run.optimizer.zero_grad(set_to_none=True)
    return {"loss": total, "gradient_difference": (apart / whole) ** 0.5}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", default="full")
    parser.add_argument("--reward-model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    sys.stdout = sys.stderr  # standard output is for the benchmark
    phases = work.Phases()
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        config = config_from_mapping(settings(options, folder), options.set)
        own = None if options.reward_model else reward
        run = assemble(config, folder / "run", reward=own, quiet=True)
        work.say(ready=True)
        step = 0
        try:
            while True:
                phases.wait(lambda path: check(run, path))
                step += 1
                experience = collect(run, step)
                metrics = experience.metrics | update(run, experience.batch, step)
                phases.times = {
                    "rollout": metrics["time/rollout"],
                    "score": metrics["time/reward"] + metrics["time/score"],
                    "update": metrics["time/update"],
                }
                phases.end()
        except work.Stop:
            pass


if __name__ == "__main__":
    main()
