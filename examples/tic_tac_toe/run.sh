#!/usr/bin/env bash
# The whole flow on one machine: a model that moves at random, two rounds of self-play, pairs and training, an exam, a report.
# bash run.sh [FOLDER] [SEED]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/tic_tac_toe}
seed=${2:-0}
config="$here/config.yaml"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
show() { printf '\n$ %s\n' "$*"; "$@"; }

show python "$here/prepare.py" "$out" --seed "$seed"
policy="$out/base"
experience=()
for round in 1 2; do
  folder="$out/round-$round"
  show pairwright collect "$config" -o "$folder" "seed=$seed" "policy.model=$policy" "collect.batch=$round"
  experience+=("$folder/experience") # what was seen before counts, too
  show pairwright pairs "${experience[@]}" -o "$folder/pairs" --strategy best-worst --min-gap 0.2 --seed "$seed"
  show pairwright train --config "$config" --pairs "$folder/pairs" --model "$policy" -o "$folder/train" --seed "$seed" \
    "train.reference=$out/base"
  policy="$folder/train/model"
  show pairwright evaluate run "$config" --before "$out/base" --after "$policy" -o "$folder" "seed=$seed" \
    "evaluate.dataset=$out/exam.jsonl"
done
show pairwright report "$out" --title "Tic-tac-toe"
