"""Sends each fact to the module that can read its source, and sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from core.engine.facts import dynamollm, freesh, other_papers, throttllem
from core.engine.facts.fact_table import Comparison, Evaluation, Fact, Summary, skipped

Reading = Callable[[Sequence[Fact]], list[Evaluation]]

READINGS: dict[str, Reading] = {
    "DynamoLLM Table I": dynamollm.energies,
    "DynamoLLM Table II": dynamollm.energies,
    "DynamoLLM Table III": dynamollm.energies,
    "DynamoLLM Table VI": other_papers.weight_transfer,
    "FREESH code": freesh.steady,
    "throttLLeM III-A": throttllem.clocks,
    "throttLLeM III-B": throttllem.kv_loss,
    "throttLLeM III-C": throttllem.tp_ratio,
    "throttLLeM Table II": throttllem.capacity,
    "mu-Serve 2.2": other_papers.mu_serve,
    "DynaServe Table 1": other_papers.dynaserve,
}


def evaluate(facts: Sequence[Fact]) -> list[Evaluation]:
    """Evaluates every fact, or gives a reason why not, in the order given."""
    found: list[Evaluation] = []
    for source in dict.fromkeys(fact.source for fact in facts):
        rows = [fact for fact in facts if fact.source == source]
        if source in READINGS:
            found += READINGS[source](rows)
        else:
            found += (skipped(fact, _why_not(fact)) for fact in rows)
    place = {id(fact): n for n, fact in enumerate(facts)}
    return sorted(found, key=lambda one: place[id(one.fact)])


def _why_not(fact: Fact) -> str:
    if "system-level" in fact.used:
        return "a result of a whole system under traffic: for the simulator"
    if fact.used == "constant":
        return "a constant of the transition, not of an iteration"
    if "overhead" in fact.quantity:
        return "set-up of machines and software: not of an iteration"
    return "the condition does not state model, lengths or load"


def summarise(evaluations: Iterable[Evaluation]) -> list[Summary]:
    """Makes one summary for each group of a source, in order of appearance; a group without any evaluated fact
    included."""
    groups: dict[tuple[str, str], list[Evaluation]] = {}
    for one in evaluations:
        groups.setdefault((one.fact.source, one.group), []).append(one)
    return [_summary(source, group, rows) for (source, group), rows in groups.items()]


def _summary(source: str, group: str, rows: Sequence[Evaluation]) -> Summary:
    errors = [one.error for one in rows if one.counts and one.error is not None]
    regrets = [one.error for one in rows if one.kind is Comparison.CHOICE and one.error is not None]
    return Summary(
        source=source,
        group=group,
        facts=len(rows),
        evaluated=sum(one.prediction is not None for one in rows),
        mape=sum(map(abs, errors)) / len(errors) if errors else None,
        bias=sum(errors) / len(errors) if errors else None,
        worst=max(errors, key=abs) if errors else None,
        choices=len(regrets),
        choices_exact=sum(one.kind is Comparison.CHOICE and one.prediction == one.fact.value for one in rows),
        mean_regret=sum(regrets) / len(regrets) if regrets else None,
    )
