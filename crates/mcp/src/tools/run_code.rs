//! `run_code`: code in the sandbox's interpreter, which keeps its variables.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_client::interpreter::{CodeError, CodeEvent, CodeResult, Execution, RunCode};
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answered, Call, Effect, McpTool, Where, time_limit};
use crate::output::{Kept, sections};
use crate::reporter::{Reporter, Stream};
use crate::text::{cut, visible};
use crate::tool_error::ToolError;

/// The largest event of the interpreter, such as a picture.
const MAX_EVENT: usize = 32 << 20;
/// The largest picture in a result, in base64. Models take no larger ones.
const MAX_IMAGE: usize = 5 << 20;
const MAX_IMAGES: usize = 10;
const MAX_RESULTS: usize = 100;

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RunCodeArgs {
    /// The code. The value of its last expression is a result, and so is what it displays.
    code: String,
    /// Language: python, javascript, typescript, bash, or another one that the template has. Default: python.
    #[serde(default)]
    language: Option<String>,
    /// Time limit in seconds, after which the code is interrupted. Default: 300.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86400))]
    timeout_seconds: Option<u32>,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CodeAnswer {
    /// The sandbox that ran it.
    sandbox: String,
    /// Standard output. If it was too long, a line in the middle says how much is missing.
    stdout: String,
    /// Standard error.
    stderr: String,
    /// What was displayed or returned.
    results: Vec<ShownResult>,
    /// The exception, if it raised one.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ShownError>,
    /// Whether output or results are left out.
    truncated: bool,
}

/// A value in the formats that are text.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct ShownResult {
    /// All formats that it had. Pictures are in the content of the tool's result.
    formats: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    markdown: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chart: Option<Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ShownError {
    name: String,
    value: String,
    traceback: String,
}

impl McpTool for RunCodeArgs {
    const NAME: &'static str = "run_code";
    const TITLE: &'static str = "Run code";
    const DESCRIPTION: &'static str = "Runs code in a sandbox. Variables, imports and files stay for the next call. Returns \
        output, results and pictures; an exception is part of the result.";
    const EFFECT: Effect = Effect::DestroysInOpenWorld;
    type Answer = CodeAnswer;

    async fn run(self, call: Call) -> Result<Answered<CodeAnswer>, ToolError> {
        if self.code.trim().is_empty() {
            return Err(ToolError::new("`code` is empty"));
        }
        let sandbox = call.sandbox(self.place).await?;
        let code =
            RunCode { language: self.language, ..RunCode::new(self.code) }.timeout(time_limit(self.timeout_seconds));
        let interpreter = sandbox.interpreter().clone().with_event_limit(MAX_EVENT);
        let reporter = call.audience.reporter();
        let mut seen = Seen::new(call.max_output());
        let ran = match interpreter.run(code).await {
            Ok(execution) => seen.follow(execution, &reporter).await,
            Err(error) => Err(error),
        };
        reporter.finish().await;
        match ran {
            Ok(()) => Ok(seen.answer(sandbox.id().to_string())),
            Err(error) if error.is_timeout() => {
                let output = sections(&seen.stdout.text(), &seen.stderr.text());
                Err(ToolError::new("the time limit expired, and the code was interrupted")
                    .hint("variables are still there; give a longer timeout_seconds if the code needs it")
                    .output(output))
            }
            // The message names templates that have an interpreter, or a language.
            Err(error) if error.is_not_found() => {
                Err(ToolError::new(error.to_string()).hint("run_command works in every sandbox"))
            }
            Err(error) => Err(call.sandboxes.explain(error, sandbox.id()).await),
        }
    }
}

/// What the code has written and displayed.
struct Seen {
    stdout: Kept,
    stderr: Kept,
    results: Vec<CodeResult>,
    error: Option<CodeError>,
    is_cut: bool,
    max: usize,
}

impl Seen {
    fn new(max: usize) -> Self {
        Self { stdout: Kept::up_to(max), stderr: Kept::up_to(max), results: vec![], error: None, is_cut: false, max }
    }

    async fn follow(&mut self, mut execution: Execution, reporter: &Reporter) -> Result<(), isopod_client::GuestError> {
        let mut weight = 0;
        while let Some(event) = execution.next().await? {
            match event {
                CodeEvent::Stdout(text) => {
                    reporter.wrote(Stream::Stdout, text.as_bytes());
                    self.stdout.push(text.as_bytes());
                }
                CodeEvent::Stderr(text) => {
                    reporter.wrote(Stream::Stderr, text.as_bytes());
                    self.stderr.push(text.as_bytes());
                }
                CodeEvent::Result(result) => {
                    weight += execution.weight();
                    match self.results.len() < MAX_RESULTS && weight <= 2 * MAX_EVENT {
                        true => self.results.push(*result),
                        false => self.is_cut = true,
                    }
                }
                CodeEvent::Error(error) => self.error = Some(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn answer(self, sandbox: String) -> Answered<CodeAnswer> {
        let (stdout, stderr, max) = (self.stdout.text(), self.stderr.text(), self.max);
        let mut text = sections(&stdout, &stderr);
        let mut is_cut = self.is_cut || self.stdout.is_truncated() || self.stderr.is_truncated();
        let mut images = Vec::new();
        let mut results = Vec::new();
        let mut room = max;
        for result in self.results {
            images.extend(pictures(&result));
            let words = result.text.as_deref().or(result.markdown.as_deref()).or(result.html.as_deref());
            if let Some(words) = words {
                let shown = cut(words, room);
                room -= shown.len();
                is_cut |= shown.len() < words.len();
                add_line(&mut text, &visible(shown));
            }
            results.push(shown(result, max, &mut is_cut));
        }
        is_cut |= images.len() > MAX_IMAGES;
        images.truncate(MAX_IMAGES);
        let error = self.error.map(|error| ShownError {
            traceback: cut(&error.traceback, max).to_owned(),
            value: cut(&error.value, max).to_owned(),
            name: cut(&error.name, max).to_owned(),
        });
        if let Some(error) = &error {
            let words = match error.traceback.is_empty() {
                true => format!("{}: {}", error.name, error.value),
                false => error.traceback.clone(),
            };
            add_line(&mut text, &visible(&words));
        }
        if is_cut {
            add_line(
                &mut text,
                "[The result was too long; parts of it are left out. Write to a file to keep all of it.]",
            );
        }
        if text.is_empty() && images.is_empty() {
            text.push_str("(no output)");
        }
        let mut content = vec![ContentBlock::text(text)];
        content.extend(images);
        let structured = CodeAnswer { sandbox, stdout, stderr, results, error, truncated: is_cut };
        Answered { content, structured }
    }
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

/// What is no base64 is left out: clients refuse the whole result for it.
fn pictures(result: &CodeResult) -> Vec<ContentBlock> {
    let all = [(&result.png, "image/png"), (&result.jpeg, "image/jpeg")];
    let of = |(data, kind): (&Option<String>, &str)| {
        let clean: String = data.as_deref()?.chars().filter(|character| !character.is_whitespace()).collect();
        let is_good = clean.len() <= MAX_IMAGE && STANDARD.decode(&clean).is_ok();
        is_good.then(|| ContentBlock::image(clean, kind))
    };
    all.into_iter().find_map(of).into_iter().collect()
}

fn shown(result: CodeResult, max: usize, is_cut: &mut bool) -> ShownResult {
    let formats = serde_json::to_value(&result).ok();
    let formats = formats.as_ref().and_then(Value::as_object).into_iter().flatten();
    let formats =
        formats.filter(|(_, value)| !value.is_null() && !value.is_boolean()).map(|(name, _)| name.clone()).collect();
    let mut text = |text: Option<String>| {
        text.map(|text| {
            let shown = cut(&text, max);
            *is_cut |= shown.len() < text.len();
            shown.to_owned()
        })
    };
    let (plain, html) = (text(result.text), text(result.html));
    let (markdown, latex) = (text(result.markdown), text(result.latex));
    let mut value = |value: Option<Value>| {
        let value = value.filter(|value| !value.is_null())?;
        let fits = value.to_string().len() <= max;
        *is_cut |= !fits;
        fits.then_some(value)
    };
    ShownResult { formats, text: plain, html, markdown, latex, json: value(result.json), chart: value(result.chart) }
}
