"""The files that feeds may read: those of one folder; what else stands on the machine is neither opened nor shown."""

import os

import pytest

from core.ports import PermanentError
from telemetry.providers import feed_files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "feeds").mkdir()
    (tmp_path / "secret.csv").write_text("root:x:0:0")
    return tmp_path / "feeds"


@pytest.mark.parametrize("name", ["grid.csv", "north/grid-2.csv"])
def test_file_of_the_folder_is_read_when_it_is_named(folder, name):
    (folder / "north").mkdir()
    (folder / name).write_text("\ufeffzone,start_utc")
    assert feed_files.fault(name) == ""
    assert feed_files.read(folder, name) == "zone,start_utc"


def test_link_within_the_folder_is_followed_when_it_leads_to_a_file_of_it(folder):
    """As Kubernetes mounts files."""
    (folder / "..data").mkdir()
    (folder / "..data" / "grid.csv").write_text("zone")
    (folder / "grid.csv").symlink_to("..data/grid.csv")
    assert feed_files.read(folder, "grid.csv") == "zone"


NAMES = [
    "/etc/passwd",
    "../secret.csv",
    "north/../../secret.csv",
    "./grid.csv",
    "north//grid.csv",
    ".hidden",
    "",
    "a" * 201,
    "grid.csv\0",
    "C:\\grid.csv",
    "os:environ",
    "pools.demo:demo_fleet.py",
    "file:///etc/passwd",
    7,
    None,
    ["grid.csv"],
]


@pytest.mark.parametrize("name", NAMES)
def test_name_is_refused_with_the_remedy_when_it_could_lead_elsewhere(name):
    words = feed_files.fault(name)
    assert "GREENSERVE_FEEDS_DIR" in words
    assert "such as intensity.csv; shipped is pools.demo:carbon_day.csv" in words


def made(folder, kind):
    path = folder / "grid.csv"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link out":
        path.symlink_to("../secret.csv")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "circle":
        path.symlink_to("grid.csv")
    elif kind == "folder":
        path.mkdir()
    elif kind == "too large":
        with path.open("wb") as file:
            file.truncate(feed_files.MOST_BYTES + 1)
    elif kind == "unreadable":
        (folder / "gone").symlink_to("nowhere")
        path.symlink_to("gone")
    return path


@pytest.mark.parametrize(
    "kind", ["nothing", "pipe", "link out", "link to a device", "circle", "folder", "too large", "unreadable"]
)
def test_words_are_the_same_when_a_file_is_absent_and_when_it_may_not_be_read(folder, kind):
    made(folder, kind)
    with pytest.raises(PermanentError) as refused:
        feed_files.read(folder, "grid.csv")
    with pytest.raises(PermanentError) as absent:
        feed_files.read(folder.parent / "no such folder", "grid.csv")
    assert str(refused.value) == str(absent.value)
    assert str(refused.value).startswith("grid.csv: there is no such file for feeds")


def test_shipped_file_is_read_when_there_is_no_folder():
    assert feed_files.read(None, "pools.demo:carbon_day.csv").startswith("zone,start_utc")
    with pytest.raises(PermanentError, match="no such file"):
        feed_files.read(None, "grid.csv")


def test_file_is_refused_when_it_is_no_text(folder):
    (folder / "grid.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PermanentError, match=r"grid\.csv: is no UTF-8 text"):
        feed_files.read(folder, "grid.csv")
