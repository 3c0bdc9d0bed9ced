#!/bin/bash
# Installs costgov as a systemd service from this tree. Root only, unless DESTDIR is given.
#   PREFIX   /opt/costgov   holds one virtualenv per install; `venv` points at the one in use
#   PYTHON                  interpreter; default: the first that the service user may run
#   DESTDIR                 stage the files for a package: no user is made, systemd is not touched
#   RELEASE                 name of the virtualenv of this install; default: the moment
#   LINKS    /usr/local     below it `costgov`, its manual and completions are found
#   UNITS    /etc/systemd/system
# pip's own variables choose where the dependencies come from (PIP_NO_INDEX, PIP_FIND_LINKS, ...).
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/opt/costgov}
dest=${DESTDIR:-}
user=costgov
config=$dest/etc/costgov
links=${LINKS:-/usr/local}
units=$dest${UNITS:-/etc/systemd/system}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "make install: $*" >&2
  exit 1
}

make_user() {
  getent passwd "$user" >/dev/null && return
  if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers "$PWD/deploy/systemd/costgov.sysusers"
  else
    useradd --system --user-group --home-dir /var/lib/costgov --no-create-home --shell /usr/sbin/nologin "$user"
  fi
}

# As the service user: a Python below somebody's home works for root and fails at the first start of the service.
runs_as_service() {
  local suits='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
  if [ -n "$dest" ]; then
    "$1" -c "$suits"
  else
    # Through a shell: setpriv itself still holds root's capabilities while it looks for the program.
    (cd / && setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all -- \
      /bin/sh -c 'exec "$@"' sh "$1" -c "$suits")
  fi 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    python=$(command -v "$PYTHON") || fail "PYTHON=$PYTHON does not exist"
    runs_as_service "$python" || fail "user $user cannot run $python as Python 3.11 or newer with venv" \
      "(is it below a home directory?); try PYTHON=/usr/bin/python3"
    return
  fi
  for candidate in /usr/bin/python3 /usr/bin/python3.1[1-9] /usr/local/bin/python3 python3; do
    python=$(command -v "$candidate") && runs_as_service "$python" && return
  done
  fail "found no Python 3.11 or newer with venv that user $user can run;" \
    "apt-get install python3 python3-venv, or set PYTHON=/path/to/python3"
}

# Wheels are built in a copy: a tree that root has built in is no longer its owner's to clean.
build_wheels() {
  mkdir -p "$work/tree/deploy" "$work/wheels"
  cp -R pyproject.toml README.md LICENSE governor trainer_shim "$work/tree"
  cp -R deploy/man "$work/tree/deploy"
  find "$work/tree" \( -name build -o -name '*.egg-info' -o -name __pycache__ \) -prune -exec rm -rf {} +
  "$1" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$work/wheels" \
    "$work/tree/trainer_shim" "$work/tree"
}

