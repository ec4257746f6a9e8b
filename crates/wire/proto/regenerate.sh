#!/bin/sh
# Re-creates src/rpc/gen from the .proto files here. Needs protoc on the PATH; users of the crate do not.
# The generator runs as a crate of its own in a temporary directory, so it is no dependency of the workspace.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
cat > "$work/Cargo.toml" <<'TOML'
[package]
name = "regenerate"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
buffa-build = "=0.9.2"
TOML
cat > "$work/src/main.rs" <<'RS'
fn main() {
    let here = std::path::PathBuf::from(std::env::args().nth(1).expect("the proto directory is the first argument"));
    buffa_build::Config::new()
        .files(&[here.join("process.proto"), here.join("filesystem.proto")])
        .includes(&[&here])
        .out_dir(here.join("../src/rpc/gen"))
        .generate_views(false)
        .generate_json(true)
        .generate_text(false)
        .preserve_unknown_fields(false)
        .file_per_package(true)
        .use_bytes_type()
        .unbox_oneof()
        .compile()
        .expect("the proto files compile");
}
RS
cargo run --quiet --manifest-path "$work/Cargo.toml" --target-dir "${CARGO_TARGET_DIR:-$work/target}/regenerate" -- "$here"
rustfmt --edition 2024 --config max_width=120 "$here"/../src/rpc/gen/*.rs
