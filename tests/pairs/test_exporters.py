"""Exports: each target's file reads back to the same pairs, or the pair is refused under a reason that is written here."""

import itertools
import json
from collections import Counter

import pyarrow as pa
import pytest
import typer
from export_cases import CASES, CUT, pair, pairs
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from pairwright import ConfigError, Experience, Message, PairwrightError
from pairwright.cli.commands.export_table import export_table
from pairwright.export import EXPORTERS
from pairwright.export import trl_export as trl
from pairwright.export.exporter import Check, ExportOptions, Part, json_line, jsonl_exporter
from pairwright.pairs.pair_table import PAIR_SCHEMA, pairs_to_batch, read_pairs, write_pairs
from pairwright.records.messages import canonical_messages
from pairwright.sources.format import Options
from pairwright.sources.reading import detect, read_file

JSONL = [name for name in EXPORTERS if name not in ("parquet", "hf")]
WHOLE = "whole"
NO_IMAGE = {"image": "content_is_not_text", "no-prompt": "no_prompt"}
CUTTING = {
    **NO_IMAGE, "trajectory": "cut", "apart": "cut", "prefix": "one_side_continues_the_other",
    "from-tool": "sides_part_at_no_assistant_message", "no-answer": "sides_part_at_no_assistant_message",
    "reasoning": "less",
}  # fmt: skip
TEXT_SIDES = {
    **CUTTING, "calls": "tool_calls_in_a_side", "bad-json": "tool_calls_in_a_side",
    "text-and-call": "tool_calls_in_a_side", "empty": "a_side_has_no_text",
}  # fmt: skip
TOOLS = ("calls", "results", "trajectory", "parallel", "bad-json", "text-and-call", "names", "unused-tools")
TEXT_PROMPT = {
    **TEXT_SIDES, **dict.fromkeys(TOOLS, "tools"),
    "history": "prompt_is_not_one_user_message", "only-system": "prompt_is_not_one_user_message",
}  # fmt: skip
CHAT = {**NO_IMAGE, "from-tool": "unread", "no-answer": "a_side_has_no_assistant_message"}
OPENAI = {**CUTTING, "empty": "a_side_has_no_text"}

# What becomes of each pair, where it does not come back whole: cut; less (without reasoning or names); later (whole, but
# the reader finds that the sides part later, since the format has no call ids in which they differ); unread (written, but
# our readers want sides that begin with the model); or the reason.
EXPECTED = {
    "trl": {**CHAT, "only-system": "prompt_ends_with_system_message"},
    "trl-implicit": CHAT,
    "nemo-rl-preference": CHAT,
    "nemo-rl-binary": TEXT_SIDES,
    "customizer": {**TEXT_PROMPT, "system": "prompt_is_not_one_user_message"},
    "customizer --history": TEXT_SIDES,
    "nemo-platform": {**TEXT_SIDES, **dict.fromkeys(TOOLS, "tools")},
    "openai-preference": OPENAI,
    "together": OPENAI,
    "fireworks": OPENAI,
    "llamafactory": {
        **CUTTING, "parallel": "tool_results_out_of_order", "bad-json": "arguments_are_no_json", "names": "less",
        "text-and-call": "text_beside_tool_calls", "only-system": "turns_do_not_alternate", "empty": "a_turn_has_no_text",
    },
    "llamafactory-v1": {
        **CHAT, "trajectory": "later", "parallel": "tool_results_out_of_order", "bad-json": "arguments_are_no_json", "names": "less",
    },
    "trinity": TEXT_PROMPT,
    "trinity-messages": CHAT,
}  # fmt: skip


def stored(folder, *names):
    write_pairs(folder, [pairs_to_batch([CASES[name] for name in names or CASES])])
    return folder


def run(target, pairs, output, **options):
    name, _, flag = target.partition(" ")
    return EXPORTERS[name](pairs, output, ExportOptions(history=flag == "--history", **options))


def read_back(path, format_name="auto"):
    layout = detect(path, format_name)
    return list(read_file(path, layout, Options()))


