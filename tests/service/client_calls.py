"""Every call of the real clients that docs/how-to/service.md lists: `client_calls.py URL CONFIG TOKEN DATA FOLDER`.

Runs in a separate process, since the clients read the environment when they are imported. Prints JSON: for each
resource the calls that worked, and those that were refused, with the status of the answer.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import httpx
import huggingface_hub
import nemo_microservices
import openai
from huggingface_hub import CommitOperationAdd, HfApi
from service_process import until

LARGE_BYTES = 68_000_000
ROW = {"prompt": "Where?", "chosen_response": "Here.", "rejected_response": "No idea."}
ROWS = json.dumps(ROW).encode() + b"\n"
ERRORS = (openai.APIStatusError, nemo_microservices.APIStatusError, huggingface_hub.errors.HfHubHTTPError)


class Calls:
    """What became of each call, by resource."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, str]] = {}

    def run(self, resource: str, **calls: Callable[[], object]) -> None:
        """Run calls in order; one that the service refuses is noted with its status, anything else is an error."""
        for name, call in calls.items():
            try:
                call()
                self.seen.setdefault(resource, {})[name] = "works"
            except ERRORS as error:
                status = getattr(error, "status_code", None) or error.response.status_code
                self.seen.setdefault(resource, {})[name] = str(status)


def use_nemo(calls: Calls, url: str, config: str, token: str, data: Path) -> None:
    client = nemo_microservices.NeMoMicroservices(base_url=url.replace("http://", f"http://x:{token}@"), max_retries=0)
    wide = client.with_options(base_url=url, default_headers={"authorization": f"Bearer {token}"})
    calls.run(
        "`namespaces`",
        create=lambda: client.namespaces.create(id="n"),
        retrieve=lambda: client.namespaces.retrieve("n"),
        list=lambda: client.namespaces.list().data,
        update=lambda: client.namespaces.update("n", description="x"),
        delete=lambda: client.namespaces.delete("n"),
    )
    for resource, api, fields in (
        ("`projects`", client.projects, {}),
        ("`datasets`", client.datasets, {"files_url": "hf://datasets/shop/pairs"}),
    ):
        calls.run(
            resource,
            create=lambda: api.create(name="x", namespace="shop", **fields),  # noqa: B023
            retrieve=lambda: api.retrieve("x", namespace="shop"),  # noqa: B023
            list=lambda: api.list().data,  # noqa: B023
            update=lambda: api.update("x", namespace="shop", description="x"),  # noqa: B023
            delete=lambda: api.delete("x", namespace="shop"),  # noqa: B023
        )
    client.datasets.create(name="pairs", namespace="shop", files_url="hf://datasets/shop/pairs")
    body = {
        "config": config,
        "dataset": {"name": "pairs", "namespace": "shop"},
        "hyperparameters": {"training_type": "dpo", "finetuning_type": "all_weights", "max_steps": 4},
    }
    job = client.customization.jobs.create(**body)
    wait_for(client, job.id, "completed")
    (data / "hold").touch()
    held = client.customization.jobs.create(**body)
    jobs = client.customization.jobs

    def path(action: str) -> Callable[[], object]:
        return lambda: client.post(f"/v1/customization/jobs/{held.id}/{action}", cast_to=object)

    calls.run(
        "`customization.jobs`",
        create=lambda: jobs.create(**body),
        retrieve=lambda: jobs.retrieve(job.id),
        list=lambda: jobs.list(filter={"namespace": "shop"}).data,
        status=lambda: jobs.status(job.id),
        container_logs=lambda: jobs.container_logs(job.id),
        pause=path("pause"),
    )
    wait_for(client, held.id, "cancelled")
    calls.run("`customization.jobs`", resume=path("resume"), cancel=lambda: jobs.cancel(held.id))
    wait_for(client, held.id, "cancelled")
    (data / "hold").unlink()
    calls.run(
        "`customization.jobs`",
        delete=lambda: client.delete(f"/v1/customization/jobs/{held.id}", cast_to=object),
        grpo=lambda: jobs.create(
            **{**body, "hyperparameters": {"training_type": "grpo", "finetuning_type": "all_weights"}}
        ),
    )
    configs, targets = client.customization.configs, client.customization.targets
    for resource, api, made in (
        ("`customization.configs`", configs, {"max_seq_length": 128, "training_options": []}),
        ("`customization.targets`", targets, {"base_model": "m", "num_parameters": 1, "precision": "fp32"}),
    ):
        found = api.list().data[0]
        calls.run(
            resource,
            list=lambda: api.list().data,  # noqa: B023
            retrieve=lambda: api.retrieve(found.name, namespace=found.namespace),  # noqa: B023
            create=lambda: api.create(name="x@1", namespace="shop", **made, **extra(api)),  # noqa: B023
            update=lambda: api.update(found.name, namespace=found.namespace, description="x"),  # noqa: B023
            delete=lambda: api.delete(found.name, namespace=found.namespace),  # noqa: B023
        )
    use_nemo_models(calls, client, wide, job.output_model)


