"""The board of forecasts is what its figures give."""

from __future__ import annotations

import json

from scripts import forecast_board


def test_board_is_what_its_figures_give() -> None:
    assert forecast_board.main(["--check"]) == 0


def test_board_marks_the_chosen_model_and_has_published_figures() -> None:
    figures, load = (json.loads(path.read_text()) for path in (forecast_board.FIGURES, forecast_board.LOAD_FIGURES))
    page = forecast_board.page(figures, load)
    assert page.count(" * |") == len([grid for grid in figures["grids"] if grid["chosen"]])
    assert page.count("CarbonCast, published") == len(
        {g["grid"] for g in figures["grids"]} & {*forecast_board.CARBONCAST}
    )
    assert all(f"| {one['model']} | {one['median']:.1f} |" in page for one in load["scores"])
    other = {**figures, "grids": [{**grid, "chosen": None} for grid in figures["grids"]]}
    assert " * |" not in forecast_board.page(other, load)


def test_board_says_what_the_network_is_when_it_has_a_row() -> None:
    figures, load = (json.loads(path.read_text()) for path in (forecast_board.FIGURES, forecast_board.LOAD_FIGURES))
    one = figures["grids"][0]
    without = {**one, "scores": [score for score in one["scores"] if score["model"] != "gru"]}
    row = {**one["scores"][0], "model": "gru"}
    bare = forecast_board.page({**figures, "grids": [without]}, load)
    assert "gru" not in bare
    shown = forecast_board.page({**figures, "grids": [{**without, "scores": [*without["scores"], row]}]}, load)
    assert "all grids. `gru` is one network of all grids of the file" in shown
    assert shown.count("| gru |") == 1
