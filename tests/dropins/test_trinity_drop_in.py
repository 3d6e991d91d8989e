"""`pairwright.trinity` beside the real trinity-rft: the same values, bytes and datasets that either reads, and the faults of
theirs that are not ours."""

import inspect
import pickle
import random
import sqlite3

import numpy as np
import pytest

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("trinity.common.experience")

from pairwright import Table, import_traces, loads_trinity  # noqa: E402
from pairwright import trinity as ours  # noqa: E402
from pairwright.errors import CodecError, RecordError  # noqa: E402

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
FIELDS = {
    "single": {"tokens": [1, 2, 3, 4], "prompt_length": 1, "logprobs": [-0.1, -0.2, -0.3], "reward": 0.5, "messages": CHAT},
    "several": {
        "tokens": torch.tensor([1, 2, 3, 4]), "prompt_length": 2, "action_mask": [1, 0], "reward": 1.0, "tools": [{"a": 1}],
        "advantages": torch.tensor([0.5, 0.0], dtype=torch.bfloat16), "returns": [1.0, 2.0], "teacher_logprobs": [-1.0, -2.0],
        "token_level_reward": [0.0, 1.0], "routed_experts": [[[1, 2]], [[3, 4]], [[5, 6]]],
    },
    "preference": {"tokens": [1, 2], "chosen": [3, 4], "rejected": torch.tensor([5]), "reward": 1.0,
                   "chosen_messages": CHAT, "rejected_messages": [CHAT[0], {"role": "assistant", "content": "No"}]},
    "ids": {"tokens": [1, 2], "chosen": [3, 4], "rejected": [5]},
    "ids_of_answers": {"tokens": [1, 2], "chosen": [3, 4], "rejected": [5], "messages": CHAT[:1]},
    "images": {"tokens": [1, 2], "prompt_length": 1, "multi_modal_inputs": {"pixels": [[0.5, 1.0]]}, "truncate_status": "response_truncated"},
}  # fmt: skip
COMMON = {
    "eid": {"batch": 1, "task": "t", "run": 2, "step": 3, "suffix": "abc123"},
    "info": {"w": 2.0},
    "metrics": {"m": 1.0},
}
# Trinity takes an action mask from bytes for several turns, even where the turn was one.
NAMES = [name for name in ours.Experience.__dataclass_fields__ if name not in ("eid", "custom_fields")]


def build(module, name):
    field = module.CustomField("w", "weight", torch.float32)
    return module.Experience(**COMMON, **FIELDS[name], custom_fields=[field])


