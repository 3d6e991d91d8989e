"""Content hashes: equal JSON values have equal hashes, regardless of how they are passed."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from pairwright.records.messages import content_hash, digest, pack


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=4))
def test_the_order_of_keys_does_not_matter(value):
    assert content_hash(value) == content_hash(dict(reversed(value.items())))


def test_different_integers_of_any_size_have_different_hashes():
    numbers = [0, 1, -1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, -(2**63) - 1, 10**30, 1.0, True, None, "1"]
    assert len({content_hash(number) for number in numbers}) == len(numbers)
    assert content_hash(1, 2) != content_hash([1, 2]) != content_hash([1], [2])


def test_packed_bytes_have_the_hash_of_their_value():
    tools = [{"b": 1, "a": ["\u00e9"]}]
    assert digest(pack(("x", Raw(pack(tools))))) == content_hash("x", tools)
