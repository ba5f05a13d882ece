#!/usr/bin/env bash
# `railweave bench replay` of a trace in RAILWEAVE_DATA: tests/bench/replay.sh FILE [OPTION...]. Traces are not in the
# tree: where they are missing it says where they come from, and passes.
set -euo pipefail
cd "$(dirname "$0")/../.."
export RAILWEAVE_DATA=${RAILWEAVE_DATA:-../shared/data}
if [ ! -f "$RAILWEAVE_DATA/$1" ]; then
    echo "SKIPPED: no $RAILWEAVE_DATA/$1. Set RAILWEAVE_DATA to a folder with openb/ (alibaba/clusterdata)," \
        "cache/ (stanford-futuredata/gavel) and topology/ (NVIDIA/topograph)."
    exit 0
fi
exec .venv/bin/railweave bench replay "$@"
