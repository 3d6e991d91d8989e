"""A NAT finetuning file becomes a configuration of ours, and every key without a counterpart is named."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwright.config import Config, load_config
from pairwright.config.from_nat import from_nat, read_nat
from pairwright.config.nat_keys import BELOW, PAIRS, REASONS, RENAMED, STATUS_FAILURES
from pairwright.errors import ConfigError
from pairwright.pairs.options import pair_options

FILE = """
llms:
  player: {_type: openai, model_name: small, base_url: http://127.0.0.1:8000/v1, api_key: "${PLAYER_KEY}", temperature: 0.7}
functions:
  choose: {_type: choose_move, llm: player}
workflow: {_type: my_game, move: choose}
eval:
  general:
    max_concurrency: 4
    output_dir: out
    dataset: {_type: json, file_path: games.json, id_key: game}
  evaluators:
    outcome: {_type: my_outcome}
trajectory_builders:
  builder:
    _type: dpo_traj_builder
    ttc_step_name: my_move
    exhaustive_pairs: no
    min_score_diff: 5e-2
    max_pairs_per_turn: 10
    reward_from_score_diff: false
    require_multiple_candidates: true
trainers:
  trainer:
    _type: nemo_customizer_trainer
    num_runs: 3
    continue_on_collection_error: true
    deduplicate_pairs: false
    max_pairs: 5000
    wait_for_completion: false
trainer_adapters:
  adapter:
    _type: nemo_customizer_trainer_adapter
    entity_host: ${ENTITY_HOST}
    datastore_host: https://store.example
    hf_token: ${STORE_TOKEN}
    namespace: games
    dataset_name: moves
    dataset_output_dir: files
    create_namespace_if_missing: false
    customization_config: some/model@v1+A100
    hyperparameters:
      training_type: dpo
      finetuning_type: lora
      epochs: 5
      batch_size: 8
      learning_rate: 5e-6
      dpo: {ref_policy_kl_penalty: 0.2, sft_loss_weight: 0.1}
    use_full_message_history: true
    deploy_on_completion: true
    deployment_config: {image_name: image, image_tag: "1", gpu: 2, deployment_name: mine, description: ours}
    poll_interval_seconds: 5.0
    deployment_timeout_seconds: 60
    max_consecutive_status_failures: 4
finetuning:
  enabled: true
  trainer: trainer
  trajectory_builder: builder
  trainer_adapter: adapter
  reward_function: {name: outcome}
  curriculum_learning: {enabled: false, initial_percentile: 0.5}
  num_epochs: 1
  output_dir: here
"""


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "nat.yml"
    path.write_text(FILE)
    return path


def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pairwright.cli", "config", "from-nat", *map(str, arguments)],
        capture_output=True, text=True, env=os.environ,
    )  # fmt: skip


def keys_left(found) -> list[str]:
    return [left.key for left in found.unmapped]


def customizer(**keys: object) -> dict[str, object]:
    return {"trainer_adapters": {"a": {"_type": "nemo_customizer_trainer_adapter", **keys}}}


def test_every_key_of_the_three_components_is_mapped(written):
    assert from_nat(read_nat(written)).tree == {
        "loop": {"deploy": True, "evaluate": "never"},
        "policy": {
            "model": "small", "base_url": "http://127.0.0.1:8000/v1", "api_key_env": "PLAYER_KEY", "temperature": 0.7,
            "max_tokens": None,
        },
        "collect": {
            "max_concurrency": 4, "dataset": "games.json", "id_field": "game",
            "num_runs": 3, "continue_on_collection_error": True,
        },
        "pairs": {
            "strategy": "best-worst", "min_gap": 0.05, "within_run": True, "max_pairs_per_group": 10, "weight": "chosen",
            "dedupe": False, "contradictions": "keep", "max_pairs": 5000,
        },
        "backend": {
            "name": "nemo-customizer",
            "nemo_customizer": {
                "entity_host": "${ENTITY_HOST}", "datastore_host": "https://store.example", "hf_token": "${STORE_TOKEN}",
                "namespace": "games", "dataset_name": "moves", "dataset_output_dir": "files",
                "create_namespace_if_missing": False, "customization_config": "some/model@v1+A100",
                "hyperparameters": {
                    "training_type": "dpo", "finetuning_type": "lora", "epochs": 5, "batch_size": 8,
                    "learning_rate": 5e-6, "dpo": {"ref_policy_kl_penalty": 0.2, "sft_loss_weight": 0.1},
                },
                "use_full_message_history": True,
                "deployment_config": {
                    "image_name": "image", "image_tag": "1", "gpu": 2, "deployment_name": "mine", "description": "ours",
                },
                "poll_interval_seconds": 5.0, "deployment_timeout_seconds": 60.0,
                "max_status_failures": 3, "wait_for_completion": False,
            },
        },
    }  # fmt: skip


def test_what_has_no_counterpart_is_named_and_nothing_else(written):
    assert keys_left(from_nat(read_nat(written))) == [
        "eval.evaluators.outcome",
        "eval.general.output_dir",
        "finetuning.output_dir",
        "finetuning.reward_function",
        "functions.choose",
        "trajectory_builders.builder.ttc_step_name",
        "workflow",
    ]


def test_defaults_of_nat_that_are_not_ours_are_written_out():
    theirs = customizer(deploy_on_completion=True) | {
        "trajectory_builders": {"b": {"_type": "dpo_traj_builder"}},
        "trainers": {"t": {"_type": "nemo_customizer_trainer"}},
        "llms": {"m": {"_type": "nim", "model_name": "m"}},
    }
    config = Config.model_validate(from_nat(theirs).tree)
    assert config.pairs.weight == "gap"
    assert config.collect.continue_on_collection_error is False
    assert config.collect.max_concurrency == 8
    assert config.policy.max_tokens == 300
    service = config.backend.nemo_customizer
    assert (service.dataset_name, service.max_status_failures) == ("nat-dpo", 2)
    assert service.deployment_config.image_name.startswith("nvcr.io/nim/")


def test_the_third_failed_status_call_ends_the_wait_under_either_name():
    config = Config.model_validate({"backend": {"nemo_customizer": {"max_consecutive_status_failures": 3}}})
    assert config.backend.nemo_customizer.max_status_failures == 2
    both = {"max_consecutive_status_failures": 3, "max_status_failures": 3}
    with pytest.raises(ValueError, match="not both"):
        Config.model_validate({"backend": {"nemo_customizer": both}})


def test_a_secret_is_never_copied():
    theirs = customizer(hf_token="hf_very-secret") | {
        "llms": {"m": {"_type": "openai", "model_name": "m", "base_url": "http://h/v1", "api_key": "sk-very-secret"}}
    }
    found = from_nat(theirs)
    assert "very-secret" not in repr(found)
    assert keys_left(found) == ["llms.m.api_key", "trainer_adapters.a.hf_token"]


def test_a_value_that_we_refuse_is_named_with_our_reason():
    found = from_nat(customizer(hyperparameters={"training_type": "grpo", "epochs": 0, "batch_size": 2}))
    assert found.tree["backend"]["nemo_customizer"]["hyperparameters"] == {"batch_size": 2}
    reasons = {left.key: left.reason for left in found.unmapped}
    assert "'dpo' or 'sft'" in reasons["trainer_adapters.a.hyperparameters.training_type"]
    assert "greater than or equal to 1" in reasons["trainer_adapters.a.hyperparameters.epochs"]


def test_a_reference_with_a_default_keeps_the_reference_and_names_the_key():
    found = from_nat(customizer(entity_host="${HOST:-http://here}", namespace="${#odd}"))
    assert found.tree["backend"]["nemo_customizer"]["entity_host"] == "${HOST}"
    assert "namespace" not in found.tree["backend"]["nemo_customizer"]
    assert keys_left(found) == ["trainer_adapters.a.entity_host", "trainer_adapters.a.namespace"]


def test_components_that_finetuning_does_not_name_are_not_mixed_in():
    trainer = {"_type": "nemo_customizer_trainer"}
    theirs = {
        "trainers": {"a": trainer | {"num_runs": 2}, "b": trainer | {"num_runs": 9}},
        "finetuning": {"trainer": "b"},
    }
    found = from_nat(theirs)
    assert found.tree["collect"]["num_runs"] == 9
    assert [(left.key, left.reason) for left in found.unmapped] == [
        ("trainers.a", "not what is trained: finetuning.trainer is b")
    ]


def test_the_trained_model_is_the_one_that_finetuning_names():
    llms = {
        name: {"_type": "openai", "model_name": f"the-{name}", "base_url": "http://h/v1"} for name in ("big", "small")
    }
    found = from_nat({"llms": llms, "finetuning": {"target_model": "the-small"}})
    assert found.tree["policy"]["model"] == "the-small"
    assert keys_left(found) == ["llms.big"]
    unsaid = from_nat({"llms": llms, "finetuning": {}})
    assert "policy" not in unsaid.tree
    assert keys_left(unsaid) == ["llms.big", "llms.small"]
    assert "policy.model" in unsaid.to_set


def test_a_component_of_another_type_is_named_as_a_whole():
    found = from_nat({"trainer_adapters": {"a": {"backend": {"ip": "h"}, "_type": "openpipe_art_trainer_adapter"}}})
    assert keys_left(found) == ["trainer_adapters.a"]
    assert "openpipe_art_trainer_adapter" in found.unmapped[0].reason
    assert "backend" not in found.tree


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"llms": {}}, "no finetuning configuration"),
        ({"finetuning": {"trainer": "gone"}, "trainers": {"t": {}}}, "'gone' is not in trainers: t"),
        ({"trainers": 3}, "trainers: expected components by name"),
        ({"finetuning": []}, "finetuning: expected keys and values, got list"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(theirs, message):
    with pytest.raises(ConfigError, match=message):
        from_nat(theirs)


def test_a_file_builds_on_its_base(tmp_path):
    (tmp_path / "below.yml").write_text("trainers: {t: {_type: nemo_customizer_trainer, num_runs: 2, max_pairs: 7}}")
    (tmp_path / "above.yml").write_text("base: below.yml\ntrainers: {t: {num_runs: 5}}")
    assert read_nat(tmp_path / "above.yml") == {
        "trainers": {"t": {"_type": "nemo_customizer_trainer", "num_runs": 5, "max_pairs": 7}}
    }
    (tmp_path / "below.yml").write_text("base: above.yml")
    with pytest.raises(ConfigError, match="builds on this file itself"):
        read_nat(tmp_path / "above.yml")


NAMES = sorted({name.replace("*", "x") for name in (*RENAMED, *PAIRS, *REASONS, STATUS_FAILURES, *BELOW)})
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats()
    | st.sampled_from(["", "x", "${A}", "${A:-b}", "a${", "1"])
)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text("ab.", min_size=1), VALUES | st.lists(VALUES)))
def test_whatever_is_in_a_file_gives_a_valid_configuration_or_a_refusal(said):
    theirs: dict = {}
    for name, value in said.items():
        section = theirs
        *parents, last = name.split(".")
        for parent in parents:
            section = section[parent] if isinstance(section.get(parent), dict) else section.setdefault(parent, {})
            if not isinstance(section, dict):
                break
        else:
            section[last] = value
    try:
        found = from_nat(theirs)
    except ConfigError:
        return
    tree = json.loads(json.dumps(found.tree).replace("${A}", "http://a"))
    for part in ("backend", "policy", "collect", "loop"):
        assert set(tree.get(part, {})) <= set(type(getattr(Config(), part)).model_fields)
    if "${A}" not in json.dumps(found.tree):
        Config.model_validate(tree)


def test_the_command_writes_a_configuration_that_loads_and_names_the_rest(written, tmp_path):
    done = ran(written, "-o", tmp_path / "ours.yaml")
    assert (done.returncode, done.stdout) == (0, "")
    *lines, closing = done.stderr.splitlines()
    assert [re.match(r"not mapped: (\S+): ", line)[1] for line in lines] == keys_left(from_nat(read_nat(written)))
    assert closing.startswith(f"{tmp_path / 'ours.yaml'}: 41 keys mapped, 7 not; set collect.workflow, model; then: ")
    config = load_config(tmp_path / "ours.yaml", environment={"ENTITY_HOST": "http://h", "STORE_TOKEN": "t"})
    assert config.backend.nemo_customizer.entity_host == "http://h"
    again = ran(written, "-o", tmp_path / "ours.yaml")
    assert again.returncode == 3
    assert "--overwrite" in again.stderr


def test_strict_ends_with_exit_code_2_and_json_has_the_list(written):
    done = ran(written, "--strict", "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["config"]["collect"]["num_runs"] == 3
    assert "workflow" in [left["key"] for left in found["unmapped"]]
    assert found["set"] == ["collect.workflow", "model"]


def test_the_page_lists_every_key_that_is_mapped_and_every_one_that_is_not():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "nat-keys.md").read_text(encoding="utf-8")
    mapped = dict(re.findall(r"^\| `([\w.*]+)` \| `([\w.]+)`", page, re.M))
    for theirs, ours in (RENAMED | BELOW).items():
        assert mapped.get(theirs) == ours, theirs
    for theirs in (*PAIRS, STATUS_FAILURES, *REASONS):
        assert f"`{theirs}`" in page, theirs


def test_what_comes_from_nat_pairs_within_one_run():
    found = from_nat({"trainers": {"t": {"_type": "nemo_customizer_trainer", "num_runs": 3}}})
    assert found.tree["pairs"]["within_run"] is True
    assert pair_options(Config.model_validate(found.tree)).within_run
    assert not pair_options(Config()).within_run


def test_a_lone_letter_is_text_as_in_pyyaml(tmp_path):
    path = tmp_path / "nat.yml"
    path.write_text("trainer_adapters:\n  a: {namespace: n, dataset_name: Y, create_namespace_if_missing: no}\n")
    adapter = read_nat(path)["trainer_adapters"]["a"]
    assert adapter == {"namespace": "n", "dataset_name": "Y", "create_namespace_if_missing": False}


@pytest.mark.parametrize(("value", "num_named"), [(True, 0), (False, 1)])
def test_require_multiple_candidates_is_named_where_it_would_seem_to_change_something(value, num_named):
    builder = {"_type": "dpo_traj_builder", "require_multiple_candidates": value}
    unmapped = from_nat({"trajectory_builders": {"b": builder}}).unmapped
    assert len(unmapped) == num_named
    assert all("two candidates" in entry.reason for entry in unmapped)


def test_a_file_of_nat_is_refused_with_the_two_ways_on(tmp_path):
    path = tmp_path / "nat.yml"
    path.write_text("finetuning: {enabled: true}\n")
    with pytest.raises(ConfigError, match=r"from-nat .*nat\.yml -o ours\.yaml, or keep it and run nat finetune"):
        load_config(path)