def assert_same(left, right):
    assert left.eid.to_dict() == right.eid.to_dict()
    for name in NAMES:
        one, two = getattr(left, name), getattr(right, name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == two.dtype, name
            assert torch.equal(one, two), name
        elif name == "multi_modal_inputs" and one:
            assert all(torch.equal(one[key], two[key]) for key in one.keys() | two.keys())
        else:
            assert one == two, name
    assert [vars(item) for item in left.custom_fields] == [vars(item) for item in right.custom_fields]
    assert left.experience_type == right.experience_type


@pytest.mark.parametrize("name", FIELDS)
def test_the_same_arguments_give_the_same_experience(name):
    one, two = build(ours, name), build(theirs, name)
    assert_same(one, two)
    assert one.to_dict() == two.to_dict()
    assert [one.eid.uid, one.eid.tid, one.eid.rid, one.eid.sid] == [two.eid.uid, two.eid.tid, two.eid.rid, two.eid.sid]
    assert (str(one.eid), repr(one.eid)) == (str(two.eid), repr(two.eid))
    one.reward = two.reward = 9.0
    assert one.to_dict()["reward"] == two.to_dict()["reward"] == 9.0


def test_the_arguments_and_the_names_are_theirs():
    one, two = (inspect.signature(module.Experience).parameters for module in (ours, theirs))
    assert {name: item.default for name, item in one.items()} == {name: item.default for name, item in two.items()}
    public = {name for name, value in vars(theirs).items() if getattr(value, "__module__", "") == theirs.__name__}
    assert public <= set(ours.__all__)
    with pytest.raises(TypeError, match="speed"):
        ours.Experience(tokens=[1, 2], speed=1)


@pytest.mark.parametrize("name", FIELDS)
def test_bytes_are_read_by_both(name):
    one = build(ours, name)
    assert_same(theirs.Experience.deserialize(one.serialize()), one)
    assert ours.Experience.deserialize(one.serialize()) == one
    two = ours.Experience.deserialize(build(theirs, name).serialize())
    assert torch.equal(two.tokens, one.tokens)
    assert two.custom_fields == one.custom_fields
    many = ours.Experience.serialize_many([one, one])
    assert [item.reward for item in theirs.Experience.deserialize_many(many)] == [one.reward] * 2
    with pytest.raises(ValueError, match="2 experiences where one was expected"):
        ours.Experience.deserialize(many)


@pytest.mark.parametrize("name", FIELDS)
def test_datasets_are_read_by_both(name):
    pytest.importorskip("datasets")
    one = build(ours, name)
    data = ours.to_hf_datasets([one])
    assert ours.from_hf_datasets(data) == [one], "with dtypes, type and custom fields, which Trinity's own loses"
    (two,) = theirs.from_hf_datasets(data)
    assert torch.equal(two.tokens.to(torch.int64), one.tokens.to(torch.int64))
    plain = theirs.Experience(**COMMON, **{key: value for key, value in FIELDS[name].items() if key != "advantages"})
    (back,) = ours.from_hf_datasets(theirs.to_hf_datasets([plain]))
    assert (back.tokens.tolist(), back.reward, back.info) == (plain.tokens.tolist(), plain.reward, plain.info)
    assert back.eid.uid == plain.eid.uid


def test_rows_with_different_keys_stay_as_they_are_in_a_dataset():
    pytest.importorskip("datasets")
    rows = [ours.Experience(tokens=[1, 2], info={"a": 1}), ours.Experience(tokens=[1, 2, 3], info={"b": {"c": [1]}})]
    assert [row.info for row in ours.from_hf_datasets(ours.to_hf_datasets(rows))] == [{"a": 1}, {"b": {"c": [1]}}]
    rows.insert(1, ours.Experience(tokens=[1, 2], info={}))
    rows[2].info = {"a": "text"}
    with pytest.raises(RecordError, match=r"info of rows 0 and 2: .* one type in all rows"):
        ours.to_hf_datasets(rows)
    rows[2].info = {"a": object()}
    with pytest.raises(RecordError, match=r"row 2 \(///?.*\): info\.a"):
        ours.to_hf_datasets(rows)


def test_columns_have_a_common_type_and_rows_come_back_as_they_were():
    pytest.importorskip("datasets")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Look"}]}]
    rows = [
        ours.Experience(tokens=[1, 2], eid=ours.EID(batch=1, task="t"), reward=1, messages=CHAT),
        ours.Experience(tokens=[1, 2], eid=ours.EID(batch="b", task=2), reward=0.5, messages=parts),
        ours.Experience(tokens=[1, 2], eid=ours.EID(), reward=True),
        ours.Experience(tokens=[1, 2], multi_modal_inputs={"pixels": torch.zeros(0, 3)}),
    ]
    data = ours.to_hf_datasets(rows)
    assert ours.from_hf_datasets(data) == rows
    # What Trinity reads: ids are text, rewards floats, and every content is a list of parts.
    assert [row["batch"] for row in data["eid"]] == ["1", "b", "", ""]
    assert list(data["reward"]) == [1.0, 0.5, 1.0, None]
    assert data["messages"][0][0]["content"] == [{"type": "text", "text": "Hi"}]
    assert [exp.reward for exp in theirs.from_hf_datasets(data)] == [1.0, 0.5, 1.0, None]


def test_experiences_with_nan_are_equal_after_a_round_trip():
    pytest.importorskip("datasets")
    nan = float("nan")
    field = ours.CustomField("w", "weight", torch.bfloat16)
    exp = ours.Experience(
        tokens=[1, 2, 3], reward=nan, logprobs=[nan, 1.0], info={"w": nan, "l": [nan]}, custom_fields=[field]
    )
    assert ours.from_hf_datasets(ours.to_hf_datasets([exp])) == [exp]
    assert ours.Experience.deserialize(exp.serialize()) == exp
    assert exp != ours.Experience(tokens=[1, 2, 3], eid=exp.eid, reward=1.0, logprobs=[nan, 1.0], info=exp.info, custom_fields=[field])  # fmt: skip


def test_a_mask_that_was_set_on_a_single_turn_stays_in_a_dataset():
    pytest.importorskip("datasets")
    exp = ours.Experience(tokens=[1, 2, 3])
    exp.action_mask = torch.tensor([True, False])
    (back,) = ours.from_hf_datasets(ours.to_hf_datasets([exp]))
    assert (back.experience_type, back.action_mask.tolist()) == ("single_turn", [True, False])


def test_batches_and_groups_are_the_same():
    for names in (["single"], ["single", "images"], ["several"]):
        one, two = [build(ours, name) for name in names], [build(theirs, name) for name in names]
        assert torch.equal(ours.gather_token_ids(one, 3, 4, 9), theirs.gather_token_ids(two, 3, 4, 9))
        assert torch.equal(ours.gather_attention_masks(one, 3, 4), theirs.gather_attention_masks(two, 3, 4))
        assert torch.equal(ours.gather_action_masks(one, 4), theirs.gather_action_masks(two, 4))
        assert ours.group_by(one, "task").keys() == theirs.group_by(two, "task").keys()
    one, two = [build(ours, "several")] * 2, [build(theirs, "several")] * 2
    for name in ("advantages", "returns", "teacher_logprobs"):
        expected = theirs.gather_response_attrs(two, name, 5)
        assert torch.equal(ours.gather_response_attrs(one, name, 5), expected)
    split = ours.split_dpo_experience_to_single_turn([build(ours, "preference")])
    for left, right in zip(
        split, theirs.split_dpo_experience_to_single_turn([build(theirs, "preference")]), strict=True
    ):
        right.eid.suffix = left.eid.suffix
        assert_same(left, right)
    with pytest.raises(ValueError, match="Unknown id_type"):
        ours.group_by(one, "day")


def test_values_that_require_a_gradient_are_gathered():
    exps = [ours.Experience(tokens=[1, 2, 3], logprobs=torch.ones(2, requires_grad=True)) for _ in range(2)]
    assert ours.gather_response_attrs(exps, "logprobs", 3).tolist() == [[1.0, 1.0, 0.0]] * 2


def test_a_batch_has_all_that_its_experiences_have():
    batch = ours.Experiences.gather_experiences(
        [build(ours, "several")] * 2, custom_fields=build(ours, "several").custom_fields
    )
    assert (batch.batch_size, batch.prompt_length, batch.custom_fields) == (2, 2, ["weight"])
    assert batch.teacher_logprobs.tolist() == [[-1.0, -2.0]] * 2
    assert batch.returns.tolist() == [[1.0, 2.0]] * 2
    assert batch.weight.tolist() == [2.0, 2.0]
    assert batch.logprobs is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": [1, 2, 3, 4], "logprobs": [0.1] * 4, "action_mask": [1, 0, 1, 0]},
        {"tokens": [1, 2, 3], "logprobs": [0.1] * 3},
        {"tokens": [1, 2, 3], "teacher_logprobs": 1.0},
    ],
)
def test_lengths_that_do_not_fit_are_refused(fields):
    theirs.Experience(**fields)
    with pytest.raises(ours.InvalidExperience, match="one value per token of the response") as caught:
        ours.Experience(**fields)
    assert isinstance(caught.value, AssertionError)
    exp = ours.Experience(tokens=[1, 2, 3])
    exp.returns = torch.zeros(7)
    for use in (exp.serialize, exp.to_record, lambda: ours.gather_response_attrs([exp], "returns", 9)):
        with pytest.raises(ours.InvalidExperience, match="returns"):
            use()


