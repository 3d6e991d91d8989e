"""Trajectories are compared from their divergence point, and only if the model generated the difference."""

from made_tables import built, dropped, rewards_of

from pairwright import EID, Experience, Message, ToolCall
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.funnel import Reason
from pairwright.pairs.pair_table import pair_id

SYSTEM, ASK = Message("system", "You rent boats."), Message("user", "A boat, please.")


def call(identity, day):
    return Message("assistant", None, tool_calls=(ToolCall("rent", day, id=identity),))


def result(identity, text):
    return Message("tool", text, tool_call_id=identity)


def run_of(number, reward, *completion, prompt=(SYSTEM, ASK), **fields):
    return Experience(
        eid=EID("b", "t", number, 0, "s"),
        kind="multi_turn",
        prompt=prompt,
        completion=completion,
        reward=reward,
        **fields,
    )


def say(text):
    return Message("assistant", text)


def test_the_shared_prefix_is_the_prompt_whatever_the_call_ids_are(tmp_path):
    good = run_of(
        0, 1.0, call("x1", '{"day": "Friday", "n": 1}'), result("x1", "ok"), say("Done."), Message("user", "Thanks")
    )
    bad = run_of(
        1,
        0.0,
        call("y9", '{"n":1,"day":"Friday"}'),
        result("y9", "ok"),
        say("Sorry."),
        Message("user", "Why?"),
        say("No."),
    )
    (pair,), _ = built(tmp_path, [good, bad], strategy="divergence")
    assert pair.prompt == (*good.prompt, *good.completion[:2])
    assert (pair.chosen, pair.rejected) == (good.completion[2:], bad.completion[2:])
    assert (rewards_of([pair]), pair.info) == ([(1.0, 0.0)], {"divergence": 4})
    assert pair.id == pair_id(pair.prompt, pair.tools, pair.chosen, pair.rejected)


def test_a_difference_outside_of_generated_turns_gives_no_pair(tmp_path):
    good = run_of(0, 1.0, call("a", "{}"), result("a", "one boat"), say("Done."))
    bad = run_of(1, 0.0, call("a", "{}"), result("a", "no boat"), say("Sorry."))
    pairs, summary = built(tmp_path / "a", [good, bad], strategy="divergence")
    assert (pairs, dropped(summary)) == ([], {Reason.ENVIRONMENT: 1})
    assert "users and tools that answer alike" in summary["hint"]


def test_an_assistant_turn_of_the_prompt_is_not_generated_by_the_run(tmp_path):
    runs = [run_of(number, float(number), say("end"), prompt=(ASK, say(text))) for number, text in enumerate("ab")]
    assert dropped(built(tmp_path, runs, strategy="divergence")[1]) == {Reason.ENVIRONMENT: 1}


def test_a_run_that_is_the_beginning_of_another_gives_no_pair(tmp_path):
    runs = [run_of(0, 1.0, say("a"), say("b")), run_of(1, 0.0, say("a"))]
    assert dropped(built(tmp_path, runs, strategy="divergence")[1]) == {Reason.PREFIX: 1}


def test_runs_with_different_tools_have_nothing_in_common(tmp_path):
    runs = [run_of(0, 1.0, say("a"), tools=({"name": "x"},)), run_of(1, 0.0, say("b"))]
    assert dropped(built(tmp_path, runs, strategy="divergence")[1]) == {Reason.DIFFERENT_PROMPTS: 1}


def test_equal_runs_with_different_rewards_are_identical(tmp_path):
    runs = [run_of(0, 1.0, say("a")), run_of(1, 0.0, say("a"))]
    pairs, summary = built(tmp_path, runs, strategy="divergence")
    assert (pairs, dropped(summary)) == ([], {Reason.IDENTICAL: 1})


def test_prompts_of_one_task_stay_on_one_side_of_the_split(tmp_path):
    runs = []
    for task in range(12):
        for number, words in enumerate((("a", "b"), ("a", "c"), ("d", "e"))):
            runs.append(Experience(
                eid=EID("b", task, number, 0, "s"), kind="multi_turn", prompt=(Message("user", f"task {task}"),),
                completion=tuple(map(say, words)), reward=float(number),
            ))  # fmt: skip
    pairs, _ = built(tmp_path, runs, strategy="divergence", validation=0.4)
    tasks = [{pair.chosen_eid.task for pair in pairs if pair.split == split} for split in ("train", "validation")]
    assert all(tasks)
    assert not tasks[0] & tasks[1]


def test_real_tau_bench_runs_part_at_the_simulated_user(traces, tmp_path):
    from pairwright.store.importing import import_files
    from pairwright.store.table import Table

    table = Table(tmp_path / "experience")
    import_files([str(traces / "tau_bench")], table)
    summary = build_pairs([table], tmp_path / "pairs", PairOptions(strategy="divergence"))
    assert [stage["in"] for stage in summary["stages"]] == [48, 12, 36]
    assert dropped(summary) == {Reason.TIED: 18, Reason.ENVIRONMENT: 18}


def test_real_gym_rollouts_give_pairs_with_their_tool_calls(traces, tmp_path):
    from pairwright.store.importing import import_files
    from pairwright.store.table import Table

    table = Table(tmp_path / "experience")
    import_files([str(traces / "nemo_gym")], table)
    # one group has rewards 1.0, 0.9999999999999998 and a lower one: the first two tie
    for strategy, count in (("all", 2), ("best-worst", 1), ("divergence", 2)):
        summary = build_pairs([table], tmp_path / strategy, PairOptions(strategy=strategy))
        assert (summary["pairs"], summary["stages"][0]["in"]) == (count, 30)
        assert dropped(summary)[Reason.SINGLE] == 22
