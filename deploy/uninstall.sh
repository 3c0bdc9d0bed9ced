#!/bin/bash
# Removes what install.sh installed. Configuration, state and the user stay unless PURGE=1. Root only without DESTDIR.
set -euo pipefail

prefix=${PREFIX:-/opt/costgov}
dest=${DESTDIR:-}

if [ -z "$dest" ]; then
  [ "$(id -u)" = 0 ] || { echo "make uninstall: needs root" >&2; exit 1; }
  if [ -d /run/systemd/system ] && [ -e /etc/systemd/system/costgov.service ]; then
    systemctl disable --now --quiet costgov.service
  fi
fi
rm -f "$dest/etc/systemd/system/costgov.service" "$dest/usr/lib/sysusers.d/costgov.conf" "$dest/usr/local/bin/costgov"
# By name: PREFIX may be a directory that holds other things.
rm -rf "$dest$prefix/releases" "$dest$prefix/venv" "$dest$prefix/share/policies"
rm -f "$dest$prefix/share/costgov.toml.example"
# What else is below these folders is not ours.
rm -f "$dest$prefix/share/prometheus/costgov.rules.yml" "$dest$prefix/share/grafana/costgov.json"
rmdir --ignore-fail-on-non-empty "$dest$prefix/share/prometheus" "$dest$prefix/share/grafana" 2>/dev/null || true
while read -r file; do
  rm -f "$dest/usr/local/share/$file" "$dest$prefix/share/$file"
  [ ! -d "$dest$prefix/share/${file%%/*}" ] || find "$dest$prefix/share/${file%%/*}" -depth -type d -empty -delete
done < "$(dirname "$0")/help_files"
rmdir --ignore-fail-on-non-empty "$dest$prefix/share" "$dest$prefix" 2>/dev/null || true
[ -n "$dest" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload

if [ "${PURGE:-}" = 1 ]; then
  while read -r path; do
    rm -rf "$dest${path:?}"
  done < "$(dirname "$0")/purged"
  if [ -z "$dest" ] && getent passwd costgov >/dev/null; then
    userdel costgov
  fi
  echo "make uninstall: removed, with configuration and state"
else
  echo "make uninstall: removed; /etc/costgov and /var/lib/costgov stay (PURGE=1 removes them)"
fi
