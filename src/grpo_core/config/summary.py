"""What a config would run, in a few lines."""

from __future__ import annotations

from grpo_core.config.algorithm import ALGORITHMS
from grpo_core.config.data import FileData, HubData, ReasoningGymData
from grpo_core.config.root import RunConfig


def summary(config: RunConfig) -> list[tuple[str, str]]:
    """Label and text pairs: model, data, reward, algorithm, one step, the whole run, evaluation, folder."""
    return [
        ("model", _model(config)),
        ("data", _data(config)),
        ("reward", " + ".join(f"{part.weight:g} x {part.name or part.kind}" for part in config.reward.parts)),
        ("algorithm", _algorithm(config)),
        ("penalty", _penalty(config)),
        ("one step", _step(config)),
        ("whole run", _run(config)),
        ("evaluation", _evaluation(config)),
        ("folder", config.run.folder.replace("{name}", config.run.name)),
    ]


def _model(config: RunConfig) -> str:
    model = config.model
    trained = f"LoRA of rank {model.lora.rank}" if model.lora else "all weights trained"
    memory = ", gradient checkpointing" if model.gradient_checkpointing else ""
    return f"{model.path}, {model.dtype}, {trained}{memory}"


def _data(config: RunConfig) -> str:
    data = config.data
    if isinstance(data, FileData):
        return data.path
    if isinstance(data, HubData):
        return f"{data.name} ({data.split})"
    origin = "reasoning_gym" if isinstance(data, ReasoningGymData) else "built-in arithmetic"
    return f"{origin}: {data.task}, {data.size:,} questions"


def _algorithm(config: RunConfig) -> str:
    algorithm = config.algorithm
    usual = ALGORITHMS[algorithm.name]
    parts = {key: getattr(algorithm, key) for key in usual}
    changed = ", ".join(f"{key}={value}" for key, value in parts.items() if value != usual[key])
    text = "advantage {advantage}, {policy_loss} loss, critic {critic}, KL {kl}".format(**parts)
    return f"{algorithm.name}: {text}" + (f" (changed: {changed})" if changed else "")


def _penalty(config: RunConfig) -> str:
    if config.algorithm.penalty == "none" or config.train.lambda_ == 0:
        return "none"
    kind = config.algorithm.penalty
    form = "" if kind == "logit_space" else f", {config.penalty.form} form"
    return f"{kind}{form}, lambda {config.train.lambda_:g} ({config.train.lambda_mode})"


def _step(config: RunConfig) -> str:
    train, updates = config.train, config.updates_per_step
    return (
        f"{config.completions_per_step} completions ({config.prompts_per_step} prompts x "
        f"{config.rollout.group_size}), {updates} update{'s' * (updates != 1)} of {train.batch_size} in "
        f"{train.gradient_accumulation} micro-batches"
    )


def _run(config: RunConfig) -> str:
    steps = config.train.steps
    return (
        f"{steps:,} steps, {steps * config.completions_per_step:,} completions of at most "
        f"{config.rollout.max_new_tokens} tokens, {steps * config.updates_per_step:,} updates"
    )


def _evaluation(config: RunConfig) -> str:
    evaluation = config.evaluation
    if evaluation.prompts == 0:
        return "off"
    during = f", and every {evaluation.every} steps" if evaluation.every else ""
    return f"{evaluation.prompts} held-out prompts before and after{during}"
