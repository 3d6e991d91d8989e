"""The usual fields of a row of data: its task, its run, its reward, its tools.

Every chat-like format reads them with the functions of this module, so a name means the same thing everywhere.
"""

from pairwright.records.messages import Json
from pairwright.sources.fields import identifier, index, json_value, score
from pairwright.sources.format import Options
from pairwright.sources.shapes.chat_messages import tools_from_chat
from pairwright.sources.shapes.traces import pick_reward

REWARD_KEYS = ("reward", "score", "rating")
TASK_KEYS = ("task_id", "prompt_id", "question_id", "instance_id")
RUN_KEYS = ("run", "run_index", "trial", "sample_index", "attempt")


def task_of(row: Json) -> int | str | None:
    """Return the task id of a row, or None."""
    for key in TASK_KEYS:
        task = identifier(row.get(key))
        if task is not None:
            return task
    return None


def run_of(row: Json) -> int | None:
    for key in RUN_KEYS:
        number = index(row.get(key))
        if number is not None:
            return number
    return None


def tools_of(row: Json) -> list[Json]:
    """Return the tools of a row or request: `tools` (also as JSON text) or legacy `functions`."""
    tools = json_value(row.get("tools"), "tools")
    if not tools and row.get("functions"):
        functions = tools_from_chat(json_value(row["functions"], "functions"), "functions")
        return [{"type": "function", "function": function} for function in functions]
    return tools_from_chat(tools, "tools")


def reward_of(row: Json, options: Options) -> tuple[float | None, Json | None]:
    """Return the reward and its components: the component selected by the user, else reward, score or rating."""
    components = row.get("reward_components")
    components = components if isinstance(components, dict) else None
    value = next((row[key] for key in REWARD_KEYS if row.get(key) is not None), None)
    if isinstance(value, dict):
        # A reward that is an object holds components; those under their own key override it.
        components, value = {**value, **(components or {})}, None
    if options.reward is not None:
        named = score((components or {}).get(options.reward))
        return (score(row.get(options.reward)) if named is None else named), components
    # No single number: the rule for components decides.
    if value is None and components:
        return pick_reward(components, None), components
    return score(value), components
