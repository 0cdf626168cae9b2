"""A trial's result as a report that finance can sign: differences, SLO attainment and blocks, with their sources."""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings

from pools.models import Node
from scheduler.models import Trial, TrialState
from telemetry.report_values.figure_tables import Figure, FigureColumn, FigureReport, FigureTable

from .block_figures import BlockFigures
from .modelled import POLICY, Modelled
from .outcome import Difference, Outcome

TURNS = "The two policies took turns on the service."
CROSSOVER = (
    "Each policy ran at one of the two services while the other policy ran at the other, and they swapped at each turn "
    "(a crossover). A pair is two turns; its value of a policy is the mean of its blocks at both services (geometric "
    "where the difference is a ratio), so that what differs between the sites cancels."
)
DIFFERENCES, BLOCKS, BASELINE = "Differences", "Blocks", "Baseline (modelled)"
DIFFERENCE_COLUMNS = (
    FigureColumn("figure", "Figure"),
    FigureColumn("unit", "Unit"),
    FigureColumn("pairs", "Pairs", 0),
    FigureColumn("mean_a", "A, mean", 3),
    FigureColumn("mean_b", "B, mean", 3),
    FigureColumn("difference", "Difference", 4),
    FigureColumn("low_95", "95 % from", 4),
    FigureColumn("high_95", "95 % to", 4),
    FigureColumn("difference_unit", "Of the difference"),
    FigureColumn("below_objective", "Below the objective"),
)
BLOCK_COLUMNS = (
    FigureColumn("block", "Block", 0),
    FigureColumn("pair", "Pair", 0),
    FigureColumn("service", "Service"),
    FigureColumn("policy", "Policy"),
    FigureColumn("from_utc", "From (UTC)"),
    FigureColumn("to_utc", "To (UTC)"),
    FigureColumn("energy_j", "Energy, J", 0),
    FigureColumn("carbon_g", "Carbon, gCO2e", 2),
    FigureColumn("cost", "Cost", 2),
    FigureColumn("output_tokens", "Output tokens", 0),
    FigureColumn("slo_attainment", "SLO attain\u00adment", 4),
    FigureColumn("baseline_energy_j", f"{POLICY} (modelled), J", 0),
    FigureColumn("left_out", "Left out because"),
)
BASELINE_COLUMNS = (
    FigureColumn("policy", "Policy"),
    FigureColumn("blocks", "Blocks", 0),
    FigureColumn("counted", "Of those that count", 0),
    FigureColumn("energy_j", "Energy, metered, J", 0),
    FigureColumn("baseline_energy_j", f"{POLICY} (modelled), J", 0),
    FigureColumn("saved_energy_modelled", "Saved (modelled), share", 4),
    FigureColumn("carbon_g", "Carbon, metered, gCO2e", 2),
    FigureColumn("baseline_carbon_g", f"{POLICY} (modelled), gCO2e", 2),
    FigureColumn("saved_carbon_modelled", "Saved (modelled), share", 4),
)


def report(trial: Trial, found: Outcome, baseline: Modelled, now: datetime) -> FigureReport:
    """Returns the report of what a trial has shown by `now`, with its modelled baseline where there is one."""
    return FigureReport(
        title=f"Trial {trial.pk}: {trial.policy_b} against {trial.policy_a}, {trial.names}",
        organisation=settings.GREENSERVE_ORGANISATION,
        made=now,
        facts=_facts(trial, found),
        tables=(
            FigureTable(
                *(DIFFERENCES, "B against A, metered", DIFFERENCE_COLUMNS),
                rows=tuple(_difference(row, found) for row in found.differences),
                source="settled lines of the energy ledger, metered at the GPUs; requests as the gateways judged them.",
            ),
            FigureTable(
                *(BLOCKS, "Blocks", BLOCK_COLUMNS),
                rows=tuple(_block(trial, block, baseline) for block in found.blocks),
                source="settled lines of each block after its warm-up.",
            ),
            *((_baseline(trial, baseline),) if baseline.blocks else ()),
        ),
        notes=(*_notes(trial, found), *_baseline_notes(baseline)),
        warnings=_warnings(trial, found),
    )


