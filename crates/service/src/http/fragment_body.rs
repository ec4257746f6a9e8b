//! The schema of a fragment, as E2B's fragments app asks models for it, and how a fragment is checked. A model wrote it,
//! so whatever is missing is derived if that is possible, and unknown fields are ignored.

use std::time::Duration;

use isopod_api::ApiError;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::Service;
use crate::{Fragment, FragmentAction, FragmentFile};

/// A fragment. Other fields of E2B's schema (`commentary`, `description`) are accepted and ignored.
#[derive(Deserialize, ToSchema)]
#[schema(as = Fragment)]
pub(super) struct FragmentBody {
    #[schema(min_length = 1, max_length = 256)]
    template: String,
    /// The code of one file, or a list of files.
    #[schema(value_type = FragmentCode)]
    code: Value,
    /// Where the code belongs, and with several files, which of them is run. Relative to the home directory.
    #[schema(max_length = 1024)]
    file_path: Option<String>,
    title: Option<String>,
    /// The port of the app. Without it, the code is run in the interpreter.
    #[schema(minimum = 1, maximum = 65535)]
    port: Option<u16>,
    additional_dependencies: Option<Vec<String>>,
    has_additional_dependencies: Option<bool>,
    /// A shell line. Without it, pip or npm installs the additional dependencies.
    install_dependencies_command: Option<String>,
    /// Installs what the files package.json and requirements.txt name.
    install_dependencies: Option<bool>,
    /// A shell line that starts the app, for templates that don't.
    start_command: Option<String>,
    /// How long the sandbox lives, in seconds.
    #[schema(minimum = 30, maximum = 3600)]
    timeout_seconds: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = FragmentCode)]
#[expect(dead_code, reason = "only describes the schema; the values are parsed by hand, for better errors")]
enum FragmentCode {
    Text(String),
    Files(Vec<FileBody>),
}

#[derive(Deserialize, ToSchema)]
#[schema(as = FragmentFile)]
struct FileBody {
    file_path: String,
    file_content: String,
}

/// A template that E2B's fragments app knows.
struct KnownTemplate {
    name: &'static str,
    file: &'static str,
    /// `None` if code runs in its interpreter.
    port: Option<u16>,
}

const KNOWN_TEMPLATES: [KnownTemplate; 8] = [
    KnownTemplate { name: "code-interpreter-v1", file: "script.py", port: None },
    KnownTemplate { name: "code-interpreter-full", file: "script.py", port: None },
    KnownTemplate { name: "code-interpreter", file: "script.py", port: None },
    KnownTemplate { name: "python3", file: "script.py", port: None },
    KnownTemplate { name: "nextjs-developer", file: "pages/index.tsx", port: Some(3000) },
    KnownTemplate { name: "vue-developer", file: "app/app.vue", port: Some(3000) },
    KnownTemplate { name: "streamlit-developer", file: "app.py", port: Some(8501) },
    KnownTemplate { name: "gradio-developer", file: "app.py", port: Some(7860) },
];

const DEFAULT_LIFETIME: u64 = 600;
const MIN_LIFETIME: u64 = 30;
const MAX_LIFETIME: u64 = 3600;
const MAX_FILES: usize = 100;
const MAX_PATH: usize = 1024;
const MAX_DEPENDENCIES: usize = 100;
const MAX_LINE: usize = 16 << 10;
const MAX_TITLE: usize = 200;

impl FragmentBody {
    pub(super) fn checked(self, service: &Service) -> Result<Fragment, ApiError> {
        if self.template.is_empty() || self.template.len() > 256 {
            return Err(ApiError::bad_request("template must have 1 to 256 characters"));
        }
        let known = known_template(&self.template);
        let files = self.files(known)?;
        let entry = self.entry(&files)?;
        let mut install = self.additional_install(&entry.path)?;
        let manifests: Vec<FragmentFile> = match self.install_dependencies {
            Some(true) => files.iter().filter(|file| install_line(&file.path).is_some()).cloned().collect(),
            _ => Vec::new(),
        };
        install.extend(manifests.iter().filter_map(|file| install_line(&file.path)));
        let action = self.action(known, &entry)?;
        Ok(Fragment {
            title: self.title.map(|title| title.replace('\0', " ").chars().take(MAX_TITLE).collect()),
            template: self.template,
            manifests,
            install,
            files,
            action,
            lifetime: checked_lifetime(service, self.timeout_seconds)?,
        })
    }

    fn files(&self, known: Option<&KnownTemplate>) -> Result<Vec<FragmentFile>, ApiError> {
        let files = match &self.code {
            Value::String(code) => {
                let path = self.file_path.clone().or_else(|| known.map(|known| known.file.to_owned()));
                let missing = || ApiError::bad_request("file_path is missing: say where the code belongs");
                vec![FragmentFile { path: path.ok_or_else(missing)?, contents: code.clone() }]
            }
            Value::Array(files) => files.iter().map(listed_file).collect::<Result<_, _>>()?,
            _ => return Err(ApiError::bad_request("code must be text or a list of {file_path, file_content}")),
        };
        if files.is_empty() || files.len() > MAX_FILES {
            return Err(ApiError::bad_request(format!("code must have 1 to {MAX_FILES} files")));
        }
        for (index, file) in files.iter().enumerate() {
            check_path(&file.path)?;
            if files[..index].iter().any(|earlier| earlier.path == file.path) {
                return Err(ApiError::bad_request(format!("two files have the path {:?}", file.path)));
            }
        }
        Ok(files)
    }

