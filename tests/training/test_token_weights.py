"""Weights of single tokens reach every loss: a weight of 0 is a token that is not trained, halves count by half."""

import json
from dataclasses import replace
from itertools import groupby

import msgspec
import numpy as np
import pytest
import torch

import pairwright as pw
from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.config.train_config import DistillConfig, KtoConfig, PolicyConfig, PreferenceConfig
from pairwright.losses import DistillOptions, PolicyOptions, PolicyTokens, distill_loss, policy_loss
from pairwright.tokens.encode_pairs import EncodedPair
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.stage.stage import encode_source
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.training import train
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.distillation import DistillChannel
from pairwright.training.channels.likelihood import LikelihoodChannel
from pairwright.training.channels.policy_gradient import PolicyChannel
from pairwright.training.channels.preference_channel import PreferenceChannel
from pairwright.training.channels.unpaired_channel import UnpairedChannel
from pairwright.training.data import ChosenSides, PairData, PolicyData
from pairwright.training.distill_data import distill_runs
from pairwright.training.micro_batches import Limits
from pairwright.training.model.load_model import load_model
from pairwright.training.model.policy_model import Policy
from pairwright.training.model.ranks import Ranks

ITEMS = np.arange(2)


def sequence(answer, *, mask=None, weights=None):
    ids = [1, 30, 31, 5, 4, *answer]
    mask = [False] * 5 + (mask or [True] * len(answer))
    weights = None if weights is None else [9.0] * 5 + weights  # weights of untrained tokens have no effect
    old = [0.0] * 5 + [-5.0, -5.2, -5.4, -5.6][: len(answer)]  # ratios of grpo that are not 1
    return Sequence(
        ids=ids, mask=mask, message_index=[1] * len(ids), paint=[0] * len(ids), logprobs=old, weights=weights
    )


class Pairs(list):
    ids = ("a", "b")
    lengths = np.array([[8, 9], [7, 8]])
    prompt_lengths = np.array([5, 5])


def channels_of(first, second):
    """Every channel on two runs, or on two pairs of these runs with others."""
    runs = PolicyData(
        ids=["a", "b"], sequences=[first, second], lengths=np.array([len(first), len(second)]),
        rewards=np.array([1, 0], np.float32), groups=np.zeros(2, np.int64), counts={},
    )  # fmt: skip
    sides = [(first, sequence([50, 51, 52, 5])), (second, sequence([60, 61, 5]))]
    encoded = Pairs(EncodedPair(chosen=one, rejected=other, prompt_length=5) for one, other in sides)
    pair_fields = encoded, np.ones(2, np.float32), np.ones(2, np.float32), ITEMS, ITEMS[:0], {}
    pairs = PairData(*pair_fields)
    order, limits = BatchOrder(ITEMS, 2, 0, False), Limits(Config().train)
    every = {
        "dpo": PreferenceChannel(
            pairs, PreferenceConfig(loss="simpo", beta=2.0, sft_loss_weight=0.3), 1, order, limits
        ),
        "sft": LikelihoodChannel(runs, 1, order, limits),
        "sft of pairs": LikelihoodChannel(ChosenSides(*pair_fields), 1, order, limits),
        "grpo": PolicyChannel(runs, PolicyConfig(clip_low=1.0, clip_high=1e6), 1, lambda items: order, limits),
        "grpo by sequence": PolicyChannel(
            runs, PolicyConfig(aggregation="sequence", clip_low=1.0, clip_high=1e6), 1, lambda items: order, limits
        ),
        "kto": UnpairedChannel(
            runs, KtoConfig(loss="apo_zero_unpaired", beta=0.5, sft_loss_weight=0.1), 1, lambda items: order, limits
        ),
        "kto with a point": UnpairedChannel(
            runs, KtoConfig(beta=0.05, sft_loss_weight=0.1), 1, lambda items: order, limits
        ),
        "sdpo": DistillChannel(
            distill_runs(runs), DistillConfig(context=(), top_k=None, ratio_clip=None), 1, order, limits
        ),
    }
    every["kto"].reference = every["kto with a point"].reference = Nothing()
    return every


class Nothing:
    """A reference that finds nothing likely, so that z₀ is above 0."""

    def of(self, trees):
        return np.full(sum(int(mask.sum()) for tree in trees for mask in tree.masks), -9.0, np.float32)


def losses_of(channels, policy, teacher):
    values = {}
    for name, channel in channels.items():
        if name == "sdpo":
            channel.teacher = teacher
        channel.prepare(policy, ITEMS, Ranks())
        values[name] = float(channel.loss(policy, ITEMS, channel.total(ITEMS))[0].detach())
    return values


@pytest.fixture(scope="module")
def policies(model):
    torch.set_num_threads(1)
    policy, teacher = (Policy(load_model(model, Config().train)) for _ in range(2))
    with torch.no_grad():
        for weights in teacher.model.parameters():
            weights.mul_(1.1)
    return policy, teacher


def test_a_token_of_weight_0_is_a_token_that_is_not_trained(policies):
    weighted = channels_of(sequence([40, 41, 5], weights=[1.0, 0.0, 1.0]), sequence([70, 5], weights=[1.0, 1.0]))
    masked = channels_of(sequence([40, 41, 5], mask=[True, False, True]), sequence([70, 5]))
    plain = channels_of(sequence([40, 41, 5]), sequence([70, 5]))
    found, expected, without = (losses_of(channels, *policies) for channels in (weighted, masked, plain))
    assert found == pytest.approx(expected, rel=1e-5)
    assert {name: abs(found[name] - without[name]) > 1e-4 for name in found} == dict.fromkeys(found, True)


