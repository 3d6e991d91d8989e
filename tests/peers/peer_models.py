"""The models that the peers' tests name, built of what is at hand: a shared tokenizer, a template, its control tokens.

No model hub is asked. A model is a real tokenizer with the real template of the family and every control token that
the template writes; its ids are not those of the model's own vocabulary, which no test of theirs depends on.
"""

import functools
import importlib.metadata
import re
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pytest
import transformers

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


class Model(NamedTuple):
    """`template` is a file of the shared templates, `trl:name` one that TRL ships, "" the tokenizer's own. `eos` is
    the token that ends a turn, `stops` are those of the model's generation_config.json."""

    tokenizer: str
    template: str = ""
    eos: str = ""
    stops: tuple[str, ...] = ()


_read_tokenizer = transformers.AutoTokenizer.from_pretrained  # before a plugin puts another in its place
_GLM = ("<|endoftext|>", "<|user|>", "<|observation|>")

# fmt: off
MODELS = {
    # those of `renderers`
    "Qwen/Qwen3-8B": Model("qwen3"),
    "Qwen/Qwen3.5-9B": Model("qwen3", "trl:qwen3_5_think"),
    "Qwen/Qwen3.6-35B-A3B": Model("qwen3", "trl:qwen3_6"),
    "Qwen/Qwen3-VL-4B-Instruct": Model("qwen3", "trl:qwen3_vl"),
    "Qwen/Qwen2.5-0.5B-Instruct": Model("qwen2_5"),
    "zai-org/GLM-4.7-Flash": Model("qwen2_5", "GLM-4.7-Flash", "<|endoftext|>", _GLM),
    "THUDM/GLM-4.5-Air": Model("qwen2_5", "trl:glm4moe", "<|endoftext|>", _GLM),
    "MiniMaxAI/MiniMax-M2.5": Model("qwen2_5", "MiniMax-M2", "[e~["),
    "moonshotai/Kimi-K2-Instruct": Model("qwen2_5", "moonshotai-Kimi-K2", "<|im_end|>"),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Model("qwen2_5", "trl:nemotron_3_nano", "<|im_end|>"),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": Model("qwen2_5", "trl:nemotron_3_super", "<|im_end|>"),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": Model("qwen2_5", "trl:nemotron_3_ultra", "<|im_end|>"),
    "poolside/Laguna-XS.2": Model("qwen2_5", "poolside-Laguna-XS.2", "</assistant>"),
    "poolside/Laguna-XS-2.1": Model("qwen2_5", "poolside-Laguna-XS-2.1", "</assistant>"),
    "meta-llama/Llama-3.2-1B-Instruct": Model("llama3_1", "trl:llama3_2"),
    "openai/gpt-oss-20b": Model("gptoss"),
    "tencent/Hy3": Model("qwen2_5", "tencent-Hy3", "<｜hy_eos:opensource｜>"),
    # those of TRL, without "trl-internal-testing/tiny-"
    "CohereForCausalLM": Model("qwen2_5", "trl:cohere", "<|END_OF_TURN_TOKEN|>"),
    "Cohere2ForCausalLM": Model("qwen2_5", "trl:cohere2", "<|END_OF_TURN_TOKEN|>"),
    "DeepseekV3ForCausalLM": Model("deepseek_v3", "trl:deepseekv3"),
    "DeepseekV3ForCausalLM-0528": Model("deepseek_v3"),
    "DiffusionGemmaForBlockDiffusion": Model("gemma3", "trl:diffusion_gemma", "<turn|>"),
    "GemmaForCausalLM": Model("gemma3", "trl:gemma", "<end_of_turn>"),
    "Gemma2ForCausalLM": Model("gemma3", "trl:gemma", "<end_of_turn>"),
    "Gemma3ForConditionalGeneration": Model("gemma3", "trl:gemma3", "<end_of_turn>"),
    "Gemma4ForConditionalGeneration": Model("gemma3", "trl:gemma4", "<turn|>", ("<turn|>", "<|tool_response>")),
    "Glm4MoeForCausalLM": Model("qwen2_5", "trl:glm4moe", "<|endoftext|>", _GLM),
    "GptOssForCausalLM": Model("gptoss", "trl:gptoss"),
    "Idefics3ForConditionalGeneration": Model("qwen2_5", "trl:idefics3", "<end_of_utterance>"),
    "Lfm2ForCausalLM": Model("qwen2_5", "trl:lfm2", "<|im_end|>"),
    "Lfm2ForCausalLM-2.5": Model("qwen2_5", "trl:lfm2_2_5", "<|im_end|>"),
    "LlamaForCausalLM-3": Model("llama3_1", "trl:llama3"),
    "LlamaForCausalLM-3.1": Model("llama3_1"),
    "LlamaForCausalLM-3.2": Model("llama3_1", "trl:llama3_2"),
    "LlavaNextForConditionalGeneration": Model("mistral_nemo", "trl:llava_next"),
    "NemotronHForCausalLM-nano": Model("qwen2_5", "trl:nemotron_3_nano", "<|im_end|>"),
    "NemotronHForCausalLM-super": Model("qwen2_5", "trl:nemotron_3_super", "<|im_end|>"),
    "NemotronHForCausalLM-ultra": Model("qwen2_5", "trl:nemotron_3_ultra", "<|im_end|>"),
    "Phi3ForCausalLM-3": Model("phi3_mini", "trl:phi3", "", ("<|end|>", "<|endoftext|>")),
    "Phi3ForCausalLM-3.5": Model("phi3_mini", "trl:phi3_5", "", ("<|end|>", "<|endoftext|>")),
    "Qwen2ForCausalLM-2.5": Model("qwen2_5", "trl:qwen2_5"),
    "Qwen2_5_VLForConditionalGeneration": Model("qwen2_5", "trl:qwen2_5_vl"),
    "Qwen2VLForConditionalGeneration": Model("qwen2_5", "trl:qwen2_5_vl"),
    "Qwen3ForCausalLM": Model("qwen3"),
    "Qwen3MoeForCausalLM": Model("qwen3", "trl:qwen3"),
    "Qwen3ForCausalLM-Instruct-2507": Model("qwen3", "trl:qwen3_instruct_2507"),
    "Qwen3VLForConditionalGeneration": Model("qwen3", "trl:qwen3_vl"),
    "Qwen3_5ForConditionalGeneration-NoThink": Model("qwen3", "trl:qwen3_5_nothink"),
    "Qwen3_5ForConditionalGeneration-Think": Model("qwen3", "trl:qwen3_5_think"),
    "Qwen3_5MoeForConditionalGeneration-3.6": Model("qwen3", "trl:qwen3_6"),
    "SmolVLMForConditionalGeneration": Model("qwen2_5", "trl:smolvlm", "<end_of_utterance>"),
}
# fmt: on
_CONTROL = re.compile(
    r"<[|｜][^<>'\"{}\s]{1,40}?[|｜]>|<\|?[a-z_:]{2,32}\|?>|</[a-z_:]{2,32}>|\[/?[A-Z_]{3,30}\]|\[e~\[|\]~!?b\[|\]~b\]"
)


