#!/usr/bin/env bash
# Runs the stages of a file one after the other, all of them also when one fails: scripts/stages.sh FILE [NAME...]
# A line of the file is: NAME BUDGET_SECONDS COMMAND. Given names, it runs those only.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { echo "usage: $0 FILE [NAME...]" >&2; exit 2; }
file=$1
shift

if [ -z "${STAGE_RESULTS:-}" ]; then
    export STAGE_RESULTS="$PWD/.make/stages.tsv"
    rm -f "$STAGE_RESULTS"
fi
export PATH="$PWD/.venv/bin:$PATH"
failed=() ran=0
# File descriptor 3: a command that reads its standard input would eat the rest of the list.
while read -r name budget command <&3; do
    case $name in '' | '#'*) continue ;; esac
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    ran=$((ran + 1))
    scripts/stage.sh "$name" "$budget" bash -c "$command" 3<&- || failed+=("$name")
done 3< "$file"

[ "$ran" -gt 0 ] || { echo "no such stage in $file: $*" >&2; exit 2; }
if [ ${#failed[@]} -gt 0 ]; then
    printf 'stages that failed: %s\n' "${failed[*]}" >&2
    exit 1
fi
