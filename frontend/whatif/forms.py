"""The form of a study: what is to be otherwise than in a scenario, and under which policies it is run.

Its fields follow the scenario: one for each site, GPU type or group. What is left empty stays as the scenario has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django import forms

from core.simulator.policies import POLICIES
from pools.models import Service
from pools.models.fleet import PUE_MOST
from scheduler.whatif import scenario_documents
from scheduler.whatif.errors import BadStudy
from scheduler.whatif.study_drafts import FLEET

KINDS = {
    "keep": "as the scenario has it",
    "past": "a past period's requests",
    "generated": "generated",
    "trace": "an uploaded trace",
}
EXPERIMENT_KINDS = {
    "trace": "its trace, uploaded",
    "past": "a past period's, in its place",
    "generated": "those that the scenario generates, in its place",
}
GENERATORS = {"poisson": "Poisson", "week": "the week of a conversation service"}
PAPERS: dict[str, tuple[str, ...]] = {
    "GreenServe": ("greenserve", "greenserve_epochs"),
    "FREESH": ("freesh", "min_energy", "freesh_baseline"),
    "DynamoLLM": ("dynamollm", "single_pool", "multi_pool", "scale_inst", "scale_shard", "scale_freq"),
    "throttLL'eM": ("throttllem", "triton", "retail"),
    "mu-Serve": ("muserve", "alpaserve", "alpaserve_sched", "alpaserve_scaling"),
    "DynaServe": ("dynaserve", "pd_coloc", "pd_disagg"),
    "VoltanaLLM": ("voltanallm",),
    "BiScale": ("biscale",),
}
TRAFFIC_FIELDS = {
    "traffic": "kind",
    "traffic.kind": "kind",
    "traffic.from": "past_from",
    "traffic.to": "past_to",
    "traffic.service": "service",
    "traffic.trace": "trace",
    "changes.rate_scale": "rate_scale",
    "changes.duration_s": "duration_s",
    "changes.requests": "requests",
    "runs": "more_runs",
    "name": "name",
}
GENERATED = ("generate", "rate_rps", "generate_s", "prompt_tokens", "output_tokens")


def papers() -> list[tuple[str, list[str]]]:
    """Returns every policy of the simulator, grouped by its paper."""
    found = [(paper, [name for name in names if name in POLICIES]) for paper, names in PAPERS.items()]
    known = {name for _, names in found for name in names}
    return [(paper, names) for paper, names in found if names] + [
        ("Yardsticks", [name for name in POLICIES if name not in known])
    ]


class RequestsForm(forms.Form):
    """A study's name, and whose requests it simulates: what studies of scenarios and of experiments share."""

    NEEDED: ClassVar[Mapping[str, tuple[str, ...]]] = {"past": ("past_from", "past_to"), "trace": ("trace",)}

    name = forms.CharField(max_length=120, required=False, label="Name", help_text="Empty: named after the scenario.")
    kind = forms.ChoiceField(choices=list(KINDS.items()), initial="keep", label="Requests", widget=forms.RadioSelect)
    past_from = forms.DateTimeField(
        required=False, label="From", widget=forms.DateTimeInput({"type": "datetime-local"})
    )
    past_to = forms.DateTimeField(required=False, label="To", widget=forms.DateTimeInput({"type": "datetime-local"}))
    service = forms.ChoiceField(required=False, label="Of service")
    trace = forms.FileField(
        required=False, label="Trace", help_text="CSV, Azure, BurstGPT or plain format; .gz too; to 64 MiB."
    )

    def __init__(self, services: Sequence[str], of_all: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        self._choices("service").choices = [("", of_all), *((name, name) for name in services)]

    def _choices(self, name: str) -> forms.ChoiceField:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        return field

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name in self.NEEDED.get(str(data.get("kind")), ()):
            if not data.get(name) and name not in self.errors:
                self.add_error(name, "missing: needed for these requests")
        return data

    def traffic(self) -> dict[str, Any]:
        """Returns kind, service and period, as `study_requests.ask` takes them. The form must be valid."""
        data = self.cleaned_data
        past = {"from": data["past_from"], "to": data["past_to"]} if data["kind"] == "past" else {}
        return {"kind": data["kind"], "service": data["service"], **past}

    def take(self, error: BadStudy) -> None:
        """Puts an error at the field that it names; of a field that has none here on top."""
        own = TRAFFIC_FIELDS.get(error.field)
        if own in self.fields:
            self.add_error(own, error.message)
        else:
            self.add_error(None, str(error))


class ExperimentForm(RequestsForm):
    """An experiment of the laboratory. Whether it takes requests at all is its own affair."""

    def __init__(self, traced: bool, services: Sequence[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(services, "all", *args, **kwargs)
        self.traced = traced
        self._choices("kind").choices = list((EXPERIMENT_KINDS if traced else {"keep": "its own"}).items())
        self.fields["kind"].initial = "trace" if traced else "keep"

    def asked(self, base: str) -> dict[str, Any]:
        """Returns what `study_requests.ask` takes. The form must be valid."""
        traffic = self.traffic()
        if traffic["kind"] != "past":
            traffic = {"kind": traffic["kind"]}
        return {"name": self.cleaned_data["name"], "base": base, "traffic": traffic}


class StudyForm(RequestsForm):
    """A study of `base`, whose scenario is `document` (of the fleet: as it would be now)."""

    NEEDED: ClassVar[Mapping[str, tuple[str, ...]]] = {**RequestsForm.NEEDED, "generated": ("rate_rps",)}

    generate = forms.ChoiceField(choices=list(GENERATORS.items()), required=False, label="Arrivals")
    rate_rps = forms.FloatField(required=False, min_value=0.001, label="Mean rate, requests/s")
    generate_s = forms.FloatField(required=False, min_value=1, label="For, s")
    prompt_tokens = forms.IntegerField(required=False, min_value=1, label="Mean prompt, tokens")
    output_tokens = forms.IntegerField(required=False, min_value=1, label="Mean answer, tokens")
    rate_scale = forms.FloatField(required=False, min_value=0.001, label="Times as many requests", help_text="1: as is")
    duration_s = forms.FloatField(required=False, min_value=1, label="Only the first, s")
    requests = forms.IntegerField(required=False, min_value=1, label="Only the first, requests")
    ttft_s = forms.FloatField(required=False, min_value=0.001, label="TTFT at most, s")
    tpot_s = forms.FloatField(required=False, min_value=0.0001, label="TPOT at most, s")
    e2e_s = forms.FloatField(required=False, min_value=0.001, label="E2E at most, s")
    more_runs = forms.CharField(
        required=False,
        label="More runs",
        widget=forms.Textarea({"rows": 3, "spellcheck": "false"}),
        help_text="One a line: freesh {order: fcfs}. Fields of the scenario set otherwise follow: fleet.count=8",
    )

    def __init__(
        self, base: str, document: Mapping[str, Any], services: Sequence[Service], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(
            [service.name for service in services], "each its own" if base == FLEET else "all", *args, **kwargs
        )
        self.base, self.document = base, document
        self.in_force: dict[str, list[str]] = {}
        for service in services:
            self.in_force.setdefault(service.own_policy().name, []).append(service.name)
        self.sites: list[tuple[str, list[str]]] = []
        self.groups: list[str] = []
        self._add_fleet()
        if base != FLEET:
            self.fields["scenario"] = forms.CharField(
                label="Scenario, YAML",
                max_length=scenario_documents.MOST_TEXT,
                initial=scenario_documents.text_of(document),
                widget=forms.Textarea({"rows": 24, "spellcheck": "false", "class": "code"}),
                help_text="Every field of it is in docs/simulator.md. The fields above are put over it.",
            )
        for name in POLICIES:
            where = f", in force at {', '.join(self.in_force[name])}" if name in self.in_force else ""
            self.fields[f"run.{name}"] = forms.BooleanField(required=False, label=name + where)
            words = f"Knobs of {name}"
            self.fields[f"knobs.{name}"] = forms.CharField(
                required=False, max_length=2000, label=words, widget=forms.TextInput({"aria-label": words})
            )

    def _add_fleet(self) -> None:
        sites = self.document.get("sites")
        for site, section in sites.items() if isinstance(sites, Mapping) else ():
            if isinstance(section, Mapping):
                self.sites.append((site, self._add_site(site, section)))
        if any(name.startswith("gpus.") for _, names in self.sites for name in names):
            return
        for group in scenario_documents.groups(self.document):
            name = str(group.get("name", "node"))
            self._whole(f"instances.{name}", f"Instances of {name}", 1, group.get("count", 1))
            self.groups.append(f"instances.{name}")

    def _add_site(self, site: str, section: Mapping[str, Any]) -> list[str]:
        names = []
        gpus = section.get("gpus")
        for gpu_type, count in gpus.items() if isinstance(gpus, Mapping) else ():
            names.append(f"gpus.{site}.{gpu_type}")
            self._whole(names[-1], f"{gpu_type}, GPUs", 0, count)
        names.append(f"pue.{site}")
        self.fields[names[-1]] = forms.FloatField(
            required=False, min_value=1.0, max_value=PUE_MOST, label="PUE", help_text=f"now {section.get('pue', 1.0)}"
        )
        for key, label, field in (
            ("carbon", "Carbon, times", "carbon_g_per_kwh"),
            ("price", "Price, times", "usd_per_kwh"),
        ):
            value = section.get(field)
            if value is None:
                continue
            names.append(f"{key}.{site}")
            now = f"now {value:.4g}" if isinstance(value, (int, float)) else "of its series"
            unit = " g/kWh" if key == "carbon" else " /kWh"
            self.fields[names[-1]] = forms.FloatField(
                required=False, min_value=0.0, label=label, help_text=now + (unit if now.startswith("now") else "")
            )
        return names

    def _whole(self, name: str, label: str, least: int, now: Any) -> None:
        self.fields[name] = forms.IntegerField(
            required=False, min_value=least, max_value=100_000, label=label, help_text=f"now {now}"
        )

    def tables(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Returns sites with their bound fields, then groups, for the template."""
        found = [(site, [self[name] for name in names]) for site, names in self.sites]
        return [*found, ("", [self[name] for name in self.groups])] if self.groups else found

    def policies(self) -> list[tuple[str, list[tuple[forms.BoundField, forms.BoundField]]]]:
        return [(paper, [(self[f"run.{name}"], self[f"knobs.{name}"]) for name in names]) for paper, names in papers()]

    def clean(self) -> dict[str, Any]:
        data = super().clean()
        if not self.runs(data):
            self.add_error("more_runs", "tick at least one policy above, or write one here")
        return data

    def runs(self, data: Mapping[str, Any]) -> list[Any]:
        """Returns what is asked for, policies in force first, since ratios are to the first run."""
        found = [
            f"{name} {{{str(data[f'knobs.{name}']).strip().strip('{}')}}}" if data.get(f"knobs.{name}") else name
            for name in sorted(POLICIES, key=lambda name: name not in self.in_force)
            if data.get(f"run.{name}")
        ]
        return found + [line.strip() for line in str(data.get("more_runs") or "").splitlines() if line.strip()]

    def asked(self) -> dict[str, Any]:
        """Returns what `study_requests.ask` takes. The form must be valid."""
        data = self.cleaned_data
        traffic = self.traffic()
        if traffic["kind"] == "generated":
            lengths = {name: data[name] for name in ("prompt_tokens", "output_tokens") if data[name]}
            plain = {"lengths": "exponential"} | lengths if lengths else {"lengths": "azure-conv"}
            traffic |= {"generate": data["generate"] or "poisson", "rate_rps": data["rate_rps"], **plain}
            traffic |= {"duration_s": data["generate_s"]} if data["generate_s"] else {}
        changes: dict[str, Any] = {
            "rate_scale": data["rate_scale"],
            "duration_s": data["duration_s"],
            "requests": data["requests"],
            "slo": {name: data[name] for name in ("ttft_s", "tpot_s", "e2e_s") if data[name]},
            "instances": self._given(data, "instances."),
            "pues": self._given(data, "pue."),
            "carbon_scales": self._given(data, "carbon."),
            "price_scales": self._given(data, "price."),
            "gpus": {},
        }
        for site, names in self.sites:
            for name in names:
                if name.startswith("gpus.") and data[name] is not None:
                    changes["gpus"].setdefault(site, {})[name.removeprefix(f"gpus.{site}.")] = data[name]
        asked = {
            "name": data["name"],
            "base": self.base,
            "traffic": traffic,
            "changes": changes,
            "runs": self.runs(data),
        }
        return asked | ({"scenario": data["scenario"]} if "scenario" in self.fields else {})

    def _given(self, data: Mapping[str, Any], head: str) -> dict[str, Any]:
        return {
            key.removeprefix(head): data[key] for key in self.fields if key.startswith(head) and data[key] is not None
        }

    def take(self, error: BadStudy) -> None:
        """Puts an error at the field that it names; of a field that has none here at the scenario, or on top."""
        last = error.field.rpartition(".")[2]
        if error.field in TRAFFIC_FIELDS:
            super().take(error)
        elif last in GENERATED and self.cleaned_data.get("kind") == "generated" and last in self.fields:
            self.add_error(last, error.message)
        else:
            self.add_error("scenario" if "scenario" in self.fields else None, str(error))
