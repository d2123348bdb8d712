"""Every metric: its name, unit, meaning and better direction. Plots, tables and docs read this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric. `better` is the direction one wants it to go; None where neither is better by itself."""

    name: str
    """`family/name`; a name that ends in `<name>` stands for all metrics with that beginning."""
    unit: str
    meaning: str
    better: Literal["up", "down"] | None = None


METRICS: tuple[Metric, ...] = (
    Metric("reward/mean", "reward", "Mean reward of the step's completions that have one.", "up"),
    Metric("reward/std", "reward", "Standard deviation of those rewards."),
    Metric("reward/part/<name>", "part", "Mean of one part of the reward, before its weight.", "up"),
    Metric("reward/failed", "completions",
           "Completions without a reward. They are left out, never 0.", "down"),
    Metric("held_out/reward", "reward", "Mean reward on prompts that are never trained on.", "up"),
    Metric("held_out/reward_se", "reward", "Standard error of that mean over the held-out prompts."),
    Metric("held_out/part/<name>", "part", "Mean of one part of the held-out reward.", "up"),
    Metric("held_out/failed", "completions", "Held-out completions without a reward.", "down"),
    Metric("held_out/length_mean", "tokens", "Mean length of held-out completions."),
    Metric("held_out/truncated", "share", "Held-out completions that hit the length limit.", "down"),
    Metric("loss/total", "loss", "The objective J that is minimised, without the gradient penalty."),
    Metric("loss/policy", "loss", "Policy part of J."),
    Metric("loss/value", "loss", "Value part of J, times algorithm.value_coef."),
    Metric("loss/entropy", "loss", "Entropy bonus in J: minus algorithm.entropy_coef times the entropy."),
    Metric("loss/kl", "loss", "KL part of J, for algorithm.kl: loss."),
    Metric("policy/entropy", "nats per token",
           "Mean of minus the sampled tokens' log-probabilities: a Monte-Carlo estimate over response "
           "tokens at rollout.temperature."),
    Metric("policy/ratio_max", "ratio",
           "Largest probability ratio of a token to the policy that sampled it. Exactly 1 on the first "
           "update of a rollout."),
    Metric("policy/clip_fraction", "share", "Response tokens whose ratio was clipped."),
    Metric("policy/kl_rollout", "nats per sequence",
           "KL to the policy that sampled the rollout (rl.target_kl stops on it)."),
    Metric("kl/reference", "nats per sequence",
           "KL to the reference policy, estimated on the sampled tokens."),
    Metric("kl/coef", "factor", "KL coefficient in force."),
    Metric("penalty/ratio", "ratio",
           "Norm of the penalty's gradient over the norm of the loss's gradient; between measured updates "
           "of `reuse` and `logit_space` the last measured one."),
    Metric("penalty/grad_norm", "gradient norm",
           "Norm of the policy's gradient, whose square the penalty holds down: before the penalty is "
           "added, or with it where an estimator never has one without the other.", "down"),
    Metric("penalty/cosine", "cosine",
           "Angle between the gradient g and Hg, measured like penalty/ratio; below 0 the penalty works "
           "against descent."),
    Metric("penalty/shift", "weight units", "Length of the step in weight space that was asked for."),
    Metric("penalty/shift_realised", "weight units",
           "Length of the step the weights really made; less than asked for means rounding."),
    Metric("penalty/lambda", "factor", "The literal lambda in force, as in lambda * ||grad J||^2."),
    Metric("penalty/capped", "share",
           "Updates whose penalty was cut: to train.penalty_cap, or its shift to penalty.max_shift.", "down"),
    Metric("penalty/measured", "share", "Updates with a second pass, which know ratio and cosine exactly."),
    Metric("optim/grad_norm", "gradient norm",
           "Norm of the finished gradient, penalty included, before the clip."),
    Metric("optim/clipped", "share", "Updates whose gradient was clipped to train.grad_clip."),
    Metric("optim/lr", "rate", "Learning rate of the step."),
    Metric("optim/skipped", "updates",
           "Updates that were skipped: a loss or gradient was not finite.", "down"),
    Metric("optim/updates", "updates", "Optimizer steps of this training step, skipped ones included."),
    Metric("optim/stopped_early", "0 or 1", "Whether rl.target_kl ended the updates on this rollout."),
    Metric("optim/rows_used", "completions",
           "Completions that were computed in an update: those that can move J."),
    Metric("rollout/length_mean", "tokens", "Mean length of completions."),
    Metric("rollout/truncated", "share", "Completions that hit rollout.max_new_tokens.", "down"),
    Metric("rollout/logprob_mismatch", "nats per token",
           "Mean gap between log-probabilities from sampling and from training for the same tokens and "
           "weights.", "down"),
    Metric("rollout/tokens", "tokens", "Response tokens sampled."),
    Metric("groups/zero_spread", "share",
           "Groups whose rewards are all equal: they teach a group method nothing.", "down"),
    Metric("groups/counted", "groups", "Groups with at least one reward."),
    Metric("value/explained_variance", "share",
           "1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 one that knows only the "
           "mean.", "up"),
    Metric("time/step", "s", "The whole training step.", "down"),
    Metric("time/rollout", "s", "Sampling.", "down"),
    Metric("time/reward", "s", "Scoring by the reward.", "down"),
    Metric("time/score", "s", "Old and reference log-probabilities, values and advantages.", "down"),
    Metric("time/update", "s", "All optimizer steps, penalty included.", "down"),
    Metric("time/penalty", "s", "The gradient penalty alone, within time/update.", "down"),
    Metric("time/evaluation", "s", "Held-out evaluation."),
    Metric("speed/tokens_per_second", "tokens/s", "Response tokens of the step over its time.", "up"),
    Metric("memory/rss_gb", "GiB", "Memory of the process now.", "down"),
    Metric("memory/peak_gb", "GiB", "Most memory of the process so far.", "down"),
    Metric("memory/device_gb", "GiB", "Memory allocated on the device now.", "down"),
    Metric("memory/device_peak_gb", "GiB", "Most memory allocated on the device so far.", "down"),
)  # fmt: skip

_BY_NAME = {metric.name: metric for metric in METRICS}
_FAMILIES = {name.removesuffix("<name>"): metric for name, metric in _BY_NAME.items() if name.endswith("<name>")}


def describe(name: str) -> Metric | None:
    """The metric with this name, by itself or of a family such as `reward/part/<name>`; None if unknown."""
    return _BY_NAME.get(name) or next(
        (metric for start, metric in _FAMILIES.items() if name.startswith(start) and name != start), None
    )


def metrics_markdown() -> str:
    """The page docs/metrics.md."""
    arrows = {"up": "higher", "down": "lower", None: ""}
    lines = [
        "# Metrics",
        "",
        "One row per step in `metrics.jsonl`, one curve each in TensorBoard. Generated from",
        "`grpo_core.tracking.names`; edit that table, not this page.",
        "",
        "A value that is not finite stays visible: `null` in the file, its name and kind under `nonfinite`.",
    ]
    family = ""
    for metric in METRICS:
        if metric.name.split("/")[0] != family:
            family = metric.name.split("/")[0]
            lines += [
                "",
                f"## {family}",
                "",
                "| metric | unit | better | meaning |",
                "| --- | --- | --- | --- |",
            ]
        meaning = metric.meaning.replace("|", "\\|")
        lines.append(f"| `{metric.name}` | {metric.unit} | {arrows[metric.better]} | {meaning} |")
    return "\n".join(lines) + "\n"
