"""TRL's trainers on our rows: the same ids and masks reach its model, and an update is the update of our loop."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import trl
from transformers import AutoModelForCausalLM

from handover.tool_runs import make_model, make_runs, make_tool_pairs, our_update, their_arguments, their_update
from pairwright import encode
from pairwright.errors import ConfigError
from pairwright.trl import DPOTrainer, KTOTrainer, SFTTrainer

pytestmark = pytest.mark.filterwarnings("default")  # of TRL and its dependencies
TRAINERS = {"dpo": DPOTrainer, "sft": SFTTrainer, "kto": KTOTrainer}
DPO = {"loss": "sigmoid", "beta": 0.3, "label_smoothing": 0.1, "sft_loss_weight": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model to train and another one as the reference, so that no log-ratio is 0."""
    folder = tmp_path_factory.mktemp("handover")
    make_model(folder / "model")
    make_model(folder / "reference", scale=0.98)
    return folder


@pytest.fixture(scope="module")
def data(place):
    pairs = make_tool_pairs(place, place / "model")
    assert pairs.manifest["recorded"] == 16, "both sides of each pair are recorded ids"
    assert pairs[1].chosen.weights is not None or pairs[0].chosen.weights is not None
    runs = make_runs(place / "four", place / "model", 4)
    return {"dpo": pairs, "sft": pairs, "kto": encode(runs, place / "model", place / "run-tokens", workers=1)}


def options_of(kind):
    return {
        "dpo": {"dpo": DPO},
        "sft": {},
        "kto": {"kto": {"beta": 0.3, "desirable_weight": 1.5, "sft_loss_weight": 0}},
    }[kind]


def arguments_of(kind):
    return {"dpo": {"beta": 0.3, "label_smoothing": 0.1}, "sft": {}, "kto": {"beta": 0.3, "desirable_weight": 1.5}}[
        kind
    ]


def trainer_of(kind, place, dataset, *, reference=True, **arguments):
    known = {} if kind == "sft" else {"precompute_ref_log_probs": reference}
    args = their_arguments(kind, place / "out", **(known | arguments_of(kind) | arguments))
    model = AutoModelForCausalLM.from_pretrained(place / "model")
    more = {} if kind == "sft" else {"ref_model": AutoModelForCausalLM.from_pretrained(place / "reference")}
    return TRAINERS[kind](model=model, args=args, train_dataset=dataset, **more)


def assert_same(ours, theirs):
    (our_loss, our_gradient), (their_loss, their_gradient) = ours, theirs[:2]
    assert their_loss == pytest.approx(our_loss, abs=1e-5)
    assert our_gradient.keys() == their_gradient.keys()
    largest = max(float((our_gradient[name] - their_gradient[name]).abs().max()) for name in our_gradient)
    assert largest < 1e-5
    assert max(float(gradient.abs().max()) for gradient in our_gradient.values()) > 1e-2


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("sft", "in the rows")]
    + [
        (kind, way) for kind in ("dpo", "kto") for way in ("in the rows", "computed before", "computed with each batch")
    ],
)
def test_an_update_of_3_3_and_2_rows_is_the_update_of_our_loop(kind, reference, data, place):
    """With weights of rows and tokens, wherever the reference values come from."""
    ours = our_update(data[kind], kind, place / "model", place / "reference", **options_of(kind))
    known = place / "reference" if reference == "in the rows" else None
    dataset = data[kind].to_trl(kind, reference=known, **options_of(kind))
    assert len(dataset) == 8
    theirs = their_update(trainer_of(kind, place, dataset, reference=reference != "computed with each batch"))
    assert_same(ours, theirs)
    assert len(theirs[2]) == (16 if kind == "dpo" else 8)


def test_the_ids_and_masks_of_every_row_reach_the_model(data, place):
    theirs = their_update(trainer_of("dpo", place, data["dpo"].to_trl("dpo"), reference=False))[2]
    ours = [(side.ids.tolist(), side.mask.tolist()) for pair in data["dpo"] for side in (pair.chosen, pair.rejected)]
    assert sorted(theirs) == sorted(ours)
    # What TRL makes of the text of the same runs is something else: these ids are nowhere in it.
    text = make_tool_pairs(place / "text", place / "model", recorded=False)
    again = [side.ids.tolist() for pair in text for side in (pair.chosen, pair.rejected)]
    assert not [ids for ids, _ in ours if ids in again]


