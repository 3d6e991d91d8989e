"""Trinity's bytes: read exactly, and never obeyed."""

import json
import os
import pickle
import pickletools
import struct
import sys

import numpy as np
import pytest
from safetensors.numpy import save

from pairwright.errors import CodecError, CorruptBytes, ForeignBytes, RecordError, TruncatedBytes, UnsafeBytes
from pairwright.records.experience import EID, CustomField, Kind
from pairwright.records.messages import Message
from pairwright.sources.rollouts.trinity import loads_trinity
from pairwright.store.importing import import_files
from pairwright.store.table import Table

EID_FIELDS = {"batch": 1, "task": "t", "run": 2, "step": 3, "suffix": "abc123"}
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]


def trxp(items, tensors, version=1, **metadata):
    meta = pickle.dumps({"version": 1, "num_items": len(items), "items": items, **metadata})
    return with_header(meta, save(tensors), version)


def with_header(meta, tensors, version=1):
    return b"TRXP" + struct.pack("<BQQ", version, len(meta), len(tensors)) + meta + tensors


def int32(*values):
    return np.array(values, dtype=np.int32)


def test_a_multi_turn_experience_is_read_with_every_field():
    item = {
        "eid": EID_FIELDS, "reward": 0.5, "truncate_status": "response_truncated", "info": {"w": 2.0, "t": (1, 2)},
        "metrics": {"m": 1.0}, "prompt_length": 2, "response_text": "Yo", "prompt_text": "Hi", "messages": CHAT,
        "tools": [{"name": "f"}], "chosen_messages": None, "rejected_messages": None,
        "custom_fields": [{"source_field": "w", "destination_field": "weight", "data_type": "torch.float32"}],
        "multi_modal_input_keys": ["px"],
    }  # fmt: skip
    tensors = {
        "0:tokens": int32(5, 6, 7, 8, 9),
        "0:action_mask": np.array([True, False, True]),
        "0:logprobs": np.array([-1, 0, -2], dtype=np.float32),
        "0:returns": np.array([1, 1, 1], dtype=np.float16),
        "0:multi_modal_inputs:px": np.ones((2, 2), dtype=np.float32),
    }
    (experience,) = loads_trinity(trxp([item], tensors))
    assert experience.eid == EID(1, "t", 2, 3, "abc123")
    assert experience.kind is Kind.MULTI_TURN
    assert (experience.prompt, experience.completion) == ((Message("user", "Hi"),), (Message("assistant", "Yo"),))
    assert (experience.prompt_text, experience.response_text) == ("Hi", "Yo")
    assert (experience.reward, experience.truncate_status) == (0.5, "response_truncated")
    assert (experience.info, experience.metrics) == ({"w": 2.0, "t": [1, 2]}, {"m": 1.0})
    assert experience.custom_fields == (CustomField("w", "weight", "float32"),)
    assert (experience.tools, experience.prompt_length) == (({"name": "f"},), 2)
    assert experience.tokens.tolist() == [5, 6, 7, 8, 9]
    assert experience.action_mask.tolist() == [True, False, True]
    assert experience.logprobs.tolist() == [-1.0, 0.0, -2.0]
    assert experience.returns.dtype == np.float16
    assert experience.multi_modal_inputs["px"].shape == (2, 2)


def test_kinds_follow_from_the_tensors():
    items = [
        {"prompt_length": 1},
        {"prompt_length": 1},
        {"chosen_messages": CHAT, "rejected_messages": [CHAT[0], {"role": "assistant", "content": "No"}]},
    ]
    tensors = {
        "0:tokens": int32(1, 2), "1:tokens": int32(1, 2), "1:action_mask": np.array([True]),
        "2:tokens": int32(1, 2), "2:chosen": int32(3), "2:rejected": int32(4, 5),
    }  # fmt: skip
    single, multi, preference = loads_trinity(trxp(items, tensors))
    assert (single.kind, multi.kind, preference.kind) == (Kind.SINGLE_TURN, Kind.MULTI_TURN, Kind.PREFERENCE)
    assert (preference.tokens.tolist(), preference.prompt_length) == ([1, 2], 2)
    assert (preference.chosen.tokens.tolist(), preference.rejected.tokens.tolist()) == ([3], [4, 5])
    assert preference.prompt == (Message("user", "Hi"),)
    assert preference.chosen.messages == (Message("assistant", "Yo"),)
    assert preference.rejected.messages == (Message("assistant", "No"),)


