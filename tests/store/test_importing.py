"""Import: every record accounted for, nothing twice, bad input aside, on one process or two."""

import gzip
import json
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from pairwright import PairwrightError, Table
from pairwright.sources import READERS
from pairwright.sources.format import Options
from pairwright.store import importing
from pairwright.store.importing import import_files

FIXTURES = Path(__file__).parents[1] / "sources" / "fixtures"


def chat_row(number: int, **fields) -> str:
    messages = [
        {"role": "user", "content": f"question {number % 3}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    return json.dumps({"messages": messages, "reward": number / 10} | fields)


def imported(tmp_path, *texts: str, table: Table | None = None, **options):
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"in{number}.jsonl"
        path.write_text(text)
        paths.append(str(path))
    table = Table(tmp_path / "experience") if table is None else table
    return table, import_files(paths, table, **options)


def quarantine(table: Table) -> list[dict]:
    return [json.loads(line) for line in (table.path / "quarantine.jsonl").read_text().splitlines()]


def test_a_torn_compressed_file_keeps_the_rows_before_its_end_and_says_so(tmp_path):
    words = np.random.default_rng(0).integers(0, 2**63, 20_000).tolist()  # hardly compressible: several blocks of lines
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(
        gzip.compress("\n".join(chat_row(number, note=str(word)) for number, word in enumerate(words)).encode())
    )
    path.write_bytes(path.read_bytes()[:-100_000])
    table = Table(tmp_path / "experience")
    summary = import_files([str(path)], table, num_workers=1)
    assert 1_000 < summary.total("experiences") == len(table) < len(words)
    (refused,) = quarantine(table)
    assert refused["reason"].startswith("cannot be read: Compressed file ended")


def test_good_rows_are_kept_and_bad_ones_quarantined_with_file_line_and_reason(tmp_path):
    rows = [
        chat_row(0),
        "{broken",
        chat_row(1, reward=None),
        '{"messages": 5}',
        chat_row(2, reward="nan"),
        chat_row(3)[:-9],
    ]
    table, summary = imported(tmp_path, "\n".join(rows))
    assert summary.formats == {
        "openai-chat": {"files": 1, "experiences": 3, "messages": 6, "tool_calls": 0, "errors": 0, "unscored": 2,
                        "quarantined": 3, "already_there": 0},
    }  # fmt: skip
    assert [(row["line"], Path(row["file"]).name) for row in quarantine(table)] == [
        (2, "in0.jsonl"),
        (4, "in0.jsonl"),
        (6, "in0.jsonl"),
    ]
    assert all(row["reason"] and row["raw"] for row in quarantine(table))
    assert table.count() == 3


def test_importing_again_adds_nothing_and_does_not_double_the_quarantine(tmp_path):
    text = "\n".join([*(chat_row(number) for number in range(5)), "{broken"])
    table, _ = imported(tmp_path, text)
    _, again = imported(tmp_path, text, table=table)
    assert (again.total("already_there"), table.count(), len(quarantine(table))) == (5, 5, 1)
    _, more = imported(tmp_path, text.replace("{broken", chat_row(5)), table=table)
    assert (more.total("already_there"), table.count()) == (5, 6)
    assert not (table.path / "quarantine.jsonl").exists()


def test_equal_records_of_one_file_are_all_kept(tmp_path):
    table, _ = imported(tmp_path, "\n".join([chat_row(1)] * 3))
    assert [exp.eid.run for exp in table.records()] == [0, 1, 2]
    assert len({exp.eid.tid for exp in table.records()}) == 1


def test_different_histories_never_share_a_group(tmp_path):
    table, _ = imported(tmp_path, "\n".join(chat_row(number) for number in range(6)))
    assert len({exp.eid.tid for exp in table.records()}) == 3


def test_update_replaces_what_the_file_gave_before(tmp_path):
    table, _ = imported(tmp_path, "\n".join([chat_row(1), chat_row(2)]), chat_row(7))
    _, summary = imported(tmp_path, "\n".join([chat_row(1), chat_row(2, reward=0.9)]), table=table, update=True)
    assert summary.num_replaced == 1
    assert sorted(exp.reward for exp in table.records()) == [0.1, 0.7, 0.9]


def test_rewards_may_be_computed_and_scores_attached(tmp_path):
    (tmp_path / "scores.csv").write_text("id,reward\nr2,0.75\nnobody,1\n")
    rows = [chat_row(1, id="r1", reward=0.5), chat_row(2, id="r2")]
    table, summary = imported(
        tmp_path, "\n".join(rows), scores=tmp_path / "scores.csv", options=Options(reward="reward * 2")
    )
    assert sorted(exp.reward for exp in table.records()) == [0.75, 1.0]
    assert (summary.num_scores, summary.num_scores_used) == (2, 1)


def test_redaction_cleans_records_and_quarantine_and_says_where(tmp_path):
    key = "sk-proj-" + "a1B2" * 8
    rows = [
        chat_row(1, note=f"my key is {key}"),
        f'{{"messages": [{{"role": "user", "content": "{key}"}}], "x": 5, "response": 3',
    ]
    table, summary = imported(tmp_path, "\n".join(rows), redact=True)
    everything = b"".join(path.read_bytes() for path in table.path.iterdir())
    assert key.encode() not in everything
    assert [(secret["line"], secret["kind"]) for secret in summary.secrets] == [(1, "openai_key"), (2, "openai_key")]


def test_two_processes_give_the_same_rows_as_one(tmp_path, monkeypatch):
    text = "\n".join([*(chat_row(number) for number in range(400)), "{broken", chat_row(400)])
    monkeypatch.setattr(importing, "RANGE_BYTES", 8_000)
    tables = []
    for workers in (1, 2):
        table, summary = imported(tmp_path, text, table=Table(tmp_path / f"t{workers}"), num_workers=workers)
        assert (summary.total("experiences"), summary.total("quarantined"), summary.total("files")) == (401, 1, 1)
        assert quarantine(table)[0]["line"] == 401
        tables.append(list(table.records()))
    assert tables[0] == tables[1]


def test_an_eval_archive_that_is_a_bomb_is_quarantined_and_the_rest_imported(tmp_path):
    bomb = tmp_path / "bomb.eval"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", '{"eval": {"task": "t"}}')
        archive.writestr("samples/1_epoch_1.json", b" " * 600_000_000)
    (tmp_path / "good.jsonl").write_text(chat_row(1))
    table = Table(tmp_path / "t")
    summary = import_files([str(bomb), str(tmp_path / "good.jsonl")], table)
    assert (table.count(), summary.total("quarantined")) == (1, 1)


def test_files_of_no_known_format_are_quarantined(tmp_path):
    (tmp_path / "d").mkdir()
    for name, data in {
        "a.png": b"\x89PNG\r\n\x1a\n",
        "b.json": b'{"hello": 1}',
        "c": b"",
        "d.gz": b"\x1f\x8bnonsense",
        "e": b"\0" * 50,
    }.items():
        (tmp_path / "d" / name).write_bytes(data)
    table = Table(tmp_path / "t")
    summary = import_files([str(tmp_path / "d")], table)
    assert (summary.total("quarantined"), summary.total("files"), table.count()) == (5, 5, 0)
    assert {row["reason"].split(":")[0] for row in quarantine(table)} >= {
        "no known format",
        "an empty file",
        "cannot be read",
    }


def test_a_named_format_is_used_or_the_file_is_refused(tmp_path):
    with pytest.raises(PairwrightError, match=r"expected one of auto, .*, or file\.py:FORMAT"):
        imported(tmp_path, chat_row(1), format_name="nope")
    _, summary = imported(tmp_path, chat_row(1), format_name="atif")
    assert summary.reasons == {"does not look like atif": 1}


def test_rejections_are_counted_by_reason_and_not_by_place(tmp_path):
    spans = [
        {
            "name": "ai.embed",
            "spanContext": {"traceId": trace, "spanId": "s"},
            "attributes": {"ai.operationId": "ai.embed"},
        }
        for trace in ("a1", "b2", "c3")
    ]
    (tmp_path / "spans.json").write_text(json.dumps(spans))
    summary = import_files([str(tmp_path / "spans.json")], Table(tmp_path / "t"))
    assert summary.reasons == {"no model call among its spans": 3}
    assert "trace 'a1'" in summary.examples["no model call among its spans"]


def test_every_format_has_a_fixture_that_is_detected_as_itself(tmp_path):
    table = Table(tmp_path / "t")
    summary = import_files([str(FIXTURES)], table)
    read = {name for name, counts in summary.formats.items() if counts.get("experiences")}
    # A trial of Terminal-Bench is a folder: tests/sources/test_agent_benchmarks.py writes one. Demonstrations of
    # NeMo Customizer are read as such only by name.
    assert read >= set(READERS) - {"tau-bench", "terminal-bench", "customizer-sft"}
    assert table.count() == summary.total("experiences") - summary.total("already_there")


def test_all_real_traces_import_and_the_numbers_add_up(tmp_path, traces):
    table = Table(tmp_path / "t")
    summary = import_files([str(traces)], table)
    num_files = sum(path.is_file() for path in traces.rglob("*"))
    assert summary.total("files") == num_files
    assert table.count() == summary.total("experiences") - summary.total("already_there")
    assert len(quarantine(table)) == summary.total("quarantined")
    unknown = {Path(row["file"]).name for row in quarantine(table) if row["reason"].startswith("no known format")}
    assert unknown == {name for name in unknown if name.endswith(".chatml.json") or name == "dataset_info.json"}
    folders = {path.parent.name for path in traces.rglob("*") if path.is_file()}
    assert {
        Path(row["source"]).parent.name for batch in table.scan(columns=["source"]) for row in batch.to_pylist()
    } == folders


def test_an_import_that_dies_half_way_is_finished_by_the_same_command(tmp_path, monkeypatch):
    text = "\n".join(chat_row(number) for number in range(300))
    monkeypatch.setattr(importing, "RANGE_BYTES", 5_000)
    run_tasks, done = importing.run_tasks, []

    def dies(task):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task)
        return run_tasks(task)

    monkeypatch.setattr(importing, "run_tasks", dies)
    table = Table(tmp_path / "t")
    with pytest.raises(KeyboardInterrupt):
        imported(tmp_path, text, table=table)
    assert 0 < table.count() < 300
    monkeypatch.setattr(importing, "run_tasks", run_tasks)
    imported(tmp_path, text, table=table)
    assert sorted(exp.eid.run for exp in table.records()) == list(range(300))


def test_a_folder_can_be_moved_and_imported_again(tmp_path):
    imported(tmp_path, chat_row(1))
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-moved")
    table = Table(tmp_path / "experience")
    summary = import_files([str(tmp_path.parent / f"{tmp_path.name}-moved" / "in0.jsonl")], table)
    assert (summary.total("already_there"), table.count()) == (1, 1)


def test_an_update_from_a_file_that_cannot_be_read_any_more_removes_nothing(tmp_path):
    table, _ = imported(tmp_path, chat_row(1))
    _, summary = imported(tmp_path, "\0\0nonsense", table=table, update=True)
    assert (summary.total("quarantined"), summary.num_replaced, table.count()) == (1, 0, 1)


def test_recorded_ids_of_a_record_with_a_secret_are_dropped_since_they_spell_it(tmp_path):
    def rollout(task, text):
        answer = {"type": "message", "role": "assistant", "content": text, "prompt_token_ids": [1, 2],
                  "generation_token_ids": [3, 4], "generation_log_probs": [-0.5, -0.5]}  # fmt: skip
        return {"responses_create_params": {"input": "hi"}, "response": {"output": [answer]}, "reward": 1.0,
                "_ng_task_index": task, "_ng_rollout_index": 0}  # fmt: skip

    rows = [json.dumps(rollout(0, f"the key is sk-{'a' * 40}")), json.dumps(rollout(1, "no key"))]
    table, summary = imported(tmp_path, "\n".join(rows), redact=True)
    with_secret, without = sorted(table.records(), key=lambda exp: str(exp.eid.task))
    assert with_secret.tokens is None
    assert with_secret.logprobs is None
    assert with_secret.info["tokens_dropped"] == "the record was redacted"
    assert without.tokens.tolist() == [1, 2, 3, 4]
    assert summary.total("tokens_dropped") == 1


def test_archives_are_redacted_and_binary_payloads_are_refused_with_redact(tmp_path):
    key = "sk-proj-" + "a1B2" * 8
    messages = [{"role": "user", "content": f"use {key}"}, {"role": "assistant", "content": "ok"}]
    sample = {"id": 1, "epoch": 1, "input": "x", "target": "y", "messages": messages, "scores": {"s": {"value": 1}}}
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": {"task": "t", "model": "m"}}))
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample))
    table = Table(tmp_path / "t")
    summary = import_files([str(tmp_path / "log.eval")], table, redact=True)
    assert (table.count(), [secret["kind"] for secret in summary.secrets]) == (1, ["openai_key"])
    assert "[REDACTED:openai_key]" in next(table.records()).messages[0].text
    import_files([str(tmp_path / "log.eval")], Table(tmp_path / "plain"))
    assert key in next(Table(tmp_path / "plain").records()).messages[0].text
    eid = {"batch": 0, "task": 1, "run": 0, "step": 0, "suffix": "a"}
    metadata = pickle.dumps({"version": 1, "num_items": 1, "items": [{"eid": eid, "prompt_length": 1, "reward": 1.0}]})
    tensors = safetensors.numpy.save({"0:tokens": np.array([1, 2], np.int32)})
    (tmp_path / "p.trxp").write_bytes(
        struct.pack("<4sBQQ", b"TRXP", 1, len(metadata), len(tensors)) + metadata + tensors
    )
    assert import_files([str(tmp_path / "p.trxp")], Table(tmp_path / "r"), redact=True).total("quarantined") == 1
    assert import_files([str(tmp_path / "p.trxp")], Table(tmp_path / "r")).total("experiences") == 1


