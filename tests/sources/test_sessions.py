"""Sessions of coding assistants: one golden file each, read whole; branches, compactions, results and their calls."""

import json
import shutil
from pathlib import Path

import pytest
from mutations import survives
from outlines import counts, outline, read_path

from pairwright.records.messages import Message
from pairwright.sources import READERS
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.frameworks import adk_sessions
from pairwright.sources.sessions import opencode, pi
from pairwright.sources.shapes.session_entries import MAX_BRANCHES, Entry, Session, read_entries

FIXTURES = Path(__file__).parent / "fixtures"

# By fixture: each experience as the lines of `outline`.
GOLDEN = {
    "gemini_cli.json": [
        [
            "user When is high tide?",
            "--",
            'assistant* <Plan|Read the table.> I will look. read_file{"path":"tide.csv"}#c1 glob{"pattern":"*.csv"}#c2',
            'tool! #c1 {"error":"File not found: tide.csv"}',
            'tool #c2 {"output":"tides.csv"}',
            "assistant* At seven.",
        ],
    ],
    "gemini_stream.jsonl": [
        [
            "user How long is the pier?",
            "--",
            'assistant* I will look. read_file{"path":"pier.txt"}#s1 read_file{"path":"piers.txt"}#s2',
            "tool! #s1 File not found: pier.txt",
            "tool #s2 90 m",
            "assistant* Ninety metres.",
        ],
    ],
    "gemini_cli_lines.jsonl": [
        [
            "user Name a boat.",
            "--",
            "assistant* The Swan.",
            "user Another.",
            "assistant* The Heron.",
        ],
        [
            "user Name a boat.",
            "--",
            "assistant The Swan.",
            "user A shorter one.",
            "assistant* The Elk.",
        ],
    ],
    "qwen_code.jsonl": [
        [
            "user How deep is the bay?",
            "--",
            'assistant* <Look it up.> read_file{"path":"bay.txt"}#q1',
            'tool #q1 {"output":"9 m"}',
            "assistant* Nine metres.",
        ],
        [
            "user The bay is 9 m deep.",
            "assistant Understood.",
            "user In feet?",
            "--",
            "assistant* About thirty.",
        ],
    ],
    "cline.json": [
        [
            "system You mend sails.",
            "user Mend the sail.",
            "--",
            'assistant* <Find it.> Looking. read_files{"path":"sail.txt"}#t1',
            "tool! #t1 No such file",
            "assistant* There is none.",
        ],
        [
            "system You mend sails.",
            "user Earlier: no sail was found.",
            "--",
            "assistant* I will sew one.",
        ],
    ],
    "cline_history.json": [
        [
            "user <task>|Count the oars.|</task><environment_details>|# Files|oars.txt|</environment_details>",
            "--",
            "assistant* <read_file>|<path>oars.txt</path>|</read_file>",
            "user [read_file for 'oars.txt'] Result:|four",
            "assistant* <attempt_completion>|<result>Four.</result>|</attempt_completion>",
        ],
    ],
    "pi.jsonl": [
        [
            "user Row to the island.",
            "--",
            'assistant* <Check the wind.> wind{"at":"bay"}#k1',
            "tool #k1 west",
            "assistant* West wind: I row.",
            "user Turn back.",
            "assistant* Turning.",
        ],
        [
            "user Row to the island.",
            "--",
            'assistant <Check the wind.> wind{"at":"bay"}#k1',
            "tool #k1 west",
            "assistant West wind: I row.",
            "user Faster.",
            "assistant* As fast as I can.",
        ],
        [
            "user We rowed west.",
            "user Faster.",
            "assistant As fast as I can.",
            "user Are we there?",
            "--",
            "assistant* Nearly.",
        ],
    ],
    "openclaw_telemetry.jsonl": [
        [
            "user Ring the bell.",
            "--",
            "assistant* bell{}#o1",
            "tool #o1 rung",
            "assistant* Done.",
        ],
    ],
    "opencode.json": [
        [
            "system You count buoys.",
            "user How many buoys?",
            "--",
            'assistant* <Count them.> bash{"command":"wc buoys"}#k1 read{"filePath":"b.txt"}#k2',
            "tool #k1 7",
            "tool! #k2 File not found: b.txt",
            "assistant* Seven.",
        ],
    ],
    "copilot_cli.jsonl": [
        [
            "user Light the lamp.",
            "--",
            'assistant* <It needs oil.> bash{"command":"light"}#l1 view{"path":"oil"}#l2',
            "tool! #l1 no oil",
            "tool #l2 empty",
            "assistant* The lamp has no oil.",
        ],
    ],
    "cursor.jsonl": [
        [
            "user <user_query>|Paint it.|</user_query>",
            "--",
            'assistant* Which colour? Read{"path":"paint"}#None',
            "assistant* Blue it is.",
        ],
    ],
    "cursor_stream.jsonl": [
        [
            "user Caulk the hull.",
            "--",
            'assistant* <Find tar.> Looking. read{"path":"tar"}#h1 ask{"q":"tar?"}#h2',
            "tool #h1 black",
            'tool! #h2 {"reason":"not allowed"}',
            "assistant* Done.",
        ],
    ],
    "goose.json": [
        [
            "user Feed the gulls.",
            "--",
            'assistant* <Bread.> I look for bread. shell{"command":"ls"}#r1',
            "tool #r1 bread",
            "assistant* Fed.",
        ],
        [
            "user Summary: the gulls were fed.",
            "user Again.",
            "--",
            'assistant* shell{"command":"feed"}#r2',
            "tool! #r2 no bread left",
        ],
    ],
    "goose_lines.jsonl": [
        [
            "user Hi",
            "--",
            "assistant* Hello.",
        ],
    ],
    "kiro_cli.jsonl": [
        [
            "user Drop anchor.",
            "--",
            'assistant* <Is it deep?> Sounding. sound{"at":"bow"}#u1',
            'tool! #u1 {"depth":3}',
            "assistant* Too shallow.",
        ],
        [
            "user And now?",
            "--",
            "assistant* Dropped.",
        ],
    ],
    "kiro_saved.json": [
        [
            "user Weigh anchor.",
            "--",
            'assistant* Pulling. pull{"n":1}#w1',
            "tool! #w1 stuck",
            "assistant* It is stuck.",
        ],
    ],
    "managed_agents.jsonl": [
        [
            "system You watch the sea.",
            "user What is out there?",
            "--",
            'assistant* <Look twice.> look{"to":"west"}#s4 bash{"command":"date"}#s5',
            "tool #s4 fog",
            "tool! #s5 not allowed",
            "assistant* Fog in the west.",
        ],
    ],
    "adk.json": [
        [
            "user Is berth four free?",
            "--",
            'assistant* I will look. berth{"number":4}#adk-1',
            'tool! #adk-1 {"error":"no such berth"}',
            "assistant* There is none.",
        ],
    ],
    "hermes.json": [
        [
            "system You carry letters.",
            "user Send it.",
            "--",
            'assistant* <Seal it first.> send{"to": "Ann"}#h1',
            "tool #h1 sent",
            "assistant* Sent.",
        ],
    ],
    "session_lines.jsonl": [
        [
            "system Be brief.",
            "user Read the log.",
            "--",
            'assistant* Reading. read{"path":"log"}#4',
            "tool #4 calm",
            'assistant* read{"path":"old"}#5',
            "tool! #5 Error: no such file",
            "assistant* Calm seas.",
        ],
    ],
    "goose_stream.jsonl": [
        ["user Hoist it.", "--", "assistant* hoist{}#x", "tool #x up"],
    ],
    "chatgpt.json": [
        [
            "user How high is the mast?",
            "--",
            'assistant* <Compute it.> python{"input":"print(3 * 4)"}#c',
            "tool #c 12",
            "assistant* Twelve metres.",
        ],
        [
            "user How high is the mast?",
            "--",
            'assistant <Compute it.> python{"input":"print(3 * 4)"}#c',
            "tool #c 12",
            "assistant* It is|12 m.",
        ],
    ],
}
# By fixture: format, model, session id.
HEADS = {
    "gemini_cli.json": ("gemini-cli", "gemini-2.5-pro", "tide-1"),
    "gemini_cli_lines.jsonl": ("gemini-cli", "gemini-3", "tide-2"),
    "gemini_stream.jsonl": ("gemini-cli", "gemini-3", "gs-1"),
    "qwen_code.jsonl": ("gemini-cli", "qwen3-coder", "qw-1"),
    "cline.json": ("cline", "sonnet", "cl-1"),
    "cline_history.json": ("cline", None, "fixtures"),
    "pi.jsonl": ("pi", "m-1", "pi-1"),
    "openclaw_telemetry.jsonl": ("pi", "claw", "agent:main"),
    "opencode.json": ("opencode", "sonnet", "ses_1"),
    "copilot_cli.jsonl": ("copilot-cli", "gpt-5.1", "co-1"),
    "cursor.jsonl": ("cursor", None, "cursor"),
    "cursor_stream.jsonl": ("cursor", "Composer", "cu-1"),
    "goose.json": ("goose", "sonnet", "20260301_1"),
    "goose_lines.jsonl": ("goose", None, "goose_lines"),
    "goose_stream.jsonl": ("goose", None, "goose_stream"),
    "kiro_cli.jsonl": ("kiro-cli", None, "kiro_cli"),
    "kiro_saved.json": ("kiro-cli", "sonnet", "ki-1"),
    "managed_agents.jsonl": ("managed-agents", "sonnet-5", "sesn_1"),
    "adk.json": ("adk", None, "ad-1"),
    "hermes.json": ("hermes", "hermes-4", "he-1"),
    "session_lines.jsonl": ("session-lines", None, "sl-1"),
    "chatgpt.json": ("chatgpt", "gpt-5", "cg-1"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_session_is_read_whole(name):
    format_name, experiences, rejected = read_path(FIXTURES / name)
    assert [outline(exp) for exp in experiences] == GOLDEN[name]
    assert rejected == []
    first = experiences[0]
    assert (format_name, first.model_version, first.info["session_id"]) == HEADS[name]
    assert first.reward is None
    assert first.source.format == format_name
    # Steps and branches of one session belong to one task, and no two share run and step.
    assert len({exp.eid.tid for exp in experiences}) == 1
    assert len({(exp.eid.run, exp.eid.step) for exp in experiences}) == len(experiences)


@pytest.mark.slow  # every single damage; test_every_reader.py draws some of them
@pytest.mark.parametrize("name", GOLDEN)
def test_no_broken_session_raises_anything_else(name):
    lines = (FIXTURES / name).read_text().splitlines()
    value = json.loads("\n".join(lines)) if name.endswith(".json") else [json.loads(line) for line in lines]
    (reader,) = READERS[HEADS[name][0]]
    assert survives(reader, value) > 100


@pytest.mark.parametrize("name", GOLDEN)
def test_only_the_reader_of_its_own_format_claims_a_session(name):
    """Rows of messages (openai-chat, rows) are the most general formats and may claim what a more special one does."""
    lines = (FIXTURES / name).read_text().splitlines()
    value = json.loads("\n".join(lines)) if name.endswith(".json") else [json.loads(line) for line in lines]
    records = [value, *value] if isinstance(value, list) else [value]
    claims = {
        format_name
        for format_name, variants in READERS.items()
        for reader in variants
        if (reader.matches(value) if reader.unit == "file" else any(map(reader.matches, records)))
    }
    assert claims - {"openai-chat", "rows"} == {HEADS[name][0]}
    assert list(READERS).index(HEADS[name][0]) < list(READERS).index("openai-chat")


def test_the_first_line_of_a_prompt_groups_sessions_of_one_task(tmp_path):
    """Two sessions that begin alike are two runs of one task; `--scores` may name them by session id."""
    text = (FIXTURES / "pi.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.jsonl").write_text(text.replace('"pi-1"', '"pi-2"').replace("Turning.", "No."))
    (one, *_), (two, *_) = (read_path(tmp_path / name)[1] for name in ("a.jsonl", "b.jsonl"))
    assert one.eid.tid == two.eid.tid
    assert one.eid.run != two.eid.run
    assert (one.info["session_id"], two.info["session_id"]) == ("pi-1", "pi-2")


def test_a_session_without_an_answer_is_rejected_with_the_reason(tmp_path):
    lines = (FIXTURES / "pi.jsonl").read_text().splitlines()
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([*lines[:3], lines[7].replace('"parentId": "5"', '"parentId": "1"')]))
    _, experiences, (rejected,) = read_path(path)
    assert experiences == []
    assert rejected.reason == "no answer of the model, so there is no completion: overloaded"


def test_a_broken_line_loses_only_itself(tmp_path):
    lines = (FIXTURES / "copilot_cli.jsonl").read_text().splitlines()
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([*lines[:2], '{"type": "assistant.message", "data": 5}', *lines[2:]]))
    _, (exp,), (rejected,) = read_path(path)
    assert outline(exp) == GOLDEN["copilot_cli.jsonl"][0]
    assert (rejected.line, rejected.reason) == (3, "data: expected an object, got a number")


