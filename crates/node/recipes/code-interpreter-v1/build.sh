#!/bin/bash
# The template `code-interpreter-v1`. Runs once for each layer, as root, in a sandbox of `base`: with `core`, what it
# leaves behind becomes a layer, and the template is usable; with `more`, in a sandbox that has the core, another one.
# Without an argument it makes everything at once. Lines of `::step n/total text` are its progress.
set -euo pipefail
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
export PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONDONTWRITEBYTECODE=

part=${1:-all}
core() { sed '/^\[more\]/,$d' packages.txt; }
more() { sed '1,/^\[more\]/d' packages.txt; }
all() { sed '/^\[more\]/d' packages.txt; }
mapfile -t packages < <("$part" | grep '^[^#]' | tr -s ' ' '\n')

# A package is a step, so that a slow download shows. How many come with those of the list is known later.
total=$((${#packages[@]} + 5))
done=0
step() { echo "::step $done/$total $1"; done=$((done + 1)); }

# uv downloads and unpacks in parallel, and is much quicker than pip. It does not become part of the template. Where
# the index does not have it, pip does the work.
uv=
find_uv() {
  python3 -m pip install --quiet --retries 1 --no-compile --target uv 'uv>=0.7,<1' >uv.log 2>&1 || return 0
  setting() { python3 -m pip config get "global.$1" 2>/dev/null || true; }
  index=${PIP_INDEX_URL:-$(setting index-url)}
  more=${PIP_EXTRA_INDEX_URL:-$(setting extra-index-url)}
  links=${PIP_FIND_LINKS:-$(setting find-links)}
  hosts=${PIP_TRUSTED_HOST:-$(setting trusted-host)}
  certificates=${SSL_CERT_FILE:-${PIP_CERT:-$(setting cert)}}
  if [ -n "$index" ] && [ -z "${UV_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
  if [ -n "$more" ]; then export UV_INDEX=${UV_INDEX:-$(tr '\n' ' ' <<<"$more")}; fi
  if [ -n "$links" ]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-$(tr -s '\n ' , <<<"$links")}; fi
  if [ -n "$hosts" ]; then export UV_INSECURE_HOST=${UV_INSECURE_HOST:-$(tr '\n' ' ' <<<"$hosts")}; fi
  if [ -n "$certificates" ]; then export SSL_CERT_FILE=$certificates; else export UV_SYSTEM_CERTS=1; fi
  # In the same file system as the packages, which are links to it.
  export UV_CACHE_DIR=/usr/local/.uv-cache UV_LINK_MODE=hardlink UV_INDEX_STRATEGY=unsafe-best-match
  export UV_HTTP_TIMEOUT=${PIP_DEFAULT_TIMEOUT:-60} UV_NO_PROGRESS=1 UV_BREAK_SYSTEM_PACKAGES=1
  uv=$PWD/uv/bin/uv
}

step "Looking for Python"
if ! python3 -m pip --version >/dev/null 2>&1; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends python3 python3-pip python3-venv
fi
python=$(command -v python3)
mapfile -t directories < <(python3 -c 'import sysconfig; print("\n".join({sysconfig.get_path(p) for p in ("purelib", "platlib")}))')

step "Fetching the installer"
find_uv

# What is installed later must not change what was installed earlier.
versions=$(mktemp)
all | grep -v '^#' | grep -oE '[A-Za-z0-9_.-]+==[^ ]+' >"$versions" || true
with_uv() { "$uv" pip "$@" --system --python "$python" --constraint "$versions"; }
install() {
  if [ -n "$uv" ] && with_uv install --quiet "$@"; then return; fi
  python3 -m pip install --quiet --no-compile --constraint "$versions" "$@"
}
index_answers() { python3 -m pip download --quiet --no-deps --dest /tmp/probe six; }

# A version that this Python cannot have gives way to another one, and a package that it cannot have at all is left out.
install_one() {
  local name=${1%%[<>=~!]*}
  step "Installing $name"
  install "$1" && return
  sed -i "/^$name==/d" "$versions"
  install "$name" && return
  index_answers || exit 1
  echo "$name is not available for $(python3 --version)"
}

# Tells how many packages are unpacked, as long as uv runs.
watch_uv() {
  local count before=$1 seen=-1
  while kill -0 "$2" 2>/dev/null; do
    count=$(($(find "$UV_CACHE_DIR/archive-v0" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l) - before))
    if [ "$count" != "$seen" ] && [ "$count" -le "$wanted" ]; then
      seen=$count
      echo "::step $((done + count))/$total Installing packages ($count of $wanted)"
    fi
    sleep 0.5
  done
}

# All at once, which is quickest: uv downloads and unpacks in parallel.
install_all() {
  [ -n "$uv" ] || return
  wanted=$(with_uv install --dry-run "$@" 2>&1 | sed -nE 's/^Would install ([0-9]+) packages?.*/\1/p')
  [ -n "$wanted" ] || return
  total=$((done + wanted + 3))
  local before
  before=$(find "$UV_CACHE_DIR/archive-v0" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)
  with_uv install --quiet "$@" &
  watch_uv "$before" $!
  wait $! || return
  done=$((done + wanted))
}

step "Looking for packages"
done=$((done - 1))
install_all "${packages[@]}" || for package in "${packages[@]}"; do install_one "$package"; done
python3 -c 'import IPython'

# On all cores. Tests are a third of the code of packages, and nobody imports them.
step "Compiling packages"
python3 -m compileall -q -j 0 -x '/tests?/' "${directories[@]}" >/dev/null 2>&1 || true

step "Registering kernels"
if [ "$part" != more ] && command -v deno >/dev/null; then
  # Written by hand: `deno jupyter --install` knows only the home of whoever runs it, which is root here.
  mkdir -p /usr/local/share/jupyter/kernels/deno
  cat >/usr/local/share/jupyter/kernels/deno/kernel.json <<JSON
{"argv": ["$(command -v deno)", "jupyter", "--kernel", "--conn", "{connection_file}"], "display_name": "Deno", "language": "typescript"}
JSON
fi
[ "$part" = more ] || python3 -m bash_kernel.install --sys-prefix >/dev/null 2>&1 || python3 -m bash_kernel.install --prefix /usr/local >/dev/null 2>&1 || true

step "Cleaning up"
apt-get clean || true
rm -rf /usr/local/.uv-cache /var/lib/apt/lists/* /root/.cache /home/user/.cache /var/log/apt /var/log/dpkg.log
echo "::step $total/$total Done"
