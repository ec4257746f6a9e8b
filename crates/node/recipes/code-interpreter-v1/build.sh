#!/bin/bash
# The template `code-interpreter-v1`. Runs once, as root, in a sandbox of `base`; what it leaves behind becomes the
# template's layer. Lines of `::step n/total text` are its progress.
set -euo pipefail
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
export PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONDONTWRITEBYTECODE=

# One line of packages.txt is one step, so that a slow download shows.
mapfile -t groups < <(grep '^[^#]' packages.txt)
total=$((${#groups[@]} + 3))
done=0
step() { echo "::step $done/$total $1"; done=$((done + 1)); }

step "Looking for Python"
if ! python3 -m pip --version >/dev/null 2>&1; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends python3 python3-pip python3-venv
fi

# Later groups must not change what earlier ones installed.
versions=$(mktemp)
printf '%s\n' "${groups[@]}" | grep -oE '[A-Za-z0-9_.-]+==[^ ]+' >"$versions" || true
install() { python3 -m pip install --quiet --constraint "$versions" "$@"; }
index_answers() { python3 -m pip download --quiet --no-deps --dest /tmp/probe six; }

# A version that this Python cannot have gives way to another one, and a package that it cannot have at all is left out.
install_one() {
  local name=${1%%[<>=~!]*}
  install "$1" && return
  sed -i "/^$name==/d" "$versions"
  install "$name" && return
  index_answers || exit 1
  echo "$name is not available for $(python3 --version)"
}

for group in "${groups[@]}"; do
  step "Installing $(sed -E 's/[<>=~!][^ ]*//g' <<<"$group")"
  read -ra packages <<<"$group"
  install "${packages[@]}" || for package in "${packages[@]}"; do install_one "$package"; done
done
python3 -c 'import IPython'

step "Registering kernels"
if command -v deno >/dev/null; then
  # Written by hand: `deno jupyter --install` knows only the home of whoever runs it, which is root here.
  mkdir -p /usr/local/share/jupyter/kernels/deno
  cat >/usr/local/share/jupyter/kernels/deno/kernel.json <<JSON
{"argv": ["$(command -v deno)", "jupyter", "--kernel", "--conn", "{connection_file}"], "display_name": "Deno", "language": "typescript"}
JSON
fi
python3 -m bash_kernel.install --sys-prefix >/dev/null 2>&1 || python3 -m bash_kernel.install --prefix /usr/local >/dev/null 2>&1 || true

step "Cleaning up"
apt-get clean || true
rm -rf /var/lib/apt/lists/* /root/.cache /home/user/.cache /var/log/apt /var/log/dpkg.log
echo "::step $total/$total Done"
