"""A request class as slow loops see it: its demand, the lengths of its requests, and what each mode does for it.

The demand is the peak 5-second rate of the last window, carried forward; until a whole window has been seen it is no
less than what was declared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from core.algorithms.fleet.fleet_problem import mode_failure
from core.controllers.fleet.explain import left_out, limits_text
from core.engine.corrections import configuration
from core.engine.engine_model import UnknownConfiguration
from core.engine.engine_params import split_fault
from core.engine.measured import profile_of
from core.engine.measured import profiles as engine_profiles
from core.observations.demand.class_arrivals import ClassArrivals
from core.observations.mode_profile import Lengths, mode_profile
from core.policy.request_classes import ClassBounds, classify
from core.types import ClassDemand, Limits, Mode, ModeProfile, PartitionOption, Source

# Mean lengths of the Azure conversation trace of 2023 (AzurePublicDataset, CC-BY): of a class of which nothing was
# declared or seen.
TYPICAL_TOKENS = (1155.0, 211.0)
_LEFT_OUT_FIRST = ("e2e", "ttft", "tpot")
ENOUGH = 64  # requests whose mean lengths are trusted over declared ones


@dataclass(frozen=True, slots=True)
class Declared:
    """The load that an operator expects. `rps` is 0 once a whole window has been seen; the lengths count for longer."""

    rps: float
    lengths: Lengths

    def class_name(self, classes: Sequence[ClassBounds]) -> str:
        """Returns the class of its mean lengths: all of it counts there, since their spread is not known yet."""
        return classify(classes, round(self.lengths.prompt_tokens), round(self.lengths.output_tokens))


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """A model, its engine, and modes that there is room for somewhere.

    Where every class has rows of its own, those that were measured are enough.
    """

    model: str
    engine: str
    modes: Sequence[Mode]


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """A class as a world knows it. `typical`: lengths to plan by when nothing is known of its requests.

    `declared`: the load that counts in this class. `published`: profiles from elsewhere; without any the engine model's
    count.
    """

    name: str
    limits: Limits
    typical: Lengths
    seen: ClassArrivals
    declared: Declared | None
    published: Mapping[Mode, ModeProfile]


@dataclass(frozen=True, slots=True)
class ClassView:
    """A class with its demand, and what each mode does for it at the lengths now seen.

    `failed`: the limits that no mode keeps, or why where it keeps none of them; demand and profiles are then without
    these, so that it is served at all.
    """

    demand: ClassDemand
    lengths: Lengths
    profiles: Mapping[Mode, ModeProfile]
    failed: str

    @property
    def servable(self) -> bool:
        return any(profile.max_rps > 0.0 for profile in self.profiles.values())

    @property
    def input_faults(self) -> str:
        """A sentence that says why the class is not planned for as it should be; empty: it is."""
        name = self.demand.name
        if not self.servable:
            return f"{name}: no mode can serve it at all ({self.failed}), left out."
        return left_out(name, self.failed) if self.failed else ""


def engine_choice(model: str, engine: str, offered: Callable[[], Sequence[Mode]], profiled: bool) -> EngineChoice:
    """Returns what may serve, of the modes that there is room for: they are asked only where they count.

    `profiled`: each class has rows of its own, beside which measured engines alone count.
    """
    if not profiled:
        return EngineChoice(model, engine, offered())
    shape = configuration(model, "", 1, engine).shape
    every = (configuration(one.model, one.gpu, one.tp, one.engine) for one in engine_profiles())
    kinds = {Mode(key.gpu, key.tp) for key in every if (key.shape, key.engine) == (shape, engine)}
    return EngineChoice(model, engine, [mode for mode in offered() if mode in kinds] if kinds else [])


def observed(facts: ClassFacts, engines: EngineChoice, steps: int, rise: Sequence[float] = ()) -> ClassView:
    """Observes a class over the coming steps.

    Args:
        rise: By what factor the load of each coming step is foreseen to lie above that of the window; beyond it 1.
    """
    lengths, declared_rps = _lengths(facts), facts.declared.rps if facts.declared else 0.0
    factors = (*rise[:steps], *(1.0,) * (steps - len(rise)))
    rates = tuple(max(facts.seen.peak_rps * factor, declared_rps) for factor in factors)
    known = facts.seen.requests > 0 or facts.declared is not None
    for limits, without in _nearer(facts.limits):
        profiles, failed = profiles_of(engines, facts.published, lengths, limits, known), without
        failures = {mode: mode_failure(profile, limits) for mode, profile in profiles.items()}
        why = "; ".join(f"{mode.name}: {failure}" for mode, failure in sorted(failures.items()))
        if any(failure is None for failure in failures.values()):
            break
    else:
        limits, failed = Limits(), why or "no mode is known"
        profiles = {mode: _modelled(engines, mode, lengths, limits) or own for mode, own in profiles.items()}
    demand = ClassDemand(facts.name, rates, limits, lengths.prompt_tokens, lengths.output_tokens)
    return ClassView(demand, lengths, profiles, failed)


def _nearer(limits: Limits) -> Iterator[tuple[Limits, str]]:
    """Yields the limits, then fewer and fewer of them, with words for those left out: E2E goes first, since an answer
    that is long enough breaks any limit on it."""
    given = {name: limit_s for name in _LEFT_OUT_FIRST if (limit_s := getattr(limits, f"{name}_s")) is not None}
    for count in range(max(1, len(given))):
        for names in combinations(given, count):
            without = limits_text({name: given[name] for name in names})
            yield replace(limits, **{f"{name}_s": None for name in names}), without


def partition_option(name: str, views: Collection[ClassView]) -> PartitionOption:
    """Returns those classes that can be served somehow: one that cannot must not keep all others from a plan."""
    able = [own for own in views if own.servable]
    return PartitionOption(
        name,
        tuple(own.demand for own in able),
        {(own.demand.name, mode): profile for own in able for mode, profile in own.profiles.items()},
    )


def typical_lengths(input_min: int, input_max: int | None, output_min: int, output_max: int | None) -> Lengths:
    """Returns the lengths to plan with when none are known: typical ones, brought within a class's bounds."""
    prompt, output = TYPICAL_TOKENS
    return Lengths(_within(prompt, input_min, input_max), _within(output, output_min, output_max))