def test_copilot_without_a_start_is_named_after_its_folder(tmp_path):
    lines = (FIXTURES / "copilot_cli.jsonl").read_text().splitlines()
    path = tmp_path / "5c1e" / "events.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(lines[1:]))
    assert read_path(path)[1][0].info["session_id"] == "5c1e"


# opencode's storage folder.


@pytest.fixture
def storage(tmp_path):
    """The fixture's export as the files of a storage folder."""
    export = json.loads((FIXTURES / "opencode.json").read_text())
    info = export["info"]
    files = {f"session/p1/{info['id']}.json": info}
    for message in export["messages"]:
        files[f"message/{info['id']}/{message['info']['id']}.json"] = message["info"]
        for part in message["parts"]:
            files[f"part/{message['info']['id']}/{part['id']}.json"] = part
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    return tmp_path


def test_a_storage_folder_is_read_from_its_session_files(storage):
    results = [read_path(path) for path in sorted(storage.rglob("*.json"))]
    assert {format_name for format_name, _, _ in results} == {"opencode"}
    assert [rejected for _, _, rejected in results if rejected] == []
    (exp,) = [exp for _, experiences, _ in results for exp in experiences]
    # Parts come in the order of their ids: the one that is not sent does not count.
    assert outline(exp) == GOLDEN["opencode.json"][0]


