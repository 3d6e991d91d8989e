"""Detection of failed tool calls: failure kinds, marks of failure in tool results, and error sites.

One detector for all formats. A result is a failure if it has a flag of the format (`is_error`), a non-zero exit status,
an object with an error, an error message at the start, or a traceback or syntax error at the end. An exit status of 0
means success. The word "error" alone is not a mark, since files, search results and test reports contain it, too.
tests/sources/test_tool_errors.py has labelled results of each kind.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.fields import object_or_empty

# (position, tool message) -> failure kind or None. Formats with their own marks pass their own function.
ErrorKind = Callable[[int, Message], str | None]

# (kind, patterns); the first match wins, so specific kinds come before general ones.
_WORDS = (
    ("timeout", ("timeout", "timed out")),
    ("file_not_found", ("filenotfound", "no such file")),
    ("unknown_tool", ("unknown tool", "unknowntool", "tool not found", "no tool named")),
    ("missing_argument", ("missing required", "field required", "is a required property", "required positional arg")),
    ("invalid_json", ("jsondecodeerror", "invalid json", "not valid json", "malformed json")),
    ("invalid_arguments", ("validationerror", "validation error", "invalid argument")),
    (
        "permission_denied",
        ("permission denied", "permissionerror", "permissiondenied", "access denied", "not permitted"),
    ),
    ("not_found", (" not found", "does not exist")),
)
_STATUS_KEYS = ("exit_code", "exitCode", "returncode", "return_code", "returnCode", "exit_status", "exitStatus")
_CODE_KEYS = frozenset({"status", "code", "statusCode", "status_code", "http_status"})
_ERROR_WORDS = frozenset({"error", "failed", "failure", "fail", "errored", "exception", "timeout", "timed_out"})
_NO_ERROR = frozenset({"", "none", "null", "no", "false", "0", "ok", "no error", "no errors", "n/a", "success"})
_WRAPPERS = ("output", "result", "content", "message", "text", "observation", "response", "stdout", "data")
# Keys of an envelope around a result. Other records may have a status "failed" that is not the call's.
_ENVELOPE = re.compile(
    r"(?:http_)?status(?:_?code)?|code|message|msg|errors?|error_?(?:code|message|type)|reason|details?|description|type"
    r"|name|title|data|result|output|content|stdout|stderr|traceback|success|ok|hint|suggestion|tool(?:_name|_call_id)?"
    r"|request_?id|timestamp|path|command|duration|elapsed|retryable|is_?error|exception|arg(?:ument)?s|query|instance"
    r"|url|extensions",
    re.I,
)
_LIST_STARTS = ("[{", "[\n", "[ ", '["', "[[")
# JSON text without any of these has no mark of failure; the most frequent first
_SIGNS = ("tatus", "rror", '"ok"', "ode", "xit", "ail", "eturn", '"success"', "raceback", "xception")
_NUM_JSON = 1000  # characters searched for marks at either end of an object


def failure_kind(hint: object, default: str) -> str:
    """Classify an error type or message as a failure kind; return `default` if no pattern matches."""
    words = hint[:1000].lower() if isinstance(hint, str) else ""
    for kind, signs in _WORDS:
        if any(map(words.__contains__, signs)):
            return kind
    return default


_START = re.compile(
    r"""(?:OBSERVATION:\s+|Observation:\s+|<(?:tool_response|output|result|stderr)>\s*|\#+\s*)?
    (?:
      \[?(?:fatal\ )?error(?:\s*\[[^\]\n]{0,40}\]|\s*\([^)\n]{0,60}\)|\s+(?:code\s+)?-?\d+)?\]?\s*(?:[:—–]|-\s|$)
    | \[error\]
    | error\s+(?:executing|calling|running|invoking|fetching|reading|writing|parsing|processing|loading|opening
        |connecting|searching|creating|updating|deleting|getting|evaluating|accessing|sending|making|from
        |while|when|during|occurred|in\s+(?:tool|function|call)|on\s+line)\b
    | an?\ (?:unexpected\ |internal\ |unknown\ )?error\ (?:has\ )?occurr?ed\b
    | (?:mcp|tool|api|http|runtime|execution|internal|server|client|validation|command|shell|python|sql|database
        |network|connection|request|parse|parser|syntax|type|key|value|import|timeout|compilation|build)[\ _-]error
        (?:\s+-?\d+|\s*\([^)\n]{0,60}\))?\s*:
    | (?:exception|failure|failed|fatal|panic|errno|traceback)\s*:
    | (?:tool\ |command\ |code\ |function\ )?(?:execution|call|command|request|invocation)\ (?:failed|timed\ out)\b
    | failed\ to\ \w+
    | previous\ response\ had\ parsing\ errors
    | traceback\ \(most\ recent\ call\ last\)
    | <(?:tool_use_error|tool_error|error)>
    | ❌
    )""",
    re.I | re.X,
)
# The name of an exception: "ValueError: ...", "json.decoder.JSONDecodeError: ...", or its repr as the whole result.
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::\s|\('[^\n]*\)\s*$|\(\"[^\n]*\)\s*$)")
_START_WORDS = ("error", "fail", "exception", "traceback", "fatal", "panic", "errno", "timed out", "❌")
_NO_TOOL = re.compile(
    r"(?:unknown|no such|invalid) (?:tool|function)\b|no tool named|(?:tool|function) \S{1,80} (?:is )?not found", re.I
)
# A program's message as the only line: "cat: x.txt: No such file or directory", "bash: rg: command not found".
_PROGRAM = re.compile(
    r"(?:/\S+/)?[\w.+-]+: [^\n]{0,300}(?:command not found|: not found|No such file or directory|Permission denied"
    r"|Is a directory|Not a directory|Connection refused|Operation not permitted|cannot open [^\n]{0,200}"
    r"|unrecognized option [^\n]{0,100}|invalid option [^\n]{0,100})\s*$"
)

# An exit status is on a separate line: the first, the last, or one of a harness's header or footer.
_STATUS_LINE = re.compile(
    r"""(?:the\ |your\ )?(?:(?:command|process|program|script|shell|task|execution|bash|python|tool|job|it)\ )?
    (?:was\ |has\ )?(?:(?:completed|finished|exited|failed|terminated|returned|ended|done)\ )?
    (?:(?:with\ )?(?:an?\ )?(?:non-?zero\ )?(?:exit|return)[\ _-]?(?:code|status)|exit
      |with\ (?:an?\ )?(?:non-?zero\ )?(?:status\ code|code|status))
    (?:\ (?:was|is|of))?(?:\ ?[:=]\ ?|\ )(?P<number>-?\d{1,10})""",
    re.I | re.X,
)
_FRAME = " \t\r[](){}<>*.,;:!"  # around a status line
_STATUS_TAG = re.compile(r"<(return_?code|exit_?code|exit_?status|status_?code)>\s*(-?\d+)\s*</\1>", re.I)
_STATUS_START = re.compile(
    r"(?:error:? )?(?:(?:command|process|script|program) )?(?:(?:failed|exited|terminated|returned|finished) )?"
    r"(?:with )?(?:an? )?(?:non-?zero )?(?:exit|return)[ _-]?(?:code|status)[:=]? (-?\d+)\b",
    re.I,
)
_NUM_STATUS_LINES = 5  # at either end of a result
# Shell wrappers end their header with one of these lines.
_OUTPUT_BEGINS = ("output:", "stdout:", "<output>", "<stdout>")

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TRACEBACK = re.compile(r"^(?:[A-Z]\w*\s+)?Traceback \(most recent call last\):?\s*$", re.M)
_RAISED = re.compile(r"^(?:\w+\.)*[A-Za-z_]\w*(?:: .*|:)?$")
_SYNTAX = re.compile(
    r"^\s*File \"[^\n]*\", line \d+[^\n]*\n(?:[^\n]*\n){0,4}?(?:SyntaxError|IndentationError|TabError): ", re.M
)
_CRASH = re.compile(
    r"^(?:Exception in thread \"|thread '[^'\n]*' (?:\(\d+\) )?panicked at |panic: |Segmentation fault|Node\.js v\d"
    r"|make(?:\[\d+\])?: \*\*\* |npm (?:ERR!|error) |Uncaught (?:\w*Error|exception)|fatal: )",
    re.M,
)
# A terminal's screen ends with a shell prompt; a prompt followed by a command starts the next command.
_PROMPT = re.compile(r"(?:\([\w.-]+\) )?(?:[\w.-]+@[\w.-]+:[^\n$#]*|bash-[\d.]*)[#$]")
_CALLS = ("    at ", "\tat ", "\t... ")  # stack lines of Node and Java
_NUM_HEAD, _NUM_TAIL, _NUM_TRACEBACK = 1000, 2000, 20_000  # examined characters

# Matches every failed result, with any mark: as text, as JSON, or as JSON text inside JSON, where white space and
# quotes are escaped. Colour codes may occur inside a word; ı, İ, ſ and K match i, k or s if case is ignored.
_GAP = r"(?:\\+[a-z]|[^a-z])*"
_HINTS = rf"""(?is)error|exception|fail|traceback|fatal|panic|errno|timeout|timed.out|❌|uncaught|segmentation fault
|node\.js v|: \*\*\* |npm err|not found|no such|no tool named|(?:unknown|invalid) (?:tool|function|option)
|unrecognized option|permission denied|(?:is|not) a directory|connection refused|not permitted|cannot open|detail\\*"
|(?:success|ok){_GAP}false|(?:xit|code|status)(?: (?:was|is|of))?{_GAP}(?:[0-9]|[^\x00-\x7f]|\\u)
|\x1b|(?-i:[ıİſK])|\\u(?:00[0-7]|01[37]|212|274)""".replace("\n", "")


def suspicious_results(texts: Sequence[str]) -> list[int]:
    """Return the indices of results that may be failures; `text_error_kind` is None for all others.

    One pass of a linear-time regular expression over many texts is ten times as fast as examining each.
    """
    import polars as pl  # slow to load, needed only for imports

    mask = pl.Series(texts, dtype=pl.String).str.contains(_HINTS)
    return mask.arg_true().to_list() if mask.any() else []


def result_error_kind(position: int, message: Message) -> str | None:
    """Return the failure kind of a tool message, or None."""
    extra, text = message.extra, message.text
    flag = next((extra[key] for key in ("is_error", "isError") if isinstance(extra.get(key), bool)), None)
    if flag is None and extra.get("status") in ("error", "failed"):
        flag = True
    if flag is False:
        return None
    return text_error_kind(text) or (failure_kind(text, "tool_error") if flag else None)


def text_error_kind(text: str) -> str | None:
    """Return the failure kind that the text of a tool result marks, or None."""
    start = text.lstrip()
    first = start[:1]
    if first == "{" or (first == "[" and start[:2] in _LIST_STARTS):
        ends = start if len(start) <= 2 * _NUM_JSON else start[:_NUM_JSON] + start[-_NUM_JSON:]
        if not any(map(ends.__contains__, _SIGNS)):
            return None
        try:
            value: Any = msgspec.json.decode(start)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return _plain_kind(start)
        return _value_kind(value, 0)
    return _plain_kind(start)


def _plain_kind(text: str) -> str | None:
    """Return the failure kind of a result that is not JSON."""
    head = text[:_NUM_HEAD]
    status = _exit_status(text)
    if status is not None:
        return None if status == 0 else failure_kind(text[:_NUM_TAIL], "nonzero_exit")
    if _NO_TOOL.match(head):
        return _word(text)
    if any(map(head[:120].lower().__contains__, _START_WORDS)) and (_START.match(head) or _EXCEPTION.match(head)):
        return _word(text)
    space = head.find(" ")  # a program's name ends at the first space
    is_short = head[space - 1 : space] == ":" and len(text) < _NUM_HEAD and text.count("\n") <= 1
    if is_short and _PROGRAM.match(text.rstrip()):
        return _word(text)
    if _is_crash(text, text[-_NUM_TAIL:].rstrip()):
        return failure_kind(text.rstrip()[-300:], "exception")
    return None


def _word(reason: str) -> str:
    return failure_kind(reason, "exception" if "traceback (most recent" in reason[:200].lower() else "tool_error")


def _exit_status(text: str) -> int | None:
    """Return the exit status that a shell tool wrote before or after the output, or None."""
    head, tail = text[:400], text[-600:]
    tag = _STATUS_TAG.match(text) or _STATUS_TAG.match(tail.rstrip().rpartition("\n")[2])
    if tag:
        return int(tag[2])
    lines = [line for line in head.split("\n", _NUM_STATUS_LINES)[:_NUM_STATUS_LINES] if line.strip()]
    for number, line in enumerate(lines):
        if line.strip().lower() in _OUTPUT_BEGINS:
            break
        status = _STATUS_LINE.fullmatch(line[:200].strip(_FRAME))
        # After the first line, a status counts only in a header that ends with "Output:".
        if status and (number == 0 or any(begin in head.lower() for begin in _OUTPUT_BEGINS)):
            return int(status["number"])
    begin = _STATUS_START.match(text)
    if begin:
        return int(begin[1])
    lines = [line for line in tail.rsplit("\n", _NUM_STATUS_LINES)[-_NUM_STATUS_LINES:] if line.strip()]
    for number, line in enumerate(reversed(lines)):
        status = _STATUS_LINE.fullmatch(line[-200:].strip(_FRAME))
        # Before the last line, a status counts only in brackets.
        if status and (number == 0 or line.lstrip()[:1] == "["):
            return int(status["number"])
    return None


def _is_crash(text: str, tail: str) -> bool:
    """Whether a result ends with a traceback, a syntax error, or the last words of a program that crashed."""
    # Searching for one character first is much faster than for two.
    if tail.endswith(("#", "$")) or ("\x1b" in tail and "\x1b[" in tail) or ("\r" in tail and "\r\n" in tail):
        text = _without_prompt(text[-_NUM_TRACEBACK:])
        tail = text[-_NUM_TAIL:]
    end = text[-_NUM_TRACEBACK:]
    if "Traceback (most" in end and _ends_with_traceback(end.rstrip()):
        return True
    last = tail[tail.rfind("\n") + 1 :]
    if last.startswith(("SyntaxError: ", "IndentationError: ", "TabError: ")):
        return _SYNTAX.search(tail) is not None
    if last.startswith(_CALLS) or last == "}":
        return _is_trace_of_calls(tail)
    return _CRASH.match(last) is not None


def _without_prompt(text: str) -> str:
    """Return the text without colours, and without the prompt of a shell at its end."""
    text = (_ANSI.sub("", text) if "\x1b[" in text else text).replace("\r\n", "\n").rstrip()
    before, _, last = text.rpartition("\n")
    prompt = _PROMPT.match(last)
    return before.rstrip() if prompt and not last[prompt.end() :].strip() else text


def _ends_with_traceback(text: str) -> bool:
    """Whether the last traceback of a text is at its end: frames, then the exception and nothing after its message."""
    headers = list(_TRACEBACK.finditer(text))
    if not headers:
        return False
    lines = text[headers[-1].end() :].strip("\n").split("\n")
    is_notebook = not headers[-1][0].startswith("Traceback")
    if not is_notebook and not lines[0].lstrip().startswith(("File ", "[Previous")):
        return False
    # Frames are indented; the first unindented line has the exception. Frames of notebooks are not indented.
    raised = [number for number, line in enumerate(lines) if line[:1].strip() and _RAISED.match(line)]
    if not raised:
        return False
    if is_notebook:
        return _EXCEPTION.match(lines[raised[-1]]) is not None
    message = lines[raised[0] + 1 :]
    # A message may have several lines; a following paragraph is other text.
    return len(message) <= 12 and not any(not line.strip() or _PROMPT.match(line) for line in message)


def _is_trace_of_calls(tail: str) -> bool:
    """Whether a text ends with the stack of an uncaught exception of Node or Java."""
    num_calls = 0
    for line in reversed(tail.rsplit("\n", 40)):
        if line.startswith(_CALLS):
            num_calls += 1
        elif not num_calls:
            return False
        elif line.strip() not in ("{", "}"):
            return bool(_EXCEPTION.match(line)) or line.startswith(("Exception in thread", "Uncaught ", "Error: "))
    return False


def _value_kind(value: Any, depth: int) -> str | None:
    """Return the failure kind of a decoded result: an object, a list with a single item, or text."""
    if isinstance(value, str):
        # Text inside an object: classified like a text result, or nested JSON.
        return text_error_kind(value) if depth and depth < 3 else None
    if isinstance(value, list):
        return _value_kind(value[0], depth + 1) if len(value) == 1 and depth < 3 else None
    if not isinstance(value, dict) or depth > 3:
        return None
    # Next to stdout or stderr, a numeric `status` is the exit status.
    shell = {"exit_code": value.get("status")} if "stdout" in value or "stderr" in value else {}
    statuses = (
        fields[key]
        for fields in (value, shell, object_or_empty(value.get("metadata")))
        for key in _STATUS_KEYS
        if _is_number(fields.get(key))
    )
    status = next(statuses, None)
    if status is not None:
        return None if status == 0 else failure_kind(_words_of(value), "nonzero_exit")
    for key in ("is_error", "isError"):
        if isinstance(value.get(key), bool):
            return failure_kind(_words_of(value), "tool_error") if value[key] else None
    if _names_error(value) or _has_failed_status(value):
        return _word(_words_of(value))
    stderr = value.get("stderr")
    if isinstance(stderr, str) and not value.get("stdout") and _is_crash(stderr, stderr.rstrip()[-_NUM_TAIL:]):
        return failure_kind(stderr[-300:], "exception")
    wrapped = (value[key] for key in _WRAPPERS if key in value and len(value) <= 6)
    return next((kind for inner in wrapped if (kind := _value_kind(inner, depth + 1)) is not None), None)


def _names_error(value: Json) -> bool:
    """Whether an object holds an error: text or an object; a number under such a key is a measurement."""
    error = value.get("error")
    is_said = isinstance(error, str) and error.strip().lower() not in _NO_ERROR
    if is_said or error is True or (isinstance(error, dict | list) and error):
        return True
    if len(value) == 1 and "detail" in value:  # FastAPI's response to a failed request
        return bool(value["detail"])
    # GraphQL
    errors = value.get("errors")
    if not isinstance(errors, list) or not errors or value.get("data") or not _is_envelope(value):
        return False
    return all(isinstance(item, dict) and "message" in item for item in errors)


def _has_failed_status(value: Json) -> bool:
    """Whether an envelope says that the call failed: {"success": false}, {"status": "error"}, {"code": 404, ...}."""
    if value.get("success") is False or value.get("ok") is False:
        return True
    status = value.get("status")
    if type(status) is str and status.lower() in _ERROR_WORDS:
        is_told = status.lower() == "error" and any(value.get(key) for key in ("message", "msg", "reason", "detail"))
        return is_told or _is_envelope(value)
    codes = [value[key] for key in _CODE_KEYS if _is_number(value.get(key))]
    return any(400 <= code < 600 for code in codes) and _is_envelope(value)


def _is_envelope(value: Json) -> bool:
    return all(map(_ENVELOPE.fullmatch, value))


def _words_of(value: Json) -> str:
    for key in ("error", "message", "msg", "detail", "reason", "stderr", "output", "stdout", "content"):
        words = value.get(key)
        if isinstance(words, dict):
            words = words.get("message") or words.get("type")
        if isinstance(words, str) and words.strip():
            return words
    return str(value)[:1000]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def tool_names(tools: Sequence[Json]) -> tuple[str, ...]:
    """Return the names in tool schemas of either shape: {"function": {"name"}} or {"name"}."""
    functions = [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools]
    return tuple(function["name"] for function in functions if isinstance(function.get("name"), str))


def error_sites(messages: list[Message], tools: list[Json], kind_of: ErrorKind) -> list[ErrorSite]:
    """Return failed results, by the marks of the format (`kind_of`) and common ones, and calls to unknown tools."""
    available = tool_names(tools)
    # Call id -> tool name, since results often lack the name.
    callers: dict[str, str] = {}
    sites: list[ErrorSite] = []
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            if call.id is not None:
                callers[call.id] = call.name
            if available and call.name not in available:
                text = f"no tool named {call.name!r}"
                sites.append(ErrorSite(index, "unknown_tool", text, call.name, call.id, available_tools=available))
        if message.role != "tool":
            continue
        kind = kind_of(index, message)
        if kind is None and kind_of is not result_error_kind:
            kind = result_error_kind(index, message)
        if kind is not None:
            tool = callers.get(message.tool_call_id or "", message.name)
            sites.append(ErrorSite(index, kind, message.text, tool, message.tool_call_id, available_tools=available))
    return sites
