"""Reading a fleet's files: values, their places, and everything that may be wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from greenserve.apply.document import DocumentError, Wanted, read
from greenserve.apply.yaml_values import Dumper, Reading
from tests.fakes.hub import LLAMA


def rows(text: str) -> Wanted:
    return read([("f.yaml", text)])


def faults(*texts: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read([(f"{'abc'[place]}.yaml", text) for place, text in enumerate(texts)])
    return [str(fault) for fault in caught.value.faults]


def test_rows_stand_in_lists_or_below_their_names() -> None:
    listed = rows("sites:\n  - {name: oslo, label: Oslo}\n  - name: bergen\n    label: Bergen\n")
    named = rows("sites:\n  oslo: {label: Oslo}\n  bergen:\n    label: Bergen\n")
    assert {key: row.values for key, row in listed["sites"].items()} == {
        key: row.values for key, row in named["sites"].items()
    }
    assert rows("pues: []\n") == {"pues": {}}


def test_texts_are_read_as_they_look() -> None:
    text = """
sites: {oslo: {label: 17:00, grid_zone: NO, market: on, currency: 1_000, time_zone: 2026-01-01}}
tariffs: [{site: oslo, valid_from: 2026-01-01T01:00:00+01:00, version: "1", windows: [{from: 17:00, to: 08:00}]}]
"""
    found = rows(text)
    site = found["sites"]["oslo",]
    assert [site.values[name] for name in ("label", "grid_zone", "market", "currency", "time_zone")] == [
        *("17:00", "NO", "on", "1_000", "2026-01-01"),
    ]
    ((key, tariff),) = found["tariffs"].items()
    assert key == ("oslo", datetime(2026, 1, 1, tzinfo=UTC), "1")
    assert tariff.values["windows"] == [{"from": "17:00", "to": "08:00"}]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**20), 10**20)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]))
        | st.sampled_from(["no", "17:00", "1e3", "0o17", "0x1F", "~", "<<", "=", "2026-01-01", "1_000", ".5", "+1"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.<~1", max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_is_written_is_read_as_it_was(value: object) -> None:
    text = yaml.dump({"value": value}, Dumper=Dumper, allow_unicode=True)
    reading = Reading("f")
    node = reading.root(text)
    assert node is not None
    assert reading.value(node) == {"value": value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sites: {oslo: {pue: high}}", '1:21: site oslo, pue: give a number, not "high"'),
        ("sites: {oslo: {pue: true}}", "give a number, not true"),
        ("sites: {oslo: {pue: 1e999}}", "give a number"),
        ("sites: {oslo: {rank: 1.5}}", "give a whole number, not 1.5"),
        ("sites: {oslo: {label: 5}}", 'give a text, not 5; in quotes it is one: "5"'),
        ("sites: {oslo: {label: }}", "null is not possible here: give a text"),
        ("nodes: {a: {simulated: yes}}", 'give true or false, not "yes"'),
        ("nodes: {a: {cluster: oslo}}", "'oslo' is no key: give the cluster by its key, site/name"),
        ("nodes: {a: {cluster: [a]}}", "give the cluster by its key, site/name"),
        ("services: {s: {partitions: p}}", "give a list of names of other rows"),
        ("services: {s: {knobs: [clock]}}", "give fields with values"),
        ("models: {m: {dtype: fp4}}", "'fp4' is none of: auto, bfloat16, float16, float32"),
        ("models: {m: {engine_arguments: --x}}", "give a list"),
        ("tariffs: [{site: a, valid_from: 2026-01-01T00:00:00, version: x}]", "give a time with its zone"),
        ("tariffs: [{site: a, version: x}]", "tariff a/x, valid_from: it is needed: a row is known by it"),
        ("budgets: [{tenant: a, amount: a lot}]", "give a number of at most 28 digits"),
        ("budgets: [{tenant: a, amount: 1e99}]", "give a number of at most 28 digits"),
        ("budgets: [{tenant: '${TEAM}'}]", "${TEAM} is not replaced: no field of a fleet is a secret"),
        ("feeds: [{site: a, signal: price, config: {key: '${KEY}'}}]", "${KEY} is not replaced"),
        ("gpus: {a: {}}", "gpus: give a list of rows; [] for none"),
        ("sites: oslo", "sites: give a list of rows, or fields below each name; [] for none"),
        ("sites: [oslo]", "a row is fields with values"),
        ("site: []", "1:1: site: there is no such kind; did you mean sites?"),
        ("sites: {oslo: {lable: Oslo}}", "site oslo, lable: there is no such field; did you mean label?"),
        ("sites: {oslo: {name: oslo}}", "it stands before the row already"),
        ("sites: {oslo: {label: a, label: b}}", "1:26: site oslo: 'label' stands here twice: keep one"),
        ("sites: {oslo: {}, oslo: {}}", "'oslo' stands here twice"),
        ("sites: {oslo: {? [a] : b}}", "a key is a text"),
        ("sites: {oslo: {label: !secret x}}", "the tag !secret means nothing here"),
        ("sites: {oslo: {<<: 5}}", "<< takes the alias of fields"),
        ("sites: [", "this is no YAML"),
        ("sites: *x", "this is no YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", "this is no YAML"),
        ("", "a fleet's file names kinds"),
        ("- sites", "a fleet's file names kinds"),
        ("services: {s: {knobs: &k {a: *k}}}", "this is no YAML: an alias names itself"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, words: str) -> None:
    (found,) = faults(text)
    assert found.startswith("a.yaml:1:") or text.startswith("a: 1")
    assert words in found


def test_every_fault_of_several_files_is_said_at_once() -> None:
    first = "sites:\n  oslo: {label: Oslo, grid_zone: NO1, colour: red}\n"
    second = "sites:\n  - {name: oslo, label: 5, grid_zone: NO1}\n  - {name: bergen}\n"
    third = "sites:\n  bergen: {}\nsitess: []\n"
    found = faults(first, second, third)
    assert [one.split(": ", 1)[0] for one in found] == [
        *(
            f"a.yaml:2:{first.splitlines()[1].index('colour') + 1}",
            "b.yaml:2:5",
            "b.yaml:2:25",
            "c.yaml:2:11",
            "c.yaml:3:1",
        ),
    ]
    assert "it stands at a.yaml:2:9 already" in found[1]
    assert "it stands at b.yaml:3:5 already" in found[3]


def test_kinds_of_several_files_are_put_together() -> None:
    found = read([("a", "sites: {oslo: {}}"), ("b", "sites: {bergen: {}}\nclusters: [{site: oslo, name: main}]")])
    assert list(found) == ["sites", "clusters"]
    assert list(found["sites"]) == [("oslo",), ("bergen",)]
    assert str(found["clusters"]["oslo", "main"].mark) == "b:2:12"


def test_fields_of_an_alias_are_taken_where_they_are_not_given() -> None:
    text = "nodes:\n  a: &n {cluster: oslo/main, simulated: true}\n  b: {<<: *n, simulated: false}\n"
    found = rows(text)["nodes"]["b",]
    assert (found.values["cluster"], found.values["simulated"]) == (("oslo", "main"), False)


def test_a_file_that_grows_too_large_by_aliases_is_refused() -> None:
    lines = ["services:", "  s:", "    knobs:", "      a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"      a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (found,) = faults("\n".join(lines))
    assert "more than 500,000 values, aliases written out" in found


def test_numbers_that_are_equal_are_equal_however_they_are_written() -> None:
    one = rows("budgets: [{tenant: a, amount: 12.50, carbon_kg: 1e3}]")["budgets"]["a",]
    assert (one.values["amount"], one.values["carbon_kg"]) == (Decimal("12.5"), Decimal("1000"))


def model_folder(tmp_path: Path, config: object) -> Path:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config))
    return tmp_path / "llama"


@pytest.mark.parametrize("named", ["llama", "llama/config.json"])
def test_config_of_a_model_is_read_from_the_folder_of_the_file(tmp_path: Path, named: str) -> None:
    model_folder(tmp_path, LLAMA)
    text = f"models: {{tuned: {{max_model_len: 8192, config_file: {named}}}}}"
    row = read([(str(tmp_path / "fleet.yaml"), text)])["models"]["tuned",]
    assert row.values == {"name": "tuned", "max_model_len": 8192, "config": LLAMA}
    assert row.if_empty == {}


def test_tokenizer_beside_a_config_is_for_cards_that_have_none(tmp_path: Path) -> None:
    tokenizer = model_folder(tmp_path, LLAMA) / "tokenizer.json"
    tokenizer.write_text("{}")
    head = "models: {tuned: {config_file: llama"
    row = read([(str(tmp_path / "fleet.yaml"), head + "}}")])["models"]["tuned",]
    assert row.if_empty == {"tokenizer": str(tokenizer)}
    row = read([(str(tmp_path / "fleet.yaml"), head + ", tokenizer: /own.json}}")])["models"]["tuned",]
    assert row.if_empty == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("config_file: nowhere", "No such file"),
        ("config_file: 7", "give the path of a config.json"),
        ("config_file: llama, config: {}", "there is a config beside it"),
        ("config: {}, config_file: llama", "there is a config beside it"),
        ("config_file: list", "not an object"),
    ],
)
def test_config_file_is_refused_at_its_place(tmp_path: Path, fields: str, words: str) -> None:
    model_folder(tmp_path, LLAMA)
    (tmp_path / "list").write_text("[]")
    with pytest.raises(DocumentError, match=words) as refused:
        read([(str(tmp_path / "fleet.yaml"), f"models:\n  tuned: {{{fields}}}")])
    assert "model tuned, config_file" in str(refused.value)
