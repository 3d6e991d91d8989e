"""The tokens stage: cached sequences, nothing encoded twice, every item counted."""

import json
import shutil
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from token_families import small_backend

from pairwright import EID, Experience, Message, Pair, Side, Table, TableError
from pairwright.config import TokensConfig
from pairwright.pairs.build import build_pairs
from pairwright.pairs.pair_table import pairs_to_batch, write_pairs
from pairwright.records.messages import TURN_WEIGHT
from pairwright.tokens.encode_pairs import EncodedPair, encode_pair
from pairwright.tokens.stage import stage
from pairwright.tokens.stage.cache import CachedPairs, read_sequences
from pairwright.tokens.stage.stage import encode_source, folder_hash, holds_pairs
from pairwright.tokens.tokenizer import ChatTokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


OK = [1, *(number for letter in "ok" for number in small_backend().encode(letter).ids)]  # not as it is encoded


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
        experience(7, completion=[Message("assistant", "ok")], tokens=OK, prompt_length=1, logprobs=[-0.5, -0.25]),
    ]
    with Table(tmp_path / "experience") as made:
        made.append(exps)
    return made


def test_every_item_is_exact_or_refused_with_its_reason(table, tokenizer, tmp_path):
    manifest = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
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
    encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    ((_, _, recorded),) = read_sequences(tmp_path / "tokens", pl.col("id").str.contains('"s7"'))
    assert (recorded.ids.tolist(), recorded.mask.tolist()) == (OK, [False, True, True])
    assert recorded.logprobs.tolist() == [0.0, -0.5, -0.25]
    ((_, _, made),) = read_sequences(tmp_path / "tokens", pl.col("id").str.contains('"s3"'))
    trained = small_backend().decode(made.ids[made.mask].tolist(), skip_special_tokens=False)
    assert trained == "answer 3<|im_end|>"


def test_nothing_is_encoded_twice(table, tokenizer, tmp_path, monkeypatch):
    first = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    encoded = []
    encode_items = stage.encode_items
    monkeypatch.setattr(
        stage, "encode_items", lambda items, options: encoded.extend(items) or encode_items(items, options)
    )
    again = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    assert encoded == []
    assert again == first | {"from_cache": 8}
    table.append([experience(9)])
    more = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    assert [item.id for item in encoded] == [experience(9).eid.uid]
    assert more["items"] == 9


def test_another_template_or_length_is_encoded_anew(table, tokenizer, tmp_path):
    encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    cut = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer), max_length=12))
    assert (cut["from_cache"], cut["length"]["max"] <= 12) == (0, True)
    before = folder_hash(tokenizer)
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE.replace("\n", "\n\n"))
    assert folder_hash(tokenizer) != before
    before = next(read_sequences(tmp_path / "tokens"))
    assert encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))["from_cache"] == 0
    assert len(next(read_sequences(tmp_path / "tokens"))[2]) > len(before[2])


def test_two_processes_give_what_one_does(table, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ITEMS_PER_TASK", 3)
    manifests = []
    for workers in (1, 2):
        manifests.append(
            encode_source(
                table.path, tmp_path / f"t{workers}", TokensConfig(tokenizer=str(tokenizer)), num_workers=workers
            )
        )
    assert manifests[0] == manifests[1]
    left, right = (sorted(read_sequences(tmp_path / f"t{n}"), key=lambda row: row[:2]) for n in (1, 2))
    assert [row[:2] for row in left] == [row[:2] for row in right]
    assert all(a[2] == b[2] for a, b in zip(left, right, strict=True))


def test_a_run_of_long_items_that_is_killed_keeps_what_it_has_encoded(table, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "MESSAGES_PER_TASK", 4)
    options = TokensConfig(tokenizer=str(tokenizer))
    whole = encode_source(table.path, tmp_path / "whole", options, num_workers=1)

    def die(done: int, total: int) -> None:
        if done >= 4:
            raise SystemExit

    with pytest.raises(SystemExit):
        encode_source(table.path, tmp_path / "tokens", options, num_workers=1, progress=die)
    again = encode_source(table.path, tmp_path / "tokens", options, num_workers=1)
    assert 4 <= again["from_cache"] < again["items"]
    assert {**again, "from_cache": 0} == whole


def test_pairs_share_their_prompt_ids(tokenizer, tmp_path):
    pair = Pair(
        id="0" * 32, prompt=[Message("user", "hi")], chosen=[Message("assistant", "good")],
        rejected=[Message("assistant", "bad")], chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(),
        rejected_eid=EID(), gap=1.0, strategy="all",
    )  # fmt: skip
    write_pairs(tmp_path / "pairs", [pairs_to_batch([pair])])
    manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    assert (manifest["items"], manifest["sequences"]) == (1, 2)
    rows = pl.read_parquet(tmp_path / "tokens" / "sequences-*.parquet").sort("side")
    (length,) = set(rows["prompt_length"])
    assert rows["ids"][0][:length].to_list() == rows["ids"][1][:length].to_list()
    assert not any(rows["mask"][0][:length])


def test_a_folder_that_is_neither_is_refused(tokenizer, tmp_path):
    with pytest.raises(TableError, match="neither an experience table nor pairs"):
        encode_source(tmp_path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))


