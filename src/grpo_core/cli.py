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
        table.add_row(
            f"  [cyan]{name}[/]", ", ".join(f"{part} {str(how).lower()}" for part, how in parts.items())
        )
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
