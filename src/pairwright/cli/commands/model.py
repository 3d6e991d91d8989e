"""`pairwright model fetch NAME -o DIR`, `model convert FILE.gguf -o DIR`, `model export RUN --to gguf:f16 -o FILE`."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.arguments import AsJson, Overwrite, WeightType
from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.overrides import ConfigCommand, Overrides, load_settings
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError

app = typer.Typer(
    help="Models in and out: from the Hugging Face Hub, from and to GGUF files and other runtimes.",
    no_args_is_help=True,
)


_Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write; a new or empty one.", show_default=False)
]


@app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="Hub id, such as Qwen/Qwen2.5-0.5B-Instruct.", show_default=False)],
    output: _Output,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit; by default the newest.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download a model from the Hugging Face Hub: safetensors, tokenizer and template, no code."""
    from pairwright.paths import download_model, is_hub_id
    from pairwright.paths.model_folders import require_empty

    if not is_hub_id(name):
        raise ConfigError(f"{name}: expected a Hub id, such as Qwen/Qwen2.5-0.5B-Instruct")
    require_empty(output, of=name)
    download_model(name, output, revision=revision)
    size = sum(path.stat().st_size for path in output.glob("*.safetensors"))
    if not size:
        raise ConfigError(f"{name}: the Hub has no *.safetensors of it: convert its weights with save_pretrained")
    if as_json:
        print_json({"name": name, "folder": str(output), "bytes": size})
    say(f"{name} is in {output} ({size / 1e6:,.0f} MB). Next: pairwright serve model {output}")


@app.command("convert")
def convert_model(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file.", show_default=False)],
    output: _Output,
    dtype: Annotated[
        WeightType,
        typer.Option(help="Type of the weights; auto: as in the file, bfloat16 if they are quantised."),
    ] = "auto",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Use the tokenizer of this folder instead of the one in the file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a GGUF file to a model's folder: dequantised weights, tokenizer, chat template."""
    from pairwright.models.convert_gguf import convert_gguf

    with Progress("converting", "tensors") as bar:
        result = convert_gguf(file, output, dtype=dtype, tokenizer=tokenizer, progress=bar.show)
    if as_json:
        print_json(result)
    say(
        f"{result['family']}, {result['parameters'] / 1e6:,.1f} M parameters in {result['dtype']}, is in {output}. "
        f"Next: pairwright serve model {output}"
    )


@app.command("export", cls=ConfigCommand)
def export_trained(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or the folder of a model or adapter.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            help="gguf:f32, f16, bf16, q8_0 or q4_0 (others with llama-quantize); lora-gguf; ollama; vllm-lora; merged."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file for gguf and lora-gguf, else a new folder.")],
    like: Annotated[
        Path | None, typer.Option(help="gguf, ollama: a GGUF file whose tensor types are copied.", show_default=False)
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Compare the file in llama.cpp with the model; exit code 2 if it differs.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="--prove: a configuration whose held-out tasks both models play.")
    ] = None,
    override: Overrides = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained model for llama.cpp, Ollama, vLLM, or as a plain folder."""
    from pairwright.config import base_folder
    from pairwright.models.export_model import export_model

    if prove and to.partition(":")[0] not in ("gguf", "lora-gguf", "ollama"):
        raise ConfigError(f"--prove: llama.cpp reads GGUF files, not {to}")
    if output.is_file() and not overwrite:
        raise ConfigError(f"{output}: there is a file already; replace it with --overwrite, or choose another name")
    settings = load_settings(config, override) if config is not None or override else None
    with Progress("exporting", "tensors") as bar:
        result = export_model(run, output, to=to, like=like, progress=bar.show)
    rows = []
    if prove:
        from pairwright.evaluation.export_proof import prove_export

        base = None if settings is None or config is None else base_folder(settings, config)
        rows = prove_export(run, Path(result["file"]), config=settings, base=base)
        result["proof"] = [{"check": row.name, "passed": row.passed, "found": row.found} for row in rows]
    if as_json:
        print_json(result)
    elif rows:
        verdicts = {True: "ok", False: "failed", None: "-"}
        print_table(
            "proof", ("check", "verdict", "found"), [(row.name, verdicts[row.passed], row.found) for row in rows]
        )
    for note in result["notes"]:
        say(f"note: {note}")
    written = result.get("file") or result["folder"]
    size = f" ({result['bytes'] / 1e6:,.0f} MB)" if "bytes" in result else ""
    failed = [row.name for row in rows if row.passed is False]
    if failed:
        say(f"{written}{size} does not answer as the model does: {', '.join(failed)}")
        raise typer.Exit(2)
    say(f"{to}: {written}{size}. Next: {result['next']}")
