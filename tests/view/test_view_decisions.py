"""Votes, ratings and exclusions made on the page: the queue, blindness, undo, what `pairs` makes of them."""

import json
import shutil
from pathlib import Path

import pytest
from viewed_run import agent_record, ask, ask_all, make_viewed_run

from pairwright import Table
from pairwright.config.sections import CreditConfig
from pairwright.errors import PairwrightError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.decisions import VoteFile
from pairwright.pairs.pair_table import read_pairs
from pairwright.pairs.turn_credit import count_side_credit

SOURCE = "support/pairs"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_viewed_run(tmp_path_factory.mktemp("runs") / "support")


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "support"))


def test_a_voter_is_asked_about_every_pair_once(run):
    answers = ask_all(run)
    total = len(list(read_pairs(run / "pairs")))
    shown = []
    for _ in range(total):
        pair = ask(answers, "decide.next", source=SOURCE, voter="ada", order="random")["pair"]
        shown.append(pair["id"])
        answers.decisions["decide.vote"]({"source": SOURCE, "voter": "ada", "id": pair["id"], "verdict": "a"})
    assert len(set(shown)) == total
    assert ask(answers, "decide.next", source=SOURCE, voter="ada", order="random")["pair"] is None
    assert ask(answers, "decide.next", source=SOURCE, voter="bob", order="gap")["pair"] is not None


def test_blind_tells_nothing_of_the_rewards_and_draws_the_order_which_the_vote_undoes(run):
    answers = ask_all(run)
    pairs = {pair.id: pair for pair in read_pairs(run / "pairs")}
    firsts = set()
    for _ in range(12):
        answer = ask(answers, "decide.next", source=SOURCE, voter="ada", order="gap", blind=1)
        pair, text = answer["pair"], json.dumps(answer)
        own = pairs[pair["id"]]
        assert (pair["a_reward"], pair["b_reward"]) == (None, None)
        for secret in ("chosen", "rejected", "gap", own.chosen_eid.suffix + '"]', str(own.chosen_reward)):
            assert secret not in text, secret
        is_chosen = pair["a"][0]["text"] == own.chosen[0].text
        firsts.add(is_chosen)
        # The better one wins, on whichever side it was shown.
        answers.decisions["decide.vote"](
            {"source": SOURCE, "voter": "ada", "id": pair["id"], "verdict": "a" if is_chosen else "b", "blind": True}
        )
    assert firsts == {True, False}
    votes = VoteFile(run / "votes.csv").votes()
    winners = {pair.chosen_eid.uid for pair in pairs.values()}
    assert len(votes) == 12
    assert {vote.winner for vote in votes} <= winners
    summary = ask(answers, "decide.summary", source=SOURCE)
    assert summary["agreement"]["reward"]["all"]["agreement"] == 1.0


def test_the_queues_begin_with_the_smallest_gap_and_with_what_people_dispute(run):
    answers = ask_all(run)
    pairs = sorted(read_pairs(run / "pairs"), key=lambda pair: pair.gap)
    first = ask(answers, "decide.next", source=SOURCE, voter="ada", order="gap", blind=0)["pair"]
    assert first["gap"] == pairs[0].gap
    disputed = pairs[-1].id
    for voter, verdict in (("bob", "a"), ("cy", "b")):
        answers.decisions["decide.vote"](
            {"source": SOURCE, "voter": voter, "id": disputed, "verdict": verdict, "blind": False}
        )
    assert ask(answers, "decide.next", source=SOURCE, voter="ada", order="disagreement")["pair"]["id"] == disputed
    with pytest.raises(PairwrightError, match="disagreement, gap, random"):
        ask(answers, "decide.next", source=SOURCE, voter="ada", order="best")


def test_undo_takes_the_last_vote_back_and_shows_its_pair(run):
    answers = ask_all(run)
    first = ask(answers, "decide.next", source=SOURCE, voter="ada", order="gap")["pair"]["id"]
    answers.decisions["decide.vote"]({"source": SOURCE, "voter": "ada", "id": first, "verdict": "tie"})
    assert answers.decisions["decide.undo"]({"source": SOURCE, "voter": "ada"}) == {"verdict": "tie", "id": first}
    assert VoteFile(run / "votes.csv").votes() == []
    with pytest.raises(PairwrightError, match="no vote to take back"):
        answers.decisions["decide.undo"]({"source": SOURCE, "voter": "ada"})


def test_votes_of_the_page_become_pairs(run):
    answers = ask_all(run)
    pair = ask(answers, "decide.next", source=SOURCE, voter="ada", order="gap", blind=0)["pair"]
    # Against the reward: the other side wins.
    answers.decisions["decide.vote"](
        {"source": SOURCE, "voter": "ada", "id": pair["id"], "verdict": "b", "blind": False}
    )
    build_pairs([Table(run / "experience")], run / "voted", PairOptions(votes=run / "votes.csv"))
    (voted,) = read_pairs(run / "voted")
    assert voted.chosen[0].text == pair["b"][0]["text"]


def test_ratings_are_saved_and_their_agreement_is_told(run):
    answers = ask_all(run)
    for voter in ("ada", "bob"):
        for rating in (1.0, 5.0, None):
            answer = ask(answers, "decide.record", source="support/experience", voter=voter)
            assert answer["record"]["reward"] is None, "blind"
            answers.decisions["decide.rate"](
                {"source": "support/experience", "voter": voter, "uid": answer["record"]["uid"], "rating": rating}
            )
    summary = ask(answers, "decide.ratings", source="support/experience")
    assert summary["agreement"]["voters"] == {"ada": 2, "bob": 2}
    undone = answers.decisions["decide.unrate"]({"source": "support/experience", "voter": "ada"})
    again = ask(answers, "decide.record", source="support/experience", voter="ada", uid=undone["uid"])
    assert again["record"]["uid"] == undone["uid"]


