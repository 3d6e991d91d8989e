"""`pairwright model export`: write a trained model or adapter for another runtime.

gguf:TYPE     a file for llama.cpp; f32, f16, bf16, q8_0, q4_0, and others if llama-quantize is installed
lora-gguf     only the adapter, to use with a GGUF file of its base model
ollama        a folder with model.gguf and a Modelfile; ollama:TYPE chooses the type
vllm-lora     the adapter's folder, checked for vLLM's requirements
merged        a plain model folder with the adapter in its weights
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from pairwright.errors import ConfigError
from pairwright.generate.model_folder import base_of_adapter
from pairwright.models.export_gguf import TYPES, write_gguf, write_lora_gguf
from pairwright.models.folder_weights import (
    Adapter,
    FolderWeights,
    copy_tokenizer,
    find_trained,
    read_json,
    tokenizer_folder,
    write_safetensors,
)
from pairwright.models.gguf_tables import ConvertError, name_in_file
from pairwright.models.ollama_template import modelfile
from pairwright.paths import write_atomic, write_bytes, write_json
from pairwright.paths.model_folders import require_empty
from pairwright.records.messages import Json
from pairwright.tokens.tokenizer import ChatTokenizer

TARGETS = (*(f"gguf:{name}" for name in TYPES), "lora-gguf", "ollama", "vllm-lora", "merged")
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's --max-lora-rank
Progress = Callable[[int, int], None]


def export_model(
    run: Path,
    output: Path,
    *,
    to: str,
    like: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Json:
    """Write a trained model for another runtime; return the target, the files, notes and the next command.

    run: the folder of a run, model or adapter.
    output: the file to write for gguf and lora-gguf, else a new or empty folder.
    to: one of `TARGETS`, or gguf:TYPE with a type of llama-quantize.
    like: for gguf and ollama, a GGUF file whose tensor types are used.
    progress: called with the number of tensors written and the total.
    """
    kind, _, type_ = to.partition(":")
    if kind not in ("gguf", "lora-gguf", "ollama", "vllm-lora", "merged") or (type_ and kind not in ("gguf", "ollama")):
        raise ConfigError(f"--to {to}: expected one of {', '.join(TARGETS)}")
    if like is not None and kind not in ("gguf", "ollama"):
        raise ConfigError(f"--like: {kind} has no types of tensors: expected gguf or ollama")
    if kind == "gguf" and not type_ and like is None:
        raise ConfigError("--to gguf: expected a type, such as gguf:f16, or --like FILE")
    trained = find_trained(run)
    base = base_of_adapter(trained)
    adapter = None if base is None else Adapter(trained)
    if kind in ("lora-gguf", "vllm-lora") and adapter is None:
        raise ConfigError(f"{trained}: a whole model, not an adapter: {kind} needs train.finetuning_type=lora")
    if kind not in ("gguf", "lora-gguf"):
        require_empty(output, of=kind)
    folder = trained if base is None else base
    result: Json = {"to": to, "source": str(trained), "notes": []}
    if kind == "gguf":
        result |= _gguf(folder, output, type_ or "f16", adapter, like, run.name, progress)
        result["next"] = f"pairwright evaluate run CONFIG --before {trained} --after {output}"
    elif kind == "lora-gguf":
        assert adapter is not None
        result |= write_lora_gguf(adapter, folder, output)
        result["next"] = f"llama-server -m BASE.gguf --lora {output}"
    elif kind == "ollama":
        with write_atomic(output, error=ConvertError) as temporary:
            temporary.mkdir()
            tokenizer = ChatTokenizer.from_folder(tokenizer_folder(trained, folder))
            text, result["notes"] = modelfile(tokenizer, "model.gguf", str(trained))
            gguf = _gguf(folder, temporary / "model.gguf", type_ or "f16", adapter, like, run.name, progress)
            result |= gguf | {"file": str(output / "model.gguf")}
            write_bytes(temporary / "Modelfile", text.encode())
        result["next"] = f"ollama create NAME -f {output / 'Modelfile'}"
    elif kind == "vllm-lora":
        assert adapter is not None
        result |= _vllm_lora(adapter, folder, output)
    else:
        result |= _merged(folder, trained, output, adapter, progress)
        result["next"] = f"pairwright serve model {output}"
    return result


def _gguf(
    folder: Path, path: Path, to: str, adapter: Adapter | None, like: Path | None, name: str, progress: Progress
) -> Json:
    if to in TYPES:
        return write_gguf(folder, path, to=to, adapter=adapter, like=like, name=name, progress=progress)
    tool = shutil.which("llama-quantize")
    if tool is None:
        raise ConfigError(
            f"gguf:{to}: {', '.join(TYPES)} are written here; other types need llama.cpp's own tool, and there is no "
            "llama-quantize on the PATH"
        )
    with write_atomic(path, error=ConvertError) as temporary:
        whole = temporary.with_suffix(".f16")
        try:
            result = write_gguf(folder, whole, to="f16", adapter=adapter, name=name, progress=progress)
            done = subprocess.run([tool, whole, temporary, to.upper()], capture_output=True, text=True, check=False)
        finally:
            whole.unlink(missing_ok=True)
        if done.returncode or not temporary.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise ConvertError(f"llama-quantize failed with exit code {done.returncode}: {lines[-1]}")
        return result | {"types": {to.upper(): 1}, "bytes": temporary.stat().st_size, "file": str(path)}


def _vllm_lora(adapter: Adapter, base: Path, output: Path) -> Json:
    """Copy the adapter's files: vLLM reads PEFT's format, for linear layers inside blocks."""
    for name in adapter.pairs:
        if not (name_in_file(name) or "").startswith("blk."):
            raise ConvertError(f"{adapter.folder}: changes {name}; vLLM loads adapters of attention and MLP layers")
    rank = max(len(a) for a, _ in adapter.pairs.values())
    allowed = next((number for number in _VLLM_RANKS if number >= rank), None)
    if allowed is None:
        raise ConvertError(f"{adapter.folder}: rank {rank}; vLLM loads adapters up to rank {_VLLM_RANKS[-1]}")
    with write_atomic(output, error=ConvertError) as temporary:
        temporary.mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(adapter.folder / name, temporary / name)
        copy_tokenizer(adapter.folder, temporary)
    command = f"vllm serve {base} --enable-lora --max-lora-rank {allowed} --lora-modules NAME={output}"
    return {"folder": str(output), "rank": rank, "next": command}


def _merged(base: Path, trained: Path, output: Path, adapter: Adapter | None, progress: Progress) -> Json:
    """Write a plain model folder. An adapter is merged in float32: in 16 bits, small changes may round to nothing."""
    with FolderWeights(base, adapter) as weights, write_atomic(output, error=ConvertError) as temporary:
        temporary.mkdir()
        dtype = weights.dtype if adapter is None else "float32"
        config = read_json(base / "config.json")
        config.pop("torch_dtype", None)
        write_json(temporary / "config.json", config | {"dtype": dtype})
        copy_tokenizer(tokenizer_folder(trained, base), temporary)
        path = temporary / "model.safetensors"
        size = write_safetensors(path, weights.shapes, weights.read, dtype=dtype, progress=progress)
    return {"folder": str(output), "dtype": dtype, "bytes": size}
