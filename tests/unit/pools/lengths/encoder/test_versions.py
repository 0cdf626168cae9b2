"""Versions are numbered, one of them is in use, and the one before can be put into use again."""

from __future__ import annotations

import pytest

from pools.lengths.encoder.version_files import MODEL, UnusableVersion
from pools.lengths.encoder.versions import InUse, Versions
from tests.fakes.encoder_versions import fill, publish


@pytest.fixture
def versions(tmp_path):
    return Versions(tmp_path)


def test_versions_are_numbered_and_the_newest_is_used(versions):
    assert [publish(versions), publish(versions), publish(versions, "code")] == [1, 2, 1]
    assert versions.in_use() is None
    assert versions.use("chat") == InUse(name="chat", version=2)
    assert [(one.name, one.number, one.in_use) for one in versions.all()] == [
        ("chat", 1, False),
        ("chat", 2, True),
        ("code", 1, False),
    ]


def test_rollback_goes_to_what_was_in_use_before_and_not_to_the_number_below(versions):
    for _ in range(3):
        publish(versions)
    versions.use("chat", 1, ("chat-70b",))
    versions.use("chat", 3, ("chat-70b",))
    versions.use("chat", 3, ("chat-70b",))
    assert versions.rollback("chat") == InUse(name="chat", version=1, services=("chat-70b",)) == versions.in_use()
    with pytest.raises(UnusableVersion, match="no other version of chat was in use before version 1"):
        versions.rollback("chat")


def test_rollback_is_refused_for_what_is_not_in_use(versions):
    publish(versions)
    with pytest.raises(UnusableVersion, match="chat is not in use"):
        versions.rollback("chat")


def test_another_name_begins_anew(versions):
    publish(versions), publish(versions, "code")
    versions.use("chat")
    assert versions.use("code").earlier == ()
    with pytest.raises(UnusableVersion, match="chat is not in use"):
        versions.rollback("chat")


def test_version_with_a_changed_byte_is_not_put_into_use(versions):
    publish(versions), publish(versions)
    versions.use("chat", 1)
    with (versions.path("chat", 2) / MODEL).open("ab") as file:
        file.write(b"!")
    with pytest.raises(UnusableVersion, match="damaged or was changed"):
        versions.use("chat", 2)
    assert versions.in_use() == InUse(name="chat", version=1)


def test_unknown_names_and_versions_are_said_with_those_that_there_are(versions):
    publish(versions)
    with pytest.raises(UnusableVersion, match="there is no predictor talk; there are: chat"):
        versions.use("talk")
    with pytest.raises(UnusableVersion, match="chat has no version 7; it has 1"):
        versions.use("chat", 7)
    with pytest.raises(UnusableVersion, match="a predictor's name is"):
        versions.use("../chat")


def test_draft_that_is_not_published_leaves_nothing(versions):
    def interrupted(draft):
        fill(draft)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), versions.draft("chat") as draft:
        interrupted(draft)
    assert versions.all() == []
    assert list((versions.folder / "chat").iterdir()) == []


def test_off_takes_out_of_use_once(versions):
    publish(versions)
    versions.use("chat")
    assert [versions.off(), versions.off()] == [True, False]
    assert versions.in_use() is None


def test_list_says_what_cannot_be_used(versions):
    publish(versions, format_version=9)
    (one,) = versions.all()
    assert one.manifest is None
    assert "update GreenServe" in one.fault


def test_pointer_that_is_not_ours_is_refused_with_the_remedy(versions):
    publish(versions)
    for raw in (b"\x80\x04.", b'{"name": "chat"}', b'{"name": "../x", "version": 1}'):
        versions.pointer.write_bytes(raw)
        with pytest.raises(UnusableVersion):
            versions.in_use()
    assert versions.off()
