"""Columns from Python values: the arrays that pyarrow makes of them, without pandas being loaded."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairwright.store.arrow import column_array, numbers_of

TEXTS = st.text() | st.none()
KINDS = {
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.int32(): st.integers(-(2**31), 2**31 - 1) | st.none(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.none(),
    pa.float64(): st.floats() | st.none(),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None)  # the first call of pyarrow loads pandas
@given(data=st.data())
def test_columns_are_those_of_pyarrow(kind, data):
    values = data.draw(st.lists(KINDS[kind], max_size=20))
    column = column_array(values, kind)
    column.validate(full=True)
    assert column.type == kind
    assert list(map(repr, column.to_pylist())) == list(map(repr, values))
    assert column_array(tuple(values), kind).to_pylist() == pa.array(values, kind).to_pylist() or kind == pa.float64()
    if kind in (pa.string(), pa.large_string()):
        encoded = [None if value is None else value.encode() for value in values]
        assert column_array(encoded, kind).equals(column)


def test_what_does_not_fit_is_refused():
    with pytest.raises(OverflowError):
        column_array([2**31], pa.int32())
    with pytest.raises(UnicodeEncodeError):
        column_array(["\ud800"], pa.string())


def test_numbers_come_back_from_a_slice():
    column = column_array(list(range(10)), pa.int32())
    assert numbers_of(column[3:7]).tolist() == [3, 4, 5, 6]
    assert numbers_of(column).dtype == np.int32


def test_an_import_does_not_load_pandas(tmp_path):
    rows = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "reward": 1}\n'
    rollouts = '{"responses_create_params": {"input": "a"}, "response": {"output": []}, "reward": 1}\n'
    plain = rollouts.replace("[]", '[{"type": "message", "role": "assistant", "content": "b"}]')
    (tmp_path / "chat.jsonl").write_text(rows * 2)
    (tmp_path / "gym.jsonl").write_text(rollouts + plain)
    code = (
        "import sys\n"
        "from pairwright import Table\n"
        "from pairwright.store.importing import import_files\n"
        "summary = import_files([sys.argv[1]], Table(sys.argv[2]), num_workers=1)\n"
        "assert summary.total('experiences') == 4, summary\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(tmp_path / "table")], check=True)
