//! The instructions and how each is written.

use super::heredoc::Heredoc;
use super::lines::Logical;
use super::words::split_words;
use super::{DockerfileError, Located};

/// A name and what it is set to; not expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value, with quotes; none for an `ARG` without default.
    pub value: Option<String>,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A line for the shell.
    Shell(String),
    /// A program with its arguments.
    Exec(Vec<String>),
}

/// How files are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyFlags {
    /// A stage or an image instead of the context.
    pub from: Option<String>,
    /// `user:group`.
    pub chown: Option<String>,
    /// Permissions.
    pub chmod: Option<String>,
    /// Patterns to leave out.
    pub exclude: Vec<String>,
    /// Keep the directories that lead to each source.
    pub parents: bool,
    /// What a file from the web must be: `sha256:` and its digits.
    pub checksum: Option<String>,
}

/// An instruction. Words are as written, see [`super::expand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Begins a stage.
    From {
        /// Image or stage.
        image: String,
        /// `AS`, in lower case.
        name: Option<String>,
        /// `--platform`.
        platform: Option<String>,
    },
    /// Variables of the build.
    Arg(Vec<Variable>),
    /// Variables of the image.
    Env(Vec<Variable>),
    /// Notes.
    Label(Vec<Variable>),
    /// Runs something.
    Run {
        /// What.
        command: Command,
        /// Its here-documents.
        heredocs: Vec<Heredoc>,
        /// Paths of `--mount=type=cache`.
        caches: Vec<String>,
        /// `--network=none`.
        is_offline: bool,
    },
    /// Copies files; `ADD` also unpacks and fetches.
    Copy {
        /// How.
        flags: CopyFlags,
        /// What.
        sources: Vec<String>,
        /// Files that stand in the Dockerfile.
        heredocs: Vec<Heredoc>,
        /// Where to.
        destination: String,
        /// Whether it is `ADD`.
        is_add: bool,
    },
    /// Changes the directory.
    Workdir(String),
    /// Changes the user.
    User(String),
    /// Changes the shell.
    Shell(Vec<String>),
    /// What a container runs.
    Entrypoint(Command),
    /// What a container runs, or arguments to it.
    Cmd(Command),
    /// Ports.
    Expose(Vec<String>),
    /// Directories with data.
    Volume(Vec<String>),
    /// How to see whether a container is well; none turns it off.
    Healthcheck(Option<Command>),
    /// How a container is stopped.
    Stopsignal(String),
    /// For builds that start from the result.
    Onbuild(String),
    /// Who wrote it.
    Maintainer(String),
}

pub(super) fn parse(line: &Logical, escape: char) -> Result<Located, DockerfileError> {
    let (word, rest) = line.text.split_once(char::is_whitespace).unwrap_or((&line.text, ""));
    let parser = Parser { line, escape, word: word.to_ascii_uppercase() };
    let instruction = parser.instruction(rest.trim())?;
    Ok(Located { line: line.number, text: line.text.clone(), instruction })
}

/// Names with their values, and what follows them.
type Flags<'t> = (Vec<(&'t str, Option<&'t str>)>, &'t str);

