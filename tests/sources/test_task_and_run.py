"""Identity by option: --task, --run and --step name fields of a record, for any format."""

import json
from pathlib import Path

import pytest

from pairwright.errors import ConfigError, SourceError
from pairwright.pairs.build import build_pairs
from pairwright.sources.format import Options
from pairwright.store.importing import import_files
from pairwright.store.table import Table

FIXTURES = Path(__file__).parent / "fixtures"


def chat(answer: str, **fields) -> dict:
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}], **fields}


def ids(tmp_path, rows, name="runs/a.jsonl", **options):
    """The (task, run, step) of imported rows, and the summary."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = Table(tmp_path / "table")
    summary = import_files([str(path)], table, options=Options(**options))
    return [(exp.eid.task, exp.eid.run, exp.eid.step) for exp in table], summary


def test_fields_paths_and_lists_of_them_name_the_task(tmp_path):
    rows = [chat("a", meta={"case": 7}, repo="r", task_id="t"), chat("b", meta={"case": 8}, repo="r", task_id="t")]
    assert [task for task, *_ in ids(tmp_path / "1", rows)[0]] == ["t", "t"]
    assert [task for task, *_ in ids(tmp_path / "2", rows, task="meta.case")[0]] == [7, 8]
    assert [task for task, *_ in ids(tmp_path / "3", rows, task="repo,meta.case")[0]] == ['["r",7]', '["r",8]']
    assert [task for task, *_ in ids(tmp_path / "4", rows, task="file", run="folder")[0]] == ["a", "a"]
    assert len({task for task, *_ in ids(tmp_path / "5", rows, task="prompt")[0]}) == 1


def test_rows_in_order_are_grouped_by_their_number(tmp_path):
    rows = [chat(str(number), turn=3) for number in range(6)]
    found, _ = ids(tmp_path, rows, task="row//3", run="row%3", step="turn")
    assert found == [(0, 0, 3), (0, 1, 3), (0, 2, 3), (1, 0, 3), (1, 1, 3), (1, 2, 3)]


def test_text_as_a_run_is_the_same_number_everywhere(tmp_path):
    ((_, first, _), (_, second, _)), _ = ids(tmp_path, [chat("a", name="x"), chat("b", name="x")], run="name")
    assert first == second > 2**20


def test_a_record_without_the_field_is_refused_with_the_nearest_name(tmp_path):
    found, summary = ids(tmp_path, [chat("a", case=1), chat("b")], task="case")
    assert len(found) == 1
    assert summary.reasons == {"--task case": 1}
    _, summary = ids(tmp_path / "2", [chat("a", scenario=1)], task="scenaro")
    assert summary.examples["--task scenaro"].endswith("did you mean 'scenario'?")
    _, summary = ids(tmp_path / "3", [chat("a", turn="late")], step="turn")
    assert summary.reasons == {"--step turn": 1}


@pytest.mark.parametrize("expression", ["", "row//0", "row//x", "a,,b", "row**2%3/4"])
def test_an_expression_that_means_nothing_is_refused(tmp_path, expression):
    with pytest.raises(ConfigError, match="--task"):
        ids(tmp_path, [chat("a")], task=expression)


# Requests without an answer, and a trial without its file of turns, give no experience.
NO_EXPERIENCE = {"batch_requests.jsonl", "terminal_bench.json"}


@pytest.mark.parametrize("path", sorted(FIXTURES.iterdir()), ids=lambda path: path.name)
def test_every_format_takes_the_options(tmp_path, path):
    table = Table(tmp_path / "table")
    import_files([str(path)], table, options=Options(task="file", run="folder", step=None))
    expected = set() if path.name in NO_EXPERIENCE else {path.name.partition(".")[0]}
    assert {exp.eid.task for exp in table} == expected
    assert len({exp.eid.run for exp in table}) == len(expected)


def session(name: str, answer: str) -> str:
    lines = [
        {"type": "user", "uuid": "1", "parentUuid": None, "sessionId": name, "message": {"role": "user", "content": "q"}},
        {"type": "assistant", "uuid": "2", "parentUuid": "1", "sessionId": name,
         "message": {"role": "assistant", "content": [{"type": "text", "text": answer}]}},
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    "scores",
    [
        "task,run,reward\ns-0,0,1\ns-1,0,0\n",
        "id,reward\ns-0,1\ns-1,0\n",
        "session_id,task,success\ns-0,tree,true\ns-1,tree,false\n",
    ],
)
def test_two_scored_sessions_of_one_prompt_are_a_pair(tmp_path, scores):
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text(session(f"s-{number}", f"answer {number}"))
    (tmp_path / "scores.csv").write_text(scores)
    table = Table(tmp_path / "table")
    summary = import_files([str(tmp_path / "*.jsonl")], table, scores=tmp_path / "scores.csv")
    assert summary.num_scores_used == 2
    if "tree" in scores:
        assert {exp.eid.task for exp in table} == {"tree"}
    assert build_pairs([table], tmp_path / "pairs")["pairs"] == 1


def test_the_hint_of_a_build_without_pairs_names_the_field_that_would_group(tmp_path):
    ids(tmp_path, [chat("a", task_id=1, score=1), chat("b", task_id=2, score=0)])
    summary = build_pairs([Table(tmp_path / "table")], tmp_path / "pairs")
    assert summary["hint"].endswith("2 of 2 share their prompt with another one: import with --task prompt")
    rows = [chat(str(number), case=number // 2, task_id=number, score=number % 2) for number in range(4)]
    for number, row in enumerate(rows):
        row["messages"][0]["content"] = f"question {number}"
    ids(tmp_path / "2", rows)
    summary = build_pairs([Table(tmp_path / "2" / "table")], tmp_path / "pairs2")
    assert "import with --task case, then --strategy divergence" in summary["hint"]


def test_several_scores_without_a_default_are_listed(tmp_path):
    _, summary = ids(tmp_path, [chat("a", reward={"style": 0.5, "facts": 1}), chat("b", judge_score=0.1)])
    assert set(summary.scores_to_choose) == {"style", "facts", "judge_score"}
    assert summary.total("unscored") == 2


def test_a_reward_that_is_misspelt_names_the_nearest(tmp_path):
    with pytest.raises(SourceError, match="did you mean 'score'"):
        ids(tmp_path, [chat("a", score=1)], reward="scroe")


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({"label": True}, 1.0),
        ({"label": "bad"}, 0.0),
        ({"success": False}, 0.0),
        ({"passed": "pass"}, 1.0),
        ({"correct": 1}, 1.0),
        ({"kto_tag": "true"}, 1.0),
        ({"thumbs": "thumbs_up"}, 1.0),
        ({"feedback": -1}, -1.0),
        ({"label": "rejected", "score": 0.25}, 0.25),
        ({"label": 3}, None),
        ({"label": "sports"}, None),
        ({"feedback": "very nice"}, None),
    ],
)
def test_labels_are_rewards_behind_scores(tmp_path, fields, reward):
    ids(tmp_path, [chat("a", **fields)])
    assert Table(tmp_path / "table")[0].reward == reward


@pytest.mark.parametrize("name", ["task", "task_name", "problem_id", "example_id", "uid", "task_id", "instance_id"])
def test_usual_names_of_a_task(tmp_path, name):
    assert ids(tmp_path, [chat("a", **{name: "t-1"})])[0] == [("t-1", 0, 0)]
