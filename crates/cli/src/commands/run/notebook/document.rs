//! A notebook file, version 4. Everything in it that is not the output of a code cell stays as it was.

use std::path::Path;

use anyhow::{Context, bail};
use isopod_client::interpreter::{CodeError, CodeResult, Executed};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A notebook in memory.
#[derive(Debug)]
pub(super) struct Notebook(Value);

/// One code cell.
#[derive(Debug)]
pub(super) struct Cell<'a>(&'a mut Map<String, Value>);

impl Notebook {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no notebook", path.display()))
    }

    fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let value: Value = serde_json::from_slice(text)?;
        match value.get("nbformat").and_then(Value::as_u64) {
            Some(4) => {}
            Some(other) => bail!("its format is {other}; only 4 can be run, which Jupyter's nbconvert makes of it"),
            None => bail!("it does not say its format"),
        }
        if !value.get("cells").is_some_and(Value::is_array) {
            bail!("it has no cells");
        }
        Ok(Self(value))
    }

    /// What its cells are written in, by its kernel.
    pub(super) fn language(&self) -> String {
        let metadata = &self.0["metadata"];
        let language = metadata["kernelspec"]["language"].as_str().or(metadata["language_info"]["name"].as_str());
        language.unwrap_or("python").to_ascii_lowercase()
    }

    pub(super) fn code_cells(&mut self) -> impl Iterator<Item = Cell<'_>> {
        let cells = self.0["cells"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
        cells.filter(|cell| cell.get("cell_type").and_then(Value::as_str) == Some("code")).map(Cell)
    }

    /// As Jupyter writes it: one space a level and a line end. By rename, so that a crash leaves one or the other.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut text = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        self.0.serialize(&mut serde_json::Serializer::with_formatter(&mut text, format))?;
        text.push(b'\n');
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        std::fs::write(&temporary, text)?;
        std::fs::rename(&temporary, path)
    }
}

impl Cell<'_> {
    pub(super) fn source(&self) -> String {
        match self.0.get("source") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(lines)) => lines.iter().filter_map(Value::as_str).collect(),
            _ => String::new(),
        }
    }

    /// Replaces its outputs.
    pub(super) fn record(self, executed: Executed) {
        let count = executed.execution_count.map_or(Value::Null, Value::from);
        let streams = [("stdout", &executed.stdout), ("stderr", &executed.stderr)];
        let mut outputs: Vec<Value> = streams
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| json!({ "name": name, "output_type": "stream", "text": lines(text) }))
            .collect();
        outputs.extend(executed.results.iter().map(|result| output(result, &count)));
        outputs.extend(executed.error.as_ref().map(failure));
        self.0.insert("execution_count".to_owned(), count);
        self.0.insert("outputs".to_owned(), outputs.into());
    }
}

/// Notebooks keep texts as lists of lines.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

fn output(result: &CodeResult, count: &Value) -> Value {
    let texts = [
        ("text/plain", &result.text),
        ("text/html", &result.html),
        ("text/markdown", &result.markdown),
        ("image/svg+xml", &result.svg),
        ("text/latex", &result.latex),
        ("application/javascript", &result.javascript),
    ];
    let pictures = [("image/png", &result.png), ("image/jpeg", &result.jpeg), ("application/pdf", &result.pdf)];
    let mut data = Map::new();
    let texts = texts.into_iter().filter_map(|(kind, text)| Some((kind, json!(lines(text.as_ref()?)))));
    let pictures = pictures.into_iter().filter_map(|(kind, text)| Some((kind, json!(text.as_ref()?))));
    data.extend(texts.chain(pictures).map(|(kind, value)| (kind.to_owned(), value)));
    data.extend(result.json.clone().map(|value| ("application/json".to_owned(), value)));
    data.extend(result.extra.clone().into_iter().flatten());
    match result.is_main_result {
        true => json!({ "data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result" }),
        false => json!({ "data": data, "metadata": {}, "output_type": "display_data" }),
    }
}

fn failure(error: &CodeError) -> Value {
    let traceback: Vec<&str> = error.traceback.lines().collect();
    json!({ "ename": error.name, "evalue": error.value, "output_type": "error", "traceback": traceback })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notebook(cells: Value) -> Notebook {
        Notebook::parse(
            json!({ "nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells }).to_string().as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn outputs_take_the_place_of_older_ones_and_the_rest_stays() {
        let mut notebook = notebook(json!([
            { "cell_type": "markdown", "source": "# Title", "metadata": { "a": 1 } },
            { "cell_type": "code", "source": ["1 +\n", " 1"], "outputs": [{ "old": 1 }], "metadata": {}, "id": "x" },
        ]));
        let cell = notebook.code_cells().next().unwrap();
        assert_eq!(cell.source(), "1 +\n 1");
        let main = CodeResult { text: Some("2".to_owned()), is_main_result: true, ..CodeResult::default() };
        let stdout = "a\nb".to_owned();
        cell.record(Executed { stdout, results: vec![main], execution_count: Some(3), ..Executed::default() });
        let code = &notebook.0["cells"][1];
        assert_eq!(code["outputs"][0]["text"], json!(["a\n", "b"]));
        assert_eq!(code["outputs"][1]["data"]["text/plain"], json!(["2"]));
        assert_eq!((&code["outputs"][1]["execution_count"], &code["id"]), (&json!(3), &json!("x")));
        assert_eq!(notebook.0["cells"][0]["metadata"], json!({ "a": 1 }));
    }

    #[test]
    fn what_is_no_notebook_is_refused() {
        for text in ["", "[]", "{}", r#"{"nbformat": 3, "worksheets": []}"#, r#"{"nbformat": 4}"#] {
            assert!(Notebook::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_kernel_tells_the_language() {
        let with = |metadata: Value| Notebook(json!({ "metadata": metadata })).language();
        assert_eq!(with(json!({})), "python");
        assert_eq!(with(json!({ "kernelspec": { "language": "TypeScript" } })), "typescript");
        assert_eq!(with(json!({ "language_info": { "name": "R" } })), "r");
    }
}
