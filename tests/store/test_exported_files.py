"""What `pairwright export` of an experience table writes is read back to the same records: JSON Lines, Parquet and bytes."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairwright import EID, Experience, Message, Table
from pairwright.records.json_text import encode
from pairwright.sources.datasets.pairwright_rows import experience_from_json, experience_to_json
from pairwright.store.exporting import export_experiences
from pairwright.store.importing import import_files
from strategies import experiences

ENDINGS = {"jsonl": "jsonl", "parquet": "parquet", "bytes": "pwxp"}


def experience(number: int, **fields) -> Experience:
    prompt, completion = [Message("user", "hi")], [Message("assistant", f"answer {number}")]
    values = {"kind": "single_turn", "prompt": prompt, "completion": completion, "reward": number / 10} | fields
    return Experience(eid=EID("b", "t", number, 0, f"s{number}"), **values)


def read_back(folder, rows, target):
    """Rows appended to a table, exported, and imported into another table."""
    with Table(folder / "written") as table:
        table.append(rows)
    file = folder / f"exported.{ENDINGS[target]}"
    num_rows = export_experiences(table, target, file)
    assert num_rows == len(rows)
    back = Table(folder / "back")
    return back, import_files([str(file)], back), file


@given(experiences())
@settings(max_examples=150, deadline=None)
def test_any_experience_comes_back_from_its_json(exp):
    line = encode(experience_to_json(exp))
    assert experience_from_json(json.loads(line)) == exp


@pytest.mark.parametrize("target", ENDINGS)
@given(rows=st.lists(experiences(), min_size=1, max_size=4, unique_by=lambda exp: exp.eid.uid))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_table_comes_back_from_its_export(target, rows, tmp_path_factory):
    back, summary, _ = read_back(tmp_path_factory.mktemp("t"), rows, target)
    assert summary.total("quarantined") == 0
    assert list(back.records()) == rows


@pytest.mark.parametrize("target", ENDINGS)
def test_ids_sources_and_rewards_stay_and_reading_again_adds_nothing(target, tmp_path):
    rows = [
        experience(1, reward=math.nan, info={"loss": math.inf, "$float": "mine"}),
        experience(2, tokens=np.array([1, 2, 3], np.int16), prompt_length=1, logprobs=np.array([0.5, math.nan], "f4")),
        experience(3, routed_experts=np.zeros((2, 0, 3), np.uint8)),
    ]
    back, summary, file = read_back(tmp_path, rows, target)
    assert list(back.records()) == rows
    assert set(summary.formats) == {"pairwright"}
    again = import_files([str(file)], back)
    assert (again.total("already_there"), back.count()) == (3, 3)


def test_a_table_of_another_folder_can_be_imported_whole(tmp_path):
    rows = [experience(number) for number in range(5)]
    with Table(tmp_path / "one") as table:
        table.append(rows)
    both = Table(tmp_path / "both")
    import_files([str(tmp_path / "one")], both)
    assert list(both.records()) == rows


def test_one_bad_row_of_a_file_loses_only_itself(tmp_path):
    _, _, file = read_back(tmp_path, [experience(number) for number in range(3)], "jsonl")
    lines = file.read_text().splitlines()
    bad = json.loads(lines[1])
    lines[1] = json.dumps(bad | {"uid": "[]"})
    lines[2] = json.dumps(json.loads(lines[2]) | {"surprise": 1})
    file.write_text("\n".join(lines))
    table = Table(tmp_path / "t")
    summary = import_files([str(file)], table)
    assert (table.count(), summary.reasons) == (1, {"uid": 1, "surprise": 1})

    parquet = tmp_path / "bad.parquet"
    export_experiences(Table(tmp_path / "written"), "parquet", parquet)
    rows = pq.read_table(parquet)
    kinds = pa.array(["single_turn", "nonsense", "single_turn"])
    pq.write_table(rows.set_column(rows.schema.get_field_index("kind"), "kind", kinds), parquet)
    table = Table(tmp_path / "p")
    summary = import_files([str(parquet)], table)
    assert (table.count(), summary.total("quarantined")) == (2, 1)


def test_a_damaged_payload_loses_itself_and_not_those_after_it(tmp_path):
    files = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append(read_back(folder, [experience(number)], "bytes")[2].read_bytes())
    damaged = bytearray(files[1])
    damaged[-1] ^= 1
    (tmp_path / "all.pwxp").write_bytes(files[0] + damaged + files[2] + b"PWXPtorn")
    table = Table(tmp_path / "t")
    summary = import_files([str(tmp_path / "all.pwxp")], table)
    assert [exp.eid.run for exp in table.records()] == [0, 2]
    assert summary.total("quarantined") == 2


def test_a_parquet_file_of_something_else_is_no_known_format(tmp_path):
    pq.write_table(pa.table({"chosen": ["a"]}), tmp_path / "pairs.parquet")
    table = Table(tmp_path / "t")
    import_files([str(tmp_path / "pairs.parquet")], table)
    (line,) = (tmp_path / "t" / "quarantine.jsonl").read_text().splitlines()
    assert "no known format" in json.loads(line)["reason"]
