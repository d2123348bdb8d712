"""The command `grpo`. Every command parses, then imports the one function it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="grpo",
    help="Train small language models with reinforcement learning: Gradient-Regularized Policy Optimization, "
    "PPO and group-relative methods.\n\nStart with [bold]grpo config check my.yaml[/bold].",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check, print and document run configurations.", no_args_is_help=True)
app.add_typer(config_app, name="config", rich_help_panel="Prepare")

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The run's YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one key, e.g. --set train.lambda=0.3 or --set algorithm=ppo. May be repeated.",
        show_default=False,
    ),
]


# ---- Train: train, generate, export ----------------------------------------------------------------------


@app.command(rich_help_panel="Train")
def train(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The run's YAML file.", show_default=False)
    ] = None,
    set_: Overrides = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder, from its newest checkpoint.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Train a model as a YAML file says, and leave a run folder with everything in it.

    Examples: grpo train my.yaml --set train.lambda=0.3     grpo train --resume runs/run
    """
    from grpo_core.config.load import read_config
    from grpo_core.config.notes import notes
    from grpo_core.config.stored import stored_config
    from grpo_core.errors import ConfigError

    if (file is None) == (resume is None):
        raise ConfigError("name either a YAML file or --resume RUN", fix="grpo train my.yaml")
    remarks: list[str] = []
    if resume is not None:
        config, folder = stored_config(resume, set_ or ()), resume
    else:
        assert file is not None
        config, explicit = read_config(file, set_ or ())
        folder, remarks = config.run.path, list(notes(config, explicit))

    from grpo_core.assemble import assemble  # imports torch: only once the config is known to be right
    from grpo_core.training.loop import train as training_loop

    training_loop(assemble(config, folder, resume=resume is not None, quiet=quiet, notes=remarks))


@app.command(rich_help_panel="Train")
def generate(
    target: Annotated[str, typer.Argument(metavar="RUN", help="A run, a checkpoint, or any model name or folder.")],
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="A prompt. May be repeated.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file of prompts (.jsonl, .csv, .parquet, or .txt lines).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write JSONL here instead of printing.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1)] = 1.0,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Completions a prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint with the best held-out reward.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Feed prompts as they are, without chat template.")] = False,
) -> None:
    """Sample from a trained run, any of its checkpoints, or any model.

    Examples: grpo generate runs/run -p "What is 3 + 4?"     grpo generate runs/run -f prompts.jsonl -o out.jsonl
    """
    from grpo_core.records import Sampling
    from grpo_core.trained import generate_to

    how = Sampling(max_new_tokens=max_new_tokens, n=samples, temperature=temperature, top_p=top_p, seed=seed)
    generate_to(target, prompts=prompt or [], file=file, out=out, how=how, best=best, chat=not plain)


@app.command(rich_help_panel="Train")
def export(
    target: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or one of its checkpoints.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.", show_default=False)],
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapter, for peft.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint with the best held-out reward.")] = False,
) -> None:
    """Write a trained model as a plain transformers folder, adapters merged in.

    Example: grpo export runs/run --out my-model
    """
    from grpo_core.trained import export as export_trained

    typer.echo(f"wrote {export_trained(target, out, merge=not adapter, best=best)}")


# ---- Prepare: config check | show | schema | reference, presets ------------------------------------------


@config_app.command("check")
def config_check(file: ConfigFile, set_: Overrides = None) -> None:
    """Check a config and say what it would run. Nothing is loaded or trained.

    Example: grpo config check my.yaml --set train.batch_size=32
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from grpo_core.config.load import read_config
    from grpo_core.config.notes import notes
    from grpo_core.config.summary import summary

    loaded = read_config(file, set_ or ())
    console = Console()
    console.print(f"[bold green]ok[/] {escape(str(file))}", highlight=False)
    table = Table.grid(padding=(0, 2))
    for label, text in summary(loaded.config):
        table.add_row(f"[bold]{label}[/]", escape(text))
    for note in notes(loaded.config, loaded.explicit):
        table.add_row("[yellow]note[/]", escape(note))
    console.print(table)


@config_app.command("show")
def config_show(file: ConfigFile, set_: Overrides = None) -> None:
    """Print a config with every value spelled out, as YAML that can be run again.

    Example: grpo config show my.yaml > full.yaml
    """
    from grpo_core.config.load import dump_config, load_config

    typer.echo(dump_config(load_config(file, set_ or ())), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema, for editors that complete and check YAML.

    Example: grpo config schema > grpo.schema.json
    """
    import json

    from grpo_core.config.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@config_app.command("reference")
def config_reference() -> None:
    """Print every key with type, default, bounds and meaning, as Markdown.

    Example: grpo config reference > docs/config.md
    """
    from grpo_core.config.schema import reference_markdown

    typer.echo(reference_markdown(), nl=False)


@app.command(rich_help_panel="Prepare")
def presets() -> None:
    """List the presets, and what each named algorithm stands for.

    Example: write `preset: math` and `algorithm: ppo` in the YAML file.
    """
    from rich.console import Console
    from rich.table import Table

    from grpo_core.config.algorithm import ALGORITHMS
    from grpo_core.config.presets import PRESETS

    console = Console()
    console.print("[bold]Presets[/] (preset: NAME)")
    table = Table.grid(padding=(0, 2))
    for name, preset in PRESETS.items():
        train = preset.settings["train"]
        strength, rate = f"lambda {train['lambda']:g}", f"learning rate {train['learning_rate']:g}"
        table.add_row(f"  [cyan]{name}[/]", strength, rate, preset.description)
    console.print(table)
    console.print("\n[bold]Algorithms[/] (algorithm: NAME)")
    table = Table.grid(padding=(0, 2))
    for name, parts in ALGORITHMS.items():
        table.add_row(f"  [cyan]{name}[/]", ", ".join(f"{part} {str(how).lower()}" for part, how in parts.items()))
    console.print(table)


# ---- Entry -----------------------------------------------------------------------------------------------


def main() -> None:
    """Run the command line. An error made on purpose is told without a traceback; exit code 2."""
    from grpo_core.errors import GrpoCoreError

    try:
        app()
    except GrpoCoreError as error:
        typer.secho(error.problem, fg=typer.colors.RED, err=True)
        if error.fix:
            typer.secho(f"  fix: {error.fix}", fg=typer.colors.GREEN, err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
