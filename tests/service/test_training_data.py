"""From the files of a dataset to what the trainer reads."""

import json

import pytest

from pairwright.errors import PairwrightError, SourceError
from pairwright.pairs.pair_table import read_pairs
from pairwright.service.run.training_data import DataFile, check_rows, write_training_data
from pairwright.store.table import Table

ROW = {"prompt": "q", "chosen_response": "good", "rejected_response": "bad"}
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def data_file(folder, rows, split="train", name="training/training_file.jsonl"):
    blob = folder / f"{split}-{name.replace('/', '-')}"
    blob.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return DataFile(name, blob, split)


def test_preferences_keep_their_order_their_messages_and_their_split(tmp_path):
    rows = [ROW, {**ROW, "prompt": CHAT}, {**ROW, "prompt": "z", "chosen_score": 5, "rejected_score": 2}]
    files = [data_file(tmp_path, rows), data_file(tmp_path, [{**ROW, "prompt": "v"}], "validation")]
    assert write_training_data(files, tmp_path / "out", training_type="dpo") == {"train": 3, "validation": 1}
    pairs = list(read_pairs(tmp_path / "out" / "pairs"))
    assert [pair.prompt[-1].text for pair in pairs] == ["q", "u", "z", "v"]
    assert [pair.split for pair in pairs] == ["train", "train", "train", "validation"]
    assert [message.role for message in pairs[1].prompt] == ["system", "user"]
    assert (pairs[0].chosen[0].text, pairs[0].rejected[0].text) == ("good", "bad")
    assert [pair.gap for pair in pairs] == [1.0, 1.0, 3.0, 1.0]


def test_a_row_that_stands_in_both_files_stays_in_both(tmp_path):
    files = [data_file(tmp_path, [ROW, ROW]), data_file(tmp_path, [ROW], "validation")]
    write_training_data(files, tmp_path / "out", training_type="dpo")
    pairs = list(read_pairs(tmp_path / "out" / "pairs"))
    assert [pair.split for pair in pairs] == ["train", "train", "validation"]
    assert len({pair.id for pair in pairs}) == 3


def test_rows_that_pair_building_leaves_out_elsewhere_stay(tmp_path):
    opposite = {**ROW, "chosen_response": "bad", "rejected_response": "good"}
    rows = [ROW, opposite, {**ROW, "rejected_response": "worse"}, {**ROW, "mask_sample": True, "prompt": "m"}]
    rows.append({**ROW, "prompt": "n", "chosen_score": 1.0, "rejected_score": 1.0 - 1e-12})
    file = data_file(tmp_path, rows)
    files = [file, DataFile("training/equal.jsonl", file.blob, "train")]
    assert write_training_data(files, tmp_path / "out", training_type="dpo") == {"train": 10, "validation": 0}
    pairs = list(read_pairs(tmp_path / "out" / "pairs"))
    assert [pair.rejected[0].text for pair in pairs] == ["bad", "good", "worse", "bad", "bad"] * 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pairs"]


@pytest.mark.parametrize("kind", ["dpo", "sft"])
def test_files_that_are_no_rows_are_refused_by_name(tmp_path, kind):
    files = [data_file(tmp_path, [{"question": "q"}, {"question": "r"}])]
    with pytest.raises(SourceError, match=r"^training/training_file\.jsonl:1: expected the keys prompt"):
        write_training_data(files, tmp_path / "a", training_type=kind)
    files[0].blob.write_bytes(b"PK\x03\x04 a zip, which Inspect's logs are")
    with pytest.raises(SourceError, match=r"^training/training_file\.jsonl: expected JSON Lines, got .* inspect"):
        write_training_data(files, tmp_path / "b", training_type=kind)


