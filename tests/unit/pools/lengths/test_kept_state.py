"""What the predictor has learned, over restarts."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pools.lengths import kept_state
from pools.lengths.kept_state import KeptState
from tests.fakes.text_predictor import FakeTextPredictor


def recalled(folder: Path) -> FakeTextPredictor:
    return KeptState(folder).recall(FakeTextPredictor.restored, FakeTextPredictor)


def test_what_was_learned_is_there_again(tmp_path: Path) -> None:
    assert recalled(tmp_path).known == {}
    KeptState(tmp_path).write(FakeTextPredictor({11: 60}).state())
    assert recalled(tmp_path).known == {11: 60}
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.npz"]


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
        KeptState(tmp_path).write({"objects": np.array([_Bad()], dtype=object)})
    assert list(tmp_path.iterdir()) == []