def profiles_of(
    engines: EngineChoice, published: Mapping[Mode, ModeProfile], lengths: Lengths, limits: Limits, known: bool
) -> dict[Mode, ModeProfile]:
    """Returns what each mode does for a class.

    What was measured of a class on a mode stands as it is: no model caps it. Of an engine that was measured the profile
    says what it does at the present lengths, whatever others published. A published rate is for the authors' mix of
    lengths. Where requests now are longer, which only a class with `known` lengths can say, the engine model's rate at
    their mean lengths is lower, and it counts: a plan on the published rate would fall short. A class of which nothing
    was measured or published has the engine model's figures for every mode there is.
    """
    every = {mode: own for mode in engines.modes if (own := _modelled(engines, mode, lengths, limits)) is not None}
    if not published:
        return every
    found = {mode: own for mode, own in every.items() if _is_measured(engines, mode)}
    for mode, own in published.items():
        if split_fault(engines.model, mode.gpu, mode.tp):
            continue  # published or not, no engine would start
        found[mode] = _trusted(own, engines, mode, lengths, limits, known)
    return found


def _trusted(
    profile: ModeProfile, engines: EngineChoice, mode: Mode, lengths: Lengths, limits: Limits, known: bool
) -> ModeProfile:
    """Returns the most trusted of a class's own row and the engine's figures."""
    if profile.source is Source.MEASURED:
        return profile
    measured = _is_measured(engines, mode)
    if not measured and (not known or profile.max_rps <= 0.0):
        return profile
    modelled = _modelled(engines, mode, lengths, limits)
    if modelled is None or (modelled.max_rps >= profile.max_rps and not measured):
        return profile
    return modelled


def _is_measured(engines: EngineChoice, mode: Mode) -> bool:
    profile = profile_of(configuration(engines.model, mode.gpu, mode.tp, engines.engine))
    return profile is not None and profile.source is Source.MEASURED


def _modelled(engines: EngineChoice, mode: Mode, lengths: Lengths, limits: Limits) -> ModeProfile | None:
    """Returns what the engine does at the top clock, by its profile or the engine model; None: nobody knows it."""
    try:
        return mode_profile(engines.model, engines.engine, mode, lengths.rounded, limits)
    except UnknownConfiguration:
        return None


def _lengths(facts: ClassFacts) -> Lengths:
    seen, declared = facts.seen.lengths(), facts.declared
    if seen is not None and (facts.seen.requests >= ENOUGH or declared is None):
        return seen
    return facts.typical if declared is None else declared.lengths


def _within(value: float, low: int, high: int | None) -> float:
    return max(1.0, low, value if high is None else min(value, high - 1.0))
