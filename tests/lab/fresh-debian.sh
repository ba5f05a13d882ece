#!/usr/bin/env bash
# Runs make targets of the committed tree on a bare Debian: python3, make and nothing else, in a root of its own.
#   tests/lab/fresh-debian.sh [SUITE] [TARGET...]      SUITE: bookworm (default), trixie; TARGET: set-up (default), demo, ...
# Needs root, debootstrap, and the mirror of this machine's own apt. KEEP=DIR keeps the root there for the next run.
set -euo pipefail
cd "$(dirname "$0")/../.."
tree=$PWD
suite=${1:-bookworm}
shift || true
[ $# -gt 0 ] || set -- set-up

[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
command -v debootstrap > /dev/null || { echo "needs debootstrap: apt-get install debootstrap" >&2; exit 1; }
mirror=$(grep -hoE 'https?://[^ ]+/debian/?( |$)' -r /etc/apt/sources.list /etc/apt/sources.list.d 2> /dev/null | head -n 1 | tr -d ' ' || true)
[ -n "$mirror" ] || { echo "no Debian mirror in this machine's apt sources" >&2; exit 1; }

root=${KEEP:-$(mktemp -d)}
[ -n "${KEEP:-}" ] || trap 'rm -rf --one-file-system "$root"' EXIT
if [ ! -e "$root/etc/debian_version" ]; then
    debootstrap --variant=minbase --include=python3,make,ca-certificates "$suite" "$root" "$mirror" > "$root.log" 2>&1 \
        || { tail "$root.log" >&2; exit 1; }
    rm -f "$root.log"
fi
# What this machine needs to reach its package sources, it needs in there.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2> /dev/null || true
rm -rf "$root/root/tree"
git clone --quiet "$tree" "$root/root/tree"

# A mount namespace of its own: the mounts go away with it, also when this is killed.
unshare --mount --propagation slave bash -euo pipefail -c '
    root=$1
    shift
    for kind in proc sys dev; do mount --rbind "/$kind" "$root/$kind"; done
    exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" \
        PIP_CERT=/etc/ssl/certs/ca-certificates.crt bash -c "cd /root/tree && time make \"\$@\"" make "$@"
' bash "$root" "$@"
