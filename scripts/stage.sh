#!/usr/bin/env bash
# Runs one named stage under a time budget: scripts/stage.sh NAME BUDGET_SECONDS COMMAND [ARGUMENT...]
# Says how long it took, and fails by name when the command fails or is past its budget (status 124).
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: $0 NAME BUDGET_SECONDS COMMAND [ARGUMENT...]" >&2; exit 2; }
name=$1 budget=$2
shift 2

results=${STAGE_RESULTS:-.make/stages.tsv}
mkdir -p "$(dirname "$results")"
printf '== %s (at most %s s)\n' "$name" "$budget"

# In the background of a terminal `timeout` ends the command with all its children; in the foreground it must leave the
# terminal's Ctrl-C to the command.
# SIGINT, since pytest then takes its fixtures down (network namespaces, servers) and says how far it came.
options=(--signal=INT --kill-after=20)
[ -t 0 ] && options+=(--foreground)
started=$(date +%s%N)
status=0
timeout "${options[@]}" "$budget" "$@" || status=$?
took=$(((($(date +%s%N) - started) + 50000000) / 100000000))
took=$((took / 10)).$((took % 10))

# 124: ended by the signal at its budget; 137: it did not heed that and was killed.
if [ "$status" = 124 ] || { [ "$status" = 137 ] && [ "${took%.*}" -ge "$budget" ]; }; then
    verdict="PAST ITS BUDGET of $budget s"
    status=124
elif [ "$status" != 0 ]; then
    verdict="FAILED with status $status"
else
    verdict="passed"
fi
printf '%s\t%s\t%s\t%s\n' "$name" "$took" "$budget" "$verdict" >> "$results"
printf '== %s: %s after %s s\n' "$name" "$verdict" "$took"
exit "$status"
