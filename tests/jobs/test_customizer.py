"""The nemo-customizer backend against a service that misbehaves on demand: what the reference client gets wrong."""

import asyncio
import json
import os
import re
import threading
from pathlib import Path

import pytest

from jobs.customizer_peer import Peer, running
from jobs.made_pairs import pair, pair_with_tool_results, pairs_table
from pairwright import Message, Pairs, ToolCall
from pairwright.config import Config, load_config
from pairwright.errors import ConfigError
from pairwright.jobs import (
    BACKENDS,
    BackendError,
    JobFailed,
    JobRequest,
    JobState,
    JobTimeout,
    ServiceError,
    Unreachable,
    customizer,
    is_submitted,
    read_job,
    service_backend,
)
from pairwright.jobs.job import silent

pytestmark = pytest.mark.stress

JOBS = "/v1/customization/jobs"
STATUS = f"{JOBS}/cust-0/status"
backend = BACKENDS["nemo-customizer"]


@pytest.fixture
def peer(monkeypatch):
    monkeypatch.setattr(service_backend, "_PAUSES", (0.01, 0.01))
    with running(Peer()) as made:
        yield made


def settings(peer, **more) -> Config:
    section = {"entity_host": peer.url, "namespace": "team", "customization_config": "meta/llama@v1+A100",
               "poll_interval_seconds": 0.01, **more}  # fmt: skip
    return Config.model_validate({"seed": 3, "backend": {"name": "nemo-customizer", "nemo_customizer": section}})


def submitted(peer, tmp_path, pairs=None, **more):
    config = settings(peer, **more)
    table = pairs if isinstance(pairs, Path) else pairs_table(tmp_path / "pairs", pairs)
    request = JobRequest(model="meta/llama", pairs=table)
    job = backend.submit(tmp_path / "run", request, config, silent)
    return job, config


def rows(peer, name, revision=-1):
    return [json.loads(line) for line in peer.repos["team/pairwright-dpo"][revision][name].splitlines()]


def test_a_job_goes_from_pairs_to_a_deployment(peer, tmp_path):
    peer.statuses = [{"status": "created"}, {"status": "pending"}, {"status": "running", "percentage_done": 50.0},
                     {"status": "completed", "percentage_done": 100.0}]  # fmt: skip
    peer.deployment_statuses = ["pending", "ready"]
    job, config = submitted(peer, tmp_path)
    seen = []
    assert backend.wait(tmp_path / "run", config, seen.append).state is JobState.COMPLETED
    assert [status.state for status in seen] == ["pending", "pending", "running", "completed"]
    assert peer.namespaces == {"team"}
    assert peer.store_namespaces == {b"namespace=team"}
    assert peer.datasets[("team", "pairwright-dpo")]["files_url"] == "hf://datasets/team/pairwright-dpo"
    (body,) = peer.bodies("POST", JOBS)
    assert body["config"] == "meta/llama@v1+A100"
    assert body["hyperparameters"] == {
        "training_type": "dpo", "finetuning_type": "all_weights", "epochs": 3, "batch_size": 4, "learning_rate": 5e-5,
        "dpo": {"ref_policy_kl_penalty": 0.1, "preference_loss_weight": 1.0, "preference_average_log_probs": False,
                "sft_loss_weight": 0.0, "sft_average_log_probs": False},
    }  # fmt: skip
    deployment = backend.deploy(tmp_path / "run", read_job(tmp_path / "run"), config, silent)
    assert deployment["url"] == "http://model"
    assert deployment["models"] == ["team/tuned@cust-0"]
    assert read_job(tmp_path / "run").deployment["status"] == "ready"
    assert peer.configs[job.id]["nim_deployment"] == {"image_tag": "latest", "gpu": 1}


def test_sft_uploads_the_chosen_sides_and_no_option_of_dpo(peer, tmp_path):
    submitted(peer, tmp_path / "one", hyperparameters={"training_type": "sft"})
    (body,) = peer.bodies("POST", JOBS)
    assert body["hyperparameters"] == {
        "training_type": "sft", "finetuning_type": "all_weights", "epochs": 3, "batch_size": 4, "learning_rate": 5e-5,
    }  # fmt: skip
    table = {tuple(m.text for m in (*p.prompt, *p.chosen)) for p in Pairs(tmp_path / "one" / "pairs")}
    written = [*rows(peer, "training/training_file.jsonl"), *rows(peer, "validation/validation_file.jsonl")]
    assert {(row["prompt"], row["completion"]) for row in written} == table
    assert all(set(row) == {"prompt", "completion"} for row in written)
    tools = [pair_with_tool_results(n) for n in range(10)]
    submitted(peer, tmp_path / "two", tools, hyperparameters={"training_type": "sft"}, use_full_message_history=True)
    messages = rows(peer, "training/training_file.jsonl")[0]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[-1] == {"role": "assistant", "content": "2"}


