"""Arrow and HF datasets: both ways, without loss."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_codec import golden_experiences

from pairwright import Experience, TableError, from_arrow, from_dataset, to_arrow, to_dataset
from pairwright.store.arrow import from_batch, to_batch
from strategies import experiences

MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@MANY
@given(st.lists(experiences(), max_size=4))
def test_arrow_gives_back_equal_experiences(exps):
    assert from_arrow(to_arrow(exps)) == exps


@MANY
@given(st.lists(experiences(), min_size=1, max_size=4), st.integers(0, 3))
def test_a_slice_of_a_batch_gives_its_own_rows(exps, start):
    assert from_batch(to_batch(exps).slice(start, 2)) == exps[start : start + 2]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(experiences(), max_size=3))
def test_hf_datasets_give_back_equal_experiences(exps):
    pytest.importorskip("datasets")
    assert from_dataset(to_dataset(exps)) == exps


def test_hf_datasets_survive_the_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    to_dataset(golden_experiences()).save_to_disk(str(tmp_path / "d"))
    assert from_dataset(datasets.load_from_disk(str(tmp_path / "d"))) == golden_experiences()


def test_info_of_different_shapes_is_not_unified():
    exps = [Experience(kind="single_turn", info=info) for info in ({"a": 1}, {"b": [1]}, {"a": {"c": None}}, {})]
    assert [exp.info for exp in from_arrow(to_arrow(exps))] == [{"a": 1}, {"b": [1]}, {"a": {"c": None}}, {}]


def test_other_tools_may_change_string_types_and_column_order():
    table = to_arrow(golden_experiences())
    changed = table.select(list(reversed(table.schema.names)))
    changed = changed.set_column(0, changed.field(0).name, changed.column(0)).append_column("mine", pa.array([1, 2]))
    large = changed.cast(
        pa.schema([f.with_type(pa.large_string()) if f.type == pa.string() else f for f in changed.schema])
    )
    assert from_arrow(large) == golden_experiences()


def test_rows_that_are_no_experiences_are_refused():
    with pytest.raises(TableError, match="no column 'uid'"):
        from_arrow(pa.table({"a": [1]}))
    table = to_arrow(golden_experiences())
    at = table.schema.get_field_index("prompt")
    bad = table.set_column(at, table.field(at), pa.array(['[{"role": 5}]', "x"], pa.large_string()))
    with pytest.raises(TableError, match="not a valid experience"):
        from_arrow(bad)
