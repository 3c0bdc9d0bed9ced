#!/bin/bash
# Builds dist/costgov_VERSION-REVISION_ARCH.deb from what deploy/install.sh stages. On the Debian release it is meant
# for: compiled wheels and the virtualenv belong to one minor version of Python.
#   REVISION  1      of the package, for another build of one version
#   OUT       dist   where the package is written
# pip's own variables choose where the dependencies come from. Plain dpkg-deb: install.sh stages every file already, so
# nfpm's list of files and dh-virtualenv's debhelper would each say a second time what is installed where.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "make deb: $*" >&2
  exit 1
}

command -v dpkg-deb >/dev/null || fail "needs dpkg-deb: build on Debian or Ubuntu"
python=$(readlink -f /usr/bin/python3) || fail "needs Debian's Python: apt-get install python3 python3-venv"
dpkg-query -S "$python" >/dev/null 2>&1 || fail "$python is of no Debian package, so none can be depended on"
interpreter=$(basename "$python")

version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')-${REVISION:-1}
arch=$(dpkg --print-architecture)
out=${OUT:-dist}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y pyproject.toml)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
umask 022
mkdir -p "$stage/DEBIAN" "$out"

# What a package ships is one known set, and not what an index has today.
export PIP_CONSTRAINT=${PIP_CONSTRAINT:-$PWD/deploy/constraints.txt}
PIP_NO_COMPILE=1 DESTDIR=$stage PREFIX=/opt/costgov RELEASE=$version LINKS=/usr UNITS=/usr/lib/systemd/system PYTHON=$python \
  deploy/install.sh >/dev/null

docs=$stage/usr/share/doc/costgov
mkdir -p "$docs" "$stage/usr/share/lintian/overrides"
install -m 0644 deploy/deb/copyright "$docs/copyright"
gzip -9n < CHANGELOG.md > "$docs/changelog.gz"
{
  printf 'costgov (%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n' "$version"
  printf ' -- %s  %s\n' "$(sed -n 's/^Maintainer: //p' deploy/deb/control)" "$(date -uRd "@$SOURCE_DATE_EPOCH")"
} | gzip -9n > "$docs/changelog.Debian.gz"
install -m 0644 deploy/deb/lintian-overrides "$stage/usr/share/lintian/overrides/costgov"
# Debian's manuals are compressed, and whoever looks for one finds either.
rm "$stage/usr/share/man/man1/costgov.1"
gzip -9n < deploy/man/costgov.1 > "$stage/usr/share/man/man1/costgov.1.gz"
# Debian's zsh looks there, and not in site-functions.
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"

# The operator's: dpkg keeps what was changed, and asks.
(cd "$stage" && find etc -type f -printf '/%p\n' | LC_ALL=C sort) > "$stage/DEBIAN/conffiles"
sed -e "s|@VERSION@|$version|; s|@ARCH@|$arch|; s|@PYTHON@|$interpreter|" \
  -e "s|@SIZE@|$(du -sk --apparent-size --exclude=DEBIAN "$stage" | cut -f1)|" deploy/deb/control > "$stage/DEBIAN/control"
purged=$(tr '\n' ' ' < deploy/purged)
for script in preinst postinst prerm postrm; do
  sed -e "s|@PURGED@|${purged% }|" "deploy/deb/scripts/$script" > "$stage/DEBIAN/$script"
  chmod 0755 "$stage/DEBIAN/$script"
done
(cd "$stage" && find opt usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) > "$stage/DEBIAN/md5sums"

package=$out/costgov_${version}_$arch.deb
# xz would take 20 to 30 s of processor for 6 MB less; lintian knows no zstd.
dpkg-deb --root-owner-group -Zgzip -z6 --build "$stage" "$package" >/dev/null
echo "make deb: $package, for a system with $interpreter"
