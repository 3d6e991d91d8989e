"""A real S3 server (moto) on loopback, with a log of its requests and injected failures. conftest.py has it for all tests."""

import os
import threading
import warnings
from dataclasses import dataclass, field

import pytest

# The server does not check credentials; the endpoint is set as by a user of MinIO.
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing-key",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_REGION": "us-east-1",
}
_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"


@dataclass
class S3Server:
    """`asked` has the method, the path and the range of each request. What `failing` returns a code for, of the method
    and the path with its query, fails so."""

    port: int = 0
    asked: list = field(default_factory=list)
    failing: object = None

    @property
    def environment(self):
        return _ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def wrapped(self, app):
        def answer(environ, start_response):
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self.asked.append((method, path, environ.get("HTTP_RANGE")))
            code = self.failing(method, f"{path}?{environ['QUERY_STRING']}".rstrip("?")) if self.failing else None
            if code is None:
                return app(environ, start_response)
            if environ.get("CONTENT_LENGTH"):
                environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [_ERROR.format(code=code).encode()]

        return answer

    def bytes_asked(self, suffix):
        """How many bytes of the files whose names end so were asked for."""
        ranges = [wanted for method, path, wanted in self.asked if method == "GET" and path.endswith(suffix) and wanted]
        bounds = [wanted.removeprefix("bytes=").split("-") for wanted in ranges]
        return sum(int(last) - int(first) + 1 for first, last in bounds)


@dataclass
class Bucket:
    """One bucket, seen by Amazon's own client."""

    name: str
    client: object

    def url(self, key=""):
        return f"s3://{self.name}/{key}".rstrip("/")

    def put(self, key, data):
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key):
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def objects(self, prefix=""):
        """Return all objects except the empty ones that represent folders."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        found = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return sorted(key for key in found if not key.endswith("/"))

    def visible(self, prefix=""):
        return [key for key in self.objects(prefix) if not any(part.startswith(".") for part in key.split("/"))]


@pytest.fixture(scope="session")
def s3_server():
    """The server; the environment names it as long as the session lasts."""
    pytest.importorskip("moto", reason="moto[server] is in the extra dev")
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_):
            pass

    made = S3Server()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = DomainDispatcherApplication(create_backend_app)
        server = make_server("127.0.0.1", 0, made.wrapped(app), threaded=True, request_handler=Silent)
    server.daemon_threads = True
    made.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made
    server.shutdown()


@pytest.fixture
def s3(s3_server):
    """The server with nothing asked and nothing failing."""
    s3_server.failing = None
    s3_server.asked.clear()
    yield s3_server
    s3_server.failing = None


@pytest.fixture
def bucket(s3):
    """Create a new bucket for a test."""
    import boto3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = boto3.client("s3", endpoint_url=s3.environment["AWS_ENDPOINT_URL"], region_name="us-east-1")
        made = Bucket(f"bucket-{os.urandom(6).hex()}", client)
        client.create_bucket(Bucket=made.name)
    return made
