"""Configs that must be refused: each message names the key or line and a remedy made for that case."""

import time

import pytest

from grpo_core.config.load import parse_config
from grpo_core.errors import ConfigError

BASE = {"data": "data: {kind: arithmetic}", "reward": "reward: number"}


def complete(text: str) -> str:
    """The text, with the two required sections put after it where it lacks them."""
    return "\n".join([text, *(line for key, line in BASE.items() if not text.startswith(f"{key}:"))])


LEVELS = [  # text, what the message names, a word of its remedy
    ("train: {learning_rat: 1e-5}", "train.learning_rat", "train.learning_rate"),
    ("train: {learning-rate: 1e-5}", "train.learning-rate", "write `train.learning_rate`"),
    ("train: {num-epochs: 3}", "train.num-epochs", "train.epochs"),
    ("train: {lr: 1e-5}", "train.lr", "train.learning_rate"),
    ("train: {per_device_train_batch_size: 4}", "per_device_train_batch_size", "train.batch_size"),
    ("train: {Batch_Size: 4}", "train.Batch_Size", "train.batch_size"),
    ("learning_rate: 1e-5", "learning_rate", "under `train:`"),
    ("lambda: 0.2", "lambda", "under `train:`"),
    ("batch_size: 4", "batch_size", "`train:` or under `rollout:`"),
    ("model: {lora: {rank: 8}, rank: 16}", "model.rank", "under `model.lora:`"),
    ("rollout: {seed: 3}", "rollout.seed", "`run:`"),
    ("train: {target_kl: 3}", "train.target_kl", "under `rl:`"),
    ("rollout: {num_generations: 8}", "rollout.num_generations", "rollout.group_size"),
    ("rl: {beta: 0.1}", "rl.beta", "rl.init_kl_coef"),
    ("train: {reward: exact}", "train.reward", "top level"),
    ("zzz: 1", "zzz", "the keys here are"),
    ("trian: {steps: 3}", "trian", "`train`"),
    ("model: {lora: {rnak: 4}}", "model.lora.rnak", "model.lora.rank"),
    ("data: {kind: arithmetic, sise: 4}", "data.sise", "data.size"),
    ("data: {kind: arithmetic, path: x.jsonl}", "data.path", "`kind: file`"),
    ("data: {kind: file, path: x, columns: {promt: q}}", "data.columns.promt", "data.columns.prompt"),
    ("reward: {kind: exact, stirp: x}", "reward.stirp", "strip"),
    ("reward: [number, {kind: exact, wieght: 2}]", "reward.1.wieght", "weight"),
    ("algorithm: {kl_estimater: k2}", "algorithm.kl_estimater", "kl_estimator"),
    ("rollout: {group_size: 4, group_size: 8}", "rollout.group_size", "keep one"),
    ("train: {steps: 3}\ntrain: {epochs: 1}", ":2: train: duplicate key, first on line 1", "keep one"),
]
VALUES = [
    ("train: {learning_rate: fast}", "train.learning_rate", "number (default"),
    ("train: {steps: 2.5}", "train.steps", "whole number"),
    ("train: {steps: many}", "train.steps", "whole number"),
    ("train: {batch_size: yes}", "train.batch_size", "whole number (default 16)"),
    ("train: {lambda: no}", "train.lambda", "number (default 0.2)"),
    ("train: {learning_rate: [1e-5]}", "train.learning_rate", "write a number"),
    ("train: {learning_rate: -1}", "train.learning_rate", "above 0"),
    ("train: {learning_rate: 2}", "train.learning_rate", "below 1"),
    ("train: {batch_size: 0}", "train.batch_size", "at least 1"),
    ("train: {lambda: .nan}", "train.lambda", "write a number"),
    ("rl: {target_kl: .inf}", "rl.target_kl", "`null` for none"),
    ("rl: {target_kl: none}", "rl.target_kl", "`null` for none"),
    ("train: {betas: [0.9, 1.0]}", "train.betas.1", "below 1"),
    ("train: {betas: [0.9]}", "train.betas", "list of numbers"),
    ("train: {autocast: on}", "train.autocast", "`off`, `bfloat16`"),
    ("train: {schedule: cosin}", "train.schedule", "`cosine`"),
    ('train: {compile: "no"}', "train.compile", "without quotes"),
    ("train: {compile: 1}", "train.compile", "true or false"),
    ("train: 5", "train", "write keys under `train:`"),
    ("train: [1, 2]", "train", "write keys under `train:`"),
    ("model: {lora: yes}", "model.lora", "write keys under `model.lora:`"),
    ("model: {dtype: fp32}", "model.dtype", "`float32`"),
    ("model: {path: 7}", "model.path", '"7"'),
    ("run: {name: off}", "run.name", "quotes"),
    ("run: {name: 2024}", "run.name", 'name: "2024"'),
    ("rollout: {top_p: 0}", "rollout.top_p", "above 0"),
    ("rollout: {min_p: 1}", "rollout.min_p", "below 1"),
    ("algorithm: grop", "algorithm", "did you mean `grpo`"),
    ("algorithm: {name: GRPO}", "algorithm.name", "`grpo`"),
    ("algorithm: {penalty: off}", "algorithm.penalty", "`none`"),
    ("algorithm: {kl: null}", "algorithm.kl", "did you mean `none`"),
    ("preset: maths", "preset", "did you mean `math`"),
    ("data: {kind: arithmatic}", "data.kind", "`arithmetic`"),
    ("data: {path: rows.jsonl}", "data.kind", "add `kind: file`"),
    ("data: {kind: file}", "data.path", "add `path: "),
    ("data: 5", "data", "write keys under `data:`"),
    ("reward: nubmer", "reward", "did you mean `number`"),
    ("reward: []", "reward", "list of mappings"),
    ("reward: {kind: choice, choices: [yes, no]}", "reward.choices.0", "quotes"),
    ("data: {kind: arithmetic, digits: 9}", "data.digits", "at most 6"),
    ("reward: {kind: length, target: 5}", "reward.limit", "add `limit: "),
]
PAIRS = [
    ("train: {batch_size: 7}", "train.batch_size", "train.batch_size to 8, or rollout.group_size to 7"),
    ("rollout: {group_size: 7}", "rollout.group_size", "14 or 21, or rollout.group_size to 4 or 8"),
    ("rollout: {group_size: 1}", "algorithm.advantage", "rollout.group_size to 2"),
    ("train: {batch_size: 8, gradient_accumulation: 9}", "train.gradient_accumulation", "at most 8"),
    ("train: {seq_length: 256}", "rollout.max_new_tokens", "below 256"),
    ("rollout: {min_new_tokens: 300}", "rollout.min_new_tokens", "at most 256"),
    ("algorithm: {advantage: gae}", "algorithm.critic", "algorithm.critic: shared"),
    ("algorithm: {critic: shared}", "algorithm.critic", "algorithm.advantage: gae"),
    ("algorithm: rloo\ntrain: {epochs: 2}", "train.epochs", "train.epochs: 1"),
    ("algorithm: {kl: loss, kl_estimator: k1}", "algorithm.kl_estimator", "k2"),
    ("algorithm: {kl_controller: dual}", "algorithm.kl_controller", "algorithm.kl: reward"),
    ("algorithm: ppo\nrl: {init_kl_coef: 0}", "rl.init_kl_coef", "above 0"),
    ("algorithm: {penalty: exact}", "model.attention", "model.attention: eager"),
    (
        "algorithm: {penalty: exact}\nmodel: {attention: eager}\ntrain: {compile: true}",
        "train.compile",
        "false",
    ),
    ("model: {dtype: bfloat16}", "algorithm.penalty", "train.autocast: bfloat16"),
    ("algorithm: ppo\nmodel: {dtype: float16}", "model.dtype", "model.lora"),
    ("model: {attention: flash_attention_2}", "model.attention", "sdpa"),
    ("train: {share_prompts: on}\nmodel: {gradient_checkpointing: yes}", "train.share_prompts", "auto"),
    ("train: {warmup_steps: 100}", "train.warmup_steps", "at most 99"),
    ("run: {stop_at_reward: 0.9}", "evaluation.every", "evaluation.every, e.g. 10"),
    ("evaluation: {prompts: 0, every: 5}\nrun: {stop_at_reward: 0.9}", "evaluation.prompts", "above 0"),
    ("data: {kind: arithmetic, size: 1}", "data.size", "data.size to at least 2"),
    ("data: {kind: hub, name: x, limit: 1}", "data.limit", "data.limit to at least 2"),
    ("data: {kind: file, path: x, chat: false, system: Hi}", "data.system", "data.chat: true"),
    ("reward: {kind: length, target: 5, limit: 5}", "reward.parts.0.limit", "above 5"),
    ("reward: [number, number]", "reward.parts.1.name", "number_1"),
    ("reward: {kind: regex, pattern: '(a'}", "reward.parts.0.pattern", "correct it"),
    ("reward: {kind: format, pattern: '[a'}", "reward.parts.0.pattern", "correct it"),
    ("reward: {kind: function, path: rewards.py}", "reward.parts.0.path", "file.py:function"),
    ("reward: reasoning_gym", "data.kind", "chain_sum"),
]
TEXTS = [
    ("", "empty", "smallest config"),
    ("# nothing yet", "empty", "smallest config"),
    ("- 1", ":1", "smallest config"),
    ("just words", ":1", "smallest config"),
    ("train:\n\tsteps: 3", ":2", "spaces, not tabs"),
    ("a: b: c", ":1", "colons"),
    ("run: {name: 'x}", ":1", "quotes"),
    ("--- \na: 1\n---\nb: 2", ":3", "check"),
    ("run: {name: \x00}", "config", "UTF-8"),
    ("? [1, 2]\n: 3", ":1", "`key: value`"),
    ("train: &t {steps: *t}", "steps", "write the value out"),
    ("run: {name: !!python/name:os.system x}", "run.name", "remove the YAML tag"),
    ("train: {<<: 5}", "train", "`*name`"),
]


