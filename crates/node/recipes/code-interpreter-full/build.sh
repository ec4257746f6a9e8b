#!/bin/bash
# The template `code-interpreter-full`: everything of `code-interpreter-v1`, whose script comes with this one, and then R
# and Java. Runs like that one.
set -euo pipefail
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive

steps=4
done=0
total=0

# Runs the other script. Its steps come first, and count as steps of this one.
while IFS= read -r line; do
  if [[ $line =~ ^::step\ ([0-9]+)/([0-9]+)\ (.*)$ ]]; then
    done=${BASH_REMATCH[1]}
    total=$((BASH_REMATCH[2] + steps))
    # Its last line says that it is done, and this one is not.
    [ "$done" = "${BASH_REMATCH[2]}" ] || echo "::step $done/$total ${BASH_REMATCH[3]}"
  else
    printf '%s\n' "$line"
  fi
done < <(bash code-interpreter-v1.sh 2>&1 || echo "::failed $?" >code-interpreter-v1.failed)
if [ -e code-interpreter-v1.failed ]; then exit 1; fi
step() { echo "::step $done/$total $1"; done=$((done + 1)); }

step "Looking for R and Java"
apt-get update -qq

# A font, or plots have no text.
step "Installing R"
apt-get install -y -qq --no-install-recommends r-base-core r-recommended r-cran-irkernel fonts-dejavu-core

# The driver has the kernel for Java. The compiler is part of it, so a runtime is not enough.
step "Installing Java"
if ! command -v jshell >/dev/null; then
  # Some packages of the JDK expect this directory, which small images leave out.
  mkdir -p /usr/share/man/man1
  apt-get install -y -qq --no-install-recommends default-jdk-headless
fi

step "Cleaning up"
Rscript -e 'stopifnot(requireNamespace("IRkernel"))' >/dev/null
java --list-modules | grep -q '^jdk.jshell@'
apt-get clean || true
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
echo "::step $total/$total Done"