# A new virtualenv beside the old one, switched by one rename: an install that fails half-way changes nothing.
install_venv() {
  release=$prefix/releases/${RELEASE:-$(date -u +%Y%m%dT%H%M%SZ)}
  echo "make install: building $release with $python"
  trap 'rm -rf "$work" "$dest$release"' EXIT
  mkdir -p "$dest$prefix/releases"
  chmod 0755 "$dest$prefix" "$dest$prefix/releases"
  "$python" -m venv "$dest$release"
  build_wheels "$dest$release/bin/python"
  "$dest$release/bin/python" -m pip install -qq --disable-pip-version-check "$work"/wheels/*.whl
  if [ -n "$dest" ]; then
    # Scripts name their interpreter, and bytecode its source, by their final place.
    grep -rlIF "$dest$release" "$dest$release/bin" "$dest$release/pyvenv.cfg" | xargs -r sed -i "s|$dest$release|$release|g"
    "$python" -m compileall -qf --invalidation-mode checked-hash -s "$dest" -p / "$dest$release/lib"
  else
    "$release/bin/costgov" --version >/dev/null || fail "the new virtualenv does not work; the old one stays in use"
  fi
  ln -sfn "$release" "$dest$prefix/venv.new"
  mv -T "$dest$prefix/venv.new" "$dest$prefix/venv"
  trap 'rm -rf "$work"' EXIT
  find "$dest$prefix/releases" -mindepth 1 -maxdepth 1 ! -path "$dest$release" -exec rm -rf {} +
}

# Existing configuration is the operator's: it is never written over.
install_config() {
  install -d -m 0755 "$config" "$config/policies.d" "$dest$prefix/share/policies/tests" "$units" "$dest$links/bin"
  install -m 0644 deploy/costgov.toml.example "$dest$prefix/share/costgov.toml.example"
  if [ ! -e "$config/costgov.toml" ]; then
    install -m 0640 deploy/costgov.toml.example "$config/costgov.toml"
    [ -n "$dest" ] || chgrp "$user" "$config/costgov.toml"
  fi
  install -m 0644 policies/*.toml policies/policy.schema.json "$dest$prefix/share/policies/"
  install -m 0644 policies/tests/*.toml "$dest$prefix/share/policies/tests/"
  # Only the default is put in force. The others have ceilings, and those want a price of this node first.
  if [ ! -e "$config/policies.d/default.toml" ]; then
    install -m 0644 policies/default.toml "$config/policies.d/"
  elif ! cmp -s policies/default.toml "$config/policies.d/default.toml"; then
    echo "make install: kept your policies.d/default.toml; the shipped one is in $prefix/share/policies"
  fi
}

# The manual and what completes commands: files below PREFIX, and links where `man` and the shells look.
install_help() {
  local share=$dest$prefix/share shell
  install -D -m 0644 deploy/man/costgov.1 "$share/man/man1/costgov.1"
  mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
  for shell in bash zsh fish; do
    "$dest$release/bin/python" -m governor completion "$shell" > "$work/$shell"
  done
  install -m 0644 "$work/bash" "$share/bash-completion/completions/costgov"
  install -m 0644 "$work/zsh" "$share/zsh/site-functions/_costgov"
  install -m 0644 "$work/fish" "$share/fish/vendor_completions.d/costgov.fish"
  while read -r file; do
    mkdir -p "$(dirname "$dest$links/share/$file")"
    ln -sfn "$prefix/share/$file" "$dest$links/share/$file"
  done < deploy/help_files
}

# For whoever has a Prometheus and a Grafana. Nothing here loads them: they are often on another machine.
install_monitoring() {
  local share=$dest$prefix/share
  install -D -m 0644 deploy/prometheus/costgov.rules.yml "$share/prometheus/costgov.rules.yml"
  install -D -m 0644 deploy/grafana/costgov.json "$share/grafana/costgov.json"
}

install_unit() {
  sed "s|/opt/costgov|$prefix|g" deploy/systemd/costgov.service > "$units/costgov.service"
  chmod 0644 "$units/costgov.service"
  install -D -m 0644 deploy/systemd/costgov.sysusers "$dest/usr/lib/sysusers.d/costgov.conf"
  ln -sfn "$prefix/venv/bin/costgov" "$dest$links/bin/costgov"
}

umask 022
if [ -z "$dest" ]; then
  [ "$(id -u)" = 0 ] || fail "needs root (or DESTDIR to stage the files)"
  # Both would own the same files.
  ! dpkg-query -W -f '${Status}' costgov 2>/dev/null | grep -q ' installed$' \
    || fail "the Debian package costgov is installed here: upgrade that, or apt-get remove costgov first"
  make_user
fi
find_python
install_venv
install_config
install_help
install_monitoring
install_unit
if [ -z "$dest" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart costgov.service
fi
echo "make install: done. Policies to choose from: $prefix/share/policies (copy to /etc/costgov/policies.d)." \
  "Rules for Prometheus and a dashboard for Grafana: $prefix/share." \
  "Edit /etc/costgov/costgov.toml, run 'costgov doctor', then: systemctl enable --now costgov"