    /// The file that is run.
    fn entry(&self, files: &[FragmentFile]) -> Result<FragmentFile, ApiError> {
        let entry = match &self.file_path {
            Some(path) => files.iter().find(|file| file.path == *path),
            None => files.first(),
        };
        let missing = || ApiError::bad_request("file_path must be the path of one of the files");
        entry.cloned().ok_or_else(missing)
    }

    fn additional_install(&self, entry: &str) -> Result<Vec<String>, ApiError> {
        if self.has_additional_dependencies == Some(false) {
            return Ok(Vec::new());
        }
        let command = self.install_dependencies_command.as_deref().unwrap_or_default().trim();
        let dependencies = self.additional_dependencies.as_deref().unwrap_or_default();
        match (command, dependencies) {
            ("", []) => Ok(Vec::new()),
            ("", dependencies) => Ok(vec![install_dependencies(entry, dependencies)?]),
            (command, _) => Ok(vec![checked_line("install_dependencies_command", command)?]),
        }
    }

    fn action(&self, known: Option<&KnownTemplate>, entry: &FragmentFile) -> Result<FragmentAction, ApiError> {
        let start = self.start_command.as_deref().map(str::trim).filter(|line| !line.is_empty());
        let start = start.map(|line| checked_line("start_command", line)).transpose()?;
        let runs_code = known.is_some_and(|known| known.port.is_none()) && start.is_none();
        let port = self.port.or_else(|| known.and_then(|known| known.port)).filter(|_| !runs_code);
        match (port, start) {
            (Some(0), _) => Err(ApiError::bad_request("port must be 1 to 65535")),
            (Some(port), start) => Ok(FragmentAction::StartApp { port, start }),
            (None, Some(_)) => Err(ApiError::bad_request("start_command needs port: where the app listens")),
            (None, None) => Ok(FragmentAction::RunCode {
                code: entry.contents.clone(),
                language: language_of(&entry.path).map(str::to_owned),
            }),
        }
    }
}

/// Finds it with a tag or with the suffix that E2B's app appends in development.
fn known_template(name: &str) -> Option<&'static KnownTemplate> {
    let name = name.split(':').next().unwrap_or(name);
    let name = name.strip_suffix("-dev").unwrap_or(name);
    KNOWN_TEMPLATES.iter().find(|known| known.name == name)
}

fn listed_file(value: &Value) -> Result<FragmentFile, ApiError> {
    let file: FileBody = serde_json::from_value(value.clone())
        .map_err(|error| ApiError::bad_request(format!("code must be text or a list of files: {error}")))?;
    Ok(FragmentFile { path: file.file_path, contents: file.file_content })
}

fn check_path(path: &str) -> Result<(), ApiError> {
    let is_plain = !path.ends_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    if (1..=MAX_PATH).contains(&path.len()) && is_plain {
        return Ok(());
    }
    let shown: String = path.chars().take(64).collect();
    let message =
        format!("{shown:?} can't be the path of a file: use 1 to {MAX_PATH} bytes, no .. and no / at the end");
    Err(ApiError::bad_request(message))
}

fn checked_line(field: &str, line: &str) -> Result<String, ApiError> {
    if line.len() > MAX_LINE || line.contains('\0') {
        return Err(ApiError::bad_request(format!("{field} must have at most {MAX_LINE} bytes and no zero byte")));
    }
    Ok(line.to_owned())
}

pub(super) fn checked_lifetime(service: &Service, seconds: Option<u64>) -> Result<Duration, ApiError> {
    let longest = service.fleet.max_lifetime().min(service.config.stale_after);
    match seconds {
        None => Ok(Duration::from_secs(DEFAULT_LIFETIME).min(longest)),
        Some(seconds) if (MIN_LIFETIME..=MAX_LIFETIME).contains(&seconds) => {
            Ok(Duration::from_secs(seconds).min(longest))
        }
        Some(_) => {
            let message = format!("timeout_seconds must be {MIN_LIFETIME} to {MAX_LIFETIME}");
            Err(ApiError::bad_request(message))
        }
    }
}

