"""Grouping, and splitting a preference with the link kept."""

import numpy as np
import pytest

from pairwright import EID, Experience, Message, RecordError, Side, group_by, split_preference

PROMPT = (Message("user", "2+2?"),)


def preference(**fields):
    return Experience(
        eid=EID("b", "t", 1, 2, "s"),
        kind="preference",
        prompt=PROMPT,
        tokens=[5, 6],
        chosen=Side(messages=[Message("assistant", "4")], reward=1.0, tokens=[7, 8], logprobs=[-0.1, -0.2]),
        rejected=Side(messages=[Message("assistant", "5")], reward=0.0, tokens=[9], action_mask=[False]),
        info={"source": "x"},
        **fields,
    )


def test_groups_are_by_task_run_and_step():
    exps = [Experience(eid=EID("b", task, run, step), kind="single_turn")
            for task in ("x", "y") for run in (0, 1) for step in (0, 1)]  # fmt: skip
    assert [len(group) for group in group_by(exps, "task").values()] == [4, 4]
    assert [len(group) for group in group_by(exps, "run").values()] == [2, 2, 2, 2]
    assert [[exp.eid.run for exp in group] for group in group_by(exps, "step").values()] == [[0, 1]] * 4
    with pytest.raises(RecordError, match="'task', 'run' or 'step'"):
        group_by(exps, "epoch")


def test_a_split_preference_is_two_whole_sequences_with_their_own_mask_logprobs_and_reward():
    chosen, rejected = split_preference(preference())
    assert (chosen.tokens.tolist(), chosen.prompt_length, chosen.reward) == ([5, 6, 7, 8], 2, 1.0)
    assert np.allclose(chosen.logprobs, [-0.1, -0.2])
    assert chosen.action_mask.tolist() == [True, True]
    assert (rejected.tokens.tolist(), rejected.action_mask.tolist(), rejected.reward) == ([5, 6, 9], [False], 0.0)
    assert rejected.logprobs is None
    assert (chosen.completion[0].content, rejected.completion[0].content) == ("4", "5")


def test_the_link_to_the_preference_is_kept_and_ids_stay_apart():
    chosen, rejected = split_preference(preference())
    assert (chosen.side_of.side, rejected.side_of.side) == ("chosen", "rejected")
    assert chosen.side_of.preference == rejected.side_of.preference == preference().eid
    assert chosen.eid.sid == rejected.eid.sid == preference().eid.sid
    assert chosen.eid != rejected.eid


def test_only_a_preference_can_be_split():
    with pytest.raises(RecordError, match="only a preference"):
        split_preference(Experience(kind="single_turn"))


def test_token_ids_are_on_the_prompt_and_both_sides_or_on_none():
    with pytest.raises(RecordError, match="tokens on the prompt and both sides"):
        Experience(kind="preference", tokens=[1], chosen=Side(tokens=[1]), rejected=Side())