def test_a_payload_never_runs_code(tmp_path):
    class Bad:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    exp = theirs.Experience(tokens=torch.tensor([1, 2]), info={"x": Bad()})
    with pytest.raises(CodecError):
        ours.Experience.deserialize(exp.serialize())
    with pytest.raises(CodecError):
        ours.Experience.deserialize(pickle.dumps(Bad()))
    assert not list(tmp_path.iterdir())
    with pytest.raises(RecordError, match=r"info\.x"):
        ours.Experience(tokens=[1, 2], info={"x": object()}).serialize()


def random_view(rng, length, dtypes):
    """A tensor of this length, often a view of a larger one."""
    dtype = rng.choice(dtypes)
    source = torch.randint(0, 2 if dtype is torch.bool else 100, (3, 2 * length + 2), generator=torch.manual_seed(rng.random() * 1e6)).to(dtype)  # fmt: skip
    shapes = (
        lambda: source[0, :length].clone(),
        lambda: source[1, 1 : 2 * length + 1 : 2],
        lambda: source.t()[:length, 2],
        lambda: source[2, :1].expand(length),
    )
    return rng.choice(shapes)()


def random_experience(rng):
    floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    ids = [torch.int32, torch.int64, torch.int16, torch.uint8]
    prompt, response = rng.randint(1, 5), rng.randint(1, 7)
    fields = {
        "eid": theirs.EID(batch=rng.choice([0, "b"]), task=rng.choice(["t", 3]), run=rng.randrange(4)),
        "reward": rng.choice([None, 1, 0.5, float("nan"), np.float32(0.25), torch.tensor(0.5)]),
        "info": {"w": rng.choice([np.int64(4), "t", None, (1, 2), torch.tensor(1.5), torch.tensor([[1, 2]]), {"n": [1]}])},
        "metrics": {"m": np.float64(rng.random())},
        "custom_fields": [theirs.CustomField("w", "weight", rng.choice(floats))] if rng.random() < 0.5 else None,
        "messages": CHAT if rng.random() < 0.5 else None,
        "multi_modal_inputs": {"px": torch.randn(2, 3).t()} if rng.random() < 0.3 else None,
    }  # fmt: skip
    if rng.random() < 0.25:
        sides = {"chosen": random_view(rng, response, ids), "rejected": random_view(rng, response + 1, ids)}
        return theirs.Experience(tokens=random_view(rng, prompt, ids), **sides, **fields)
    fields |= {"tokens": random_view(rng, prompt + response, ids), "prompt_length": prompt}
    if rng.random() < 0.2:
        fields |= {"truncate_status": "prompt_truncated", "logprobs": random_view(rng, response, floats)}
        return theirs.Experience(**fields)
    for name in ("logprobs", "token_level_reward", "advantages", "returns", "teacher_logprobs"):
        if rng.random() < 0.5:
            fields[name] = random_view(rng, response, floats)
    if rng.random() < 0.5:
        fields["action_mask"] = random_view(rng, response, [torch.bool])
    return theirs.Experience(**fields)


