"""Ids and draws from hashes: invertible as text, different for different pairs, and never another in a new release."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwright.pairs.candidates.pair_ids import hex_digits, pair_key, pair_keys, seeded_draws, words_of
from pairwright.pairs.row_groups import first_uses

hashes = st.integers(0, 2**128 - 1).map("{:032x}".format)


@given(st.lists(hashes, max_size=9))
def test_hashes_are_words_and_back_and_sort_alike(texts):
    words = words_of(pl.Series(texts, dtype=pl.String))
    assert hex_digits(words).to_list() == texts
    assert sorted(texts) == [texts[place] for place in np.lexsort([words[:, 1], words[:, 0]])]


def test_a_part_of_a_column_has_the_words_of_that_part():
    column = pl.Series([f"{number:032x}" for number in range(9)])
    assert words_of(column[3:5]).tolist() == [[0, 3], [0, 4]]


def test_an_invalid_hash_is_an_internal_error():
    with pytest.raises(AssertionError, match="32 hex digits"):
        words_of(pl.Series(["abc"]))
    with pytest.raises(AssertionError, match="is there"):
        words_of(pl.Series(["0" * 32, None]))


@given(st.lists(st.tuples(hashes, hashes, hashes), min_size=1, max_size=9, unique=True))
def test_different_pairs_have_different_ids_however_many_are_made_at_once(triples):
    columns = [words_of(pl.Series(column)) for column in zip(*triples, strict=True)]
    keys = hex_digits(pair_keys(*columns)).to_list()
    assert keys == [pair_key(*triple) for triple in triples]
    assert len(set(keys)) == len(triples)


def test_ids_and_draws_are_written_down_and_never_change():
    assert pair_key("0" * 32, "1" * 32, "f" * 32) == "32a89a905a060380fa6c438c07c869f8"
    assert seeded_draws(7, words_of(pl.Series(["0123456789abcdef" * 2]))).tolist() == [16702894585275957254]


def test_one_bit_of_a_hash_changes_half_of_the_id():
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 2**63, (4_000, 2)).astype(np.uint64) for _ in range(3)]
    before = pair_keys(*parts)
    for part in range(3):
        for bit in (0, 31, 63):
            changed = [words.copy() for words in parts]
            changed[part][:, bit % 2] ^= np.uint64(1 << bit)
            flipped = np.unpackbits((pair_keys(*changed) ^ before).view(np.uint8), axis=1).mean(axis=0)
            assert np.abs(flipped - 0.5).max() < 0.05


def test_draws_depend_on_the_seed():
    words = np.arange(2_000, dtype=np.uint64).reshape(-1, 2)
    order = [np.argsort(seeded_draws(seed, words)).tolist() for seed in (0, 1)]
    assert order[0] != order[1]
    assert sorted(order[0]) == sorted(order[1])


@given(st.lists(st.integers(-1, 8), max_size=20))
def test_codes_are_numbered_in_the_order_of_their_first_use(codes):
    used, places = first_uses(np.array(codes, np.int64), 9)
    expected = list(dict.fromkeys(code for code in codes if code >= 0))
    assert used.tolist() == expected
    assert places.tolist() == [expected.index(code) if code >= 0 else -1 for code in codes]