def extra(api: object) -> dict[str, object]:
    return {"target": "x"} if "Config" in type(api).__name__ else {"model_path": "x"}


def use_nemo_models(calls: Calls, client, wide, model: str) -> None:
    configs, served, models = client.deployment.configs, client.deployment.model_deployments, client.models
    calls.run(
        "`deployment.configs`",
        create=lambda: configs.create(name="c", namespace="shop", model=model),
        retrieve=lambda: configs.retrieve("c", namespace="shop"),
        list=lambda: configs.list().data,
        update=lambda: configs.update("c", namespace="shop", description="x"),
    )
    calls.run(
        "`deployment.model_deployments`",
        create=lambda: served.create(name="d", namespace="shop", config="shop/c"),
        retrieve=lambda: served.retrieve("d", namespace="shop"),
        list=lambda: served.list().data,
        update=lambda: served.update("d", namespace="shop", description="x"),
        delete=lambda: served.delete("d", namespace="shop"),
    )
    calls.run("`deployment.configs`", delete=lambda: configs.delete("c", namespace="shop"))
    calls.run(
        "`models`",
        create=lambda: models.create(name="entry", namespace="shop"),
        retrieve=lambda: models.retrieve("entry", namespace="shop"),
        list=lambda: models.list().data,
        update=lambda: models.update("entry", namespace="shop", description="x"),
        delete=lambda: models.delete("entry", namespace="shop"),
    )
    question = [{"role": "user", "content": "hi"}]
    # The SDK sends chats to its inference address, without the user and password of the base address.
    calls.run(
        "`chat.completions`",
        create=lambda: wide.chat.completions.create(model=model, messages=question),
        stream=lambda: list(wide.chat.completions.create(model=model, messages=question, stream=True)),
        completions=lambda: wide.completions.create(model=model, prompt="hi"),
    )
    calls.run(
        "other services",
        evaluation=lambda: client.evaluation.jobs.list().data,
        guardrail=lambda: client.guardrail.configs.list().data,
        data_designer=lambda: client.data_designer.jobs.list().data,
        intake=lambda: client.intake.apps.list().data,
        jobs=lambda: client.jobs.list().data,
        embeddings=lambda: wide.embeddings.create(model=model, input="x"),
    )


def wait_for(client, job: str, state: str) -> None:
    until(lambda: client.customization.jobs.status(job).status == state)


