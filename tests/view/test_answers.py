"""The answers that the page gets about tables: rows, conditions, search, facets, tasks, records, pairs, tokens, evaluations."""

import json

import numpy as np
import pytest
from viewed_run import agent_record, ask, ask_all, make_viewed_run

from pairwright import Table
from pairwright.errors import ConfigError, PairwrightError, TableError
from pairwright.pairs.pair_stats import lint_pairs
from pairwright.pairs.pair_table import read_pairs
from pairwright.view.library import Library
from pairwright.view.row_queries import Query, _snippet


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_viewed_run(tmp_path_factory.mktemp("runs") / "support")


@pytest.fixture(scope="module")
def answers(run):
    return ask_all(run)


def rows_of(answers, **asked):
    return ask(answers, "experiences.rows", source="support/experience", **asked)


def test_a_run_is_listed_with_all_its_tables(answers):
    listed = {(item["kind"], item["key"]) for item in ask(answers, "library")["items"]}
    assert listed == {
        ("run", "support"),
        ("experiences", "support/experience"),
        ("pairs", "support/pairs"),
        ("tokens", "support/tokens"),
        ("experiences", "support/evaluation/before"),
        ("experiences", "support/evaluation/after"),
        ("evaluation", "support/evaluation"),
    }


def test_a_folder_of_runs_and_a_table_alone_are_opened(run):
    assert "support/pairs" in Library([run.parent]).items
    assert [item.kind for item in Library([run / "pairs"]).items.values()] == ["pairs"]
    both = Library([run / "pairs", run])
    assert len(both.of_kind("pairs")) == 1, "one table is listed once"


def test_a_folder_with_nothing_to_see_is_refused_with_the_next_command(tmp_path):
    with pytest.raises(PairwrightError, match="pairwright import"):
        Library([tmp_path])
    with pytest.raises(PairwrightError, match="no such folder"):
        Library([tmp_path / "nowhere"])


def test_pages_follow_each_other_and_together_are_the_table(answers, run):
    table = [exp.eid.uid for exp in Table(run / "experience")]
    pages = [rows_of(answers, offset=offset, limit=40) for offset in range(0, len(table), 40)]
    assert [row["uid"] for page in pages for row in page["rows"]] == table
    assert {page["total"] for page in pages} == {len(table)}


def test_conditions_search_and_sort_select_what_the_table_selects(answers, run):
    expected = [exp for exp in Table(run / "experience") if exp.reward is not None and exp.reward < 0.3]
    expected = [exp for exp in expected if "i do not know" in exp.completion[0].text.lower()]
    assert expected
    got = rows_of(answers, w=["reward < 0.3"], q="I DO NOT know", sort="-reward", limit=200)
    assert got["matches"] == len(expected)
    assert sorted(row["uid"] for row in got["rows"]) == sorted(exp.eid.uid for exp in expected)
    rewards = [row["reward"] for row in got["rows"]]
    assert rewards == sorted(rewards, reverse=True)


def test_unscored_records_come_last_in_both_directions(answers):
    for sort in ("reward", "-reward"):
        rewards = [row["reward"] for row in rows_of(answers, sort=sort, limit=200)["rows"]]
        assert None in rewards
        assert None not in rewards[: rewards.index(None)]
        assert set(rewards[rewards.index(None) :]) == {None}


