"""The command line: `greenserve --help`. Commands import what they need when they run, so that help is instant."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

import click

from greenserve.plain_errors import in_plain_words

# Command -> (module, one line). The order is the order of a first day.
COMMANDS = {
    "up": ("greenserve.commands.run", "Start everything and keep it running (Ctrl-C stops it)."),
    "status": ("greenserve.commands.run", "Show which processes run, and where to look."),
    "logs": ("greenserve.commands.run", "Show a process's log."),
    "down": ("greenserve.commands.run", "Stop what `up` started."),
    "dead": ("greenserve.commands.dead", "Rows that could not be stored: list them, try them again."),
    "decisions": ("greenserve.commands.decisions", "Take recorded decisions again, and compare."),
    "observe": (
        "greenserve.commands.observe",
        "Observe a fleet as it is: energy, attainment, what policies would save.",
    ),
    "user": ("greenserve.commands.user", "People, roles, passwords and access tokens."),
    "apply": ("greenserve.commands.apply", "Make the fleet what YAML files say: show a plan, ask, carry it out."),
    "policy": ("greenserve.commands.policy", "Show or set a service's policy: which paper's system it runs."),
    "report": ("greenserve.commands.report", "Make, list, fetch and verify reports of energy, carbon and cost."),
    "carbon": ("greenserve.commands.carbon", "Feeds of carbon intensity and prices: show, ask, import, set."),
    "forecast": ("greenserve.commands.forecast", "Show forecasts of load and carbon, and how good they were."),
    "predictor": ("greenserve.commands.predictor", "Predictors of answers' lengths: score, train, put into use."),
    "replay": ("greenserve.commands.traffic", "Send a trace's requests through the gateway."),
    "trace": ("greenserve.commands.traffic", "Fetch public traces."),
    "engine": ("greenserve.commands.engine.predict", "Ask the engine model, and see how it holds."),
    "truth": ("greenserve.commands.truth", "Score the engine model against measured tables."),
    "simulate": ("greenserve.commands.simulate", "Run a scenario in the simulator."),
    "lab": ("greenserve.commands.lab", "Reproduce the papers' experiments: published beside simulated."),
    "promise": ("greenserve.commands.promise", "All policies on faults, rare traffic and traces: one table."),
    "scenario": ("greenserve.commands.scenario", "Write the fleet as a scenario, with its series and requests."),
    "twin": ("greenserve.commands.twin", "Run a trace live and in the simulator, and compare."),
    "compare": ("greenserve.commands.simulate", "Run a scenario under several policies, side by side."),
    "plan": (
        "greenserve.commands.plan.carbon_plan",
        "Solve carbon epochs: which partition, sites, modes and how many workers.",
    ),
    "node": ("greenserve.commands.node", "Machines with GPUs: tokens, joining, inventory."),
    "backup": ("greenserve.commands.backup", "Write everything that is kept into one file."),
    "restore": ("greenserve.commands.backup", "Put a backup into an empty data folder and database."),
    "units": ("greenserve.commands.units", "Services for systemd: the control plane, a gateway, an actuator."),
    "doctor": ("greenserve.commands.doctor", "Check that this machine can run GreenServe."),
    "version": ("greenserve.commands.doctor", "Show the version."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and imports the module of the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """GreenServe runs pools of LLM serving instances with as little energy, carbon and cost as the latency objectives
    allow.

    \b
    To begin:
      greenserve up          starts the demo: three simulated sites, their traffic, the dashboard
      greenserve status      in another terminal: what runs, and where
      greenserve COMMAND -h  says more about a command

    Settings come from the environment: GREENSERVE_WEB_PORT (8000), GREENSERVE_GATEWAY_PORT (8080), GREENSERVE_VAR
    (where data and logs are kept), DATABASE_URL and REDIS_URL (servers of your own instead of the embedded ones),
    GREENSERVE_DEMO (1; 0 leaves the demo out), GREENSERVE_DEMO_RPS (3, the demo's requests per second).
    """


def fail(message: str, status: int = 1) -> NoReturn:
    """Ends the program with one line."""
    click.echo(f"greenserve: {message}", err=True)
    raise SystemExit(status)


def main(arguments: list[str] | None = None) -> Any:
    with in_plain_words("greenserve"):
        return cli.main(args=arguments, prog_name="greenserve", standalone_mode=True)
