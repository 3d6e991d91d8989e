"""Load and save causal language models: all weights or an adapter, from and to a plain folder.

Invariant: a folder with missing weights is refused; transformers would initialise them randomly.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch
import xxhash

from pairwright.config.train_config import TrainConfig
from pairwright.errors import PairwrightError
from pairwright.generate.devices import check_precision, choose_device
from pairwright.models.folder_weights import TEMPLATES, copy_tokenizer
from pairwright.paths import write_atomic


class ModelError(PairwrightError):
    """A model that cannot be loaded, trained or saved."""


def load_model(folder: Path, settings: TrainConfig, *, is_trained: bool = True) -> Any:
    """Load a model for training: with an adapter if configured, and without dropout unless enabled.

    With `is_trained` False, no adapter is added.
    """
    device = torch.device(choose_device(settings.device))
    check_precision(device.type, settings.precision)
    model = read_weights(folder, quantization=settings.quantization)
    if is_trained and settings.finetuning_type != "all_weights":
        model = attach_adapter(model, settings)
    if not settings.dropout:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            for name in ("attention_dropout", "attn_dropout"):
                # Some models keep the rate of their attention dropout as a number, not as a module.
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
    if is_trained and settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        # With LoRA, embeddings are frozen, but checkpointed blocks may need inputs that require a gradient.
        model.enable_input_require_grads()
    return model.to(device)


def read_weights(folder: Path, *, quantization: str = "none") -> Any:
    """Read the saved model in float32, or in four bits with "nf4"; any problem with its folder is a one-line error."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json: expected the folder of a Hugging Face model")
    options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True, "output_loading_info": True}
    options["trust_remote_code"] = False  # code in a model folder is never run
    if quantization == "nf4":
        options["quantization_config"] = _four_bits()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # its warnings are errors below
    transformers_logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, **options)
    except Exception as error:  # transformers raises various errors for a broken folder
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{folder}: not a model that can be loaded: {type(error).__name__}: {reason}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ModelError(f"{folder}: {len(missing)} weights are missing or have another shape, such as {missing[0]}")
    model.config.use_cache = False  # nothing is generated here
    return model


def plain_model(model: Any) -> Any:
    """Return the transformers model, without an adapter's wrapper."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def trainable(model: Any) -> dict[str, Any]:
    """Return the trained tensors by name: the content of a checkpoint."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}


def save_model(model: Any, folder: Path, *, base: Path, settings: TrainConfig, chat_template: str | None = None) -> str:
    """Write `folder/model` or `folder/adapter` with the tokenizer of `base`; return its name.

    `chat_template` is text that replaces the templates of `base`. The write is atomic and replaces an existing folder.
    """
    if settings.finetuning_type == "lora_merged":
        model = model.merge_and_unload()
    name = "adapter" if settings.finetuning_type == "lora" else "model"
    try:
        with write_atomic(folder / name) as temporary:
            temporary.mkdir()
            model.save_pretrained(temporary)
            copy_tokenizer(base, temporary)
            if chat_template is not None:  # transformers then reads no other template of the folder
                shutil.rmtree(temporary / TEMPLATES, ignore_errors=True)
                (temporary / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{folder / name}: {error.strerror or error}: the model was not saved") from error
    return name


def model_hash(folder: Path) -> str:
    """Hash a model's weights and configuration (128 bits)."""
    digest = xxhash.xxh3_128()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".bin") or path.name == "config.json":
            digest.update(path.name.encode() + b"\0")
            with open(path, "rb") as file:
                hashlib.file_digest(file, lambda: digest)  # updates it
    return digest.hexdigest()


def attach_adapter(model: Any, settings: TrainConfig) -> Any:
    """Wrap the model in a new LoRA adapter."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ModelError("LoRA needs peft: pip install 'pairwright[train]'") from None
    lora = settings.lora
    targets = "all-linear" if lora.target_modules is None else list(lora.target_modules)
    try:
        return get_peft_model(
            model,
            LoraConfig(
                r=lora.adapter_dim,
                lora_alpha=lora.alpha,
                lora_dropout=lora.adapter_dropout,
                target_modules=targets,
                task_type="CAUSAL_LM",
            ),
        )
    except ValueError as error:
        raise ModelError(f"lora.target_modules: {' '.join(str(error).split())[:200]}") from error


def _four_bits() -> Any:
    import importlib.util

    from transformers import BitsAndBytesConfig

    if importlib.util.find_spec("bitsandbytes") is None or not torch.cuda.is_available():
        raise ModelError("quantization nf4 needs a GPU and bitsandbytes: pip install bitsandbytes")
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
