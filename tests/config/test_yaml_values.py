"""The shared rows of YAML values: what the usual loader makes of them, and what a config must make of them."""

import re
from typing import Any

import pytest
from conftest import case_params

from grpo_core.config.load import parse_config
from grpo_core.errors import ConfigError

OURS = {  # the rows' keys, and a key of ours with the same type
    "learning_rate": ("train", "learning_rate"),
    "learning_rat": ("train", "learning_rat"),
    "kl_coef": ("rl", "init_kl_coef"),
    "target_kl": ("rl", "target_kl"),
    "max_steps": ("train", "steps"),
    "use_lora": ("train", "compile"),
    "scale_rewards": ("run", "name"),
    "run_name": ("run", "name"),
    "rank": ("model", "rank"),
}
WORDS = {
    "not a whole number": "not a whole number",
    "not a number": "not a number",
    "must be finite": "must be finite",
    "duplicate key": "duplicate key",
    "unknown key; name the nearest known one": "did you mean `train.learning_rate`?",
    "key belongs in another section": "belongs under `model.lora:`",
    "a bare word the loader turned into a boolean is not a string": "put it in quotes",
}


@pytest.mark.parametrize("row", case_params("yaml_values.jsonl"))
def test_kf43_yaml_values(row: dict[str, Any]) -> None:
    section, key = OURS[row["key"]]
    lines = re.sub(rf"^{row['key']}:", f"{key}:", row["yaml"], flags=re.M).splitlines()
    text = "\n".join([f"{section}:", *(f"  {line}" for line in lines), "data: {kind: arithmetic}", "reward: number"])
    expected, where = row["expected"], f"{section}.{key}"
    try:
        value, error = getattr(getattr(parse_config(text), section), key), ""
    except ConfigError as refused:
        value, error = None, str(refused)
    if "error" in expected:
        assert where in error
        assert WORDS[expected["error"]] in error
    elif error:
        assert "value_or_error" in expected
        assert where in error
    else:
        wanted = expected.get("value", expected.get("value_or_error"))
        assert value == wanted
        assert type(value) is type(wanted)
