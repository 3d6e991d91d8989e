"""Small parts become one part: the same rows in the same order, whenever the process dies."""

import pytest

from pairwright import Experience, Table
from pairwright.records.experience import EID
from pairwright.store import parts as merging
from pairwright.store.arrow import to_batch
from pairwright.store.importing import import_files
from pairwright.store.parts import lock_parts, merge_small_parts

MIN_PARTS = 8


@pytest.fixture(autouse=True)
def few_parts_are_many(monkeypatch):
    monkeypatch.setattr(merging, "MIN_PARTS", MIN_PARTS)


def small_table(folder, num_parts=MIN_PARTS + 6):
    """Write a table of many parts with two rows each, as after many small appends."""
    table = Table(folder)
    for number in range(num_parts):
        rows = [Experience(eid=EID("", f"t{number}", run), kind="single_turn", reward=0.5) for run in range(2)]
        table.write_part([to_batch(rows)])
    return table


def ids(table):
    return [uid for batch in table.scan(columns=["uid"]) for uid in batch[0].to_pylist()]


def test_many_small_parts_become_one_with_the_same_rows_in_order(tmp_path):
    table = small_table(tmp_path / "t")
    before = ids(table)
    assert merge_small_parts(table.folder) == MIN_PARTS + 6
    assert len(table.parts()) == 1
    assert ids(table) == before
    assert not list(table.folder.glob("*.merged"))


def test_few_parts_stay_as_they_are(tmp_path):
    table = small_table(tmp_path / "t", num_parts=5)
    assert merge_small_parts(table.folder) == 0
    assert len(table.parts()) == 5


def test_rows_that_come_later_stand_behind_the_merged_ones(tmp_path):
    table = small_table(tmp_path / "t")
    merge_small_parts(table.folder)
    table.append([Experience(eid=EID("", "last", 0), kind="single_turn")])
    table.compact()
    assert '"last"' in ids(table)[-1]
    assert len(ids(table)) == 2 * (MIN_PARTS + 6) + 1


@pytest.mark.parametrize("step", ["publish", "_clean_up"])
def test_a_merge_that_dies_loses_and_doubles_nothing(tmp_path, monkeypatch, step):
    table = small_table(tmp_path / "t")
    before = ids(table)
    with monkeypatch.context() as patch:
        original, calls = getattr(merging, step), []

        def dies(*arguments):
            calls.append(arguments)
            if step == "publish" or len(calls) == 2:  # the first clean-up comes before the merge
                raise KeyboardInterrupt
            return original(*arguments)

        patch.setattr(merging, step, dies)
        with pytest.raises(KeyboardInterrupt):
            merge_small_parts(table.folder)
    assert list(table.folder.glob("*.merged"))
    assert ids(table) == before
    assert table.count() == len(before)
    table.compact()
    assert ids(table) == before
    assert len(table.parts()) == 1


def test_a_second_process_leaves_the_merge_to_the_first(tmp_path):
    table = small_table(tmp_path / "t")
    with lock_parts(table.folder, wait=True):
        assert merge_small_parts(table.folder) == 0
    assert len(table.parts()) == MIN_PARTS + 6


def test_many_imports_of_one_file_each_do_not_leave_a_part_each(tmp_path):
    table = Table(tmp_path / "t")
    for number in range(MIN_PARTS + 1):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(
            f'{{"messages": [{{"role": "user", "content": "q{number}"}}, {{"role": "assistant", "content": "a"}}]}}\n'
        )
        import_files([str(file)], table)
    assert len(table.parts()) <= 2
    assert [exp.prompt[0].content for exp in table.records()] == [f"q{number}" for number in range(MIN_PARTS + 1)]


def test_a_list_of_replaced_parts_deletes_nothing_but_parts_of_its_folder(tmp_path):
    table = small_table(tmp_path / "t", num_parts=2)
    outside = tmp_path / "precious.parquet"
    outside.write_text("x")
    part = table.parts()[0]
    part.with_suffix(".merged").write_text('["../precious.parquet", "table.json"]')
    merge_small_parts(table.folder)
    assert outside.exists()
    assert (table.folder / "table.json").exists()
    assert table.count() == 4
