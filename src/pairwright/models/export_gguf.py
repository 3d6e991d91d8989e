"""Export a model folder or a LoRA adapter as a GGUF file of llama.cpp. Needs `gguf`, not torch.

Supports the families of `gguf_tables`; anything in a model that would be lost is refused by name. Matrices get the
target's type, vectors stay float32. With a template file (`like`), every tensor gets its type there, and tensors with
unchanged values are copied byte for byte.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairwright.models.convert_gguf import open_gguf, read_tensor, shape_of
from pairwright.models.folder_weights import DTYPES, Adapter, FolderWeights, read_json, tokenizer_folder
from pairwright.models.gguf_tables import (
    FAMILIES,
    ROPE_FACTORS,
    SETTINGS,
    ConvertError,
    join_rotary,
    llama3_factors,
    map_names,
    name_in_file,
    rotary_heads,
)
from pairwright.models.gguf_tokenizer import tokenizer_fields
from pairwright.paths import write_atomic
from pairwright.records.messages import Json
from pairwright.tokens.tokenizer import ChatTokenizer

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
_FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}  # general.file_type
_BLOCK = 32  # values of a quantised block
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

Progress = Callable[[int, int], None]


def write_gguf(
    folder: Path,
    path: Path,
    *,
    to: str,
    adapter: Adapter | None = None,
    like: Path | None = None,
    name: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Json:
    """Write the model of a folder as a GGUF file; return its family, types and bytes.

    folder: the model's folder; with `adapter`, which is merged into the weights, the base model's.
    to: type of the matrices, one of `TYPES`.
    like: a GGUF file whose types are used instead of `to`.
    name: the model's name in the file; by default the file's stem.
    """
    import gguf

    config = _read_config(folder)
    family = config["model_type"]
    tokenizer = ChatTokenizer.from_folder(folder if adapter is None else tokenizer_folder(adapter.folder, folder))
    source = {} if like is None else open_gguf(like)[1]
    with FolderWeights(folder, adapter) as weights, write_atomic(path, error=ConvertError) as temporary:
        tensors = _Tensors(weights, config, to=to, source=source, adapter=adapter)
        writer = gguf.GGUFWriter(temporary, family)
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(name or path.stem)
        _add_fields(writer, _model_fields(config, num_embeddings=tensors.num_embeddings))
        _add_fields(writer, tokenizer_fields(tokenizer, str(folder), num_embeddings=tensors.num_embeddings))
        if like is None:
            writer.add_file_type(_FILE_TYPES[to])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for tensor, (shape, type_) in tensors.layout.items():
            writer.add_tensor_info(tensor, *_info(shape, type_))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for number, tensor in enumerate(tensors.layout, start=1):
            writer.write_tensor_data(tensors.encode(tensor))
            progress(number, len(tensors.layout))
        writer.close()
        size = temporary.stat().st_size
    counts: dict[str, int] = {}
    for _, type_ in tensors.layout.values():
        counts[type_.name] = counts.get(type_.name, 0) + 1
    result = {"family": family, "types": counts, "bytes": size, "file": str(path)}
    return result if like is None else result | {"copied": tensors.num_copied}


def write_lora_gguf(adapter: Adapter, base: Path, path: Path) -> Json:
    """Write an adapter as a GGUF file that `llama-server --lora` loads over the base model's file."""
    import gguf

    config = _read_config(base)
    heads = config["num_attention_heads"], config["num_key_value_heads"]
    _check_tied(config, adapter, str(base))
    ranks = {len(a) for a, _ in adapter.pairs.values()}
    if len(ranks) != 1:
        raise ConvertError(f"{adapter.folder}: matrices of the ranks {sorted(ranks)}: expected one rank")
    rank = ranks.pop()
    with write_atomic(path, error=ConvertError) as temporary:
        writer = gguf.GGUFWriter(temporary, config["model_type"])
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_name(path.stem)
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", adapter.scale(rank) * rank)  # llama.cpp divides it by the rank
        for target, (a, b) in adapter.pairs.items():
            tensor = name_in_file(target)
            if tensor is None:
                raise ConvertError(f"{adapter.folder}: changes {target}, which is not supported")
            rotary = rotary_heads(tensor, config["model_type"], *heads)
            writer.add_tensor(f"{tensor}.lora_a", a)
            writer.add_tensor(f"{tensor}.lora_b", b if rotary is None else np.ascontiguousarray(join_rotary(b, rotary)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        size = temporary.stat().st_size
    types = {"F32": 2 * len(adapter.pairs)}
    return {"family": config["model_type"], "types": types, "bytes": size, "file": str(path), "rank": rank}


class _Tensors:
    """The tensors of the file; `layout` maps names to shape and type, in file order."""

    def __init__(
        self, weights: FolderWeights, config: Json, *, to: str, source: dict[str, Any], adapter: Adapter | None
    ) -> None:
        where = str(weights.folder)
        self._weights, self._config, self._source = weights, config, source
        self.num_copied = 0
        names: dict[str, str] = {}  # in the file: in the folder
        if adapter is not None:
            _check_tied(config, adapter, where)
        for name in weights.shapes:
            target = name_in_file(name)
            if target is None:
                raise ConvertError(f"{where}: the tensor {name} is not known")
            if not (target == "output.weight" and config["tie_word_embeddings"]):
                names[target] = name
        map_names(names, where, num_blocks=config["num_hidden_layers"])
        self._names = names
        self.num_embeddings = weights.shapes["model.embed_tokens.weight"][0]
        shapes = {target: weights.shapes[name] for target, name in names.items()}
        self._rope = _rope_factors(config, where)
        if self._rope is not None:
            shapes[ROPE_FACTORS] = self._rope.shape
        if source:
            self._check_source(shapes)
            shapes = {name: shapes[name] for name in source}
        self.layout = {
            name: (shape, source[name].tensor_type if source else _type_of(name, shape, to))
            for name, shape in shapes.items()
        }

    def _check_source(self, shapes: dict[str, tuple[int, ...]]) -> None:
        theirs = {name: shape_of(tensor) for name, tensor in self._source.items()}
        for name in sorted(theirs.keys() | shapes.keys()):
            if theirs.get(name) != shapes.get(name):
                raise ConvertError(
                    f"--like: {name} is {theirs.get(name, 'missing')} there and {shapes.get(name, 'missing')} here"
                )

    def encode(self, name: str) -> NDArray[Any]:
        import gguf

        _, type_ = self.layout[name]
        source = self._source.get(name)
        if name == ROPE_FACTORS:
            assert self._rope is not None
            values = self._rope
            if source is not None and np.allclose(source.data, values, rtol=1e-4):
                self.num_copied += 1
                return np.array(source.data)
            return values
        heads = rotary_heads(
            name, self._config["model_type"], self._config["num_attention_heads"], self._config["num_key_value_heads"]
        )
        values = self._weights.read(self._names[name])
        if source is not None:
            original = read_tensor(source, heads)
            # a conversion may have rounded the file's values to 16 bits
            if any(np.array_equal(original.astype(dtype).astype(np.float32), values) for dtype in DTYPES.values()):
                self.num_copied += 1
                return np.array(source.data)
        if heads is not None:
            values = np.ascontiguousarray(join_rotary(values, heads))
        if type_.name == "F16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            raise ConvertError(f"{name}: has values that float16 cannot hold: export gguf:bf16")
        try:
            encoded: NDArray[Any] = gguf.quants.quantize(values, type_)
        except NotImplementedError:
            raise ConvertError(
                f"--like: {name} is {type_.name} there, which only llama.cpp's llama-quantize writes, and its values "
                f"have changed: export gguf:f16 and run llama-quantize, or gguf:{type_.name.lower()} with it installed"
            ) from None
        return encoded


def _read_config(folder: Path) -> Json:
    """Read config.json, normalise names of older transformers versions, and refuse what GGUF cannot hold."""
    config = read_json(folder / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES or config.get("architectures", [FAMILIES[family][0]]) != [FAMILIES[family][0]]:
        raise ConvertError(
            f"{folder}: {config.get('architectures', [family])[0]} ({family}) is not exported to GGUF; supported: "
            f"{', '.join(architecture for architecture, _ in FAMILIES.values())} (SmolLM2 is a Llama)"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ConvertError(f"{folder}: llama.cpp does not support hidden_act {config['hidden_act']!r} for {family}")
    if config.get("use_sliding_window"):
        raise ConvertError(f"{folder}: llama.cpp does not support use_sliding_window for {family}")
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    config["rope_parameters"] = {
        "rope_theta": config.get("rope_theta", 10_000.0),
        **rope,
        "rope_type": rope.get("rope_type", rope.get("type", "default")),
    }
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    config.setdefault("tie_word_embeddings", False)
    return config


def _check_tied(config: Json, adapter: Adapter, where: str) -> None:
    ends = {"lm_head.weight", "model.embed_tokens.weight"} & set(adapter.pairs)
    if ends and config["tie_word_embeddings"]:
        raise ConvertError(f"{where}: embedding and head are one tensor, and the adapter changes {ends.pop()} alone")
    if "model.embed_tokens.weight" in ends:
        raise ConvertError(f"{where}: an adapter of the embedding is not exported")


def _rope_factors(config: Json, where: str) -> NDArray[np.float32] | None:
    """Return Llama 3's tensor of rotary factors; None for any other scaling or none."""
    rope = config["rope_parameters"]
    if rope["rope_type"] not in ("default", "linear", "yarn", "llama3"):
        raise ConvertError(f"{where}: scales rotary positions by {rope['rope_type']!r}, which is not exported")
    if rope["rope_type"] != "llama3":
        return None
    for key, expected in _LLAMA3_SCALING.items():
        if rope.get(key, expected) != expected:
            raise ConvertError(f"{where}: {key} is {rope[key]}, and only {expected} is exported")
    return llama3_factors(config["head_dim"], rope["rope_theta"], rope["factor"])


def _type_of(name: str, shape: tuple[int, ...], to: str) -> Any:
    """Choose a tensor's type: float32 for vectors; eight bits for embedding and head of a four-bit file, since they
    affect all logits."""
    import gguf

    if len(shape) == 1:
        return gguf.GGMLQuantizationType.F32
    if to.startswith("q") and shape[-1] % _BLOCK:
        to = "f16"
    elif to == "q4_0" and name in ("token_embd.weight", "output.weight"):
        to = "q8_0"
    return gguf.GGMLQuantizationType[to.upper()]


def _info(shape: tuple[int, ...], type_: Any) -> tuple[Any, ...]:
    """Return the arguments of `add_tensor_info`: shape (of the bytes if quantised), numpy type, bytes, type."""
    import gguf

    if type_.name in ("F32", "F16"):
        dtype = np.dtype(np.float32 if type_.name == "F32" else np.float16)
        return shape, dtype, int(np.prod(shape)) * dtype.itemsize, type_
    in_bytes = gguf.quant_shape_to_byte_shape(shape, type_)
    return in_bytes, np.dtype(np.uint8), int(np.prod(in_bytes)), type_


def _model_fields(config: Json, *, num_embeddings: int) -> Json:
    rope, family = config["rope_parameters"], config["model_type"]
    settings = {**config, "rope_theta": float(rope["rope_theta"]), "rms_norm_eps": float(config["rms_norm_eps"])}
    fields: Json = {key: settings[name] for key, name in SETTINGS.items()}
    fields |= {"vocab_size": num_embeddings} | dict.fromkeys(
        ("attention.value_length", "rope.dimension_count"), config["head_dim"]
    )
    if rope["rope_type"] in ("linear", "yarn"):
        fields |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        fields["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{family}.{key}": value for key, value in fields.items()}


def _add_fields(writer: Any, fields: Json) -> None:
    add: dict[type, Any] = {
        str: writer.add_string,
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    for key, value in fields.items():
        add[type(value)](key, value)
