"""The real clients, in a separate process (they read the environment when imported): `real_clients.py URL CONFIG TOKEN`.

nemo-microservices, huggingface_hub, datasets and openai drive a service from namespace to chat; what they saw is
printed as JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import datasets
import httpx
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from nemo_microservices import ConflictError, NeMoMicroservices
from openai import OpenAI

NAMESPACE, DATASET = "shop", "tickets"


def rows(name: str, count: int) -> str:
    made = [
        {"prompt": f"{name} {number}?", "chosen_response": "yes", "rejected_response": "no no no"}
        for number in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in made)


def make_dataset(client: NeMoMicroservices, hub: HfApi, url: str, token: str) -> dict:
    """Namespaces, repository, files, dataset; then read back."""
    client.namespaces.create(id=NAMESPACE, description="made by a test")
    try:
        client.namespaces.create(id=NAMESPACE)
        seen = {"second_namespace": "accepted"}
    except ConflictError as error:
        seen = {"second_namespace": error.status_code}
    answer = httpx.post(
        f"{url}/v1/datastore/namespaces", data={"namespace": NAMESPACE}, headers={"authorization": f"Bearer {token}"}
    )
    answer.raise_for_status()
    repo = f"{NAMESPACE}/{DATASET}"
    hub.create_repo(repo, repo_type="dataset")
    hub.create_repo(repo, repo_type="dataset", exist_ok=True)
    folder = Path(tempfile.mkdtemp())
    for name, count in (("training", 8), ("validation", 2)):
        (folder / name).mkdir()
        (folder / name / f"{name}_file.jsonl").write_text(rows(name, count))
    first = hub.upload_folder(repo_id=repo, repo_type="dataset", folder_path=folder)
    again = hub.upload_file(
        path_or_fileobj=folder / "training" / "training_file.jsonl",
        path_in_repo="training/training_file.jsonl",
        repo_id=repo,
        repo_type="dataset",
    )
    client.datasets.create(name=DATASET, namespace=NAMESPACE, files_url=f"hf://datasets/{repo}", description="tickets")
    got = hf_hub_download(
        repo,
        "training/training_file.jsonl",
        repo_type="dataset",
        endpoint=f"{url}/v1/hf",
        token=token,
        revision=first.oid,
    )
    copy = Path(snapshot_download(repo, repo_type="dataset", endpoint=f"{url}/v1/hf", token=token))
    files = {"train": "training/*.jsonl", "validation": "validation/*.jsonl"}
    loaded = datasets.load_dataset(repo, data_files=files, token=token)
    return seen | {
        "revision": first.oid,
        "unchanged_upload": again.oid,
        "downloaded": Path(got).read_text() == rows("training", 8),
        "snapshot": sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()),
        "loaded": {name: len(split) for name, split in loaded.items()},
        "first_row": loaded["train"][0],
        "tree": sorted(item.path for item in hub.list_repo_tree(repo, repo_type="dataset", recursive=True)),
    }


def use_hub(hub: HfApi, url: str, token: str) -> dict:
    """Branches, tags, lists, and a dataset that `datasets` itself pushes."""
    repo = f"{NAMESPACE}/{DATASET}"
    hub.create_branch(repo, repo_type="dataset", branch="next")
    hub.upload_file(
        path_or_fileobj=b"{}", path_in_repo="notes.json", repo_id=repo, repo_type="dataset", revision="next"
    )
    hub.create_tag(repo, repo_type="dataset", tag="v1", revision="main", tag_message="first")
    references = hub.list_repo_refs(repo, repo_type="dataset")
    pushed = datasets.Dataset.from_list([{"prompt": "q", "chosen": "good", "rejected": "bad"}] * 4)
    pushed.push_to_hub(f"{NAMESPACE}/pushed", token=token)
    again = datasets.load_dataset(f"{NAMESPACE}/pushed", token=token)
    result = {
        "branches": {item.name for item in references.branches} == {"main", "next"},
        "tags": [item.name for item in references.tags],
        "on_branch": "notes.json" in hub.list_repo_files(repo, repo_type="dataset", revision="next"),
        "on_main": "notes.json" in hub.list_repo_files(repo, repo_type="dataset"),
        "on_tag": "notes.json" in hub.list_repo_files(repo, repo_type="dataset", revision="v1"),
        "commits": next(item.title for item in hub.list_repo_commits(repo, repo_type="dataset", revision="next")),
        "datasets": sorted(item.id for item in hub.list_datasets(author=NAMESPACE)),
        "pushed_rows": again["train"].num_rows,
        "pushed_files": hub.list_repo_files(f"{NAMESPACE}/pushed", repo_type="dataset"),
    }
    hub.delete_branch(repo, repo_type="dataset", branch="next")
    hub.delete_tag(repo, repo_type="dataset", tag="v1")
    return result


def download_model(hub: HfApi, url: str, model: str, token: str) -> dict:
    """The model of a job, as a repository."""
    repo, _, version = model.partition("@")
    folder = Path(snapshot_download(repo, endpoint=f"{url}/v1/hf", token=token))
    pinned = Path(snapshot_download(repo, revision=version, endpoint=f"{url}/v1/hf", token=token))
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "same": folder == pinned,
        "base": json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"],
        "card": (folder / "README.md").read_text(),
        "models": [item.id for item in hub.list_models(author=NAMESPACE)],
    }


def manage(client: NeMoMicroservices, config: str, model: str) -> dict:
    """Calls of the SDK around jobs: projects, models, updates, filters, inline deployment configs."""
    client.projects.create(name="p", namespace=NAMESPACE, description="d")
    client.projects.update("p", namespace=NAMESPACE, description="e")
    client.datasets.update(DATASET, namespace=NAMESPACE, description="changed")
    client.namespaces.update(NAMESPACE, description="changed")
    name = model.partition("/")[2]
    client.models.update(name, namespace=NAMESPACE, description="ours")
    client.models.create(name="entry", namespace=NAMESPACE, description="elsewhere", base_model="meta/x")
    url = f"hf://datasets/{NAMESPACE}/{DATASET}"
    listed = {
        "dataset": len(client.customization.jobs.list(filter={"dataset": url}).data),
        "training_type": len(client.customization.jobs.list(filter={"training_type": "dpo"}).data),
        "other_type": len(client.customization.jobs.list(filter={"training_type": "sft"}).data),
        "configs": len(
            client.customization.configs.list(filter={"training_type": "dpo", "finetuning_type": "lora"}).data
        ),
    }
    deployment = client.deployment.model_deployments.create(
        name="inline",
        namespace=NAMESPACE,
        config={"model": model, "nim_deployment": {"image_name": "any", "image_tag": "1", "gpu": 1}},
    )
    client.deployment.model_deployments.update("inline", namespace=NAMESPACE, description="changed")
    result = {
        "project": client.projects.retrieve("p", namespace=NAMESPACE).description,
        "dataset": client.datasets.retrieve(DATASET, namespace=NAMESPACE).description,
        "namespace": client.namespaces.retrieve(NAMESPACE).description,
        "model": client.models.retrieve(name, namespace=NAMESPACE).description,
        "models": [item.name for item in client.models.list(filter={"namespace": NAMESPACE})],
        "listed": listed,
        "inline": deployment.config.model,
        "updated": client.deployment.model_deployments.retrieve("inline", namespace=NAMESPACE).description,
    }
    client.deployment.model_deployments.delete("inline", namespace=NAMESPACE)
    client.models.delete("entry", namespace=NAMESPACE)
    client.projects.delete("p", namespace=NAMESPACE)
    return result


def train(client: NeMoMicroservices, config: str) -> dict:
    job = client.customization.jobs.create(
        config=config,
        dataset={"name": DATASET, "namespace": NAMESPACE},
        hyperparameters={
            "training_type": "dpo",
            "finetuning_type": "lora",
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "lora": {"adapter_dim": 4},
            "dpo": {"ref_policy_kl_penalty": 0.1},
        },
    )
    percentages = []
    while True:
        status = client.customization.jobs.status(job.id)
        percentages.append(status.percentage_done)
        if status.status in ("completed", "failed", "cancelled"):
            break
        time.sleep(0.2)
    logs = client.customization.jobs.container_logs(job.id)
    return {
        "id": job.id,
        "output_model": job.output_model,
        "status": status.status,
        "percentages": percentages,
        "losses": [point.value for point in status.metrics.metrics.train_loss or []],
        "val_losses": [point.value for point in status.metrics.metrics.val_loss or []],
        "messages": [entry.message for entry in status.status_logs],
        "detail": status.status_logs[-1].detail,
        "listed": [found.id for found in client.customization.jobs.list(filter={"namespace": NAMESPACE})],
        "log": logs.entries["worker"].logs["lines"],
        "configs": [found.name for found in client.customization.configs.list()],
    }


def deploy(client: NeMoMicroservices, model: str, token: str) -> dict:
    client.deployment.configs.create(
        name="shop-config",
        namespace=NAMESPACE,
        model=model,
        nim_deployment={"image_name": "any", "image_tag": "1", "gpu": 1},
    )
    client.deployment.model_deployments.create(
        name="shop-model", namespace=NAMESPACE, config=f"{NAMESPACE}/shop-config"
    )
    while True:
        (found,) = client.deployment.model_deployments.list().data
        if found.status_details.status in ("ready", "failed"):
            break
        time.sleep(0.2)
    if found.status_details.status == "failed":
        return {"deployment": found.status_details.description}
    chat = OpenAI(base_url=f"{found.url}/v1", api_key=token, max_retries=0)
    answer = chat.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Order 3?"}], max_tokens=4, temperature=0
    )
    pieces = chat.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Order 3?"}], max_tokens=4, temperature=0, stream=True
    )
    return {
        "deployment": "ready",
        "deployed": found.deployed,
        "model": answer.model,
        "answer": answer.choices[0].message.content,
        "streamed": "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices),
    }


def main() -> None:
    url, config, token = sys.argv[1:]
    # The token in the address, for clients that have no other field for it.
    client = NeMoMicroservices(base_url=url.replace("http://", f"http://x:{token}@"))
    hub = HfApi(endpoint=f"{url}/v1/hf", token=token)
    seen = {
        "data": make_dataset(client, hub, url, token),
        "hub": use_hub(hub, url, token),
        "job": train(client, config),
    }
    if seen["job"]["status"] == "completed":
        seen["model"] = download_model(hub, url, seen["job"]["output_model"], token)
        seen["managed"] = manage(client, config, seen["job"]["output_model"])
        seen["deployment"] = deploy(client, seen["job"]["output_model"], token)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
