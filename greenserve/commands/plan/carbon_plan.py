"""plan: carbon epochs solved from files. No Django, no servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

if TYPE_CHECKING:
    from core.algorithms.fleet.fleet_milp import FleetPlan, FleetProblem

PROVEN = 1e-6  # a relative gap that is no more than the solver's own tolerance
NO_PLAN: dict[str, Any] = {"objective": None, "bound": None, "gap": None, "partition": None, "workers": []}
UNITS = {"carbon": "gCO2e", "energy": "Wh", "cost": "USD", "weighted": "weighted"}


@click.command()
@click.argument("problems", metavar="PROBLEM.json...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gap",
    type=click.FloatRange(0.0, 1.0),
    default=1e-3,
    show_default=True,
    help="Distance from the bound, as a share of the objective, that is good enough once patience is over.",
)
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(0.0),
    default=1.5,
    show_default=True,
    help="Seconds to look for a proven optimum.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(0.0, min_open=True),
    default=20.0,
    show_default=True,
    help="Seconds after which the best plan found is printed, whatever its gap.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each problem.")
def plan(problems: tuple[Path, ...], gap: float, patience_s: float, time_limit_s: float, as_json: bool) -> None:
    """Solve carbon epochs: which request partition, and how many workers of which mode at which site for each class.

    Objectives are carbon (grams), energy (Wh), cost (USD) and weighted, over all steps with every worker at full load.
    Files are epochs in their order: each search begins from the last one's plan. A file that cannot be used is said so,
    the others are answered, and the exit status is 2.

    \b
    greenserve plan epoch-24.json epoch-25.json
    greenserve plan --json --patience 0 --gap 0.001 large.json
    """
    from core.algorithms.fleet.fleet_milp import solve_fleet
    from core.types import CarbonPlan
    from greenserve.commands.plan.plan_problem import ProblemError, read_problem

    last, refused = None, 0
    for path in problems:
        try:
            problem = read_problem(path)
        except ProblemError as error:
            refused += 1
            click.echo(f"greenserve: {error}", err=True)
            if as_json:
                click.echo(json.dumps({"status": "error", **NO_PLAN, "solve_s": 0.0, "error": str(error)}))
            continue
        found = solve_fleet(problem, time_limit_s, gap, last, patience_s)
        answer = answer_of(problem, found)
        click.echo(json.dumps(answer, allow_nan=False) if as_json else _text(path, problem, answer, found.failed))
        if found.objective is not None:
            last = CarbonPlan(found.partition, found.workers)
    if refused:
        fail(f"{refused} of {len(problems)} problems cannot be used; the others are answered above", 2)


def answer_of(problem: FleetProblem, found: FleetPlan) -> dict[str, Any]:
    """Returns the plan as JSON; `optimal` is a proven one, whatever gap would have been good enough."""
    from core.algorithms.fleet.fleet_milp import SolverStatus
    from core.algorithms.fleet.fleet_problem import Objective
    from core.units import j_to_wh

    status = "feasible"
    if found.status is SolverStatus.INFEASIBLE:
        status = "infeasible"
    elif found.gap is not None and found.gap <= PROVEN:
        status = "optimal"

    def amount(value: float | None) -> float | None:
        return j_to_wh(value) if value is not None and problem.objective == Objective.ENERGY else value

    solved = found.objective is not None
    return {
        "status": status,
        "objective": amount(found.objective),
        "bound": amount(found.bound),
        "gap": found.gap,
        "partition": found.partition if solved else None,
        "workers": [
            {"site": site, "class": name, "mode": mode.name, "count": count}
            for (site, name, mode), count in sorted(found.workers.items())
            if count
        ],
        "solve_s": found.solve_s,
    }


def _text(path: Path, problem: FleetProblem, answer: dict[str, Any], failed: str) -> str:
    if answer["objective"] is None:
        return f"{path}: {answer['status']} in {answer['solve_s']:.2f} s: {failed}"
    gap = "unknown" if answer["gap"] is None else f"{answer['gap']:.3%}"
    unit = UNITS[str(problem.objective)]
    lines = [
        f"{path}: {answer['status']} in {answer['solve_s']:.2f} s: {answer['objective']:,.2f} {unit}, gap {gap}, "
        f"partition {answer['partition']}"
    ]
    lines += [f"  {row['count']:4d} x {row['mode']} at {row['site']} for {row['class']}" for row in answer["workers"]]
    return "\n".join(lines)
