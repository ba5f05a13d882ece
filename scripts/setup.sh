#!/usr/bin/env bash
# Makes the tree usable: .venv with everything the lock pins and the parts as editable installs, and, as root on Debian
# or Ubuntu, the few system packages that are missing. Can be run again at any time; takes no time when nothing changed.
#
#   PYTHON=python3.12 scripts/setup.sh     choose the interpreter (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PARTS=(contracts services/runtime services/jobs services/topology services/nic services/gpu services/cache
    services/node-agent services/cli tests/support)
readonly STAMP=.venv/railweave.stamp
PYTHON=${PYTHON:-python3}

say() { printf 'set-up: %s\n' "$*"; }
fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

missing_system_packages() {
    command -v ip > /dev/null || echo iproute2
    command -v ping > /dev/null || echo iputils-ping
    # Debian's python3 comes without the module that puts pip into a virtual environment.
    [ -e .venv/bin/python ] || "$PYTHON" -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv
}

install_system_packages() {
    local missing
    missing=$(missing_system_packages | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        case $missing in *python3-venv*)
            fail "$PYTHON cannot make a virtual environment. As root: apt-get install python3-venv (or set PYTHON)" ;;
        esac
        say "not installed: $missing(needs root and apt-get). What makes network namespaces is skipped."
        return 0
    fi
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    # Word splitting is wanted: one argument a package.
    # shellcheck disable=SC2086
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing; } > .make/apt.log 2>&1 < /dev/null || {
        tail -n 5 .make/apt.log >&2
        case $missing in *python3-venv*) fail "apt-get could not install $missing(.make/apt.log)" ;; esac
        say "apt-get could not install $missing(.make/apt.log). What needs them is skipped."
    }
}

# What an existing .venv was made from: when it is the same there is nothing to do.
state() {
    {
        pwd
        "$PYTHON" -c 'import sys; print(sys.version)'
        cat requirements/lock.txt
        for part in "${PARTS[@]}"; do cat "$part/pyproject.toml"; done
    } | sha256sum | cut -d' ' -f1
}

# A virtual environment of another Python, or of a tree that was moved, cannot be mended.
is_usable() {
    [ -x .venv/bin/python ] || return 1
    [ "$(.venv/bin/python -c 'import sys; print(sys.version)' 2> /dev/null)" = "$("$PYTHON" -c 'import sys; print(sys.version)')" ] || return 1
    head -n 3 .venv/bin/pip 2> /dev/null | grep -qF "$PWD/.venv/bin/python"
}

make_venv() {
    if ! is_usable; then
        say "making .venv with $("$PYTHON" --version)"
        rm -rf .venv
        "$PYTHON" -m venv .venv
    fi
    local pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input -qq)
    say "installing what requirements/lock.txt pins"
    "${pip[@]}" install --require-hashes --requirement requirements/lock.txt
    say "installing the parts, editable"
    local editable=()
    for part in "${PARTS[@]}"; do editable+=(--editable "$part"); done
    "${pip[@]}" install --no-deps --no-build-isolation "${editable[@]}"
}

command -v "$PYTHON" > /dev/null || fail "no $PYTHON on PATH: install Python 3.11 or later, or set PYTHON"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "$PYTHON is $("$PYTHON" --version); Python 3.11 or later is needed: set PYTHON"

mkdir -p .make
# Two `make` at once would install into the same place.
exec 9> .make/setup.lock
flock 9
started=$SECONDS
install_system_packages
wanted=$(state)
if [ "$(cat "$STAMP" 2> /dev/null)" = "$wanted" ] && is_usable; then
    exit 0
fi
rm -f "$STAMP"
make_venv
echo "$wanted" > "$STAMP"
say "done in $((SECONDS - started)) s"
