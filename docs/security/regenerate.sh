#!/bin/sh
# Runs the escape suite and writes docs/security/escape-suite.md from what it saw. Needs root, gives the suite's exit code.
set -u
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
rows=$target/tmp/escape-table
page=docs/security/escape-suite.md
# The cases of saved memory need it, and their part of the page would be missing without it.
: "${ISOPOD_CRIU:=$HOME/.cache/isopod/tools/criu/criu}"
export ISOPOD_CRIU
[ -x "$ISOPOD_CRIU" ] || { echo "there is no CRIU at $ISOPOD_CRIU; cargo xtask setup builds it" >&2; exit 1; }

rm -rf "$rows"
# The tests compare what they try with the page otherwise.
ISOPOD_WRITE_DOCS=1 cargo test -p isopod --test escape
result=$?
# A suite that did not even start says nothing about sandboxes: the old page stays.
[ -d "$rows" ] || exit $result

{
    cat <<'HEAD'
# Escape suite

<!-- Written by docs/security/regenerate.sh from a run of `cargo test -p isopod --test escape`. Do not edit. -->

Every attack below ran in a real sandbox, as its `user` (uid 1000) and as its root, with a second sandbox beside it. After each
case, both sandboxes and the node still had to work, and after each test nothing could be left on the host.
"Both" stands for attacks that come from a template or from outside, before the sandbox has users. An error name is what the
attacker got.

HEAD
    printf 'Kernel %s, %s attempts, %s cases, %s.\n' "$(uname -r | cut -d- -f1)" "$(cat "$rows"/*.tsv | wc -l)" \
        "$(ls "$rows" | wc -l)" "$([ $result = 0 ] && echo 'all held off' || echo 'SOME FAILED')"
    sort -s -t "$(printf '\t')" -k1,1n "$rows"/*.tsv | awk -F '\t' '
        $1 != case { flush_rows(); case = $1; printf "\n## %s\n\n| attack | as user | as root |\n|---|---|---|\n", case }
        {
            if (!($2 in seen)) { order[++count] = $2; seen[$2] = 1 }
            if ($3 == "user" || $3 == "both") user[$2] = $4
            if ($3 == "root" || $3 == "both") root[$2] = $4
        }
        END { flush_rows() }
        function flush_rows(   i, name) {
            for (i = 1; i <= count; i++) {
                name = order[i]
                printf "| %s | %s | %s |\n", name, (name in user) ? user[name] : "–", (name in root) ? root[name] : "–"
            }
            count = 0; split("", order); split("", seen); split("", user); split("", root)
        }'
} > "$page.new"
mv "$page.new" "$page"
exit $result