struct Parser<'a> {
    line: &'a Logical,
    escape: char,
    word: String,
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> DockerfileError {
        DockerfileError::new(self.line.number, message)
    }

    fn instruction(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        let known = [
            "FROM",
            "ARG",
            "ENV",
            "LABEL",
            "RUN",
            "COPY",
            "ADD",
            "WORKDIR",
            "USER",
            "SHELL",
            "ENTRYPOINT",
            "CMD",
            "EXPOSE",
            "VOLUME",
            "HEALTHCHECK",
            "STOPSIGNAL",
            "ONBUILD",
            "MAINTAINER",
        ];
        if !known.contains(&self.word.as_str()) {
            return Err(self.error(format!("there is no instruction {:?}", self.word)));
        }
        let may_be_empty = matches!(self.word.as_str(), "CMD" | "ENTRYPOINT");
        if rest.is_empty() && !may_be_empty {
            return Err(self.error(format!("{} says nothing", self.word)));
        }
        match self.word.as_str() {
            "FROM" => self.from(rest),
            "ARG" => self.variables(rest, true).map(Instruction::Arg),
            "ENV" => self.variables(rest, false).map(Instruction::Env),
            "LABEL" => self.variables(rest, false).map(Instruction::Label),
            "RUN" => self.run(rest),
            "COPY" | "ADD" => self.copy(rest),
            "WORKDIR" => Ok(Instruction::Workdir(rest.to_owned())),
            "USER" => Ok(Instruction::User(self.only_word(rest)?)),
            "SHELL" => self.shell(rest),
            "ENTRYPOINT" => Ok(Instruction::Entrypoint(self.command(rest)?)),
            "CMD" => Ok(Instruction::Cmd(self.command(rest)?)),
            "EXPOSE" => Ok(Instruction::Expose(split_words(rest, self.escape))),
            "VOLUME" => Ok(Instruction::Volume(self.list(rest)?)),
            "HEALTHCHECK" => self.healthcheck(rest),
            "STOPSIGNAL" => Ok(Instruction::Stopsignal(self.only_word(rest)?)),
            "ONBUILD" => self.onbuild(rest),
            _ => Ok(Instruction::Maintainer(rest.to_owned())),
        }
    }

    fn from(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        let (flags, rest) = flags_of(rest);
        let mut platform = None;
        for (name, value) in flags {
            match name {
                "platform" => platform = value.map(str::to_owned),
                other => return Err(self.error(format!("FROM has no flag --{other}"))),
            }
        }
        match &split_words(rest, self.escape)[..] {
            [image] => Ok(Instruction::From { image: image.clone(), name: None, platform }),
            [image, word, name] if word.eq_ignore_ascii_case("AS") => {
                let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
                if !is_name {
                    return Err(self.error(format!("{name:?} cannot be the name of a stage")));
                }
                Ok(Instruction::From { image: image.clone(), name: Some(name.to_lowercase()), platform })
            }
            _ => Err(self.error("FROM is written: FROM image [AS name]")),
        }
    }

    /// `a=b c="d e"`, or the old form `a b` with one variable.
    fn variables(&self, rest: &str, may_lack_value: bool) -> Result<Vec<Variable>, DockerfileError> {
        let words = split_words(rest, self.escape);
        let is_old = !may_lack_value && !words[0].contains('=');
        if is_old {
            let (name, value) = rest
                .split_once(char::is_whitespace)
                .ok_or_else(|| self.error(format!("{} {rest} has no value", self.word)))?;
            return Ok(vec![self.variable(name, Some(value.trim()))?]);
        }
        let variables = words.iter().map(|word| match word.split_once('=') {
            Some((name, value)) => self.variable(name, Some(value)),
            None if may_lack_value => self.variable(word, None),
            None => Err(self.error(format!("{word:?} has no ="))),
        });
        variables.collect()
    }

    fn variable(&self, name: &str, value: Option<&str>) -> Result<Variable, DockerfileError> {
        let name = name.trim_matches(['"', '\'']);
        if name.is_empty() {
            return Err(self.error("a variable has no name"));
        }
        Ok(Variable { name: name.to_owned(), value: value.map(str::to_owned) })
    }

    fn run(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        let (flags, rest) = flags_of(rest);
        let mut caches = Vec::new();
        let mut is_offline = false;
        for (name, value) in flags {
            match (name, value.unwrap_or_default()) {
                ("mount", mount) => caches.push(self.cache_mount(mount)?),
                ("network", "default") | ("security", "sandbox") => {}
                ("network", "none") => is_offline = true,
                (other, value) => return Err(self.error(format!("RUN --{other}={value} is not supported"))),
            }
        }
        if rest.is_empty() {
            return Err(self.error("RUN says nothing"));
        }
        let heredocs = self.line.heredocs.clone();
        Ok(Instruction::Run { command: self.command(rest)?, heredocs, caches, is_offline })
    }

    fn cache_mount(&self, text: &str) -> Result<String, DockerfileError> {
        let field = |wanted: &[&str]| {
            text.split(',').filter_map(|pair| pair.split_once('=')).find(|(name, _)| wanted.contains(name))
        };
        match (field(&["type"]), field(&["target", "dst", "destination"])) {
            (Some((_, "cache")), Some((_, target))) => Ok(target.to_owned()),
            (Some((_, "cache")), None) => Err(self.error("--mount=type=cache has no target")),
            _ => Err(self.error(format!("RUN --mount={text} is not supported: only type=cache is"))),
        }
    }

    fn copy(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        let (given, rest) = flags_of(rest);
        let is_add = self.word == "ADD";
        let mut flags = CopyFlags::default();
        for (name, value) in given {
            let text = || value.map(str::to_owned).ok_or_else(|| self.error(format!("--{name} has no value")));
            match name {
                "from" if !is_add => flags.from = Some(text()?),
                "chown" => flags.chown = Some(text()?),
                "chmod" => flags.chmod = Some(text()?),
                "exclude" => flags.exclude.push(text()?),
                "checksum" if is_add => flags.checksum = Some(text()?),
                "parents" if !is_add => flags.parents = value != Some("false"),
                // It only says that layers may be used again apart from what is below; ours always stand on it.
                "link" => {}
                other => return Err(self.error(format!("{} --{other} is not supported", self.word))),
            }
        }
        let mut words = self.list(rest)?;
        let destination = words.pop().unwrap_or_default();
        words.retain(|word| !word.starts_with("<<"));
        let heredocs = self.line.heredocs.clone();
        if words.is_empty() && heredocs.is_empty() {
            return Err(self.error(format!("{} takes sources and a destination", self.word)));
        }
        let many = words.len() + heredocs.len() > 1;
        if many && !destination.ends_with('/') && !matches!(destination.as_str(), "." | "..") {
            return Err(self.error(format!("with several sources the destination {destination} must end in /")));
        }
        Ok(Instruction::Copy { flags, sources: words, heredocs, destination, is_add })
    }

    fn shell(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        match json_list(rest) {
            Some(words) if !words.is_empty() => Ok(Instruction::Shell(words)),
            _ => Err(self.error("SHELL takes a JSON list such as [\"/bin/bash\", \"-c\"]")),
        }
    }

    fn healthcheck(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        let (flags, rest) = flags_of(rest);
        let known = ["interval", "timeout", "start-period", "start-interval", "retries"];
        if let Some((name, _)) = flags.iter().find(|(name, _)| !known.contains(name)) {
            return Err(self.error(format!("HEALTHCHECK has no flag --{name}")));
        }
        match rest.split_once(char::is_whitespace) {
            None if rest.eq_ignore_ascii_case("NONE") => Ok(Instruction::Healthcheck(None)),
            Some((word, command)) if word.eq_ignore_ascii_case("CMD") => {
                Ok(Instruction::Healthcheck(Some(self.command(command.trim())?)))
            }
            _ => Err(self.error("HEALTHCHECK takes CMD and a command, or NONE")),
        }
    }

    fn onbuild(&self, rest: &str) -> Result<Instruction, DockerfileError> {
        let inner = Logical { text: rest.to_owned(), ..self.line.clone() };
        match parse(&inner, self.escape)?.instruction {
            Instruction::Onbuild(_) | Instruction::From { .. } | Instruction::Maintainer(_) => {
                Err(self.error("ONBUILD takes neither ONBUILD nor FROM nor MAINTAINER"))
            }
            _ if !self.line.heredocs.is_empty() => Err(self.error("ONBUILD with a here-document is not supported")),
            _ => Ok(Instruction::Onbuild(rest.to_owned())),
        }
    }

    fn command(&self, rest: &str) -> Result<Command, DockerfileError> {
        match json_list(rest) {
            Some(words) if words.is_empty() && self.word == "RUN" => Err(self.error("RUN [] says nothing")),
            Some(words) => Ok(Command::Exec(words)),
            None => Ok(Command::Shell(rest.to_owned())),
        }
    }

    fn list(&self, rest: &str) -> Result<Vec<String>, DockerfileError> {
        let words = json_list(rest).unwrap_or_else(|| split_words(rest, self.escape));
        if words.is_empty() { Err(self.error(format!("{} says nothing", self.word))) } else { Ok(words) }
    }

    fn only_word(&self, rest: &str) -> Result<String, DockerfileError> {
        match &split_words(rest, self.escape)[..] {
            [word] => Ok(word.clone()),
            _ => Err(self.error(format!("{} takes one word", self.word))),
        }
    }
}

/// `--name` and `--name=value` in front.
fn flags_of(rest: &str) -> Flags<'_> {
    let mut flags = Vec::new();
    let mut rest = rest;
    while let Some(flag) = rest.strip_prefix("--") {
        let (flag, after) = flag.split_once(char::is_whitespace).unwrap_or((flag, ""));
        rest = after.trim_start();
        if flag.is_empty() {
            break;
        }
        flags.push(match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.trim_matches('"'))),
            None => (flag, None),
        });
    }
    (flags, rest)
}

fn json_list(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}
