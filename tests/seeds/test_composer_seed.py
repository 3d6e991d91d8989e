"""The Composer collator's own document (`trainer/data_collator.py`): its names, defaults, batches and files, literally.

Numbers are characters in the batches of these tests, so that every expected row can be read.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import pairwright as pw
import pairwright.composer
from pairwright.composer import CollatorConfig, ComposerDataCollator, TokenizerLike, TraceExample, TraceTurn
from pairwright.config import Config
from pairwright.pairs.pair_table import read_pairs
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.training import train
from training.made_runs import make_model

torch = pytest.importorskip("torch")

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
GRPO = ["input_ids", "attention_mask", "response_mask", "rewards"]
SDPO = [
    "ctx_teacher_input_ids",
    "sdpo_loss_mask",
    "student_response_idx",
    "teacher_response_idx",
    "student_response_valid",
    "teacher_response_valid",
]
DPO = [
    "dpo_chosen_input_ids",
    "dpo_chosen_response_mask",
    "dpo_rejected_input_ids",
    "dpo_rejected_response_mask",
]


class Stub:
    """A tokenizer without a chat template, as unit tests write one."""

    pad_token_id = 0

    def __call__(self, text, **kwargs):
        assert kwargs == {"add_special_tokens": False}
        return {"input_ids": [ord(letter) for letter in text]}


class Batched(Stub):
    def __call__(self, text, **kwargs):
        return {"input_ids": torch.tensor([super().__call__(text, **kwargs)["input_ids"]])}

    def apply_chat_template(self, messages, **kwargs):
        raise NotImplementedError


class Templated(Stub):
    """A template like any other, in the two shapes that `apply_chat_template` may return."""

    def __init__(self, wrap):
        self.wrap = wrap

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        text = "".join(f"<{message['role']}>{message['content']}</>" for message in messages)
        return self.wrap([ord(letter) for letter in text + "<assistant>" * add_generation_prompt])


class Inherited(TokenizerLike):
    pad_token_id = 0

    def __call__(self, text, **kwargs):
        return Stub()(text, **kwargs)


def spell(ids):
    return "".join(chr(number) for number in ids.tolist() if number > 0)


def masked(ids, mask):
    return spell(ids[mask.bool()])


def hint_for(error_kind: str, error_meta: dict) -> str | None:
    return f"{error_kind}: use one of {error_meta['available_tools']}"


def example(**more) -> TraceExample:
    recovery: TraceTurn = {
        "role": "assistant",
        "content": "read x",
        "tool_call": None,
        "tool_error": "tool_not_found",
        "error_meta": {"available_tools": ["read"]},
    }
    turns = [
        {"role": "user", "content": "Show x."},
        {"role": "assistant", "content": "open x"},
        {"role": "tool", "content": "no tool named open"},
        recovery,
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Bye."},
    ]
    return {"trace_id": "t-1", "turns": turns, "final_reward": 0.5, "dpo_pairs": None, **more}


def plain(**more) -> TraceExample:
    return {"turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], **more}


def collate(examples, tokenizer=None, **options):
    collator = ComposerDataCollator(tokenizer=tokenizer or Stub(), config=CollatorConfig(**options))
    return collator(examples)


def test_the_names_their_order_and_their_defaults():
    names = {"ComposerDataCollator", "CollatorConfig", "TraceTurn", "TraceExample", "TokenizerLike"}
    assert set(pairwright.composer.__all__) == names
    assert [(field.name, field.default) for field in dataclasses.fields(CollatorConfig)] == [
        ("max_seq_len", 4096),
        ("max_dpo_seq_len", 2048),
        ("pad_token_id", 0),
        ("ignore_index", -100),
        ("enable_sdpo", True),
        ("hint_generator", None),
        ("enable_replay_dpo", True),
        ("rlvr_reward_key", "final_reward"),
    ]
    assert [field.name for field in dataclasses.fields(ComposerDataCollator) if field.init] == ["tokenizer", "config"]
    assert ComposerDataCollator(Stub()).config == CollatorConfig()
    assert TraceTurn.__annotations__.keys() == {"role", "content", "tool_call", "tool_error", "error_meta"}
    assert TraceExample.__annotations__.keys() >= {"trace_id", "turns", "final_reward", "dpo_pairs"}
    assert not TraceTurn.__total__
    assert not TraceExample.__total__


@pytest.mark.parametrize("tokenizer", [Stub(), Batched(), Inherited()], ids=["no method", "raises", "inherited"])
def test_a_stub_without_a_template_gives_the_texts_one_after_the_other(tokenizer):
    pairs = [{"state_messages": [{"role": "user", "content": "A"}, {"role": "user", "content": "B"}],
              "chosen": "yes", "rejected": "no!!"}]  # fmt: skip
    batch = collate([plain(final_reward=1), plain(dpo_pairs=pairs), example()], tokenizer)
    assert [name for name in batch if name in GRPO + SDPO + DPO] == GRPO + DPO
    assert [spell(row) for row in batch["input_ids"]][1:] == [
        "HiHello",
        "Show x.open xno tool named openread xThanks.Bye.",
    ]
    assert batch["attention_mask"].sum(1).tolist() == [7, 7, 48]
    rows = [masked(*row) for row in zip(batch["input_ids"], batch["response_mask"], strict=True)]
    assert rows == ["Hello", "Hello", "open xread xBye."]
    assert batch["rewards"].tolist() == [1.0, 0.0, 0.5], "a missing reward is 0.0"
    assert batch["rewards"].dtype == torch.float32
    assert all(batch[name].dtype == torch.int64 for name in [*GRPO[:3], *DPO])
    assert (batch["input_ids"][0, 7:] == 0).all()
    assert spell(batch["dpo_chosen_input_ids"][0]) == "A\nByes"
    assert batch["dpo_chosen_input_ids"].shape == batch["dpo_rejected_response_mask"].shape == (1, 7)
    assert batch["dpo_chosen_response_mask"].tolist() == [[0, 0, 0, 1, 1, 1, 0]]
    assert batch["dpo_rejected_response_mask"].tolist() == [[0, 0, 0, 1, 1, 1, 1]]


def test_the_hint_precedes_the_recovery_and_only_the_recovery_is_distilled():
    batch = collate([plain(), example()], hint_generator=hint_for, pad_token_id=9, ignore_index=-7)
    assert [name for name in batch if name in GRPO + SDPO + DPO] == [*GRPO[:3], *SDPO, "rewards"]
    teacher = batch["ctx_teacher_input_ids"][1]
    hint = "tool_not_found: use one of ['read']"
    assert spell(teacher) == f"Show x.open xno tool named open{hint}read xThanks.Bye."
    assert spell(batch["input_ids"][1]).rstrip("\t") == "Show x.open xno tool named openread xThanks.Bye."
    assert {tuple(batch[name].shape) for name in ("input_ids", "ctx_teacher_input_ids", "sdpo_loss_mask")} == {(2, 83)}
    assert set(batch["sdpo_loss_mask"].flatten().tolist()) == {1, -7}
    assert masked(teacher, batch["sdpo_loss_mask"][1] == 1) == "read x"
    for side, ids in (("student", batch["input_ids"][1]), ("teacher", teacher)):
        index, valid = batch[f"{side}_response_idx"], batch[f"{side}_response_valid"]
        assert (index.dtype, valid.dtype, tuple(index.shape)) == (torch.int64, torch.bool, (2, 6))
        assert (index[0].tolist(), valid[0].any()) == ([-1] * 6, False), "a trace without an error has no positions"
        assert spell(ids[index[1][valid[1]]]) == "read x"


def test_channels_are_switched_off_and_hints_may_be_missing():
    pairs = [{"state_messages": [{"role": "user", "content": "A"}], "chosen": "yes", "rejected": "no"}]
    whole = collate([example(dpo_pairs=pairs)], hint_generator=hint_for)
    assert whole.keys() >= {*GRPO, *SDPO, *DPO}
    for options in (
        {},
        {"hint_generator": hint_for, "enable_sdpo": False},
        {"hint_generator": lambda kind, meta: None},
    ):
        assert not collate([example(dpo_pairs=pairs)], **options).keys() & set(SDPO)
    assert not collate([example(dpo_pairs=pairs)], enable_replay_dpo=False).keys() & set(DPO)
    empty = example()
    empty["turns"][3]["content"] = ""  # a recovery whose text was stripped teaches nothing
    assert not collate([empty], hint_generator=hint_for).keys() & set(SDPO)
    assert collate([plain(score=0.25)], rlvr_reward_key="score")["rewards"].tolist() == [0.25]


def test_rows_are_no_longer_than_the_configuration_says():
    pairs = [{"state_messages": [{"role": "user", "content": "long " * 9}], "chosen": "yes", "rejected": "no"}]
    batch = collate([example(dpo_pairs=pairs)], hint_generator=hint_for, max_seq_len=60, max_dpo_seq_len=12)
    assert max(batch[name].shape[1] for name in (*GRPO[:3], *SDPO)) <= 60
    assert batch["dpo_chosen_input_ids"].shape == (1, 12)
    assert spell(batch["dpo_chosen_input_ids"][0]).endswith("long yes"), "the answer stays whole"


@pytest.mark.parametrize("wrap", [list, lambda ids: {"input_ids": [ids]}], ids=["list", "batch encoding"])
def test_a_stub_with_a_template_is_rendered_and_its_texts_are_found(wrap):
    pairs = [{"state_messages": [{"role": "user", "content": "A"}], "chosen": "a", "rejected": "no"}]
    letter = {
        "turns": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "a"}]
    }  # also in "<assistant>"
    batch = collate([example(dpo_pairs=pairs), letter], Templated(wrap), hint_generator=hint_for)
    assert spell(batch["input_ids"][1]) == "<user>a?</><assistant>a</>"
    assert torch.nonzero(batch["response_mask"][1]).flatten().tolist() == [22]
    assert masked(batch["input_ids"][0], batch["response_mask"][0]) == "open xread xBye."
    hint = "<system>tool_not_found: use one of ['read']</><assistant>read x</>"
    assert f"no tool named open</>{hint}<user>Thanks." in spell(batch["ctx_teacher_input_ids"][0])
    # The generation prompt precedes the answer, as in inference.
    assert spell(batch["dpo_chosen_input_ids"][0]) == "<user>A</><assistant>a"


TRACES = [
    # The recovery is in the middle of the run, ...
    example(trace_id="middle"),
    # ... or ends it; here the failed tool was called, and the recovery calls another one.
    {
        "trace_id": "last",
        "turns": [
            {"role": "user", "content": "Show y."},
            {"role": "assistant", "content": "Now.", "tool_call": {"name": "open", "arguments": {"file": "y"}}},
            {"role": "tool", "content": "no such thing"},
            {
                "role": "assistant",
                "content": "read y",
                "tool_error": "tool_not_found",
                "error_meta": {"available_tools": ["read", "list"]},
            },
        ],
        "final_reward": 1.0,
    },
]
WANTED = {
    "read x<|end|>": "[Hint: The tool is not available. The available tools are: read.]",
    "read y<|end|>": "[Hint: open is not available. The available tools are: read, list.]",
}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = make_model(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


def shared_file(name: str) -> Path:
    path = SHARED / "repro3" / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project")
    return path


def distilled(model: Path, file: Path, folder: Path) -> list[tuple[list[int], ...]]:
    """Import a file, train one update, and return what the dump says: ids and trained positions of student and teacher."""
    pw.import_traces(file, folder / "experience")
    settings = {"channels": {"dpo": 0, "sdpo": 1}, "batch_size": 8, "max_steps": 1, "threads": 1, "dump_batches": 1}
    config = Config.model_validate({"train": settings})
    train(config, model=model, experience=folder / "experience", output=folder / "run")
    dump = json.loads((folder / "run/batches/step-00000000.json").read_text())
    rows = []
    for item in dump["channels"]["sdpo"]:
        row = []
        for side in (item, item["teacher"]):
            ((branch,), (mask,)) = side["branches"], side["masks"]
            row += [side["prompt"] + branch, (np.flatnonzero(mask) + len(side["prompt"])).tolist()]
        rows.append(tuple(row))
    return sorted(rows)


def collated(model: Path, file: Path) -> list[tuple[list[int], ...]]:
    """The same from `pairwright.composer`."""
    collator = ComposerDataCollator(ChatTokenizer.from_folder(model), CollatorConfig(hint_generator="templates"))
    batch = collator([json.loads(line) for line in file.read_text().splitlines()])
    rows = []
    for number in range(len(batch["input_ids"])):
        row = []
        for side, name in (("student", ""), ("teacher", "ctx_teacher_")):
            is_text = batch[f"{name}attention_mask"][number].bool()
            valid = batch[f"{side}_response_valid"][number]
            row += [
                batch[f"{name}input_ids"][number][is_text].tolist(),
                batch[f"{side}_response_idx"][number][valid].tolist(),
            ]
        rows.append(tuple(row))
    return sorted(rows)


def check_distilled(model: Path, file: Path, folder: Path, wanted: dict[str, str]) -> None:
    rows = distilled(model, file, folder)
    assert rows == collated(model, file), "import and pairwright.composer give the same batch"
    tokenizer = ChatTokenizer.from_folder(model)
    found = {}
    for student, student_index, teacher, teacher_index in rows:
        trained = tokenizer.decode([student[place] for place in student_index])
        assert trained == tokenizer.decode([teacher[place] for place in teacher_index])
        context = tokenizer.decode(teacher[: teacher_index[0]])
        assert context.endswith("]<|end|><|assistant|>"), "the hint precedes the recovery"
        found[trained] = context[context.index("[Hint:") : -len("<|end|><|assistant|>")]
        assert "[Hint:" not in tokenizer.decode(student)
    assert found == wanted


def test_an_imported_trace_file_trains_the_recovery_as_the_collator_does(model, tmp_path):
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(trace) + "\n" for trace in TRACES))
    check_distilled(model, file, tmp_path, WANTED)


def test_the_shared_trace_file_trains_the_recovery_as_the_collator_does(model, tmp_path):
    hint = "[Hint: The tool is not available. The available tools are: read.]"
    wanted = {f"RECOVERY {number}<|end|>": hint for number in range(4)}
    check_distilled(model, shared_file("composer_trace.jsonl"), tmp_path, wanted)


def test_an_imported_error_keeps_its_kind_its_tool_and_the_available_tools(tmp_path):
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(trace) + "\n" for trace in TRACES))
    pw.import_traces(file, tmp_path / "experience")
    sites = [site for run in pw.Table(tmp_path / "experience") for site in run.errors]
    assert [(site.index, site.kind, site.tool, site.available_tools) for site in sites] == [
        (2, "tool_not_found", None, ("read",)),
        (2, "tool_not_found", "open", ("read", "list")),
    ]
    assert sites[1].meta == {"available_tools": ["read", "list"]}


def check_pairs(file: Path, folder: Path, wanted: list[tuple[str, str, str]]) -> None:
    pw.import_traces(file, folder / "experience")
    pw.make_pairs(folder / "experience", folder / "pairs", strategy="imported")
    pairs = read_pairs(folder / "pairs")
    assert sorted((pair.prompt[-1].text, pair.chosen[0].text, pair.rejected[0].text) for pair in pairs) == wanted


def test_pairs_without_a_trace_are_imported(tmp_path):
    file = tmp_path / "pairs.jsonl"
    state = [{"role": "user", "content": "Sea?"}]
    lines = [{"state_messages": state, "chosen": "Blue.", "rejected": "Red.", "teachers": 3}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    check_pairs(file, tmp_path, [("Sea?", "Blue.", "Red.")])


def test_the_shared_pairs_are_imported(tmp_path):
    wanted = [(f"q{number}", f"good {number}", f"bad {number}") for number in range(4)]
    check_pairs(shared_file("composer_pairs.jsonl"), tmp_path, wanted)
