"""Trinity's document of its experiences: every name, argument, default and error of it, on `pairwright.trinity`."""

import inspect
import pickle
from dataclasses import FrozenInstanceError, fields

import pytest

torch = pytest.importorskip("torch")

from pairwright.trinity import (  # noqa: E402
    EID,
    CustomField,
    Experience,
    from_hf_datasets,
    gather_action_masks,
    gather_attention_masks,
    gather_response_attrs,
    gather_token_ids,
    group_by,
    split_dpo_experience_to_single_turn,
    to_hf_datasets,
)

# The arguments of Experience with their defaults; `tokens` has none, and all are keywords.
ARGUMENTS = {
    "eid": None, "logprobs": None, "reward": None, "token_level_reward": None, "advantages": None, "returns": None,
    "truncate_status": None, "info": None, "metrics": None, "prompt_length": 1, "response_text": None,
    "prompt_text": None, "action_mask": None, "messages": None, "tools": None, "chosen": None, "rejected": None,
    "chosen_messages": None, "rejected_messages": None, "multi_modal_inputs": None, "teacher_logprobs": None,
    "custom_fields": None,
}  # fmt: skip
DTYPES = {
    "logprobs": torch.float32, "token_level_reward": torch.float32, "advantages": torch.float32,
    "returns": torch.float32, "action_mask": torch.bool, "teacher_logprobs": torch.float32,
}  # fmt: skip
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]


def test_an_id_has_its_fields_defaults_and_names():
    empty, other = EID(), EID()
    assert (empty.batch, empty.task, empty.run, empty.step) == ("", "", 0, 0)
    assert int(empty.suffix, 16) >= 0
    assert empty.suffix != other.suffix
    eid = EID(batch=1, task="t", run=2, step=3, suffix="abc")
    assert (eid.uid, eid.sid, eid.rid, eid.tid) == ("1/t/2/3/abc", "1/t/3", "1/t/2", "1/t")
    assert (str(eid), repr(eid)) == (eid.uid, "EID(batch=1, task=t, run=2, step=3, uuid=abc)")
    assert eid.to_dict() == {"batch": 1, "task": "t", "run": 2, "step": 3, "suffix": "abc"}


def test_a_custom_field_is_frozen():
    field = CustomField(source_field="w", destination_field="weight", data_type=torch.float32)
    with pytest.raises(FrozenInstanceError):
        field.source_field = "v"


def test_an_experience_has_the_arguments_and_defaults():
    parameters = inspect.signature(Experience).parameters
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["tokens"].default is inspect.Parameter.empty
    assert {name: parameters[name].default for name in ARGUMENTS} == ARGUMENTS
    assert {"tokens", *ARGUMENTS} <= {field.name for field in fields(Experience)}


def test_lists_become_tensors_in_the_dtype_of_their_field():
    over_response = {name: [1] * 2 for name in DTYPES}
    exp = Experience(tokens=[5, 6, 7], **over_response, eid={"task": "t"}, multi_modal_inputs={"px": [1.5]})
    assert exp.tokens.dtype is torch.int32
    assert {name: getattr(exp, name).dtype for name in DTYPES} == DTYPES
    assert (exp.eid.task, exp.multi_modal_inputs["px"].tolist()) == ("t", [1.5])
    assert (exp.info, exp.metrics, exp.custom_fields) == ({}, {}, [])
    sides = Experience(tokens=[1], chosen=[2], rejected=[3, 4])
    assert (sides.chosen.dtype, sides.rejected.dtype) == (torch.int32, torch.int32)
    tensor = torch.tensor([5, 6, 7])
    assert Experience(tokens=tensor).tokens is tensor


def test_the_type_follows_from_the_arguments():
    single = Experience(tokens=[1, 2, 3], prompt_length=1)
    assert (single.experience_type, single.action_mask.tolist()) == ("single_turn", [True, True])
    several = Experience(tokens=[1, 2, 3], prompt_length=1, action_mask=[1, 0], chosen=[1], rejected=[2])
    assert several.experience_type == "multi_turn"
    preference = Experience(tokens=[1, 2, 3], chosen=[4], rejected=[5])
    assert (preference.experience_type, preference.prompt_length) == ("dpo", 3)
    truncated = Experience(tokens=[1, 2], prompt_length=2, truncate_status="prompt_truncated", logprobs=[0.1])
    assert truncated.action_mask.tolist() == [False]
    for wrong in ({"tokens": [1, 2], "prompt_length": 0}, {"tokens": [1, 2], "prompt_length": 2}):
        with pytest.raises(AssertionError):
            Experience(**wrong)