def test_messages_and_parts_without_their_session_are_rejected(storage):
    shutil.rmtree(storage / "session")
    for path in storage.rglob("*.json"):
        _, experiences, (rejected,) = read_path(path)
        assert experiences == []
        assert "without its opencode session" in rejected.reason


def test_a_session_of_opencode_leads_to_no_file_outside_its_folder(storage):
    record = {"id": "../../etc", "projectID": "p1", "directory": "/"}
    with pytest.raises(BadRecord, match="not a file name"):
        list(opencode.FORMAT.read(record, Origin(str(storage / "session" / "p1" / "x.json")), Options()))
    shutil.rmtree(storage / "message")
    (storage / "message").mkdir()
    (storage / "message" / "ses_1").symlink_to(storage / "part")
    _, experiences, (rejected,) = read_path(storage / "session" / "p1" / "ses_1.json")
    assert experiences == []
    assert "without its messages" in rejected.reason


# Trees of entries.


def entry(number, parent, role="assistant"):
    return Entry([Message(role, str(number))], str(number), parent)


def test_the_number_of_branches_is_bounded():
    entries = [entry(0, "", "user"), *(entry(number, "0") for number in range(1, MAX_BRANCHES + 5))]
    results = list(read_entries(Session("pi", "s"), entries, Origin("s.jsonl", 1)))
    assert sum(not isinstance(result, Rejected) for result in results) == MAX_BRANCHES
    assert isinstance(results[-1], Rejected)
    assert "branches" in results[-1].reason


