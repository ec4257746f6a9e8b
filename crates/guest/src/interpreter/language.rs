//! Languages: the names that clients use, and the template's Jupyter kernels for languages other than Python.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use http::StatusCode;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::Interpreter;
use super::driver::{self, Start};
use super::start::{self, StartError};
use crate::http::HttpError;

const PYTHON: &str = "python";
pub(super) const JAVASCRIPT: &str = "javascript";
const TYPESCRIPT: &str = "typescript";

/// How long the driver may take to list kernels, and how long the list may be.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_LIST: u64 = 1 << 20;

/// A language that this sandbox can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Language {
    /// As clients see it.
    pub(super) name: String,
    /// The Jupyter kernel for it. `None` for Python, which needs no Jupyter.
    pub(super) kernelspec: Option<String>,
}

impl Language {
    pub(super) fn python() -> Self {
        Self { name: PYTHON.to_owned(), kernelspec: None }
    }

    /// Whether E2B's sandboxes have a default context for it before any request.
    pub(super) fn is_there_from_the_start(&self) -> bool {
        [PYTHON, JAVASCRIPT].contains(&self.name.as_str())
    }
}

/// Why a language cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LanguageError {
    #[error("language '{wanted}' is not installed in this sandbox. Available languages: {known}. {hint}")]
    Unknown { wanted: String, hint: &'static str, known: String },
    #[error("cannot look up language '{wanted}': {source}")]
    Lookup { wanted: String, source: StartError },
}

impl LanguageError {
    /// JavaScript's SDK shows the body of a 404, and of other errors only the status.
    pub(super) fn into_http(self) -> HttpError {
        let status = match self {
            Self::Unknown { .. } => StatusCode::NOT_FOUND,
            Self::Lookup { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpError::new(status, self.to_string())
    }
}

/// A kernel as the driver lists it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Kernelspec {
    name: String,
    #[serde(default)]
    language: String,
}

/// The template's Jupyter kernels, listed on first use.
#[derive(Debug, Default)]
pub(super) struct Kernelspecs {
    /// `None` until the driver has listed them. Locked while it does.
    known: tokio::sync::Mutex<Option<Vec<Kernelspec>>>,
}

/// Finds the language that a client names.
pub(super) async fn find(interpreter: &Interpreter, wanted: &str) -> Result<Language, LanguageError> {
    let name = canonical(wanted);
    if name == PYTHON {
        return Ok(Language::python());
    }
    let mut known = interpreter.kernelspecs.known.lock().await;
    if let Some(found) = known.as_deref().and_then(|known| pick(known, &name)) {
        return Ok(Language { name, kernelspec: Some(found) });
    }
    // It may have been installed since the last listing.
    let fresh = ask(interpreter).await.map_err(|source| LanguageError::Lookup { wanted: name.clone(), source })?;
    let found = pick(&fresh, &name);
    let languages = listed(&fresh);
    *known = Some(fresh);
    match found {
        Some(found) => Ok(Language { name, kernelspec: Some(found) }),
        None => Err(LanguageError::Unknown { hint: hint(&name), wanted: name, known: languages }),
    }
}

/// Whether there was a kernel for it when the driver last listed them.
pub(super) async fn is_installed(interpreter: &Interpreter, name: &str) -> bool {
    let mut known = interpreter.kernelspecs.known.lock().await;
    if known.is_none() {
        *known = ask(interpreter).await.ok();
    }
    known.as_deref().is_some_and(|known| pick(known, name).is_some())
}

/// The canonical name of a language.
fn canonical(wanted: &str) -> String {
    let lower = wanted.trim().to_lowercase();
    match lower.as_str() {
        "py" | "python3" => PYTHON.to_owned(),
        "js" => JAVASCRIPT.to_owned(),
        "ts" => TYPESCRIPT.to_owned(),
        "sh" => "bash".to_owned(),
        _ => lower,
    }
}

/// The kernel for a language: one of that name, or else one that declares that language.
fn pick(known: &[Kernelspec], name: &str) -> Option<String> {
    let named = known.iter().find(|spec| spec.name.eq_ignore_ascii_case(name));
    let speaks = |language: &str| known.iter().find(|spec| canonical(&spec.language) == language);
    // TypeScript is JavaScript with types.
    let typed = || (name == JAVASCRIPT).then(|| speaks(TYPESCRIPT)).flatten();
    named.or_else(|| speaks(name)).or_else(typed).map(|spec| spec.name.clone())
}

/// All languages that can be named: those that kernels declare, and those that are found in another way.
fn listed(known: &[Kernelspec]) -> String {
    let mut languages: Vec<String> = known.iter().map(|spec| canonical(&spec.language)).collect();
    languages.push(PYTHON.to_owned());
    let others = [JAVASCRIPT, TYPESCRIPT, "bash", "java", "r"];
    languages.extend(others.iter().filter(|name| pick(known, name).is_some()).map(|name| (*name).to_owned()));
    languages.retain(|name| !name.is_empty());
    languages.sort_unstable();
    languages.dedup();
    languages.join(", ")
}

/// What to do about a missing language. The template is named for every language, because a client may have guessed a name.
fn hint(name: &str) -> &'static str {
    match name {
        "r" => "Use the template 'code-interpreter-full', or run `sudo apt-get install -y r-cran-irkernel`",
        "java" => "Use the template 'code-interpreter-full', or run `sudo apt-get install -y default-jdk-headless`",
        "bash" => "To add it, run `pip install bash_kernel && python3 -m bash_kernel.install`",
        JAVASCRIPT => "To add it, install Node.js 18 or newer: `sudo apt-get install -y nodejs`",
        TYPESCRIPT => "Use the template 'code-interpreter-v1', or install Deno and run `deno jupyter --install`",
        _ => "The template 'code-interpreter-full' also has R and Java; for others, install a Jupyter kernel",
    }
}

