//! A template's directory: its `e2b.toml`, its Dockerfile, and the files around them. Everything that is wrong is told
//! with file and line, before anything is sent.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use isopod_image::dockerfile::{Dockerfile, IgnoreRules, Instruction, Located, glob_matches};
use serde::{Deserialize, Serialize};

use crate::failure::Hint;

pub(super) const CONFIG: &str = "e2b.toml";
const DOCKERFILES: [&str; 2] = ["e2b.Dockerfile", "Dockerfile"];
/// Where `isopod template init` writes.
const SUBDIRECTORY: &str = ".e2b";

/// What stands in an `e2b.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    pub(super) template_id: Option<String>,
    pub(super) template_name: Option<String>,
    pub(super) dockerfile: Option<String>,
    pub(super) start_cmd: Option<String>,
    pub(super) ready_cmd: Option<String>,
    pub(super) cpu_count: Option<u32>,
    pub(super) memory_mb: Option<u64>,
    /// Of the account that it was written for; a key decides here.
    pub(super) team_id: Option<String>,
}

/// A directory with all that a build needs.
#[derive(Debug)]
pub(super) struct Project {
    pub(super) dir: PathBuf,
    pub(super) config: Config,
    /// Relative to the directory.
    pub(super) dockerfile: String,
    /// Instructions of the whole file: what progress is counted against.
    pub(super) steps: usize,
    pub(super) ignore: IgnoreRules,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Reads a directory: the one that was named, else this one, else `.e2b`. What is wrong comes as findings.
pub(super) fn read(dir: Option<&Path>, dockerfile: Option<&str>) -> anyhow::Result<Result<Project, Vec<Finding>>> {
    let dir = find(dir, dockerfile)?;
    let mut findings = Vec::new();
    let config = match read_config(&dir)? {
        Ok(config) => config,
        Err(finding) => return Ok(Err(vec![finding])),
    };
    let named = dockerfile.map(str::to_owned).or_else(|| config.dockerfile.clone());
    let name = match named.or_else(|| DOCKERFILES.iter().find(|name| dir.join(name).is_file()).map(ToString::to_string))
    {
        Some(name) => name,
        None => {
            let message = format!("there is neither {} nor {}", DOCKERFILES[0], DOCKERFILES[1]);
            return Ok(Err(vec![Finding { file: dir.display().to_string(), line: 1, message }]));
        }
    };
    let text = match std::fs::read_to_string(dir.join(&name)) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("the Dockerfile {name:?} cannot be read: {error}");
            return Ok(Err(vec![Finding { file: CONFIG.to_owned(), line: line_of_key(&dir, "dockerfile"), message }]));
        }
    };
    let ignore = read_ignore(&dir)?;
    let steps = match Dockerfile::parse(&text) {
        Err(error) => {
            findings.push(Finding { file: name.clone(), line: error.line as usize, message: error.message });
            0
        }
        Ok(file) => {
            findings.extend(check_file(&dir, &name, &file, &ignore));
            file.stages.iter().map(|stage| stage.instructions.len()).sum()
        }
    };
    if !findings.is_empty() {
        return Ok(Err(findings));
    }
    Ok(Ok(Project { dir, config, dockerfile: name, steps, ignore }))
}

fn find(dir: Option<&Path>, dockerfile: Option<&str>) -> anyhow::Result<PathBuf> {
    let has = |dir: &Path| {
        let mut names = [CONFIG].into_iter().chain(DOCKERFILES).chain(dockerfile);
        names.any(|name| dir.join(name).is_file())
    };
    let candidates: Vec<PathBuf> = match dir {
        Some(dir) => vec![dir.to_owned()],
        None => vec![PathBuf::from("."), PathBuf::from(SUBDIRECTORY)],
    };
    candidates.iter().find(|dir| has(dir)).cloned().ok_or_else(|| {
        let place = dir.map_or("here".to_owned(), |dir| format!("in {}", dir.display()));
        Hint::new(format!("there is no {CONFIG} and no Dockerfile {place}"), "isopod template init NAME writes both")
    })
}

fn read_config(dir: &Path) -> anyhow::Result<Result<Config, Finding>> {
    let path = dir.join(CONFIG);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Ok(Config::default())),
        Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
    };
    Ok(toml::from_str(&text).map_err(|error| Finding {
        file: CONFIG.to_owned(),
        line: line_at(&text, error.span()),
        message: error.message().to_owned(),
    }))
}