def conversations(prompt, chosen, rejected):
    """What two pairs must have in common to be the same; call ids are numbered through the whole conversation."""
    return len(prompt), canonical_messages([*prompt, *chosen]), canonical_messages([*prompt, *rejected])


def without(messages):
    """Messages without reasoning and names."""
    return [type(m)(m.role, m.content, tool_calls=m.tool_calls, tool_call_id=m.tool_call_id) for m in messages]


@pytest.mark.parametrize("target", EXPECTED)
@pytest.mark.parametrize("case", CASES)
def test_a_pair_comes_back_through_the_readers_or_is_refused_with_the_reason(tmp_path, target, case):
    output = tmp_path / "out.jsonl"
    summary = run(target, stored(tmp_path / "pairs", case), output)
    outcome, pair = EXPECTED[target].get(case, WHOLE), CASES[case]
    assert summary.pairs == 1 == summary.written + sum(summary.refused.values())
    if outcome == "unread":
        assert (summary.written, summary.noted["a_side_begins_in_the_environment"]) == (1, 1)
        return
    if outcome not in (WHOLE, "cut", "less", "later"):
        assert (summary.refused, summary.noted, output.read_bytes()) == ({outcome: 1}, {}, b"")
        assert summary.examples == {outcome: [pair.id]}
        return
    assert summary.refused == {}
    sides = CUT[case] if outcome in ("cut", "later") else (pair.prompt, pair.chosen, pair.rejected)
    assert ("cut_at_divergence" in summary.noted) == (outcome == "cut")
    if outcome == "less":
        assert set(summary.noted) <= {"reasoning_left_out", "names_left_out"} != set()
        sides = tuple(map(without, sides))
    # Trinity's plaintext has the keys of TRL's raw text, so its rows are read as a chat only with --format.
    (found,) = read_back(output, "trinity" if target == "trinity" else "auto")
    assert isinstance(found, Experience), found
    assert conversations(found.prompt, found.chosen.messages, found.rejected.messages) == conversations(*sides)
    assert found.tools == pair.tools


def raw_text(number=0):
    return pair([Message("text", f"The sea {number} is")], [Message("text", " wet.")], [Message("text", ' "dry"\n')])


@pytest.mark.parametrize("target", JSONL)
def test_raw_text_is_written_as_text_or_left_out_and_never_wrapped(tmp_path, target):
    write_pairs(tmp_path / "pairs", [pairs_to_batch([raw_text(0), raw_text(1)])])
    summary = run(target, tmp_path / "pairs", tmp_path / "out.jsonl")
    if not target.startswith("trl"):
        assert (summary.written, summary.refused) == (0, {"text_is_no_chat": 2})
        assert (tmp_path / "out.jsonl").read_bytes() == b""
        return
    assert (summary.written, summary.refused, summary.noted) == (2, {}, {})
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    scores = {"score_chosen": 0.9, "score_rejected": 0.25}
    assert (
        first
        == {
            "trl": {"prompt": "The sea 0 is", "chosen": " wet.", "rejected": ' "dry"\n', **scores},
            "trl-implicit": {"chosen": "The sea 0 is wet.", "rejected": 'The sea 0 is "dry"\n', **scores},
            "trl-unpaired": {"prompt": "The sea 0 is", "completion": " wet.", "label": True},
        }[target]
    )
    back = read_back(tmp_path / "out.jsonl")
    assert all(message.role == "text" for experience in back for message in experience.messages)
    assert back[0].prompt == raw_text().prompt
    if target != "trl-unpaired":
        assert (back[0].chosen.messages, back[0].rejected.messages) == (raw_text().chosen, raw_text().rejected)


