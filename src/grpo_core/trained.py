"""Use what a run wrote: find its checkpoint, sample from it, export it for plain transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from grpo_core.config.data import FileData
from grpo_core.config.model import LoraConfig, ModelConfig
from grpo_core.config.stored import CONFIG, stored_config
from grpo_core.data.prompts import from_iterable, load_prompts
from grpo_core.errors import CheckpointError, ConfigError, ModelError
from grpo_core.models.decoding import PolicyDecoder
from grpo_core.models.loading import LoadedModel, load_model
from grpo_core.models.policy import Policy
from grpo_core.models.saving import MODEL
from grpo_core.models.tokens import decode, encode_prompt
from grpo_core.records import Completion, Prompt, Sampling
from grpo_core.rollout.torch_engine import TorchEngine
from grpo_core.runtime.checkpoint import checkpoints, verify


@dataclass(frozen=True)
class Trained:
    """A checkpoint and the model section of the run it belongs to."""

    checkpoint: Path
    model: ModelConfig


def find_trained(target: str | Path, *, best: bool = False) -> Trained | None:
    """What a run folder, a checkpoint folder or its `model/` names; None for anything else (a model to load as it is).

    A run folder stands for its newest checkpoint, or the one with the best held-out reward. Raises CheckpointError for
    a run without checkpoints, or a damaged one.
    """
    folder = Path(target)
    if folder.name == MODEL and (folder.parent / "manifest.json").is_file():
        folder = folder.parent
    if (folder / CONFIG).is_file() and (folder / "checkpoints").is_dir():
        found = checkpoints(folder / "checkpoints")
        if not found:
            raise CheckpointError(f"{folder} has no complete checkpoint yet", fix="wait for one, or resume the run")
        chosen = _best(found) if best else found[-1]
        verify(chosen)
        return Trained(chosen, stored_config(folder).model)
    if (folder / "manifest.json").is_file():
        verify(folder)
        return Trained(folder, stored_config(folder.parent.parent).model)
    return None


def _best(found: Sequence[Path]) -> Path:
    state = torch.load(found[-1] / "state.pt", weights_only=True, map_location="cpu")
    name = state["progress"]["best_checkpoint"]
    return next((path for path in found if path.name == name), found[-1])


def load_trained(target: str | Path, *, best: bool = False, device: str = "auto") -> LoadedModel:
    """The model of a run, a checkpoint, or any `model.path`, ready for sampling."""
    trained = find_trained(target, best=best)
    if trained is None:
        return load_model(ModelConfig(path=str(target), device=device))
    return load_model(trained_model_config(trained, device))


def trained_model_config(trained: Trained, device: str = "auto") -> ModelConfig:
    """The model section that loads the checkpoint's weights instead of the ones the run began with."""
    weights = str(trained.checkpoint / MODEL)
    if trained.model.lora is None:
        changed: dict[str, Any] = {"path": weights, "revision": None}
    else:
        changed = {"lora": LoraConfig(adapter=weights)}
    return trained.model.model_copy(update=changed | {"device": device, "gradient_checkpointing": False})


def generate(loaded: LoadedModel, prompts: Sequence[Prompt], how: Sampling) -> list[tuple[Completion, str]]:
    """Completions and their texts, `how.n` for each prompt, prompt by prompt."""
    policy = Policy(loaded.model, adapter=loaded.adapter)
    engine = TorchEngine(PolicyDecoder(policy), loaded.eos)
    ready = [encode_prompt(loaded.tokenizer, prompt) for prompt in prompts]
    to_text = partial(decode, loaded.tokenizer)
    return [(completion, to_text(completion.token_ids)) for completion in engine.generate(ready, how)]


def generate_to(
    target: str,
    *,
    prompts: Sequence[str],
    file: Path | None,
    out: Path | None,
    how: Sampling,
    best: bool,
    chat: bool,
) -> None:
    """Complete prompts given as text or as a file, and print them or write them as JSONL. Raises GrpoCoreError."""
    from rich.console import Console

    asked = [*from_iterable(prompts, chat=chat).train] if prompts else []
    asked += read_prompts(file, chat=chat) if file is not None else []
    if not asked:
        raise ConfigError("no prompts", fix='give --prompt "..." or --file prompts.jsonl')
    done = generate(load_trained(target, best=best), asked, how)
    owners = [prompt for prompt in asked for _ in range(how.n)]
    if out is None:
        console = Console(highlight=False)
        for prompt, (completion, text) in zip(owners, done, strict=True):
            ending = "" if completion.finish_reason == "eos" else " [dim](cut at the length limit)[/]"
            console.print(f"[bold cyan]{escape(prompt.plain)}[/]\n{escape(text)}{ending}\n")
        return
    rows = [
        {"id": p.id, "prompt": p.plain, "completion": text, "finish_reason": c.finish_reason, "answer": p.answer}
        for p, (c, text) in zip(owners, done, strict=True)
    ]
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read_prompts(file: Path, *, chat: bool) -> list[Prompt]:
    """Prompts of a data file, or one for each line of a .txt file. Raises DataError."""
    if file.suffix == ".txt":
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        return list(from_iterable(lines, chat=chat).train)
    return list(load_prompts(FileData(path=str(file), chat=chat), held_out=0).train)


def export(target: str | Path, out: Path, *, merge: bool = True, best: bool = False) -> Path:
    """Write a checkpoint as a plain transformers folder (`merge`), or as a peft adapter folder.

    Raises CheckpointError for anything that is not a run or checkpoint, ConfigError when the folder exists, and
    ModelError when an adapter is asked of a run that trained all weights.
    """
    trained = find_trained(target, best=best)
    if trained is None:
        raise CheckpointError(f"{target} is neither a run nor a checkpoint", fix="name a run folder, e.g. runs/run")
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} exists and is not empty", fix="name another folder with --out")
    if trained.model.lora is None:
        if not merge:
            raise ModelError("this run trained all weights: there is no adapter", fix="leave out --adapter")
        shutil.copytree(trained.checkpoint / MODEL, out, dirs_exist_ok=True)
    elif not merge:
        shutil.copytree(trained.checkpoint / MODEL, out, dirs_exist_ok=True)
    else:
        _merge(trained, out)
    return out


def _merge(trained: Trained, out: Path) -> None:
    """Add the adapter to a copy of the base in float32; the run's files are not touched."""
    from peft import PeftModel

    base = trained.model.model_copy(update={"lora": None, "dtype": "float32", "device": "cpu"})
    loaded = load_model(base)
    merged = PeftModel.from_pretrained(loaded.model, str(trained.checkpoint / MODEL)).merge_and_unload()
    merged.save_pretrained(out)
    loaded.tokenizer.save_pretrained(out)