fn line_at(text: &str, span: Option<Range<usize>>) -> usize {
    let end = span.map_or(0, |span| span.start.min(text.len()));
    text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn line_of_key(dir: &Path, key: &str) -> usize {
    let text = std::fs::read_to_string(dir.join(CONFIG)).unwrap_or_default();
    text.lines().position(|line| line.trim_start().starts_with(key)).map_or(1, |index| index + 1)
}

pub(super) fn read_ignore(dir: &Path) -> anyhow::Result<IgnoreRules> {
    match std::fs::read_to_string(dir.join(".dockerignore")) {
        Ok(text) => IgnoreRules::parse(&text).context("could not use .dockerignore"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(IgnoreRules::default()),
        Err(error) => Err(error).context("could not read .dockerignore"),
    }
}

/// What copies something that is not there. Words with variables cannot be told ahead of the build.
fn check_file(dir: &Path, name: &str, file: &Dockerfile, ignore: &IgnoreRules) -> Vec<Finding> {
    let finding =
        |located: &Located, message: String| Finding { file: name.to_owned(), line: located.line as usize, message };
    let mut findings = Vec::new();
    for located in file.stages.iter().flat_map(|stage| &stage.instructions) {
        let Instruction::Copy { flags, sources, is_add, .. } = &located.instruction else { continue };
        if flags.from.is_some() {
            continue;
        }
        for source in sources.iter().filter(|source| !source.contains('$')) {
            if *is_add && (source.contains("://") || source.starts_with("git@")) {
                continue;
            }
            if let Some(message) = missing(dir, source, ignore) {
                findings.push(finding(located, message));
            }
        }
    }
    findings
}

fn missing(dir: &Path, source: &str, ignore: &IgnoreRules) -> Option<String> {
    let parts: Vec<&str> = source.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Some(format!("{source:?} is outside the directory"));
    }
    let path = parts.join("/");
    if path.contains(['*', '?', '[']) {
        let matches = super::pack::entries(dir, ignore).ok()?.iter().any(|entry| glob_matches(&path, &entry.name));
        return (!matches).then(|| format!("nothing in the directory is like {source:?}"));
    }
    if std::fs::symlink_metadata(dir.join(&path)).is_err() {
        return Some(format!("{source:?} is not in the directory"));
    }
    let ignored = !path.is_empty() && ignore.ignores(&path) && !ignore.has_exceptions();
    ignored.then(|| format!("{source:?} is left out by .dockerignore"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let dir = project(files);
        match read(Some(dir.path()), None).unwrap() {
            Ok(_) => Vec::new(),
            Err(findings) => findings.iter().map(ToString::to_string).collect(),
        }
    }

    /// All fields, one with its number in groups.
    #[test]
    fn the_fields_of_an_e2b_toml_are_read() {
        let toml = "template_id = \"scwxnhs1apt5uj7na7db\"\ndockerfile = \"e2b.Dockerfile\"\n\
            template_name = \"nextjs-developer\"\nstart_cmd = \"/compile_page.sh\"\nready_cmd = \"curl localhost:3000\"\n\
            cpu_count = 4\nmemory_mb = 4_096\nteam_id = \"460355b3-4f64-48f9-9a16-4442817f79f5\"\n";
        let dir = project(&[("e2b.toml", toml), ("e2b.Dockerfile", "FROM node:21-slim\nRUN true\n")]);
        let read = read(Some(dir.path()), None).unwrap().unwrap();
        let text = |text: &str| Some(text.to_owned());
        let all = Config {
            template_id: text("scwxnhs1apt5uj7na7db"),
            template_name: text("nextjs-developer"),
            dockerfile: text("e2b.Dockerfile"),
            start_cmd: text("/compile_page.sh"),
            ready_cmd: text("curl localhost:3000"),
            cpu_count: Some(4),
            memory_mb: Some(4096),
            team_id: text("460355b3-4f64-48f9-9a16-4442817f79f5"),
        };
        assert_eq!(read.config, all);
        assert_eq!((read.dockerfile.as_str(), read.steps), ("e2b.Dockerfile", 1));
    }

    /// Validation with file and line.
    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let good = ("e2b.Dockerfile", "FROM debian\n");
        let wrong = findings(&[("e2b.toml", "cpu_count = 2\nmemory_mb = \"much\"\n"), good]);
        assert!(wrong[0].starts_with("e2b.toml:2: "), "{wrong:?}");
        let wrong = findings(&[("e2b.toml", "template_name = \"a\"\n\ncolour = 1\n"), good]);
        assert!(wrong[0].starts_with("e2b.toml:3: ") && wrong[0].contains("colour"), "{wrong:?}");
        let wrong = findings(&[("e2b.toml", "\ndockerfile = \"none\"\n"), good]);
        assert!(wrong[0].starts_with("e2b.toml:2: "), "{wrong:?}");
        let wrong = findings(&[("e2b.Dockerfile", "FROM debian\nRUN a \\\n  b\nJUMP high\n")]);
        assert!(wrong[0].starts_with("e2b.Dockerfile:4: "), "{wrong:?}");
        let file =
            "FROM debian\nCOPY here.txt /\nCOPY gone.txt /\nCOPY ../up /\nCOPY *.rs /\nCOPY $X /\nCOPY --from=x y /\n";
        let wrong = findings(&[("e2b.Dockerfile", file), ("here.txt", "")]);
        let lines: Vec<&str> = wrong.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(lines, ["e2b.Dockerfile:3", "e2b.Dockerfile:4", "e2b.Dockerfile:5"], "{wrong:?}");
        let ignored =
            [(".dockerignore", "secret\n"), ("e2b.Dockerfile", "FROM debian\nCOPY secret /\n"), ("secret", "")];
        assert!(findings(&ignored)[0].contains("left out by .dockerignore"));
    }

    #[test]
    fn a_directory_without_either_file_is_told() {
        let dir = project(&[]);
        assert!(read(Some(dir.path()), None).is_err());
    }
}