@pytest.mark.parametrize(
    ("dpo", "expected"),
    [
        ({"preference_average_log_probs": True}, True),
        ({"preference_average_log_probs": True, "sft_average_log_probs": False}, False),
        ({"sft_average_log_probs": True}, True),
    ],
)
def test_the_sft_term_is_averaged_as_the_preference_term_unless_it_is_set(peer, tmp_path, dpo, expected):
    submitted(peer, tmp_path, hyperparameters={"dpo": dpo})
    (body,) = peer.bodies("POST", JOBS)
    assert body["hyperparameters"]["dpo"]["sft_average_log_probs"] is expected


def test_polling_is_logged_at_debug_and_what_changes_the_service_at_info(peer, tmp_path, caplog):
    with caplog.at_level("DEBUG", logger="httpx"):
        _, config = submitted(peer, tmp_path)
        backend.wait(tmp_path / "run", config, silent)
    levels = {"GET": set(), "POST": set()}
    for record in caplog.records:
        if record.name == "httpx" and record.args and record.args[0] in levels:
            levels[record.args[0]].add(record.levelname)
    assert levels == {"GET": {"DEBUG"}, "POST": {"INFO"}}
    caplog.clear()
    with caplog.at_level("INFO", logger="httpx"):
        backend.wait(tmp_path / "run", config, silent)
    assert not [record for record in caplog.records if record.name == "httpx"]


def test_the_split_is_by_group_so_that_no_prompt_is_in_both_files(peer, tmp_path):
    submitted(peer, tmp_path)
    training, validation = (rows(peer, f"{name}/{name}_file.jsonl") for name in ("training", "validation"))
    assert len(training) + len(validation) == 20
    assert len(validation) >= 2
    assert {row["prompt"] for row in training} & {row["prompt"] for row in validation} == set()


def test_the_same_pairs_and_seed_give_the_same_bytes(peer, tmp_path):
    submitted(peer, tmp_path / "one")
    submitted(peer, tmp_path / "two")
    assert peer.repos["team/pairwright-dpo"][-1] == peer.repos["team/pairwright-dpo"][-2]


def test_each_job_is_pinned_to_the_revision_that_it_uploaded(peer, tmp_path):
    submitted(peer, tmp_path / "one")
    submitted(peer, tmp_path / "two", [pair(task) for task in range(30, 40)])
    first, second = peer.bodies("POST", JOBS)
    revisions = [body["dataset"]["files_url"].rpartition("@")[2] for body in (first, second)]
    assert revisions[0] != revisions[1]
    assert [read_job(tmp_path / name / "run").details["revision"] for name in ("one", "two")] == revisions
    assert first["dataset"]["files_url"].startswith("hf://datasets/team/pairwright-dpo@")


def test_a_validation_file_of_an_earlier_run_does_not_stay(peer, tmp_path):
    submitted(peer, tmp_path / "one")
    assert "validation/validation_file.jsonl" in peer.repos["team/pairwright-dpo"][-1]
    submitted(peer, tmp_path / "two", validation=0)
    assert "validation/validation_file.jsonl" not in peer.repos["team/pairwright-dpo"][-1]
    assert len(rows(peer, "training/training_file.jsonl")) == 20


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_none_is_sent(peer, tmp_path, token, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "somebody's own token")
    submitted(peer, tmp_path, hf_token=token)
    assert all("authorization" not in headers for _, _, headers, _ in peer.seen)


def test_a_token_is_sent_to_both_stores_of_one_host_and_never_written_down(peer, tmp_path):
    submitted(peer, tmp_path, hf_token="secret-token")
    assert all(headers["authorization"] == "Bearer secret-token" for _, _, headers, _ in peer.seen)
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"secret-token" not in path.read_bytes(), path


def test_a_token_of_the_data_store_is_not_sent_to_another_host(peer, tmp_path):
    with running(Peer()) as store:
        submitted(peer, tmp_path, hf_token="secret-token", datastore_host=store.url)
        assert all("authorization" not in headers for _, _, headers, _ in peer.seen)
        assert all(headers["authorization"] == "Bearer secret-token" for _, _, headers, _ in store.seen)
        assert store.repos
        assert not peer.repos


