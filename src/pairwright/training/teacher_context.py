"""What the teacher reads: hints, or the runs of the group and the feedback on a run."""

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import polars as pl

from pairwright.config.train_config import DistillConfig
from pairwright.records.experience import Experience
from pairwright.records.messages import content_hash
from pairwright.store.table import Table
from pairwright.tokens.hints import Aid, Hint, Hinter, format_message


class HintAids:
    def __init__(self, settings: DistillConfig, counts: Counter[str]) -> None:
        self._hinter, self._counts = Hinter(settings), counts

    def find(self, runs: list[Experience]) -> Iterator[tuple[Experience, list[Hint] | Aid]]:
        for run in runs:
            hints, num_hints = self._hinter(run.messages, run.errors)
            self._counts["without_hint"] += num_hints.without_hint
            self._counts["without_recovery"] += num_hints.without_recovery
            # Turns of the prompt are context: a hint for one of them trains nothing.
            hints = [hint for hint in hints if hint.target >= len(run.prompt)]
            if hints:
                yield run, hints

    def close(self) -> None:
        self._hinter.close()


class RunAids:
    """A successful run of the group and feedback, at the end of the prompt's last message; every turn is taught."""

    def __init__(self, table: Table, settings: DistillConfig, counts: Counter[str], excluded: set[str]) -> None:
        self._table, self._settings, self._counts = table, settings, counts
        self._siblings, self._successes = _find_siblings(table, settings, excluded)

    def find(self, runs: list[Experience]) -> Iterator[tuple[Experience, list[Hint] | Aid]]:
        settings = self._settings
        students = [run for run in runs if self._is_student(run)]
        # Text of the siblings of these runs, by id: one scan for all of them.
        solutions: dict[str, str] = {}
        if "sibling" in settings.context:
            names = {name for run in students if (name := self._siblings.get(run.eid.uid)) is not None}
            siblings = self._table.records(where=pl.col("uid").is_in(sorted(names))) if names else ()
            solutions = {sibling.eid.uid: format_turns(sibling) for sibling in siblings}
        for run in students:
            texts = []
            if solution := solutions.get(self._siblings.get(run.eid.uid, "")):
                texts.append(f"An answer to this that succeeded:\n\n{solution}")
            if "feedback" in settings.context and (feedback := find_feedback(run)):
                texts.append(f"What came of an earlier attempt:\n\n{feedback}")
            # Templates refuse a system message in mid-dialogue, and an assistant's would be the model's own words.
            place = len(run.prompt) - 1
            if not texts:
                self._counts["nothing_to_read"] += 1
            elif place < 0 or run.prompt[place].role not in ("user", "tool"):
                self._counts["no_message_to_add_to"] += 1
            else:
                targets = frozenset(index for index, message in enumerate(run.messages) if index > place)
                yield run, Aid({place: "\n\n" + "\n\n".join(texts)}, targets)

    def close(self) -> None:
        pass

    def _is_student(self, run: Experience) -> bool:
        if self._settings.students == "all":
            return True
        if run.reward is None:
            self._counts["unscored"] += 1
        elif run.eid.uid in self._successes:
            self._counts["succeeded"] += 1
        else:
            return True
        return False


def _find_siblings(table: Table, settings: DistillConfig, excluded: set[str]) -> tuple[dict[str, str], set[str]]:
    """For each run the best successful one of its group that is not itself, where there is one; and all successes."""
    columns = ["uid", "tid", "step", "prompt_hash", "reward"]
    groups: dict[str, list[tuple[str, float]]] = {}  # hash of task, step and prompt -> (uid, reward) of its runs
    for batch in table.scan(columns=columns):
        for row in batch.to_pylist():
            if row["reward"] is not None and row["uid"] not in excluded:
                name = content_hash(row["tid"], row["step"], row["prompt_hash"])
                groups.setdefault(name, []).append((row["uid"], row["reward"]))
    siblings: dict[str, str] = {}
    successes: set[str] = set()
    for runs in groups.values():
        rewards = [reward for _, reward in runs]
        enough = settings.success_reward
        if enough is None:
            # Where all rewards are equal nothing says which run succeeded.
            enough = max(rewards) if min(rewards) < max(rewards) else np.inf
        good = sorted((run for run in runs if run[1] >= enough), key=lambda run: -run[1])  # stable: the first of equals
        successes |= {uid for uid, _ in good}
        for uid, _ in runs:
            if other := next((name for name, _ in good if name != uid), None):
                siblings[uid] = other
    return siblings, successes


def find_feedback(run: Experience) -> str:
    """What the environment said of a run: `info["feedback"]`, or what its error sites reported, each once."""
    feedback = run.info.get("feedback")
    if feedback is not None:
        return feedback.strip() if isinstance(feedback, str) else msgspec.json.encode(feedback).decode()
    return "\n".join(dict.fromkeys(text for site in run.errors if (text := site.text.strip())))


def format_turns(run: Experience) -> str:
    """The completion of a run as text: an answer alone as it is, several messages with their roles."""
    turns = run.completion
    if len(turns) == 1:
        return format_message(turns[0]).strip()
    return "\n".join(f"[{message.role}] {format_message(message)}" for message in turns).strip()
