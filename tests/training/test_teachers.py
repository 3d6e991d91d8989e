"""Another model as the teacher of the sdpo channel."""

import json

import pytest
import torch

from pairwright.config import Config, TokensConfig
from pairwright.errors import ConfigError
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.training import train
from pairwright.training.data import DataError, load_policy_data
from pairwright.training.model.load_model import load_model
from training.made_runs import make_model

ANSWERS = {0: ("it is red", 1.0), 1: ("no, blue!", 0.0), 2: ("go left", 0.5)}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    torch.set_num_threads(1)
    return make_model(tmp_path_factory.mktemp("teacher") / "model", width=48, layers=1, seed=7)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two tasks of three runs each."""
    folder = tmp_path_factory.mktemp("scored") / "table"
    with Table(folder) as table:
        table.append([
            Experience(
                eid=EID(batch=0, task=task, run=run), kind="single_turn", prompt=[Message("user", f"say red {task}")],
                completion=[Message("assistant", text)], reward=reward if task == 0 else 0.0,
            )
            for task in range(2)
            for run, (text, reward) in ANSWERS.items()
        ])  # fmt: skip
    return folder


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_another_model_teaches_its_distribution_at_every_trained_token(beta, model, teacher, runs, tmp_path):
    settings = {
        "channels": {"dpo": 0, "sdpo": 1}, "batch_size": 6, "epochs": 12, "learning_rate": 1e-2, "threads": 1,
        "sdpo": {"teacher": str(teacher), "context": [], "beta": beta, "top_k": None},
    }  # fmt: skip
    train(Config.model_validate({"train": settings}), model=model, experience=runs, output=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = divergence(model, teacher, runs, beta)
    assert rows[0]["loss"] == pytest.approx(expected, rel=1e-4)
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]


def divergence(student, teacher, runs, beta):
    """The mean over the tokens of all answers, from plain passes of both models, term by term."""
    tokenizer = ChatTokenizer.from_folder(student)
    models = [load_model(folder, Config().train) for folder in (student, teacher)]
    rows = []
    for run in Table(runs).records():
        prompt = tokenizer.encode(f"<|user|>{run.prompt[0].text}<|end|><|assistant|>")[0]
        answer = tokenizer.encode(f"{run.completion[0].text}<|end|>")[0]
        ids = torch.tensor([[*prompt.tolist(), *answer.tolist()]])
        with torch.no_grad():
            s, t = (one(ids).logits[0, len(prompt) - 1 : -1].double().softmax(-1) for one in models)
        middle = (1 - beta) * s + beta * t
        kl_t, kl_s = (
            (p * (p / (q if 0 < beta < 1 else o)).log()).sum(-1) for p, q, o in ((t, middle, s), (s, middle, t))
        )
        rows.append(kl_t if beta == 0 else kl_s if beta == 1 else beta * kl_t + (1 - beta) * kl_s)
    return float(torch.cat(rows).mean())


def test_a_teacher_of_another_vocabulary_is_refused(model, teacher, runs, tmp_path):
    other = tmp_path / "other"
    make_model(other)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"!": 6', '"!": 7').replace('"\\"": 7', '"\\"": 6'))
    settings = {"channels": {"dpo": 0, "sdpo": 1}, "threads": 1, "sdpo": {"teacher": str(other), "context": []}}
    with pytest.raises(DataError, match="a teacher needs the vocabulary of the student"):
        train(Config.model_validate({"train": settings}), model=model, experience=runs, output=tmp_path / "run")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"context": [], "teacher": "same"}, "teach nothing"),
        ({"solution_text": "look"}, "solution_text"),
    ],
)
def test_what_cannot_teach_is_refused(section, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        Config.model_validate({"train": {"sdpo": section}})


def test_runs_lie_in_a_mapped_file(model, runs, tmp_path):
    data = load_policy_data(runs, tmp_path / "tokens", TokensConfig(tokenizer=str(model)), lambda done, total: None)
    assert len(data.ids) == 6
    assert data.lengths.tolist() == [len(data.sequences[place]) for place in range(6)]
    assert not data.sequences[3].ids.flags.owndata
    assert not data.sequences[3].ids.flags.writeable
    assert data.tree(3).num_tokens == data.lengths[3]