class Attack:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_that_asks_for_code_is_refused_by_name(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attack = pickle.dumps({"items": [{"info": Attack()}]}, protocol=protocol)
    with pytest.raises(UnsafeBytes, match=r"asks for \w+\.mkdir"):
        loads_trinity(with_header(attack, save({})))
    if protocol >= 2:
        with pytest.raises(UnsafeBytes, match=r"asks for \w+\.mkdir"):
            loads_trinity(attack)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["builtins\neval", "trinity.common.experience\n__builtins__", "torch\nload"])
def test_names_beside_the_known_classes_are_refused(name):
    payload = b"\x80\x02c" + name.encode() + b"\n."
    with pytest.raises(UnsafeBytes, match=name.replace("\n", r"\.")):
        loads_trinity(payload)


@pytest.mark.parametrize("opcode", [b"\x82\x01", b"Pid\n", b"Nq\x00Q", b"\x97"])
def test_objects_from_outside_the_pickle_are_refused(opcode):
    with pytest.raises(UnsafeBytes, match="from outside"):
        loads_trinity(b"\x80\x05" + opcode + b".")


def test_a_whole_pickle_is_read_where_it_holds_no_tensors():
    module = b"ctrinity.common.experience\n"
    eid = module + b"EID\n)\x81}(X\x04\x00\x00\x00taskK\x07X\x03\x00\x00\x00runK\x01u" + b"b"
    body = b"}(X\x03\x00\x00\x00eid" + eid + b"X\x06\x00\x00\x00rewardG?\xe0\x00\x00\x00\x00\x00\x00u"
    (experience,) = loads_trinity(b"\x80\x02" + module + b"Experience\n)\x81" + body + b"b.")
    assert (experience.eid.task, experience.eid.run, experience.reward) == (7, 1, 0.5)


def pickled(tensor, protocol=4, **fields):
    """The bytes of one of Trinity's experiences, with a tensor in a field, made without Trinity."""
    module = type(pickle)("trinity.common.experience")
    module.Experience = type("Experience", (), {"__module__": module.__name__})
    experience = module.Experience()
    vars(experience).update({"experience_type": "single_turn", "prompt_length": 1, "tokens": tensor, **fields})
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        return pickle.dumps(experience, protocol=protocol)
    finally:
        sys.modules.pop(module.__name__)
        if before is not None:
            sys.modules[module.__name__] = before


DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64", "bfloat16")


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_tensors_of_a_whole_pickle_are_rebuilt_without_torch(name, protocol):
    torch = pytest.importorskip("torch")
    values = (torch.arange(24) % 5).to(getattr(torch, name))
    views = {
        "whole": values[:6], "step": values[1:20:3], "column": values.reshape(6, 4)[:, 2], "matrix": values.reshape(4, 6).t(),
        "repeated": values[:1].expand(5), "scalar": values[3], "empty": torch.zeros(0, 3, dtype=values.dtype),
    }  # fmt: skip
    (experience,) = loads_trinity(pickled(torch.tensor([1, 2]), protocol, multi_modal_inputs=views))
    for key, view in views.items():
        array = experience.multi_modal_inputs[key]
        assert (array.dtype.name, array.shape, array.tolist()) == (name, tuple(view.shape), view.tolist())


def test_tensors_outside_of_their_fields_are_numbers():
    torch = pytest.importorskip("torch")
    info = {"a": torch.tensor(1.5), "b": torch.tensor([[1, 2]]), "c": torch.tensor([0.5], dtype=torch.bfloat16)}
    (experience,) = loads_trinity(pickled(torch.tensor([1, 2]), reward=torch.tensor(0.5), info=info))
    assert (experience.reward, experience.info) == (0.5, {"a": 1.5, "b": [[1, 2]], "c": [0.5]})