def test_a_status_without_percentage_or_with_nothing_at_all_does_not_end_the_wait(peer, tmp_path):
    _, config = submitted(peer, tmp_path)
    peer.statuses = [{"status": "running"}, {"status": "running", "percentage_done": None, "train_loss": "?"}, {},
                     {"status": "unknown"}, {"status": "completed"}]  # fmt: skip
    assert backend.wait(tmp_path / "run", config, lambda _: None).state is JobState.COMPLETED


@pytest.mark.parametrize("fault", [500, 503, 429, "refuse", "drop"])
def test_lost_status_calls_are_borne(peer, tmp_path, fault):
    _, config = submitted(peer, tmp_path)
    peer.statuses = [{"status": "running", "percentage_done": 1.0}] * 5 + [{"status": "completed"}]
    peer.script[("GET", STATUS)] = [fault, fault, None, fault]
    assert backend.wait(tmp_path / "run", config, lambda _: None).state is JobState.COMPLETED


def test_a_service_that_stays_away_ends_the_wait_with_the_way_back(peer, tmp_path):
    _, config = submitted(peer, tmp_path, max_status_failures=1)
    peer.script[("GET", STATUS)] = [503] * 50
    with pytest.raises(Unreachable, match=r"2 status calls failed in a row.*jobs attach"):
        backend.wait(tmp_path / "run", config, lambda _: None)
    assert read_job(tmp_path / "run").state is JobState.PENDING, "nothing is known, so nothing is claimed"


def test_training_has_a_timeout(peer, tmp_path):
    _, config = submitted(peer, tmp_path, training_timeout_seconds=0.05)
    peer.statuses = [{"status": "running", "percentage_done": 1.0}]
    with pytest.raises(JobTimeout, match="jobs attach"):
        backend.wait(tmp_path / "run", config, lambda _: None)


def test_a_failed_job_is_a_failure_with_the_services_words(peer, tmp_path):
    _, config = submitted(peer, tmp_path)
    peer.statuses = [{"status": "failed", "percentage_done": 3.0,
                      "status_logs": [{"message": "training", "detail": "out of memory"}]}]  # fmt: skip
    with pytest.raises(JobFailed, match="training: out of memory"):
        backend.wait(tmp_path / "run", config, lambda _: None)
    assert read_job(tmp_path / "run").error == "training: out of memory"


def test_the_reference_is_there_before_the_job_is(peer, tmp_path):
    peer.script[("POST", JOBS)] = [400]
    with pytest.raises(ServiceError):
        submitted(peer, tmp_path)
    job = read_job(tmp_path / "run")
    assert job.details["job_id"] is None
    assert job.details["revision"]
    with pytest.raises(BackendError, match="was never created"):
        backend.status(tmp_path / "run", job, settings(peer))


@pytest.mark.parametrize("fault", ["drop", 503])
def test_an_answer_that_was_lost_starts_no_second_job(peer, tmp_path, fault):
    peer.script[("POST", JOBS)] = [fault]
    if fault == "drop":
        job, _ = submitted(peer, tmp_path)
        assert job.details["job_id"] == "cust-0"
    else:
        with pytest.raises(Unreachable, match="no job named"):
            submitted(peer, tmp_path)
    assert len(peer.jobs) == (1 if fault == "drop" else 0)
    assert len(peer.bodies("POST", JOBS)) == 1


