//! Writes a built template as an image: an OCI layout in a tar archive.
//!
//! Layers are stored with the ids that they have in a sandbox, and those are the ids of an image.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _};
use std::path::Path;

use isopod_image::layout::Layout;
use isopod_image::pack::{Below, PackError, pack};
use isopod_image::unpack::{Bounds, Quota};
use isopod_image::{Digest, EmptyObject, Reference, RunConfig};
use isopod_wire::build::{BuiltTemplate, ExportError, ExportSpec, ExportedImage};

use super::TemplateBuilder;
use super::step_error::chain;
use super::work::Work;
use crate::template::{Container, Layer, LayerError, Manifest, ManifestError, Scratch};

impl TemplateBuilder {
    /// See [`isopod_wire::node::NodeApi::export_template`].
    pub(crate) async fn export(&self, templates: &Path, spec: ExportSpec) -> Result<ExportedImage, ExportError> {
        let name: Reference = spec
            .name
            .parse()
            .map_err(|error| ExportError::Name(format!("{:?} cannot be the name of an image: {error}", spec.name)))?;
        let manifest = exportable(templates, &spec)?;
        let failed = |source: BoxError| ExportError::Failed { id: spec.template.clone(), source };
        let open = |id: &String| Layer::open(templates, id);
        // They stay locked until the archive is complete.
        let layers: Vec<Layer> = manifest
            .template
            .layers
            .iter()
            .map(open)
            .collect::<Result<_, _>>()
            .map_err(|error| failed(error.into()))?;
        // Dropped if the caller stops waiting, which stops the thread.
        let work = Work::new(templates);
        let quota = work.quota(Bounds::default());
        let place = self.locks.unpacking().await;
        let templates = templates.to_owned();
        let written = tokio::task::spawn_blocking(move || {
            let _place = place;
            let file = nameless_file(&templates)?;
            write(file, &name, &layers, manifest, spec.squash, &quota)
        });
        let written = written.await.map_err(|error| failed(error.into()))?;
        written.map_err(|error| match error {
            WriteError::Pack(error @ PackError::Entry { .. }) => failed(error.into()),
            WriteError::Pack(error) => ExportError::Files(chain(&error)),
            WriteError::File(error) => failed(error.into()),
            WriteError::Layer(error) => failed(error.into()),
        })
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why an archive was not written.
#[derive(Debug)]
enum WriteError {
    Pack(PackError),
    File(io::Error),
    Layer(LayerError),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// The manifest of a template, if its layers are a whole system that the caller may have.
fn exportable(templates: &Path, spec: &ExportSpec) -> Result<Manifest, ExportError> {
    let manifest = Manifest::load(templates, &spec.template).map_err(|error| match error {
        ManifestError::Missing(id) => ExportError::NotFound(id),
        other => ExportError::Failed { id: spec.template.clone(), source: other.into() },
    })?;
    if manifest.on_host {
        return Err(ExportError::OnHost);
    }
    if manifest.has_others_layers && !spec.squash {
        return Err(ExportError::OtherTeamsLayers);
    }
    Ok(manifest)
}

/// A file next to the layers, whose space is counted there and which is gone when it is closed.
fn nameless_file(templates: &Path) -> Result<File, WriteError> {
    let scratch = Scratch::unique(templates, "export").map_err(WriteError::Layer)?;
    let path = scratch.path().join("image.tar");
    Ok(OpenOptions::new().read(true).write(true).create_new(true).open(path)?)
}

/// `layers` are lowest first.
fn write(
    file: File,
    name: &Reference,
    layers: &[Layer],
    manifest: Manifest,
    squash: bool,
    quota: &Quota,
) -> Result<ExportedImage, WriteError> {
    let mut layout = Layout::begin(file)?;
    if squash {
        let topmost_first: Vec<&Path> = layers.iter().rev().map(Layer::root).collect();
        layout.layer(|out| pack(&topmost_first, Below::Nothing, out, quota).map_err(WriteError::Pack))?;
    } else {
        let mut below = Below::Nothing;
        for layer in layers {
            layout.layer(|out| pack(&[layer.root()], below, out, quota).map_err(WriteError::Pack))?;
            below = Below::Layers;
        }
    }
    let Manifest { template, container, onbuild, .. } = manifest;
    let made_at = template.made_at;
    let (mut file, digest): (File, Digest) = layout.finish(name, run_config(template, container, onbuild), made_at)?;
    let size = file.stream_position()?;
    file.rewind()?;
    Ok(ExportedImage { file, size, digest: digest.to_string() })
}

/// How a container of the image is run: as a sandbox of the template, as far as there is something to run.
fn run_config(template: BuiltTemplate, container: Container, onbuild: Vec<String>) -> RunConfig {
    let (entrypoint, cmd) = match (template.start_cmd, container.entrypoint, container.cmd) {
        (Some(command), _, _) => (None, Some(["/bin/bash", "-l", "-c", &command].map(str::to_owned).to_vec())),
        (None, None, None) => (None, Some(vec!["/bin/bash".to_owned()])),
        (None, entrypoint, cmd) => (entrypoint, cmd),
    };
    let ports: BTreeMap<String, EmptyObject> =
        container.ports.into_iter().map(|port| (port, EmptyObject::default())).collect();
    RunConfig {
        env: Some(template.env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
        user: Some(template.user),
        working_dir: Some(template.workdir),
        entrypoint,
        cmd,
        exposed_ports: Some(ports).filter(|ports| !ports.is_empty()),
        volumes: None,
        labels: Some(container.labels).filter(|labels| !labels.is_empty()),
        stop_signal: None,
        shell: None,
        on_build: Some(onbuild).filter(|triggers| !triggers.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use isopod_wire::{Bytes, Limits};

    use super::*;

    fn template(start_cmd: Option<&str>) -> BuiltTemplate {
        BuiltTemplate {
            id: String::new(),
            layers: Vec::new(),
            env: BTreeMap::from([("A".to_owned(), "b=c".to_owned())]),
            user: "node".to_owned(),
            workdir: "/srv".to_owned(),
            start_cmd: start_cmd.map(str::to_owned),
            ready_cmd: None,
            limits: Limits::default(),
            size: Bytes(0),
            made_at: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_container_runs_the_start_command_or_what_the_dockerfile_says_or_a_shell() {
        let words = |words: &[&str]| Some(words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let said = Container { entrypoint: words(&["serve"]), cmd: words(&["--all"]), ..Container::default() };
        let run = |start, container| {
            let run = run_config(template(start), container, Vec::new());
            assert_eq!((run.user.as_deref(), run.working_dir.as_deref()), (Some("node"), Some("/srv")));
            assert_eq!(run.env, words(&["A=b=c"]));
            (run.entrypoint, run.cmd)
        };
        assert_eq!(run(Some("go"), said.clone()), (None, words(&["/bin/bash", "-l", "-c", "go"])));
        assert_eq!(run(None, said), (words(&["serve"]), words(&["--all"])));
        assert_eq!(run(None, Container::default()), (None, words(&["/bin/bash"])));
    }
}