def test_whole_pickles_of_trinity_itself_are_read():
    theirs = pytest.importorskip("trinity.common.experience", reason="trinity-rft is not installed")
    torch = pytest.importorskip("torch")
    first = theirs.Experience(
        tokens=torch.arange(9)[::2], prompt_length=2, logprobs=[-1.0, -2.0, -3.0], reward=np.float32(0.5)
    )
    second = theirs.Experience(tokens=[1, 2], chosen=[3], rejected=[4, 5], info={"w": 1}, metrics={"m": np.float64(0.5)},
                               custom_fields=[theirs.CustomField("w", "weight", torch.bfloat16)])  # fmt: skip
    third = theirs.Experience(tokens=[1, 2, 3], prompt_length=1, action_mask=[1, 0])
    records = loads_trinity(pickle.dumps([first, second, third]))
    assert [record.kind for record in records] == [Kind.SINGLE_TURN, Kind.PREFERENCE, Kind.MULTI_TURN]
    assert (records[0].tokens.tolist(), records[0].tokens.dtype.name) == ([0, 2, 4, 6, 8], "int64")
    assert (records[0].logprobs.tolist(), records[0].reward) == ([-1.0, -2.0, -3.0], 0.5)
    assert (records[1].tokens.tolist(), records[1].chosen.tokens.tolist()) == ([1, 2], [3])
    assert records[1].rejected.tokens.tolist() == [4, 5]
    assert records[1].custom_fields == (CustomField("w", "weight", "bfloat16"),)
    assert records[2].action_mask.tolist() == [True, False]
    assert loads_trinity(pickle.dumps(first))[0] == records[0]


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def storage_bytes(tensor):
    """What torch pickles for the storage of a tensor."""
    arguments = (argument for _, argument, _ in pickletools.genops(pickle.dumps(tensor, 4)))
    return next(argument for argument in arguments if isinstance(argument, bytes))


