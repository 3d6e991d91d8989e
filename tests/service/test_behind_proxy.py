"""The service behind nginx and Caddy, with the configurations of docs/how-to/service.md and the real clients."""

import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from service_process import Service, lasting_port, plain_model, until

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "service.md"
NUM_BYTES = 68_000_000
UPLOAD = """
import sys
from pathlib import Path
from huggingface_hub import HfApi

url, token, path = sys.argv[1:]
hub = HfApi(endpoint=f"{url}/v1/hf", token=token)
hub.create_repo("shop/large", repo_type="dataset")
hub.upload_file(path_or_fileobj=path, path_in_repo="training/large.jsonl", repo_id="shop/large", repo_type="dataset")
copy = hub.hf_hub_download("shop/large", "training/large.jsonl", repo_type="dataset")
assert Path(copy).read_bytes() == Path(path).read_bytes()
"""


@dataclass
class Proxied:
    """A service with a token, and the https address of a proxy in front of it."""

    service: Service
    url: str
    certificate: Path
    token: str


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    program = shutil.which(request.param, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        pytest.skip(f"{request.param} or openssl is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    data = folder / "data"
    create = [sys.executable, "-m", "pairwright.cli", "serve", "token", "create", "--data", str(data)]
    made = subprocess.run([*create, "--name", "a", "--scope", "*"], capture_output=True, text=True, check=True)
    certificate, key = folder / "server.pem", folder / "server.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    token, port = made.stdout.strip(), lasting_port()
    with Service(data, token=token) as service:
        service.add_target(plain_model(folder / "model"))
        text = re.search(rf"```{request.param}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
        text = text.replace("127.0.0.1:8000", service.url.removeprefix("http://"))
        if request.param == "nginx":
            text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
            text = text.replace("/etc/ssl/jobs.example.com.pem", str(certificate))
            text = text.replace("/etc/ssl/jobs.example.com.key", str(key))
            start = f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}} http {{ access_log off; "
            start += " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi"))
            text = f"{start} uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; {text} }}"
            command = [program, "-c", str(folder / "config")]
        else:
            text = text.replace("jobs.example.com {", f"localhost:{port} {{\n\ttls {certificate} {key}")
            text = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text
            command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "config")]
        (folder / "config").write_text(text)
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        with (folder / "output").open("wb") as output:
            proxy = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            url = f"https://localhost:{port}"
            until(lambda: answers(url, certificate) or proxy.poll() is not None)
            assert proxy.poll() is None, (folder / "output").read_text()
            yield Proxied(service, url, certificate, token)
        finally:
            proxy.terminate()
            proxy.wait()


def answers(url: str, certificate: Path) -> bool:
    try:
        return (
            httpx.get(
                f"{url}/health", verify=ssl.create_default_context(cafile=certificate), trust_env=False
            ).status_code
            == 200
        )
    except httpx.TransportError:
        return False


@pytest.fixture
def web(proxied: Proxied) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {proxied.token}"}
    options = {"verify": ssl.create_default_context(cafile=proxied.certificate), "trust_env": False, "timeout": 120}
    with httpx.Client(base_url=proxied.url, headers=headers, **options) as client:
        yield client


def test_the_token_of_the_client_reaches_the_service(proxied, web):
    assert web.get("/v1/namespaces").status_code == 200
    assert web.get("/v1/namespaces", headers={"authorization": "Bearer pw-wrong"}).status_code == 401
    del web.headers["authorization"]
    assert web.get("/v1/namespaces").status_code == 401


def test_the_hub_client_uploads_and_downloads_68_mb(proxied, web, tmp_path):
    pytest.importorskip("huggingface_hub")
    web.post("/v1/namespaces", json={"id": "shop"}).raise_for_status()
    line = b'{"prompt": "q", "completion": "' + b"a" * 970 + b'"}\n'
    (tmp_path / "large.jsonl").write_bytes(line * (NUM_BYTES // len(line)))
    environment = {
        **os.environ, "SSL_CERT_FILE": str(proxied.certificate), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    words = [sys.executable, "-c", UPLOAD, proxied.url, proxied.token, str(tmp_path / "large.jsonl")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tokens_arrive_while_the_model_still_generates(proxied, web, tmp_path):
    created = web.post(
        "/v1/deployment/model-deployments",
        json={"name": "d", "config": {"model": "meta/llama-3.2-1b-instruct"}},
    )
    assert created.status_code == 200, created.text
    url = until(lambda: ready_url(web))
    assert url.startswith(proxied.url)
    question = {"role": "user", "content": f"wait for {tmp_path / 'go'}"}
    body = {"model": "meta/llama-3.2-1b-instruct", "messages": [question], "stream": True}
    with web.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        pieces = (line for line in answer.iter_lines() if line)
        assert '"one"' in next(pieces)  # the model waits for the file before it says more
        (tmp_path / "go").touch()
        assert '"two"' in next(pieces)
        assert next(pieces) == "data: [DONE]"


def ready_url(web: httpx.Client) -> str | None:
    (found,) = web.get("/v1/deployment/model-deployments").json()["data"]
    assert found["status_details"]["status"] != "failed", found
    return found["url"] if found["status_details"]["status"] == "ready" else None
