"""Who a record is: its content and the path of its file relative to what was imported."""

import json
import shutil

import pytest

from pairwright import Table
from pairwright.store import importing
from pairwright.store.file_labels import copy_labels, read_labels
from pairwright.store.importing import import_files
from pairwright.store.table_marker import read_marker, write_marker

ROLLOUT = {
    "responses_create_params": {"input": "?"},
    "response": {"output": [{"role": "assistant", "content": "b"}]},
    "reward": 0.5,
}


def chat_rows(*answers: str) -> str:
    turns = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}] for answer in answers]
    return "\n".join(json.dumps({"messages": messages, "reward": 0.5}) for messages in turns)


@pytest.fixture
def folder(tmp_path):
    """Two files of one name with equal rows, in two folders."""
    for name in ("a", "b"):
        (tmp_path / "traces" / name).mkdir(parents=True)
        (tmp_path / "traces" / name / "x.jsonl").write_text(chat_rows("one", "two"))
    return tmp_path / "traces"


def added(paths, table) -> int:
    summary = import_files([str(path) for path in paths], table)
    return summary.total("experiences") - summary.total("already_there")


@pytest.mark.parametrize("rows", [chat_rows("one", "two"), "\n".join([json.dumps(ROLLOUT)] * 2)], ids=["chat", "gym"])
@pytest.mark.parametrize(
    "given", [["."], ["a/x.jsonl", "b/x.jsonl"], ["*/x.jsonl"], ["**/*.jsonl"], ["a", "b"]], ids=str
)
def test_equal_rows_of_two_files_of_one_name_are_two_runs(folder, tmp_path, given, rows):
    for name in ("a", "b"):
        (folder / name / "x.jsonl").write_text(rows)
    table = Table(tmp_path / "t")
    paths = [folder / path for path in given]
    assert added(paths, table) == 4
    assert added(paths, table) == 0
    assert len({exp.eid.uid for exp in table.records()}) == 4


def test_a_file_that_was_imported_adds_nothing_however_it_is_named(folder, tmp_path, monkeypatch):
    table = Table(tmp_path / "t")
    assert added([folder], table) == 4
    for path in (folder / "a" / "x.jsonl", folder / "a", folder / "*" / "x.jsonl", folder / ".." / "traces" / "b"):
        assert added([path], table) == 0, path
    monkeypatch.chdir(folder / "b")
    assert [added([path], table) for path in ("x.jsonl", "./x.jsonl", "../a/x.jsonl", "..", "../a/../b/x.jsonl")] == [
        0
    ] * 5
    (tmp_path / "link").symlink_to(folder / "a" / "x.jsonl")
    assert added([tmp_path / "link"], table) == 0


def test_first_a_file_alone_and_then_the_folder(folder, tmp_path):
    table = Table(tmp_path / "t")
    assert added([folder / "a" / "x.jsonl"], table) == 2
    assert added([folder], table) == 2
    assert added([folder / "a" / "x.jsonl", folder / "b" / "x.jsonl"], table) == 0
    other = Table(tmp_path / "other")
    assert added([folder / "a" / "x.jsonl"], other) == 2
    assert added([folder / "a" / "x.jsonl", folder / "b" / "x.jsonl"], other) == 2


def test_a_folder_that_was_moved_adds_nothing_and_gives_the_same_ids_elsewhere(folder, tmp_path):
    table = Table(tmp_path / "t")
    assert added([folder], table) == 4
    shutil.move(folder, tmp_path / "moved")
    assert added([tmp_path / "moved"], table) == 0
    elsewhere = Table(tmp_path / "elsewhere")
    assert added([tmp_path / "moved"], elsewhere) == 4
    assert [exp.eid for exp in elsewhere.records()] == [exp.eid for exp in table.records()]


def test_a_copy_that_adds_nothing_is_named_with_the_file_it_equals(folder, tmp_path):
    table = Table(tmp_path / "t")
    import_files([str(folder / "a" / "x.jsonl")], table)
    summary = import_files([str(folder / "b" / "x.jsonl")], table)
    assert summary.total("already_there") == 2
    assert summary.same_as == {str(folder / "b" / "x.jsonl"): str(folder / "a" / "x.jsonl")}


def forget_labels(table):
    fields = read_marker(table.path)
    del fields["files"]
    write_marker(table.path, fields)


def test_a_table_without_labels_keeps_the_ids_it_has_and_gets_what_it_lacked(folder, tmp_path):
    table = Table(tmp_path / "t")
    assert added([folder / "a" / "x.jsonl"], table) == 2  # ids of file names, as before there were labels
    forget_labels(table)
    assert added([folder / "a"], table) == 0
    forget_labels(table)
    assert added([folder], table) == 2
    assert added([folder], table) == 0


def test_labels_are_written_before_any_row_so_that_a_killed_import_goes_on(folder, tmp_path, monkeypatch):
    table = Table(tmp_path / "t")
    monkeypatch.setattr(importing, "RANGE_BYTES", 8192)  # a part for each file
    add = Table.add_hidden_part
    monkeypatch.setattr(Table, "add_hidden_part", lambda self, part: (add(self, part), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        import_files([str(folder)], table)
    monkeypatch.setattr(Table, "add_hidden_part", add)
    assert (table.count(), added([folder], table), table.count()) == (2, 2, 4)


def test_labels_can_be_copied_with_the_rows(folder, tmp_path):
    table = Table(tmp_path / "t")
    import_files([str(folder)], table)
    assert sorted(read_labels(table.path).values()) == ["a/x.jsonl", "b/x.jsonl"]
    other = Table(tmp_path / "other")
    other.append(table.records())
    copy_labels(table.path, other.path)
    assert added([folder / "b" / "x.jsonl"], other) == 0


def test_another_spelling_of_a_path_replaces_its_rows_and_its_rejections(folder, tmp_path, monkeypatch):
    table = Table(tmp_path / "t")
    file = folder / "a" / "x.jsonl"
    file.write_text(chat_rows("one", "two") + "\n{torn")
    import_files([str(file)], table)
    file.write_text(chat_rows("one", "three") + "\n{torn")
    monkeypatch.chdir(folder)
    summary = import_files(["a/x.jsonl"], table, update=True)
    assert (summary.num_replaced, table.count()) == (1, 2)
    assert len((table.path / "quarantine.jsonl").read_text().splitlines()) == 1
