"""`make bench`, or `python -m bench [NAME ...]`: run benchmarks and print Markdown tables for docs/benchmarks.md."""

import sys

from bench import house, importing, pairs, records, scoring, table, templates

BENCHMARKS = {
    "records": records.main,
    "table": table.main,
    "import": importing.main,
    "pairs": pairs.main,
    "scoring": scoring.main,
    "house": house.main,
}


def main() -> None:
    if sys.argv[1:2] == ["templates"]:
        templates.main()
        return
    if sys.argv[1:2] == ["faults"]:
        from bench import faults

        faults.main()
        return
    if sys.argv[1:2] == ["clients"]:
        from bench import clients

        clients.main()
        return
    if sys.argv[1:2] == ["law"]:
        from bench import law  # needs transformers

        law.main()
        return
    names = sys.argv[1:] or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"bench: no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
