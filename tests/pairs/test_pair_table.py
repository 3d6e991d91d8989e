"""The pairs table: what goes in comes out, whole or not at all, in bounded row groups, with the same bytes each time."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from export_cases import pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from pairwright import EID, Message, Pair, TableError, ToolCall, prompt_hash
from pairwright.pairs import row_groups
from pairwright.pairs.pair_table import (
    FILE_NAME,
    PAIR_SCHEMA,
    count_pairs,
    pair_batches,
    pair_id,
    pairs_to_batch,
    read_pairs,
    write_pairs,
)

ASKED = (Message("user", "What time is it?"),)


def make(number=0, *, chosen="Nine.", rejected="No idea.", info=None, **more) -> Pair:
    sides = (Message("assistant", chosen),), (Message("assistant", rejected),)
    return Pair(
        id=pair_id(ASKED, (), *sides), prompt=ASKED, chosen=sides[0], rejected=sides[1], chosen_reward=1.0,
        rejected_reward=0.25, chosen_eid=EID("b", 7, number, 3, "c"), rejected_eid=EID("b", 7, number, 3, "r"),
        gap=0.75, strategy="all", info=info or {}, **more,
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(pairs(), max_size=4))
def test_pairs_come_back_as_they_were(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("pairs")
    assert write_pairs(folder, [pairs_to_batch(made)]) == len(made) == count_pairs(folder)
    assert list(read_pairs(folder)) == made
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]


def test_the_columns_say_what_a_pair_is_and_where_it_came_from():
    calls = (ToolCall("clock", '{"zone":1}', "x"),)
    made = Pair(
        id="0" * 32, prompt=ASKED, tools=({"name": "clock"},), chosen=(Message("assistant", "ab", "why", calls),),
        rejected=(Message("assistant", [{"type": "text", "text": "abc"}]),), chosen_reward=1.0, rejected_reward=0.0,
        chosen_eid=EID("b", 7, 0, 3, "c"), rejected_eid=EID("b", 7, 1, 3, "r"), gap=1.0, strategy="best-worst",
        weight=0.5, split="validation", info={"across_groups": True},
    )  # fmt: skip
    (row,) = pairs_to_batch([made]).to_pylist()
    assert row["num_chosen_characters"] == 2 + 3 + 10
    assert row["num_rejected_characters"] == 3
    assert (row["tid"], row["task"], row["step"], row["across_groups"]) == ('["b",7]', "7", 3, True)
    assert (row["chosen_uid"], row["rejected_uid"]) == ('["b",7,0,3,"c"]', '["b",7,1,3,"r"]')
    assert row["prompt_hash"] == prompt_hash(ASKED, made.tools)
    assert (row["weight"], row["split"], row["strategy"]) == (0.5, "validation", "best-worst")
    assert row["prompt"] == '[{"role":"user","content":"What time is it?"}]'
    plain = pairs_to_batch([make()]).to_pylist()[0]
    assert (plain["tools"], plain["info"], plain["across_groups"]) == (None, None, False)


def test_a_row_marked_across_groups_says_so_in_the_info_of_its_pair(tmp_path):
    row = pairs_to_batch([make()]).to_pylist()[0] | {"across_groups": True, "info": None}
    write_pairs(tmp_path, [pa.RecordBatch.from_pylist([row], schema=PAIR_SCHEMA)])
    assert next(read_pairs(tmp_path)).info == {"across_groups": True}


def test_ids_are_equal_exactly_for_what_compares_the_same():
    def calling(call_id, arguments):
        return (Message("assistant", None, tool_calls=(ToolCall("clock", arguments, call_id),)),)

    said = (Message("assistant", "Nine."),)
    first = pair_id(ASKED, (), calling("1", '{"a": 1, "b": 2}'), said)
    assert len(first) == 32
    assert set(first) <= set("0123456789abcdef")
    assert pair_id(ASKED, (), calling("2", '{"b":2,"a":1}'), said) == first
    others = {
        pair_id(ASKED, (), said, calling("1", '{"a": 1, "b": 2}')),
        pair_id(ASKED, ({"name": "clock"},), calling("1", '{"a": 1, "b": 2}'), said),
        pair_id(ASKED, (), calling("1", '{"a": 1, "b": 3}'), said),
        pair_id((), (), calling("1", '{"a": 1, "b": 2}'), said),
    }
    assert len(others | {first}) == 5


def test_row_groups_are_small_however_the_rows_came(tmp_path, monkeypatch):
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 10)
    rows = [make(number) for number in range(35)]
    small = [pairs_to_batch(rows[start : start + 3]) for start in range(0, 35, 3)]
    for batches in ([pairs_to_batch(rows)], small, [pairs_to_batch(rows[:0]), *small]):
        assert write_pairs(tmp_path, batches) == 35
        groups = pq.ParquetFile(tmp_path / FILE_NAME).metadata
        assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [10, 10, 10, 5]
        assert [pair.chosen_eid.run for pair in read_pairs(tmp_path)] == list(range(35))
    monkeypatch.setattr(row_groups, "BYTES_PER_GROUP", 20_000)
    write_pairs(tmp_path, [pairs_to_batch([make(number, chosen="x" * 9_000) for number in range(8)])])
    assert pq.ParquetFile(tmp_path / FILE_NAME).num_row_groups >= 4


@given(st.lists(st.integers(0, 12), max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_where_groups_end_depends_on_the_rows_alone(sizes, cuts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "ROWS_PER_GROUP", 4)
        patch.setattr(row_groups, "BYTES_PER_GROUP", 10)
        found = []
        for batches in ([sizes], [sizes[a:b] for a, b in pairwise([0, *sorted(cuts), 40])]):
            filling, groups = row_groups.Filling(), [[]]
            for batch in batches:
                for start, stop, ends in filling.cut(np.array(batch, np.int64)):
                    groups[-1] += batch[start:stop]
                    groups += [[]] if ends else []
            found.append([group for group in groups if group])
    assert found[0] == found[1]
    assert [size for group in found[0] for size in group] == sizes
    assert all(len(group) <= 4 and (sum(group) <= 10 or len(group) == 1) for group in found[0])


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = [make(number, chosen=f"At {number}.") for number in range(50)]
    for name in ("one", "other"):
        write_pairs(tmp_path / name, [pairs_to_batch(rows)])
    assert (tmp_path / "one" / FILE_NAME).read_bytes() == (tmp_path / "other" / FILE_NAME).read_bytes()


def test_a_write_that_fails_leaves_the_table_before_it(tmp_path):
    write_pairs(tmp_path, [pairs_to_batch([make()])])

    def torn():
        yield pairs_to_batch([make(1), make(2)])
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write_pairs(tmp_path, torn())
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert list(read_pairs(tmp_path)) == [make()]


def test_only_the_columns_that_are_named_are_read(tmp_path):
    write_pairs(tmp_path, [pairs_to_batch([make(), make(1)])])
    assert [batch.to_pydict() for batch in pair_batches(tmp_path, ["gap", "split"])] == [
        {"gap": [0.75, 0.75], "split": ["train", "train"]}
    ]
    assert count_pairs(tmp_path / FILE_NAME) == 2  # the file itself will do


def test_an_empty_table_is_a_table(tmp_path):
    assert write_pairs(tmp_path, []) == 0
    assert list(read_pairs(tmp_path)) == []
    assert pq.read_schema(tmp_path / FILE_NAME).names == PAIR_SCHEMA.names


def test_an_invalid_pairs_table_is_reported(tmp_path):
    with pytest.raises(TableError, match=r"pairs.parquet: no such file.*pairwright pairs"):
        list(read_pairs(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TableError, match="not a pairs table"):
        list(read_pairs(tmp_path))
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / FILE_NAME)
    with pytest.raises(TableError, match="no column 'tid'"):
        list(read_pairs(tmp_path))


@pytest.mark.parametrize(
    "change",
    [{"chosen": None}, {"chosen": "[{]"}, {"chosen_uid": "x"}, {"rejected_reward": 2.0}, {"gap": None}, {"info": "{"}],
    ids=lambda change: "-".join(change),
)
def test_an_invalid_row_is_named(tmp_path, change):
    row = pairs_to_batch([make()]).to_pylist()[0]
    write_pairs(tmp_path, [pa.RecordBatch.from_pylist([row | change], schema=PAIR_SCHEMA)])
    with pytest.raises(TableError, match=f"pair '{row['id']}'"):
        list(read_pairs(tmp_path))


def test_a_file_without_the_columns_that_came_later_is_read(tmp_path):
    """Pairs that were written before sides said whether their ids were recorded, or they were cut."""
    write_pairs(tmp_path, [pairs_to_batch([make()])])
    newer = [f"{side}_{name}" for side in ("chosen", "rejected") for name in ("recorded", "cut")]
    pq.write_table(pq.read_table(tmp_path / FILE_NAME).drop_columns(newer), tmp_path / FILE_NAME)
    assert list(read_pairs(tmp_path)) == [make()]
    (batch,) = pair_batches(tmp_path, ["id", *newer])
    assert batch.select(newer).to_pylist() == [dict.fromkeys(newer)]