def find_control_tokens(template: str) -> list[str]:
    """Find the parts of a template, or of a render, that look like control tokens."""
    return sorted(set(_CONTROL.findall(template)))


def _render_example(tokenizer: Any) -> str:
    """Some templates put their tokens together (Hy3): a render has them as they are."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    chat = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False))
    except (jinja2.TemplateError, TypeError):  # a template without tools
        return ""


@functools.cache
def load_model(name: str) -> Any:
    """Return the transformers tokenizer of a model that a test names; skip the test with a reason if it is missing.

    `stop_tokens` on it are those of the model's generation_config.json, where the table has them."""
    model = MODELS.get(name.removeprefix("trl-internal-testing/tiny-"))
    if model is None:
        pytest.skip(f"{name}: neither its tokenizer nor its template is at hand")
    tokenizer = _read_tokenizer(SHARED / "tokenizers" / model.tokenizer)
    if model.template:
        tokenizer.chat_template = read_template(model.template)
        text, known = tokenizer.chat_template + _render_example(tokenizer), set(tokenizer.get_vocab())
        more = [token for token in find_control_tokens(text) if token not in known]
        special = [token for token in more if not re.fullmatch(r"</?[a-z_]+>", token)]
        tokenizer.add_tokens(special, special_tokens=True)
        tokenizer.add_tokens([token for token in more if token not in special])
    if model.eos:
        tokenizer.add_special_tokens({"eos_token": model.eos})
    tokenizer.name_or_path = name
    tokenizer.stop_tokens = model.stops or None
    return tokenizer


def read_template(name: str) -> str:
    if name.startswith("trl:"):
        # Of the installed TRL: the checkout whose tests run comes first on the path, and may have others.
        installed = importlib.metadata.distribution("trl")
        path = Path(str(installed.locate_file(f"trl/chat_templates/{name.removeprefix('trl:')}.jinja")))
    else:
        path = SHARED / "templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8")
