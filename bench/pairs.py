"""Pairs against NAT's trajectory builder, NeMo Gym's transform script, and growing numbers of candidates.

    BENCH_NAT_PYTHON   the interpreter of an environment with nvidia-nat-nemo-customizer (its own code is run)
    BENCH_GYM_SCRIPT   the script `transform_gym_to_dpo.py` of NeMo Gym's guide to DPO, as published; one key that
                       current rollouts lack is replaced, since the script would find no pairs otherwise
    BENCH_CANDIDATES   the numbers of candidates in the last table, separated by commas

The sides alternate, each in a separate process, and the best round of each counts. Work is CPU seconds from recorded
candidates to JSON lines, without Python imports. Memory is the peak of the whole process. A peer that is not installed
is skipped, and the table says so.

The comparison with NAT has three starting points. First, each side reads its own file: NAT the output of its
evaluation, ours the experience table. Second, NAT has its data in memory, as in training after an evaluation in the
same process, and only ours reads a file. Third, both read NAT's file, and ours imports it first.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.candidates import write_candidates
from bench.trace_files import WORDS, write_rollouts

NUM_EXAMPLES, NUM_TURNS, NUM_CANDIDATES = 2_000, 5, 6
NUM_ROLLOUTS = int(os.environ.get("BENCH_ROLLOUTS", "200000"))
NUM_STRATIFIED = 20_000
SCRIPT_MEMORY = int(8.5e9)
SCALES = [int(number) for number in os.environ.get("BENCH_CANDIDATES", "1000000,3000000,10000000").split(",")]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))

REPORT = """
import json, time
def report(start, **found):
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
    print(json.dumps({"cpu": time.process_time() - start, "megabytes": peak, **found}))
"""
NAT = (
    REPORT
    + """
import asyncio, logging, sys
from pathlib import Path
from nat.data_models.evaluate_runtime import EvaluationRunOutput
from nat.data_models.evaluator import EvalInput, EvalInputItem
from nat.data_models.intermediate_step import IntermediateStep
from nat.plugins.customizer.dpo import config
from nat.plugins.customizer.dpo.trainer import NeMoCustomizerTrainer
from nat.plugins.customizer.dpo.trainer_adapter import NeMoCustomizerTrainerAdapter
from nat.plugins.customizer.dpo.trajectory_builder import DPOTrajectoryBuilder

def recorded():
    for item in json.loads(Path(sys.argv[1]).read_text()):
        steps = [IntermediateStep.model_validate(step) for step in item["intermediate_steps"]]
        yield EvalInputItem(id=item["id"], input_obj=item["question"], expected_output_obj="", full_dataset_entry=None,
                            trajectory=steps)

async def main():
    logging.disable(logging.WARNING)
    adapter = NeMoCustomizerTrainerAdapter(config.NeMoCustomizerTrainerAdapterConfig(
        entity_host="http://localhost", datastore_host="http://localhost", namespace="n", customization_config="c"))
    start = time.process_time()
    result = EvaluationRunOutput(
        workflow_output_file=None, evaluator_output_files=[], workflow_interrupted=False, evaluation_results=[],
        usage_stats=None, profiler_results={}, eval_input=EvalInput(eval_input_items=list(recorded())))
    loaded = time.process_time() - start
    builder = DPOTrajectoryBuilder(config.DPOTrajectoryBuilderConfig(ttc_step_name="candidate"))
    async def finished():
        return result
    builder.evaluation_runs["run"] = asyncio.create_task(finished())
    found = await builder.finalize("run")
    found = NeMoCustomizerTrainer(config.NeMoCustomizerTrainerConfig())._deduplicate_trajectories(found)
    train, held = adapter._trajectory_to_dpo_jsonl(found)
    Path(sys.argv[2]).write_text(train + "\\n" + held + "\\n")
    report(start, loaded=loaded)

asyncio.run(main())
"""
)
OURS = (
    REPORT
    + """
import sys
from pathlib import Path
from pairwright import EID, Experience, Message, Table
from pairwright.export import EXPORTERS
from pairwright.pairs import PairOptions, build_pairs
from pairwright.export import ExportOptions
from pairwright.store.importing import import_files

source, output, target, options, *fresh = sys.argv[1:]
output, options = Path(output), json.loads(options)

def export():
    if target != "-":
        EXPORTERS[target](output / "pairs", output / "pairs.jsonl", ExportOptions())