def test_a_weight_is_a_number_of_times(policies):
    """The mean of tokens with the weights 1, ½, ½ is that of the sum 1 · a + ½ · b + ½ · c divided by 2."""
    weighted = channels_of(sequence([40, 41, 5], weights=[1.0, 0.5, 0.5]), sequence([70, 5], weights=[0.5, 0.5]))
    found = losses_of({name: weighted[name] for name in ("sft", "sdpo")}, *policies)
    single = {}  # loss of each token alone, by channel
    for name in found:
        for place, weights in enumerate(([1, 0, 0], [0, 1, 0], [0, 0, 1])):
            channels = channels_of(
                sequence([40, 41, 5], weights=list(map(float, weights))), sequence([70, 5], weights=[0.0, 0.0])
            )
            single[name, place] = losses_of({name: channels[name]}, *policies)[name]
        for place, weights in enumerate(([1, 0], [0, 1]), 3):
            channels = channels_of(
                sequence([40, 41, 5], weights=[0.0] * 3), sequence([70, 5], weights=list(map(float, weights)))
            )
            single[name, place] = losses_of({name: channels[name]}, *policies)[name]
        mean = np.average([single[name, place] for place in range(5)], weights=[1, 0.5, 0.5, 0.5, 0.5])
        assert found[name] == pytest.approx(mean, rel=1e-5)


def test_the_policy_loss_and_distillation_have_the_weighted_values_derived_by_hand():
    tokens = PolicyTokens(
        logps_N=torch.zeros(3), advantages_N=torch.tensor([1.0, 2.0, -1.0]), sequence_N=torch.tensor([0, 0, 1]),
        num_sequences=2, weights_N=torch.tensor([1.0, 0.25, 0.5]),
    )  # fmt: skip
    # ratios are 1: the losses are −1, −2 and 1
    losses = policy_loss(tokens, PolicyOptions())
    assert (float(losses.total), float(losses.normaliser)) == pytest.approx((-1 - 0.5 + 0.5, 1.75))
    losses = policy_loss(tokens, PolicyOptions(aggregation="sequence"))
    assert (float(losses.total), float(losses.normaliser)) == pytest.approx((-1.5 / 1.25 + 1, 2))
    losses = policy_loss(replace(tokens, weights_N=None), PolicyOptions())
    assert (float(losses.total), float(losses.normaliser)) == pytest.approx((-2, 3))
    student, teacher = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    plain = distill_loss(student, teacher, DistillOptions())
    halved = distill_loss(student, teacher, DistillOptions(), weights_K=torch.tensor([0.5, 1.0]))
    assert halved.loss_K.tolist() == pytest.approx([0.5 * float(plain.loss_K[0]), float(plain.loss_K[1])])


def test_weights_go_where_the_tokens_go():
    one = sequence([40, 41, 5], weights=[1.0, 0.5, 0.25])
    assert one.take(np.array([0, 6, 7])).weights.tolist() == [9.0, 0.5, 0.25]
    assert one != msgspec.structs.replace(one, weights=None)


RAW = [
    [
        ("system", "be brief", None), ("user", "say red", None), ("assistant", "blue", 0), ("user", "no", None),
        ("assistant", "it is red", 0.5), ("user", "and green", None), ("assistant", "green!", None),
    ],
    [("user", "one", None), ("assistant", "two", 1)],
    [("user", "one", None), ("assistant", "three", 0.25)],
]  # fmt: skip
TRAINED = {"it is red<|end|>": 0.5, "green!<|end|>": 1.0, "two<|end|>": 1.0, "three<|end|>": 0.25}


def test_weights_of_a_raw_file_reach_the_batches_and_the_loss_of_a_run(model, tmp_path):
    """Import, tokens and training, one after the other; what was trained is decoded from the dumped batch."""
    lines = [
        {"messages": [{"role": r, "content": c} | ({} if w is None else {"weight": w}) for r, c, w in turns]}
        for turns in RAW
    ]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pw.import_traces(tmp_path / "raw.jsonl", tmp_path / "experience")
    encode_source(tmp_path / "experience", tmp_path / "tokens", TokensConfig(tokenizer=str(model)))
    settings = {"channels": {"dpo": 0, "sft": 1}, "batch_size": 3, "max_steps": 1, "threads": 1, "dump_batches": 1}
    config = Config.model_validate({"train": settings})
    train(config, model=model, tokens=tmp_path / "tokens", output=tmp_path / "run")
    batch = json.loads((tmp_path / "run/batches/step-00000000.json").read_text())
    tokenizer, network = ChatTokenizer.from_folder(model), load_model(model, Config().train)
    turns, total, count = {}, 0.0, 0.0
    for item in batch["channels"]["sft"]:
        ((branch,), (mask,)), start = (item["branches"], item["masks"]), len(item["prompt"])
        (weights,) = item["weights"] or [list(map(float, mask))]
        assert [weight > 0 for weight in weights] == mask
        ids = torch.tensor([item["prompt"] + branch])
        with torch.no_grad():
            logps = network(ids).logits.log_softmax(-1)[0, start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        total, count = total - float(logps @ torch.tensor(weights)), count + sum(weights)
        for weight, tokens in groupby(zip(weights, branch, strict=True), key=lambda pair: pair[0]):
            turns[tokenizer.decode([token for _, token in tokens])] = weight
    assert {text: weight for text, weight in turns.items() if weight} == TRAINED
    assert turns["<|user|>and green<|end|><|assistant|>"] == 0
    (row,) = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert row["loss"] == pytest.approx(total / count, rel=1e-5)
