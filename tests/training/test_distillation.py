"""The sdpo channel: hinted error turns are learned by the model that had no hint."""

import json

import pytest

from pairwright.config import Config, TokensConfig
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message
from pairwright.store.table import Table
from pairwright.tokens.batch.collate import collate_distill
from pairwright.tokens.hints import find_hints
from pairwright.tokens.teacher_sequences import distill_experience
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.training import train
from pairwright.training.data import DataError
from pairwright.training.distill_data import load_distill_data


def all_items(data):
    return [data.items[position] for position in range(len(data.items))]


@pytest.fixture(scope="module")
def failed_runs(tmp_path_factory):
    """Runs in which a tool failed and the model then wrote something."""
    folder = tmp_path_factory.mktemp("failed")
    with Table(folder / "table") as table:
        table.append([
            Experience(
                eid=EID(batch=0, task=number, run=0), kind="multi_turn", prompt=[Message("user", f"count {number}")],
                completion=[
                    Message("assistant", "go left"), Message("tool", "no such file", tool_call_id=None),
                    Message("assistant", f"it is {number}"),
                ],
                reward=0.0, errors=[ErrorSite(2, "file_not_found", "no such file")],
            )
            for number in range(6)
        ])  # fmt: skip
    return folder / "table"


def test_the_hints_are_those_of_the_function_that_the_configuration_names(model, failed_runs, tmp_path):
    (tmp_path / "own.py").write_text("def hint(messages, site): return f'count again after {len(messages)} messages'\n")
    sections = [{"hint": f"{tmp_path}/own.py:hint"}, {"hint_sources": ["environment"]}, {}]
    settings = [Config.model_validate({"train": {"sdpo": section}}).train.sdpo for section in sections]
    options = TokensConfig(tokenizer=str(model))
    tokenizer = ChatTokenizer.from_folder(model)
    data = load_distill_data(failed_runs, tmp_path / "taught", options, settings[0], lambda done, total: None)
    assert data.counts == {"without_hint": 0, "without_recovery": 0, "recorded": 0}
    assert all("[Hint: count again after 4 messages]" in tokenizer.decode(item.teacher.ids) for item in all_items(data))
    with pytest.raises(DataError, match="6 × without_hint"):  # the tool's message would only be said twice
        load_distill_data(failed_runs, tmp_path / "taught", options, settings[1], lambda done, total: None)
    data = load_distill_data(failed_runs, tmp_path / "taught", options, settings[2], lambda done, total: None)
    assert all(
        "[Hint: There is no such file or folder." in tokenizer.decode(item.teacher.ids) for item in all_items(data)
    )


def test_recorded_log_probabilities_count_in_the_ratio_clip(model, tmp_path):
    """Without them the ratio is 1 and a clip of 2 does nothing; with them a clip far below the ratio scales the loss."""
    tokenizer = ChatTokenizer.from_folder(model)
    first = tokenizer.encode("<|user|>count<|end|><|assistant|>")[0].tolist()
    sampled = [tokenizer.encode(text)[0].tolist() for text in ("go left<|end|>", "it is 7<|end|>")]
    between = tokenizer.encode("<|tool|>no such file<|end|><|assistant|>")[0].tolist()
    mask = [True] * len(sampled[0]) + [False] * len(between) + [True] * len(sampled[1])
    with Table(tmp_path / "table") as table:
        table.append([Experience(
            kind="multi_turn", prompt=[Message("user", "count")],
            completion=[Message("assistant", "go left"), Message("tool", "no such file"), Message("assistant", "it is 7")],
            errors=[ErrorSite(2, "file_not_found", "no such file")], tokens=[*first, *sampled[0], *between, *sampled[1]],
            prompt_length=len(first), action_mask=mask, logprobs=[-9.0 if is_sampled else 0.0 for is_sampled in mask],
        )])  # fmt: skip
    losses = []
    for number, clip in enumerate((None, 1e-3)):
        settings = {"channels": {"dpo": 0, "sdpo": 1}, "threads": 1, "max_steps": 1, "sdpo": {"ratio_clip": clip}}
        config = Config.model_validate({"train": settings})
        train(config, model=model, experience=tmp_path / "table", output=tmp_path / str(number))
        losses.append(json.loads((tmp_path / str(number) / "metrics.jsonl").read_text().splitlines()[0])["loss"])
    assert losses[1] < 0.1 * losses[0]


def test_the_collator_has_the_recorded_ids_that_the_trainer_has(model, tmp_path):
    tokenizer = ChatTokenizer.from_folder(model)
    texts = (
        "<|user|>count<|end|><|assistant|>",
        "go  left<|end|>",
        "<|tool|>no such file<|end|><|assistant|>",
        "it<|end|>",
    )
    parts = [tokenizer.encode(text)[0].tolist() for text in texts]  # two spaces were sampled, the message has one
    ids = [token for part in parts for token in part]
    experience = Experience(
        kind="multi_turn", prompt=[Message("user", "count")],
        completion=[Message("assistant", "go left"), Message("tool", "no such file"), Message("assistant", "it")],
        errors=[ErrorSite(2, "file_not_found", "no such file")], tokens=ids, prompt_length=len(parts[0]),
        action_mask=[number != 1 for number, part in enumerate(parts[1:]) for _ in part],
    )  # fmt: skip
    with Table(tmp_path / "table") as table:
        table.append([experience])
    settings = Config().train.sdpo
    options = TokensConfig(tokenizer=str(model))
    data = load_distill_data(tmp_path / "table", tmp_path / "taught", options, settings, lambda done, total: None)
    hints, _ = find_hints(experience.messages, experience.errors)
    batch = collate_distill(distill_experience(tokenizer, experience, hints), pad_id=0)
    assert batch.student_ids[0].tolist() == data.items[0].student.ids.tolist() == ids
    assert batch.teacher_ids[0].tolist() == data.items[0].teacher.ids.tolist()
    assert batch.sdpo_mask[0].tolist() == data.items[0].student_mask.tolist()


@pytest.mark.parametrize("teacher", ["initial", "same"])
@pytest.mark.parametrize("kind", ["all_weights", "lora"])
def test_the_student_comes_closer_to_its_hinted_self(teacher, kind, model, failed_runs, tmp_path):
    settings = {
        "channels": {"dpo": 0, "sdpo": 1}, "batch_size": 3, "epochs": 4, "learning_rate": 5e-3, "threads": 1,
        "finetuning_type": kind, "sdpo": {"teacher": teacher, "top_k": 20}, "lora": {"adapter_dim": 4},
    }  # fmt: skip
    train(Config.model_validate({"train": settings}), model=model, experience=failed_runs, output=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["sdpo/divergence"] > 0
    assert rows[0]["loss"] == pytest.approx(rows[0]["sdpo/divergence"], rel=1e-4)
    if teacher == "initial":
        assert rows[-1]["sdpo/divergence"] < rows[0]["sdpo/divergence"]
