"""Statistics of the code base: sizes of files and folders, names, comments, and the path of one record through it.

`python -m bench house [ROOT]` measures this checkout, or the one at ROOT. It prints the rows of a
Markdown table; docs/benchmarks.md has the current figures.

The walk runs in a separate process: it imports two NeMo Gym rollouts with different rewards, pairs, exports and encodes
them, and writes the report, with the functions of the command line. A profile hook counts the files of the package
whose functions ran (not counting imports), and the maximum stack depth in frames of the package.
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IRREGULAR = {
    "asked", "begun", "built", "done", "drawn", "found", "given", "gone", "held", "hidden", "kept", "known", "laid",
    "left", "made", "met", "said", "seen", "sent", "shown", "taken", "told", "written",
}  # fmt: skip
# Words that only end like a participle, and participles that are technical terms.
NOT_PARTICIPLES = {
    "embed",
    "feed",
    "need",
    "seed",
    "speed",
    "sorted",
    "reversed",
    "generated",
    "rejected",
    "shared",
    "indexed",
}
LOCALS = ("found", "told", "given", "made", "said", "seen", "kept", "noted", "shown")
WALK = """
import json, os, sys, threading
from pathlib import Path
folder, package = Path(sys.argv[1]), sys.argv[2]
functions, depth = set(), 0
local = threading.local()

def profile(frame, event, _argument):
    global depth
    if event != "call":
        return
    name, function = frame.f_code.co_filename, frame.f_code.co_qualname
    if not name.startswith(package) or function.endswith(">"):  # a lambda or a comprehension
        return
    height = 0
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_filename.startswith(package):
            if code.co_name == "<module>":  # while a module is imported, nothing happens to a record
                return
            height += 1
    functions.add((name, function))
    depth = max(depth, height)

from pairwright.cli import main
threading.setprofile(profile)
sys.setprofile(profile)
for command in json.loads(sys.argv[3]):
    try:
        sys.argv = ["pairwright", *command]
        main()
    except SystemExit as end:
        if end.code not in (0, None):
            raise
sys.setprofile(None)
print("WALK", json.dumps([len({name for name, _ in functions}), len(functions), depth]))
"""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def count_comments(text: str) -> int:
    """Count the lines with a comment, on its own line or after code; markers for tools do not count."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(fmt:|type:|noqa|pragma)", token.string):
            lines.add(token.start[0])
    return len(lines)


def is_participle(name: str) -> bool:
    """Return whether the name of a function is, or starts with, a past participle."""
    first = name.strip("_").split("_")[0]
    return first not in NOT_PARTICIPLES and (first in IRREGULAR or first.endswith("ed"))


def measure_source(package: Path) -> dict[str, str]:
    files = sorted(package.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    num_lines = sum(len(text.splitlines()) for text in texts.values())
    per_folder = Counter(path.parent for path in files)
    functions: list[str] = []
    values: Counter[str] = Counter()
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in LOCALS:
                values[node.id] += 1
    basenames = Counter(path.name for path in files if path.name not in ("__init__.py", "__main__.py"))
    participles = sum(map(is_participle, functions))
    comments = sum(map(count_comments, texts.values()))
    fullest = per_folder.most_common(1)[0]
    return {
        "files / lines": f"{len(files)} / {num_lines:,}",
        "modules per kLOC": f"{1000 * len(files) / num_lines:.1f}",
        "files flat in one folder, most": f"{fullest[1]} ({fullest[0].relative_to(package.parent)})",
        "basenames that stand more than once": str(sum(number > 1 for number in basenames.values())),
        "comments per 100 lines": f"{100 * comments / num_lines:.1f}",
        "functions named by a past participle": f"{100 * participles / len(functions):.1f}% of {len(functions)}",
        "local variables " + " / ".join(LOCALS): " / ".join(str(values[name]) for name in LOCALS),
        "`# fmt: skip`": str(sum(text.count("# fmt: skip") for text in texts.values())),
    }


def measure_walk(root: Path) -> str:
    """Return the files, the functions and the stack depth that two NeMo Gym lines need from import to report."""
    package = root / "src" / "pairwright"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_rollouts(folder / "rollouts.jsonl")
        _write_tokenizer(folder / "model")
        run = folder / "run"
        commands = [
            ["import", str(folder / "rollouts.jsonl"), "-o", str(run / "experience"), "--workers", "1"],
            ["pairs", str(run / "experience"), "-o", str(run / "pairs")],
            ["export", str(run / "pairs"), "--to", "trl", "-o", str(folder / "pairs.jsonl")],
            ["tokens", str(run / "pairs"), "--tokenizer", str(folder / "model"), "-o", str(run / "tokens")],
            ["report", str(run)],
        ]
        done = subprocess.run(
            [sys.executable, "-c", WALK, name, str(package), json.dumps(commands)],
            env=os.environ | {"PYTHONPATH": str(root / "src"), "HF_HUB_OFFLINE": "1"},
            capture_output=True, text=True, check=False, cwd=name,
        )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("WALK "):
            num_files, num_functions, depth = json.loads(line[5:])
            return f"{num_files} / {num_functions:,} / {depth}"
    raise SystemExit(f"bench house: the walk failed\n{done.stdout}{done.stderr}")


def _write_rollouts(path: Path) -> None:
    rows = []
    for run, (answer, reward) in enumerate([("Paris.", 1.0), ("Lyon.", 0.0)]):
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        message = {"id": f"m{run}", "type": "message", "role": "assistant", "status": "completed", "content": content}
        question = {"role": "user", "content": "What is the capital of France?"}
        rows.append({
            "_ng_task_index": 0, "_ng_rollout_index": run, "reward": reward,
            "responses_create_params": {"input": [question]},
            "response": {"id": f"r{run}", "object": "response", "model": "policy", "output": [message]},
        })  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {character: number for number, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=TEMPLATE)
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.save_pretrained(folder)


def main() -> None:
    root = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 and Path(sys.argv[2]).is_dir() else ROOT
    rows = measure_source(root / "src" / "pairwright")
    rows["from import to report, one record: files / functions / depth"] = measure_walk(root)
    print("\n| the house | measured |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
