"""Checks of endpoints: whether they respond, accept the credentials, and have the requested model or dataset."""

import os
from collections.abc import Iterator
from pathlib import Path

from pairwright.config.backend_config import NemoPlatformConfig
from pairwright.config.model_config import ModelConfig
from pairwright.generate.llama_server import is_gguf
from pairwright.jobs.doctor.findings import Finding, Patient, fine, untold, wrong
from pairwright.jobs.job import ServiceError, Unreachable

# Timeout of each request: the doctor should respond quickly.
_SECONDS = 10


def check_policy(patient: Patient) -> Iterator[Finding]:
    config = patient.config
    if config.policy.model is not None:
        yield _check_endpoint("policy", config.policy)
    if config.collect.scorer.kind == "judge":
        yield _check_endpoint("judge", config.collect.scorer.judge)


def _check_endpoint(name: str, policy: ModelConfig) -> Finding:
    if policy.base_url is None:
        folder = Path(policy.model or "")
        if folder.is_dir() or is_gguf(folder):
            return fine(name, f"{folder}: a local model")
        way_out = f"set {name}.base_url for an endpoint, or {name}.model to a folder"
        return wrong(name, f"{folder}: no such folder or GGUF file", way_out)
    try:
        import httpx
    except ImportError:
        return wrong(name, "httpx is not installed", "pip install 'pairwright[collect]'")
    key = os.environ.get(policy.api_key_env or "")
    if policy.api_key_env and not key:
        return wrong(name, f"the environment has no {policy.api_key_env}", f"export {policy.api_key_env}=...")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = policy.base_url.rstrip("/") + "/models"
    try:
        answer = httpx.get(url, headers=headers, timeout=_SECONDS)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return wrong(name, f"{url}: {type(error).__name__}: {error}", f"start the endpoint, or correct {name}.base_url")
    if answer.status_code in (401, 403):
        message = f"{url}: {answer.status_code}: the token was refused"
        return wrong(name, message, f"set {name}.api_key_env to the variable that has it")
    if not answer.is_success:  # not every endpoint has this route
        return untold(name, f"{url}: answers {answer.status_code}; it may not list its models")
    return _check_name(name, policy, answer)


def _check_name(name: str, policy: ModelConfig, answer: object) -> Finding:
    try:
        listed = [card["id"] for card in answer.json()["data"]]  # type: ignore[attr-defined]
    except (ValueError, KeyError, TypeError):
        return untold(name, f"{policy.base_url}: answers, but lists no models")
    if policy.model in listed:
        return fine(name, f"{policy.base_url}: answers and has {policy.model}")
    message = f"{policy.base_url}: has no {policy.model!r}, but {', '.join(map(str, listed[:5]))}"
    return wrong(name, message, f"set {name}.model to one of these")


def check_service(patient: Patient) -> Iterator[Finding]:
    if patient.config.backend.name == "nemo-platform":
        yield _check_platform(patient.config.backend.nemo_platform)
    if patient.config.backend.name != "nemo-customizer":
        return
    from pairwright.jobs.customizer import CustomizerApi

    settings = patient.config.backend.nemo_customizer
    wanted = settings.customization_config or patient.model
    with CustomizerApi(settings, _SECONDS) as api:
        try:
            listed = [_config_name(row) for row in api.configs()]
        except Unreachable as error:
            yield wrong("service", str(error), "start the service, or correct backend.nemo_customizer.entity_host")
            return
        except ServiceError as error:
            tokens, place = "hf_token and backend.nemo_customizer.api_token", "entity_host: is it such a service?"
            way_out = f"check backend.nemo_customizer.{tokens if error.status in (401, 403) else place}"
            yield wrong("service", str(error), way_out)
            return
        yield fine("service", f"{api.host}: answers and accepts us")
        # An empty list does not mean that the service cannot tune the model.
        if wanted and listed and wanted not in listed:
            way_out = "set backend.nemo_customizer.customization_config to one of these"
            yield wrong("service", f"{wanted}: not among what it tunes: {', '.join(listed[:10])}", way_out)
        elif wanted and listed:
            yield fine("service", f"it tunes {wanted}")
        yield _check_store(api.datastore_host, f"{settings.namespace}/{settings.dataset_name}", api.hf_token)


def _config_name(row: dict[str, object]) -> str:
    """Return `namespace/name`, the form in which jobs refer to a config."""
    name, namespace = str(row.get("name") or row.get("id") or ""), row.get("namespace")
    return name if "/" in name or not namespace else f"{namespace}/{name}"


def _check_platform(settings: NemoPlatformConfig) -> Finding:
    from pairwright.jobs.nemo_platform import PlatformApi

    with PlatformApi(settings, _SECONDS) as api:
        try:
            backends = api.training_backends()
        except (Unreachable, ServiceError) as error:
            return wrong("service", str(error), "start the platform, or correct backend.nemo_platform.base_url")
    if "rl" in backends:
        return fine("service", f"{settings.base_url}: answers and trains with {', '.join(backends)}")
    message = f"{settings.base_url}: trains with {', '.join(backends) or 'nothing'}, and DPO needs rl"
    return wrong("service", message, "install the plugin nemo-rl-plugin on the platform")


def _check_store(host: str, dataset: str, token: str | None) -> Finding:
    """Check the data store. Any response but a rejected token or a server error passes: the dataset need not exist."""
    import httpx

    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(f"{host}/v1/hf/api/datasets/{dataset}", headers=headers, timeout=_SECONDS)
    except httpx.TransportError as error:
        message = f"{host}: {type(error).__name__}: {error}"
        return wrong("data store", message, "correct backend.nemo_customizer.datastore_host")
    # Hubs respond with 401 and RepoNotFound to an unknown repository, even if the token is valid.
    is_unknown = "RepoNotFound" in answer.headers.get("x-error-code", "")
    if answer.status_code in (401, 403) and not is_unknown:
        message = f"{host}: {answer.status_code}: the token may not use {dataset}"
        return wrong("data store", message, "check backend.nemo_customizer.hf_token and namespace")
    if answer.status_code >= 500:
        return wrong("data store", f"{host}: answers {answer.status_code}", "look at the data store's log")
    return fine("data store", f"{host}: answers")
