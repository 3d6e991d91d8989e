"""`pairwright.score`: run scorers over experience tables and store what they say beside the experiences.

Scores are appended as they come (store/score_log.py): a run that has a score of the same version of the scorer is not
scored again, so the same command goes on after a crash, and scores new runs only.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairwright.errors import ConfigError
from pairwright.records.experience import Experience
from pairwright.scorers.criteria import is_scorable
from pairwright.scorers.programs import Outcome, Program, find_program, function_program
from pairwright.store.score_log import MAX_REASON, ScoreLog, ScoreRow, mean_scores, read_score_log
from pairwright.store.table import Table

_ROWS_PER_APPEND = 500
Progress = Callable[[int, int], None]
Scorer = str | Callable[[Experience], Any]


@dataclass
class ScoreSummary:
    """What a scorer did with the runs of a table.

    scored      runs that got a score now
    kept        runs that had a score of this version of the scorer
    unscored    runs that the scorer does not apply to
    failures    runs without a score because the scorer failed, by cause
    means       mean of each criterion over all scores of this version

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
    base: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> ScoreSummary:
    """Score the runs of a table and store the scores beside them; recorded rewards stay as they are.

    Args:
        table: An experience table, or its folder.
        scorer: A function `score(run) -> float | dict[str, float] | None`, or the name of a scorer: "programs",
            "no_loop", "number:answer:0.01", "file.py:name", "command:PROGRAM".
        name: What the scores are called, for `with_score` and `pairs(score=...)`; by default derived from the scorer.
        base: Folder that relative paths count from where the working directory does not have them.
        progress: Called with the number of runs done and in total.

    Returns:
        How many runs were scored, kept, left unscored, failed, and the mean scores.

    >>> import pairwright as pw
    >>> summary = pw.score("runs/first/experience", "final_answer")
    >>> summary.scored, summary.means
    (8, {'score': 1.0})
    """
    table = table if isinstance(table, Table) else Table(table, create=False)
    if not isinstance(scorer, str):
        return run_program(table, function_program(scorer, name), progress)
    label, spec = split_name(scorer)
    return run_program(table, find_program(spec, name=name or label, base=base), progress)


def split_name(text: str) -> tuple[str | None, str]:
    """The name and the scorer of `NAME=SCORER`; without a name None.

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
    done = {row.uid for row in log.rows() if row.hash == program.hash and row.score is not None}
    rows: list[ScoreRow] = []
    for num_seen, (uid, outcome) in enumerate(program.run(_runs_to_score(table, done, summary)), 1):
        summary.add(outcome)
        rows += rows_of(uid, outcome, program.hash)
        if num_seen % _ROWS_PER_APPEND == 0:
            log.append(rows)
            rows = []
            progress(num_seen + summary.kept, summary.runs)
    log.append(rows)
    if summary.scored or summary.kept:
        summary.means = mean_scores(read_score_log(table.path, program.name))
    return summary


def _runs_to_score(table: Table, done: set[str], summary: ScoreSummary) -> Iterator[Experience]:
    for run in table.records():
        if not is_scorable(run):
            summary.unscored += 1
        elif run.eid.uid in done:
            summary.kept += 1
        else:
            yield run


def rows_of(uid: str, outcome: Outcome, version: str, *, group: str = "") -> list[ScoreRow]:
    """The rows that store an outcome: one a criterion, one for a failure; none for an unscored run."""
    if outcome.failure is not None:
        return [ScoreRow(uid, reason=outcome.failure[:MAX_REASON], cost=outcome.cost, hash=version, group=group)]
    rows: list[ScoreRow] = []
    for criterion, value in outcome.scores.items():
        reason = outcome.reasons.get(criterion, "")[:MAX_REASON]
        # The cost of a run is stored once, so that costs can be summed.
        rows.append(ScoreRow(uid, criterion, value, reason, 0.0 if rows else outcome.cost, version, group))
    return rows
