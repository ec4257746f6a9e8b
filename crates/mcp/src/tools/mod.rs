//! The tools: one file per tool, each with its arguments, its answer and its work.

mod create_sandbox;
mod download;
mod download_content;
mod edit_file;
mod fork_sandbox;
mod get_workflow;
mod kill_sandbox;
mod list_files;
mod list_sandboxes;
mod pause_sandbox;
mod preview_url;
mod read_file;
mod resume_sandbox;
mod run_code;
mod run_command;
mod signed_url;
mod start_workflow;
mod upload;
mod upload_content;
mod write_file;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use isopod_client::{Sandbox, guest};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Transfers;
use crate::reporter::Audience;
use crate::sandboxes::{Sandboxes, Target};
use crate::schema;
use crate::tool_error::ToolError;

/// What a call works with.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) audience: Audience,
}

/// What a tool does to the world, for clients that ask the user before some calls.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Reads,
    /// Adds something. Repeating it may add more.
    Adds,
    /// Sets something. Repeating it changes nothing more.
    Sets,
    /// May overwrite or remove something.
    Destroys,
    /// Like [`Self::Destroys`], and it may reach the internet.
    DestroysInOpenWorld,
}

/// A tool. The type has its arguments.
trait McpTool: DeserializeOwned + JsonSchema + Send + 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    const EFFECT: Effect;
    type Answer: Serialize + JsonSchema + 'static;

    fn run(self, call: Call) -> impl Future<Output = Result<Answered<Self::Answer>, ToolError>> + Send;
}

/// The answer of a tool: for people and models, and for programs.
struct Answered<T> {
    content: Vec<ContentBlock>,
    structured: T,
}

impl<T> Answered<T> {
    fn text(text: impl Into<String>, structured: T) -> Self {
        Self { content: vec![ContentBlock::text(text)], structured }
    }
}

/// All tools, by name.
#[derive(Debug)]
pub(crate) struct Toolbox(Vec<Registered>);

#[derive(Debug)]
struct Registered {
    tool: Tool,
    run: fn(JsonObject, Call) -> BoxFuture<'static, Result<CallToolResult, ToolError>>,
}

/// The tools of a server that moves files in this way. Their schemas are made once.
pub(crate) fn toolbox(transfers: &Transfers) -> &'static Toolbox {
    static TOOLBOXES: [OnceLock<Toolbox>; 3] = [const { OnceLock::new() }; 3];
    let kind = match transfers {
        Transfers::Off => 0,
        Transfers::LocalFiles(_) => 1,
        Transfers::InCalls => 2,
    };
    TOOLBOXES[kind].get_or_init(|| Toolbox::new(transfers))
}

impl Toolbox {
    fn new(transfers: &Transfers) -> Self {
        let mut all = vec![
            register::<run_code::RunCodeArgs>(),
            register::<run_command::RunCommandArgs>(),
            register::<read_file::ReadFileArgs>(),
            register::<write_file::WriteFileArgs>(),
            register::<edit_file::EditFileArgs>(),
            register::<list_files::ListFilesArgs>(),
        ];
        match transfers {
            Transfers::Off => {}
            Transfers::LocalFiles(_) => {
                all.extend([register::<upload::UploadArgs>(), register::<download::DownloadArgs>()]);
            }
            Transfers::InCalls => all.extend([
                register::<upload_content::UploadContentArgs>(),
                register::<download_content::DownloadContentArgs>(),
            ]),
        }
        all.extend([
            register::<preview_url::PreviewUrlArgs>(),
            register::<create_sandbox::CreateSandboxArgs>(),
            register::<list_sandboxes::ListSandboxesArgs>(),
            register::<kill_sandbox::KillSandboxArgs>(),
            register::<pause_sandbox::PauseSandboxArgs>(),
            register::<resume_sandbox::ResumeSandboxArgs>(),
            register::<fork_sandbox::ForkSandboxArgs>(),
            register::<start_workflow::StartWorkflowArgs>(),
            register::<get_workflow::GetWorkflowArgs>(),
        ]);
        Self(all)
    }

    pub(crate) fn list(&self) -> Vec<Tool> {
        self.0.iter().map(|registered| registered.tool.clone()).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Tool> {
        self.find(name).map(|registered| registered.tool.clone())
    }

    /// The work of a call, unless there is no such tool.
    pub(crate) fn call(
        &self,
        name: &str,
        arguments: JsonObject,
        call: Call,
    ) -> Option<BoxFuture<'static, Result<CallToolResult, ToolError>>> {
        let registered = self.find(name)?;
        if let Err(error) = check_names(&registered.tool, &arguments) {
            return Some(Box::pin(async move { Err(error) }));
        }
        Some((registered.run)(arguments, call))
    }

    fn find(&self, name: &str) -> Option<&Registered> {
        self.0.iter().find(|registered| registered.tool.name == name)
    }
}

fn register<T: McpTool>() -> Registered {
    let tool = Tool::new(T::NAME, T::DESCRIPTION, schema::of_arguments::<T>())
        .with_title(T::TITLE)
        .with_raw_output_schema(schema::of_answer::<T::Answer>())
        .with_annotations(annotations(T::TITLE, T::EFFECT));
    Registered { tool, run: |arguments, call| Box::pin(run::<T>(arguments, call)) }
}

