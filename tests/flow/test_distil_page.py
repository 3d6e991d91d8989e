"""The commands of docs/how-to/distil.md, with a teacher in a folder in place of the endpoint."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pairwright.cli.main import app
from pairwright.pairs.pair_table import pair_batches
from serve.served_models import saved, taught_engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "distil.md"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
WORKFLOW = """
async def ask(task, policy, recorder):
    prompt = [{"role": "user", "content": task["question"]}]
    (answer,) = await policy.complete(prompt, n=1)
    recorder.trajectory(prompt, [answer.message], reward=float(answer.message.text == "yes"))
"""


def commands() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    text = re.sub(r"policy.base_url=\S+\s+policy.model=big-model", "policy.model=models/big", text)
    text = text.replace("big=https://api.example.com/v1#big-model", "big=models/big")
    return [shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith("pairwright ")]


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    questions = [f"question {number}?" for number in range(6)]
    for name, answer in (("small", "no"), ("big", "yes")):
        saved(tmp_path / "models" / name, taught_engine(dict.fromkeys(questions, answer), template=TEMPLATE))
    for file in ("tasks.jsonl", "heldout.jsonl"):
        rows = [{"id": f"{file}-{number}", "question": question} for number, question in enumerate(questions)]
        Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("ask.py").write_text(WORKFLOW, encoding="utf-8")
    settings = {
        "policy": {"model": "models/small", "temperature": 0, "max_tokens": 8},
        "collect": {"workflow": "ask.py:ask", "dataset": "tasks.jsonl"},
    }
    Path("config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    ran = commands()
    assert len(ran) == 8
    for words in ran:
        # 2 is the verdict of a gate that stays closed
        done = CliRunner().invoke(app, words)
        assert done.exit_code in ((0, 2) if "--margin" in words else (0,)), (words, done.output, done.exception)
    assert sum(batch.num_rows for batch in pair_batches(Path("runs/small/pairs"))) == len(questions)