/// Lists the kernels with the driver.
async fn ask(interpreter: &Interpreter) -> Result<Vec<Kernelspec>, StartError> {
    let _pass = interpreter.gate.pass().await;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| StartError::Connection(error.into()))?;
    let pid = spawn(interpreter, write)?;
    let text = tokio::time::timeout(TIMEOUT, read_all(read)).await;
    match text {
        Ok(text) => serde_json::from_slice(&text.map_err(StartError::Connection)?).map_err(|_| StartError::Malformed),
        Err(_) => {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            Err(StartError::TimedOut(TIMEOUT))
        }
    }
}

fn spawn(interpreter: &Interpreter, stdout: OwnedFd) -> Result<Pid, StartError> {
    let null = driver::null()?;
    let start = Start {
        arguments: &["kernels"],
        env: &start::environment(interpreter),
        cwd: "/",
        stdout: stdout.as_fd(),
        stderr: null.as_fd(),
        extra: None,
    };
    driver::spawn(interpreter, &start)
}

async fn read_all(fd: OwnedFd) -> std::io::Result<Vec<u8>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    let mut text = Vec::new();
    pipe::Receiver::from_owned_fd(fd)?.take(MAX_LIST).read_to_end(&mut text).await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(specs: &[(&str, &str)]) -> Vec<Kernelspec> {
        specs.iter().map(|(name, language)| Kernelspec { name: (*name).into(), language: (*language).into() }).collect()
    }

    #[test]
    fn languages_have_short_names_and_no_case() {
        for (wanted, name) in [("PY", "python"), ("Python3", "python"), ("js", "javascript"), ("TS", "typescript")] {
            assert_eq!(canonical(wanted), name);
        }
        assert_eq!(canonical(" R "), "r");
    }

    #[test]
    fn a_kernel_is_found_by_its_name_and_then_by_its_language() {
        let specs = known(&[("deno", "typescript"), ("ir", "R"), ("bash", "bash"), ("typescript", "weird")]);
        assert_eq!(pick(&specs, "r").as_deref(), Some("ir"));
        assert_eq!(pick(&specs, "bash").as_deref(), Some("bash"));
        assert_eq!(pick(&specs, "typescript").as_deref(), Some("typescript"));
        assert_eq!(pick(&specs, "javascript").as_deref(), Some("deno"));
        assert_eq!(pick(&specs, "java"), None);
        let node = known(&[("isopod-node", "javascript")]);
        assert_eq!((pick(&node, "javascript").as_deref(), pick(&node, "typescript")), (Some("isopod-node"), None));
        assert_eq!(listed(&node), "javascript, python");
        assert_eq!(listed(&specs), "bash, javascript, python, r, typescript, weird");
        assert_eq!(listed(&known(&[("deno", "typescript"), ("bash", "")])), "bash, javascript, python, typescript");
    }

    #[test]
    fn a_missing_language_is_named_with_what_to_do() {
        let error =
            LanguageError::Unknown { wanted: "bash".into(), hint: hint("bash"), known: listed(&known(&[("ir", "R")])) };
        let text = error.to_string();
        for part in ["'bash'", "bash_kernel", "python, r"] {
            assert!(text.contains(part), "{text}");
        }
        for name in ["r", "java", "cobol"] {
            assert!(hint(name).contains("'code-interpreter-full'"), "{name}");
        }
    }
}
