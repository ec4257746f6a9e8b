//! Builds templates: a fully cached rebuild, the overhead of a RUN step, and creates from many layers. buildah, if it
//! is installed, builds the same file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use isopod_node::PoolSize;
use isopod_testkit::spec;
use isopod_wire::Limits;
use isopod_wire::build::{BuildSource, BuildSpec, BuiltTemplate, DockerfileSource};
use isopod_wire::node::{NodeApi, SandboxSpec};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis, times};
use crate::scale::Scale;
use crate::stage::Stage;

const STEPS: u32 = 20;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let context = small_context()?;
    let stage = Stage::open(binary, PoolSize::NONE).await;
    let rounds = (scale.creates / 10).clamp(3, 10);
    // The first build unpacks the archive.
    let (template, _) = build(&stage, context.path(), &dockerfile(STEPS), false).await?;
    let (mut cached, mut step, mut peer) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..rounds {
        cached.push(build(&stage, context.path(), &dockerfile(STEPS), false).await?.1);
        let whole = build(&stage, context.path(), &dockerfile(STEPS), true).await?.1;
        let without = build(&stage, context.path(), &dockerfile(0), true).await?.1;
        step.push(whole.saturating_sub(without) / STEPS);
        if let Some(taken) = buildah(context.path())? {
            peer.push(taken);
        }
    }
    let (base, layered) = creates(&stage, scale, &template.id).await?;
    stage.close().await?;
    report.add(&table(&cached, &step, &peer, &base, &layered));
    Ok(())
}

fn table(cached: &Samples, step: &Samples, peer: &Samples, base: &Samples, layered: &Samples) -> Table {
    let columns = ["build", "n", "p50 ms", "p90 ms", "beside it", "target p50"];
    let mut table = Table::new("Building templates", &columns);
    let mut row = |name: &str, samples: &Samples, beside: String, target: String| {
        let shown = [millis(samples.median()), millis(samples.percentile(90))];
        table.row(&[name, &samples.len().to_string(), &shown[0], &shown[1], &beside, &target]);
    };
    let in_millis = |samples: &Samples| samples.median().as_secs_f64() * 1e3;
    let verdict = Bound::AtMost(300.0).verdict(in_millis(cached));
    row("cached rebuild of 20 steps", cached, String::new(), verdict);
    let verdict = Bound::AtMost(30.0).verdict(in_millis(step));
    let beside = match peer.len() {
        0 => "buildah is not installed".to_owned(),
        _ => format!("buildah {} ({} ours)", millis(peer.median()), times(peer.median(), step.median())),
    };
    row("one RUN step, all in", step, beside, verdict);
    let beside = format!("base {} ({})", millis(base.median()), times(layered.median(), base.median()));
    let ratio = layered.median().as_secs_f64() / base.median().as_secs_f64().max(f64::EPSILON);
    row("create from 20 layers, no pool", layered, beside, format!("× {}", Bound::AtMost(1.3).verdict(ratio)));
    table
}

async fn creates(stage: &Stage, scale: &Scale, template: &str) -> anyhow::Result<(Samples, Samples)> {
    let (mut base, mut layered) = (Samples::default(), Samples::default());
    for _ in 0..scale.creates {
        for (name, samples) in [("base", &mut base), (template, &mut layered)] {
            let start = Instant::now();
            let incarnation = stage.node.create(SandboxSpec { template: name.to_owned(), ..spec() }).await?;
            samples.push(start.elapsed());
            stage.node.kill(&incarnation).await?;
        }
    }
    Ok((base, layered))
}

async fn build(stage: &Stage, context: &Path, text: &str, force: bool) -> anyhow::Result<(BuiltTemplate, Duration)> {
    let spec = BuildSpec {
        build: "bench".to_owned(),
        source: BuildSource::Dockerfile(DockerfileSource {
            context: Some(context.to_owned()),
            name: "Dockerfile".to_owned(),
            text: text.to_owned(),
            args: BTreeMap::new(),
            target: None,
            auth: None,
        }),
        force,
        cache_scope: None,
        allow_host_base: false,
        start_cmd: None,
        ready_cmd: None,
        limits: Limits::default(),
        timeout: Duration::from_secs(600),
    };
    let (sender, mut receiver) = mpsc::channel(64);
    let start = Instant::now();
    let building = NodeApi::build_template(&stage.node, spec, sender, CancellationToken::new());
    let (built, ()) = tokio::join!(building, async { while receiver.recv().await.is_some() {} });
    Ok((built?, start.elapsed()))
}

fn dockerfile(steps: u32) -> String {
    let runs: String = (0..steps).map(|step| format!("RUN echo {step} > /step{step}\n")).collect();
    format!("FROM scratch\nADD system.tar /\n{runs}")
}

/// Returns the time of one RUN step, or `None` without buildah.
fn buildah(context: &Path) -> anyhow::Result<Option<Duration>> {
    let storage = tempfile::tempdir().context("a directory for buildah")?;
    let run = |steps: u32| -> anyhow::Result<Option<Duration>> {
        std::fs::write(context.join("Dockerfile"), dockerfile(steps))?;
        let mut command = Command::new("buildah");
        command.arg("--root").arg(storage.path().join("root")).arg("--runroot").arg(storage.path().join("run"));
        command.args(["--storage-driver", "overlay", "bud", "--layers", "--no-cache", "--isolation", "chroot", "-q"]);
        let start = Instant::now();
        match command.arg(context).stdout(Stdio::null()).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => Ok(Some(start.elapsed())),
            Ok(_) | Err(_) => Ok(None),
        }
    };
    let (Some(whole), Some(without)) = (run(STEPS)?, run(0)?) else { return Ok(None) };
    let removal = Command::new("buildah")
        .arg("--root")
        .arg(storage.path().join("root"))
        .arg("--runroot")
        .arg(storage.path().join("run"))
        .args(["--storage-driver", "overlay", "rmi", "--all", "--force"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    removal.context("buildah could not clean up")?;
    Ok(Some(whole.saturating_sub(without) / STEPS))
}

/// Creates a context with a shell of this host and its libraries, as an archive.
fn small_context() -> anyhow::Result<tempfile::TempDir> {
    let context = tempfile::tempdir()?;
    let root = context.path().join("system");
    for directory in ["bin", "etc", "tmp"] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    let shell = std::fs::canonicalize("/bin/sh")?;
    std::fs::copy(&shell, root.join("bin/sh"))?;
    let libraries = Command::new("ldd").arg(&shell).output().context("ldd")?;
    let text = String::from_utf8_lossy(&libraries.stdout).into_owned();
    for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
        let target = root.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(target.parent().unwrap_or(&root))?;
        std::fs::copy(library, target)?;
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    let archive = context.path().join("system.tar");
    let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(archive).arg(".").status().context("tar")?;
    anyhow::ensure!(packed.success(), "tar failed");
    std::fs::remove_dir_all(&root)?;
    Ok(context)
}