def test_a_deep_tree_costs_no_recursion():
    entries = [
        entry(number, str(number - 1) if number else "", "assistant" if number % 2 else "user")
        for number in range(20_000)
    ]
    (exp,) = read_entries(Session("pi", "s"), entries, Origin("s.jsonl", 1))
    assert counts([exp]) == (1, 10_000, 0, 0)


def test_a_parent_that_comes_later_makes_no_ring():
    entries = [entry(1, "2", "user"), entry(2, "1"), entry(1, "1")]
    assert len(list(read_entries(Session("pi", "s"), entries, Origin("s.jsonl", 1)))) == 2


def test_telemetry_that_forgets_messages_begins_a_new_step():
    def message(role, text, time):
        return {"role": role, "content": [{"type": "text", "text": text}], "timestamp": time}

    first = [message("user", "a", 1), message("assistant", "b", 2)]
    window = [first[1], message("user", "c", 3), message("assistant", "d", 4)]
    lines = [{"type": "agent.end", "sessionKey": "k", "messages": listed} for listed in (first, window, window)]
    one, two = pi.FORMAT.read(lines, Origin("t.jsonl", 1), Options())
    assert outline(one) == ["user a", "--", "assistant* b"]
    assert outline(two) == ["assistant b", "user c", "--", "assistant* d"]


def adk_with(*events, **fields):
    session = json.loads((FIXTURES / "adk.json").read_text())
    return {**session, **fields, "events": [*session["events"], *events]}


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (
            adk_with({"invocationId": "e-2", "author": "cook", "content": {"parts": [{"text": "Soup."}]}}),
            "several agents",
        ),
        (adk_with({"invocation_id": "e-2", "author": "user", "actions": {"compaction": {"end": 1}}}), "compaction"),
        (adk_with({"author": "user", "actions": {"rewindBeforeInvocationId": "e-1"}}), "rewind_before_invocation_id"),
        (adk_with(past_events=[{}]), "past_events"),
    ],
)
def test_a_session_of_adk_is_refused_where_its_events_are_not_what_the_model_was_given(session, reason):
    assert adk_sessions.FORMAT.matches(session)
    with pytest.raises(BadRecord, match=reason):
        list(adk_sessions.FORMAT.read(session, Origin("session.json"), Options()))


def test_a_session_of_adk_tells_its_agent_and_counts_the_events_that_are_no_turns():
    (experience,) = adk_sessions.FORMAT.read(adk_with(), Origin("session.json"), Options())
    assert experience.info == {
        "session_id": "ad-1", "app_name": "harbour", "user_id": "u1", "agent": "pilot",
        "other_events": {"partial": 1, "without content": 1},
    }  # fmt: skip


def test_what_follows_a_damaged_line_tells_that_its_prompt_lacks_the_turns_before(tmp_path):
    lines = (FIXTURES / "qwen_code.jsonl").read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if '"uuid": "c"' in line)
    lines[place] = lines[place][:-9]
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join(lines))
    _, experiences, rejected = read_path(path)
    assert len(rejected) == 1
    assert [exp.info.get("begins_after") for exp in experiences] == [None, "c", None]