def use_hub(calls: Calls, hub: HfApi, folder: Path) -> None:
    repo = {"repo_id": "shop/pairs", "repo_type": "dataset"}
    (folder / "more").mkdir()
    (folder / "more" / "notes.txt").write_text("notes")
    large = folder / "large.bin"
    large.write_bytes(b"0123456789abcdef" * (LARGE_BYTES // 16))
    calls.run(
        "datasets: write",
        create_repo=lambda: hub.create_repo(**repo),
        upload_file=lambda: hub.upload_file(path_or_fileobj=ROWS * 4, path_in_repo="training/a.jsonl", **repo),
        upload_folder=lambda: hub.upload_folder(folder_path=folder / "more", path_in_repo="more", **repo),
        create_commit=lambda: hub.create_commit(
            operations=[CommitOperationAdd("b.txt", b"b")], commit_message="b", **repo
        ),
        upload_file_of_68_MB=lambda: hub.upload_file(path_or_fileobj=large, path_in_repo="large.bin", **repo),
        create_branch=lambda: hub.create_branch(branch="next", **repo),
        create_tag=lambda: hub.create_tag(tag="v1", **repo),
    )

    def read_large() -> None:
        assert Path(hub.hf_hub_download(filename="large.bin", **repo)).read_bytes() == large.read_bytes()

    calls.run(
        "datasets: read",
        repo_info=lambda: hub.repo_info(**repo),
        repo_exists=lambda: hub.repo_exists(**repo),
        file_exists=lambda: hub.file_exists(filename="b.txt", **repo),
        list_repo_files=lambda: hub.list_repo_files(**repo),
        list_repo_tree=lambda: list(hub.list_repo_tree(recursive=True, **repo)),
        get_paths_info=lambda: hub.get_paths_info(paths=["b.txt"], **repo),
        list_repo_refs=lambda: hub.list_repo_refs(**repo),
        list_repo_commits=lambda: hub.list_repo_commits(**repo),
        list_datasets=lambda: list(hub.list_datasets(author="shop")),
        hf_hub_download=read_large,
        snapshot_download=lambda: hub.snapshot_download(**repo),
        whoami=lambda: hub.whoami(),
    )
    calls.run(
        "datasets: delete and change",
        delete_file=lambda: hub.delete_file(path_in_repo="b.txt", **repo),
        delete_folder=lambda: hub.delete_folder(path_in_repo="more", **repo),
        delete_branch=lambda: hub.delete_branch(branch="next", **repo),
        delete_tag=lambda: hub.delete_tag(tag="v1", **repo),
        create_pull_request=lambda: hub.create_pull_request(title="x", **repo),
        upload_file_as_pull_request=lambda: hub.upload_file(
            path_or_fileobj=b"x", path_in_repo="x", create_pr=True, **repo
        ),
        super_squash_history=lambda: hub.super_squash_history(**repo),
        move_repo=lambda: hub.move_repo("shop/pairs", "shop/moved", repo_type="dataset"),
        update_repo_settings=lambda: hub.update_repo_settings(private=True, **repo),
    )
    made = datasets.Dataset.from_list([{"prompt": "q", "chosen": "a", "rejected": "b"}] * 4)

    def count(**options: object) -> None:
        assert sum(1 for _ in datasets.load_dataset("shop/pushed", split="train", token=hub.token, **options)) == 4

    calls.run(
        "`datasets` package",
        push_to_hub=lambda: made.push_to_hub("shop/pushed", token=hub.token),
        load_dataset=count,
        load_dataset_streamed=lambda: count(streaming=True),
    )
    calls.run("datasets: delete and change", delete_repo=lambda: hub.delete_repo("shop/pushed", repo_type="dataset"))


def use_hub_models(calls: Calls, hub: HfApi, model: str) -> None:
    repo = model.partition("@")[0]
    calls.run(
        "trained models",
        model_info=lambda: hub.model_info(repo),
        list_models=lambda: list(hub.list_models(author="shop")),
        list_repo_files=lambda: hub.list_repo_files(repo),
        list_repo_refs=lambda: hub.list_repo_refs(repo),
        hf_hub_download=lambda: hub.hf_hub_download(repo, "config.json"),
        snapshot_download=lambda: hub.snapshot_download(repo),
        create_repo=lambda: hub.create_repo("shop/other"),
        upload_file=lambda: hub.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo),
        delete_repo=lambda: hub.delete_repo(repo),
    )


def use_openai(calls: Calls, url: str, config: str, token: str, data: Path) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, project="shop")
    model = config.partition("@")[0]
    file = client.files.create(file=("a.jsonl", ROWS * 2), purpose="fine-tune")
    other = client.files.create(file=("b.jsonl", ROWS), purpose="fine-tune")
    calls.run(
        "`files`",
        create=lambda: client.files.create(file=("c.jsonl", ROWS), purpose="fine-tune"),
        retrieve=lambda: client.files.retrieve(file.id),
        list=lambda: list(client.files.list()),
        content=lambda: client.files.content(file.id).content,
        delete=lambda: client.files.delete(other.id),
    )
    jobs, method = client.fine_tuning.jobs, {"type": "dpo"}
    job = jobs.create(model=model, training_file=file.id, method=method)
    until(lambda: jobs.retrieve(job.id).status == "succeeded")
    (data / "hold").touch()
    held = jobs.create(model=model, training_file=file.id, method=method)
    calls.run(
        "`fine_tuning.jobs`",
        create=lambda: jobs.create(model=model, training_file=file.id, method=method, suffix="x"),
        retrieve=lambda: jobs.retrieve(job.id),
        list=lambda: list(jobs.list()),
        list_events=lambda: list(jobs.list_events(job.id)),
        pause=lambda: jobs.pause(held.id),
    )
    until(lambda: jobs.retrieve(held.id).status == "paused")
    calls.run(
        "`fine_tuning.jobs`",
        resume=lambda: jobs.resume(held.id),
        cancel=lambda: jobs.cancel(held.id),
        reinforcement=lambda: jobs.create(model=model, training_file=file.id, method={"type": "reinforcement"}),
    )
    (data / "hold").unlink()
    trained = jobs.retrieve(job.id).fine_tuned_model
    checkpoints = jobs.checkpoints
    calls.run("`fine_tuning.jobs.checkpoints`", list=lambda: list(checkpoints.list(job.id)))
    calls.run(
        "`fine_tuning.checkpoints.permissions`",
        create=lambda: list(client.fine_tuning.checkpoints.permissions.create(trained, project_ids=["p"])),
    )
    question = [{"role": "user", "content": "hi"}]
    calls.run(
        "`chat.completions`",
        create=lambda: client.chat.completions.create(model=trained, messages=question),
        stream=lambda: list(client.chat.completions.create(model=trained, messages=question, stream=True)),
        completions=lambda: client.completions.create(model=trained, prompt="hi"),
    )
    calls.run(
        "`models`",
        list=lambda: list(client.models.list()),
        retrieve=lambda: client.models.retrieve(trained),
        delete=lambda: client.models.delete(trained),
    )
    calls.run(
        "other APIs",
        uploads=lambda: client.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="fine-tune"),
        responses=lambda: client.responses.create(model=trained, input="hi"),
        embeddings=lambda: client.embeddings.create(model=trained, input="hi"),
        batches=lambda: client.batches.list().data,
        moderations=lambda: client.moderations.create(input="hi"),
    )


def main() -> None:
    url, config, token = sys.argv[1:4]
    data, folder = Path(sys.argv[4]), Path(sys.argv[5])
    hub = HfApi(endpoint=f"{url}/v1/hf", token=token)
    nemo, hubs, oai = Calls(), Calls(), Calls()
    header = {"authorization": f"Bearer {token}"}
    httpx.post(f"{url}/v1/namespaces", json={"id": "shop"}, headers=header).raise_for_status()
    use_hub(hubs, hub, folder)
    use_nemo(nemo, url, config, token, data)
    found = httpx.get(f"{url}/v1/customization/jobs", headers=header).json()["data"]
    use_hub_models(hubs, hub, next(job["output_model"] for job in found if job["status"] == "completed"))
    use_openai(oai, url, config, token, data)
    print(json.dumps({"nemo-microservices": nemo.seen, "huggingface_hub": hubs.seen, "openai": oai.seen}))


if __name__ == "__main__":
    main()