def made_pair(number: int, **fields) -> Pair:
    sides = {"chosen": [Message("assistant", f"good {number}")], "rejected": [Message("assistant", "bad " * number)]}
    given = {"id": f"{number:032x}", "prompt": [Message("user", f"hi {number}")], "gap": 1.0, "strategy": "all"}
    rewards = {"chosen_reward": 1.0, "rejected_reward": 0.0, "chosen_eid": EID(), "rejected_eid": EID()}
    return Pair(**(given | sides | rewards | fields))


def test_encoded_pairs_are_read_by_position_and_by_id_in_the_order_of_the_source(tokenizer, tmp_path):
    options = TokensConfig(tokenizer=str(tokenizer))
    pairs = [made_pair(number) for number in (4, 2, 3)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs[1:])])
    encode_source(tmp_path / "pairs", tmp_path / "tokens", options)
    encode_source(tmp_path / "pairs", tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer), max_length=17))
    refused = made_pair(5, chosen=[Message("user", "not the model")])
    write_pairs(tmp_path / "pairs", [pairs_to_batch([*pairs, refused, pairs[0]])])
    assert encode_source(tmp_path / "pairs", tmp_path / "tokens", options)["refused"] == {"not_generated": 1}
    cached = CachedPairs(tmp_path / "tokens")
    assert cached.ids == [pair.id for pair in (*pairs, pairs[0])]
    ready = ChatTokenizer.from_folder(tokenizer)
    for position, pair in enumerate((*pairs, pairs[0])):
        expected = encode_pair(ready, pair.prompt, pair.chosen, pair.rejected)
        named = EncodedPair(
            chosen=expected.chosen.with_report(uid=pair.chosen_eid.uid),
            rejected=expected.rejected.with_report(uid=pair.rejected_eid.uid),
            prompt_length=expected.prompt_length,
        )
        assert cached[position] == named
        assert cached.lengths[position].tolist() == [len(expected.chosen), len(expected.rejected)]
        assert cached.prompt_lengths[position] == expected.prompt_length
    assert refused.id not in cached.ids
    assert [name for name, _, _ in read_sequences(tmp_path / "tokens")] == [i for i in cached.ids for _ in range(2)]


def test_the_arrays_of_a_pair_lie_in_the_mapped_file(tokenizer, tmp_path, peak_memory):
    """32 pairs with thousands of tokens per side: all are read, but only a fraction is in memory at a time."""
    long = "hi " * 4000
    pairs = [
        made_pair(n, chosen=[Message("assistant", long)], rejected=[Message("assistant", long)]) for n in range(32)
    ]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    encode_source(tmp_path / "pairs", tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)), num_workers=1)
    CachedPairs(tmp_path / "tokens")  # makes the file
    with peak_memory(limit=500_000):
        cached = CachedPairs(tmp_path / "tokens")
        assert sum(int(pair.chosen.ids.sum()) for pair in cached) > 0
        assert sum(pair.chosen.num_trained for pair in cached) == sum(pair.rejected.num_trained for pair in cached)
    assert not cached[0].chosen.ids.flags.owndata


def test_a_cache_without_pairs_or_without_items_is_refused(table, tokenizer, tmp_path):
    with pytest.raises(TableError, match=r"no items\.parquet; make one with"):
        CachedPairs(tmp_path)
    with Table(tmp_path / "other") as made:
        made.append([experience(1)])
    encode_source(made.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    with pytest.raises(TableError, match="1 sequences but no pairs"):
        CachedPairs(tmp_path / "tokens")


def test_what_another_run_encoded_is_not_read(table, tokenizer, tmp_path):
    encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    whole = list(read_sequences(tmp_path / "tokens"))
    encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer), max_length=13))
    assert max(len(sequence) for _, _, sequence in read_sequences(tmp_path / "tokens")) <= 13
    encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    assert list(read_sequences(tmp_path / "tokens")) == whole


