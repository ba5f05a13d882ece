#!/usr/bin/env bash
# Everything that is known about the tree without running it: style, types, who imports whom, generated files.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()
step() {
    local name=$1
    shift
    local started=$SECONDS
    if "$@" > "$log" 2>&1; then
        printf 'check: %s passed (%s s)\n' "$name" "$((SECONDS - started))"
    else
        cat "$log"
        printf 'check: %s FAILED\n' "$name"
        failed+=("$name")
    fi
}

no_namespace_init() {
    # One railweave/__init__.py would hide the other parts of the namespace.
    local found
    found=$(find contracts services tests -path '*src/railweave/__init__.py')
    [ -z "$found" ] || { echo "the namespace package must not have an __init__.py: $found"; return 1; }
}

step lint ruff check --quiet .
step format ruff format --check --quiet .
step types mypy
step imports lint-imports --no-cache
step namespace no_namespace_init
step schemas python -m railweave.contracts.generate --check
step commands python -m railweave.cli.reference --check
step settings python -m railweave.cli.settings_page --check
if [ ${#failed[@]} -gt 0 ]; then
    printf 'checks that failed: %s\n' "${failed[*]}" >&2
    exit 1
fi
