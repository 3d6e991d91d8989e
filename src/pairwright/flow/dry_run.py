"""The dry run: stages, their states, and estimates of the work."""

from pairwright.config import Config
from pairwright.flow.run_flow import Flow, Plan
from pairwright.flow.stages import find_beside


def plan_rows(flow: Flow, plan: Plan | None = None) -> list[tuple[str, str, str]]:
    """Return (stage, state, estimate) in order; `plan` is the result of `flow.plan()`, if the caller has it."""
    plan = flow.plan() if plan is None else plan
    states = dict(plan.steps)
    # for a refused stage the third cell is the reason
    return [
        (name, state, str(plan.refusal) if state == "refused" else _estimate(flow, name, states))
        for name, state in plan.steps
    ]


def estimate_whole(trial: Flow, config: Config) -> dict[str, float]:
    """Estimate the seconds of each stage of a run with all tasks, from a trial with the first tasks."""
    tried, seconds = trial.config, dict[str, float]()
    for name, record in trial.manifest.stages.items():
        stage, kind = name.rpartition("/")[2], "evaluate" if name.endswith("/evaluate") else "collect"
        small, large = getattr(tried, kind), getattr(config, kind)
        num_all = _num_tasks(trial, large.dataset, large.num_tasks)
        num_tried = _num_tasks(trial, small.dataset, small.num_tasks)
        # imported files are not limited; everything else grows with the tasks
        factor = num_all / num_tried if num_all and num_tried else 1.0
        seconds[stage] = seconds.get(stage, 0.0) + record.seconds * factor
    return seconds


def _estimate(flow: Flow, name: str, states: dict[str, str]) -> str:
    """Return the estimated counts of a stage, from the configuration or from the results of earlier stages."""
    config = flow.config
    # stage names are "round-1/train"
    number, _, stage = name.rpartition("/")
    if states[name] == "done":
        return ", ".join(f"{key} {value}" for key, value in list(flow.manifest.stages[name].result.items())[:4])
    if stage == "collect":
        asked, num_candidates = config.collect, config.policy.num_candidates
        return _estimate_requests(flow, asked.dataset, asked.num_tasks, asked.num_runs, num_candidates)
    if stage == "evaluate":
        section = config.evaluate
        dataset, tasks = section.dataset or config.collect.dataset, section.num_tasks or config.collect.num_tasks
        return "twice " + _estimate_requests(flow, dataset, tasks, section.num_runs, 1)
    if stage == "train" and states.get(f"{number}/tokens") == "done":
        tokens = flow.manifest.stages[f"{number}/tokens"]
        return f"about {tokens.result['tokens'] * config.train.epochs:,} tokens in {config.train.epochs} epochs"
    return ""


def _estimate_requests(
    flow: Flow, dataset: str | None, num_tasks: int | None, num_runs: int, num_candidates: int
) -> str:
    tasks = _num_tasks(flow, dataset, num_tasks)
    if tasks is None:
        return ""
    answers = tasks * num_runs * num_candidates
    limit = flow.config.policy.max_tokens
    tokens = f", at most {answers * limit:,} tokens a step" if limit else ""
    return f"{tasks:,} tasks, {tasks * num_runs:,} runs, {answers:,} answers a step{tokens}"


def _num_tasks(flow: Flow, dataset: str | None, most: int | None) -> int | None:
    if dataset is None:
        return most
    path = find_beside(flow.base, dataset)
    if path.suffix not in (".jsonl", ".csv") or not path.is_file():
        return most
    with open(path, "rb") as file:
        # the first line of a CSV file is its header
        lines = sum(1 for _ in file) - (path.suffix == ".csv")
    return lines if most is None else min(most, lines)
