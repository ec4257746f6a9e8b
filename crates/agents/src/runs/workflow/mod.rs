//! A workflow as people write it, in YAML or JSON, and the check that it can be run.
//!
//! A node is code, a command, or an agent behind a URL. The list may be called `nodes` or, as in the agent kernel,
//! `agents`. Unknown fields are errors.

mod check;

use serde::Deserialize;
use utoipa::ToSchema;

pub(crate) use check::WorkflowError;
pub(super) use check::node as check_node;

use isopod_store::{NodeSpec, OnFailure, Rule, RunSettings};

/// A checked workflow.
#[derive(Clone, Debug)]
pub(crate) struct Workflow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) nodes: Vec<NodeSpec>,
    pub(crate) settings: RunSettings,
}

/// A workflow as it is written.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Workflow)]
pub(crate) struct Document {
    id: Option<String>,
    name: Option<String>,
    #[schema(max_items = 10000)]
    nodes: Option<Vec<NodeSpec>>,
    /// Another word for `nodes`; what they have is taken together.
    #[schema(max_items = 10000)]
    agents: Option<Vec<NodeSpec>>,
    #[schema(minimum = 1)]
    max_token_budget: Option<u64>,
    #[schema(minimum = 1)]
    timeout_ms: Option<u64>,
    #[schema(minimum = 1)]
    approval_timeout_ms: Option<u64>,
    #[serde(default)]
    on_failure: OnFailure,
    #[serde(default)]
    attached_files: Vec<String>,
    soft_failures: Option<bool>,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    default_rules: bool,
}

impl Workflow {
    /// Parses JSON or YAML.
    pub(crate) fn parse(text: &str) -> Result<Self, WorkflowError> {
        let unreadable = |error: &dyn std::fmt::Display| WorkflowError::Unreadable(error.to_string());
        // JSON is also YAML, but the JSON parser has better error messages.
        let json = text.trim_start().starts_with('{').then(|| serde_json::from_str(text));
        let value = match json {
            Some(Ok(value)) => value,
            Some(Err(error)) => read_yaml(text).map_err(|_| unreadable(&error))?,
            None => read_yaml(text).map_err(|error| unreadable(&error))?,
        };
        Self::from_value(value)
    }

    pub(crate) fn from_value(value: serde_json::Value) -> Result<Self, WorkflowError> {
        let document: Document =
            serde_json::from_value(value).map_err(|error| WorkflowError::Unreadable(error.to_string()))?;
        document.into_workflow()
    }
}

fn read_yaml(text: &str) -> Result<serde_json::Value, serde_saphyr::Error> {
    // An unquoted `no` or `y` is a string.
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
}

impl Document {
    fn into_workflow(self) -> Result<Workflow, WorkflowError> {
        let soft_failures = self.soft_failures.unwrap_or(self.agents.is_some());
        let mut nodes = self.nodes.unwrap_or_default();
        nodes.extend(self.agents.unwrap_or_default());
        let mut rules = self.rules;
        if self.default_rules {
            rules.extend(Rule::defaults());
        }
        let name = self.name.or_else(|| self.id.clone()).unwrap_or_else(|| "workflow".to_owned());
        let workflow = Workflow {
            id: self.id.unwrap_or_else(|| name.clone()),
            name,
            nodes,
            settings: RunSettings {
                max_token_budget: self.max_token_budget,
                timeout_ms: self.timeout_ms,
                approval_timeout_ms: self.approval_timeout_ms,
                on_failure: self.on_failure,
                attached_files: self.attached_files,
                soft_failures,
                rules,
            },
        };
        check::workflow(&workflow)?;
        Ok(workflow)
    }
}

#[cfg(test)]
mod tests {
    use isopod_store::Work;

    use super::*;

    const FLOW: &str = "
name: report
timeout_ms: 60000
nodes:
  - id: fetch
    command: echo hello > data.txt
  - id: count
    code: |
      print(len(open('data.txt').read()))
    depends_on: [fetch]
    retries: 2
    timeout: 5.5
  - id: tell
    agent: https://agents.example/teller
    prompt: Tell them.
    depends_on: [count]
    approval: true
";

