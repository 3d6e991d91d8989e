"""Records: valid when they exist, with an error that names field, value and expectation; equal by value."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairwright import EID, CustomField, ErrorSite, Experience, Kind, Message, Pair, RecordError, Side, ToolCall
from pairwright.records.json_text import check_json, from_json, to_json
from pairwright.records.messages import canonical_messages, prompt_hash
from strategies import eids, experiences, json_values

USER = Message("user", "hi")
ANSWER = Message("assistant", "hello")


def made(**fields):
    return Experience(**({"kind": "single_turn", "prompt": [USER], "completion": [ANSWER]} | fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "dpo"}, "kind: got 'dpo', expected one of single_turn, multi_turn, preference"),
        ({"eid": "x"}, "eid: got 'x', expected an EID"),
        ({"prompt": ["hi"]}, "prompt: got 'hi', expected a Message"),
        ({"prompt": "hi"}, "prompt: got 'hi', expected a tuple of Message"),
        ({"reward": "1"}, "reward: got '1', expected a number"),
        ({"truncate_status": "cut"}, "truncate_status: got 'cut'"),
        ({"info": {"a": (1, 2)}}, "info.a: got (1, 2), expected a JSON value"),
        ({"info": {"a": {1: 2}}}, "info.a key: got 1, expected a string"),
        ({"info": {"a": b"x"}}, "info.a: got b'x', expected a JSON value"),
        ({"info": [1]}, "info: got [1], expected a dict"),
        ({"tools": ["f"]}, "tools: got 'f', expected a dict"),
        ({"response_text": "\ud800"}, "response_text: got '\\ud800', expected text that is valid Unicode"),
        ({"tokens": [1, -2], "prompt_length": 1}, "tokens: got array([ 1, -2]"),
        ({"tokens": [1, 2**31], "prompt_length": 1}, "numbers that int32 holds exactly"),
        ({"tokens": np.array([2**31]), "prompt_length": 0}, "token ids from 0 to 2**31 - 1"),
        ({"tokens": [1.5], "prompt_length": 0}, "numbers that int32 holds exactly"),
        ({"tokens": [[1]], "prompt_length": 0}, "a one-dimensional array of integers"),
        ({"tokens": np.array(["a"]), "prompt_length": 0}, "tokens.dtype: got 'str"),
        ({"tokens": [1, 2]}, "prompt_length: got None, expected an int from 0 to 2"),
        ({"tokens": [1, 2], "prompt_length": 3}, "prompt_length: got 3, expected an int from 0 to 2"),
        ({"prompt_length": 3}, "prompt_length: got 3, expected None, since there are no tokens"),
        ({"logprobs": [0.5]}, "logprobs: got array([0.5]"),
        ({"tokens": [1, 2, 3], "prompt_length": 1, "logprobs": [0.5]}, "logprobs.shape: got (1,), expected (2,)"),
        ({"tokens": [1, 2], "prompt_length": 1, "logprobs": np.array([1])}, "logprobs.dtype: got 'int64'"),
        (
            {"tokens": [1, 2], "prompt_length": 1, "action_mask": np.array([2])},
            "expected booleans, or integers that are 0",
        ),
        ({"kind": "multi_turn", "tokens": [1, 2], "prompt_length": 1}, "action_mask: got None, expected a mask"),
        ({"kind": "preference", "completion": ()}, "chosen: got None, expected a Side"),
        ({"chosen": Side()}, "kind: got 'single_turn', expected 'preference'"),
        ({"errors": [ErrorSite(2, "tool_error")]}, "errors.index: got 2, expected the position of one of 2 messages"),
        ({"custom_fields": [CustomField("a", "b", "float32")]}, "custom_fields: got 'a', expected a key of info"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_was_expected(fields, named):
    with pytest.raises(RecordError) as caught:
        made(**fields)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Message("", "x"),
        lambda: Message("user", 5),
        lambda: Message("user", ["a"]),
        lambda: Message("user", [{"a": float}]),
        lambda: Message("user", "x", name=3),
        lambda: Message("user", "x", tool_calls=["f"]),
        lambda: Message("user", "x", extra={"a": {1, 2}}),
        lambda: Message("user", "x", extra={"a": float("nan")}),
        lambda: ToolCall("f", {"a": 1}),
        lambda: EID(run=-1),
        lambda: EID(batch=1.5),
        lambda: EID(suffix=""),
        lambda: EID.parse("[1,2]"),
        lambda: CustomField("a", "b", "complex64"),
        lambda: ErrorSite(-1, "x"),
    ],
)
def test_the_smaller_records_are_checked_too(build):
    with pytest.raises(RecordError):
        build()


def pair(**fields):
    given_fields = {
        "id": "p", "prompt": [USER], "chosen": [ANSWER], "rejected": [Message("assistant", "go away")],
        "chosen_reward": 1.0, "rejected_reward": 0.0, "chosen_eid": EID(), "rejected_eid": EID(), "gap": 1.0,
        "strategy": "all",
    }  # fmt: skip
    return Pair(**(given_fields | fields))


def test_a_pair_needs_two_sides_and_the_better_one_first():
    assert pair().weight == 1.0
    for bad in ({"chosen": []}, {"rejected_reward": 1.0}, {"chosen_reward": float("nan")}, {"weight": -1.0}):
        with pytest.raises(RecordError):
            pair(**bad)


def test_the_kind_is_stored_not_inferred():
    single = made(tokens=[1, 2], prompt_length=1, action_mask=[True])
    assert single.kind is Kind.SINGLE_TURN


def test_a_reward_that_is_not_finite_is_kept_and_unscored():
    assert made(reward=1).reward == 1.0
    assert made(reward=True).is_scored
    for reward in (None, float("nan"), float("inf")):
        assert not made(reward=reward).is_scored


def test_lists_get_the_default_dtypes_and_arrays_keep_theirs():
    exp = made(tokens=[1, 2, 3], prompt_length=1, logprobs=[-0.5, -0.25], action_mask=[1, 0])
    assert (exp.tokens.dtype, exp.logprobs.dtype, exp.action_mask.dtype) == (np.int32, np.float32, np.bool_)
    exp = made(tokens=np.array([1, 2], np.int64), prompt_length=1, logprobs=np.array([-0.5], np.float16))
    assert (exp.tokens.dtype, exp.logprobs.dtype) == (np.int64, np.float16)


def test_a_big_endian_array_becomes_native_with_the_same_values():
    exp = made(tokens=np.array([1, 2], ">i4"), prompt_length=1)
    assert exp.tokens.tolist() == [1, 2]
    assert exp == made(eid=exp.eid, tokens=np.array([1, 2], np.int32), prompt_length=1)


def test_torch_tensors_are_accepted_and_returned():
    torch = pytest.importorskip("torch")
    logprobs = torch.tensor([-0.5, 3.0e38], dtype=torch.bfloat16)
    exp = made(tokens=torch.tensor([1, 2, 3]), prompt_length=1, logprobs=logprobs)
    assert exp.torch("tokens").dtype == torch.int64
    assert torch.equal(exp.torch("logprobs"), logprobs)
    assert exp.torch("logprobs").dtype == torch.bfloat16
    assert exp.torch("returns") is None


@given(eids, eids)
def test_ids_give_equal_keys_only_if_their_parts_are_equal(left, right):
    assert EID.parse(left.uid) == left
    assert (left.tid == right.tid) == ((left.batch, left.task) == (right.batch, right.task))
    assert (left.sid == right.sid) == ((left.batch, left.task, left.step) == (right.batch, right.task, right.step))
    assert left.rid != left.sid


def test_ids_that_collide_when_joined_with_a_slash_do_not_here():
    assert EID("1/2", "3").tid != EID("1", "2/3").tid
    assert EID(1, 2).tid != EID("1", 2).tid


def test_twenty_thousand_suffixes_differ():
    suffixes = {EID().suffix for _ in range(20_000)}
    assert len(suffixes) == 20_000
    assert min(map(len, suffixes)) * 4 >= 96


def test_equality_sees_every_field():
    exp = made(eid=EID("b", "t", 0, 0, "s"), tokens=[1, 2, 3], prompt_length=1, logprobs=[-0.0, float("nan")])
    same = made(eid=EID("b", "t", 0, 0, "s"), tokens=[1, 2, 3], prompt_length=1, logprobs=[-0.0, float("nan")])
    assert exp == same
    assert hash(exp) == hash(same)
    assert exp != made(eid=exp.eid, tokens=[1, 2, 3], prompt_length=1, logprobs=[0.0, float("nan")])
    assert exp != made(eid=exp.eid, tokens=np.array([1, 2, 3]), prompt_length=1, logprobs=exp.logprobs)
    assert exp != "exp"
    assert made(eid=exp.eid, info={"a": 1}) != made(eid=exp.eid, info={"a": True})


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(experiences())
def test_an_experience_equals_itself_and_no_other(exp):
    assert exp == exp
    assert exp != made()


@given(st.dictionaries(st.text(max_size=3) | st.just("$float"), json_values, max_size=3))
def test_json_text_gives_back_the_same_value(value):
    check_json(value, "value")
    assert made(info=from_json(to_json(value)), eid=EID(suffix="s")) == made(info=value, eid=EID(suffix="s"))


def test_json_that_is_nested_too_deep_is_refused_by_name():
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(RecordError, match="at most 200 levels"):
        made(info={"deep": deep})


def test_records_import_without_torch_ray_polars_or_pyarrow():
    code = "import sys, pairwright; pairwright.Experience; print([m for m in ('torch','ray','polars','pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_assistant_text_in_a_completion_is_generated():
    prompt, answer = Message("text", "The sea is"), Message("text", " wet.")
    experience = Experience(kind="single_turn", prompt=[prompt], completion=[answer])
    assert [message.is_generated for message in experience.messages] == [False, True]
    side = Side(messages=[answer, Message("text", " Or not.", generated=False)])
    assert [message.is_generated for message in side.messages] == [True, False]
    preference = Experience(kind="preference", prompt=[prompt], chosen=side, rejected=Side(messages=[answer]))
    assert preference.rejected.messages[0].is_generated
    assert prompt_hash(experience.prompt) == prompt_hash([prompt])
    assert canonical_messages(experience.completion) == canonical_messages([answer])
    assert prompt_hash([prompt]) != prompt_hash([Message("user", "The sea is")])


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "single_turn", "prompt": [Message("text", "a")], "completion": [Message("assistant", "b")]},
        {"kind": "single_turn", "prompt": [Message("user", "a")], "completion": [Message("text", "b")]},
        {"kind": "multi_turn", "prompt": [Message("text", "a"), Message("user", "b")]},
        {
            "kind": "preference", "prompt": [Message("text", "a")], "chosen": Side(messages=[Message("text", "b")]),
            "rejected": Side(messages=[Message("assistant", "c")]),
        },
    ],
)  # fmt: skip
def test_a_conversation_is_all_text_or_all_chat(fields):
    with pytest.raises(RecordError, match=r"message.role: got '(user|assistant)', expected 'text'"):
        Experience(**fields)


def test_chat_dicts_become_messages():
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": {"q": "bike"}}}
    exp = Experience(
        kind="multi_turn",
        prompt=[{"role": "user", "content": "Which bikes?"}],
        completion=({"role": "assistant", "content": None, "tool_calls": [call]}, Message("assistant", "None.")),
    )
    assert exp.prompt == (Message("user", "Which bikes?"),)
    assert exp.completion[0].tool_calls == (ToolCall("search", '{"q":"bike"}', id="c1"),)
    with pytest.raises(RecordError, match=r"a chat message: message\.role: expected text"):
        Experience(kind="single_turn", prompt=[{"content": "no role"}])
