"""The tasks: a language to start from, the proxy that is trained on, and the true score that is only watched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hacking import chain, reviews
from hacking.start import FACTS, PROMPTS, pretrain


@dataclass(frozen=True, kw_only=True)
class Task:
    """One setting, fixed before any arms were compared."""

    name: str
    question: str
    start: str
    """Name of the start in STARTS."""
    proxy: dict[str, Any]
    true: dict[str, Any]
    """The two scores as reward parts of the config."""
    scores_need_start: bool = False
    """Whether these two are told the start's folder."""
    steps: int
    learning_rate: float
    new_tokens: int

    def config(self, start: Path) -> dict[str, Any]:
        """The run's config without the arm's settings, the seed and the folder."""
        told = {"options": {"start": str(start)}}
        scores = told if self.scores_need_start else {}
        parts = [
            {"name": "proxy", "weight": 1.0, **self.proxy, **scores},
            {"name": "true", "weight": 0.0, **self.true, **scores},
            {"name": "start_kl", "weight": 0.0, "path": "hacking.start:start_kl", "batched": True, **told},
        ]
        return {
            "model": {"path": str(start), "attention": "eager", "device": "cpu"},
            "data": {"kind": "file", "path": str(start / PROMPTS), "chat": False},
            "reward": {"parts": [{"kind": "function", **part} for part in parts]},
            "algorithm": {"name": "grpo", "penalty": "none"},
            "train": {
                "batch_size": 64, "seq_length": 64, "steps": self.steps, "learning_rate": self.learning_rate,
                "gradient_accumulation": 1, "grad_clip": None,
            },
            "rollout": {"group_size": 8, "max_new_tokens": self.new_tokens, "min_new_tokens": self.new_tokens},
            "evaluation": {"prompts": 0},
            "run": {
                "threads": 1, "tensorboard": False, "save_rollouts_every": 0, "checkpoint_every": 0, "watch": "off",
            },
        }  # fmt: skip


TASKS = {
    task.name: task
    for task in (
        Task(
            name="proxy",
            question=(
                "The proxy adds a bonus for commas: negligible at first, in the end worth more than the true score. An "
                "arm escapes it by restraint, or by being sure of the alphabet before it meets the bonus: see its "
                "entropy and its KL."
            ),
            start="chain",
            proxy={"path": "hacking.chain:order_and_commas"},
            true={"path": "hacking.chain:in_order"},
            steps=120,
            learning_rate=1e-3,
            new_tokens=16,
        ),
        Task(
            name="learned",
            question="The proxy is fitted to 1,000 labels; the true score to 8,000 others, and it wants fluent text.",
            start="reviews",
            proxy={"path": "hacking.reviews:learned"},
            true={"path": "hacking.reviews:favourable_and_fluent", "batched": True},
            scores_need_start=True,
            steps=120,
            learning_rate=3e-4,
            new_tokens=12,
        ),
        Task(
            name="sparse",
            question="The reward is 1 for a rare success, else 0. Nothing can be hacked: does an arm cost anything?",
            start="chain",
            proxy={"path": "hacking.chain:all_in_order"},
            true={"path": "hacking.chain:all_in_order"},
            steps=100,
            learning_rate=2e-3,
            new_tokens=8,
        ),
    )
}


def _chain(folder: Path) -> dict[str, float]:
    text = chain.sentences(4000, 20, seed=0)
    return {"log-probability of a word": pretrain(folder, chain.WORDS, text, width=32, steps=600, prompt_words=2)}


def _reviews(folder: Path) -> dict[str, float]:
    rows = reviews.labelled()
    words = sorted({word for text, _ in rows for word in text})
    text = [text[:16] for text, _ in rows if len(text) >= 16]
    facts = reviews.fit_heads(folder, words, rows)
    natural = pretrain(folder, words, text, width=64, steps=1500, prompt_words=4)
    return facts | {"log-probability of a word": natural}


STARTS: dict[str, Callable[[Path], dict[str, float]]] = {"chain": _chain, "reviews": _reviews}


def make_start(name: str, folder: Path) -> None:
    """Make the start's model folder; it is written aside and renamed."""
    aside = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    facts = STARTS[name](aside)
    (aside / FACTS).write_text(json.dumps(facts, indent=1))
    aside.rename(folder)


def missing(task: Task) -> str | None:
    """Why the task cannot run here, if so."""
    if task.start == "reviews" and not all(file.is_file() for file in reviews.FILES):
        return f"{task.name} is left out: no reviews in {reviews.FOLDER}; set GRPO_SHARED"
    return None
