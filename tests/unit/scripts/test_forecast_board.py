"""The board of forecasts is what its figures give."""

from __future__ import annotations

import json

from scripts import forecast_board


def test_board_is_what_its_figures_give() -> None:
    assert forecast_board.main(["--check"]) == 0


def test_board_marks_the_chosen_model_and_has_published_figures() -> None:
    figures = json.loads(forecast_board.FIGURES.read_text())
    page = forecast_board.page(figures)
    assert page.count(" * |") == len([grid for grid in figures["grids"] if grid["chosen"]])
    assert page.count("CarbonCast, published") == len(
        {g["grid"] for g in figures["grids"]} & {*forecast_board.CARBONCAST}
    )
    other = {**figures, "grids": [{**grid, "chosen": None} for grid in figures["grids"]]}
    assert " * |" not in forecast_board.page(other)
