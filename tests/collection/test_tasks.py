"""Datasets in every format give the same tasks; invalid ones are refused with the position of the error."""

import json

import polars as pl
import pytest

from pairwright.collection.tasks import load_tasks, run_seed
from pairwright.config import CollectConfig
from pairwright.config.user_code import WORKFLOWS, load_function
from pairwright.errors import ConfigError, SourceError

ROWS = [{"id": f"t{n}", "question": f"Was ist {n}? ü", "level": n} for n in range(5)]


def written(folder, form):
    path = folder / f"tasks.{form}"
    if form == "json":
        path.write_text(json.dumps(ROWS))
    elif form == "object.json":
        path.write_text(json.dumps({"version": 1, "tasks": ROWS}))
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif form == "csv":
        pl.DataFrame(ROWS).write_csv(path)
    elif form == "parquet":
        pl.DataFrame(ROWS).write_parquet(path)
    elif form == "hf":
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_list(ROWS).save_to_disk(path)
    return path


@pytest.mark.parametrize("form", ["json", "object.json", "jsonl", "csv", "parquet", "hf"])
def test_every_form_of_a_dataset_gives_the_same_tasks(tmp_path, form):
    tasks = load_tasks(CollectConfig(dataset=str(written(tmp_path, form))))
    assert [task.id for task in tasks] == [row["id"] for row in ROWS]
    assert [str(task["level"]) for task in tasks] == [str(row["level"]) for row in ROWS]
    assert tasks[2]["question"] == ROWS[2]["question"]
    assert tasks[2].get("nothing", 5) == 5


def test_a_split_is_chosen_by_name(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.DatasetDict({name: datasets.Dataset.from_list([{"id": name}]) for name in ("train", "test")})
    whole.save_to_disk(tmp_path / "both")
    assert [task.id for task in load_tasks(CollectConfig(dataset=str(tmp_path / "both"), split="test"))] == ["test"]
    with pytest.raises(ConfigError, match="say which"):
        load_tasks(CollectConfig(dataset=str(tmp_path / "both")))
    with pytest.raises(ConfigError, match="no split 'dev', there are train, test"):
        load_tasks(CollectConfig(dataset=str(tmp_path / "both"), split="dev"))


def test_a_task_without_an_id_is_named_by_its_content_so_order_does_not_matter():
    rows = [{"q": "a"}, {"q": "b"}, {"q": "a"}]
    first = [task.id for task in load_tasks(CollectConfig(), rows)]
    again = {task.id: task["q"] for task in load_tasks(CollectConfig(), [{"q": "c"}, *rows[::-1]])}
    assert len(set(first)) == 3
    assert [again[name] for name in first] == ["a", "b", "a"]


def test_two_tasks_with_one_id_are_an_error():
    with pytest.raises(SourceError, match="row 3 has the id 'x' of row 1"):
        load_tasks(CollectConfig(), [{"id": "x"}, {"id": "y"}, {"id": "x"}])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("t.jsonl", '{"id": 1}\n{"id": 2\n{"id": 3}\n', r"t.jsonl:2: not valid JSON"),
        ("t.jsonl", '{"id": 1}\n[2]\n', r"t.jsonl:2: expected an object"),
        ("t.json", "[1]", r"t.json\[0\]: expected an object"),
        ("t.json", '{"id":\n 1}', "expected a list of tasks"),
        ("t.csv", "id,q\n1,a\n2\n", r"t.csv:3: expected 2 cells"),
        ("t.parquet", "nonsense", "not a Parquet file"),
        ("t.json", "[]", "no tasks in it"),
    ],
)  # fmt: skip
def test_an_invalid_dataset_is_refused_with_its_position(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=reason):
        load_tasks(CollectConfig(dataset=str(tmp_path / name)))


def test_no_dataset_means_numbered_tasks_and_some_number_of_them():
    assert [task.id for task in load_tasks(CollectConfig(num_tasks=3))] == [0, 1, 2]
    assert [task.id for task in load_tasks(CollectConfig(num_tasks=1), [{"id": "a"}, {"id": "b"}])] == ["a"]
    with pytest.raises(ConfigError, match="num_tasks"):
        load_tasks(CollectConfig())
    with pytest.raises(SourceError, match="no such file"):
        load_tasks(CollectConfig(dataset="nowhere.jsonl"))


def test_seeds_differ_by_everything_that_names_a_run():
    seeds = [run_seed(s, b, t, r) for s in (0, 1) for b in (0, "0") for t in (1, "1") for r in (0, 1)]
    assert len(set(seeds)) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert run_seed(0, 0, "a", 0) == run_seed(0, 0, "a", 0)


def test_functions_are_found_by_module_by_file_and_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("VALUE = 7")
    (tmp_path / "flow.py").write_text("from beside import VALUE\nasync def play(task): return VALUE\nOTHER = 1")
    by_file = load_function("flow.py:play", group=WORKFLOWS, base=tmp_path)
    assert by_file is load_function(f"{tmp_path}/flow.py:play", group=WORKFLOWS)
    assert load_function("json:dumps", group=WORKFLOWS) is json.dumps
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[pairwright.workflows]\nchess = json:loads\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_function("chess", group=WORKFLOWS) is json.loads
    with pytest.raises(ConfigError, match=r"expected module:function.*\(chess\)"):
        load_function("draughts", group=WORKFLOWS)
    with pytest.raises(ConfigError, match="no such module"):
        load_function("no_such_module_here:play", group=WORKFLOWS)
    with pytest.raises(ConfigError, match="no such file"):
        load_function("none.py:play", group=WORKFLOWS)
    with pytest.raises(ConfigError, match="OTHER: expected a function, got int"):
        load_function(f"{tmp_path}/flow.py:OTHER", group=WORKFLOWS)
