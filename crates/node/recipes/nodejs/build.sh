#!/bin/bash
# The template `nodejs`: the host's Node.js where `base` has it, and the distribution's where it has none.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
echo "::step 0/1 Looking for Node.js"
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends nodejs npm
  apt-get clean
  rm -rf /var/lib/apt/lists/*
fi
node --version
echo "::step 1/1 Done"
