"""What a run would do: its stages, which of them are done, and about how much each has to do."""

from pathlib import Path

from pairwright.flow.run import Flow


def plan_rows(flow: Flow) -> list[tuple[str, str, str]]:
    """(stage, state, what is expected of it) in order."""
    return [(name, state, _expected(flow, name)) for name, state in flow.plan()]


def _expected(flow: Flow, name: str) -> str:
    """Counts from the configuration, or from what the stages before have counted."""
    config = flow.config
    number, _, stage = name.rpartition("/")
    known = flow.manifest.stages.get(name)
    if known is not None and known.state == "done":
        return ", ".join(f"{key} {value}" for key, value in list(known.result.items())[:4])
    if stage == "collect":
        return _asked(
            flow,
            config.collect.dataset,
            config.collect.num_tasks,
            config.collect.num_runs,
            config.policy.num_candidates,
        )
    if stage == "evaluate":
        section = config.evaluate
        dataset, tasks = section.dataset or config.collect.dataset, section.num_tasks or config.collect.num_tasks
        return "twice " + _asked(flow, dataset, tasks, section.num_runs, 1)
    if stage == "train":
        tokens = flow.manifest.stages.get(f"{number}/tokens")
        if tokens is not None and tokens.state == "done":
            return f"about {tokens.result['tokens'] * config.train.epochs:,} tokens in {config.train.epochs} epochs"
    return ""


def _asked(flow: Flow, dataset: str | None, num_tasks: int | None, num_runs: int, num_candidates: int) -> str:
    tasks = num_tasks if dataset is None else _num_lines(flow, dataset, num_tasks)
    if tasks is None:
        return ""
    answers = tasks * num_runs * num_candidates
    limit = flow.config.policy.max_tokens
    tokens = f", at most {answers * limit:,} tokens a step" if limit else ""
    return f"{tasks:,} tasks, {tasks * num_runs:,} runs, {answers:,} answers a step{tokens}"


def _num_lines(flow: Flow, dataset: str, most: int | None) -> int | None:
    path = Path(dataset) if Path(dataset).exists() or flow.base is None else flow.base / dataset
    if path.suffix not in (".jsonl", ".csv") or not path.is_file():
        return most
    with open(path, "rb") as file:
        lines = sum(1 for _ in file) - (path.suffix == ".csv")
    return lines if most is None else min(most, lines)
