"""What the predictor has learned, over restarts."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from pools.lengths import kept_state
from pools.lengths.kept_state import NoVersion
from tests.fakes.text_predictor import FakeTextPredictor, kept_in

TODAY = datetime(2026, 11, 28, 12, tzinfo=UTC)


def recalled(folder: Path) -> FakeTextPredictor:
    return kept_in(folder).recall()


def wrote(folder: Path, known: Mapping[int, int], days_ago: int = 0) -> None:
    """Has a process write what it knew so many days ago."""
    then = TODAY - timedelta(days=days_ago)
    kept = kept_in(folder)
    kept.recall()
    assert kept.write(FakeTextPredictor(known).state(), then)
    os.utime(folder / "lengths.npz", (then.timestamp(), then.timestamp()))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".npz")


def test_what_was_learned_is_there_again(tmp_path: Path) -> None:
    assert recalled(tmp_path).known == {}
    wrote(tmp_path, {11: 60})
    assert recalled(tmp_path).known == {11: 60}
    assert names(tmp_path) == ["lengths.npz"]


def test_each_day_leaves_a_version_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_state, "MOST_VERSIONS", 2)
    for days_ago in (4, 3, 3, 2, 0):
        wrote(tmp_path, {11: 60 + days_ago}, days_ago)
    assert names(tmp_path) == ["lengths.2026-11-25.npz", "lengths.2026-11-26.npz", "lengths.npz"]
    assert [str(kept.day) for kept in kept_state.versions(tmp_path)] == ["2026-11-26", "2026-11-25"]
    monkeypatch.setattr(kept_state, "MOST_VERSION_BYTES", 1)
    wrote(tmp_path, {11: 1})
    assert names(tmp_path) == ["lengths.2026-11-26.npz", "lengths.npz"], "the newest stays"


def test_going_back_takes_the_day_before_and_then_the_one_before_that(tmp_path: Path) -> None:
    for days_ago in (2, 1, 0):
        wrote(tmp_path, {11: 60 + days_ago}, days_ago)
    assert str(kept_in(tmp_path).roll_back().day) == "2026-11-27"
    assert recalled(tmp_path).known == {11: 61}
    assert names(tmp_path) == ["lengths.2026-11-26.npz", "lengths.npz", "lengths.undone.npz"]
    kept_in(tmp_path).roll_back()
    assert recalled(tmp_path).known == {11: 62}
    with pytest.raises(NoVersion, match="keeps nothing"):
        kept_in(tmp_path).roll_back()
    assert recalled(tmp_path).known == {11: 62}


def test_a_version_that_is_not_ours_is_not_gone_back_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for days_ago in (2, 1, 0):
        wrote(tmp_path, {11: 60 + days_ago}, days_ago)
    (tmp_path / "lengths.2026-11-27.npz").write_bytes(pickle.dumps(_Bad()))
    assert str(kept_in(tmp_path).roll_back().day) == "2026-11-26"
    assert recalled(tmp_path).known == {11: 62}
    assert "lengths.2026-11-27.npz is not ours" in caplog.text


def test_where_the_newest_is_broken_the_one_before_goes_on_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrote(tmp_path, {11: 60}, 1)
    wrote(tmp_path, {11: 70})
    (tmp_path / "lengths.npz").write_bytes(b"no archive")
    assert recalled(tmp_path).known == {11: 60}
    assert "lengths.npz is not ours (File is not a zip file)" in caplog.text
    assert "what was learned until 2026-11-27 is gone back to" in caplog.text


def test_a_process_does_not_write_over_what_was_put_in_the_place_of_its_file(tmp_path: Path) -> None:
    wrote(tmp_path, {11: 60}, 1)
    wrote(tmp_path, {11: 70})
    serving = kept_in(tmp_path)
    serving.recall()
    assert not serving.replaced
    kept_in(tmp_path).roll_back()
    assert serving.replaced
    assert not serving.write(FakeTextPredictor({11: 80}).state(), TODAY)
    found = serving.newest()
    assert found is not None
    assert found.known == {11: 60}
    assert serving.write(FakeTextPredictor({11: 80}).state(), TODAY)
    assert names(tmp_path) == ["lengths.2026-11-27.npz", "lengths.npz", "lengths.undone.npz"]


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


class _Bad:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        pickle.dumps(_Bad()),
        _npz(objects=np.array([_Bad()], dtype=object)),
        _npz(others=np.zeros(3)),
        _npz(sizes=np.zeros(3), tokens=np.zeros(3))[:200],
    ],
)
def test_a_file_that_is_not_ours_is_left_aside_and_nothing_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "lengths"
    folder.mkdir()
    (folder / "lengths.npz").write_bytes(content)
    assert recalled(folder).known == {}
    assert (folder / "lengths.refused.npz").read_bytes() == content
    assert not (folder / "lengths.npz").exists()
    assert not (tmp_path / "ran").exists()
    assert "is not ours" in caplog.text


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "lengths.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("sizes.npy", b"\0" * 5_000)
    monkeypatch.setattr(kept_state, "MOST_BYTES", 4_000)
    assert recalled(tmp_path).known == {}
    assert (tmp_path / "lengths.refused.npz").exists()


def test_arrays_of_objects_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="llow_pickle"):
        kept_in(tmp_path).write({"objects": np.array([_Bad()], dtype=object)})
    assert names(tmp_path) == []
