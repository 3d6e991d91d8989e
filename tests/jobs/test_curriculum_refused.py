"""Other people's trainers and a curriculum: followed, or refused before anything is written or sent."""

import msgspec
import pytest
from ruamel.yaml import YAML

from generate.tiny_models import save_model
from jobs.made_pairs import pair, pairs_table
from pairwright.config import Config, load_config
from pairwright.errors import ConfigError, TableError
from pairwright.jobs import BACKENDS, JobRequest
from pairwright.jobs.job import silent


def built(folder, stage=None):
    info = {} if stage is None else {"curriculum_stage": stage}
    table = pairs_table(folder, [msgspec.structs.replace(pair(task), info=info) for task in range(8)])
    (table / "funnel.json").write_text('{"options": {"curriculum": "easy-first"}}')
    return table


def submit(name, tmp_path, pairs, say=silent):
    model = save_model(tmp_path / "model", context=512)
    config = Config.model_validate({"train": {"batch_size": 2}})
    return BACKENDS[name].submit(tmp_path / "run", JobRequest(model=str(model), pairs=pairs, launch=False), config, say)


@pytest.mark.parametrize("name", ["trl", "nemo-rl", "nemo-customizer"])
def test_stages_are_refused(tmp_path, name):
    with pytest.raises(TableError, match="the stages of a curriculum"):
        submit(name, tmp_path, built(tmp_path / "pairs", stage=1))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["trl", "nemo-customizer"])
def test_an_order_that_would_be_shuffled_away_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="the order of a curriculum"):
        submit(name, tmp_path, built(tmp_path / "pairs"))


def test_nemo_rl_keeps_the_order_of_the_file_and_says_so(tmp_path):
    words = []
    submit("nemo-rl", tmp_path, built(tmp_path / "pairs"), words.append)
    assert YAML(typ="safe").load((tmp_path / "run" / "nemo-rl-dpo.yaml").read_text())["data"]["shuffle"] is False
    assert "data.shuffle is false" in " ".join(words)


@pytest.mark.parametrize(
    ("backend", "pairs", "key"),
    [
        ("trl", "{curriculum: easy-first}", "pairs.curriculum"),
        ("nemo-customizer", "{curriculum: easy-first}", "pairs.curriculum"),
        ("nemo-rl", "{curriculum: hard-first}", None),
        ("local", "{curriculum: easy-first}", None),
        ("trl", "{}", None),
    ],
)
def test_a_configuration_says_so_before_anything_is_collected(tmp_path, backend, pairs, key):
    (tmp_path / "run.yaml").write_text(f"pairs: {pairs}\nbackend: {{name: {backend}}}\n")
    if key is None:
        load_config(tmp_path / "run.yaml")
        return
    with pytest.raises(ConfigError, match=f"{key}: backend {backend}"):
        load_config(tmp_path / "run.yaml")