with Table(output / "warm") as table:  # one pair first: Polars and Arrow import at first use
    table.append(Experience(eid=EID(task="t", run=run), kind="single_turn", prompt=[Message("user", "?")],
                            completion=[Message("assistant", str(run))], reward=run) for run in (0, 1))
build_pairs([table], output / "pairs")
export()
start, wall = time.process_time(), time.perf_counter()
if fresh:
    import_files([source], Table(output / "experience"), num_workers=1)
    source = output / "experience"
summary = build_pairs([Table(source, create=False)], output / "pairs", PairOptions(**options))
built = time.process_time() - start
export()
report(start, pairs=summary["pairs"], wall=time.perf_counter() - wall, built=built)
"""
)
SCRIPT = (
    REPORT
    + """
import resource, runpy, sys
from pathlib import Path
source = Path(sys.argv[1]).read_text().replace('["output"]', '["response"]["output"]')
patched = Path(sys.argv[3]).with_suffix(".py")
patched.write_text(source)
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[5]), int(sys.argv[5])))
sys.argv = [str(patched), "--input", sys.argv[2], "--output", sys.argv[3], "--strategy", sys.argv[4]]
start, found = time.process_time(), {}
try:
    runpy.run_path(str(patched), run_name="__main__")
except MemoryError:
    found["out_of_memory"] = True