@pytest.mark.parametrize("target", ["trl", "trl-implicit", "trl-unpaired"])
def test_a_file_for_trl_has_one_shape_which_the_first_pair_decides(tmp_path, target):
    for name, table, reason in (
        ("text", [raw_text(), CASES["plain"], CASES["calls"]], {"chat_among_texts": 2}),
        ("chat", [CASES["plain"], raw_text(0), CASES["system"], raw_text(1)], {"text_among_chats": 2}),
    ):
        write_pairs(tmp_path / name, [pairs_to_batch(table)])
        summary = run(target, tmp_path / name, tmp_path / f"{name}.jsonl")
        assert (summary.refused, summary.written) == (reason, len(table) - 2)
        kinds = {type(json.loads(line)["prompt" if target != "trl-implicit" else "chosen"])
                 for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()}  # fmt: skip
        assert kinds == {str if name == "text" else list}


@pytest.mark.parametrize("target", JSONL)
def test_text_beside_messages_of_a_chat_is_refused_everywhere(tmp_path, target):
    mixed = pair([Message("text", "The sea is")], [Message("assistant", "wet")], [Message("assistant", "dry")])
    write_pairs(tmp_path / "pairs", [pairs_to_batch([mixed])])
    assert run(target, tmp_path / "pairs", tmp_path / "out.jsonl").refused == {"text_is_no_chat": 1}


@pytest.mark.parametrize("target", ["parquet", "hf"])
def test_raw_text_is_whole_in_a_table(tmp_path, target):
    write_pairs(tmp_path / "pairs", [pairs_to_batch([raw_text()])])
    assert run(target, tmp_path / "pairs", tmp_path / "out").written == 1
    assert list(read_pairs(tmp_path / "pairs")) == [raw_text()]


@pytest.mark.parametrize("case", [case for case in CASES if EXPECTED["trl"].get(case, WHOLE) == WHOLE])
def test_unpaired_rows_come_back_as_a_good_and_a_bad_experience(tmp_path, case):
    summary = run("trl-unpaired", stored(tmp_path / "pairs", case), tmp_path / "out.jsonl")
    assert (summary.written, summary.rows) == (1, 2)
    good, bad = read_back(tmp_path / "out.jsonl")
    pair = CASES[case]
    assert (good.reward, bad.reward) == (1.0, 0.0)
    assert conversations(good.prompt, good.completion, bad.completion) == conversations(
        pair.prompt, pair.chosen, pair.rejected
    )
    assert good.tools == bad.tools == pair.tools


@pytest.mark.parametrize("target", ["trl", "trl-implicit", "nemo-rl-preference"])
def test_rewards_come_back_where_the_format_has_a_place_for_them(tmp_path, target):
    run(target, stored(tmp_path / "pairs", "plain"), tmp_path / "out.jsonl")
    (found,) = read_back(tmp_path / "out.jsonl")
    assert (found.chosen.reward, found.rejected.reward) == (0.9, 0.25)


