#!/usr/bin/env bash
# The flow on a small example: make scored runs, read them into an experience table, pair what is comparable, write it for a trainer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/quickstart}
mkdir -p "$out"
show() { printf '\n$ %s\n' "$*"; "$@"; }

show python "$here/make_runs.py" "$out/runs.jsonl"
show pairwright import "$out/runs.jsonl" -o "$out/experience"
show pairwright experience stats "$out/experience"
show pairwright experience head "$out/experience" -n 2 --where "num_errors > 0"
show pairwright pairs "$out/experience" -o "$out/pairs" --strategy divergence --min-gap 0.2
show pairwright export "$out/pairs" --to trl -o "$out/pairs.jsonl" --overwrite

printf '\nThe torn line is in %s; nothing else was left out.\n' "$out/experience/quarantine.jsonl"