@pytest.mark.parametrize("was_created", [False, True])
def test_a_submission_that_was_interrupted_is_taken_up_without_a_second_job(peer, tmp_path, was_created, monkeypatch):
    if was_created:  # the service has it, and we were killed before we wrote that down
        monkeypatch.setattr(
            customizer.CustomizerApi, "write_created", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
    else:
        peer.script[("POST", JOBS)] = [400]
    with pytest.raises((ServiceError, KeyboardInterrupt)):
        submitted(peer, tmp_path)
    monkeypatch.undo()
    assert not is_submitted(tmp_path / "run")
    interrupted = read_job(tmp_path / "run")
    job, config = submitted(peer, tmp_path)
    assert is_submitted(tmp_path / "run")
    assert (job.id, len(peer.jobs)) == (interrupted.id, 1)
    assert peer.jobs["cust-0"]["name"] == job.id
    assert backend.wait(tmp_path / "run", config, lambda _: None).state is JobState.COMPLETED


def test_a_job_whose_id_was_lost_in_a_crash_is_found_by_its_name(peer, tmp_path):
    _, config = submitted(peer, tmp_path)
    path = tmp_path / "run" / "job.json"
    stored = json.loads(path.read_text())
    stored["details"] |= {"job_id": None, "output_model": None}
    stored["state"] = "created"
    path.write_text(json.dumps(stored))
    assert backend.wait(tmp_path / "run", config, lambda _: None).state is JobState.COMPLETED
    assert read_job(tmp_path / "run").details["output_model"] == "team/tuned@cust-0"


def test_attaching_uses_the_hosts_of_the_job_not_of_todays_configuration(peer, tmp_path):
    submitted(peer, tmp_path)
    other = Config.model_validate({"backend": {"nemo_customizer": {"entity_host": "http://127.0.0.1:9"}}})
    assert backend.status(tmp_path / "run", read_job(tmp_path / "run"), other).state is JobState.COMPLETED


def test_tool_calls_and_empty_contents_are_refused_and_counted_never_a_repr(peer, tmp_path):
    call = Message("assistant", None, tool_calls=(ToolCall("add", "{}", id="1"),))
    odd = [pair(100, chosen=[call]), pair(101, chosen=[Message("assistant", None)])]
    said = []
    config = settings(peer)
    request = JobRequest(model="m", pairs=pairs_table(tmp_path / "pairs", [*odd, *[pair(n) for n in range(40)]]))
    job = backend.submit(tmp_path / "run", request, config, said.append)
    assert job.details["files"]["refused"] == {"tool_calls_in_a_side": 1, "a_side_has_no_text": 1}
    assert "refused: a_side_has_no_text 1, tool_calls_in_a_side 1" in said[0]
    everything = b"".join(peer.repos["team/pairwright-dpo"][-1].values())
    assert b"ToolCall" not in everything
    assert b"None" not in everything


def test_history_is_sent_as_messages_and_cut_where_the_sides_part(peer, tmp_path):
    submitted(peer, tmp_path, [pair_with_tool_results(n) for n in range(10)], use_full_message_history=True)
    first = rows(peer, "training/training_file.jsonl")[0]
    assert [message["role"] for message in first["prompt"]] == ["user", "assistant", "tool"]
    assert first["prompt"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert first["chosen_response"] == "2"


def test_pairs_that_none_of_fits_start_no_job(peer, tmp_path):
    with pytest.raises(BackendError, match="prompt_is_not_one_user_message"):
        submitted(peer, tmp_path, [pair_with_tool_results(n) for n in range(10)])
    assert not peer.jobs
    assert not peer.repos


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"epoch": 3}, "unknown key"),
        ({"hyperparameters": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"hyperparameters": {"training_type": "grpo"}}, "training_type"),
        ({"hyperparameters": {"dpo": {"kl": 1}}}, "unknown key"),
        ({"deployment_config": {"gpus": 1}}, "did you mean 'backend.nemo_customizer.deployment_config.gpu'"),
        ({"entity_host": "example.org"}, "entity_host"),
        ({"namespace": "../other"}, "namespace"),
    ],
)
def test_unknown_keys_and_bad_values_are_refused(tmp_path, section, words):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"backend": {"nemo_customizer": section}}))
    with pytest.raises(ConfigError, match=words):
        load_config(path, environment={})


def test_the_configuration_of_the_page_loads(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "backends.md").read_text()
    (text,) = re.findall(r"```\n(backend:\n  name: nemo-customizer\n.*?)```", page, re.S)
    (tmp_path / "config.yaml").write_text(text)
    loaded = load_config(tmp_path / "config.yaml", environment={"HF_TOKEN": "secret"}).backend.nemo_customizer
    assert loaded.hf_token.get_secret_value() == "secret"
    assert "secret" not in repr(loaded)
    assert loaded.deploy_on_completion


def test_a_missing_service_address_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="entity_host"):
        backend.submit(tmp_path / "run", JobRequest(model="m", pairs=pairs_table(tmp_path / "pairs")), Config(), silent)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("status", "words"), [(401, "hf_token"), (403, "namespace"), (422, "told to answer 422")])
def test_a_refusal_ends_at_once_with_the_services_words(peer, tmp_path, status, words):
    peer.script[("POST", "/v1/namespaces")] = [status] * 9
    with pytest.raises(ServiceError, match=words):
        submitted(peer, tmp_path)
    assert len(peer.bodies("POST", "/v1/namespaces")) == 1


def test_creates_are_tried_again_since_they_can_be(peer, tmp_path):
    peer.script[("POST", "/v1/namespaces")] = ["drop"]
    peer.script[("POST", "/v1/datasets")] = [503]
    submitted(peer, tmp_path)
    assert len(peer.jobs) == 1