@pytest.mark.parametrize("target", [*EXPECTED, "trl-unpaired"])
def test_one_file_of_all_pairs_adds_up_and_has_a_line_for_each_that_fits(tmp_path, target):
    summary = run(target, stored(tmp_path / "pairs"), tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert summary.pairs == len(CASES) == summary.written + sum(summary.refused.values())
    assert len(lines) == summary.rows == summary.written * (2 if target == "trl-unpaired" else 1)
    bad = [found.line for found in read_back(tmp_path / "out.jsonl") if not isinstance(found, Experience)]
    assert len(bad) <= summary.noted.get("a_side_begins_in_the_environment", 0)
    keys = {tuple(json.loads(line)) for line in lines}
    assert len(keys) == 1 or target == "trinity", "every row has the same columns"


@pytest.mark.parametrize("target", [*EXPECTED, "trl-unpaired"])
def test_values_are_never_python_reprs(tmp_path, target):
    run(target, stored(tmp_path / "pairs"), tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text()
    for sign in ("ToolCall(", "Message(", "b'", "{'", "None", "<pairwright"):
        assert sign not in text


@settings(max_examples=60, deadline=None)
@given(st.lists(pairs(), min_size=1, max_size=3))
def test_whatever_a_pair_holds_it_is_written_as_json_or_counted(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("any")
    write_pairs(folder, [pairs_to_batch(made)])
    for target in ("trl-unpaired", *EXPECTED):
        summary = run(target, folder, folder / "out.jsonl")
        lines = (folder / "out.jsonl").read_bytes().splitlines()
        assert summary.pairs == len(made) == summary.written + sum(summary.refused.values())
        assert [type(json.loads(line)) for line in lines] == [dict] * summary.rows


@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.lists(pairs() | st.sampled_from(list(CASES.values())), min_size=1, max_size=5),
    st.sampled_from(["text", "object"]),
)
def test_pairs_that_share_texts_are_written_as_each_of_them_alone(tmp_path_factory, made, arguments):
    def shape(pair):  # what a file has one of: the column of tools, and raw text or chats
        return bool(pair.tools), any(message.role == "text" for message in pair.prompt)

    made = [pair for pair in made if shape(pair) == shape(made[0])] * 2
    folder = tmp_path_factory.mktemp("together")
    write_pairs(folder / "together", [pairs_to_batch(made)])
    for number, each in enumerate(made):
        write_pairs(folder / str(number), [pairs_to_batch([each])])
    for target in JSONL:
        summary = run(target, folder / "together", folder / "together.jsonl", arguments=arguments)
        alone = [run(target, folder / str(n), folder / f"{n}.jsonl", arguments=arguments) for n in range(len(made))]
        lines = b"".join((folder / f"{number}.jsonl").read_bytes() for number in range(len(made)))
        assert (folder / "together.jsonl").read_bytes() == lines
        for counts in ("refused", "noted"):
            assert getattr(summary, counts) == sum((Counter(getattr(one, counts)) for one in alone), Counter())


def test_what_depends_on_one_text_is_computed_once_and_a_check_once_for_all_plain_texts_of_a_role(tmp_path):
    answers = [Message("assistant", f"answer {number}") for number in range(4)]
    both = itertools.combinations([*answers, Message("assistant", "thought", reasoning="so")], 2)
    write_pairs(tmp_path, [pairs_to_batch([pair([Message("user", "?")], [one], [other]) for one, other in both])])
    written, checked = [], []

    def write(side):
        written.append(side.messages[0].text)
        return side.json

    def check(side):
        checked.append(side.messages[0].text)
        return ()

    def layout_of(context):
        sides = ("chosen", "rejected")
        return [*(Check(check, side) for side in sides), *json_line({side: Part(write, side) for side in sides})]

    summary = jsonl_exporter("counted", layout_of)(tmp_path, tmp_path / "out.jsonl", ExportOptions())
    assert (summary.written, summary.rows) == (10, 10)
    assert sorted(written) == [*(answer.text for answer in answers), "thought"]
    assert checked == ["answer 0", "thought"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("customizer", "content_is_not_text"),
        ("customizer --history", "content_is_not_text"),
        ("nemo-rl-binary", "tool_calls_in_a_side"),
        ("openai-preference", "content_is_not_text"),
        ("trl", "content_is_not_text"),
    ],
)
def test_a_pair_that_fits_in_no_way_is_counted_under_the_first_reason_alone(tmp_path, target, reason):
    prompt, answer = CASES["image"].prompt, CASES["calls"].chosen
    both = [
        pair(prompt, answer, [Message("assistant", "")]),
        CASES["plain"],
        pair(prompt, answer, [Message("user", "")]),
    ]
    write_pairs(tmp_path, [pairs_to_batch(both)])
    summary = run(target, tmp_path, tmp_path / "out.jsonl")
    last = reason if target == "trl" else "sides_part_at_no_assistant_message"
    assert Counter(summary.refused) == Counter([reason, last])
    assert (summary.written, summary.noted) == (1, {})


@settings(max_examples=50, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(pairs() | st.sampled_from(list(CASES.values())))
def test_targets_of_plain_text_hold_the_same_texts_or_refuse_for_the_same_reason(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("texts")
    write_pairs(folder, [pairs_to_batch([made])])
    summaries = [run(target, folder, folder / target) for target in ("customizer", "trinity")]
    if "system_beside_prompt" in summaries[1].noted:
        assert summaries[0].refused == {"prompt_is_not_one_user_message": 1}
        return
    assert summaries[0].refused == summaries[1].refused
    assert [summary.noted.get("extra_left_out", 0) for summary in summaries] in ([0, 0], [1, 1])
    rows = [
        [list(json.loads(line).values()) for line in (folder / target).read_bytes().splitlines()]
        for target in ("customizer", "trinity")
    ]
    assert rows[0] == rows[1]


def test_what_is_noted_has_the_first_pairs_as_examples(tmp_path):
    calling = [CASES["trajectory"], CASES["text-and-call"], CASES["apart"]]
    made = [replace(pair, id=f"{number:032x}") for number, pair in enumerate([CASES["from-tool"], *calling] * 5)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(made)])
    found = EXPORTERS["trl"](tmp_path / "pairs", tmp_path / "joined.jsonl", ExportOptions())
    notes = {"several_messages_a_side": 15, "a_side_begins_in_the_environment": 5, "arguments_as_text": 15}
    assert found.noted == notes
    assert found.examples["several_messages_a_side"] == [f"{number:032x}" for number in (0, 1, 3, 4, 5)]


def row_of(folder, target, case, **options):
    run(target, stored(folder / "pairs", case), folder / "out.jsonl", **options)
    return json.loads((folder / "out.jsonl").read_text())


def test_the_rows_are_the_ones_that_the_formats_document(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    ask = {"role": "user", "content": "Weather in Oslo?"}
    row = row_of(tmp_path, "trl", "calls")
    tools = json.loads(row.pop("tools"))
    assert row == {
        "prompt": [ask], "chosen": [{"role": "assistant", "content": "", "tool_calls": [call]}],
        "rejected": [{"role": "assistant", "content": "No idea."}], "score_chosen": 0.9, "score_rejected": 0.25,
    }  # fmt: skip
    assert tools == list(CASES["calls"].tools)
    assert row_of(tmp_path, "openai-preference", "calls") == {
        "input": {"messages": [ask], "tools": tools, "parallel_tool_calls": False},
        "preferred_output": [{"role": "assistant", "content": None, "tool_calls": [call]}],
        "non_preferred_output": [{"role": "assistant", "content": "No idea."}],
    }
    assert row_of(tmp_path, "llamafactory", "calls") == {
        "system": "", "tools": json.dumps(tools, separators=(",", ":")),
        "conversations": [{"from": "human", "value": "Weather in Oslo?"}],
        "chosen": {"from": "function_call", "value": '{"name":"weather","arguments":{"city": "Oslo"}}'},
        "rejected": {"from": "gpt", "value": "No idea."},
    }  # fmt: skip
    assert row_of(tmp_path, "customizer", "apart") == {
        "prompt": "Go", "chosen_response": "x", "rejected_response": "z"
    }  # fmt: skip
    assert row_of(tmp_path, "customizer --history", "history")["prompt"] == [
        {"role": "user", "content": "1?"}, {"role": "assistant", "content": "One."}, {"role": "user", "content": "2?"}
    ]  # fmt: skip
    assert row_of(tmp_path, "trinity", "system") == {
        "system": "Be brief.", "prompt": "Hi", "chosen": "Hi", "rejected": "Good day to you"
    }  # fmt: skip
    ranked = row_of(tmp_path, "nemo-rl-preference", "plain")["completions"]
    assert [(side["rank"], side["reward"]) for side in ranked] == [(0, 0.9), (1, 0.25)]


def test_a_message_with_text_and_more_is_a_chat_message_too(tmp_path):
    (call,) = row_of(tmp_path, "trl", "text-and-call")["chosen"][0]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert row_of(tmp_path, "trl", "reasoning")["chosen"] == [
        {"role": "assistant", "content": "42", "reasoning_content": "6*7"}
    ]


def test_loss_weights_mark_what_the_model_wrote_in_its_side_and_nothing_else(tmp_path):
    row = row_of(tmp_path, "llamafactory-v1", "trajectory")
    assert [(turn["role"], turn["loss_weight"]) for turn in row["chosen_messages"]] == [
        ("user", 0.0), ("assistant", 1.0), ("tool", 0.0), ("assistant", 1.0)
    ]  # fmt: skip
    assert [turn["loss_weight"] for turn in row_of(tmp_path, "llamafactory-v1", "results")["rejected_messages"]] == [
        0.0, 0.0, 0.0, 1.0
    ]  # fmt: skip


def test_arguments_are_objects_on_request(tmp_path):
    row = row_of(tmp_path, "trl", "calls", arguments="object")
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    summary = run("trl", stored(tmp_path / "pairs", "calls"), tmp_path / "out.jsonl", arguments="object")
    assert "arguments_as_text" not in summary.noted
    assert run("trl", stored(tmp_path / "pairs", "bad-json"), tmp_path / "out.jsonl", arguments="object").refused == {
        "arguments_are_no_json": 1
    }


@pytest.mark.parametrize(
    "target, case, reason",
    [
        ("trl", "trajectory", "several_messages_a_side"),
        ("trl", "extra", "extra_left_out"),
        ("trl", "weighted", "weight_left_out"),
        ("trl", "calls", "arguments_as_text"),
        ("trl-unpaired", "calls", "arguments_as_text"),
        ("nemo-rl-preference", "results", "tools_not_rendered"),
        ("nemo-rl-preference", "trajectory", "several_messages_a_side"),
        ("openai-preference", "extra", "extra_left_out"),
        ("openai-preference", "reasoning", "reasoning_left_out"),
        ("trinity", "system", "system_beside_prompt"),
        ("trinity-messages", "calls", "tools_not_rendered"),
        ("llamafactory-v1", "names", "names_left_out"),
    ],
)
def test_what_is_not_written_or_not_trained_as_elsewhere_is_noted(tmp_path, target, case, reason):
    summary = run(target, stored(tmp_path / "pairs", case), tmp_path / "out.jsonl")
    assert summary.noted[reason] == 1
    assert summary.examples[reason] == [CASES[case].id]
    assert run(target, stored(tmp_path / "pairs", "plain"), tmp_path / "out.jsonl").noted == {}


@pytest.mark.parametrize("target", EXPORTERS)
def test_only_the_split_that_was_asked_for_is_written(tmp_path, target):
    if target == "hf":
        pytest.importorskip("datasets")
    stored(tmp_path / "pairs", "plain", "weighted")
    for split, number in (("train", 1), ("validation", 1), ("all", 2)):
        summary = run(target, tmp_path / "pairs", tmp_path / f"out-{split}", split=split)
        assert (summary.pairs, summary.written) == (number, number)


def test_the_package_lists_the_exporters():
    from pairwright import export as package

    assert package.EXPORTERS is EXPORTERS


def test_a_parquet_export_is_a_pairs_table_and_loses_nothing(tmp_path):
    stored(tmp_path / "pairs")
    assert run("parquet", tmp_path / "pairs", tmp_path / "out.parquet").written == len(CASES)
    assert list(read_pairs(tmp_path / "out.parquet")) == list(CASES.values())


def test_a_dataset_on_disk_loads_and_loses_nothing(tmp_path):
    datasets = pytest.importorskip("datasets")
    stored(tmp_path / "pairs")
    assert run("hf", tmp_path / "pairs", tmp_path / "out").written == len(CASES)
    loaded = datasets.load_from_disk(str(tmp_path / "out"))
    assert loaded.with_format("arrow")[:].cast(PAIR_SCHEMA) == pa.table(pairs_to_batch(list(CASES.values())))
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert {path.name for path in tmp_path.iterdir()} == {"pairs", "out"}


@pytest.mark.parametrize("target", JSONL)
def test_datasets_loads_every_jsonl(tmp_path, target, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    summary = run(target, stored(tmp_path / "pairs"), tmp_path / "out.jsonl")
    loaded = loaded_by_datasets(tmp_path / "out.jsonl", tmp_path / "cache")
    assert len(loaded) == summary.rows > 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [without_nulls(row) for row in loaded] == [without_nulls(row) for row in written]


def loaded_by_datasets(path, cache):
    datasets = pytest.importorskip("datasets")
    return datasets.load_dataset("json", data_files=str(path), cache_dir=str(cache), split="train")


def without_nulls(value):
    """Arrow fills the keys that a row does not have with nulls; nothing else may differ."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_an_export_that_fails_leaves_the_file_before_it(tmp_path):
    (tmp_path / "out.jsonl").write_text("before\n")

    def tear(prompt):
        if prompt.messages == CASES["history"].prompt:
            raise RuntimeError("broken")
        return ()

    def torn(context):
        return [*trl.explicit_lines(context), Check(tear, "prompt")]

    with pytest.raises(RuntimeError):
        jsonl_exporter("torn", torn)(stored(tmp_path / "pairs"), tmp_path / "out.jsonl", ExportOptions())
    assert (tmp_path / "out.jsonl").read_text() == "before\n"
    assert {path.name for path in tmp_path.iterdir()} == {"pairs", "out.jsonl"}


def test_memory_is_bounded_by_a_row_group(tmp_path, monkeypatch, peak_memory):
    monkeypatch.setattr("pairwright.pairs.row_groups.BYTES_PER_GROUP", 2**18)
    many = pairs_to_batch([CASES["plain"]] * 8)
    chats = [json.dumps([{"role": "user", "content": chr(97 + number) * 2**14}]) for number in range(8)]
    many = many.set_column(many.schema.get_field_index("prompt"), "prompt", pa.array(chats, "large_string"))
    write_pairs(tmp_path, (many for _ in range(200)))
    with peak_memory(limit=6 * 2**20):
        summary = run("trl", tmp_path, tmp_path / "out.jsonl")
    assert summary.written == 1600
    assert (tmp_path / "out.jsonl").stat().st_size > 25 * 2**20


def test_two_schemas_of_tools_stay_apart_when_they_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run("trl", stored(tmp_path / "pairs", "plain", "calls", "results"), tmp_path / "out.jsonl")
    loaded = loaded_by_datasets(tmp_path / "out.jsonl", tmp_path / "cache")
    assert [json.loads(tools) for tools in loaded["tools"]] == [
        list(CASES[name].tools) for name in ("plain", "calls", "results")
    ]


@pytest.mark.filterwarnings("ignore")  # what trl imports warns of many things
def test_trl_takes_what_was_written(tmp_path):
    data_utils = pytest.importorskip("trl.data_utils")
    names = [name for name in CASES if EXPECTED["trl"].get(name, WHOLE) == WHOLE]
    pairs = stored(tmp_path / "pairs", *names)
    for target in ("trl", "trl-implicit", "trl-unpaired"):
        run(target, pairs, tmp_path / f"{target}.jsonl")
        rows = list(loaded_by_datasets(tmp_path / f"{target}.jsonl", tmp_path / "cache"))
        assert all(map(data_utils.is_conversational, rows))
        if target == "trl-implicit":
            for name, row in zip(names, rows, strict=True):
                found = data_utils.extract_prompt(row)
                if name != "prefix":  # where one side is the other's beginning TRL has its own idea of the prompt
                    assert len(found["prompt"]) == len(CASES[name].prompt)
        for row in rows:
            rendered = data_utils.apply_chat_template(row, Template(), tools=json.loads(row["tools"]))
            assert {"chosen", "rejected"} <= set(rendered) or "completion" in rendered


class Template:
    """What TRL asks of a tokenizer: the messages as text, with the start of an answer on request."""

    def apply_chat_template(self, messages, tools=None, add_generation_prompt=False, continue_final_message=False, **_):
        text = json.dumps(tools) + "".join(f"<{m['role']}>{json.dumps(m)}" for m in messages)
        return text + ("<assistant>" if add_generation_prompt else "")


def command(*words):
    app = typer.Typer()
    app.command("export")(export_table)
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_command_says_what_became_of_every_pair(tmp_path):
    pairs, output = stored(tmp_path / "pairs"), tmp_path / "out" / "file.jsonl"
    done = command(pairs, "--to", "customizer", "-o", output, "--json")
    summary = json.loads(done.stdout)
    assert (summary["pairs"], summary["target"], summary["output"]) == (len(CASES), "customizer", str(output))
    assert summary["refused"]["tools"] == 8
    assert summary["written"] == len(output.read_text().splitlines())
    again = command(pairs, "--to", "customizer", "-o", output)
    assert isinstance(again.exception, PairwrightError)
    assert "--overwrite" in str(again.exception)
    done = command(pairs, "--to", "customizer", "-o", output, "--overwrite", "--history")
    assert f"noted: tools_not_rendered\t5\t{CASES['unused-tools'].id}" in done.stdout
    assert f"pairs written to {output} (customizer)" in done.stderr


@pytest.mark.parametrize("case", ["image", "no-prompt"])
def test_an_export_in_which_no_pair_fits_is_an_error_with_the_reasons_and_leaves_what_was_there(tmp_path, case):
    pairs, output = stored(tmp_path / "pairs", case), tmp_path / "out.jsonl"
    done = command(pairs, "--to", "trl", "-o", output, "--json")
    assert isinstance(done.exception, PairwrightError)
    assert (done.exception.exit_code, NO_IMAGE[case] in str(done.exception)) == (1, True)
    assert json.loads(done.stdout)["refused"] == {NO_IMAGE[case]: 1}
    assert not output.exists()
    output.write_text("before")
    assert isinstance(command(pairs, "--to", "trl", "-o", output, "--overwrite").exception, PairwrightError)
    assert output.read_text() == "before"


@pytest.mark.parametrize("target", ["trl", "parquet", "hf"])
def test_an_export_of_a_split_without_pairs_is_an_error(tmp_path, target):
    pairs = stored(tmp_path / "pairs", "plain")
    done = command(pairs, "--to", target, "-o", tmp_path / "out", "--split", "validation")
    assert isinstance(done.exception, PairwrightError)
    assert "no pairs of the split 'validation' to export" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (("--to", "tlr"), "did you mean 'trl'"),
        (("--to", "zzz"), "expected one of trl, trl-implicit"),
    ],
)
def test_a_wrong_word_is_a_usage_error(tmp_path, words, message):
    done = command(stored(tmp_path / "pairs", "plain"), *words, "-o", tmp_path / "out.jsonl")
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "option, known", [("split", ("train", "validation", "all")), ("arguments", ("text", "object"))]
)
def test_a_word_that_an_option_does_not_have_is_refused_with_those_it_has(tmp_path, option, known):
    with pytest.raises(ConfigError, match=f"expected {', '.join(known)}"):
        ExportOptions(**{option: "x"})
    done = command(stored(tmp_path / "pairs", "plain"), "--to", "trl", f"--{option}", "x", "-o", tmp_path / "out.jsonl")
    assert all(word in done.output for word in known)
    assert not (tmp_path / "out.jsonl").exists()


def test_binary_rows_of_nemo_rl_have_the_rewards_and_their_exact_difference(tmp_path):
    one = replace(CASES["plain"], chosen_reward=0.3, rejected_reward=0.1, gap=0.2)
    write_pairs(tmp_path / "pairs", [pairs_to_batch([one])])
    run("nemo-rl-binary", tmp_path / "pairs", tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["reward_gap"], row["chosen_reward"], row["rejected_reward"]) == (0.2, 0.3, 0.1)
    (experience,) = read_back(tmp_path / "out.jsonl")
    assert (experience.chosen.reward, experience.rejected.reward) == (0.3, 0.1)