@pytest.mark.parametrize(
    ("text", "num"),
    [('{"command": "make"}', 1), ("make: *** no rule", 1), ("MAKEFILE", 1), ("(ticket 3)", 4), (".*", 0), ("", 97)],
)
def test_a_text_is_found_as_it_reads_and_not_as_json_or_as_a_pattern(answers, text, num):
    assert rows_of(answers, q=text)["matches"] == num


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("nothing > 1", "no column 'nothing'"),
        ("reward >", "where"),
        ("SUM(reward) > 1", "aggregates"),
        ("reward", "a value of type Float64, expected a condition"),
        ("x" * 3000, "at most 20 conditions"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_its_reason(answers, where, problem):
    with pytest.raises(ConfigError, match=problem):
        rows_of(answers, w=[where])


@pytest.mark.parametrize("bad", [{"offset": "-1"}, {"limit": "many"}, {"sort": "nothing"}, {"q": "x" * 2000}])
def test_parameters_that_make_no_sense_are_refused(answers, bad):
    with pytest.raises(ConfigError):
        rows_of(answers, **bad)


def test_every_facet_narrows_the_list_to_its_count(answers):
    for source, kind in (
        ("support/experience", "experiences"),
        ("support/pairs", "pairs"),
        ("support/tokens", "tokens"),
    ):
        facets = ask(answers, f"{kind}.facets", source=source)
        assert facets
        for facet in facets:
            for entry in [*facet.get("values", []), *facet.get("bins", [])]:
                got = ask(answers, f"{kind}.rows", source=source, w=[entry["where"]])
                assert got["matches"] == entry["count"], (facet["name"], entry)


def test_facets_of_a_selection_count_the_selection(answers):
    (kinds,) = [f for f in ask(answers, "experiences.facets", source="support/experience") if f["name"] == "errors"]
    assert [(entry["value"], entry["count"]) for entry in kinds["values"]] == [("nonzero_exit", 1)]
    narrowed = ask(answers, "experiences.facets", source="support/experience", w=["kind = 'single_turn'"])
    assert "errors" not in [facet["name"] for facet in narrowed]


def test_what_became_of_an_experience_is_what_the_build_says(answers, run):
    import polars as pl

    outcomes = pl.read_parquet(run / "pairs" / "outcomes.parquet")
    for reason, number in outcomes["reason"].drop_nulls().value_counts().iter_rows():
        assert rows_of(answers, w=[f"outcome = '{reason}'"])["matches"] == number
    uid = outcomes.filter(pl.col("num_chosen") > 0)["uid"][0]
    (lineage,) = ask(answers, "experiences.lineage", source="support/experience", uid=uid)
    assert lineage["num_pairs"] == len(lineage["pairs"]) > 0
    assert {pair["side"] for pair in lineage["pairs"]} == {"chosen"}


def test_tasks_have_their_runs_and_rewards(answers):
    got = ask(answers, "experiences.tasks", source="support/experience", sort="-spread", limit=500)
    assert got["matches"] == 25
    assert sum(task["experiences"] for task in got["rows"]) == 97
    spreads = [task["spread"] for task in got["rows"] if task["spread"] is not None]
    assert spreads == sorted(spreads, reverse=True)
    (repair,) = [task for task in got["rows"] if task["task"] == "repair"]
    assert (repair["runs"], repair["errors"], repair["mean"]) == (1, 1, 0.25)


def test_the_size_of_batches_changes_no_answer(answers, run, monkeypatch):
    asked = [
        ("experiences.rows", {"w": ["reward > 0.3"], "q": "order", "sort": "-reward", "limit": 40}),
        ("experiences.tasks", {"sort": "-spread", "limit": 40}),
        ("experiences.tasks", {"w": ["reward > 0.3"], "limit": 40}),
        ("experiences.facets", {"w": ["run > 0"]}),
    ]
    whole = [ask(answers, question, source="support/experience", **more) for question, more in asked]
    monkeypatch.setattr("pairwright.view.row_queries.BATCH_ROWS", 3)
    again = ask_all(run)
    for (question, more), expected in zip(asked, whole, strict=True):
        got = ask(again, question, source="support/experience", **more)
        if isinstance(got, dict):
            for row, other in zip(got["rows"], expected["rows"], strict=True):
                assert row == pytest.approx(other)
            assert got["matches"] == expected["matches"]
        else:
            assert got == expected


def test_a_record_has_its_turns_errors_and_values_that_json_cannot_hold(answers):
    record = ask(answers, "experiences.record", source="support/experience", uid=agent_record().eid.uid)
    assert [message["role"] for message in record["completion"]] == ["assistant", "tool", "assistant"]
    assert record["completion"][0]["calls"] == [{"name": "shell", "arguments": '{"command": "make"}', "id": "c1"}]
    assert record["errors"] == [{"index": 3, "kind": "nonzero_exit", "text": "exit 2", "tool": "shell"}]
    assert record["components"] == {"tests": 0.25, "unknown": "nan"}
    assert record["info"]["large"] == str(2**60)
    json.dumps(record, allow_nan=False)
    raw = ask(answers, "experiences.raw", source="support/experience", uid=record["uid"], row=record["row"])
    assert json.loads(raw["text"])["uid"] == record["uid"]


def test_a_record_is_found_by_its_id_where_its_row_has_moved(answers):
    first, second = rows_of(answers, limit=2)["rows"]
    record = ask(answers, "experiences.record", source="support/experience", uid=first["uid"], row=second["row"])
    assert (record["uid"], record["row"]) == (first["uid"], first["row"])
    with pytest.raises(TableError, match="no row with uid"):
        ask(answers, "experiences.record", source="support/experience", uid="gone")


def test_what_is_appended_is_seen_at_once_also_in_a_journal(tmp_path):
    from report.made_run import make_experiences

    table = Table(tmp_path / "experience")
    table.append(make_experiences(2))
    answers = ask_all(tmp_path / "experience")
    assert ask(answers, "experiences.rows", source="experience", w=["run >= 0"])["matches"] == 8
    table.append([agent_record()])  # stays in the journal: the table is not closed
    got = ask(answers, "experiences.rows", source="experience", w=["run >= 0"], sort="-num_errors")
    assert got["matches"] == 9
    assert got["rows"][0]["task"] == "repair"
    table.close()
    assert ask(answers, "experiences.rows", source="experience", q="Makefile")["matches"] == 1


def test_pairs_come_in_the_order_of_the_list_with_their_position(answers, run):
    pairs = {pair.id: pair for pair in read_pairs(run / "pairs")}
    query = {"source": "support/pairs", "w": ["gap > 0.5"], "sort": "-gap"}
    listed = ask(answers, "pairs.rows", **query, limit=500)
    assert listed["matches"] == sum(pair.gap > 0.5 for pair in pairs.values()) > 2
    for position, row in enumerate(listed["rows"]):
        opened = ask(answers, "pairs.pair", **query, position=position)
        assert (opened["pair"]["id"], opened["position"]) == (row["id"], position)
        assert opened["pair"]["chosen"][0]["text"] == pairs[row["id"]].chosen[0].text
    by_id = ask(answers, "pairs.pair", **query, id=listed["rows"][2]["id"])
    assert by_id["position"] == 2
    assert ask(answers, "pairs.pair", **query, position=10_000)["pair"] is None


def test_lint_of_each_pair_adds_up_to_the_lint_of_the_table(tmp_path):
    import polars as pl

    from pairwright.pairs.pair_table import PAIR_SCHEMA, pair_batches, write_pairs

    run = make_viewed_run(tmp_path / "support")
    rows = pl.concat([pl.DataFrame(batch) for batch in pair_batches(run / "pairs")])
    first = rows.head(1)
    swapped = first.with_columns(id=pl.lit("0" * 32), chosen=pl.col("rejected"), rejected=pl.col("chosen"))
    white = first.with_columns(
        id=pl.lit("1" * 32), rejected=pl.lit('[{"role":"assistant","content":"a b"}]'),
        chosen=pl.lit('[{"role":"assistant","content":"a  b"}]'), rejected_reward=pl.col("chosen_reward"),
    )  # fmt: skip
    worse = pl.concat([rows, first, swapped.select(rows.columns), white.select(rows.columns)])
    write_pairs(run / "pairs", worse.to_arrow().cast(PAIR_SCHEMA).to_batches())
    found = {finding.name: finding.message for finding in lint_pairs(run / "pairs")}
    (lint,) = [f for f in ask(ask_all(run), "pairs.facets", source="support/pairs") if f["name"] == "lint"]
    counts = {entry["value"]: entry["count"] for entry in lint["values"]}
    assert counts["duplicates"] == 2
    assert counts["contradictions"] == 3, "both copies of the first pair, and the one the other way around"
    assert counts["white-space"] == counts["tied"] == counts["not-rising"] == 1
    assert {"duplicates", "contradictions", "white-space", "tied", "not-rising"} <= set(found)


def test_tokens_have_texts_ids_paint_and_mask(answers, run):
    listed = ask(answers, "tokens.rows", source="support/tokens", limit=500)
    assert listed["matches"] == 2 * len(list(read_pairs(run / "pairs")))
    row = next(row for row in listed["rows"] if row["side"] == "chosen")
    sequence = ask(answers, "tokens.sequence", source="support/tokens", row=row["row"])
    assert len(sequence["ids"]) == len(sequence["texts"]) == len(sequence["mask"]) == row["num_tokens"]
    assert row["task"] == sequence["task"] != ""
    trained = "".join(text for text, mask in zip(sequence["texts"], sequence["mask"], strict=True) if mask)
    assert trained.startswith("Thank you for asking.")
    assert trained.endswith("<|im_end|>")


def test_an_evaluation_lists_regressions_first_and_has_both_transcripts(answers):
    got = ask(answers, "evaluation.tasks", source="support/evaluation", limit=500)
    outcomes = [row["outcome"] for row in got["rows"]]
    assert outcomes == sorted(outcomes, key=["loss", "draw", "win"].index)
    assert set(outcomes) == {"loss", "draw", "win"}
    assert got["transcripts"]
    task = ask(answers, "evaluation.task", source="support/evaluation", task="held out 3")
    assert [task[side][0]["completion"][0]["text"] for side in ("before", "after")] == [
        "It is late. 3",
        "It is delivered. 3",
    ]


def test_a_run_has_outcome_funnel_and_curves(answers):
    (summary,) = ask(answers, "runs.list")
    assert (summary["experiences"], summary["passed"], summary["state"]) == (97, True, "completed")
    run = ask(answers, "runs.run", source="support")
    assert [metric["name"] for metric in run["metrics"]] == ["score", "lost"]
    (funnel,) = run["funnels"]
    # Every bar of the first stage opens as many experiences as it counts.
    for drop in funnel["stages"][0]["drops"]:
        where = funnel["where"][drop["reason"]]
        assert ask(answers, "experiences.rows", source=funnel["table"], w=[where])["matches"] == drop["count"]
    assert {"loss", "eval_loss", "logps/chosen"} <= {curve["name"] for curve in run["curves"]}


def test_selections_are_cached_and_forgotten_with_the_table(answers):
    queries = answers.queries({"source": ["support/experience"]}, "experiences")
    snapshot = queries.rows.snapshot()
    first = queries.rows.select(Query(("reward > 0.5",)), snapshot)
    assert queries.rows.select(Query(("reward > 0.5",)), snapshot) is first
    assert isinstance(first, np.ndarray)


def test_a_search_shows_what_stands_around_the_match(answers):
    text = rows_of(answers, limit=1)["rows"][0]
    record = ask(answers, "experiences.record", source="support/experience", uid=text["uid"])
    whole = next(message["text"] for message in record["completion"] if len(message["text"]) > 12)
    wanted = whole[4:12].upper()
    rows = [str(row["row"]) for row in rows_of(answers, q=wanted, limit=20)["rows"]]
    snippets = ask(answers, "experiences.snippets", source="support/experience", q=wanted, row=rows)
    assert len(snippets) == len(rows)
    assert all(snippet["match"].upper() == wanted for snippet in snippets)
    own = next(
        snippet for snippet in snippets if (snippet["before"] + snippet["match"] + snippet["after"]).strip("…") in whole
    )
    assert own["before"].strip("…") + own["match"] + own["after"].strip("…") in whole
    assert ask(answers, "experiences.snippets", source="support/experience", q="no such text", row=rows[:1]) == [None]
    pairs = [str(row["row"]) for row in ask(answers, "pairs.rows", source="support/pairs", q="the", limit=3)["rows"]]
    assert all(ask(answers, "pairs.snippets", source="support/pairs", q="the", row=pairs))
    with pytest.raises(ConfigError, match="at most 500 rows"):
        ask(answers, "pairs.snippets", source="support/pairs", q="the", row=["0"] * 501)


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        ('[{"role":"user","content":"say \\"hi\\" to\\nthem"}]', '"HI" TO\nthem', ("say ", '"hi" to\nthem', "")),
        ('[{"content":"' + "a" * 100 + "X" + "b" * 100 + '"}]', "x", ("…" + "a" * 60, "X", "b" * 60 + "…")),
        ('[{"role":"user","content":"hi"}]', "Role", ('[{"', "role", '":"user","content":"hi"}]')),
        ("[]", "x", None),
        (None, "x", None),
    ],
)
def test_a_snippet_is_text_as_people_read_it(value, text, expected):
    snippet = _snippet(value, "prompt", text)
    assert expected == (snippet and (snippet["before"], snippet["match"], snippet["after"]))
