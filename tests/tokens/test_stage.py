"""The tokens stage: cached sequences, nothing encoded twice, every item counted."""

import json
from pathlib import Path

import polars as pl
import pytest
from token_families import small_backend

from pairwright import EID, Experience, Message, Pair, Side, Table, TableError
from pairwright.pairs.table import pairs_to_batch, write_pairs
from pairwright.tokens import stage
from pairwright.tokens.stage import EncodeOptions, encode_source, folder_hash, read_sequences

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    """A folder as a model has it: a small vocabulary with a ChatML template."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    small_backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return folder


def experience(number: int, **fields) -> Experience:
    given = {"prompt": [Message("user", "hi")], "completion": [Message("assistant", f"answer {number}")]}
    return Experience(**({"eid": EID("b", "t", number, 0, f"s{number}"), "kind": "single_turn"} | given | fields))


@pytest.fixture
def table(tmp_path) -> Table:
    side = Side(messages=[Message("assistant", "good")]), Side(messages=[Message("assistant", "bad")])
    exps = [
        *(experience(number) for number in range(5)),
        experience(5, completion=[]),
        experience(6, completion=(), kind="preference", chosen=side[0], rejected=side[1]),
        experience(7, tokens=[1, 2, 3], prompt_length=1, logprobs=[-0.5, -0.25]),
    ]
    with Table(tmp_path / "experience") as made:
        made.append(exps)
    return made


def test_every_item_is_exact_or_refused_with_its_reason(table, tokenizer, tmp_path):
    manifest = encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    assert (manifest["items"], manifest["exact"], manifest["sequences"]) == (8, 7, 8)
    assert sum(manifest["refused"].values()) == 1
    assert manifest["recorded"] == 1
    assert manifest["trained_tokens"] == sum(
        sequence.num_trained for _, _, sequence in read_sequences(tmp_path / "tokens")
    )
    assert json.loads((tmp_path / "tokens" / "manifest.json").read_text()) == manifest
    sides = sorted(side for _, side, _ in read_sequences(tmp_path / "tokens"))
    assert sides == [""] * 6 + ["chosen", "rejected"]


def test_sequences_come_back_as_they_were_encoded(table, tokenizer, tmp_path):
    encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    ((_, _, recorded),) = read_sequences(tmp_path / "tokens", pl.col("id").str.contains('"s7"'))
    assert (recorded.ids.tolist(), recorded.mask.tolist()) == ([1, 2, 3], [False, True, True])
    assert recorded.logprobs.tolist() == [0.0, -0.5, -0.25]
    ((_, _, made),) = read_sequences(tmp_path / "tokens", pl.col("id").str.contains('"s3"'))
    trained = small_backend().decode(made.ids[made.mask].tolist(), skip_special_tokens=False)
    assert trained == "answer 3<|im_end|>"


def test_nothing_is_encoded_twice(table, tokenizer, tmp_path, monkeypatch):
    first = encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    encoded = []
    encode_items = stage.encode_items
    monkeypatch.setattr(
        stage, "encode_items", lambda items, options: encoded.extend(items) or encode_items(items, options)
    )
    again = encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    assert encoded == []
    assert again == first | {"from_cache": 8}
    table.append([experience(9)])
    more = encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    assert [item.id for item in encoded] == [experience(9).eid.uid]
    assert more["items"] == 9


def test_another_template_or_length_is_encoded_anew(table, tokenizer, tmp_path):
    encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    cut = encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer), max_length=12))
    assert (cut["from_cache"], cut["length"]["max"] <= 12) == (0, True)
    before = folder_hash(tokenizer)
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE.replace("\n", "\n\n"))
    assert folder_hash(tokenizer) != before
    assert encode_source(table.path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))["from_cache"] == 0


def test_two_processes_give_what_one_does(table, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ITEMS_PER_TASK", 3)
    manifests = []
    for workers in (1, 2):
        manifests.append(
            encode_source(table.path, tmp_path / f"t{workers}", EncodeOptions(str(tokenizer)), num_workers=workers)
        )
    assert manifests[0] == manifests[1]
    left, right = (sorted(read_sequences(tmp_path / f"t{n}"), key=lambda row: row[:2]) for n in (1, 2))
    assert [row[:2] for row in left] == [row[:2] for row in right]
    assert all(a[2] == b[2] for a, b in zip(left, right, strict=True))


def test_pairs_share_their_prompt_ids(tokenizer, tmp_path):
    pair = Pair(
        id="0" * 32, prompt=[Message("user", "hi")], chosen=[Message("assistant", "good")],
        rejected=[Message("assistant", "bad")], chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(),
        rejected_eid=EID(), gap=1.0, strategy="all",
    )  # fmt: skip
    write_pairs(tmp_path / "pairs", [pairs_to_batch([pair])])
    manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", EncodeOptions(str(tokenizer)))
    assert (manifest["items"], manifest["sequences"]) == (1, 2)
    rows = pl.read_parquet(tmp_path / "tokens" / "sequences-*.parquet").sort("side")
    (length,) = set(rows["prompt_length"])
    assert rows["ids"][0][:length].to_list() == rows["ids"][1][:length].to_list()
    assert not any(rows["mask"][0][:length])


def test_a_folder_that_is_neither_is_refused(tokenizer, tmp_path):
    with pytest.raises(TableError, match="neither an experience table nor pairs"):
        encode_source(tmp_path, tmp_path / "tokens", EncodeOptions(str(tokenizer)))