/// The command for dependencies of a file in this language.
fn install_dependencies(entry: &str, dependencies: &[String]) -> Result<String, ApiError> {
    if dependencies.len() > MAX_DEPENDENCIES {
        return Err(ApiError::bad_request(format!("at most {MAX_DEPENDENCIES} additional_dependencies")));
    }
    if let Some(odd) = dependencies.iter().find(|name| !is_dependency(name)) {
        let shown: String = odd.chars().take(64).collect();
        return Err(ApiError::bad_request(format!(
            "{shown:?} can't be a dependency; send install_dependencies_command"
        )));
    }
    let program = match extension_of(entry) {
        "py" | "ipynb" => "pip install",
        "js" | "jsx" | "mjs" | "cjs" | "ts" | "tsx" | "vue" => "npm install",
        _ => return Err(ApiError::bad_request("send install_dependencies_command for this kind of file")),
    };
    let quoted: Vec<String> = dependencies.iter().map(|name| quoted(name)).collect();
    Ok(format!("{program} {}", quoted.join(" ")))
}

/// Names with versions, such as `pandas>=2,<3`, `uvicorn[standard]` and `@types/node@20`, and no options.
fn is_dependency(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"@._-/[]<>=~!^,+*".contains(&byte);
    (1..=200).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(is_fine)
}

/// The command that installs what this file names, if it is a manifest.
fn install_line(path: &str) -> Option<String> {
    let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
    match name {
        "package.json" => {
            Some(format!("npm install --prefix {}", quoted(if directory.is_empty() { "/" } else { directory })))
        }
        "requirements.txt" => Some(format!("pip install -r {}", quoted(path))),
        _ => None,
    }
}

/// One word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn extension_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path).rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// The interpreter's language for a file. `None` means Python.
fn language_of(path: &str) -> Option<&'static str> {
    match extension_of(path) {
        "js" | "mjs" | "cjs" => Some("javascript"),
        "ts" => Some("typescript"),
        "sh" | "bash" => Some("bash"),
        "r" | "R" => Some("r"),
        "java" => Some("java"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(fields: Value) -> FragmentBody {
        let mut all = json!({ "template": "t", "code": "x", "file_path": "a.py" });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn action(fields: Value) -> FragmentAction {
        let body = body(fields);
        let known = known_template(&body.template);
        let files = body.files(known).unwrap();
        body.action(known, &body.entry(&files).unwrap()).unwrap()
    }

    #[test]
    fn the_template_and_the_port_decide_what_happens() {
        let runs = |fields| matches!(action(fields), FragmentAction::RunCode { .. });
        assert!(runs(json!({})) && runs(json!({ "template": "code-interpreter-v1", "port": 80 })));
        let app = |port| FragmentAction::StartApp { port, start: None };
        assert_eq!(action(json!({ "port": 80 })), app(80));
        assert_eq!(action(json!({ "template": "streamlit-developer" })), app(8501));
        assert_eq!(action(json!({ "template": "nextjs-developer-dev:v2", "port": null })), app(3000));
        let started = FragmentAction::StartApp { port: 5, start: Some("run".to_owned()) };
        assert_eq!(action(json!({ "template": "python3", "port": 5, "start_command": " run " })), started);
    }

    #[test]
    fn the_file_that_is_run_decides_the_language() {
        let files =
            json!([{ "file_path": "lib.py", "file_content": "1" }, { "file_path": "main.ts", "file_content": "2" }]);
        let of = |code: &str, language: Option<&str>| FragmentAction::RunCode {
            code: code.to_owned(),
            language: language.map(str::to_owned),
        };
        assert_eq!(action(json!({ "code": files, "file_path": "main.ts" })), of("2", Some("typescript")));
        assert_eq!(action(json!({ "code": files, "file_path": null })), of("1", None));
        assert!(body(json!({ "code": files })).files(None).is_ok());
    }

    #[test]
    fn dependencies_become_one_command_without_surprises() {
        let line = |fields| body(fields).additional_install("app.py").map(|lines| lines.join(";")).map_err(drop);
        let listed = json!({ "additional_dependencies": ["pandas>=2", "uvicorn[standard]"] });
        assert_eq!(line(listed), Ok("pip install 'pandas>=2' 'uvicorn[standard]'".to_owned()));
        let given = json!({ "additional_dependencies": ["a"], "install_dependencies_command": "uv pip install a" });
        assert_eq!(line(given), Ok("uv pip install a".to_owned()));
        let off = json!({ "has_additional_dependencies": false, "install_dependencies_command": "rm -rf /" });
        assert_eq!(line(off), Ok(String::new()));
        for odd in ["--index-url=http://x", "a;b", "a b", "$(x)", "", "a'b"] {
            assert_eq!(line(json!({ "additional_dependencies": [odd] })), Err(()), "{odd}");
        }
        assert_eq!(install_line("web's/package.json").unwrap(), r"npm install --prefix 'web'\''s'");
        assert_eq!(install_line("requirements.txt").unwrap(), "pip install -r 'requirements.txt'");
        assert_eq!(install_line("src/app.py"), None);
    }

    #[test]
    fn paths_stay_where_they_say() {
        for good in ["app.py", "pages/index.tsx", "/home/user/app.py", "a..b"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for bad in ["", "a/", "../a", "a/../b", "a\0b", "..", &"x".repeat(MAX_PATH + 1)] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
    }
}
