"""100 mistakes of a newcomer: each ends with a nonzero exit code, one message, and commands that work when pasted."""

import json
import re
import shlex
import shutil
import socket

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from generate.tiny_models import save_model
from pairs.made_tables import candidate, made
from pairwright.cli import main
from pairwright.cli.main import app
from pairwright.pairs import PairOptions, build_pairs
from pairwright.store.table import Table

CONFIG = """\
name: mine
model: model
collect: {workflow: agent.py:play, dataset: tasks.jsonl, num_runs: 2}
evaluate: {dataset: tasks.jsonl}
"""

# A mistake is the words of a command line, in a folder with the files of `folder`; `|` and what follows is expected in
# the message.
MISTAKES = """
import nosuch.jsonl -o t/e | nosuch.jsonl
import nosuch/*.jsonl -o t/e | nosuch
import empty.jsonl -o t/e | empty
import binary.jsonl -o t/e | binary.jsonl
import README.md -o t/e | README.md
import emptyfolder -o t/e | emptyfolder
import runs.jsonl | -o
import runs.jsonl -o runs.jsonl | runs.jsonl
import runs.jsonl -o run/pairs | run/pairs
import runs.jsonl -o agent.py/experience | agent.py
import runs.jsonl -o t/e --format openai | openai-chat
import runs.jsonl -o t/e --format opena-chat | openai-chat
import runs.jsonl -o t/e --format langfuse | langfuse
import runs.jsonl -o t/e --map prompt | prompt
import runs.jsonl -o t/e --map nosuch=question | nosuch
import runs.jsonl -o t/e --map prompt=nosuch | nosuch
import runs.jsonl -o t/e --reward nosuch | nosuch
import runs.jsonl -o t/e --reward 0.5*(nosuch | nosuch
import runs.jsonl -o t/e --task nosuch | nosuch
import runs.jsonl -o t/e --workers -1 | workers
import runs.jsonl -o t/e --outptu x | --outptu
import runs.jsonl -o t/e sources.formt=auto | sources.format
import runs.jsonl -o t/e --config nosuch.yaml | nosuch.yaml
import model -o t/e | model
import csv.csv -o t/e | csv.csv
import pairs.parquet -o t/e | pairs.parquet
imprt runs.jsonl -o t/e | import
export run/pairs --to openai -o x.jsonl | openai-preference
export run/pairs --to trll -o x.jsonl | trl
export run/pairs -o x.jsonl | --to
export run/pairs --to trl | -o
export runs.jsonl --to trl -o x.jsonl | pairwright import
export run/experience --to trl -o x.jsonl | pairwright pairs
export nosuch --to trl -o x.jsonl | nosuch
export emptyfolder --to trl -o x.jsonl | emptyfolder
export run/pairs --to trl -o runs.jsonl/x.jsonl | runs.jsonl
export run/pairs --to trl -o emptyfolder | emptyfolder
pairs runs.jsonl -o t/p | pairwright import
pairs run/pairs -o t/p | pairs
pairs nosuch -o t/p | nosuch
pairs emptyfolder -o t/p | emptyfolder
pairs model -o t/p | model
pairs run/experience | -o
pairs run/experience -o t/p --strategy bestworst | best-worst
pairs run/experience -o t/p --strategy nosuch.py:pair | nosuch.py
pairs run/experience -o t/p --min-gap much | --min-gap
pairs run/experience -o t/p --min-gap -1 | min
pairs run/experience -o t/p --min-gap 5 | 0.8
pairs run/experience -o t/p --score nosuch | nosuch
pairs run/experience -o run/experience | run/experience
pairs run/experience -o t/p --where 'rewrd > 1' | reward
pairs run/experience -o t/p pairs.min_gpa=1 | pairs.min_gap
pairs lint run/experience | run/experience
pairs lint nosuch | nosuch
pairs stats runs.jsonl | runs.jsonl
pairs stast run/pairs | stats
pairs lin run/pairs | lint
experience stats run/pairs | run/pairs
experience head nosuch | nosuch
experience head run/experience -n -1 | --num
experience stats runs.jsonl | pairwright import
experience filter run/experience -o t/f | where
experience filter run/experience --where 'reward >' -o t/f | reward >
explain | PATH
explain nosuch.jsonl | nosuch.jsonl
explain run/experience nosuchid | nosuchid
explain run/pairs 0123 | 0123
explain emptyfolder | emptyfolder
pairs explain run/pairs | pairwright explain run/pairs
experience export run/experience --to parquet -o x | pairwright export
score run/experience | --with
score run/experience --with nosuch | nosuch
score run/experience --with nosuch.py:f | nosuch.py
score run/experience --with agent.py:nosuch | nosuch
score runs.jsonl --with programs | pairwright import
score run/experience --calibrate nosuch | nosuch
advise run/pairs | run/pairs
advise nosuch | nosuch
tokens run/pairs -o t/t | --tokenizer
tokens run/pairs -o t/t --tokenizer nosuch | nosuch
tokens run/pairs -o t/t --tokenizer emptyfolder | emptyfolder
tokens run/experience --tokenizer model -o run/pairs | run/pairs
tokens show run --tokenizer model | run
tokens check --tokenizer nosuch | nosuch
train --pairs run/pairs -o t/m | --model
train --pairs run/pairs --model nosuch -o t/m | nosuch
train --pairs run/pairs --model emptyfolder -o t/m | emptyfolder
train --pairs run/experience --model model -o t/m | run/experience
train --pairs run/pairs --model model -o t/m --loss dpoo | dpo
train --pairs run/pairs --model model -o t/m train.learning_rat=1 | train.learning_rate
train --pairs run/pairs --model model -o t/m --epochs -1 | epochs
train --pairs run/pairs --model model -o t/m --device gpu | gpu
run nosuch.yaml | nosuch.yaml
run bad.yaml | bad.yaml
run typo.yaml | collect
run agent.py | agent.py
run config.yaml --limit 0 | limit
run config.yaml policy.temprature=1 | policy.temperature
run config.yaml collect.workflow=nosuch.py:play -o t/r | nosuch.py
run config.yaml collect.workflow=agent.py:nosuch -o t/r | nosuch
run config.yaml collect.dataset=nosuch.jsonl -o t/r | nosuch.jsonl
run config.yaml collect.dataset=empty.jsonl -o t/r | empty.jsonl
run config.yaml model=nosuch -o t/r | nosuch
run config.yaml --resume -o t/r | t/r
run emptyfolder | emptyfolder
collect config.yaml -o t/c | recorded nothing
collect config.yaml -o t/c policy.model=badmodel | badmodel
evaluate nosuch.csv run/experience | nosuch.csv
evaluate csv.csv csv.csv --metric nosuch | task
evaluate run config.yaml --before model | --after
evaluate rum config.yaml | run
evaluate run config.yaml --before nosuch --after model -o t/e | nosuch
compare config.yaml --recipes nosuch.yaml | nosuch.yaml
report nosuch | nosuch
report emptyfolder | emptyfolder
report runs.jsonl | runs.jsonl
view nosuch --no-open | nosuch
view emptyfolder --no-open | emptyfolder
view run --no-open --port PORT | port
view run --no-open --port 99999 | port
serve model nosuch | nosuch
serve model model --port PORT | port
serve model run/pairs | run/pairs
serve modle model | model
jobs list nosuch | nosuch
jobs show nosuch | nosuch
model convert runs.jsonl -o t/m | runs.jsonl
model convert nosuch.gguf -o t/m | nosuch.gguf
init . --template tools | not empty
init new --template tool | tools
doctor nosuch.yaml | nosuch.yaml
doctor --device tpu | tpu
config show nosuch.yaml | nosuch.yaml
config from-nat config.yaml -o t/x.yaml | config.yaml
record -o t/r | --upstream
teach run/pairs -o t/t --teacher a=http://127.0.0.1:1/v1#b | run/pairs
push run/pairs | repo
demo chess | tic-tac-toe
--nosuch | --nosuch
""".strip().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a newcomer: files, tables and a model, right and wrong ones."""
    place = tmp_path_factory.mktemp("first-day")
    rows = [
        {"id": f"{task}-{run}", "task": f"t{task}", "question": "where?", "answer": f"here {run}", "reward": run / 2}
        for task in range(3)
        for run in range(2)
    ]
    lines = [{"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}],
              "reward": row["reward"]} for row in rows]  # fmt: skip
    (place / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "csv.csv").write_text("a,b\n1,2\n")
    (place / "pairs.parquet").write_text("PAR1 not really")
    (place / "empty.jsonl").write_text("")
    (place / "binary.jsonl").write_bytes(bytes(range(256)) * 8)
    (place / "README.md").write_text("# Mine\n\nText.\n")
    (place / "agent.py").write_text("async def play(task):\n    return 1.0\n")
    (place / "config.yaml").write_text(CONFIG)
    (place / "bad.yaml").write_text("name: [mine\n")
    (place / "typo.yaml").write_text(CONFIG.replace("collect:", "colect:"))
    (place / "emptyfolder").mkdir()
    (place / "badmodel").mkdir()
    (place / "badmodel" / "config.json").write_text("{")
    table = made(place / "run" / "experience", [candidate(0.9, "yes"), candidate(0.1, "no", run=1)])
    build_pairs([Table(table.path)], place / "run" / "pairs", PairOptions())
    save_model(place / "model")
    return place


@pytest.fixture(scope="module")
def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def run(monkeypatch, capsys, words):
    """Return the exit code of a command and its stderr; any other exception would be a traceback, and fails the test."""
    monkeypatch.setattr("sys.argv", ["pairwright", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr().err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_with_one_message_and_the_commands_that_it_suggests_work(
    mistake, folder, port, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    shutil.rmtree("t", ignore_errors=True)
    words, _, expected = mistake.rpartition(" | ")
    code, stderr = run(monkeypatch, capsys, shlex.split(words.replace("PORT", str(port))))
    assert code, stderr
    last = stderr.strip().splitlines()[-1]
    assert last.startswith("pairwright: "), stderr
    assert expected in stderr.partition("pairwright: ")[2]
    assert "Traceback" not in stderr
    for command in suggested_commands(last.removeprefix("pairwright: ")):
        check_command(command)
        if not PLACEHOLDER.search(command):
            code, stderr = run(monkeypatch, capsys, shlex.split(command.replace("DIR", "t/suggested")))
            assert code == 0, f"{command}: {stderr}"


# Words that a message cannot know, and folders of examples (e.g. pairwright import traces/ -o runs/first/experience)
PLACEHOLDER = re.compile(r"\b(FILE|TRACES|EXPERIENCE|MODEL|PAIRS|ID|runs)\b|^pairs DIR")


def suggested_commands(message):
    """The commands in a message: from `pairwright` to the end of the clause, or to the closing quote."""
    return [found.rstrip(" .:") for found in re.findall(r"\bpairwright ((?:(?!; |, |: |` |`|\. | \(|\)).)+)", message)]


def check_command(command):
    """The command line parses: its commands and options exist, and its words are enough."""
    words, node = shlex.split(command), get_command(app)
    context = node.make_context("pairwright", list(words), resilient_parsing=False)
    while isinstance(node, TyperGroup):
        name, node, rest = node.resolve_command(context, context._protected_args + context.args)
        context = node.make_context(name, rest, parent=context)


def test_there_are_at_least_100_mistakes():
    assert len(set(MISTAKES)) == len(MISTAKES) >= 100
