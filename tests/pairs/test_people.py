"""Votes, ratings and exclusions of people: files that survive a crash, what they decide, how far people agree."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from made_tables import built, candidate, dropped, made, several

from pairwright.errors import PairwrightError, SourceError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.decisions import ExclusionFile, RatingFile, VoteFile, rating_agreement, vote_agreement
from pairwright.pairs.decisions.agreement import krippendorff_alpha
from pairwright.pairs.decisions.vote_file import Rating, Vote
from pairwright.pairs.funnel import Reason
from pairwright.pairs.outcomes import explain
from pairwright.pairs.pair_table import read_pairs

ROWS = [candidate(None, text, run=run) for run, text in enumerate(("a", "b", "c"))]
A, B, C = (row.eid.uid for row in ROWS)
HOSTILE = '["b","<script>,\\"\\n=1",0,0,"s"]'
WRITER = """
import sys
from pathlib import Path
from pairwright.pairs.decisions import VoteFile
votes = VoteFile(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    votes.vote(sys.argv[2], f"a{number}", "b", "a")
    print(number, flush=True)
"""


def write_in_process(path, voter, number):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), voter, str(number)], stdout=subprocess.PIPE, text=True
    )


# The files


def test_the_last_word_of_a_voter_counts_whichever_side_was_shown_first(tmp_path):
    votes = VoteFile(tmp_path / "votes.csv")
    votes.vote("ada", A, B, "a")
    votes.vote("bob", A, B, "skip")
    votes.vote("ada", B, A, "a")
    assert [(vote.voter, vote.winner, vote.verdict) for vote in votes.votes()] == [
        ("bob", None, "skip"), ("ada", B, "a")
    ]  # fmt: skip
    assert all(vote.time.endswith("Z") for vote in votes.votes())
    assert votes.replay().count() == {"voters": 2, "decisions": 2, "skips": 1, "replaced": 1, "undone": 0}


def test_undo_takes_back_the_last_vote_of_that_voter_and_the_one_before_counts_again(tmp_path):
    votes = VoteFile(tmp_path / "votes.csv")
    votes.vote("ada", A, B, "a")
    votes.vote("ada", A, C, "tie")
    votes.vote("ada", A, B, "b")
    votes.vote("bob", A, B, "a")
    assert votes.undo("ada").verdict == "b"
    again = VoteFile(tmp_path / "votes.csv")
    assert {(vote.b, vote.verdict) for vote in again.votes() if vote.voter == "ada"} == {(B, "a"), (C, "tie")}
    assert again.undo("ada").verdict == "tie"
    assert again.undo("ada").verdict == "a"
    assert again.undo("ada") is None
    assert [vote.voter for vote in votes.votes()] == ["bob"]


def test_ratings_are_changed_skipped_and_undone(tmp_path):
    ratings = RatingFile(tmp_path / "ratings.csv")
    ratings.rate("ada", A, 3)
    ratings.rate("ada", A, 5)
    ratings.rate("ada", B, None)
    assert [(one.uid, one.rating) for one in ratings.ratings()] == [(A, 5.0), (B, None)]
    assert ratings.undo("ada").uid == B
    assert ratings.undo("ada").rating == 5.0
    assert [(one.uid, one.rating) for one in ratings.ratings() if one.voter == "ada"] == [(A, 3.0)]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_a_crash_cut_off_is_removed_and_nothing_else(tmp_path, cut):
    path = tmp_path / "votes.csv"
    votes = VoteFile(path)
    votes.vote("ada", A, B, "a")
    before = path.read_bytes()
    votes.vote("bob", A, B, "b")
    path.write_bytes(path.read_bytes()[:-cut])
    # With the line break alone missing the vote is whole.
    whole = cut == 1
    again = VoteFile(path)
    assert bool(again.unfinished) != whole
    assert [vote.voter for vote in again.votes()] == (["ada", "bob"] if whole else ["ada"])
    assert path.read_bytes() == before or whole
    again.vote("eve", A, C, "tie")
    assert [vote.voter for vote in VoteFile(path).votes()][-1] == "eve"


@pytest.mark.parametrize("content", [b"", b"voter,a", b"voter,a,b,verdict,time"])
def test_a_file_with_a_part_of_its_header_begins_anew(tmp_path, content):
    path = tmp_path / "votes.csv"
    path.write_bytes(content)
    VoteFile(path).vote("ada", A, B, "a")
    assert path.read_bytes().startswith(b"voter,a,b,verdict,time\nada,")
    assert len(VoteFile(path).votes()) == 1


def test_other_files_are_not_written_to(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text("uid,rating\nx,1\n")
    with pytest.raises(PairwrightError, match=r"votes.csv:1: got 'uid,rating', expected 'voter,a,b,verdict,time'"):
        VoteFile(path)
    assert path.read_text() == "uid,rating\nx,1\n"


def test_several_processes_and_threads_write_one_file(tmp_path):
    path = tmp_path / "votes.csv"
    writers = [write_in_process(path, f"voter {number}", 40) for number in range(3)]
    votes = VoteFile(path)
    threads = [
        threading.Thread(target=lambda name=name: [votes.vote(name, f"a{n}", "b", "b") for n in range(40)])
        for name in ("x", "y")
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        votes.votes()  # reading meanwhile sees whole lines
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(votes.votes()) == len(path.read_bytes().splitlines()) - 1 == 200
    for writer in writers:
        writer.stdout.close()


def test_what_was_acknowledged_before_a_kill_is_in_the_file(tmp_path):
    path = tmp_path / "votes.csv"
    with write_in_process(path, "ada", 100_000) as writer:
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
    votes = VoteFile(path)
    assert [f"a{number}" for number in acknowledged] == [vote.a for vote in votes.votes()][:20]


@pytest.mark.parametrize("voter", ["", "  ", "a\nb", "x" * 101, "a\x00b", "\u2028"])
def test_names_stay_on_a_line(tmp_path, voter):
    with pytest.raises(PairwrightError, match="name: got"):
        VoteFile(tmp_path / "votes.csv").vote(voter, A, B, "a")
    assert not (tmp_path / "votes.csv").exists()


def test_text_that_means_something_to_csv_comes_back_as_it_is(tmp_path):
    votes = VoteFile(tmp_path / "votes.csv")
    votes.vote('A "quoted", name', HOSTILE, B, "a")
    (vote,) = VoteFile(tmp_path / "votes.csv").votes()
    assert (vote.voter, vote.a, vote.b) == ('A "quoted", name', HOSTILE, B)


@pytest.mark.parametrize(("a", "b", "verdict"), [(A, A, "a"), (A, B, "c"), (A, "x\ny", "a"), ("", B, "a")])
def test_a_vote_that_says_nothing_is_refused(tmp_path, a, b, verdict):
    with pytest.raises(PairwrightError):
        VoteFile(tmp_path / "votes.csv").vote("ada", a, b, verdict)


def test_a_file_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PairwrightError, match="file"):
        VoteFile(tmp_path / "file" / "votes.csv").vote("ada", A, B, "a")


# Pairs


def test_pairs_take_the_majority_of_people_and_count_ties_and_skips(tmp_path):
    votes = VoteFile(tmp_path / "votes.csv")
    for voter, verdict in (("ada", "b"), ("ada", "a"), ("bob", "a"), ("eve", "tie")):
        votes.vote(voter, A, B, verdict)
    votes.vote("ada", A, C, "tie")
    votes.vote("ada", B, C, "skip")
    votes.vote("bob", B, C, "b")
    votes.undo("bob")
    (pair,), summary = built(tmp_path, ROWS, votes=votes.path)
    assert (pair.chosen[0].text, pair.rejected[0].text, pair.strategy) == ("a", "b", "votes")
    # Two of three for a, and a tie is half a vote for each.
    assert (pair.chosen_reward, pair.rejected_reward) == (2.5 / 3, 0.5 / 3)
    assert dropped(summary) == {Reason.TIED: 1, Reason.SKIPPED: 1}
    counts = {name: summary["votes"][name] for name in ("voters", "decisions", "skips", "ties", "replaced", "undone")}
    assert counts == {"voters": 3, "decisions": 5, "skips": 1, "ties": 2, "replaced": 1, "undone": 1}
    assert summary["votes"]["agreement"]["agreement"] == 1 / 3
    assert json.loads((tmp_path / "pairs" / "funnel.json").read_text())["votes"] == summary["votes"]


def test_pairs_take_the_mean_of_the_last_ratings(tmp_path):
    ratings = RatingFile(tmp_path / "ratings.csv")
    for voter, uid, rating in (("ada", A, 1), ("ada", A, 5), ("bob", A, 4), ("ada", B, 2), ("bob", C, None)):
        ratings.rate(voter, uid, rating)
    (pair,), summary = built(tmp_path, ROWS, votes=ratings.path, strategy="best-worst")
    assert (pair.chosen_reward, pair.rejected_reward, pair.strategy) == (4.5, 2.0, "best-worst")
    assert dropped(summary) == {Reason.UNSCORED: 1}
    assert (summary["votes"]["kind"], summary["votes"]["skips"]) == ("ratings", 1)


def test_an_unfinished_line_is_left_out_and_counted_and_the_file_stays(tmp_path):
    votes = VoteFile(tmp_path / "votes.csv")
    votes.vote("ada", A, B, "a")
    content = votes.path.read_bytes() + b"bob,x"
    votes.path.write_bytes(content)
    pairs, summary = built(tmp_path, ROWS, votes=votes.path)
    assert (len(pairs), summary["votes"]["unfinished"]) == (1, 1)
    assert votes.path.read_bytes() == content


def test_votes_on_what_is_not_there_are_refused_unless_undone(tmp_path):
    votes = VoteFile(tmp_path / "votes.csv")
    votes.vote("ada", A, B, "a")
    votes.vote("ada", A, "nobody", "a")
    with pytest.raises(SourceError, match=r"votes.csv:3: got id 'nobody'"):
        built(tmp_path / "one", ROWS, votes=votes.path)
    votes.undo("ada")
    assert len(built(tmp_path / "two", ROWS, votes=votes.path)[0]) == 1


# Exclusions


def test_an_excluded_experience_is_in_no_pair_and_counted(tmp_path):
    rows = several(1.0, 0.5, 0.0)
    made(tmp_path / "experience", rows)
    file = ExclusionFile(tmp_path / "experience")
    file.exclude("ada", rows[0].eid.uid, "copied the answer")
    file.exclude("ada", rows[1].eid.uid, "by mistake")
    file.include("bob", rows[1].eid.uid)
    assert {uid: (one.name, one.reason) for uid, one in file.exclusions().items()} == {
        rows[0].eid.uid: ("ada", "copied the answer")
    }
    for memory in (16, 1024):
        from pairwright import Table

        options = PairOptions(memory_megabytes=memory)
        summary = build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", options)
        assert [pair.chosen_reward for pair in read_pairs(tmp_path / "pairs")] == [0.5]
        assert dropped(summary) == {Reason.EXCLUDED: 1}
        assert explain(tmp_path / "pairs", rows[0].eid.uid)["reason"] == "excluded by hand"


def test_exclusions_without_effect_are_refused(tmp_path):
    made(tmp_path / "experience", several(1.0, 0.5))
    ExclusionFile(tmp_path / "experience").exclude("ada", "gone", "why not")
    with pytest.raises(SourceError, match=r"exclusions.csv:2: 'gone' is excluded, but"):
        built(tmp_path, several(1.0, 0.5, task="other"))
    (tmp_path / "experience" / "exclusions.csv").write_text("")
    with pytest.raises(SourceError, match=r"exclusions.csv:1: got columns \[\], expected name,action"):
        built(tmp_path, several(1.0, 0.5, task="other"))


def test_an_exclusion_needs_a_reason_and_a_name(tmp_path):
    file = ExclusionFile(tmp_path)
    for name, reason in (("ada", " "), ("", "why"), ("ada", "two\nlines")):
        with pytest.raises(PairwrightError):
            file.exclude(name, A, reason)
    with pytest.raises(PairwrightError, match="is not excluded"):
        file.include("ada", A)
    assert not file.path.exists()


def test_exclusions_at_an_address_are_refused():
    from pairwright.paths import place

    with pytest.raises(PairwrightError, match="copy the table to this machine"):
        ExclusionFile(place("s3://bucket/experience"))


# Agreement


def test_alpha_is_that_of_krippendorffs_example():
    """Four people on twelve units, with gaps: Krippendorff 2011, Computing Krippendorff's Alpha-Reliability, C and D."""
    people = [
        ["1", "2", "3", "3", "2", "1", "4", "1", "2", ".", ".", "."],
        ["1", "2", "3", "3", "2", "2", "4", "1", "2", "5", ".", "3"],
        [".", "3", "3", "3", "2", "3", "4", "2", "2", "5", "1", "."],
        ["1", "2", "3", "3", "2", "4", "4", "1", "2", "5", "1", "."],
    ]
    units = [[int(person[unit]) for person in people if person[unit] != "."] for unit in range(12)]
    assert krippendorff_alpha(units, lambda one, other: float(one != other)) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(units, lambda one, other: (one - other) ** 2) == pytest.approx(0.849, abs=5e-4)


def test_agreement_of_votes_by_hand():
    votes = [
        Vote("ada", "x", "y", "a"), Vote("bob", "y", "x", "b"),  # both: x
        Vote("ada", "x", "z", "a"), Vote("bob", "x", "z", "tie"),
        Vote("ada", "y", "z", "b"), Vote("bob", "y", "z", "b"),
        Vote("eve", "y", "z", "skip"), Vote("ada", "u", "v", "a"),
    ]  # fmt: skip
    report = vote_agreement(votes, {"x": 1.0, "y": 0.0, "z": 0.0, "u": None, "v": 1.0})
    assert (report["items"], report["agreement"], report["voters"]) == (3, 2 / 3, {"ada": 4, "bob": 3})
    # ada: first, first, second; bob: first, tie, second. By chance (2·1 + 1·1) / 9 = 1/3, so (2/3 - 1/3) / (2/3).
    assert report["people"] == [{"voters": ["ada", "bob"], "items": 3, "agreement": 2 / 3, "kappa": pytest.approx(0.5)}]
    # Classes 3 first, 2 second, 1 tie: expected 3·2 + 3·1 + 2·1 = 11, observed 1: 1 - 5/11.
    assert report["alpha"] == pytest.approx(6 / 11)
    assert report["reward"]["all"] == {
        "agree": 3, "disagree": 0, "tied_vote": 1, "tied_reward": 2, "no_reward": 1, "agreement": 1.0
    }  # fmt: skip
    assert report["reward"]["ada"]["agree"] == 2


def test_agreement_of_ratings_and_of_nobody():
    ratings = [Rating("ada", "x", 5.0), Rating("bob", "x", 5.0), Rating("ada", "y", 1.0), Rating("bob", "y", 4.0)]
    report = rating_agreement([*ratings, Rating("bob", "z", None)], {"x": 1.0, "y": 0.0})
    assert (report["items"], report["agreement"]) == (2, 0.5)
    assert report["reward"]["all"] == {"items": 2, "spearman": pytest.approx(1.0)}
    assert vote_agreement([])["alpha"] is vote_agreement([])["agreement"] is None


def test_the_command_prints_votes_and_stats_count_exclusions(tmp_path):
    from typer.testing import CliRunner

    from pairwright.cli import app

    made(tmp_path / "experience", several(1.0, 0.0))
    first, second = (row.eid.uid for row in several(1.0, 0.0))
    votes = VoteFile(tmp_path / "votes.csv")
    for voter, verdict in (("ada", "a"), ("bob", "b")):
        votes.vote(voter, first, second, verdict)
    words = ["pairs", "votes", str(votes.path), str(tmp_path / "experience")]
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (answer["decisions"], answer["agreement"]["reward"]["all"]["agreement"]) == (2, 0.5)
    shown = CliRunner().invoke(app, words)
    assert (shown.exit_code, "ada and bob: kappa" in shown.stdout) == (0, True)
    ExclusionFile(tmp_path / "experience").exclude("ada", first, "odd")
    stats = CliRunner().invoke(app, ["experience", "stats", str(tmp_path / "experience"), "--json"])
    assert json.loads(stats.stdout)["excluded"] == 1


def test_a_decision_makes_a_run_build_its_pairs_again(tmp_path):
    from pairwright.flow.run_flow import _decisions_key

    made(tmp_path / "experience", ROWS)
    tables, votes = [tmp_path / "experience"], tmp_path / "votes.csv"
    assert _decisions_key(tables, votes) == []
    ExclusionFile(tables[0]).exclude("ada", A, "odd")
    first = _decisions_key(tables, votes)
    VoteFile(votes).vote("ada", A, B, "a")
    second = _decisions_key(tables, votes)
    VoteFile(votes).vote("bob", A, B, "a")
    assert len({str(key) for key in (first, second, _decisions_key(tables, votes))}) == 3
