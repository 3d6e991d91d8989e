"""Corrections of people as preferences: the corrected answer is chosen, the original is rejected.

A correction is text that replaces the last generated turn: a text score (Langfuse's corrected output) or a field of
`info`. Everything before that turn is the prompt of the preference, so both sides are comparable by construction, and
`pairs --strategy imported` keeps every such preference.
"""

from collections import Counter

import msgspec

from pairwright.errors import PairwrightError
from pairwright.records.experience import EID, Experience, Kind, Side
from pairwright.records.messages import Message
from pairwright.scorers.references import find_field
from pairwright.store.table import Table


def add_corrections(table: Table, name: str, output: Table) -> Counter[str]:
    """Append a preference for each run with a correction, a text score or a field of `info`; counts runs by outcome."""
    counts: Counter[str] = Counter()
    rows = []
    known = set(output.lazy().select("uid").collect()["uid"])
    for run in table.records():
        reason, preference = _correct(run, name)
        if preference is not None and preference.eid.uid in known:
            reason, preference = "there already", None
        counts[reason] += 1
        if preference is not None:
            rows.append(preference)
        if len(rows) >= 1000:
            output.append(rows)
            rows = []
    output.append(rows)
    if not counts["corrected"] and not counts["there already"]:
        raise PairwrightError(f"{table.path}: no run has a correction under {name!r}: {dict(counts)}")
    return counts


def _correct(run: Experience, name: str) -> tuple[str, Experience | None]:
    named = (run.reward_components.get(name), find_field(run.info, name))
    text = next((value for value in named if isinstance(value, str) and value.strip()), None)
    if text is None:
        return "no correction", None
    places = [place for place, message in enumerate(run.completion) if message.is_generated]
    if not places or not run.prompt:
        return "nothing to correct", None
    original = run.completion[places[-1]]
    if original.tool_calls:
        return "the last turn is a call", None
    if original.text.strip() == text.strip():
        return "equal to the original", None
    eid = EID(run.eid.batch, run.eid.task, run.eid.run, run.eid.step, f"{run.eid.suffix}-corrected")
    preference = Experience(
        eid=eid,
        kind=Kind.PREFERENCE,
        prompt=run.prompt + run.completion[: places[-1]],
        tools=run.tools,
        chosen=Side(messages=(Message("assistant", text),), reward=1.0),
        rejected=Side(messages=(msgspec.structs.replace(original, generated=None),), reward=0.0),
        model_version=run.model_version,
        source=run.source,
        info={"corrects": run.eid.uid},
    )
    return "corrected", preference