report(start, **found)
"""
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        against_nat(Path(folder))
        against_gym(Path(folder))
    growing()
    print(f"Measured {time.strftime('%Y-%m-%d')}.\n")


def against_nat(folder: Path) -> None:
    """Build 150,000 exhaustive pairs from 60,000 candidates."""
    source, nat = folder / "workflow_output.json", os.environ.get("BENCH_NAT_PYTHON")
    _write_steps(source)
    _child(sys.executable, OURS, source, folder / "first", "-", "{}", "fresh")
    ours: list[dict[str, Any]] = []
    fresh: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        ours.append(_child(sys.executable, OURS, folder / "first" / "experience", folder / "ours", "customizer", "{}"))
        fresh.append(_child(sys.executable, OURS, source, folder / f"fresh{number}", "customizer", "{}", "fresh"))
        if nat:
            theirs.append(_child(nat, NAT, source, folder / "theirs.jsonl"))
    num_lines = (NUM_CANDIDATES * (NUM_CANDIDATES - 1) // 2) * NUM_EXAMPLES * NUM_TURNS
    if nat:
        for made in (folder / "ours", *(folder / f"fresh{number}" for number in range(ROUNDS))):
            assert _lines(made / "pairs.jsonl") == _lines(folder / "theirs.jsonl"), "the same pairs"
        assert len(_lines(folder / "theirs.jsonl")) == num_lines, "each once"
    print(f"### Pairs: {NUM_EXAMPLES * NUM_TURNS * NUM_CANDIDATES:,} candidates, {num_lines:,} exhaustive pairs\n")
    _head("NAT 1.9.0")
    in_memory = [{**done, "cpu": done["cpu"] - done["loaded"]} for done in theirs]
    _compare("each from its own file of candidates", ours, theirs, ("≥ 7×", "≤ 0.4×"))
    _compare("ours from its file, NAT's already in memory", ours, in_memory, ("", ""))
    _compare("both from NAT's file, ours with import", fresh, theirs, ("≥ 3×", "≤ 0.4×"))
    print()


def against_gym(folder: Path) -> None:
    """Build pairs of Gym rollouts, best against worst and stratified, from file to file."""
    script, source = os.environ.get("BENCH_GYM_SCRIPT"), folder / "rollouts.jsonl"
    write_rollouts(source, NUM_ROLLOUTS)
    print(f"### Pairs: {NUM_ROLLOUTS:,} NeMo Gym rollouts, {source.stat().st_size / 1e6:.0f} MB, file to file\n")
    _head("NeMo Gym's script")
    options = {"strategy": "best-worst", "min_gap": 0.2}
    ours, theirs = [], []
    for number in range(max(1, ROUNDS - 1)):
        ours.append(_child(sys.executable, OURS, source, folder / f"gym{number}", "trl", json.dumps(options), "fresh"))
        if script:
            theirs.append(_child(sys.executable, SCRIPT, script, source, folder / "gym.jsonl", "same_prompt", 2**40))
    _compare("best-worst, import included", ours, theirs, ("≥ 1.5×", "≤ 0.4×"))
    options = {"strategy": "best-worst", "min_gap": 0.2}
    ours = [_child(sys.executable, OURS, folder / "gym0" / "experience", folder / "table", "trl", json.dumps(options))]
    _compare("best-worst, from the experience table", ours, theirs, ("", ""))
    write_rollouts(source, NUM_STRATIFIED)
    options = {"strategy": "stratified", "across_groups": True}
    ours = [_child(sys.executable, OURS, source, folder / "stratified", "trl", json.dumps(options), "fresh")]
    if script:
        theirs = [_child(sys.executable, SCRIPT, script, source, folder / "s.jsonl", "stratified", SCRIPT_MEMORY)]
    _compare(f"stratified, {NUM_STRATIFIED:,} rollouts", ours, theirs, ("", "< 400 MB"))
    print()


def growing() -> None:
    """Build best-worst pairs and the three largest gaps in groups of eight, with a limit of 2 GB."""
    print("### Pairs: growing numbers of candidates, `--memory 2GB`, from the experience table to the pairs table\n")
    print("| candidates | strategy | pairs | CPU | CPU a candidate | wall clock | peak memory |")
    print("|---|---|---|---|---|---|---|")
    for number in SCALES:
        with tempfile.TemporaryDirectory() as folder:
            write_candidates(Path(folder) / "experience", number)
            for strategy in ({"strategy": "best-worst"}, {"max_pairs_per_group": 3}):
                options = json.dumps({**strategy, "memory_megabytes": 2048})
                done = _child(sys.executable, OURS, f"{folder}/experience", f"{folder}/made", "-", options)
                name = strategy.get("strategy", "all, 3 a group")
                per_row = done["cpu"] / number * 1e6
                print(f"| {number:,} | {name} | {done['pairs']:,} | {done['cpu']:.1f} s | {per_row:.1f} µs "
                      f"| {done['wall']:.1f} s | {done['megabytes']:.0f} MB |", flush=True)  # fmt: skip
    print()


def _write_steps(path: Path) -> None:
    """Write candidates as NAT records them: TTC_END steps of items."""
    draw, items = random.Random(0), []
    for example in range(NUM_EXAMPLES):
        steps = []
        for turn in range(NUM_TURNS):
            prompt = f"example {example}, turn {turn}: " + " ".join(draw.choices(WORDS, k=60))
            scores = draw.sample(range(1000), NUM_CANDIDATES)
            for number, score in enumerate(scores):
                answer = " ".join(draw.choices(WORDS, k=40)) + f' said "{number}"\n'
                data = {
                    "input": prompt, "output": answer, "score": score / 1000,
                    "turn_id": f"turn_{turn}", "turn_index": turn, "candidate_index": number,
                }  # fmt: skip
                payload = {
                    "event_type": "TTC_END", "event_timestamp": 1.0, "name": "candidate", "data": data,
                    "UUID": f"{example:08x}-{turn}-{number}",
                }  # fmt: skip
                ancestry = {"function_id": "root", "function_name": "root"}
                steps.append({"parent_id": "root", "function_ancestry": ancestry, "payload": payload})
        items.append({"id": str(example), "question": f"question {example}", "intermediate_steps": steps})
    path.write_text(json.dumps(items))


def _child(python: str, code: str, *arguments: object) -> dict[str, Any]:
    done = subprocess.run([python, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench: a process failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _lines(path: Path) -> list[tuple[str, ...]]:
    return sorted(tuple(json.loads(line).values()) for line in path.read_text().splitlines() if line)


def _head(peer: str) -> None:
    print(f"| what | pairwright, CPU | {peer}, CPU | ratio | target | memory | {peer}, memory | ratio | target |")
    print("|---|---|---|---|---|---|---|---|---|")


def _compare(what: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], targets: tuple[str, str]) -> None:
    cpu, memory = min(done["cpu"] for done in ours), min(done["megabytes"] for done in ours)
    if not theirs:
        print(
            f"| {what} | {cpu:.2f} s | not here | | {targets[0]} | {memory:.0f} MB | not here | | {targets[1]} |",
            flush=True,
        )
        return
    other, much = min(done["cpu"] for done in theirs), min(done["megabytes"] for done in theirs)
    died = "out of memory after " if theirs[0].get("out_of_memory") else ""
    print(f"| {what} | {cpu:.2f} s | {died}{other:.2f} s | **{other / cpu:.1f}×** | {targets[0]} | {memory:.0f} MB "
          f"| {much:.0f} MB | **{memory / much:.2f}×** | {targets[1]} |", flush=True)  # fmt: skip
