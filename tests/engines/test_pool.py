"""The embedded engine: order, what is taken when, and processes that die."""

import os
import subprocess
import sys

import pytest

from engines.mapped import Dying, always_dies, doubled, process_of, refused, variable
from pairwright.config import EngineConfig
from pairwright.engines import ENGINES, EngineError, Pool, open_pool
from pairwright.errors import ConfigError

pytestmark = pytest.mark.stress


def test_results_come_in_the_order_of_the_tasks():
    assert list(Pool(2).map(doubled, range(20))) == list(range(0, 40, 2))


def test_one_worker_or_one_task_needs_no_process():
    assert set(Pool(1).map(process_of, range(5))) == {os.getpid()}
    assert set(Pool(2).map(process_of, [1])) == {os.getpid()}
    assert os.getpid() not in set(Pool(2).map(process_of, range(2)))


def test_tasks_are_taken_as_results_are_asked_for():
    taken = []
    results = Pool(2).map(doubled, (taken.append(number) or number for number in range(100)))
    assert next(results) == 0
    assert len(taken) == 5
    results.close()


def test_an_error_of_the_function_ends_it():
    results = Pool(2).map(refused, range(10))
    with pytest.raises(ConfigError, match="number 3 is not wanted"):
        list(results)


def test_a_process_that_dies_costs_only_time(tmp_path):
    assert list(Dying(Pool(2), tmp_path).map(doubled, range(12))) == list(range(0, 24, 2))


def test_processes_that_die_again_and_again_are_an_error_with_a_way_out():
    with pytest.raises(EngineError, match="fewer --workers"):
        list(Pool(2, max_retries=1).map(always_dies, range(4)))


def test_the_engine_of_the_configuration_has_its_workers():
    with open_pool(EngineConfig(workers=3)) as engine:
        assert engine.num_workers == 3
    assert set(ENGINES) == {"embedded", "ray"}


def test_workers_have_the_environment_of_now(monkeypatch):
    assert list(Pool(2).map(variable, ["PAIRWRIGHT_TRIED"] * 2)) == [None, None]
    monkeypatch.setenv("PAIRWRIGHT_TRIED", "1")
    assert list(Pool(2).map(variable, ["PAIRWRIGHT_TRIED"] * 2)) == ["1", "1"]
    monkeypatch.delenv("PAIRWRIGHT_TRIED")
    assert list(Pool(2).map(variable, ["PAIRWRIGHT_TRIED"] * 2)) == [None, None]


def test_workers_do_not_run_a_script_without_a_guard_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\nimport os.path\nfrom pairwright.engines import Pool\n"
        "print(list(Pool(2).map(os.path.basename, ['/a/b', '/c/d', '/e/f'])))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["once", "['b', 'd', 'f']"], done.stderr