def test_runs_are_rated_in_the_orders_that_votes_have(run):
    answers = ask_all(run)
    source = "support/experience"
    records = list(Table(run / "experience"))
    by_uid = {exp.eid.uid: exp for exp in records}

    def gap(exp):
        others = [abs(exp.reward - other.reward) for other in records
                  if other.eid.tid == exp.eid.tid and other is not exp and None not in (exp.reward, other.reward)]  # fmt: skip
        return min(others, default=float("inf"))

    def queue(voter, order, number):
        uids = []
        for _ in range(number):
            uids.append(ask(answers, "decide.record", source=source, voter=voter, order=order)["record"]["uid"])
            answers.decisions["decide.rate"]({"source": source, "voter": voter, "uid": uids[-1], "rating": None})
        return uids

    shown = [gap(by_uid[uid]) for uid in queue("ada", "gap", 12)]
    assert shown == sorted(shown)
    assert shown[0] == min(gap(exp) for exp in records if exp.reward is not None)
    assert len(set(queue("ada", "random", 12))) == 12
    best, worst = (pick(records, key=lambda exp: exp.reward or 0) for pick in (max, min))
    middle = next(exp for exp in records if exp.eid.uid not in (best.eid.uid, worst.eid.uid))
    for voter, uid, rating in (
        ("bob", middle.eid.uid, 1),
        ("eve", middle.eid.uid, 5),
        ("bob", best.eid.uid, 5),
        ("bob", worst.eid.uid, 4),
    ):
        answers.decisions["decide.rate"]({"source": source, "voter": voter, "uid": uid, "rating": rating})
    first = ask(answers, "decide.record", source=source, voter="carl", order="disagreement")["record"]["uid"]
    assert first == middle.eid.uid, "two people who differ come first"
    with pytest.raises(PairwrightError, match="disagreement, gap, random"):
        ask(answers, "decide.record", source=source, voter="carl", order="size")


def test_an_excluded_record_is_left_out_of_pairs_and_counted(run):
    answers = ask_all(run)
    uid = next(iter(read_pairs(run / "pairs"))).chosen_eid.uid
    body = {"source": "support/experience", "name": "ada", "uid": uid}
    with pytest.raises(PairwrightError):
        answers.decisions["decide.exclude"]({**body, "reason": ""})
    answers.decisions["decide.exclude"]({**body, "reason": "leaks the answer"})
    (row,) = ask(answers, "decide.exclusions", source="support/experience")["rows"]
    assert (row["uid"], row["reason"]) == (uid, "leaks the answer")
    summary = build_pairs([Table(run / "experience")], run / "without", PairOptions(min_gap=0.1))
    assert uid not in {pair.chosen_eid.uid for pair in read_pairs(run / "without")}
    assert "excluded" in json.dumps(summary["stages"])
    answers.decisions["decide.exclude"]({**body, "is_excluded": False})
    assert ask(answers, "decide.exclusions", source="support/experience")["rows"] == []


def test_a_vote_on_a_turn_is_shown_with_the_record_and_counts_for_credit(run):
    answers = ask_all(run)
    source, uid = "support/experience", next(iter(read_pairs(run / "pairs"))).chosen_eid.uid
    record = ask(answers, "experiences.record", source=source, uid=uid)
    turn = len(record["prompt"])
    body = {"source": source, "voter": "ada", "uid": uid, "turn": turn, "verdict": "failed"}
    for wrong in ({"verdict": "bad"}, {"uid": "unknown"}, {"turn": -1}, {"voter": ""}):
        with pytest.raises(PairwrightError):
            answers.decisions["decide.turn"]({**body, **wrong})
    answers.decisions["decide.turn"](body)
    shown = {one["turn"]: one for one in ask(answers, "experiences.record", source=source, uid=uid)["credit"]}
    assert (shown[turn]["verdict"], shown[turn]["source"]) == ("failed", "votes")
    assert count_side_credit(run / "pairs", CreditConfig())["chosen"]["failed_by"]["votes"] == 1
    answers.decisions["decide.turn"]({**body, "verdict": "skip"})
    assert ask(answers, "experiences.record", source=source, uid=uid)["credit"] == record["credit"]


@pytest.mark.parametrize(
    "body",
    [
        {"voter": "ada", "id": "unknown", "verdict": "a"},
        {"voter": "", "verdict": "a"},
        {"voter": "a\nb", "verdict": "a"},
        {"voter": "ada", "verdict": "both"},
        {"voter": "ada", "verdict": "a", "more": 1},
        {"voter": 3, "verdict": "a"},
    ],
)
def test_a_vote_that_makes_no_sense_is_refused_and_not_written(run, body):
    answers = ask_all(run)
    identity = next(iter(read_pairs(run / "pairs"))).id
    with pytest.raises(PairwrightError):
        answers.decisions["decide.vote"]({"source": SOURCE, "id": identity, **body})
    assert not (run / "votes.csv").exists()


def test_a_record_that_is_not_in_the_table_cannot_be_excluded(run):
    answers = ask_all(run)
    with pytest.raises(PairwrightError, match="no row with uid"):
        answers.decisions["decide.exclude"](
            {"source": "support/experience", "name": "ada", "uid": agent_record("x").eid.uid, "reason": "why"}
        )