def test_mean_of_means_would_be_another_update(data, place):
    """The check above can fail: with TRL's own scaling, rows of the small micro-batch count for more."""
    ours = our_update(data["dpo"], "dpo", place / "model", place / "reference", **options_of("dpo"))
    trainer = trainer_of("dpo", place, data["dpo"].to_trl("dpo", reference=place / "reference"))
    trainer._get_num_items_in_batch = lambda *_: None
    trainer.loss_is_scaled_for_ga = False
    assert abs(their_update(trainer)[0] - ours[0]) > 1e-3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"precompute_ref_log_probs": False}, "precompute_ref_log_probs"),
        ({"max_length": 64}, "max_length: 64, but a row has"),
        ({"f_divergence_type": "forward_kl"}, "f_divergence_type"),
        ({"ld_alpha": 0.5}, "ld_alpha"),
        ({"use_weighting": True}, "use_weighting"),
        ({"loss_type": ["bco_pair"]}, "bco_pair"),
    ],
)
def test_arguments_that_would_change_the_batches_are_refused(arguments, words, data, place):
    with pytest.raises(ConfigError, match=words):
        trainer_of("dpo", place, data["dpo"].to_trl("dpo", reference=place / "reference"), **arguments)


def test_reference_values_of_another_model_are_refused(data, place):
    with pytest.raises(ConfigError, match="ref_model"):
        trainer_of("dpo", place, data["dpo"].to_trl("dpo", reference=place / "model"))
    assert trainer_of("dpo", place, data["dpo"].to_trl("dpo", reference=place / "reference"))


def test_a_lora_trainer_has_the_base_model_as_reference(data, place):
    from peft import LoraConfig

    args = their_arguments("dpo", place / "out", precompute_ref_log_probs=True)
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(place / "model", dtype=dtype)
        dataset = data["dpo"].to_trl("dpo", reference=place / "model")
        assert DPOTrainer(model=model, args=args, train_dataset=dataset, peft_config=LoraConfig(task_type="CAUSAL_LM"))


@pytest.mark.parametrize("kind", ["sft", "kto"])
def test_rows_that_are_too_long_are_refused_by_every_trainer(kind, data, place):
    with pytest.raises(ConfigError, match="max_length"):
        trainer_of(kind, place, data[kind].to_trl(kind), reference=False, max_length=64)


def test_other_rows_and_other_releases_are_refused(data, place, monkeypatch):
    with pytest.raises(ConfigError, match=r"Encoded.to_trl\('dpo'\)"):
        trainer_of("dpo", place, data["dpo"].to_trl("sft"), reference=False)
    with pytest.raises(KeyError):
        trl.DPOTrainer(
            model=str(place / "model"),
            args=their_arguments("dpo", place / "out"),
            train_dataset=data["dpo"].to_trl("dpo"),
        )
    monkeypatch.setattr(trl, "__version__", "1.0.0")
    with pytest.raises(ConfigError, match=r"trl 1.0.0: .* pip install trl==1.16.0"):
        trainer_of("dpo", place, data["dpo"].to_trl("dpo"), reference=False)


def test_the_script_of_the_documentation_trains_every_row(place, data, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "trl.md").read_text(encoding="utf-8")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "first").symlink_to(place / "model")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "tokens").symlink_to(data["dpo"].path)
    monkeypatch.chdir(tmp_path)
    script: dict = {}
    exec(re.search(r"```py\n(.*?)```", page, re.S)[1], script)
    assert script["trainer"].state.global_step == 4, "eight pairs in batches of two"
    assert (tmp_path / "runs" / "first" / "trl" / "model.safetensors").is_file()
    assert script["trainer"].state.log_history[-1]["train_loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "sft", "kto"])
def test_two_processes_make_the_update_of_one(kind, data, place, tmp_path):
    """Eight rows, four per process, in micro-batches of 2; then seven rows, one of them repeated."""
    ours = our_update(data[kind], kind, place / "model", place / "reference", **options_of(kind))
    data[kind].to_trl(kind, reference=place / "reference", **options_of(kind)).save_to_disk(tmp_path / "rows")
    (tmp_path / "options.json").write_text(json.dumps(arguments_of(kind)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(Path(__file__).with_name("two_processes.py")), kind, str(place), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, *script], capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    result = torch.load(tmp_path / "update.pt", weights_only=True)
    assert_same(ours, (result["loss"], result["gradient"]))
    assert result["repeated"] == 0
    assert result["odd"] == {"repeated": 1, "rows_seen": 8, "distinct": 7}
    assert "1 of 7 rows are trained twice" in done.stderr
