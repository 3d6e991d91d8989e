"""`pairwright.score`: run scorers over experience tables and store the scores beside the experiences.

Scores are appended incrementally (store/score_log.py). A run with a score of the same scorer version is not scored
again, so the same command resumes after a crash and scores only new runs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pairwright.collection.judge import Judge
from pairwright.config.model_config import JudgeConfig
from pairwright.errors import ConfigError
from pairwright.paths.writing import lock_file
from pairwright.records.experience import Experience
from pairwright.records.messages import content_hash
from pairwright.scorers.programs import Outcome, Program, find_program, function_program, name_of
from pairwright.scores.judging import JudgeJob, Unit, judge_table, load_rubric, terms_hash
from pairwright.store.score_log import ScoreLog, ScoreRow, mean_scores, read_score_log
from pairwright.store.table import Table

_ROWS_PER_APPEND = 500
_GROUPS_AT_ONCE = 500  # groups whose runs are in memory together
Progress = Callable[[int, int], None]
Watch = Callable[["ScoreSummary"], None]
Scorer = str | Callable[[Experience], Any]


@dataclass
class ScoreSummary:
    """Result of scoring a table.

    scored      runs that this call scored
    kept        runs that had a score of this version of the scorer
    unscored    runs that the scorer does not apply to
    failures    runs without a score because the scorer failed, by cause
    means       mean of each criterion over all scores of this version
    cost        of the scores of this call by the prices of the rubric, including cached answers
    requests    judge: requests sent by this call
    invalid     judge: invalid answers, each of which was asked again
    cut         judge: tool results that were shortened in the middle
    written     judge: requests written to a batch file

    >>> import pairwright as pw
    >>> pw.Table("runs/first/experience").score("not_truncated").kept
    0
    """

    table: str
    scorer: str
    runs: int = 0
    scored: int = 0
    kept: int = 0
    unscored: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    means: dict[str, float] = field(default_factory=dict)
    cost: float = 0.0
    requests: int = 0
    invalid: int = 0
    cut: int = 0
    written: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.cost += outcome.cost
        if outcome.failure is not None:
            self.failures[outcome.failure[:200]] += 1
        elif outcome.scores:
            self.scored += 1
        else:
            self.unscored += 1


def score(
    table: Table | str | Path,
    scorer: Scorer,
    *,
    name: str | None = None,
    judge: JudgeConfig | None = None,
    max_requests: int | None = None,
    max_concurrency: int = 32,
    batch_out: str | Path | None = None,
    batch_in: str | Path | None = None,
    base: Path | None = None,
    progress: Progress = lambda done, total: None,
    watch: Watch = lambda summary: None,
) -> ScoreSummary:
    """Score the runs of a table and store the scores beside them; recorded rewards are not changed.

    Args:
        table: An experience table, or its folder.
        scorer: A function `score(run) -> float | dict[str, float] | None`, or the name of a scorer: "programs",
            "no_loop", "number:answer:0.01", "file.py:name", "command:PROGRAM", or the rubric of a judge, "rubric.yaml".
        name: Name of the scores, for `with_score` and `pairs(score=...)`; by default derived from the scorer.
        judge: The judge, if the rubric names none.
        max_requests: Maximum number of requests to the judge; runs beyond it stay unscored.
        max_concurrency: Concurrent requests to the judge.
        batch_out: Write the requests to an OpenAI batch file instead of sending them.
        batch_in: Score with the results of a batch file; nothing is sent.
        base: Second folder to resolve relative paths from, after the working directory.
        progress: Called with the number of runs done and in total.
        watch: Called with the summary so far each time a judge finishes runs: requests, failures, cost.

    Returns:
        The number of runs that were scored, kept, left unscored or failed, and the mean scores.

    >>> import pairwright as pw
    >>> summary = pw.score("runs/first/experience", "final_answer")
    >>> summary.scored, summary.means
    (8, {'score': 1.0})
    """
    table = table if isinstance(table, Table) else Table(table, create=False)
    if not isinstance(scorer, str):
        return run_program(table, function_program(scorer, name), progress)
    label, spec = split_name(scorer)
    if spec.endswith((".yaml", ".yml")):
        path = Path(spec) if base is None or Path(spec).exists() else base / spec
        job = JudgeJob(
            name_of(name or label, path.stem),
            load_rubric(path, JudgeConfig(temperature=0.0) if judge is None else judge),
            max_requests=max_requests,
            max_concurrency=max_concurrency,
            batch_out=None if batch_out is None else Path(batch_out),
            batch_in=None if batch_in is None else Path(batch_in),
            base=base,
        )
        with lock_file(ScoreLog(table.path, job.name).path, work="scoring"):
            return run_judge(table, job, progress, watch)
    if batch_out is not None or batch_in is not None:
        raise ConfigError(f"{spec}: batch files are for judges: give the .yaml file of a rubric as scorer")
    return run_program(table, find_program(spec, name=name or label, base=base), progress)


def split_name(text: str) -> tuple[str | None, str]:
    """Split `NAME=SCORER` into name and scorer; the name is None if it is missing.

    >>> split_name("done=final_answer"), split_name("command:./check --level=2")
    (('done', 'final_answer'), (None, 'command:./check --level=2'))
    """
    name, equals, spec = text.partition("=")
    is_named = equals and name.replace("_", "").replace("-", "").isalnum()
    if is_named and not spec:
        raise ConfigError(f"{text}: expected NAME=SCORER")
    return (name, spec) if is_named else (None, text)


def run_program(table: Table, program: Program, progress: Progress) -> ScoreSummary:
    """Score the runs of a table that have no score of this version of the program."""
    log = ScoreLog(table.path, program.name)
    summary = ScoreSummary(str(table.path), program.name, runs=table.count())
    rows: list[ScoreRow] = []
    with lock_file(log.path, work="scoring"):
        done = {row.uid for row in log.rows() if row.hash == program.hash and row.score is not None}
        for num_seen, (uid, outcome) in enumerate(program.run(_runs_to_score(table, done, summary)), 1):
            summary.add(outcome)
            rows += outcome.rows(uid, program.hash)
            if num_seen % _ROWS_PER_APPEND == 0:
                log.append(rows)
                rows = []
                progress(num_seen + summary.kept, summary.runs)
        log.append(rows)
    if summary.scored or summary.kept:
        summary.means = mean_scores(read_score_log(table.path, program.name))
    return summary


def run_judge(table: Table, job: JudgeJob, progress: Progress, watch: Watch) -> ScoreSummary:
    """Judge the runs of a table that have no score of this version of the judge."""
    log = ScoreLog(table.path, job.name)
    summary = ScoreSummary(str(table.path), job.name, runs=table.count())
    version = terms_hash(job.terms)
    done: dict[str, set[str]] = {}  # ids with a score, by group; "" for runs that were judged alone
    for row in log.rows():
        if row.hash == version and row.score is not None:
            done.setdefault(row.group, set()).add(row.uid)
    units: Iterator[Unit]
    if job.terms.mode == "absolute":
        units = (Unit([run]) for run in _runs_to_score(table, done.get("", set()), summary))
    else:
        units = _groups_to_score(table, done, summary)
    num_seen = 0

    def take(outcome: Outcome) -> None:
        nonlocal num_seen
        num_seen += 1
        summary.add(outcome)

    def look(judge: Judge) -> None:
        summary.requests = judge.num_requests
        progress(num_seen + summary.kept, summary.runs)
        watch(summary)

    judge, summary.written = asyncio.run(judge_table(units, log, job, take, look))
    summary.requests, summary.invalid, summary.cut = judge.num_requests, judge.num_invalid, judge.num_cut
    if summary.scored or summary.kept:
        summary.means = mean_scores(read_score_log(table.path, job.name))
    return summary


def _groups_to_score(table: Table, done: dict[str, set[str]], summary: ScoreSummary) -> Iterator[Unit]:
    """Yield groups of comparable runs: one task, step and prompt."""
    narrow = table.lazy().filter(pl.col("kind") != "preference").select("uid", "tid", "step", "prompt_hash").collect()
    summary.unscored += table.count() - narrow.height
    groups = narrow.group_by("prompt_hash", "tid", "step", maintain_order=True).agg(pl.col("uid").unique().sort())
    wanted: list[list[str]] = []
    for uids in groups["uid"].to_list():
        if len(uids) < 2:
            summary.unscored += 1  # nothing to compare with
        elif done.get(content_hash(uids), set()).issuperset(uids):
            summary.kept += len(uids)
        else:
            wanted.append(uids)
    for start in range(0, len(wanted), _GROUPS_AT_ONCE):
        some = wanted[start : start + _GROUPS_AT_ONCE]
        ids = pl.Series([uid for uids in some for uid in uids], dtype=pl.String)
        runs = {run.eid.uid: run for run in table.records(where=pl.col("uid").is_in(ids.implode()))}
        yield from (Unit([runs[uid] for uid in uids], content_hash(uids)) for uids in some)


def _runs_to_score(table: Table, done: set[str], summary: ScoreSummary) -> Iterator[Experience]:
    for run in table.records():
        if not (run.completion or run.response_text):  # a preference, whose two sides cannot be scored
            summary.unscored += 1
        elif run.eid.uid in done:
            summary.kept += 1
        else:
            yield run
