//! Results of code in richer formats than text: images, pages, documents. Each format becomes a separate file, under a
//! name that no other agent and no other call can have.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_guest_client::interpreter::CodeResult;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use serde_json::Value;

use super::rel_path::RelPath;

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RichResult {
    pub(crate) path: RelPath,
    pub(crate) contents: Vec<u8>,
    /// The name of the format in the message to the agent.
    pub(crate) label: &'static str,
}

/// A format that could not be turned into a file.
pub(crate) type BadForm = &'static str;

/// All formats of a result that become files.
pub(crate) fn rich_results(run: &str, number: usize, result: &CodeResult) -> Vec<Result<RichResult, BadForm>> {
    let mut found = Vec::new();
    let binary = [
        (&result.png, "png", "Image", "plot"),
        (&result.jpeg, "jpeg", "Image", "plot"),
        (&result.pdf, "pdf", "PDF", "result"),
    ];
    for (form, ending, label, stem) in binary {
        if let Some(encoded) = form {
            let decoded = STANDARD.decode(encoded.trim().replace(['\n', '\r'], "")).map_err(|_| ending);
            found.push(decoded.map(|contents| named(run, number, stem, ending, label, contents)));
        }
    }
    let text = [
        (&result.svg, "svg", "Image", "plot"),
        (&result.html, "html", "HTML", "result"),
        (&result.markdown, "md", "Markdown", "result"),
        (&result.latex, "tex", "LaTeX", "result"),
        (&result.javascript, "js", "JavaScript", "result"),
    ];
    for (form, ending, label, stem) in text {
        if let Some(text) = form {
            found.push(Ok(named(run, number, stem, ending, label, text.clone().into_bytes())));
        }
    }
    for (form, stem) in [(&result.json, "result"), (&result.chart, "chart")] {
        if let Some(json) = form.as_ref().filter(|json| !json.is_null()) {
            found.push(Ok(named(run, number, stem, "json", "JSON", json.to_string().into_bytes())));
        }
    }
    for (mime, value) in result.extra.iter().flatten() {
        found.push(extra(run, number, mime, value));
    }
    found
}

/// A format without a field of its own. The type tells whether text is base64 of binary data or plain text.
fn extra(run: &str, number: usize, mime: &str, value: &Value) -> Result<RichResult, BadForm> {
    let (contents, ending) = match value {
        Value::String(text) if is_binary(mime) => {
            (STANDARD.decode(text.trim().replace(['\n', '\r'], "")).map_err(|_| "extra")?, ending_of(mime))
        }
        Value::String(text) => (text.clone().into_bytes(), ending_of(mime)),
        other => (other.to_string().into_bytes(), "json".to_owned()),
    };
    Ok(named(run, number, "result", &ending, "Data", contents))
}

fn is_binary(mime: &str) -> bool {
    let is_text = mime.starts_with("text/") || mime.contains("json") || mime.contains("xml");
    !is_text
        && ["image/", "audio/", "video/", "application/octet-stream", "application/zip"]
            .iter()
            .any(|kind| mime.starts_with(kind))
}

/// A file extension derived from the type.
fn ending_of(mime: &str) -> String {
    let last = mime.rsplit(['/', '+', '.']).next().unwrap_or_default();
    let ending: String = last.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    if ending.is_empty() { "bin".to_owned() } else { ending.to_ascii_lowercase() }
}

fn named(run: &str, number: usize, stem: &str, ending: &str, label: &'static str, contents: Vec<u8>) -> RichResult {
    let seconds = Timestamp::now().unix_seconds().rem_euclid(86_400);
    let time = format!("{:02}{:02}{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let unique: String = new_uuid().chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    let name = format!("{stem}_{run}_{time}_{number}_{unique}.{ending}");
    let path = RelPath::parse(&name).expect("an id, digits and an extension form a plain name");
    RichResult { path, contents, label }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_form_becomes_a_file_and_no_two_have_one_name() {
        let result = CodeResult {
            png: Some(STANDARD.encode(b"png")),
            jpeg: Some(STANDARD.encode(b"jpeg")),
            svg: Some("<svg/>".to_owned()),
            html: Some("<b>".to_owned()),
            latex: Some("$x$".to_owned()),
            json: Some(serde_json::json!({ "a": 1 })),
            pdf: Some("no base64!".to_owned()),
            extra: Some(BTreeMap::from([("image/gif".to_owned(), Value::from(STANDARD.encode(b"gif")))])),
            ..CodeResult::default()
        };
        let both: Vec<_> = [rich_results("r", 0, &result), rich_results("r", 0, &result)].concat();
        let files: Vec<_> = both.iter().filter_map(|found| found.as_ref().ok()).collect();
        assert_eq!((both.len(), files.len()), (16, 14), "the broken PDF is told, twice");
        let names: std::collections::HashSet<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names.len(), 14, "{names:?}");
        assert!(files.iter().any(|file| file.path.as_str().starts_with("plot_r_") && file.contents == b"png"));
        assert!(files.iter().any(|file| file.path.as_str().ends_with(".gif") && file.contents == b"gif"));
    }

    #[test]
    fn text_alone_is_no_file() {
        assert!(rich_results("r", 0, &CodeResult { text: Some("2".to_owned()), ..CodeResult::default() }).is_empty());
    }
}
