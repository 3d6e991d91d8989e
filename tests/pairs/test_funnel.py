"""The funnel says where everything went; lint says what should not be trained on."""

import pytest
from made_tables import built, candidate, dropped, several

from pairwright import EID, Message
from pairwright.errors import PairwrightError, TableError
from pairwright.pairs.funnel import Funnel, Reason, funnel_rows, read_funnel
from pairwright.pairs.outcomes import explain
from pairwright.pairs.pair_stats import lint_pairs, pair_statistics
from pairwright.pairs.pair_table import pairs_to_batch, read_pairs, write_pairs
from pairwright.records.experience import Pair


def test_a_stage_that_does_not_add_up_is_a_mistake_of_ours():
    stage = Funnel().stage("pairs", 3)
    stage.drop(Reason.TIED, 1)
    with pytest.raises(AssertionError, match="3 in, 1 dropped, 1 out"):
        stage.close(1)


def test_the_funnel_is_written_with_counts_and_examples(tmp_path):
    rows = [*several(0.9, 0.9, 0.5, float("nan")), candidate(0.3, run=4, prompt=(Message("user", "other"),))]
    _, summary = built(tmp_path, rows)
    found = read_funnel(tmp_path / "pairs")
    assert found == summary
    (unscored,) = (drop for drop in found["stages"][0]["drops"] if drop["reason"] == Reason.UNSCORED)
    assert unscored["examples"] == [rows[3].eid.uid]
    assert ("experiences", Reason.DIFFERENT_PROMPTS, -1) in funnel_rows(found)
    assert found["reward_scale"] == {"None": {"min": 0.3, "mean": pytest.approx(0.65), "max": 0.9}}


def test_every_experience_can_be_asked_where_it_went(tmp_path):
    rows = [
        candidate(0.9, "best"), candidate(0.5, "worst", run=1), candidate(None, run=2), candidate(0.7, "between", run=3),
        candidate(1.0, "alone", task="u"), candidate(0.5, "x", task="v"), candidate(0.5, "y", task="v", run=1),
        candidate(0.6, "x", task="w"), candidate(0.5, "y", task="w", run=1),
    ]  # fmt: skip
    (pair,), _ = built(tmp_path, rows, strategy="best-worst", min_gap=0.2)
    reasons = [explain(tmp_path / "pairs", row.eid.uid)["reason"] for row in rows]
    assert reasons == [
        None, None, Reason.UNSCORED, Reason.NOT_PICKED, Reason.SINGLE, Reason.TIED, Reason.TIED,
        Reason.BELOW_GAP, Reason.BELOW_GAP,
    ]  # fmt: skip
    best = explain(tmp_path / "pairs", rows[0].eid.uid)
    assert (best["num_chosen"], best["num_rejected"], best["pairs"][0]["id"]) == (1, 0, pair.id)
    assert explain(tmp_path / "pairs", pair.id[:12])["chosen_uid"] == rows[0].eid.uid
    with pytest.raises(PairwrightError, match="several ids"):
        explain(tmp_path / "pairs", '"b"')
    with pytest.raises(PairwrightError, match="no experience and no pair"):
        explain(tmp_path / "pairs", "nowhere")


def test_a_candidate_says_which_filter_took_its_last_pair(tmp_path):
    rows = several(0.9, 0.5, 0.1)
    _, summary = built(tmp_path, rows, max_pairs_per_task=1)
    assert dropped(summary) == {Reason.TASK_CAP: 2}
    assert explain(tmp_path / "pairs", rows[1].eid.uid)["reason"] == Reason.TASK_CAP


def test_a_candidate_that_lost_pairs_to_two_filters_names_the_last(tmp_path):
    rows = several(0.9, 0.5, 0.1)
    (pair,), summary = built(tmp_path, rows, max_pairs_per_task=2, max_pairs=1, seed=1)
    assert pair.gap == 0.8
    assert dropped(summary) == {Reason.TASK_CAP: 1, Reason.SAMPLED: 1}
    assert explain(tmp_path / "pairs", rows[1].eid.uid)["reason"] == Reason.SAMPLED


def test_folders_without_pairs_say_how_to_make_them(tmp_path):
    for read in (read_funnel, pair_statistics, lambda folder: explain(folder, "x")):
        with pytest.raises(TableError, match="pairwright pairs"):
            read(tmp_path)


def test_a_good_table_has_no_findings(tmp_path):
    rows = [row for task in range(4) for row in several(0.9, 0.5, task=task, prompt=(Message("user", f"q{task}"),))]
    rows += [candidate(0.9, "short", task=9), candidate(0.5, "rather long", task=9, run=1)]
    built(tmp_path, rows, validation=0.4)
    assert lint_pairs(tmp_path / "pairs", max_near=1.0) == []


def handmade(prompt="q", chosen="yes", rejected="no", *, identity="0" * 32, rewards=(1.0, 0.0), **fields):
    eids = [EID("b", prompt, run, 0, "s") for run in (0, 1)]
    return Pair(
        id=identity, prompt=[Message("user", prompt)], chosen=[Message("assistant", chosen)], rejected=[Message("assistant", rejected)],
        chosen_reward=rewards[0], rejected_reward=rewards[1], chosen_eid=eids[0], rejected_eid=eids[1], gap=1.0, strategy="all", **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "finding"),
    [
        ([], "no-pairs"),
        ([handmade(), handmade()], "duplicates"),
        ([handmade(), handmade(chosen="no", rejected="yes", identity="1" * 32)], "contradictions"),
        ([handmade(chosen="a b", rejected="a  b")], "white-space"),
        ([handmade(rejected=" ")], "empty"),
        ([handmade(info={"across_groups": True})], "across-groups"),
        ([handmade(), handmade(rejected="never", identity="1" * 32, split="validation")], "split-prompts"),
        ([handmade(prompt=f"q{n}", chosen="y" * (90 + n), identity=f"{n:032}") for n in range(9)], "length"),
        ([handmade(prompt="p" if n else "q", rejected=f"no {n}", identity=f"{n:032}") for n in range(30)], "one-task"),
    ],
)
def test_lint_finds(tmp_path, pairs, finding):
    write_pairs(tmp_path, [pairs_to_batch(pairs)] if pairs else [])
    assert finding in [found.name for found in lint_pairs(tmp_path)]
    sound = [handmade(chosen="ja!", rejected="no"), handmade("other", "good", "poor!", identity="2" * 32)]
    write_pairs(tmp_path, [pairs_to_batch(sound)])
    assert finding not in [found.name for found in lint_pairs(tmp_path)]


def test_lint_suggests_other_pairs_where_dropping_would_leave_none(tmp_path):
    rows = [candidate(0.9, "y" * (90 + n), task=n) for n in range(4)]
    rows += [candidate(0.5, "no", task=n, run=1) for n in range(4)]
    built(tmp_path / "plain", rows)
    (finding,) = lint_pairs(tmp_path / "plain" / "pairs", max_near=1.0)
    assert "too few chosen sides are shorter" in finding.message
    assert "--length-balance" not in finding.message


def test_statistics_count_the_rows_of_the_table(tmp_path):
    built(tmp_path, several(0.9, 0.7, 0.5))
    found = pair_statistics(tmp_path / "pairs")
    assert (found["pairs"], found["tasks"], found["gap_min"], found["gap_max"]) == (3, 1, 0.2, 0.4)
    assert (found["strategy"], sum(found["gap_histogram"].values())) == ({"all": 3}, 3)
    assert len(list(read_pairs(tmp_path / "pairs"))) == 3
