"""Exports of tools and datasets with their own names for requests, spans or trees of answers."""

import json
from pathlib import Path

import pytest

from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file

FIXTURES = Path(__file__).parent / "fixtures"


def records(name, options=Options()):  # noqa: B008
    path = FIXTURES / name if isinstance(name, str) else name
    layout = detect(path)
    assert isinstance(layout, Layout), layout.reason
    found = list(read_file(path, layout, options))
    return layout.format, [one for one in found if not isinstance(one, Rejected)]


def talk(exp):
    return [message.text for message in exp.prompt], [message.text for message in exp.completion]


def test_gateways_keep_the_system_prompt_the_scores_and_the_model():
    name, (helicone, bedrock, converse) = records("gateway_logs.jsonl")
    assert name == "api-log"
    assert talk(helicone) == (["You mend nets.", "How wide is a mesh?"], ["Two fingers."])
    assert (helicone.reward, helicone.reward_components, helicone.model_version) == (1.0, {"quality": 1.0}, "m-7")
    assert talk(bedrock) == (["You mend nets.", "And the rope?"], ["Hemp."])
    assert (bedrock.reward, bedrock.model_version) == (None, "m-8")
    assert talk(converse) == (["You mend nets.", "The knot?"], ["A sheet bend."])


def test_spans_of_braintrust_form_a_trace_with_the_scores_of_its_root():
    _, (exp,) = records("braintrust.jsonl")
    assert talk(exp) == (["You keep a lock.", "Is the lock open?"], ["It is."])
    assert (exp.eid.task, exp.reward, exp.info["expected"]) == ("lock-1", 1.0, "yes")


def test_a_score_of_opik_of_which_less_is_better_is_no_reward_by_itself():
    _, (correct, hallucinated) = records("opik.jsonl")
    assert (correct.reward, hallucinated.reward) == (0.5, None)
    assert hallucinated.reward_components == {"Hallucination": 1.0}
    _, (_, named) = records("opik.jsonl", Options(reward="Hallucination"))
    assert named.reward == 1.0


def test_answers_in_a_tree_of_oasst_are_compared_by_rank():
    _, (best, below, worse) = records("oasst.jsonl")
    assert talk(best) == (["Name a wind."], ["Mistral."])
    assert (best.eid.tid, best.reward, worse.reward) == (worse.eid.tid, 0.0, -1.0)
    assert talk(below) == (["Name a wind.", "Mistral.", "Another?"], ["Bora."])
    assert [message.is_generated for message in below.prompt] == [False] * 3
    assert below.reward is None


def test_steps_of_prm800k_have_their_ratings_and_the_steps_before_them():
    _, steps = records("prm800k.jsonl")
    assert [(exp.eid.step, exp.reward) for exp in steps] == [(0, 1.0), (0, -1.0), (1, 1.0)]
    assert talk(steps[-1])[1] == ["3 * 4 = 12.\n2 + 12 = 14."]


def test_cases_of_deepeval_have_the_scores_of_their_metrics():
    _, (good, bad) = records("deepeval.json")
    assert (talk(good), good.reward, good.info["expectedOutput"]) == ((["Which tide is it?"], ["Ebb."]), 0.9, "Ebb")
    assert (bad.reward, bad.reward_components) == (None, {"Answer Relevancy": 0.8, "Bias": 0.1})


def test_rows_of_xlam_are_calls_with_schemas():
    _, (exp,) = records("xlam.jsonl")
    assert [(call.name, call.arguments) for call in exp.completion[0].tool_calls] == [("depth", '{"place":"harbour"}')]
    assert exp.tools[0]["function"]["parameters"]["properties"]["place"]["type"] == "string"
    assert (exp.reward, exp.errors, exp.metrics) == (None, (), {"unanswered_calls": 1})


def test_a_snapshot_of_a_graph_is_its_messages(tmp_path):
    messages = [{"type": "human", "content": "Q?", "id": "1"}, {"type": "ai", "content": "A", "id": "2"}]
    snapshot = {"values": {"messages": messages}, "next": [], "config": {"configurable": {"thread_id": "t"}}}
    (tmp_path / "states.jsonl").write_text(json.dumps(snapshot) + "\n")
    name, (exp,) = records(tmp_path / "states.jsonl")
    assert (name, talk(exp)) == ("langchain", (["Q?"], ["A"]))


SETS = {
    "bedrock_invocation_log": 3,
    "braintrust_export": 3,
    "deepeval_testrun": 3,
    "helicone_export": 3,
    "langgraph_stream_values": 3,
    "oasst1_trees": 6,
    "opik_traces": 3,
    "prm800k": 6,
}


@pytest.mark.parametrize("name", SETS)
def test_shared_sets_are_read_without_an_option(name):
    path = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "repro3" / "sets" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("shared data are not there")
    _, found = records(path)
    assert len(found) == SETS[name]
    assert any("GOOD-0" in message.text for message in found[0].completion)