def plain(value):
    """What is left of a value of `info` or `metrics` in plain types."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor | np.generic) else value


@pytest.mark.parametrize("number", range(60))
def test_legacy_pickles_are_read_as_trinity_reads_them(number):
    rng = random.Random(number)
    written = [random_experience(rng) for _ in range(rng.randint(1, 4))]
    payload = pickle.dumps(written if number % 2 else written[0], protocol=rng.randint(2, 5))
    expected = theirs.Experience.deserialize_many(payload)
    read = ours.Experience.deserialize_many(payload)
    for one, two in zip(read, expected, strict=True):
        for name in ("reward", "info", "metrics"):
            # as text, since NaN is not equal to itself
            assert repr(getattr(one, name)) == repr(plain(getattr(two, name)))
            setattr(two, name, getattr(one, name))
        one.reward = two.reward = None
        assert_same(one, two)
    kinds = [record.kind.value.replace("preference", "dpo") for record in loads_trinity(payload)]
    assert kinds == [exp.experience_type for exp in expected]


@pytest.mark.parametrize("name", FIELDS)
def test_pickles_of_our_own_class_are_read(name):
    exp = build(ours, name)
    assert ours.Experience.deserialize(pickle.dumps(exp)) == exp
    assert ours.Experience.deserialize_many(pickle.dumps([exp, exp])) == [exp, exp]


def test_ids_that_only_look_alike_are_not_one_group():
    exps = [
        ours.Experience(tokens=[1, 2], eid=ours.EID(batch=batch, task=task))
        for batch, task in (("1/2", "3"), ("1", "2/3"))
    ]
    with pytest.raises(RecordError, match="1/2/3"):
        ours.group_by(exps, "task")
    assert len({ours.EID().suffix for _ in range(20_000)}) == 20_000


@pytest.mark.parametrize("name", FIELDS)
def test_records_of_ours_and_back(name, tmp_path):
    one = build(ours, name)
    record = one.to_record()
    with Table(tmp_path / "table") as table:
        table.append([record])
    (stored,) = Table(tmp_path / "table").records()
    assert stored == record
    back = ours.Experience.from_record(stored)
    back.messages = one.messages = None  # ours says more of a message
    back.chosen_messages = back.rejected_messages = one.chosen_messages = one.rejected_messages = None
    assert back == one


def test_a_buffer_that_trinity_wrote_is_imported(tmp_path):
    """The tables are made by Trinity's own SQL models."""
    schema = pytest.importorskip("trinity.buffer.schema.sql_schema")
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    meta, blob = schema._create_table_classes("buffer", "experience")
    engine = create_engine(f"sqlite:///{tmp_path / 'buffer.db'}")
    schema.Base.metadata.create_all(engine)
    exps = [build(theirs, "single"), build(theirs, "several")]
    with Session(engine) as session:
        for number, exp in enumerate(exps, start=1):
            exp.info["model_version"], exp.eid.run = 4, number
            row = meta.from_experience(exp)
            row.id = number
            session.add_all([row, blob(id=number, experience_bytes=exp.serialize())])
        session.commit()
    engine.dispose()
    assert sqlite3.connect(tmp_path / "buffer.db").execute("select count(*) from buffer_blob").fetchone() == (2,)
    table = import_traces(str(tmp_path / "buffer.db"), tmp_path / "table")
    records = sorted(table.records(), key=lambda record: record.eid.run)
    assert [(r.reward, r.model_version, r.eid.task) for r in records] == [(0.5, 4, "t"), (1.0, 4, "t")]
    assert records[1].teacher_logprobs.tolist() == [-1.0, -2.0]
