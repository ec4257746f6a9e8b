//! What tests of builds have in common: specs, contexts, archives, and running a build to its end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]
#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod registry;
pub(crate) mod web;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isopod_node::Node;
use isopod_testkit::Platform;
use isopod_wire::Limits;
use isopod_wire::build::{
    BuildError, BuildEvent, BuildFrom, BuildInstruction, BuildSource, BuildSpec, BuildStep, BuiltTemplate,
    DockerfileSource,
};
use isopod_wire::node::NodeApi;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) type Outcome = (Result<BuiltTemplate, BuildError>, Vec<BuildEvent>);

fn spec(source: BuildSource) -> BuildSpec {
    BuildSpec {
        build: "test".to_owned(),
        source,
        force: false,
        cache_scope: None,
        allow_host_base: false,
        start_cmd: None,
        ready_cmd: None,
        limits: Limits::default(),
        timeout: Duration::from_secs(300),
    }
}

pub(crate) fn dockerfile(text: &str, context: Option<&Path>) -> BuildSpec {
    spec(BuildSource::Dockerfile(DockerfileSource {
        context: context.map(Path::to_owned),
        name: "e2b.Dockerfile".to_owned(),
        text: text.to_owned(),
        args: BTreeMap::new(),
        target: None,
        auth: None,
    }))
}

pub(crate) fn steps(image: &str, list: Vec<BuildInstruction>) -> BuildSpec {
    steps_from(BuildFrom::Image { reference: image.to_owned(), auth: None }, list)
}

pub(crate) fn steps_on(template: &str, list: Vec<BuildInstruction>) -> BuildSpec {
    steps_from(BuildFrom::Template(template.to_owned()), list)
}

pub(crate) fn steps_from(from: BuildFrom, list: Vec<BuildInstruction>) -> BuildSpec {
    let steps = list.into_iter().map(|instruction| BuildStep { instruction, force: false }).collect();
    spec(BuildSource::Steps { from, steps })
}

pub(crate) fn run(command: &str) -> BuildInstruction {
    BuildInstruction::Run { command: command.to_owned(), user: None }
}

pub(crate) fn user(name: &str, can_sudo: bool) -> BuildInstruction {
    BuildInstruction::User { name: name.to_owned(), can_sudo }
}

/// A directory with these files, and its path.
pub(crate) fn context(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let path = directory.path().to_owned();
    (directory, path)
}

/// An archive of these files, as an SDK uploads it.
pub(crate) fn archive(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let (directory, path) = context(files);
    let tar = path.join("upload.tar.gz");
    let names: std::collections::BTreeSet<&str> = files.iter().filter_map(|(name, _)| name.split('/').next()).collect();
    let done = std::process::Command::new("tar").arg("-czf").arg(&tar).arg("-C").arg(&path).args(names).status();
    assert!(done.unwrap().success());
    (directory, tar)
}

pub(crate) async fn try_build_on(node: &Node, spec: BuildSpec) -> Outcome {
    let (sender, mut receiver) = mpsc::channel(16);
    let reading = async {
        let mut events = Vec::new();
        while let Some(event) = receiver.recv().await {
            events.push(event);
        }
        events
    };
    tokio::join!(NodeApi::build_template(node, spec, sender, CancellationToken::new()), reading)
}

pub(crate) async fn try_build(platform: &Platform, spec: BuildSpec) -> Outcome {
    try_build_on(&platform.node, spec).await
}

pub(crate) async fn build_on(node: &Node, spec: BuildSpec) -> (BuiltTemplate, Vec<BuildEvent>) {
    let (built, events) = try_build_on(node, spec).await;
    (built.unwrap_or_else(|error| panic!("{error}: {:#?}", messages(&events))), events)
}

pub(crate) async fn build(platform: &Platform, spec: BuildSpec) -> (BuiltTemplate, Vec<BuildEvent>) {
    build_on(&platform.node, spec).await
}

pub(crate) fn messages(events: &[BuildEvent]) -> Vec<String> {
    events.iter().map(|event| event.message.clone()).collect()
}
