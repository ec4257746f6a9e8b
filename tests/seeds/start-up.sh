#!/bin/bash
# The start-up script of a template as the fourth seed describes it: it mounts the bucket with goofys, unless that is done
# already, checks that the files can be written, and finds the Python packages that the agent's code needs.

base=${STORAGE_BASE_PATH:-/opt/sentient}
bucket=${S3_BUCKET:-${ROMA_S3_BUCKET:-$S3_BUCKET_NAME}}

say() {
    echo "start-up: $*"
}

# At the path, or at one below it.
is_mounted() {
    mountpoint -q "$base" || mount | grep -q " on $base"
}

mount_bucket() {
    if [ -z "$bucket" ]; then
        say "no bucket"
        return
    fi
    if is_mounted; then
        say "already mounted: $base"
        return
    fi
    mkdir -p "$base"
    goofys --region "${AWS_REGION:-us-east-1}" --stat-cache-ttl 1s --type-cache-ttl 1s \
        --dir-mode 0777 --file-mode 0666 "$bucket" "$base" || exit 1
    say "mounted: $bucket"
}

check_write() {
    local place="$base/executions/$EXECUTION_ID"
    local probe="$place/.e2b_test_$(date +%s)"
    timeout 5 ls "$place" > /dev/null || exit 1
    echo test > "$probe" && rm "$probe" || exit 1
    say "can write: $place"
}

mount_bucket
if is_mounted; then
    check_write
fi
python3 -c 'import json, urllib.request' || exit 1
say "ready"
