"""Bytes: what was written comes back, and anything else is an error that says why."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairwright import EID, CodecError, Experience, Message, Side, ToolCall, dumps, dumps_many, loads, loads_many
from pairwright.errors import CorruptBytes, ForeignBytes, TruncatedBytes
from strategies import experiences

GOLDEN = Path(__file__).parent / "golden_v1.pwxp"


def golden_experiences() -> list[Experience]:
    """What golden_v1.pwxp holds. Never change this: add a golden file for a new version instead."""
    prompt = (Message("system", "Be brief."), Message("user", "Wie spät ist es? 🕑"))
    call = ToolCall("clock", '{"zone": "CET"}', id="call_1")
    return [
        Experience(
            eid=EID("b", 7, 1, 0, "s1"),
            kind="multi_turn",
            prompt=prompt,
            tools=({"type": "function", "function": {"name": "clock"}},),
            completion=(
                Message("assistant", None, reasoning="Look it up.", tool_calls=(call,)),
                Message("tool", "14:05", tool_call_id="call_1"),
                Message("assistant", "Fünf nach zwei."),
            ),
            reward=0.5,
            info={"score": float("nan"), "ids": [2**70, -1]},
            tokens=np.array([1, 2, 70000, 4], np.int64),
            prompt_length=2,
            logprobs=np.array([-0.5, -1.5], np.float16),
            action_mask=np.array([True, False]),
        ),
        Experience(
            eid=EID("b", 8, 0, 0, "s2"),
            kind="preference",
            prompt=prompt,
            chosen=Side(messages=(Message("assistant", "14:05"),), reward=1.0),
            rejected=Side(messages=(Message("assistant", "no"),), reward=float("-inf")),
        ),
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(experiences(), max_size=4), st.booleans())
def test_bytes_give_back_equal_experiences(given_experiences, compress):
    assert loads_many(dumps_many(given_experiences, compress=compress)) == given_experiences


def test_one_experience_goes_through_dumps_and_loads():
    exp = golden_experiences()[0]
    assert loads(dumps(exp)) == exp


def test_a_list_goes_through_dumps_and_loads():
    exp = golden_experiences()[0]
    assert loads(dumps([exp, exp])) == [exp, exp]
    assert loads(dumps_many([exp, exp])) == [exp, exp]
    assert loads(dumps([])) == []


def test_version_1_stays_readable():
    assert loads_many(GOLDEN.read_bytes()) == golden_experiences()


def test_every_truncation_is_an_error():
    data = dumps_many(golden_experiences())
    for length in range(len(data)):
        with pytest.raises((TruncatedBytes, ForeignBytes)):
            loads_many(data[:length])


def test_ten_thousand_bit_flips_are_all_noticed():
    data = dumps_many(golden_experiences())
    draw = random.Random(0)
    for _ in range(10_000):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        with pytest.raises(CodecError):
            loads_many(bytes(changed))


def test_bytes_after_the_end_are_an_error():
    with pytest.raises(CorruptBytes, match="1 bytes after the end"):
        loads_many(dumps_many(golden_experiences()) + b"x")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"TRXP\x01" + bytes(40), b"\x80\x04K\x01."])
def test_foreign_bytes_are_refused(data):
    with pytest.raises(ForeignBytes, match="not a pairwright payload"):
        loads_many(data)


def test_a_future_version_is_refused_with_the_way_out():
    data = bytearray(dumps_many(golden_experiences()))
    data[4] = 9
    with pytest.raises(ForeignBytes, match=r"version 9.*upgrade"):
        loads_many(bytes(data))


def signed(header: bytes, stored: bytes, data: bytes) -> bytes:
    body = header + stored + data
    return body + xxhash.xxh3_128_digest(body)


def header(storage: int, stored_size: int, metadata_size: int, data_size: int) -> bytes:
    return struct.pack("<4sBB2xQQQ", b"PWXP", 1, storage, stored_size, metadata_size, data_size)


def test_a_claimed_size_alone_allocates_nothing(peak_memory):
    """A terabyte in the header, with a right checksum: refused, and no memory taken for it."""
    claims = [
        (header(1, 2**40, 10, 0), b"", b""),
        (header(1, 4, 2**40, 0), b"abcd", b""),
        (header(0, 4, 2**30, 0), b"abcd", b""),
    ]
    for parts in claims:
        with peak_memory(limit=32 * 2**20), pytest.raises(CodecError):
            loads_many(signed(*parts))


def test_a_decompression_bomb_stops_at_the_claimed_size(peak_memory):
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(2**28))
    with peak_memory(limit=64 * 2**20), pytest.raises(CorruptBytes, match="more bytes than the 1000 claimed"):
        loads_many(signed(header(1, len(bomb), 1000, 0), bomb, b""))


@pytest.mark.parametrize(
    "metadata",
    [
        b"[]",
        b"{}",
        b"not json",
        b'{"num_records":1,"eid":[],"kind":[]}',
        b'{"num_records":1,"eid":[["b","t",0,0,"s"]],"kind":["nonsense"]}',
        b'{"num_records":1,"eid":[["b","t",-1,0,"s"]],"kind":["single_turn"]}',
        b'{"num_records":1,"eid":[["b","t",0,0,"s"]],"kind":["single_turn"],"reward":[1,2]}',
        b'{"num_records":1,"eid":[["b","t",0,0,"s"]],"kind":["single_turn"],"reward":["x"]}',
        b'{"num_records":1,"eid":[["b","t",0,0,"s"]],"kind":["single_turn"],"unknown":1}',
        b'{"num_records":1,"eid":[["b","t",0,0,"s"]],"kind":["single_turn"],"info":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_hostile_metadata_with_a_right_checksum_is_refused(metadata):
    with pytest.raises(CorruptBytes):
        loads_many(signed(header(0, len(metadata), len(metadata), 0), metadata, b""))


@pytest.mark.parametrize(
    "column",
    [
        '{"path":["tokens"],"dtype":"int32","width":4,"num_arrays":1,"num_values":1000000000}',
        '{"path":["tokens"],"dtype":"object","width":4,"num_arrays":1,"num_values":1}',
        '{"path":["nonsense"],"dtype":"int32","width":4,"num_arrays":1,"num_values":1}',
        '{"path":["tokens"],"dtype":"int32","width":-4,"num_arrays":1,"num_values":1}',
        '{"path":["tokens"],"dtype":"int32","width":4,"num_arrays":-1,"num_values":3}',
        '{"path":["tokens"],"dtype":"int32","width":9,"num_arrays":1,"num_values":1}',
        '{"path":["tokens"],"dtype":"int32","width":4,"num_arrays":1,"num_values":1,"shapes":[[-1,-1]]}',
        '{"path":["tokens"],"dtype":"int32","width":4,"num_arrays":1,"num_values":1,"shapes":[]}',
        '{"path":[],"dtype":"int32","width":4,"num_arrays":1,"num_values":1}',
    ],
)
def test_hostile_array_columns_are_refused(column):
    metadata = b'{"num_records":1,"eid":[["b","t",0,0,"s"]],"kind":["single_turn"],"arrays":[%s]}' % column.encode()
    data = struct.pack("<III", 0, 1, 5)
    with pytest.raises(CorruptBytes):
        loads_many(signed(header(0, len(metadata), len(metadata), len(data)), metadata, data))


def test_arrays_that_share_memory_survive():
    base = np.arange(20, dtype=np.int64)
    exps = [
        Experience(kind="single_turn", tokens=base[::2], prompt_length=3),
        Experience(kind="single_turn", tokens=base[5:], prompt_length=0),
        Experience(kind="single_turn", tokens=base[:0], prompt_length=0),
    ]
    assert loads_many(dumps_many(exps)) == exps