@pytest.mark.parametrize(
    ("name", "row", "reward"),
    [
        ("tau-bench", {"task_id": 1, "trial": 0, "reward": 1.0, "info": {"x": {"y": 0.25}},
                       "traj": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "info.x.y"),
        ("sharegpt", {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
                      "metadata": {"reward": 0.25}}, "metadata.reward"),
        ("trl-preference", {"prompt": "q", "completion": "a", "label": True, "meta": {"s": 0.25}}, "meta.s"),
        ("nemo-gym", {"responses_create_params": {"input": "q"}, "reward": 1.0, "judge": {"s": 0.25},
                      "response": {"output": [{"role": "assistant", "content": "a"}]}}, "judge.s"),
        ("openai-chat", {"request": {"messages": [{"role": "user", "content": "q"}]}, "metadata": {"reward": 0.25},
                         "response": {"choices": [{"message": {"content": "a"}}]}}, "metadata.reward"),
        ("trinity", {"eid": {"task": 1, "suffix": "s"}, "type": "single_turn", "reward": 1.0, "info": {"s": 0.25},
                     "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "info.s"),
        ("pairwright", json.loads((FIXTURES / "pairwright.jsonl").read_text().splitlines()[1]) | {"info": {"s": 0.25}},
         "info.s"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." not in value else "",
)  # fmt: skip
def test_a_reward_is_found_by_its_path_and_a_name_that_is_not_there_is_refused(tmp_path, name, row, reward):
    table, summary = imported(tmp_path, json.dumps(row), options=Options(reward=reward))
    assert (list(summary.formats), [exp.reward for exp in table.records()]) == ([name], [0.25])
    for wrong in ("nope", "nope.nope"):
        with pytest.raises(PairwrightError, match="no record has a number of that name"):
            imported(tmp_path, json.dumps(row), table=Table(tmp_path / wrong), options=Options(reward=wrong))
        assert Table(tmp_path / wrong).count() == 0


def test_parts_are_kept_back_until_a_record_has_the_reward(tmp_path):
    files = [chat_row(1), chat_row(2, style=0.5), "{broken"]
    table, summary = imported(tmp_path, *files, options=Options(reward="style"))
    assert sorted(exp.reward is None for exp in table.records()) == [False, True]
    assert summary.total("quarantined") == len(quarantine(table)) == 1
