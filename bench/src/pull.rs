//! Measures images: one of 180 MB in three layers, from a registry on loopback until its files are unpacked. buildah
//! creates, pushes and pulls it as well.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use isopod_node::{Node, PoolSize, RegistrySettings, StateRoot};
use isopod_testkit::StateDir;
use isopod_wire::Limits;
use isopod_wire::build::{BuildFrom, BuildSource, BuildSpec};
use isopod_wire::node::NodeApi;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis, times};
use crate::scale::Scale;
use crate::stage::abandon_if_held;

const LAYERS: u64 = 3;
const LAYER_BYTES: u64 = 60_000_000;
/// Images consist of small files. A single library can be larger than a layer here.
const LARGEST_FILE: u64 = 4_000_000;
const NAME: &str = "bench/image:latest";
/// The log line of a build when its image is unpacked.
const UNPACKED: &str = "adding the user of the sandbox";

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    if !is_there("docker-registry") || !is_there("buildah") {
        report.paragraph("Pulling images: not measured, docker-registry and buildah are not both installed");
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let registry = Registry::start(directory.path())?;
    let bytes = push_image(directory.path(), &registry.address)?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for round in 0..scale.streams {
        ours.push(pull(binary, &registry.address).await?);
        peer.push(buildah_pull(&directory.path().join(format!("peer{round}")), &registry.address)?);
    }
    let speed = |taken: Duration| bytes as f64 / 1e6 / taken.as_secs_f64().max(f64::EPSILON);
    let mut table =
        Table::new("Pulling and unpacking an image of 180 MB", &["what", "n", "p50 ms", "MB/s", "beside it", "target"]);
    let beside = format!(
        "buildah {} ms, {:.0} MB/s ({} ours)",
        millis(peer.median()),
        speed(peer.median()),
        times(peer.median(), ours.median())
    );
    table.row(&[
        "pull and unpack",
        &ours.len().to_string(),
        &millis(ours.median()),
        &format!("{:.0}", speed(ours.median())),
        &beside,
        &Bound::AtLeast(150.0).verdict(speed(ours.median())),
    ]);
    report.add(&table);
    Ok(())
}

/// Pulls on a new node, until all layers are unpacked.
async fn pull(binary: &Path, address: &str) -> anyhow::Result<Duration> {
    let state = StateDir::new(binary);
    let mut config = state.node_config(PoolSize::NONE);
    let mirrors = vec![format!("{address}=http://{address}").parse()?];
    config.registries = RegistrySettings { mirrors, ..RegistrySettings::default() };
    let node = Node::open(StateRoot::open(state.path())?, config).await?;
    let from = BuildFrom::Image { reference: format!("{address}/{NAME}"), auth: None };
    let spec = BuildSpec {
        build: "bench".to_owned(),
        source: BuildSource::Steps { from, steps: Vec::new() },
        force: false,
        cache_scope: None,
        allow_host_base: false,
        start_cmd: None,
        ready_cmd: None,
        limits: Limits::default(),
        timeout: Duration::from_secs(600),
    };
    let (sender, mut receiver) = mpsc::channel(64);
    let start = Instant::now();
    let building = NodeApi::build_template(&node, spec, sender, CancellationToken::new());
    let listening = async {
        let mut unpacked = None;
        while let Some(event) = receiver.recv().await {
            if event.message == UNPACKED {
                unpacked = Some(start.elapsed());
            }
        }
        unpacked
    };
    let (built, unpacked) = tokio::join!(building, listening);
    built?;
    node.close().await;
    abandon_if_held(state);
    unpacked.context("the build did not say when the image was unpacked")
}

struct Registry {
    address: String,
    child: Child,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    fn start(directory: &Path) -> anyhow::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let config = directory.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
            directory.join("registry").display()
        );
        fs::write(&config, text)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { address, child: command.spawn().context("docker-registry")? };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&registry.address).is_err() {
            if Instant::now() > deadline {
                bail!("the registry does not listen");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(registry)
    }
}

/// Creates an image from this host's files and pushes it to the registry. Returns its unpacked size.
fn push_image(directory: &Path, address: &str) -> anyhow::Result<u64> {
    let context = directory.join("context");
    let mut files = Vec::new();
    walk(Path::new("/usr/lib"), &mut files);
    walk(Path::new("/usr/share"), &mut files);
    let mut files = files.into_iter();
    let (mut bytes, mut text) = (0, "FROM scratch\n".to_owned());
    for layer in 0..LAYERS {
        let mut filled = 0;
        while filled < LAYER_BYTES {
            let (path, size) = files.next().context("this host has too few files")?;
            let target = context.join(format!("{layer}")).join(path.strip_prefix("/")?);
            fs::create_dir_all(target.parent().context("a file in a directory")?)?;
            fs::copy(&path, &target).with_context(|| path.display().to_string())?;
            filled += size;
        }
        bytes += filled;
        text += &format!("COPY {layer} /\n");
    }
    fs::write(context.join("Dockerfile"), text)?;
    let storage = directory.join("maker");
    let image = format!("{address}/{NAME}");
    run(buildah(&storage).args(["bud", "--layers", "-q", "-t", &image]).arg(&context))?;
    run(buildah(&storage).args(["push", "-q", "--tls-verify=false", &image]))?;
    run(buildah(&storage).args(["rmi", "--all", "--force"]))?;
    fs::remove_dir_all(&context)?;
    Ok(bytes)
}

/// Lists regular files below a directory, with their sizes.
fn walk(directory: &Path, files: &mut Vec<(PathBuf, u64)>) {
    let mut entries: Vec<_> = fs::read_dir(directory).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), files),
            Ok(kind) if kind.is_file() => {
                let sized = entry.metadata().map(|meta| (entry.path(), meta.len()));
                files.extend(sized.into_iter().filter(|(_, size)| *size <= LARGEST_FILE));
            }
            _ => {}
        }
    }
}

fn buildah_pull(storage: &Path, address: &str) -> anyhow::Result<Duration> {
    let start = Instant::now();
    run(buildah(storage).args(["pull", "-q", "--tls-verify=false", &format!("{address}/{NAME}")]))?;
    let taken = start.elapsed();
    run(buildah(storage).args(["rmi", "--all", "--force"]))?;
    Ok(taken)
}

fn buildah(storage: &Path) -> Command {
    let mut command = Command::new("buildah");
    command.arg("--root").arg(storage.join("root")).arg("--runroot").arg(storage.join("run"));
    command.args(["--storage-driver", "overlay"]);
    command
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().context("cannot be started")?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
