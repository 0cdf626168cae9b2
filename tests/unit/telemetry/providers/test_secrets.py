"""Keys: from the environment or a file of the owner's alone, and never to be seen."""

import pytest

from telemetry.providers.secrets import Secret, SecretsError, gather, scrub

NAME = "GREENSERVE_EIA_KEY"


def write(tmp_path, text, mode=0o600):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_environment_goes_first_when_both_have_a_key(tmp_path):
    file = write(tmp_path, f"# mine\n\n{NAME}='from-file'\nGREENSERVE_PJM_KEY=abc\n")
    found = gather({NAME: "from-environment", "GREENSERVE_ENTSOE_TOKEN": " "}, file)
    assert {name: secret.reveal() for name, secret in found.items()} == {
        NAME: "from-environment",
        "GREENSERVE_PJM_KEY": "abc",
    }


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_file_is_refused_when_others_can_read_it(tmp_path, mode):
    with pytest.raises(SecretsError, match="chmod 600"):
        gather({}, write(tmp_path, f"{NAME}=x", mode))


@pytest.mark.parametrize(
    ("text", "words"),
    [(f"{NAME}", "line 1: write NAME=key"), ("\nMY_KEY=hush", "line 2: write NAME=key"), (f"{NAME}=a\tb", "letters")],
)
def test_file_is_refused_when_a_line_is_none(tmp_path, text, words):
    with pytest.raises(SecretsError, match=words) as caught:
        gather({}, write(tmp_path, text))
    assert "hush" not in str(caught.value)


def test_file_is_refused_when_it_is_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(SecretsError, match=str(path)):
            gather({}, path)


def test_secret_is_not_seen_when_it_is_printed():
    secret = Secret("hush")
    assert f"{secret} {secret!r} {[secret]} %s" % secret == "*** *** [***] ***"
    assert scrub("say hush twice: hush", [secret, Secret("")]) == "say *** twice: ***"
