"""What a project begins with: `pairwright init DIR`, `model fetch NAME -o DIR`, `model convert FILE.gguf -o DIR`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.output import print_json, say
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError


class ProjectTemplate(StrEnum):
    chat = "chat"
    tools = "tools"
    openai_sdk = "openai-sdk"
    traces = "traces"
    nat = "nat"


def init_project(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    template: Annotated[
        ProjectTemplate,
        typer.Option(
            help="chat: one question, several answers. tools: an agent with tools. openai-sdk: an agent that exists. "
            "traces: data that exists. nat: from NeMo Agent Toolkit."
        ),
    ] = ProjectTemplate.chat,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Create a small project that runs at once: configuration, workflow, scorer, tasks, README."""
    from pairwright.flow.example import create_project, read_commands

    names = create_project(folder, template.value)
    commands = read_commands((folder / "README.md").read_text(encoding="utf-8"))
    if as_json:
        print_json({"folder": str(folder), "template": template.value, "files": names, "commands": commands})
    say(f"{folder}: {', '.join(names)}")
    say("Next:")
    for command in (f"cd {folder}", *commands):
        say(f"  {command}")


app = typer.Typer(help="Get a model's folder: from the Hugging Face Hub, or from a GGUF file.", no_args_is_help=True)


class WeightType(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


_Folder = Annotated[Path | None, typer.Argument(metavar="[DIR]", help="The same as --output.", show_default=False)]
_Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder to write; a new or empty one.")]


def _folder_of(folder: Path | None, output: Path | None) -> Path:
    """Return the folder to write, which stands behind -o or as the last word."""
    if (folder is None) is (output is None):
        raise ConfigError("name the folder to write once: -o DIR")
    return Path(str(output if folder is None else folder))


@app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="Hub id, such as Qwen/Qwen2.5-0.5B-Instruct.", show_default=False)],
    folder: _Folder = None,
    output: _Output = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit; by default the newest.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Download a model from the Hugging Face Hub: safetensors, tokenizer and template, no code."""
    from pairwright.paths import download_model, is_hub_id
    from pairwright.paths.model_folders import require_empty

    folder = _folder_of(folder, output)
    if not is_hub_id(name):
        raise ConfigError(f"{name}: expected a Hub id, such as Qwen/Qwen2.5-0.5B-Instruct")
    require_empty(folder, of=name)
    download_model(name, folder, revision=revision)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not size:
        raise ConfigError(f"{name}: the Hub has no *.safetensors of it: convert its weights with save_pretrained")
    if as_json:
        print_json({"name": name, "folder": str(folder), "bytes": size})
    say(f"{name} is in {folder} ({size / 1e6:,.0f} MB). Next: pairwright serve model {folder}")


@app.command("convert")
def convert_model(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file.", show_default=False)],
    folder: _Folder = None,
    output: _Output = None,
    dtype: Annotated[
        WeightType, typer.Option(help="Of the weights; auto: as in the file, bfloat16 if they are quantised.")
    ] = WeightType.auto,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Take the tokenizer of this folder, not the one in the file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a GGUF file to a model's folder: dequantised weights, tokenizer, chat template."""
    from pairwright.models.convert_gguf import convert_gguf

    folder = _folder_of(folder, output)
    with Progress("converting", "tensors") as bar:
        result = convert_gguf(file, folder, dtype=dtype.value, tokenizer=tokenizer, progress=bar.show)
    if as_json:
        print_json(result)
    say(
        f"{result['family']}, {result['parameters'] / 1e6:,.1f} M parameters in {result['dtype']}, is in {folder}. "
        f"Next: pairwright serve model {folder}"
    )
