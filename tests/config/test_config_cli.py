"""The commands that prepare a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core import cli
from grpo_core.config.load import parse_config
from grpo_core.config.schema import reference_markdown
from grpo_core.errors import ConfigError

MINIMAL = "data: {kind: arithmetic}\nreward: number\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return str(path)


def output(*words: str) -> str:
    result = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_check_says_what_would_run(file: str) -> None:
    text = " ".join(output("config", "check", file, "--set", "algorithm=ppo", "--set", "train.lambda=0.3").split())
    for words in (
        "ok",
        "16 completions",
        "2 prompts x 8",
        "advantage gae",
        "note train.lambda has no effect",
    ):
        assert words in text


def test_show_prints_yaml_that_loads(file: str) -> None:
    config = parse_config(output("config", "show", file, "--set", "preset=math"))
    assert config == parse_config(MINIMAL, overrides=["preset=math"])


def test_schema_and_reference_are_printed_whole() -> None:
    assert json.loads(output("config", "schema"))["properties"]["train"]
    assert output("config", "reference") == reference_markdown()


def test_presets_lists_presets_and_algorithms() -> None:
    text = output("presets")
    for word in ("dialogue", "8e-06", "group_relative", "leave_one_out"):
        assert word in text


def test_errors_are_raised_to_main(file: str) -> None:
    with pytest.raises(ConfigError):
        output("config", "check", file, "--set", "train.lamda=1")


def test_main_tells_problem_and_fix_without_a_traceback(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo", "config", "check", file, "--set", "train.lamda=1"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["--set train.lamda: unknown key", "  fix: did you mean `train.lambda`?"]


def test_help_and_a_typo_pay_for_no_heavy_import() -> None:
    """What makes `grpo --help` answer at once, whatever machine it runs on."""
    code = (
        "import sys\n"
        "from grpo_core.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'transformers', 'peft', 'datasets', 'matplotlib') if name in sys.modules])\n"
    )
    for arguments in (["--help"], ["train", "--help"], ["train", "none.yaml"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", arguments