@pytest.mark.parametrize(("text", "named", "remedy"), LEVELS)
def test_kf42_unknown_keys_are_refused(text: str, named: str, remedy: str) -> None:
    refused(complete(text), named, remedy)


@pytest.mark.parametrize(("text", "named", "remedy"), VALUES)
def test_kf43_wrong_values_are_refused_with_the_fields_name(text: str, named: str, remedy: str) -> None:
    refused(complete(text), named, remedy)


@pytest.mark.parametrize(("text", "named", "remedy"), PAIRS)
def test_kf44_impossible_pairs_are_refused(text: str, named: str, remedy: str) -> None:
    refused(complete(text), named, remedy)


@pytest.mark.parametrize(("text", "named", "remedy"), TEXTS)
def test_broken_texts_are_refused(text: str, named: str, remedy: str) -> None:
    refused(text, named, remedy)


@pytest.mark.parametrize("text", ["reward: number", "data: {kind: arithmetic}"])
def test_required_sections_are_asked_for_with_an_example(text: str) -> None:
    missing = "data" if text.startswith("reward") else "reward"
    refused(text, f"config: {missing}: missing", f"`{missing}: ")


def refused(text: str, named: str, remedy: str) -> None:
    """Loading the text fails quickly; the first problem names the key or line, its fix the way out."""
    start = time.process_time()
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert time.process_time() - start < 2
    problem, _, fix = str(caught.value).partition("\n  fix: ")
    assert named in problem
    assert remedy in fix
