"""`export --to tokens`: the rows of a Parquet file are what our loop trains."""

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from handover.tool_runs import make_model, make_runs, make_tool_pairs
from pairwright import encode
from pairwright.cli.main import app
from pairwright.errors import ConfigError
from pairwright.training.token_rows import TokenRows


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    model = make_model(folder / "model")
    return folder, model, make_tool_pairs(folder, model)


def run(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_the_rows_of_pairs_are_their_sequences(place):
    folder, model, data = place
    words = ("--to", "tokens", "--tokenizer", model, "--reference", model, "-o", folder / "rows.parquet")
    done = run(data.path, *words)
    assert done.exit_code == 0, done.output
    rows = pl.read_parquet(folder / "rows.parquet").to_dicts()
    assert len(rows) == len(data) == 8
    for row, pair in zip(sorted(rows, key=lambda row: row["id"]), _by_id(data), strict=True):
        for side, sequence in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            assert row[f"{side}_ids"] == sequence.ids.tolist()
            assert row[f"{side}_mask"] == sequence.mask.tolist()
            assert row[f"{side}_uid"] == sequence.report.uid
            assert len(row[f"{side}_ref_logprobs"]) == sequence.num_trained
            weights = sequence.weights
            assert row[f"{side}_token_weights"] == (None if weights is None else weights[sequence.mask].tolist())
    assert {row["weight"] for row in rows} == {1.0, 2.0, 3.0}
    assert any(row["chosen_token_weights"] for row in rows)
    assert run(data.path, *words).exit_code != 0, "the file is there"


def _by_id(data):
    return [pair for _, pair in sorted(zip(data._pairs.ids, data, strict=True), key=lambda item: item[0])]


def test_the_rows_of_runs_have_a_label_and_a_mismatched_completion(place):
    folder, model, _ = place
    data = encode(make_runs(folder / "four", model, 4), model, folder / "run-tokens", workers=1)
    done = run(data.path, "--to", "tokens", "--kind", "kto", "--tokenizer", model, "-o", folder / "kto.parquet")
    assert done.exit_code == 0, done.output
    rows = pl.read_parquet(folder / "kto.parquet").to_dicts()
    by_uid = {row["uid"]: row for row in rows}
    assert sum(row["label"] for row in rows) == 4
    for row in rows:
        other = by_uid[row["kl_uid"]]
        start, others_start = np.argmax(row["mask"]), np.argmax(other["mask"])
        assert row["kl_ids"] == row["ids"][:start] + other["ids"][others_start:]
        assert row["uid"] != row["kl_uid"]


def test_what_is_missing_is_named(place):
    folder, model, data = place
    words = ("--to", "tokens", "--tokenizer", model, "-o", folder / "x.parquet")
    cases = [
        (("--to", "tokens", "-o", folder / "x.parquet"), "--tokenizer DIR"),
        ((*words, "--split", "validation"), "no rows for dpo in the split 'validation'"),
    ]
    for given, message in cases:
        assert message in str(run(data.path, *given).exception)
    assert "'ppo' is not one of" in run(data.path, *words, "--kind", "ppo").output
    with pytest.raises(ConfigError, match="expected one of dpo, sft, kto"):
        TokenRows(data.path, model, "ppo")
