"""If there is nothing to train on, the error begins with the refusals."""

import pytest

from pairwright.config import Config
from pairwright.errors import PairwrightError
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.training import train
from training.made_runs import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def runs(tmp_path):
    """16 runs of 4 tasks with rewards that differ; 14 are too long for 60 tokens, and the other 2 have one reward."""
    with Table(tmp_path / "runs") as table:
        table.append(
            Experience(
                eid=EID(batch=0, task=task, run=run),
                kind="single_turn",
                prompt=[Message("user", f"say {task}")],
                completion=[Message("assistant", "yes" if (task, run) in {(0, 0), (0, 1)} else "no " * 60)],
                reward=1.0 if run < 2 else 0.0,
            )
            for task in range(4)
            for run in range(4)
        )
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("channel", "options", "problem"),
    [
        ("grpo", {}, "the rewards differ in none"),
        ("kto", {"kto": {"label_by": "group", "sft_loss_weight": 10}}, "the rewards differ in no group"),
        ("kto", {"kto": {"sft_loss_weight": 10}}, "all 2 scored runs have the reward 1"),
    ],
)
def test_refusals_come_before_what_the_others_lack(model, runs, tmp_path, channel, options, problem):
    channels = {"dpo": 0.0, channel: 1.0}
    config = {"train": {"channels": channels, "threads": 1, **options}, "tokens": {"max_length": 60, "workers": 1}}
    with pytest.raises(PairwrightError) as caught:
        train(Config.model_validate(config), model=model, experience=runs, output=tmp_path / "run")
    message = str(caught.value)
    assert message.startswith(f"{channel}: 14 runs were left out (14 × refused: too_long); of the 2 others, ")
    assert problem in message


@pytest.mark.parametrize("channel", ["grpo", "kto", "sft", "sdpo"])
def test_a_table_of_refusals_lists_them(model, runs, tmp_path, channel):
    config = {
        "train": {
            "channels": {"dpo": 0.0, channel: 1.0},
            "threads": 1,
            "sdpo": {"context": []},
            "kto": {"sft_loss_weight": 10},
        },
        "tokens": {"max_length": 2, "workers": 1},
    }
    with pytest.raises(PairwrightError, match=r"no (scored )?run to train on \(16 × refused: too_long\); see"):
        train(Config.model_validate(config), model=model, experience=runs, output=tmp_path / "run")