def test_waiting_in_an_event_loop_is_refused_and_works_in_a_thread(peer, tmp_path):
    _, config = submitted(peer, tmp_path)

    async def wrong():
        return backend.wait(tmp_path / "run", config, lambda _: None)

    async def right():
        ticks = 0
        peer.statuses = [{"status": "running"}] * 10 + [{"status": "completed"}]
        work = asyncio.create_task(asyncio.to_thread(backend.wait, tmp_path / "run", config, lambda _: None))
        while not work.done():
            ticks += 1
            await asyncio.sleep(0.005)
        return ticks, (await work).state

    with pytest.raises(BackendError, match=r"asyncio\.to_thread"):
        asyncio.run(wrong())
    ticks, state = asyncio.run(right())
    assert state is JobState.COMPLETED
    assert ticks > 3


def test_metrics_of_the_service_are_written_as_ours(peer, tmp_path):
    _, config = submitted(peer, tmp_path)
    points = {
        "train_loss": [{"step": 1, "value": 0.7}, {"step": 2, "value": 0.5}],
        "val_loss": [{"step": 2, "value": 0.6}],
    }
    peer.statuses = [{"status": "completed", "steps_completed": 2, "steps_per_epoch": 1, "train_loss": 0.5,
                      "metrics": {"keys": ["train_loss"], "metrics": points}}]  # fmt: skip
    status = backend.wait(tmp_path / "run", config, lambda _: None)
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert written == [{"step": 1, "loss": 0.7}, {"step": 2, "loss": 0.5}, {"step": 2, "eval_loss": 0.6}]
    assert (status.train_loss, status.epoch) == (0.5, 2.0)


def test_a_job_is_cancelled_and_its_logs_are_read(peer, tmp_path):
    _, config = submitted(peer, tmp_path)
    peer.statuses = [{"status": "running"}]
    assert list(backend.logs(tmp_path / "run", read_job(tmp_path / "run"), config, False)) == ["one", "two"]
    assert backend.cancel(tmp_path / "run", read_job(tmp_path / "run"), config).state is JobState.CANCELLING
    with pytest.raises(JobFailed, match="cancelled"):
        backend.wait(tmp_path / "run", config, lambda _: None)
    assert read_job(tmp_path / "run").state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("statuses", "error"), [(["failed"], JobFailed), (["error"], JobFailed), (["pending"], JobTimeout)]
)
def test_a_deployment_that_never_becomes_ready_is_reported(peer, tmp_path, statuses, error):
    _, config = submitted(peer, tmp_path, deployment_timeout_seconds=0.05)
    backend.wait(tmp_path / "run", config, lambda _: None)
    peer.deployment_statuses = statuses
    with pytest.raises(error):
        backend.deploy(tmp_path / "run", read_job(tmp_path / "run"), config, silent)


def test_deploying_again_finds_the_deployment_and_another_models_name_is_not_taken(peer, tmp_path):
    _, config = submitted(peer, tmp_path / "one")
    backend.wait(tmp_path / "one" / "run", config, lambda _: None)
    first = backend.deploy(tmp_path / "one" / "run", read_job(tmp_path / "one" / "run"), config, silent)
    assert backend.deploy(tmp_path / "one" / "run", read_job(tmp_path / "one" / "run"), config, silent) == first
    assert len(peer.deployments) == 1
    _, named = submitted(peer, tmp_path / "two", deployment_config={"deployment_name": first["name"]})
    backend.wait(tmp_path / "two" / "run", named, lambda _: None)
    with pytest.raises(BackendError, match="choose another"):
        backend.deploy(tmp_path / "two" / "run", read_job(tmp_path / "two" / "run"), named, silent)


def test_two_runs_at_once_each_train_on_their_own_upload(peer, tmp_path):
    tables = [
        pairs_table(tmp_path / f"pairs{n}", [pair(task) for task in range(n * 20, n * 20 + 20)]) for n in range(4)
    ]
    threads = [threading.Thread(target=submitted, args=(peer, tmp_path / f"run{n}", tables[n])) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pinned = {body["dataset"]["files_url"] for body in peer.bodies("POST", JOBS)}
    assert len(pinned) == 4


def test_no_proxy_or_token_of_the_machine_is_needed(peer, tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("HF_"):
            monkeypatch.delenv(name)
    submitted(peer, tmp_path)
    assert len(peer.jobs) == 1
