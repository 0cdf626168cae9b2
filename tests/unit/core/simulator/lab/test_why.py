from __future__ import annotations

import pytest

from core.simulator.lab.measures import figure, saving
from core.simulator.lab.why import NOT_KNOWN, Claim, why

RESULTS = {"before": {"energy_wh": 200.0}, "after": {"energy_wh": 150.0}}
SAVED = Claim(saving("after", "before"), 24.0, "%")


def test_a_sentence_has_the_figures_of_the_runs_and_its_place_in_the_paper():
    found = why("{saved} is saved, of 40 %", "fig. 3", saved=SAVED)
    assert found.words(RESULTS) == "25 % is saved, of 40 % (fig. 3)"
    assert found.drifted(RESULTS) == []


@pytest.mark.parametrize(("written", "by", "holds"), [(22.8, 0.0, True), (22.7, 0.0, False), (22.7, 3.0, True)])
def test_a_sentence_is_not_said_when_a_figure_moved_beyond_its_tolerance(written, by, holds):
    found = why("{saved} is saved", saved=Claim(saving("after", "before"), written, "%", by=by))
    assert (found.drifted(RESULTS) == []) == holds
    assert (found.words(RESULTS) == "25 % is saved") == holds
    assert holds or "saved is 25 %, written upon 22.7 %" in found.words(RESULTS)


def test_a_figure_is_open_when_its_run_is_not_there_and_wrong_when_the_run_does_not_have_it():
    found = why("{before} to {after}", before=Claim(figure("before", "energy_wh"), 200.0), after=SAVED)
    assert found.words({"before": {"energy_wh": 200.0}}) == "200 to -"
    assert found.drifted({"before": {"energy_wh": None}}) == ["before is -, written upon 200"]


def test_a_sentence_is_refused_when_it_has_no_figure_and_cites_no_place():
    with pytest.raises(ValueError, match="rests on no run and cites no place; say NOT_KNOWN"):
        why("it is the engine")
    with pytest.raises(ValueError, match="its figures"):
        why("{more} is saved", saved=SAVED)
    assert NOT_KNOWN.words({}) == "not known."
