#!/usr/bin/env bash
# Pins the whole tree: requirements/*.in -> requirements/lock.txt, with hashes, for every Python from 3.11 and platform.
# Arguments go to uv, for example: scripts/lock.sh --upgrade-package nats-py
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp)
trap 'rm -f "$out"' EXIT
# Starts from the present pins, so that only what has to change does.
cp requirements/lock.txt "$out" 2>/dev/null || true
.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url --no-emit-find-links --output-file "$out" "$@" requirements/dev.in
{
    echo "# Made by scripts/lock.sh from requirements/dev.in (which includes base.in). Do not edit."
    sed '/^# Made by/d' "$out"
} > requirements/lock.txt
echo "requirements/lock.txt: $(grep -c '==' requirements/lock.txt) packages"
