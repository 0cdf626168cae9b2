"""predictor: predictors of answers' lengths: score, train, keep versions, put them into use."""

from __future__ import annotations

import importlib

import click

# Subcommand -> (module, its name there, one line).
COMMANDS = {
    "train": ("train", "train", "Train an encoder on prompts and the lengths of their answers."),
    "score": ("score", "score", "Score predictors of answers' lengths on a file."),
    "list": ("versions", "list_", "List the versions of trained encoders, and of what is learned while serving."),
    "use": ("versions", "use", "Put a version into use."),
    "rollback": ("versions", "rollback", "Go back to an earlier version, or to what was learned until an earlier day."),
    "off": ("versions", "off", "Take the encoder out of use."),
}


class LazyCommands(click.Group):
    """Knows its commands by name and imports the module of the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyCommands)
def predictor() -> None:
    """Score predictors of answers' lengths, train them, and put them into use."""
