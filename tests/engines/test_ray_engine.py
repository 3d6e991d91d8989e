"""The Ray engine, on a cluster of two nodes: order, errors, versions, workers that die."""

import json
import os
import subprocess
import sys

import pytest

import pairwright.engines.ray_engine as engine_module
from engines.mapped import Dying, always_dies, badly_pickled, broken, doubled, folder_of, process_of, refused
from pairwright.config import Config, EngineConfig, load_config
from pairwright.engines import EngineError, RayEngine, open_ray
from pairwright.errors import ConfigError, PairwrightError


def test_without_ray_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'pairwright\[ray\]'"), open_ray(EngineConfig(name="ray")):
        pass


def test_nothing_loads_ray_until_it_is_asked_for():
    code = "import sys, pairwright.engines, pairwright.pairs.build, pairwright.tokens.stage.stage, pairwright.cli.main; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_configuration_takes_a_name_or_a_section(tmp_path):
    (tmp_path / "short.yaml").write_text("engine: ray\n")
    (tmp_path / "long.yaml").write_text("engine: {name: ray, address: auto, workers: 8}\n")
    assert Config().engine.name == "embedded"
    assert load_config(tmp_path / "short.yaml", environment={}).engine == EngineConfig(name="ray")
    assert load_config(tmp_path / "long.yaml", environment={}).engine.address == "auto"
    with pytest.raises(ConfigError, match="only the engine ray"):
        load_config(tmp_path / "short.yaml", overrides=[("engine", "{address: auto}")], environment={})


@pytest.mark.slow
def test_results_come_in_the_order_of_the_tasks_from_both_nodes(ray_engine):
    assert ray_engine.num_workers == 2
    assert list(ray_engine.map(doubled, range(20))) == list(range(0, 40, 2))
    assert os.getpid() not in set(ray_engine.map(process_of, range(4)))


@pytest.mark.slow
def test_few_tasks_are_under_way_at_a_time(ray_engine):
    taken = []
    results = ray_engine.map(doubled, (taken.append(number) or number for number in range(100)))
    assert next(results) == 0
    assert len(taken) == ray_engine.in_flight == 4
    results.close()


@pytest.mark.slow
def test_tasks_run_in_the_folder_of_the_command(ray_engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(ray_engine.map(folder_of, range(3))) == {str(tmp_path)}


@pytest.mark.slow
def test_an_error_of_ours_comes_back_with_its_message_and_exit_code(ray_engine):
    with pytest.raises(PairwrightError, match="number 3 is not wanted") as caught:
        list(ray_engine.map(refused, range(10)))
    assert caught.value.exit_code == ConfigError.exit_code
    with pytest.raises(PairwrightError, match="reward: got 1, expected a score"):
        list(ray_engine.map(badly_pickled, [1]))
    with pytest.raises(ZeroDivisionError):
        list(ray_engine.map(broken, range(4)))


@pytest.mark.slow
def test_another_version_on_a_worker_is_refused(ray_engine, monkeypatch):
    real = engine_module._versions()
    monkeypatch.setattr(engine_module, "_versions", lambda: real | {"polars": "0.1"})
    with pytest.raises(PairwrightError, match=r"polars .*, not 0\.1: install the same on every node"):
        list(ray_engine.map(doubled, range(2)))


@pytest.mark.slow
def test_a_worker_that_dies_costs_only_time(ray_engine, tmp_path):
    assert list(Dying(ray_engine, tmp_path).map(doubled, range(8))) == list(range(0, 16, 2))


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_an_error(ray_engine):
    with pytest.raises(EngineError, match="lost repeatedly"):
        list(RayEngine(2, 4, max_retries=0).map(always_dies, [1]))


@pytest.mark.slow
def test_the_command_line_connects_to_a_cluster_and_reports_a_missing_one(two_nodes, tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}]} for n in range(3)
    ]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(output, address):
        command = [
            sys.executable,
            "-m",
            "pairwright.cli",
            "import",
            "traces.jsonl",
            "-o",
            output,
            "--engine",
            "ray",
            "--json",
        ]
        return subprocess.run(
            [*command, "--address", address], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    for output, address in zip(("inside", "outside"), two_nodes, strict=True):
        done = run(output, address)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["added"] == 3
    failed = run("nowhere", "127.0.0.1:1")
    assert failed.returncode == 1
    assert "no Ray cluster at '127.0.0.1:1'" in failed.stderr
