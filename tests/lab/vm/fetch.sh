#!/usr/bin/env bash
# Gets what the virtual machine is made of into a directory: QEMU with its libraries, a Debian kernel with its modules, and
# busybox. Debian packages, unpacked there and not installed: the host stays as it is. Takes no time when all is there.
#   tests/lab/vm/fetch.sh DIRECTORY
# QEMU is that of backports (igb, a network card with SR-IOV, came with 8.0), the kernel that of the suite itself.
set -euo pipefail
directory=$(mkdir -p "$1" && cd "$1" && pwd)
self=$(readlink -f "$0")

say() { printf 'vm: %s\n' "$*" >&2; }
fail() { say "$@"; exit 69; }

# shellcheck source=/dev/null
. /etc/os-release
[ "${ID:-}" = debian ] && [ "$(dpkg --print-architecture)" = amd64 ] || fail "needs Debian on amd64, this is ${PRETTY_NAME:-unknown}"
suite=$VERSION_CODENAME

exec 9> "$directory/lock"
flock 9
stamp="$suite $(sha256sum < "$self")"
[ "$(cat "$directory/stamp" 2> /dev/null)" != "$stamp" ] || exit 0
started=$SECONDS

# The mirrors of this machine's own apt, and no third party's: one of theirs that is down must not stop us.
mirror() {
    local line
    line=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null \
        | grep -v '^ *#' | grep -oE 'https?://[^ ]+/'"$1"'/?( |$)' | head -n 1 || true)
    printf '%s' "${line%% *}"
}
main=$(mirror debian)
security=$(mirror debian-security)
[ -n "$main" ] || fail "no Debian mirror in this machine's apt sources"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt downloads as a user of its own
mkdir -p "$work"/lists/partial "$work"/cache/archives/partial "$work"/debs
chown -R _apt "$work" 2> /dev/null || true
signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
{
    for of in "$suite" "$suite-updates" "$suite-backports"; do echo "deb $signed $main $of main"; done
    [ -z "$security" ] || echo "deb $signed $security $suite-security main"
} > "$work/sources.list"
private=(-qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o Debug::NoLocking=1)
try() { "$@" > "$directory/fetch.log" 2>&1 < /dev/null || { tail -n 5 "$directory/fetch.log" >&2; fail "$1 failed ($directory/fetch.log)"; }; }

say "fetching QEMU and a kernel (about 100 MB)"
try apt-get "${private[@]}" update
# What this machine has already is not fetched: those libraries are the host's.
try apt-get "${private[@]}" -y --download-only --no-install-recommends -t "$suite-backports" install qemu-system-x86
kernel=$(apt-cache "${private[@]}" depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
[ -n "$kernel" ] || fail "no linux-image-amd64 in $main $suite"
cd "$work/debs"
try apt-get "${private[@]}" download "$kernel" busybox-static
size=$(cat "$work"/debs/*.deb "$work"/cache/archives/*.deb | wc -c)

rm -rf "$directory"/{qemu,kernel,busybox,stamp}
mkdir -p "$directory"/{qemu,kernel}
for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$directory/qemu"; done
dpkg-deb --fsys-tarfile "$work"/debs/busybox-static_*.deb | tar -xO ./bin/busybox > "$directory/busybox"
chmod 755 "$directory/busybox"
# Without what no test of a network asks for: three quarters of the modules' size.
without=(sound drivers/{gpu,media,staging,scsi,usb,iio,input,hid,hwmon,mtd,ata,platform,bluetooth,isdn,message} drivers/net/wireless)
dpkg-deb --fsys-tarfile "$work"/debs/linux-image-*.deb \
    | tar -x -C "$directory/kernel" --wildcards "${without[@]/#/--exclude=*/kernel/}" './boot/vmlinuz-*' './lib/modules/*'
version=$(basename "$directory"/kernel/lib/modules/*)
"$directory/busybox" depmod -b "$directory/kernel" "$version"
echo "$stamp" > "$directory/stamp"
say "fetched $((size / 1000000)) MB, kernel $version; $(du -sm "$directory" | cut -f1) MB unpacked; $((SECONDS - started)) s"
