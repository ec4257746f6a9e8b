#!/bin/bash
# The template `nodejs`: the host's Node.js where `base` has it, and the distribution's where it has none. The code
# interpreter's driver is written in Python.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
echo "::step 0/1 Looking for Node.js"
missing=()
{ command -v node && command -v npm; } >/dev/null || missing+=(nodejs npm)
[ -x /usr/bin/python3 ] || missing+=(python3)
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
  apt-get clean
  rm -rf /var/lib/apt/lists/*
fi
node --version
echo "::step 1/1 Done"