def _facts(trial: Trial, found: Outcome) -> tuple[tuple[str, str], ...]:
    objective = "none" if found.objective is None else f"{100 * found.objective:.6g} % of requests keep every objective"
    return (
        ("organisation", settings.GREENSERVE_ORGANISATION),
        ("service" if trial.other is None else "services, one at each set of sites", trial.names),
        ("A", _policy(trial.policy_a, trial.knobs_a)),
        ("B", _policy(trial.policy_b, trial.knobs_b)),
        ("plan", f"{trial.pairs} pairs of blocks of {trial.block_h} h from {_moment(trial.begins_at)}"),
        ("state", f"{trial.state}: {trial.ended_why}" if trial.ended_why else trial.state),
        ("reason", trial.reason),
        ("objective", objective),
        ("counted", f"{len(found.blocks) - len(found.left_out)} of {len(found.blocks)} blocks that have begun"),
    )


def _policy(name: str, knobs: dict[str, object]) -> str:
    return ", ".join([name, *(f"{knob}: {value}" for knob, value in knobs.items())])


def _difference(row: Difference, found: Outcome) -> tuple[Figure, ...]:
    own = row.difference
    unit = row.unit.replace("\N{SUBSCRIPT TWO}", "2") or found.currency  # as in other reports
    below = [arm for arm, mean in (("A", row.mean_a), ("B", row.mean_b)) if found.is_below(row, mean)]
    return (
        *(row.label, unit, own.pairs if own else 0, row.mean_a, row.mean_b),
        *((None, None, None) if own is None else (own.mean, own.low, own.high)),
        *("share of A" if row.share else unit, " and ".join(below)),
    )


def _block(trial: Trial, block: BlockFigures, baseline: Modelled) -> tuple[Figure, ...]:
    model = baseline.of_block(block.index)
    return (
        *(block.index + 1, block.pair + 1, block.service, _arm(trial, block.arm)),
        *(_moment(block.starts_at), _moment(block.ends_at)),
        *(block.energy_j, block.carbon_g, block.cost, block.output_tokens, block.attainment),
        *(None if model is None else model.energy_j, block.left_out),
    )


def _arm(trial: Trial, arm: str) -> str:
    return f"{arm}: {trial.policy_a if arm == 'A' else trial.policy_b}"


def _baseline(trial: Trial, baseline: Modelled) -> FigureTable:
    return FigureTable(
        *(BASELINE, f"Against {POLICY}, modelled", BASELINE_COLUMNS),
        rows=tuple(
            (
                *(_arm(trial, one.arm), one.blocks, one.of, one.metered_j, one.modelled_j, one.saved_energy),
                *(one.metered_g, one.modelled_g, one.saved_carbon),
            )
            for one in baseline.savings
        ),
        source="the same requests, replayed in the simulator; metered is what the ledger settled.",
    )


def _baseline_notes(baseline: Modelled) -> tuple[str, ...]:
    if not baseline.blocks:
        return ()
    unknown = "; ".join(f"block {block.index + 1}: {block.why}" for block in baseline.unknown)
    return (
        f"The baseline is modelled: the requests of each block that counts, replayed under {POLICY}, with all metered "
        "GPUs of the sites always on at their top clocks (the service's part by output tokens, where it shares them). "
        "It compares a model with a measurement; the difference of B to A is metered on both sides.",
        *((f"The baseline is not known of {unknown}.",) if unknown else ()),
    )


def _notes(trial: Trial, found: Outcome) -> tuple[str, ...]:
    costs = (
        f"Cost is in {found.currency}: " if found.currency else "The sites have several currencies: no common cost; "
    )
    return (
        TURNS if trial.other is None else CROSSOVER,
        f"Each block counts without its first {trial.warm_up_s} s; a block that is provisional or was disturbed is "
        "left out with its pair.",
        "Energy, carbon and cost differ by the geometric mean of B / A over pairs; the 95 % interval is Student's "
        "t-interval of the logarithms. SLO attainment differs by the mean of B - A. An interval needs two pairs.",
        "If an interval has zero in it, the trial has shown no difference.",
        f"{costs}electricity, and GPU-hours where a rate is entered. Carbon is location-based.",
        "A figure that is not known is a dash in the document and an empty cell elsewhere; it is never zero.",
    )


def _warnings(trial: Trial, found: Outcome) -> tuple[str, ...]:
    simulated = Node.objects.filter(cluster__site__pools__service__in=trial.services, simulated=True).exists()
    unsettled = any(block.left_out.startswith("provisional") for block in found.blocks)
    provisional = trial.state in (TrialState.PLANNED, TrialState.RUNNING) or unsettled
    return (*(("contains synthetic data",) if simulated else ()), *(("provisional",) if provisional else ()))


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
