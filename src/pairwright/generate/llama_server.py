"""llama.cpp's server in this process for a GGUF file: the package `xllamacpp`, called by HTTP on this machine.

`url` is an OpenAI-compatible endpoint. `ask` reaches the server's other paths: /props, /tokenize, /apply-template,
/completion.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pairwright.generate.requests import GenerateError
from pairwright.records.messages import Json

_MAX_CONTEXT = 16_384  # tokens of all requests together: the cache is allocated at the start
_TIMEOUT = 600.0  # seconds; a prompt of the whole context takes minutes on a slow machine


class LlamaServer:
    """Serves one GGUF file until `close`; a context manager.

    file: the GGUF file.
    adapter: a LoRA adapter as GGUF, applied to the model.
    context: tokens of all requests together; 0: the model's context, at most 16,384.
    slots: requests at once.
    threads: CPU threads; None: llama.cpp's default.
    exact: keys and values in float32 and no flash attention, to compare logits.
    """

    def __init__(
        self,
        file: Path,
        *,
        adapter: Path | None = None,
        context: int = 0,
        slots: int = 4,
        threads: int | None = None,
        exact: bool = False,
    ) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise GenerateError(f"{file}: a GGUF file needs xllamacpp: pip install 'pairwright[llama-cpp]'") from None
        for path in (file, adapter):
            if path is not None and not is_gguf(path):
                raise GenerateError(f"{path}: not a GGUF file")
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        if adapter is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
        params.port = 0  # a free one
        params.n_ctx, params.n_parallel, params.kv_unified = context or _MAX_CONTEXT, slots, True
        params.verbosity, params.warmup, params.ui = 0, False, False
        if threads is not None:
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        if exact:
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        try:
            self._server: Any = xllamacpp.Server(params)
        except Exception as error:  # llama.cpp raises various errors for a file that it cannot load
            raise GenerateError(f"{file}: llama.cpp does not load it: {error}") from error
        self._address = str(self._server.listening_address)
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    @property
    def url(self) -> str:
        return f"{self._address}/v1"

    def ask(self, path: str, body: Json | None = None) -> Json:
        """GET a path, or POST a body to it."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, {"content-type": "application/json"})
        try:
            with self._open(request, timeout=_TIMEOUT) as answer:
                content: Json = json.load(answer)
        except urllib.error.HTTPError as error:
            raise GenerateError(f"llama.cpp refuses {path}: {error.read().decode(errors='replace')[:300]}") from None
        except OSError as error:
            raise GenerateError(f"llama.cpp does not answer at {path}: {error}") from error
        return content

    def close(self) -> None:
        self._server = None  # the server stops with its object

    def __enter__(self) -> "LlamaServer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_gguf(path: Path) -> bool:
    """Return whether a path is a file with the GGUF magic number."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
