"""Which models packed attention can run."""

from typing import Any

import numpy as np

from pairwright.generate.cpu_kernels import available_bytes
from pairwright.generate.kv_slots import Shape
from pairwright.generate.packed_attention import NAME, Unsupported, attend
from pairwright.generate.packed_runner import PackedRunner


def explain_unsupported(model: Any) -> str | None:
    """Explain why a model cannot run on packed tokens; None if no reason is known."""
    config = model.config.get_text_config()
    if next(model.parameters()).device.type != "cpu":
        return "it is not on the CPU"
    if getattr(model, "_is_stateful", False):
        return "it has a recurrent state"
    if not getattr(model, "_supports_attention_backend", False):
        return "transformers gives it no choice of attention"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of {', '.join(sorted(map(str, kinds)))}"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for values in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if values.get("rope_type") in ("dynamic", "longrope"):
            return f"its rotary positions depend on the length ({values['rope_type']})"
    return None


def open_runner(model: Any, *, max_cache_tokens: int | None, max_step_tokens: int) -> PackedRunner | str:
    """Return a runner whose logits agree with the model's forward pass on a trial, or the reason why there is none."""
    reason = explain_unsupported(model)
    if reason is not None:
        return reason
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attend)
    try:
        shape = _measure_shape(model)
        # At most 131,072 tokens, and at most a quarter of the available memory.
        limit = max_cache_tokens or int(min(131_072, max(4096, available_bytes() // 4 // shape.bytes_per_token)))
        difference = _compare_trial(model, shape)
    except Unsupported as error:
        return str(error)
    except (RuntimeError, TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
        return f"a trial failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if difference is not None:
        return difference
    return PackedRunner(model, shape, max_cache_tokens=limit, max_step_tokens=max_step_tokens)


def _measure_shape(model: Any) -> Shape:
    import torch

    ids = torch.zeros((1, 2), dtype=torch.long)
    with torch.inference_mode():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    layers = list(cache.layers)
    key, value = layers[0].keys, layers[0].values
    if any(layer.keys.shape != key.shape or layer.values.shape != value.shape for layer in layers):
        raise Unsupported("its layers have caches of different shapes")
    if key.shape[-1] != value.shape[-1]:
        raise Unsupported("its keys and values have different sizes")
    return Shape(len(layers), key.shape[1], key.shape[3], key.dtype, str(key.device))


def _compare_trial(model: Any, shape: Shape) -> str | None:
    """Compare a prompt in pieces and some steps with the model's forward pass; describe the difference, if any."""
    import torch

    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    size = 48 + (window if window <= 256 else 0)
    size = min(size, int(getattr(config, "max_position_embeddings", None) or size) - 2)
    ids = np.random.default_rng(0).integers(0, model.get_output_embeddings().weight.shape[0], max(size, 2))
    runner = PackedRunner(model, shape, max_cache_tokens=2**31, max_step_tokens=max(size // 2, 2))
    prompt = ids[: max(size - 4, 1)]
    runner.start(prompt, users=1, room=4)
    rows: list[Any] = []
    none = np.zeros(0, np.int64)
    while not rows:
        logits, complete = runner.advance(none, none)
        rows += [logits[-1]] if complete else []
    for token in ids[len(prompt) :]:
        rows.append(runner.advance(np.zeros(1, np.int64), np.array([token]))[0][0])
    with torch.inference_mode():
        expected = model(input_ids=torch.from_numpy(ids)[None]).logits[0, len(prompt) - 1 :].float()
    got = torch.stack(rows)
    # the last bits differ by the order of sums; in 16 bits that is a few hundredths
    tolerance = 1e-3 if shape.dtype == torch.float32 else 0.1
    worst = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
    if not worst <= tolerance:
        return f"a trial differs from the model's own attention by {worst:.1e} of the largest logit"
    return None
