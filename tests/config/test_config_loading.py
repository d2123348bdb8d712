"""Loading, overriding, presets, round trips and remarks."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.config.algorithm import ALGORITHMS, AlgorithmConfig
from grpo_core.config.files import missing_files
from grpo_core.config.load import config_from_mapping, dump_config, load_config, parse_config, read_config
from grpo_core.config.notes import notes
from grpo_core.config.pairs import problems
from grpo_core.config.presets import PRESETS
from grpo_core.config.root import RunConfig
from grpo_core.errors import ConfigError

MINIMAL = "data: {kind: arithmetic}\nreward: number\n"
ARTICLE = """
train: {batch_size: 16, seq_length: 2048, learning_rate: 1e-5, lambda: 0.2, grad_clip: 1.0}
rl: {init_kl_coef: 0.02, target_kl: 6.0}
"""
FULL = """
preset: code
data: {kind: reasoning_gym, task: chain_sum, options: {min_terms: 2, rate: 1e-3, word: "on"}}
reward:
  parts:
    - {kind: reasoning_gym, weight: 0.9}
    - {kind: format, name: "1e-5", pattern: 'a|b: \\d'}
algorithm: {name: ppo, kl: none}
model: {lora: {rank: 8, targets: [q_proj, v_proj]}, dtype: bfloat16}
run: {name: "0010", watch: off, max_minutes: 1.5}
"""


def test_the_articles_yaml_has_its_values_as_defaults() -> None:
    assert parse_config(MINIMAL + ARTICLE) == parse_config(MINIMAL)


@pytest.mark.parametrize("text", [MINIMAL, MINIMAL + ARTICLE, FULL, MINIMAL + "algorithm: ppo\npreset: math"])
def test_a_resolved_config_loads_to_the_same_config(text: str) -> None:
    config = parse_config(text)
    resolved = dump_config(config)
    assert parse_config(resolved) == config
    assert dump_config(parse_config(resolved)) == resolved
    assert "lambda_:" not in resolved


def test_mappings_and_files_load_alike(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(MINIMAL, encoding="utf-8")
    mapping = {"data": {"kind": "arithmetic"}, "reward": "number"}
    assert load_config(file) == config_from_mapping(mapping) == RunConfig.model_validate(mapping)
    assert mapping == {"data": {"kind": "arithmetic"}, "reward": "number"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_named_algorithm_runs_with_its_own_parts(name: str) -> None:
    algorithm = parse_config(f"{MINIMAL}algorithm: {name}").algorithm
    assert {key: getattr(algorithm, key) for key in ALGORITHMS[name]} == ALGORITHMS[name]


def test_the_defaults_are_grpo() -> None:
    fields = AlgorithmConfig.model_fields
    assert {key: fields[key].default for key in ALGORITHMS["grpo"]} == ALGORITHMS["grpo"]


def test_a_kl_switched_off_needs_no_word_about_its_controller() -> None:
    assert parse_config(MINIMAL + "algorithm: {name: ppo, kl: none}").algorithm.kl_controller == "fixed"


@pytest.mark.parametrize(
    ("preset", "strength", "rate"), [("dialogue", 0.15, 1e-5), ("code", 0.3, 8e-6), ("math", 0.15, 1.2e-5)]
)
def test_presets_lie_beneath_the_file(preset: str, strength: float, rate: float) -> None:
    config = parse_config(f"{MINIMAL}preset: {preset}")
    assert (config.train.lambda_, config.train.learning_rate) == (strength, rate)
    assert config.train.gradient_accumulation == 4
    assert config.model.gradient_checkpointing
    assert config.model.matmul_precision == "high"
    config = parse_config(f"{MINIMAL}preset: {preset}\ntrain: {{lambda: 0.9}}", overrides=["train.learning_rate=1e-4"])
    assert (config.preset, config.train.lambda_, config.train.learning_rate) == (preset, 0.9, 1e-4)
    assert PRESETS[preset].description


@pytest.mark.parametrize(
    ("text", "override", "key", "value"),
    [
        ("", "train.lambda=0.3", "train.lambda_", 0.3),
        ("train: {lambda: 0.1}", "train.lambda=1e-1", "train.lambda_", 0.1),
        ("", "algorithm=ppo", "algorithm.advantage", "gae"),
        ("", "model.lora={rank: 8}", "model.lora.rank", 8),
        ("model: {lora: {rank: 8}}", "model.lora=null", "model.lora", None),
        ("model: {lora: {rank: 8}}", "model.lora.alpha=4", "model.lora.rank", 8),
        ("algorithm: ppo", "algorithm.entropy_coef=0.01", "algorithm.name", "ppo"),
        ("algorithm: ppo", "algorithm.entropy_coef=0.01", "algorithm.entropy_coef", 0.01),
        ("algorithm: {entropy_coef: 0.5}", "algorithm.name=ppo", "algorithm.entropy_coef", 0.5),
        ("algorithm: {entropy_coef: 0.5}", "algorithm=ppo", "algorithm.entropy_coef", 0.0),
        ("", "reward.max_failure_rate=0.1", "reward.max_failure_rate", 0.1),
        ("", "reward.weight=2", "reward.parts.0.weight", 2.0),
        ("", "reward.parts.0.weight=3", "reward.parts.0.weight", 3.0),
        ("", "reward=[exact, number]", "reward.parts.1.kind", "number"),
        ("", "data=rows.jsonl", "data.path", "rows.jsonl"),
        ("", "preset=math", "train.learning_rate", 1.2e-5),
        ("train:", "train.steps=1e3", "train.steps", 1000),
        ("", "run.name=a=b", "run.name", "a=b"),
    ],
)
def test_overrides_lie_above_the_file(text: str, override: str, key: str, value: object) -> None:
    found: object = parse_config(MINIMAL + text, overrides=[override])
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, list) else getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("override", "named", "remedy"),
    [
        ("train.lamda=0.3", "--set train.lamda: unknown key", "did you mean `train.lambda`?"),
        ("lambda=0.3", "--set lambda", "under `train:`"),
        ("train.lambda", "--set 'train.lambda'", "--set key=value"),
        ("=3", "--set '=3'", "--set key=value"),
        ("train.steps.x=1", "--set train.steps", "whole number"),
        ("data.kind.x=1", "--set data.kind.x", "set `data.kind` itself"),
        ("reward.parts.4.weight=1", "--set reward.parts.4.weight", "from 0 to 0"),
        ("train.betas=[0.9", "--set train.betas", "quotes"),
        ("train.batch_size=7", "--set train.batch_size", "train.batch_size to 8"),
    ],
)
def test_wrong_overrides_are_refused(override: str, named: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL, overrides=[override])
    assert named in caught.value.problem
    assert remedy in caught.value.fix


def test_all_problems_are_told_together_in_the_files_order() -> None:
    text = MINIMAL + "train:\n  learning_rat: 1\n  steps: many\n  epochs: 1\n  epochs: 2\nrl: {beta: 1}"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="run.yaml", overrides=["runn.name=x"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 problems:"
    assert [line.split(" ")[0] for line in lines[1::2]] == [
        *(f"run.yaml:{n}:" for n in (4, 5, 7, 8)),
        "--set",
    ]
    assert all(line.startswith("  fix: ") for line in lines[2::2])


def test_unreadable_files_have_their_own_messages(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(MINIMAL, encoding="utf-8")
    (tmp_path / "latin.yaml").write_bytes("run: {name: é}".encode("latin-1"))
    for name, named, remedy in (
        ("none.yaml", "no such file", "good.yaml"),
        ("", "is a folder", "name the YAML file"),
        ("latin.yaml", "not UTF-8", "save the file as UTF-8"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(tmp_path / name)
        assert named in caught.value.problem
        assert remedy in caught.value.fix


def test_missing_local_files_are_refused_before_a_model_loads(tmp_path: Path) -> None:
    settings = {
        "model": {"path": "./no-model", "lora": {"adapter": "no-adapter"}},
        "data": {"kind": "file", "path": "no.jsonl", "held_out": "no2.jsonl"},
        "reward": {"kind": "function", "path": "no.py:score"},
    }
    found = missing_files(config_from_mapping(settings))
    keys = ["model.path", "model.lora.adapter", "data.path", "data.held_out", "reward.parts.0.path"]
    assert [problem.keys[0] for problem in found] == keys
    rows, file = tmp_path / "rows.jsonl", tmp_path / "run.yaml"
    file.write_text(f"data: {rows}\nreward: number", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"data\.path: .*rows\.jsonl: no such file"):
        load_config(file)
    rows.touch()
    assert load_config(file).data.kind == "file"


def test_notes_speak_of_written_keys_only(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(MINIMAL + ARTICLE + "rollout: {top_p: 0.9}", encoding="utf-8")
    loaded = read_config(file, ["algorithm=group_relative"])
    told = "\n".join(notes(loaded.config, loaded.explicit))
    for key in ("train.lambda", "rl.init_kl_coef", "rl.target_kl", "rollout.top_p"):
        assert key in told
    assert "clip_low" not in told
    assert notes(parse_config(MINIMAL), ()) == []
    assert problems(loaded.config) == []


def test_loading_a_config_does_not_import_torch() -> None:
    code = (
        "import sys; from grpo_core.config.load import parse_config; from grpo_core import cli;"
        f"parse_config({MINIMAL!r}); print(sorted({{'torch', 'transformers', 'rich'}} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
