//! The events of running code.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An event of running code.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CodeEvent {
    /// The number of cells that the context has run.
    ExecutionCount(u64),
    /// It wrote to standard output.
    Stdout(String),
    /// It wrote to standard error.
    Stderr(String),
    /// It displayed something, or returned a value.
    Result(Box<CodeResult>),
    /// It raised an error.
    Error(CodeError),
}

/// A value in all formats that the interpreter can display.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct CodeResult {
    /// As text.
    pub text: Option<String>,
    /// As HTML.
    pub html: Option<String>,
    /// As Markdown.
    pub markdown: Option<String>,
    /// As an SVG picture.
    pub svg: Option<String>,
    /// As a PNG picture in base64.
    pub png: Option<String>,
    /// As a JPEG picture in base64.
    pub jpeg: Option<String>,
    /// As a PDF in base64.
    pub pdf: Option<String>,
    /// As LaTeX.
    pub latex: Option<String>,
    /// As JSON.
    pub json: Option<Value>,
    /// As JavaScript.
    pub javascript: Option<String>,
    /// A table.
    pub data: Option<Value>,
    /// The data of a chart.
    pub chart: Option<Value>,
    /// Other formats by MIME type.
    pub extra: Option<BTreeMap<String, Value>>,
    /// Whether it is the value of the last expression.
    pub is_main_result: bool,
}

/// An exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CodeError {
    /// Its class.
    pub name: String,
    /// Its message.
    pub value: String,
    /// Its traceback.
    pub traceback: String,
}

/// The meaning of one line of the stream.
#[derive(Debug)]
pub(super) enum Line {
    Event(CodeEvent),
    /// A keepalive, or something that this client does not know.
    Nothing,
    End,
}

pub(super) fn parse_line(line: &[u8]) -> Result<Line, serde_json::Error> {
    if line.trim_ascii().is_empty() {
        return Ok(Line::Nothing);
    }
    let wire: Wire = serde_json::from_slice(line)?;
    Ok(match wire {
        Wire::NumberOfExecutions { execution_count } => Line::Event(CodeEvent::ExecutionCount(execution_count)),
        Wire::Stdout { text } => Line::Event(CodeEvent::Stdout(text)),
        Wire::Stderr { text } => Line::Event(CodeEvent::Stderr(text)),
        Wire::Result(result) => Line::Event(CodeEvent::Result(result)),
        Wire::Error(error) => Line::Event(CodeEvent::Error(error)),
        Wire::EndOfExecution => Line::End,
        Wire::Other => Line::Nothing,
    })
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Wire {
    NumberOfExecutions {
        execution_count: u64,
    },
    Stdout {
        text: String,
    },
    Stderr {
        text: String,
    },
    Result(Box<CodeResult>),
    Error(CodeError),
    EndOfExecution,
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_events_are_passed_over_and_nonsense_is_not() {
        for line in ["", "  ", r#"{"type":"keepalive"}"#, r#"{"type":"new","x":1}"#] {
            assert!(matches!(parse_line(line.as_bytes()), Ok(Line::Nothing)), "{line}");
        }
        for line in ["x", "{}", r#"{"type":"stdout"}"#, "[1]"] {
            assert!(parse_line(line.as_bytes()).is_err(), "{line}");
        }
        assert!(matches!(parse_line(br#"{"type":"end_of_execution"}"#), Ok(Line::End)));
    }

    #[test]
    fn results_keep_their_forms() {
        let line =
            br#"{"type":"result","text":"1","json":{"a":[1]},"extra":{"x/y":1},"is_main_result":true,"html":null}"#;
        let Ok(Line::Event(CodeEvent::Result(result))) = parse_line(line) else { panic!("no result") };
        assert_eq!((result.text.as_deref(), result.html.as_deref()), (Some("1"), None));
        assert!(result.is_main_result && result.extra.unwrap().contains_key("x/y"));
    }
}