def experiences():
    field = CustomField("w", "weight", torch.bfloat16)
    common = {"reward": 0.5, "info": {"w": 1.0}, "metrics": {"m": 2.0}, "custom_fields": [field]}
    return [
        Experience(tokens=[1, 2, 3], logprobs=[-1.0, -2.0], messages=CHAT, tools=[{"name": "f"}], **common),
        Experience(tokens=[1, 2, 3], action_mask=[1, 0], returns=torch.ones(2, dtype=torch.float16), **common),
        Experience(tokens=[1, 2], chosen=[3], rejected=[4], chosen_messages=CHAT, rejected_messages=CHAT[:1]),
        Experience(tokens=[1, 2], multi_modal_inputs={"px": torch.ones(2, 2)}, prompt_text="a", response_text="b"),
    ]


def test_bytes_have_the_magic_and_the_version_and_come_back():
    exps = experiences()
    payload = Experience.serialize_many(exps)
    assert payload[:5] == b"TRXP\x01"
    assert Experience.deserialize_many(payload) == exps
    assert Experience.deserialize(exps[0].serialize()) == exps[0]
    for wrong in (payload, b"TRXP\x02" + payload[5:]):  # several experiences; another version
        with pytest.raises(ValueError, match="expected"):
            Experience.deserialize(wrong)


def test_older_payloads_are_pickles_of_one_experience_or_a_list():
    theirs = pytest.importorskip("trinity.common.experience")
    written = [theirs.Experience(tokens=[1, 2, 3], reward=0.5, eid=EID(task="t").to_dict()) for _ in range(2)]
    for payload, number in ((pickle.dumps(written[0]), 1), (pickle.dumps(written), 2)):
        read = Experience.deserialize_many(payload)
        assert [(exp.tokens.tolist(), exp.reward, exp.eid.task) for exp in read] == [([1, 2, 3], 0.5, "t")] * number


def test_a_dict_has_what_is_set():
    exp = experiences()[0]
    assert exp.to_dict() == {
        "eid": exp.eid.to_dict(), "type": "single_turn", "prompt_length": 1, "response_length": 2, "info": {"w": 1.0},
        "metrics": {"m": 2.0}, "messages": CHAT, "tools": [{"name": "f"}], "reward": 0.5,
    }  # fmt: skip
    last = experiences()[3].to_dict()
    assert (last["prompt_text"], last["response_text"], "reward" in last) == ("a", "b", False)


def test_a_preference_is_split_into_two_turns():
    exp = experiences()[2]
    exp.eid, exp.reward = EID(batch=1, task=2, run=3, step=4), 1.0
    chosen, rejected = split_dpo_experience_to_single_turn([exp])
    assert (chosen.tokens.tolist(), rejected.tokens.tolist(), chosen.prompt_length) == ([1, 2, 3], [1, 2, 4], 2)
    assert (chosen.messages, rejected.messages, chosen.reward) == (CHAT, CHAT[:1], 1.0)
    assert chosen.eid.rid == rejected.eid.rid == "1/2/3"
    assert chosen.eid.suffix != rejected.eid.suffix


def test_batches_are_padded_on_both_sides():
    exps = [
        Experience(tokens=[1, 2, 3], prompt_length=1),
        Experience(tokens=[4, 5, 6], prompt_length=2, logprobs=[-1.0]),
    ]
    exps[0].logprobs = torch.tensor([-2.0, -3.0])
    assert gather_token_ids(exps, max_prompt_length=2, max_response_length=2, pad_token_id=9).tolist() == [
        [9, 1, 2, 3],
        [4, 5, 6, 9],
    ]
    assert gather_attention_masks(exps, max_prompt_length=2, max_response_length=2).tolist() == [
        [False, True, True, True],
        [True, True, True, False],
    ]
    assert gather_action_masks(exps, max_response_length=3).tolist() == [[True, True, False], [True, False, False]]
    gathered = gather_response_attrs(exps, "logprobs", max_response_length=2, pad_value=7)
    assert gathered.tolist() == [[-2.0, -3.0], [-1.0, 7.0]]


def test_experiences_are_grouped_by_task_run_and_step():
    exps = [
        Experience(tokens=[1, 2], eid=EID(batch=0, task=1, run=run, step=step)) for run in (0, 1) for step in (0, 1)
    ]
    assert {key: len(group) for key, group in group_by(exps, "task").items()} == {"0/1": 4}
    assert list(group_by(exps, id_type="run")) == ["0/1/0", "0/1/1"]
    assert list(group_by(exps, "step")) == ["0/1/0", "0/1/1"]
    with pytest.raises(ValueError, match="Unknown id_type: day"):
        group_by(exps, "day")


def test_datasets_keep_all_fields():
    pytest.importorskip("datasets")
    exps = experiences()
    assert from_hf_datasets(to_hf_datasets(exps)) == exps
