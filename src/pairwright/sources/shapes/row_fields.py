"""The usual fields of a row of data: its task, its run, its reward, its tools.

Every chat-like format reads them with the functions of this module, so a name means the same thing everywhere. The
orders and the table of words are documented in docs/reference/sources/index.md.
"""

from pairwright.records.messages import Json
from pairwright.sources.fields import identifier, index, json_value, score
from pairwright.sources.format import Options
from pairwright.sources.score_values import read_score, verdict
from pairwright.sources.shapes.chat_messages import tools_from_chat
from pairwright.sources.shapes.traces import pick_reward

# The first name with a value is used. `uid` is last, since some files number their rows with it.
TASK_KEYS = (
    *("task_id", "prompt_id", "question_id", "instance_id", "problem_id", "example_id"),
    *("task", "task_name", "uid"),
)
RUN_KEYS = ("run", "run_index", "trial", "sample_index", "attempt")
# Scores may be any number; labels are verdicts: true or false, 1, 0 or -1, or a word of the table below.
SCORE_KEYS = ("reward", "score", "rating", "rewards", "stars", "csat")
LABEL_KEYS = (
    *("label", "success", "resolved", "passed", "correct", "kto_tag", "thumbs", "thumb", "feedback", "helpful"),
    *("result", "outcome", "verdict", "vote"),
)
REWARD_KEYS = (*SCORE_KEYS, *LABEL_KEYS)


def task_key(row: Json) -> str | None:
    """Return the name of the field that holds the task id of a row, or None."""
    for key in TASK_KEYS:
        if key in row and identifier(row[key]) is not None:
            return key
    return None


def task_of(row: Json) -> int | str | None:
    key = task_key(row)
    return None if key is None else identifier(row[key])


def run_of(row: Json) -> int | None:
    numbers = (index(row[key]) for key in RUN_KEYS if key in row)
    return next((number for number in numbers if number is not None), None)


def tools_of(row: Json) -> list[Json]:
    """Return the tools of a row or request: `tools` (also as JSON text) or legacy `functions`."""
    if "tools" not in row and "functions" not in row:
        return []
    tools = json_value(row.get("tools"), "tools")
    if not tools and row.get("functions"):
        functions = tools_from_chat(json_value(row["functions"], "functions"), "functions")
        return [{"type": "function", "function": function} for function in functions]
    return tools_from_chat(tools, "tools")


def reward_in(row: Json) -> tuple[str, float] | None:
    """Return the name and number of the field that holds the reward of a row, or None."""
    for keys, read in ((SCORE_KEYS, read_score), (LABEL_KEYS, verdict)):
        for key in keys:
            if key in row and (number := read(row[key])) is not None:
                return key, number
    return None


def reward_of(row: Json, options: Options | None = None) -> tuple[float | None, Json | None]:
    """Return the reward and its components: the component selected by the user, else the first of REWARD_KEYS."""
    components = row.get("reward_components")
    components = components if isinstance(components, dict) else None
    for key in SCORE_KEYS:
        if key in row and isinstance(row[key], dict):
            # A reward object holds components; separate components override them.
            components = {**row[key], **(components or {})}
            break
    if options is not None and options.reward is not None:
        named = score((components or {}).get(options.reward))
        if named is None:
            named = read_score(row.get(options.reward))
        return named, components
    plain = reward_in(row)
    # No single number: the rule for components decides.
    if components and (plain is None or plain[0] in LABEL_KEYS):
        return pick_reward(components, None), components
    return (None if plain is None else plain[1]), components
