"""Run the console examples of a page, and compare or write their output.

    python -m tools.console_pages docs/tutorials/first-pairs.md [--write]

A block ```` ```console ```` has commands after `$ ` and their output below; a line `...` matches any lines. A block
with `title="NAME"` after its language is a file. All commands of a page run in one shell, in a folder that contains
only `examples`, and must end with exit code 0. White space is not compared, so that columns may be aligned.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_ROOT = Path(__file__).resolve().parents[1]
_NUMBER = re.compile(r"-?[\d.,]+(e-?\d+)?")
_MARK = "\x1e"
_COMMAND = "$ "


@dataclass(frozen=True)
class Example:
    """A command, the output on the page, and the actual output."""

    command: str
    shown: list[str]
    printed: list[str]
    exit_code: int

    @property
    def is_true(self) -> bool:
        return self.exit_code == 0 and is_like(self.shown, self.printed)


def is_like(shown: list[str], printed: list[str]) -> bool:
    """Return whether an output matches the one on the page, in which `...` matches any lines.

    >>> is_like(["first", "..."], ["first", "second", "third"])
    True
    """
    pattern = "".join(
        r"(?:[^\n]*\n)*" if line.strip() == "..." else re.escape(" ".join(line.split())) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(" ".join(line.split()) + "\n" for line in printed)) is not None


def read_console(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block with the output lines of each. A backslash continues a command.

    >>> read_console("$ pwd\\n/runs\\n$ true\\n")
    [('pwd', ['/runs']), ('true', [])]
    """
    pairs: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(_COMMAND):
            pairs.append((line[len(_COMMAND) :], []))
        elif pairs and pairs[-1][0].endswith("\\") and not pairs[-1][1]:
            pairs[-1] = (f"{pairs[-1][0]}\n{line}", [])
        elif pairs:
            pairs[-1][1].append(line)
    return pairs


def run_page(page: Path, folder: Path, *, programs: Path = Path(sys.executable).parent) -> list[Example]:
    """Write the files of a page into a folder, run its commands there, and return them with their output.

    programs: The folder of `pairwright` and `python`.
    """
    (folder / "examples").symlink_to(_ROOT / "examples")
    script, commands = ["exec 2>&1"], []
    for language, name, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if name:
            # files are written in the order of the page, so that a later block may replace a file
            source = folder / f".page-{len(script)}"
            source.write_text(body, encoding="utf-8")
            script.append(f'mkdir -p "$(dirname {name})" && mv {source} {name}')
        elif language == "console":
            for command, shown in read_console(body):
                commands.append((command, shown))
                script.append(f"printf '{_MARK}'\n{command}\nprintf '{_MARK}%s' $?")
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    # text before the first command, then alternating output and exit code
    pieces = done.stdout.split(_MARK)[1:]
    examples = []
    for (command, shown), output, code in zip(commands, pieces[::2], pieces[1::2], strict=True):
        examples.append(Example(command, shown, align(output.rstrip("\n").splitlines()), int(code)))
    return examples


def align(lines: list[str]) -> list[str]:
    """Align rows with tabs in columns, with numbers to the right, as in a terminal; each table separately."""
    result: list[str] = []
    table: list[list[str]] = []
    for line in [*lines, ""]:
        row = line.split("\t")
        if table and len(row) != len(table[0]):
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            is_number = [_NUMBER.fullmatch(cell) is not None for cell in table[-1]]
            for cells in table:
                padded = [
                    cell.rjust(width) if number else cell.ljust(width)
                    for cell, width, number in zip(cells, widths, is_number, strict=True)
                ]
                result.append("  ".join(padded).rstrip())
            table = []
        if len(row) > 1:
            table.append(row)
        else:
            result.append(line)
    return result[:-1]


def write_outputs(page: Path, examples: list[Example]) -> None:
    """Write the actual output below each command, except where the page abbreviates with `...`."""
    rest = iter(examples)

    def fill(match: re.Match[str]) -> str:
        language, name, body = match.groups()
        if language != "console" or name:
            return match[0]
        lines = []
        for command, shown in read_console(body):
            example = next(rest)
            lines += [f"{_COMMAND}{command}", *(shown if "..." in shown else example.printed)]
        return "```console\n" + "\n".join(lines) + "\n```"

    page.write_text(_BLOCK.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put the outputs into the pages")
    options = parser.parse_args()
    is_fine = True
    for page in options.pages:
        with tempfile.TemporaryDirectory() as folder:
            examples = run_page(page, Path(folder))
        if options.write:
            write_outputs(page, examples)
        for example in examples:
            if example.exit_code or not (options.write or example.is_true):
                is_fine = False
                print(f"{page}: $ {example.command} (exit code {example.exit_code})", *example.printed, sep="\n")
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