async fn run<T: McpTool>(arguments: JsonObject, call: Call) -> Result<CallToolResult, ToolError> {
    let arguments: T = serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        ToolError::new(format!("the arguments of {} are invalid: {error}", T::NAME))
            .hint("the tool's schema says what it takes")
    })?;
    let Answered { content, structured } = arguments.run(call).await?;
    let structured = serde_json::to_value(structured)
        .map_err(|error| ToolError::new(format!("the answer cannot be written as JSON: {error}")))?;
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(structured);
    Ok(result)
}

/// A misspelled argument is said, rather than passed over.
fn check_names(tool: &Tool, arguments: &JsonObject) -> Result<(), ToolError> {
    let Some(Value::Object(known)) = tool.input_schema.get("properties") else { return Ok(()) };
    match arguments.keys().find(|name| !known.contains_key(*name)) {
        None => Ok(()),
        Some(name) => {
            let known: Vec<_> = known.keys().map(String::as_str).collect();
            Err(ToolError::new(format!("{} has no argument {name:?}", tool.name))
                .hint(format!("its arguments are: {}", known.join(", "))))
        }
    }
}

fn annotations(title: &str, effect: Effect) -> ToolAnnotations {
    let plain = ToolAnnotations::with_title(title).open_world(false);
    match effect {
        Effect::Reads => plain.read_only(true),
        Effect::Adds => plain.read_only(false).destructive(false).idempotent(false),
        Effect::Sets => plain.read_only(false).destructive(false).idempotent(true),
        Effect::Destroys => plain.read_only(false).destructive(true),
        Effect::DestroysInOpenWorld => plain.read_only(false).destructive(true).open_world(true),
    }
}

/// Which sandbox: the arguments that most tools have.
#[derive(Debug, Default, Deserialize, JsonSchema)]
struct Where {
    /// Id of one of this client's sandboxes. Default: the sandbox that all calls of this connection share.
    #[serde(default)]
    sandbox: Option<String>,
    /// Name of a session, whose sandbox outlasts this connection. It is created if it doesn't exist. Excludes `sandbox`.
    #[serde(default)]
    #[schemars(length(min = 1, max = 128))]
    session: Option<String>,
}

impl Where {
    fn target(self) -> Result<Target, ToolError> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        match (given(self.sandbox), given(self.session)) {
            (None, None) => Ok(Target::Default),
            (Some(id), None) => Ok(Target::Sandbox(id)),
            (None, Some(name)) => Ok(Target::Session(name)),
            (Some(_), Some(_)) => Err(ToolError::new("`sandbox` and `session` exclude each other")),
        }
    }
}

impl Call {
    /// The sandbox to work in. Created if it is the client's own, or that of a session.
    async fn sandbox(&self, place: Where) -> Result<Sandbox, ToolError> {
        self.sandboxes.get(place.target()?).await
    }

    /// The same, but nothing is created.
    async fn existing(&self, place: Where) -> Result<Sandbox, ToolError> {
        self.sandboxes.existing(place.target()?).await
    }

    fn max_output(&self) -> usize {
        self.sandboxes.config().max_output
    }
}

/// The limit of a call's time.
fn time_limit(seconds: Option<u32>) -> Duration {
    const DEFAULT: u32 = 300;
    Duration::from_secs(seconds.unwrap_or(DEFAULT).max(1).into())
}

/// The name of a kind of entry.
fn kind_name(kind: guest::EntryKind) -> &'static str {
    match kind {
        guest::EntryKind::File => "file",
        guest::EntryKind::Directory => "directory",
        guest::EntryKind::Symlink => "symlink",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_describes_itself() {
        let local = Transfers::LocalFiles(crate::LocalFiles::below(std::path::Path::new("/usr")).unwrap());
        let (none, all) = (toolbox(&Transfers::Off).list(), toolbox(&local).list());
        let over_http = toolbox(&Transfers::InCalls).list();
        assert_eq!((none.len(), all.len(), over_http.len()), (15, 17, 17));
        for tool in all.iter().chain(&over_http) {
            let name = &tool.name;
            assert_eq!(tool.input_schema["type"], "object", "{name}");
            assert_eq!(tool.input_schema["additionalProperties"], false, "{name}");
            assert!(tool.annotations.as_ref().unwrap().read_only_hint.is_some(), "{name}");
            assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object", "{name}");
            let Value::Object(properties) = &tool.input_schema["properties"] else { panic!("{name}") };
            for (argument, schema) in properties {
                assert!(schema["description"].is_string(), "{name} {argument}: {schema}");
                assert!(schema["type"].is_string(), "{name} {argument}: {schema}");
            }
        }
    }

    #[test]
    fn two_places_are_refused() {
        let place =
            |sandbox: &str, session: &str| Where { sandbox: Some(sandbox.into()), session: Some(session.into()) };
        assert!(place("i1", "s").target().is_err());
        assert!(matches!(place("", "").target(), Ok(Target::Default)), "models write empty strings for nothing");
    }
}
