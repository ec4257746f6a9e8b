//! The OCI image: a small Debian, because sandboxes of the template `base` are made of the files around the program, and the
//! program. The program itself assembles it, with the code that exports templates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::archive::{Entry, tar};
use super::payload::Payload;
use super::scratch::Scratch;
use super::{LICENSE, SUMMARY, VERSION};
use crate::program::{find_program, run};

const SUITE: &str = "trixie";

/// What the server uses (certificates, mkfs.btrfs, venv for the interpreter's template, tini as first process), and what people
/// expect in a sandbox.
const PACKAGES: &str = "btrfs-progs,ca-certificates,curl,git,procps,python3-venv,tini";

/// mmdebstrap copies these from the machine that it runs on. Container runtimes put their own there.
const FORGET_THE_BUILDER: &str = r#"for file in hostname hosts resolv.conf; do : > "$1/etc/$file"; done"#;

const NEEDS: &str = "the OCI image needs mmdebstrap (apt-get install mmdebstrap) and the network";

/// Why the image can't be made here, if so.
pub(super) fn obstacle() -> Option<&'static str> {
    find_program("mmdebstrap").is_none().then_some(NEEDS)
}

pub(super) fn write(payload: &Payload) -> Result<(String, Vec<u8>), String> {
    obstacle().map_or(Ok(()), |needs| Err(needs.to_owned()))?;
    let scratch = Scratch::make("image")?;
    let userland = userland(payload, scratch.path())?;
    let program = saved(scratch.path().join("program.tar"), &tar(&files(payload), payload.time)?)?;
    let config = saved(scratch.path().join("config.json"), config(payload).to_string().as_bytes())?;
    let image = scratch.path().join("image.tar");
    let mut assemble = Command::new(&payload.program_path);
    assemble.args(["assemble-image", "--name", &format!("isopod:{VERSION}"), "--created", &payload.time.to_string()]);
    assemble.arg("--config").arg(config).arg("--output").arg(&image).arg(userland).arg(program);
    run(&mut assemble)?;
    let image = fs::read(&image).map_err(|error| format!("cannot read {}: {error}", image.display()))?;
    Ok((format!("isopod-{VERSION}-oci.tar"), image))
}

/// The lower layer: made now, or kept from before.
fn userland(payload: &Payload, scratch: &Path) -> Result<PathBuf, String> {
    let Some(directory) = &payload.userlands else { return bootstrap(payload, &scratch.join("userland.tar")) };
    let recipe = Sha256::digest([SUITE, PACKAGES, FORGET_THE_BUILDER].join("\n"));
    let kept = directory.join(format!("image-{SUITE}-{}.tar", &hex::encode(recipe)[..16]));
    if !kept.exists() {
        let unfinished = kept.with_extension(format!("{}.tar", std::process::id()));
        bootstrap(payload, &unfinished)?;
        fs::rename(&unfinished, &kept).map_err(|error| format!("cannot keep {}: {error}", kept.display()))?;
    }
    Ok(kept)
}

fn bootstrap(payload: &Payload, archive: &Path) -> Result<PathBuf, String> {
    let mut command = Command::new("mmdebstrap");
    // The same packages give the same archive.
    command.env("SOURCE_DATE_EPOCH", payload.time.to_string());
    command.args(["--variant=minbase", "--skip=output/dev"]).arg(format!("--include={PACKAGES}"));
    command.arg(format!("--customize-hook={FORGET_THE_BUILDER}")).arg(SUITE).arg(archive);
    run(&mut command).map_err(|error| format!("{error}; {NEEDS}"))?;
    Ok(archive.to_owned())
}

/// The upper layer.
fn files(payload: &Payload) -> Vec<Entry> {
    let mut files = vec![
        // Without the devices, which only root could unpack, mmdebstrap leaves out their directory too.
        Entry::directory("dev"),
        Entry::program("usr/bin/isopod", payload.program.clone()),
        Entry::file("usr/share/bash-completion/completions/isopod", payload.bash.clone()),
        Entry::file("usr/share/doc/isopod/copyright", payload.license.clone()),
    ];
    files.extend(payload.criu.iter().flat_map(|criu| criu.entries("usr")));
    files
}

fn config(payload: &Payload) -> Value {
    json!({
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        // The first process of a container must reap what the spawner leaves when it dies.
        "Entrypoint": ["/usr/bin/tini", "--", "/usr/bin/isopod"],
        "Cmd": ["serve"],
        "ExposedPorts": { "3000/tcp": {} },
        // Sandboxes are overlays, which can't be on the overlay of a container.
        "Volumes": { "/var/lib/isopod": {} },
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "isopod",
            "org.opencontainers.image.version": VERSION,
            "org.opencontainers.image.revision": payload.revision,
            "org.opencontainers.image.licenses": LICENSE,
            "org.opencontainers.image.description": SUMMARY,
        },
    })
}

fn saved(path: PathBuf, contents: &[u8]) -> Result<PathBuf, String> {
    fs::write(&path, contents).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}
