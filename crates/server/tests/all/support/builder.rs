//! A builder that runs nothing. `RUN fail` fails, `RUN break` breaks the builder, `RUN hang` waits until it is
//! cancelled, everything else is logged and succeeds. The id of the result is derived from the request.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Mutex;
use std::time::SystemTime;

use isopod_wire::Bytes;
use isopod_wire::build::{
    BuildError, BuildEvent, BuildFailure, BuildInstruction, BuildLevel, BuildPhase, BuildSource, BuildSpec,
    BuiltTemplate, KeptTemplate, RemoveTemplateError,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub struct FakeBuilder {
    built: Mutex<BTreeMap<String, BuiltTemplate>>,
    /// All requests.
    pub specs: Mutex<Vec<BuildSpec>>,
    /// The files of the builds' contexts at that time.
    pub contexts: Mutex<Vec<BTreeSet<String>>>,
}

impl FakeBuilder {
    pub fn has(&self, id: &str) -> bool {
        self.built.lock().unwrap().contains_key(id)
    }

    pub fn count(&self) -> usize {
        self.built.lock().unwrap().len()
    }

    pub fn last(&self) -> BuildSpec {
        self.specs.lock().unwrap().last().unwrap().clone()
    }

    pub fn remove(&self, id: &str) -> Result<(), RemoveTemplateError> {
        let gone = self.built.lock().unwrap().remove(id);
        gone.map(drop).ok_or_else(|| RemoveTemplateError::NotFound(id.to_owned()))
    }

    pub fn kept(&self, in_use: &BTreeSet<String>) -> Vec<KeptTemplate> {
        let kept = |template: &BuiltTemplate| KeptTemplate {
            template: template.clone(),
            in_use: in_use.contains(&template.id),
        };
        self.built.lock().unwrap().values().map(kept).collect()
    }

    pub async fn build(
        &self,
        spec: BuildSpec,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<BuiltTemplate, BuildError> {
        self.specs.lock().unwrap().push(spec.clone());
        let commands = match &spec.source {
            BuildSource::Steps { steps, .. } => steps.iter().map(|step| command(&step.instruction)).collect(),
            BuildSource::Dockerfile(file) => {
                if let Some(context) = &file.context {
                    let names = std::fs::read_dir(context).unwrap();
                    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
                    self.contexts.lock().unwrap().push(names);
                }
                file.text.lines().filter_map(|line| line.strip_prefix("RUN ")).map(str::to_owned).collect()
            }
        };
        self.run(commands, events, cancel).await?;
        let mut hash = DefaultHasher::new();
        format!("{:?} {:?}", spec.source, spec.start_cmd).hash(&mut hash);
        let built = BuiltTemplate {
            id: format!("tpl-{:032x}", hash.finish()),
            layers: Vec::new(),
            env: BTreeMap::new(),
            user: "user".to_owned(),
            workdir: "/home/user".to_owned(),
            start_cmd: spec.start_cmd,
            ready_cmd: spec.ready_cmd,
            limits: spec.limits,
            size: Bytes(7),
            made_at: SystemTime::now(),
        };
        self.built.lock().unwrap().insert(built.id.clone(), built.clone());
        Ok(built)
    }

    async fn run(
        &self,
        commands: Vec<String>,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<(), BuildError> {
        for (number, command) in (1..).zip(commands) {
            let phase = BuildPhase::Step(number);
            let error =
                |failure, message: &str| BuildError { failure, phase, place: None, message: message.to_owned() };
            let event = BuildEvent { at: SystemTime::now(), level: BuildLevel::Info, phase, message: command.clone() };
            events.send(event).await.unwrap();
            match command.as_str() {
                "fail" => return Err(error(BuildFailure::Step, "the command ended with 1")),
                "break" => {
                    let message = "could not keep the layer: /var/lib/isopod/templates/l-1: No space left on device";
                    return Err(error(BuildFailure::Internal, message));
                }
                "hang" => {
                    cancel.cancelled().await;
                    return Err(error(BuildFailure::Cancelled, "cancelled"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn command(instruction: &BuildInstruction) -> String {
    match instruction {
        BuildInstruction::Run { command, .. } => command.clone(),
        other => format!("{other:?}"),
    }
}