def hostile_tensors(torch):
    from torch._utils import _rebuild_tensor_v2
    from torch.storage import _load_from_bytes

    good = storage_bytes(torch.arange(4))
    system = pickle.dumps(Call(os.mkdir, "pwned"), protocol=2)
    count = (4).to_bytes(8, "little")

    def tensor(data, offset=0, size=(4,), stride=(1,), *more):
        return Call(_rebuild_tensor_v2, Call(_load_from_bytes, data), offset, size, stride, False, {}, *more)

    return {
        "past the end": tensor(good, 0, (5,)),
        "offset past the end": tensor(good, 4, (1,)),
        "stride past the end": tensor(good, 0, (4,), (2,)),
        "negative stride": tensor(good, 3, (4,), (-1,)),
        "negative size": tensor(good, 0, (-1,)),
        "size is no tuple": tensor(good, 0, [4]),
        "size is a float": tensor(good, 0, (4.0,)),
        "more strides than sizes": tensor(good, 0, (4,), (1, 1)),
        "100 dimensions": tensor(good, 0, (1,) * 100, (1,) * 100),
        "2**40 elements of one": tensor(good, 0, (2**40,), (0,)),
        "2**60 empty rows": tensor(good, 0, (0, 2**60, 2**60), (1, 1, 1)),
        "a size of 2**100": tensor(good, 0, (0, 2**100), (1, 1)),
        "storage cut": tensor(good[:-1]),
        "storage longer": tensor(good + b"x"),
        "storage promises more": tensor(good.replace(count, (2**40).to_bytes(8, "little"))),
        "another magic": tensor(b"\x80\x02K\x01." + good),
        "code in the storage": tensor(system + good),
        "code instead of a storage": tensor(system),
        "code in the place of the class": tensor(good.replace(b"ctorch\nLongStorage\n", b"cos\nsystem\n")),
        "an unknown storage": tensor(good.replace(b"LongStorage", b"EvilStorage")),
        "big-endian": tensor(good.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89")),
        "a zip file": tensor(b"PK\x03\x04" + bytes(100)),
        "no bytes": tensor("text"),
        "no storage": Call(_rebuild_tensor_v2, 1, 0, (4,), (1,), False, {}),
        "complex": torch.tensor([1j, 2j]),
        "float8": torch.ones(2, dtype=torch.float8_e4m3fn),
        "a parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.ones(2).to_sparse(),
    }


def test_hostile_tensors_are_refused_and_nothing_runs(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for name, tensor in hostile_tensors(torch).items():
        bad = []
        assert loads_trinity(pickled(tensor), on_bad=bad.append) == [], name
        assert len(bad) == 1, name
        assert isinstance(bad[0].error, CodecError), name
    assert not list(tmp_path.iterdir())


def test_a_hostile_tensor_loses_only_its_record():
    theirs = pytest.importorskip("trinity.common.experience", reason="trinity-rft is not installed")
    torch = pytest.importorskip("torch")
    experiences = [theirs.Experience(tokens=[1, 2, 3], prompt_length=1) for _ in range(3)]
    experiences[1].logprobs = hostile_tensors(torch)["past the end"]
    bad = []
    assert len(loads_trinity(pickle.dumps(experiences), on_bad=bad.append)) == 2
    assert bad[0].reason == "tensor: element 4 of a storage of 4 (record 1 of 3, from 0)"


def test_one_storage_cannot_be_shown_without_end():
    torch = pytest.importorskip("torch")
    from torch._utils import _rebuild_tensor_v2
    from torch.storage import _load_from_bytes

    storage = Call(_load_from_bytes, storage_bytes(torch.zeros(250_000)))
    shown = [Call(_rebuild_tensor_v2, storage, 0, (250_000,), (1,), False, {}) for _ in range(200)]  # 1 MB, 200 times
    many = {f"k{number}": tensor for number, tensor in enumerate(shown)}
    payload = pickled(torch.tensor([1, 2]), multi_modal_inputs=many)
    assert len(payload) < 1_100_000
    with pytest.raises(CorruptBytes, match="far more elements"):
        loads_trinity(payload)


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\ngetattr\n(cos\nX\x06\x00\x00\x00systemtR",  # getattr of a module
        b"cbuiltins\ngetattr\n(ctorch._utils\n_rebuild_tensor_v2\nX\x0b\x00\x00\x00__globals__tR",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n",  # a name with dots
        b"ccollections\nOrderedDict.fromkeys\n",
        b"(ios\nsystem\n",  # INST
        b"(cos\nsystem\nX\x04\x00\x00\x00trueo",  # OBJ
        b"cfunctools\nreduce\n(cos\nsystem\n](X\x04\x00\x00\x00trueetR",
        b"ccollections\nOrderedDict\n}X\x08\x00\x00\x00__init__cos\nsystem\nsb",  # BUILD on a class
        b"ctorch.storage\n_load_from_bytes\n(cos\nsystem\ntR",
        b"ctrinity.common.experience\nExperience\n(cos\nsystem\ntR",
        b"ctrinity.common.experience\nEID\n)\x81cos\nsystem\nb",
    ],
)
def test_programs_around_the_known_names_are_refused(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    payload = b"\x80\x02(" + program + b"t."
    with pytest.raises((CodecError, RecordError)):
        loads_trinity(payload)
    assert not list(tmp_path.iterdir())
    assert loads_trinity(VALID)[0].tokens.tolist() == [1, 2], "the next payload is read as before"


@pytest.mark.parametrize("protocol", range(2, 6))
def test_numpy_scalars_are_read_as_the_numbers_they_are(protocol):
    info = {
        "f": np.float32(0.25), "d": np.float64(-1.5), "h": np.float16(2), "i": np.int64(-3), "u": np.uint8(200),
        "b": np.bool_(True), "s": np.str_("übel"), "big": np.dtype(">i4").type(7), "list": [np.float32(1), (np.int8(2),)],
    }  # fmt: skip
    item = {"reward": np.float32(0.5), "info": info, "metrics": {"m": np.float64(0.1)}, "messages": CHAT}
    meta = pickle.dumps({"version": 1, "num_items": 1, "items": [item]}, protocol=protocol)
    (experience,) = loads_trinity(with_header(meta, save({})))
    assert (experience.reward, experience.metrics) == (0.5, {"m": 0.1})
    assert experience.info == {
        "f": 0.25, "d": -1.5, "h": 2.0, "i": -3, "u": 200, "b": True, "s": "übel", "big": 7, "list": [1.0, [2]],
    }  # fmt: skip
    assert all(type(value) in (float, int, bool, str, list) for value in experience.info.values())


def test_trinitys_own_bytes_with_numpy_scalars_are_read():
    trinity = pytest.importorskip("trinity.common.experience", reason="trinity-rft is not installed")
    torch = pytest.importorskip("torch")
    written = trinity.Experience(
        tokens=torch.tensor([1, 2, 3]), prompt_length=1, reward=np.float32(0.5), info={"x": np.int64(4)},
        metrics={"m": np.float64(0.25)}, prompt_text="<s>Hi", response_text="Yo",
    )  # fmt: skip
    (experience,) = loads_trinity(trinity.Experience.serialize_many([written]))
    assert (experience.reward, experience.info, experience.metrics) == (0.5, {"x": 4}, {"m": 0.25})


@pytest.mark.parametrize(
    "scalar",
    [
        np.datetime64("2026-01-01"), np.complex64(1j), np.void(b"abc"), np.longdouble(1), np.array([1.0]),
        np.dtype("f8"), np.timedelta64(3, "s"),
    ],
)  # fmt: skip
def test_other_values_of_numpy_are_refused_by_name(scalar):
    with pytest.raises(UnsafeBytes, match=r"numpy|_NumpyDtype"):
        loads_trinity(trxp([{"info": {"x": scalar}}], {}))


def test_a_pickle_leaves_no_mark_on_what_stands_in_for_numpy():
    for name in ("numpy\ndtype", "numpy._core.multiarray\nscalar", "_codecs\nencode", "os\nsystem"):
        state = b"N}X\x07\x00\x00\x00__new__K\x01s\x86"  # (None, {"__new__": 1})
        for build in (state + b"b", b"}X\x01\x00\x00\x00xK\x01sb"):
            with pytest.raises(CodecError):
                loads_trinity(b"\x80\x02c" + name.encode() + b"\n" + build + b".")
    test_numpy_scalars_are_read_as_the_numbers_they_are(4)


BAD = {
    "no_number": {"reward": "much"},
    "code": {"info": Attack()},
    "array": {"info": {"x": np.array([1.0])}},
    "no_record": "text",
    "messages": {"messages": 7},
    "bytes": {"info": {"x": b"raw"}},
    "surrogate": {"prompt_text": "\ud800"},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_loses_only_itself(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = [{"eid": {**EID_FIELDS, "run": number}, "messages": CHAT, "reward": 1.0} for number in range(20)]
    payload = trxp([*good[:7], BAD[name], *good[7:]], {"3:tokens": int32(1, 2), "3:logprobs": np.float32([-1])})
    bad = []
    experiences = loads_trinity(payload, on_bad=bad.append)
    assert [experience.eid.run for experience in experiences] == list(range(20))
    assert [(item.number, item.total) for item in bad] == [(7, 21)]
    with pytest.raises((CodecError, RecordError)):
        loads_trinity(payload)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "payload.trxp").write_bytes(payload)
    summary = import_files(["traces"], Table(tmp_path / "table"))
    assert (summary.total("experiences"), summary.total("quarantined")) == (20, 1)
    (line,) = (tmp_path / "table" / "quarantine.jsonl").read_text().splitlines()
    rejected = json.loads(line)
    assert rejected["file"].endswith("payload.trxp")
    assert rejected["reason"] == bad[0].reason
    assert rejected["reason"].endswith("(record 7 of 21, from 0)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "traces"]


def test_a_tensor_that_cannot_be_read_loses_its_record_only():
    torch = pytest.importorskip("torch")
    from safetensors.torch import save as save_torch

    tensors = {"0:tokens": torch.tensor([1, 2]), "1:logprobs": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    meta = pickle.dumps({"version": 1, "num_items": 2, "items": [{"prompt_length": 1}, {"prompt_length": 1}]})
    bad = []
    (experience,) = loads_trinity(with_header(meta, save_torch(tensors)), on_bad=bad.append)
    assert experience.tokens.tolist() == [1, 2]
    assert "float8" in bad[0].reason.lower() or "F8" in bad[0].reason


VALID = trxp([{"prompt_length": 1, "messages": CHAT}], {"0:tokens": int32(1, 2)})


def test_every_cut_is_reported_as_such():
    for length in range(len(VALID)):
        with pytest.raises((TruncatedBytes, ForeignBytes)):
            loads_trinity(VALID[:length])


def test_no_damaged_byte_makes_another_exception_escape():
    for position in range(len(VALID)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(VALID)
            damaged[position] ^= flip
            try:
                loads_trinity(bytes(damaged))
            except (CodecError, RecordError):
                continue


def test_bytes_that_the_header_does_not_account_for_are_refused():
    with pytest.raises(CorruptBytes, match="the header accounts for"):
        loads_trinity(VALID + b"x")


@pytest.mark.parametrize(
    "payload, error",
    [
        (trxp([], {}, version=2), ForeignBytes),
        (b"not ours", ForeignBytes),
        (b"", ForeignBytes),
        (b"TRXP" + struct.pack("<BQQ", 1, 2**63, 2**63), TruncatedBytes),
        (trxp([{}], {}, num_items=2), CorruptBytes),
        (trxp([{}], {"1:tokens": int32(1)}), CorruptBytes),
        (trxp([{}], {"tokens": int32(1)}), CorruptBytes),
        (trxp([3], {}), CorruptBytes),
        (trxp([{"messages": 3}], {}), CorruptBytes),
        (trxp([{"prompt_length": 5}], {"0:tokens": int32(1)}), RecordError),
    ],
)
def test_what_does_not_add_up_is_refused(payload, error):
    with pytest.raises(error):
        loads_trinity(payload)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def doubling(levels):
    """A pickle of a few hundred bytes whose value, written out, has 2**levels parts."""
    return b"\x80\x02]q\x00" + b"".join(b"0]q%c(h%ch%ce" % (n + 1, n, n) for n in range(levels)) + b"."


@pytest.mark.parametrize(
    "pickled, reason",
    [
        (nested(100_000), "nested deeper"),
        (doubling(60), "expands to more"),
        (b"\x80\x02]q\x00h\x00a.", "nested deeper"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "memo slot"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.", "ValueError"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.", "ValueError"),
    ],
    ids=["deep", "doubling", "cycle", "memo", "bytes", "bytearray"],
)
def test_a_short_pickle_cannot_exhaust_memory(pickled, reason):
    with pytest.raises(CorruptBytes, match=reason):
        loads_trinity(with_header(pickled, save({})))


def test_payloads_of_trinity_itself_are_read():
    experience_module = pytest.importorskip("trinity.common.experience", reason="trinity-rft is not installed")
    torch = pytest.importorskip("torch")
    given = [
        experience_module.Experience(tokens=torch.tensor([1, 2, 3]), prompt_length=1, reward=1.0, messages=CHAT),
        experience_module.Experience(tokens=torch.tensor([1]), chosen=torch.tensor([2]), rejected=torch.tensor([3])),
    ]
    first, second = loads_trinity(experience_module.Experience.serialize_many(given))
    assert (first.tokens.tolist(), first.reward, first.eid.suffix) == ([1, 2, 3], 1.0, given[0].eid.suffix)
    assert (second.kind, second.chosen.tokens.tolist()) == (Kind.PREFERENCE, [2])