def test_what_two_runs_wrote_at_the_same_time_counts_once(table, tokenizer, tmp_path):
    first = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)))
    whole = list(read_sequences(tmp_path / "tokens"))
    for part in list((tmp_path / "tokens").glob("sequences-*.parquet")):
        shutil.copy(part, part.with_name(part.name.replace("sequences-", "sequences-9")))
    assert encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer))) == first | {
        "from_cache": 8
    }
    assert list(read_sequences(tmp_path / "tokens")) == whole


GIVEN = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
NO_IDS = {"tokens": None, "prompt_length": None, "logprobs": None}


def with_ids(number: int, text: str, **fields) -> Experience:
    """Return an experience that was sampled letter by letter, unlike the encoding of its text, without a stop token."""
    given = {"prompt": [Message("user", "hi")], "completion": [Message("assistant", text)], "reward": number}
    prompt = small_backend().encode(GIVEN).ids
    sampled = [int(i) for char in text for i in small_backend().encode(char).ids]
    arrays = {"tokens": [*prompt, *sampled], "prompt_length": len(prompt), "logprobs": [-0.5] * len(sampled)}
    return experience(number, **(given | arrays | fields))


def encoded(source: Path, output: Path, tokenizer: Path, **options) -> dict:
    return encode_source(source, output, TokensConfig(tokenizer=str(tokenizer), **options))


def test_pairs_are_the_ids_that_their_experiences_recorded_found_by_lineage(tokenizer, tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([with_ids(0, "look"), with_ids(1, "hello"), with_ids(2, "there", **NO_IDS)])
    assert build_pairs([table], tmp_path / "pairs")["pairs"] == 3
    manifest = encoded(tmp_path / "pairs", tmp_path / "tokens", tokenizer)
    assert (manifest["recorded"], manifest["exact"], manifest["sequences"]) == (4, 3, 6)
    sampled = {exp.completion[0].text: exp.tokens for exp in table.records()}
    for pair in CachedPairs(tmp_path / "tokens"):
        for side in (pair.chosen, pair.rejected):
            text = small_backend().decode(side.ids[side.mask].tolist(), skip_special_tokens=False)
            assert side.report.source == ("rendered" if text == "there<|im_end|>" else "recorded")
            if side.report.source == "recorded":
                assert side.ids.tolist() == sampled[text].tolist()
                assert side.logprobs[side.mask].tolist() == [-0.5] * len(text)
    assert encoded(tmp_path / "pairs", tmp_path / "tokens", tokenizer) == manifest | {"from_cache": 3}
    ignored = encoded(tmp_path / "pairs", tmp_path / "tokens", tokenizer, recorded="ignore")
    assert (ignored["recorded"], ignored["exact"], ignored["from_cache"]) == (0, 3, 0)


def test_pairs_whose_recorded_ids_cannot_be_found_are_not_encoded_from_their_text(tokenizer, tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([with_ids(0, "look"), with_ids(1, "hello")])
    build_pairs([table], tmp_path / "pairs")
    table.path.rename(tmp_path / "moved")
    with pytest.raises(TableError, match=r"its experience table was not found: name it with --experience DIR"):
        encoded(tmp_path / "pairs", tmp_path / "tokens", tokenizer)
    named = encoded(tmp_path / "pairs", tmp_path / "tokens", tokenizer, experience=(str(tmp_path / "moved"),))
    assert named["recorded"] == 2
    assert encoded(tmp_path / "pairs", tmp_path / "other", tokenizer, recorded="ignore")["exact"] == 1


def test_recorded_ids_that_do_not_fit_are_refused(tokenizer, tmp_path):
    foreign = with_ids(1, "hello", tokens=[7, 6, 70, 71], prompt_length=2, logprobs=[-0.5] * 2)
    other_prompt = with_ids(2, "there")
    other_prompt = with_ids(2, "there", tokens=[9, *other_prompt.tokens[1:]])
    with Table(tmp_path / "experience") as table:
        table.append([with_ids(0, "look"), foreign, other_prompt])
    build_pairs([table], tmp_path / "pairs")
    manifest = encoded(tmp_path / "pairs", tmp_path / "tokens", tokenizer)
    assert (manifest["exact"], manifest["refused"]) == (0, {"prompts_differ": 1, "recorded_ids": 2})


def test_an_answer_that_was_cut_short_has_no_stop_token(tokenizer, tmp_path):
    cut = with_ids(0, "look", truncate_status="response_truncated", **NO_IDS)
    with Table(tmp_path / "experience") as table:
        table.append([cut, with_ids(1, "hello", **NO_IDS)])
    build_pairs([table], tmp_path / "pairs")

    def trained(source: Path) -> set[str]:
        manifest = encoded(source, tmp_path / "tokens", tokenizer)
        assert manifest["unstopped"] == 1
        sequences = [sequence for _, _, sequence in read_sequences(tmp_path / "tokens")]
        return {small_backend().decode(one.ids[one.mask].tolist(), skip_special_tokens=False) for one in sequences}

    assert trained(tmp_path / "pairs") == trained(table.path) == {"look", "hello<|im_end|>"}


def test_what_the_options_say_is_done(table, tokenizer, tmp_path):
    def made(**options):
        return encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer), **options))

    with table:
        table.append([experience(8, prompt=[Message("user", "one two <|im_end|> three")])])
    assert made()["refused"] == {"not_generated": 1}
    assert made(control_tokens="refuse")["refused"] == {"control_tokens": 1, "not_generated": 1}
    assert made(control_tokens="escape")["refused"] == {"not_generated": 1}
    assert made(max_length=11, truncation="drop")["refused"]["too_long"] > 1
    assert made(max_pair_length=3)["refused"] == {"not_generated": 1, "too_long": 1}
    last = pl.col("id").str.contains('"s8"')
    cut = made(max_length=13, keep_first=3)
    assert cut["length"]["max"] <= 13
    (kept,) = (sequence.ids.tolist() for _, _, sequence in read_sequences(tmp_path / "tokens", last))
    made()
    (whole,) = (sequence.ids.tolist() for _, _, sequence in read_sequences(tmp_path / "tokens", last))
    assert len(kept) < len(whole)
    assert kept == [*whole[:3], *whole[len(whole) - len(kept) + 3 :]]


