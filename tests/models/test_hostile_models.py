"""Hostile model folders and GGUF files: refused with a reason, without running code, hanging or allocating."""

import json
import random
import resource
import struct

import pytest

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")

from models.test_convert_gguf import small_model, write_gguf  # noqa: E402
from pairwright.errors import PairwrightError  # noqa: E402
from pairwright.models.convert_gguf import convert_gguf  # noqa: E402
from pairwright.training.model.load_model import ModelError, read_weights  # noqa: E402

HUGE = (2**31, 2**40, 2**63 - 1, 2**64 - 1)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(small_model("qwen2"), path)
    return path.read_bytes()


@pytest.fixture
def model(tmp_path):
    small_model("qwen2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def six_gigabytes():
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def change(data: bytes, seed: int) -> bytes:
    """Change the counts, a word or some bytes of the metadata, or cut the file."""
    draw = random.Random(seed)
    changed = bytearray(data)
    place = draw.randrange(data.index(b"token_embd") + 2000)
    match seed % 5:
        case 0:
            struct.pack_into("<Q", changed, 8, draw.choice(HUGE))  # number of tensors
        case 1:
            struct.pack_into("<Q", changed, 16, draw.choice(HUGE))  # number of metadata fields
        case 2:
            struct.pack_into("<Q", changed, place, draw.choice(HUGE))  # a length, an offset, a size
        case 3:
            changed[place] = draw.randrange(256)
        case _:
            return data[:place]
    return bytes(changed)


@pytest.mark.usefixtures("six_gigabytes")
def test_a_changed_gguf_file_is_refused_or_read(gguf_bytes, tmp_path):
    refused = 0
    for seed in range(100):
        file = tmp_path / "changed.gguf"
        file.write_bytes(change(gguf_bytes, seed))
        try:
            convert_gguf(file, tmp_path / f"folder{seed}")
        except PairwrightError:
            refused += 1
    assert refused >= 60  # every wrong count and every cut


def rewrite_header(path, edit):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header, next(name for name in header if name != "__metadata__"))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize(
    "edit",
    [
        lambda header, name: header[name].update(data_offsets=[0, 2**40]),
        lambda header, name: header[name].update(data_offsets=[64, 0]),
        lambda header, name: header[name].update(shape=[2**40, 2**20]),
        lambda header, name: header[name].update(dtype="XX"),
        lambda header, name: header.pop(name),
    ],
    ids=["past the end", "reversed", "huge shape", "unknown type", "missing"],
)
def test_a_wrong_safetensors_header_is_refused(model, edit):
    rewrite_header(model / "model.safetensors", edit)
    with pytest.raises(ModelError, match="not a model that can be loaded"):
        read_weights(model)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 4) + b"{{{{"])
def test_a_broken_safetensors_file_is_refused(model, data):
    (model / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="not a model that can be loaded"):
        read_weights(model)


class TouchWhenLoaded:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


def test_weights_in_a_pickle_run_nothing(model, tmp_path):
    (model / "model.safetensors").unlink()
    torch.save({"weight": TouchWhenLoaded(tmp_path / "owned")}, model / "pytorch_model.bin")
    with pytest.raises(ModelError):
        read_weights(model)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("model_type", ["qwen2", "own"])
def test_code_in_a_model_folder_is_not_run(model, tmp_path, model_type):
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": model_type, "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "own.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    if model_type == "own":
        with pytest.raises(ModelError):
            read_weights(model)
    else:
        read_weights(model)  # the library's own class for this type
    assert not (tmp_path / "owned").exists()