def test_supervised_rows_are_experiences(tmp_path):
    answer = {"role": "assistant", "content": "a"}
    rows = [
        {"prompt": "q", "completion": "a"},
        {"messages": [*CHAT, answer]},
        {"messages": [*CHAT, answer, {"role": "user", "content": "more"}, {"role": "assistant", "content": "b"}]},
    ]
    files = [data_file(tmp_path, rows), data_file(tmp_path, rows[:1], "validation")]
    assert write_training_data(files, tmp_path / "out", training_type="sft") == {"train": 3, "validation": 1}
    found = list(Table(tmp_path / "out" / "experience", create=False).records())
    assert [len(experience.prompt) for experience in found] == [1, 2, 2]
    assert [[message.text for message in experience.completion] for experience in found] == [
        ["a"],
        ["a"],
        ["a", "more", "b"],
    ]
    assert Table(tmp_path / "out" / "validation", create=False).count() == 1


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("dpo", {"prompt": "q", "chosen": "a"}, "expected the keys prompt, chosen_response"),
        ("dpo", {**ROW, "rejected_response": "good"}, "are the same"),
        ("dpo", {**ROW, "chosen_score": 1, "rejected_score": 2}, "has reward 1.0"),
        ("dpo", {**ROW, "prompt": None}, "prompt: expected text or messages"),
        ("dpo", {**ROW, "rejected_response": " "}, "rejected_response: the answer is empty"),
        ("dpo", {**ROW, "chosen_response": ""}, "chosen_response: the answer is empty"),
        ("dpo", {**ROW, "prompt": [{"role": "zzz", "content": "q"}]}, "role 'zzz': expected"),
        ("sft", {"messages": [{"role": "zzz", "content": "q"}, {"role": "assistant", "content": "a"}]}, "role 'zzz'"),
        ("dpo", "[1]\n", "expected an object"),
        ("dpo", "{torn\n", "not valid JSON"),
        ("sft", {"prompt": "q"}, "expected the keys prompt and completion, or messages"),
        ("sft", {"messages": CHAT}, "expected a prompt and an answer"),
        ("sft", {"prompt": "q", "completion": "  "}, "the answer is empty"),
        ("sft", ROW, "expected the keys prompt and completion"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_file_and_line(tmp_path, kind, row, reason):
    good = ROW if kind == "dpo" else {"prompt": "q", "completion": "a"}
    with pytest.raises(SourceError, match=r"^training/training_file\.jsonl:3: ") as caught:
        write_training_data([data_file(tmp_path, [good, "\n", row])], tmp_path / "out", training_type=kind)
    assert reason in str(caught.value)


def test_no_rows_are_no_data(tmp_path):
    with pytest.raises(PairwrightError, match="have no rows"):
        write_training_data([data_file(tmp_path, ["\n"])], tmp_path / "out", training_type="dpo")


HELPSTEER = {
    "context": [{"role": "user", "content": "q"}],
    "response1": "good",
    "response2": "bad",
    "overall_preference": -2,
}
TULU = {"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
        "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}]}  # fmt: skip
OPENAI = {"input": {"messages": [{"role": "user", "content": "q"}]},
          "preferred_output": [{"role": "assistant", "content": "good"}],
          "non_preferred_output": [{"role": "assistant", "content": "bad"}]}  # fmt: skip


@pytest.mark.parametrize("row", [{"prompt": "q", "chosen": "good", "rejected": "bad"}, HELPSTEER, TULU, OPENAI])
def test_whatever_the_sources_read_as_a_preference_is_one(tmp_path, row):
    files = [data_file(tmp_path, [row, row]), data_file(tmp_path, [ROW], name="training/b.jsonl")]
    assert check_rows(files, "dpo") == 3
    write_training_data(files, tmp_path / "out", training_type="dpo")
    pairs = list(read_pairs(tmp_path / "out" / "pairs"))
    assert [(pair.chosen[0].text, pair.rejected[0].text) for pair in pairs] == [("good", "bad")] * 3


def test_a_parquet_file_is_read_too(tmp_path):
    import polars as pl

    pl.DataFrame([{"prompt": "q", "chosen": "good", "rejected": "bad"}]).write_parquet(tmp_path / "blob")
    files = [DataFile("data/train-00000-of-00001.parquet", tmp_path / "blob", "train")]
    assert write_training_data(files, tmp_path / "out", training_type="dpo") == {"train": 1, "validation": 0}


def test_of_a_large_file_only_the_start_is_read_at_once(tmp_path):
    file = data_file(tmp_path, [ROW] * 1000 + [{"prompt": "q"}])
    assert 0 < check_rows([file], "dpo", max_bytes=5_000) < 100
    with pytest.raises(SourceError, match=r"training_file\.jsonl:1001: "):
        check_rows([file], "dpo")