def test_missing_reasoning_is_an_option_of_the_stage_and_of_its_cache(table, tokenizer, tmp_path):
    # Nothing is rendered of a thought: the row of the family says how one is closed.
    thinking = "{# </think> #}" + TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    source = json.dumps({"chat_template": thinking, "eos_token": "<|im_end|>"})
    (tokenizer / "tokenizer_config.json").write_text(source)
    manifests = [
        encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer), missing_reasoning=rule))
        for rule in ("close", "refuse")
    ]
    assert [manifest["options"]["missing_reasoning"] for manifest in manifests] == ["close", "refuse"]
    # Five experiences and a preference; recorded ids are taken as they are.
    assert [manifest["refused"].get("no_reasoning", 0) for manifest in manifests] == [0, 6]
    # The tokens that close the thoughts are counted, and such items are not called exact.
    assert manifests[0]["with_added_tokens"] == manifests[0]["sequences"] - manifests[0]["recorded"]
    assert manifests[0]["added_tokens"] >= manifests[0]["with_added_tokens"] > 0
    assert manifests[0]["exact"] == manifests[0]["recorded"]
    assert manifests[1]["from_cache"] == 0


def test_weights_of_turns_reach_the_cache_and_parts_without_the_column_are_read(tokenizer, tmp_path):
    turn = Message("assistant", "two", extra={TURN_WEIGHT: 0.5})
    with Table(tmp_path / "table") as table:
        table.append([experience(1, completion=[turn]), experience(2)])
    options = TokensConfig(tokenizer=str(tokenizer), workers=1)
    encode_source(tmp_path / "table", tmp_path / "out", options)
    weighted, plain = (sequence for _, _, sequence in read_sequences(tmp_path / "out"))
    assert set(weighted.weights[weighted.mask].tolist()) == {0.5}
    assert plain.weights is None
    # As an earlier version wrote it.
    for part in (tmp_path / "out").glob("sequences-*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["weights"]), part)
    for mapped in (tmp_path / "out").glob("mapped-*.arrow"):
        mapped.unlink()
    assert [sequence.weights for _, _, sequence in read_sequences(tmp_path / "out")] == [None, None]
    assert encode_source(tmp_path / "table", tmp_path / "out", options)["from_cache"] == 2


def test_a_folder_whose_pairs_were_all_refused_still_holds_pairs(tokenizer, tmp_path):
    """A folder without sequences is still recognised by its manifest."""
    long, other = Message("assistant", "word " * 50), Message("assistant", "text " * 50)
    pair = Pair(
        id="p", prompt=(Message("user", "q"),), chosen=(long,), rejected=(other,), chosen_reward=1.0, rejected_reward=0.0,
        chosen_eid=EID("b", "t", 0, 0, "s0"), rejected_eid=EID("b", "t", 1, 0, "s1"), gap=1.0, strategy="pairs",
    )  # fmt: skip
    write_pairs(tmp_path / "pairs", [pairs_to_batch([pair])])
    manifest = encode_source(tmp_path / "pairs", tmp_path / "out", TokensConfig(tokenizer=str(tokenizer), max_length=8))
    assert manifest["refused"] == {"too_long": 1}
    assert holds_pairs(tmp_path / "out")
