//! The instructions and their syntax.

use super::heredoc::Heredoc;
use super::lines::Logical;
use super::words::split_words;
use super::{DockerfileError, Located};

/// A name and its value, not expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    /// The value with its quotes. `None` for an `ARG` without a default.
    pub value: Option<String>,
}

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A line for the shell.
    Shell(String),
    /// A program and its arguments.
    Exec(Vec<String>),
}

/// Options for copying files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyFlags {
    /// A stage or an image to copy from, instead of the context.
    pub from: Option<String>,
    /// The owner, as `user:group`.
    pub chown: Option<String>,
    pub chmod: Option<String>,
    /// Patterns of files to leave out.
    pub exclude: Vec<String>,
    /// Whether to keep the directories that lead to each source.
    pub parents: bool,
    /// The expected hash of a file from the web: `sha256:` and its digits.
    pub checksum: Option<String>,
}

/// An instruction. Words are not expanded, see [`super::expand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Starts a stage.
    From {
        /// An image or an earlier stage.
        image: String,
        /// The name after `AS`, in lowercase.
        name: Option<String>,
        /// The value of `--platform`.
        platform: Option<String>,
    },
    /// Variables for the build.
    Arg(Vec<Variable>),
    /// Variables for the image.
    Env(Vec<Variable>),
    /// Metadata of the image.
    Label(Vec<Variable>),
    /// Runs a command.
    Run {
        command: Command,
        heredocs: Vec<Heredoc>,
        /// The paths of `--mount=type=cache`.
        caches: Vec<String>,
        /// Whether `--network=none` is given.
        is_offline: bool,
    },
    /// Copies files. `ADD` also unpacks archives and downloads files.
    Copy {
        flags: CopyFlags,
        sources: Vec<String>,
        /// Files whose content is in the Dockerfile.
        heredocs: Vec<Heredoc>,
        destination: String,
        /// Whether the instruction is `ADD`.
        is_add: bool,
    },
    /// Changes the working directory.
    Workdir(String),
    /// Changes the user.
    User(String),
    /// Changes the shell.
    Shell(Vec<String>),
    /// The program that a container runs.
    Entrypoint(Command),
    /// The program that a container runs, or arguments for the entrypoint.
    Cmd(Command),
    /// The ports that a container listens on.
    Expose(Vec<String>),
    /// Directories for data.
    Volume(Vec<String>),
    /// How to check the health of a container. `None` disables the check.
    Healthcheck(Option<Command>),
    /// The signal that stops a container.
    Stopsignal(String),
    /// An instruction for builds that start from the result.
    Onbuild(String),
    /// The author.
    Maintainer(String),
}

pub(super) fn parse(line: &Logical, escape: char) -> Result<Located, DockerfileError> {
    let (word, rest) = line.text.split_once(char::is_whitespace).unwrap_or((&line.text, ""));
    let parser = Parser { line, escape, word: word.to_ascii_uppercase() };
    let instruction = parser.instruction(rest.trim())?;
    Ok(Located { line: line.number, text: line.text.clone(), instruction })
}

/// Flags with their values, and the rest of the line.
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
            return Err(self.error(format!("unknown instruction {:?}", self.word)));
        }
        let may_be_empty = matches!(self.word.as_str(), "CMD" | "ENTRYPOINT");
        if rest.is_empty() && !may_be_empty {
            return Err(self.error(format!("{} has no arguments", self.word)));
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
                    return Err(self.error(format!("{name:?} is not a valid name for a stage")));
                }
                Ok(Instruction::From { image: image.clone(), name: Some(name.to_lowercase()), platform })
            }
            _ => Err(self.error("FROM takes an image and an optional name: FROM image [AS name]")),
        }
    }

    /// Parses `a=b c="d e"`, or the old form `a b` with one variable.
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
            None => Err(self.error(format!("{word:?} has no = after the name"))),
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
            return Err(self.error("RUN has no command"));
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
            _ => Err(self.error(format!("RUN --mount={text} is not supported; only type=cache is"))),
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
                // This flag lets Docker reuse a layer independently of the layers below it. Our layers always depend on
                // those.
                "link" => {}
                other => return Err(self.error(format!("{} --{other} is not supported", self.word))),
            }
        }
        let mut words = self.list(rest)?;
        let destination = words.pop().unwrap_or_default();
        words.retain(|word| !word.starts_with("<<"));
        let heredocs = self.line.heredocs.clone();
        if words.is_empty() && heredocs.is_empty() {
            return Err(self.error(format!("{} needs at least one source and a destination", self.word)));
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
            Some(words) if words.is_empty() && self.word == "RUN" => Err(self.error("RUN [] has no command")),
            Some(words) => Ok(Command::Exec(words)),
            None => Ok(Command::Shell(rest.to_owned())),
        }
    }

    fn list(&self, rest: &str) -> Result<Vec<String>, DockerfileError> {
        let words = json_list(rest).unwrap_or_else(|| split_words(rest, self.escape));
        if words.is_empty() { Err(self.error(format!("{} has no arguments", self.word))) } else { Ok(words) }
    }

    fn only_word(&self, rest: &str) -> Result<String, DockerfileError> {
        match &split_words(rest, self.escape)[..] {
            [word] => Ok(word.clone()),
            _ => Err(self.error(format!("{} takes one word", self.word))),
        }
    }
}

/// Parses `--name` and `--name=value` at the start.
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