    #[test]
    fn yaml_and_json_say_the_same() {
        let workflow = Workflow::parse(FLOW).unwrap();
        assert_eq!((workflow.name.as_str(), workflow.nodes.len()), ("report", 3));
        let json: serde_json::Value = serde_saphyr::from_str(FLOW).unwrap();
        assert_eq!(Workflow::parse(&json.to_string()).unwrap().nodes, workflow.nodes);
        assert!(Workflow::parse("{nodes: [{id: a, command: no}]}").is_ok(), "YAML may begin with a brace too");
        assert!(matches!(workflow.nodes[1].work(), Work::Code { language: None, .. }));
        assert!(workflow.nodes[2].approval && !workflow.settings.soft_failures);
    }

    #[test]
    fn the_shape_of_the_agent_kernel_is_read() {
        let text = serde_json::json!({
            "id": "w1", "name": "Research", "max_token_budget": 100, "timeout_ms": 300_000, "attached_files": ["a.csv"],
            "agents": [{
                "id": "root", "role": "orchestrator", "model": "reasoning", "tools": ["execute_python"],
                "input_schema": {}, "output_schema": {}, "cache_policy": "ephemeral", "depends_on": [],
                "prompt": "go", "position": { "x": 1, "y": 2 }, "accepts_directive": true, "user_directive": "",
                "allow_delegation": true,
            }],
        });
        let workflow = Workflow::parse(&text.to_string()).unwrap();
        assert!(matches!(workflow.nodes[0].work(), Work::Agent { url: None }));
        assert!(workflow.settings.soft_failures, "the kernel's agents are watched for empty answers");
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_its_reason() {
        let cases = [
            ("nodes: []", "no nodes"),
            ("nodes: [", "cannot parse"),
            ("nodes: [{id: a, command: x, comand: y}]", "comand"),
            ("nodes: [{id: a}, {id: a}]", "two nodes"),
            ("nodes: [{id: a, command: x, depends_on: [b]}]", "does not exist"),
            ("nodes: [{id: a, command: x, depends_on: [a]}]", "cycle"),
            ("nodes: [{id: ../a, command: x}]", "id"),
            ("nodes: [{id: a, command: x, code: y}]", "one of"),
            ("nodes: [{id: a, command: x, language: python}]", "language"),
            ("nodes: [{id: a, agent: 'ftp://x'}]", "URL"),
            ("nodes: [{id: a, command: x, timeout: -1}]", "timeout"),
            ("nodes: [{id: a, command: x, retries: 101}]", "retries"),
            ("nodes: [{id: a, command: x}]\ntimeout_ms: 0", "timeout_ms"),
            ("nodes: [{id: a, command: x}]\nattached_files: [../x]", "attached"),
            ("[]", "cannot parse"),
            ("", "cannot parse"),
        ];
        for (text, expected) in cases {
            let error = Workflow::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn ten_thousand_nodes_are_read_and_more_are_refused() {
        let flow = |count: usize| {
            let node = |number: usize| {
                serde_json::json!({ "id": format!("n{number}"), "command": "true",
                "depends_on": if number == 0 { vec![] } else { vec![format!("n{}", number - 1)] } })
            };
            serde_json::json!({ "nodes": (0..count).map(node).collect::<Vec<_>>() })
        };
        assert_eq!(Workflow::from_value(flow(10_000)).unwrap().nodes.len(), 10_000);
        assert!(Workflow::from_value(flow(10_001)).unwrap_err().to_string().contains("10001"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_workflow_or_refused(text in ".{0,200}") {
            let _ = Workflow::parse(&text);
            let _ = Workflow::parse(&format!("nodes: [{{id: a, command: {text}}}]"));
            let _ = Workflow::parse(&format!("{{{text}"));
        }
    }

    #[test]
    fn a_yaml_bomb_is_refused() {
        let mut text = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (before, name) in ('a'..'y').zip('b'..'z') {
            text += &format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(", "));
        }
        assert!(Workflow::parse(&text).is_err());
    }
}
