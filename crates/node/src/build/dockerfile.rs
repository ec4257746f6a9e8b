//! Builds a Dockerfile: the stages that the target needs, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use isopod_image::Digest;
use isopod_image::dockerfile::{
    Command, CopyFlags, Dockerfile, Heredoc, IgnoreRules, Instruction, Located, Stage, Variable, expand, parse_trigger,
};
use isopod_image::unpack::{Bounds, Kind, decompress};
use isopod_wire::build::{BuildPhase, DockerfileSource};

use super::Build;
use super::copy::{COPY, CopyTo, Inline};
use super::source::Source;
use super::stack::{Settings, Stack};
use super::step::{Action, Copy, CopyFrom, Run, digest_of, excluded, find_all, names_a_directory};
use super::step_error::StepError;
use super::view::View;

/// The state of the whole build.
struct Plan<'a> {
    file: Dockerfile,
    source: &'a DockerfileSource,
    /// `ARG`s before the first `FROM`.
    globals: BTreeMap<String, String>,
    /// By stage number. Stages that are not needed stay empty.
    results: Vec<Option<(Stack, Settings)>>,
    total: u32,
    done: u32,
}

/// The state of one stage.
struct StageState {
    stack: Stack,
    settings: Settings,
    /// The `ARG`s declared in this stage.
    args: BTreeMap<String, String>,
}

/// Clients of version 1 send only the Dockerfile.
const NO_CONTEXT: &str = "the client sent no files to copy from; build with `isopod template build`, \
                          or with `isopod env --docker -- e2b template build`";
/// The warning for ENTRYPOINT and CMD.
const NOT_RUN_BUT_EXPORTED: &str =
    "sandboxes do not run it; they run the template's start command. Exported images have it";

impl StageState {
    fn lookup(&self, name: &str) -> Option<String> {
        self.settings.env.get(name).or_else(|| self.args.get(name)).cloned()
    }

    fn set_entrypoint(&mut self, command: &Command) {
        self.settings.container.entrypoint = self.words_of(command);
        // The CMD of the base image was meant for its own entrypoint.
        if !self.settings.has_cmd {
            self.settings.container.cmd = None;
        }
    }

    fn set_cmd(&mut self, command: &Command) {
        self.settings.container.cmd = self.words_of(command);
        self.settings.has_cmd = true;
    }

    /// A command as an image has it. `[]` removes what the base image has.
    fn words_of(&self, command: &Command) -> Option<Vec<String>> {
        let words = match command {
            Command::Exec(words) => words.clone(),
            Command::Shell(line) => self.settings.shell.iter().cloned().chain([line.clone()]).collect(),
        };
        Some(words).filter(|words| !words.is_empty())
    }
}

/// `3000` means `3000/tcp`.
fn with_protocol(port: String) -> String {
    if port.contains('/') { port.to_ascii_lowercase() } else { format!("{port}/tcp") }
}

impl Build<'_> {
    pub(super) async fn build_dockerfile(&mut self, source: &DockerfileSource) -> Result<(Stack, Settings), StepError> {
        self.enter(BuildPhase::Base, None);
        let file = Dockerfile::parse(&source.text).map_err(|error| {
            self.place = Some((source.name.clone(), error.line));
            StepError::invalid(error.message)
        })?;
        let target = file.stage(source.target.as_deref());
        let target = target.ok_or_else(|| {
            StepError::invalid(format!("there is no stage {:?}", source.target.as_deref().unwrap_or_default()))
        })?;
        let needed = needed_stages(&file, target);
        let total = needed.iter().map(|index| file.stages[*index].instructions.len()).sum::<usize>();
        let globals = self.global_args(&file, source)?;
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        let results = vec![None; file.stages.len()];
        let mut plan = Plan { file, source, globals, results, total, done: 0 };
        for index in needed {
            let stage = plan.file.stages[index].clone();
            let built = self.build_stage(&mut plan, &stage).await?;
            plan.results[index] = Some(built);
        }
        let (mut stack, mut settings) =
            plan.results[target].take().ok_or_else(|| StepError::invalid("the stage was not built"))?;
        self.enter(BuildPhase::Finalize, None);
        self.set_up_image(&mut stack).await?;
        // As E2B's SDKs do with a Dockerfile that does not set them.
        if !settings.has_user {
            settings.user = "user".to_owned();
        }
        if !settings.has_workdir {
            settings.workdir = "/home/user".to_owned();
        }
        Ok((stack, settings))
    }

    fn global_args(
        &mut self,
        file: &Dockerfile,
        source: &DockerfileSource,
    ) -> Result<BTreeMap<String, String>, StepError> {
        let mut globals = BTreeMap::new();
        for located in &file.global_args {
            self.place = Some((source.name.clone(), located.line));
            let Instruction::Arg(variables) = &located.instruction else { continue };
            for Variable { name, value } in variables {
                let lookup = |name: &str| globals.get(name).cloned();
                let default = value.as_deref().map(|value| expanded(value, file.escape, &lookup)).transpose()?;
                let value = source.args.get(name).cloned().or(default);
                globals.extend(value.map(|value| (name.clone(), value)));
            }
        }
        Ok(globals)
    }

    async fn build_stage(&mut self, plan: &mut Plan<'_>, stage: &Stage) -> Result<(Stack, Settings), StepError> {
        let name = plan.source.name.clone();
        self.enter(BuildPhase::Base, Some((name.clone(), stage.line)));
        let image = expanded(&stage.image, plan.file.escape, &|name| plan.globals.get(name).cloned())?;
        if image.is_empty() {
            return Err(StepError::invalid(format!("FROM {} expands to nothing", stage.image)));
        }
        if let Some(platform) = &stage.platform
            && !is_own_platform(&expanded(platform, plan.file.escape, &|name| plan.globals.get(name).cloned())?)
        {
            return Err(StepError::invalid(format!("the platform {platform} is not this machine's")));
        }
        self.log.info(format!("FROM {image}")).await;
        let (stack, settings) = match earlier_stage(plan, stage, &image) {
            Some(built) => built,
            None => self.image(&image, plan.source.auth.as_ref()).await?,
        };
        let mut state = StageState { stack, settings, args: BTreeMap::new() };
        // Triggers of the parent image run first, and only once.
        for trigger in std::mem::take(&mut state.settings.onbuild) {
            let located = parse_trigger(&trigger).map_err(|error| StepError::invalid(error.message))?;
            self.log.info(format!("ONBUILD {trigger}")).await;
            self.instruction(plan, &mut state, &located).await?;
        }
        for located in &stage.instructions {
            plan.done += 1;
            self.enter(BuildPhase::Step(plan.done), Some((name.clone(), located.line)));
            self.log.info(format!("[{}/{}] {}", plan.done, plan.total, located.text)).await;
            self.instruction(plan, &mut state, located).await?;
        }
        Ok((state.stack, state.settings))
    }

    async fn instruction(
        &mut self,
        plan: &Plan<'_>,
        state: &mut StageState,
        located: &Located,
    ) -> Result<(), StepError> {
        let escape = plan.file.escape;
        match &located.instruction {
            Instruction::From { .. } => Err(StepError::invalid("FROM is not allowed here")),
            Instruction::Arg(variables) => variables.iter().try_for_each(|variable| declare(plan, state, variable)),
            Instruction::Env(variables) => {
                // All variables of a line see the values from before it.
                let mut set = Vec::new();
                for Variable { name, value } in variables {
                    let value = expanded(value.as_deref().unwrap_or_default(), escape, &|name| state.lookup(name))?;
                    set.push((name.clone(), value));
                }
                state.settings.env.extend(set);
                Ok(())
            }
            Instruction::Run { command, heredocs, caches, is_offline } => {
                if *is_offline {
                    return Err(StepError::invalid(
                        "RUN --network=none is not supported; steps always have network access",
                    ));
                }
                for cache in caches {
                    self.log.warn(format!("the cache mount {cache} is not kept between builds")).await;
                }
                let run = run_of(state, command, heredocs);
                self.run(&mut state.stack, run, false).await
            }
            Instruction::Copy { flags, sources, heredocs, destination, is_add } => {
                let words = |text: &String| expanded(text, escape, &|name| state.lookup(name));
                let sources = sources.iter().map(words).collect::<Result<Vec<_>, _>>()?;
                let destination = words(destination)?;
                let inline = heredocs.iter().map(|heredoc| inline(heredoc, escape, state)).collect::<Result<_, _>>()?;
                let flags = expand_flags(flags, escape, state)?;
                let request = CopyRequest { flags, sources, inline, destination, is_add: *is_add };
                self.copy_instruction(plan, state, request).await
            }
            Instruction::Workdir(path) => {
                let path = expanded(path, escape, &|name| state.lookup(name))?;
                let path = state.settings.resolve(&path);
                state.settings.workdir.clone_from(&path);
                state.settings.has_workdir = true;
                self.make_directory(&mut state.stack, &path, "root", false).await
            }
            Instruction::User(user) => {
                state.settings.user = expanded(user, escape, &|name| state.lookup(name))?;
                state.settings.has_user = true;
                Ok(())
            }
            Instruction::Shell(shell) => {
                state.settings.shell.clone_from(shell);
                Ok(())
            }
            Instruction::Onbuild(text) => {
                state.settings.onbuild.push(text.clone());
                Ok(())
            }
            Instruction::Entrypoint(command) => {
                self.log.warn(NOT_RUN_BUT_EXPORTED).await;
                state.set_entrypoint(command);
                Ok(())
            }
            Instruction::Cmd(command) => {
                self.log.warn(NOT_RUN_BUT_EXPORTED).await;
                state.set_cmd(command);
                Ok(())
            }
            Instruction::Healthcheck(_) => {
                self.log.warn("sandboxes do not run it; they run the template's start command").await;
                Ok(())
            }
            Instruction::Expose(ports) => {
                for port in ports {
                    let port = expanded(port, escape, &|name| state.lookup(name))?;
                    state.settings.container.ports.insert(with_protocol(port));
                }
                Ok(())
            }
            Instruction::Label(labels) => {
                for Variable { name, value } in labels {
                    let value = expanded(value.as_deref().unwrap_or_default(), escape, &|name| state.lookup(name))?;
                    state.settings.container.labels.insert(name.clone(), value);
                }
                Ok(())
            }
            // They are metadata for people and other programs, and change nothing in a sandbox.
            Instruction::Volume(_) | Instruction::Stopsignal(_) | Instruction::Maintainer(_) => Ok(()),
        }
    }

    async fn copy_instruction(
        &mut self,
        plan: &Plan<'_>,
        state: &mut StageState,
        request: CopyRequest,
    ) -> Result<(), StepError> {
        let CopyRequest { flags, sources, inline, destination, is_add } = request;
        let mode = flags.chmod.as_deref().map(parse_mode).transpose()?;
        let owner = flags.chown.clone().unwrap_or_else(|| "0:0".to_owned());
        let many = sources.len() + inline.len() > 1;
        let mut to = CopyTo {
            destination: state.settings.resolve(&destination).into(),
            is_directory: many || names_a_directory(&destination),
            owner: None,
            mode,
            with_parents: flags.parents,
        };
        let (links, sources): (Vec<_>, Vec<_>) = sources.into_iter().partition(|source| is_url(source));
        if let (Some(url), false) = (links.first(), is_add) {
            return Err(StepError::invalid(format!("COPY takes files of the context, and {url} is not one; use ADD")));
        }
        let checksum = flags.checksum.as_deref().map(|text| parse_checksum(text, many, &links)).transpose()?;
        for url in &links {
            self.add_link(&mut state.stack, url, checksum.as_ref(), &to, &owner).await?;
        }
        if sources.is_empty() && inline.is_empty() {
            return Ok(());
        }
        if let Some(from) = &flags.from {
            let other = match self.stage_or_image(plan, from).await? {
                Some(stack) => stack,
                None => return Err(StepError::invalid(format!("there is no stage {from:?} before this one"))),
            };
            let words = copy_words(&to, &owner, &sources, &[], &other.chain, &flags.exclude);
            let from = CopyFrom::Stack { stack: Box::new(other), patterns: sources, exclude: flags.exclude };
            return self.copy_step(state, &words, Copy { from, to, owner: Some(owner) }).await;
        }
        let source = match sources.is_empty() {
            false => self.context(plan.source, &flags.exclude)?,
            true => self.no_context()?,
        };
        let quota = self.work.quota(Bounds::default());
        let found = self.work.run(move || {
            let paths = find_all(&source, &sources, &quota)?;
            let failed = |error: std::io::Error| StepError::invalid(format!("could not read the context: {error}"));
            let digest = source.digest(&paths, &quota).map_err(failed)?;
            let (mut archives, mut files) = (Vec::new(), Vec::new());
            for path in paths {
                quota.check().map_err(|error| failed(error.into()))?;
                let is_unpacked = is_add && is_archive(&source, &path);
                if is_unpacked { archives.push(path) } else { files.push(path) }
            }
            Ok((Arc::new(source), archives, files, digest))
        });
        let (source, archives, paths, digest) = found.await?;
        to.is_directory |= archives.len() + paths.len() + inline.len() > 1;
        let names: Vec<String> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        if !paths.is_empty() || !inline.is_empty() {
            let words = copy_words(&to, &owner, &names, &inline, &digest, &[]);
            let from = CopyFrom::Files { source: Arc::clone(&source), paths, inline, _scratch: None };
            self.copy_step(state, &words, Copy { from, to: to.clone(), owner: Some(owner) }).await?;
        }
        for archive in archives {
            let name = archive.to_string_lossy().into_owned();
            let words = copy_words(&to, "archive", std::slice::from_ref(&name), &[], &digest, &[]);
            // Look it up first, because unpacking is most of the work.
            if self.take_cached(&mut state.stack, &words).await {
                continue;
            }
            let file = source.open_file(&archive);
            let file = file.map_err(|error| StepError::invalid(format!("could not read {name}: {error}")))?;
            let scratch = self.unpack(file, Kind::Owned).await?;
            let view = View::of_directory(scratch.path());
            let view = view.map_err(|error| StepError::internal("read the archive", error))?;
            let source = Arc::new(Source::of(view));
            let from = CopyFrom::Files {
                source,
                paths: vec![Default::default()],
                inline: Vec::new(),
                _scratch: Some(Arc::new(scratch)),
            };
            self.copy_step(state, &words, Copy { from, to: to.clone(), owner: None }).await?;
        }
        Ok(())
    }

    async fn copy_step(&mut self, state: &mut StageState, words: &[String], copy: Copy) -> Result<(), StepError> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.step(&mut state.stack, &words, false, Action::Copy(copy)).await
    }

    async fn stage_or_image(&mut self, plan: &Plan<'_>, from: &str) -> Result<Option<Stack>, StepError> {
        match plan.file.stage(Some(from)) {
            Some(index) => Ok(plan.results[index].as_ref().map(|(stack, _)| stack.clone())),
            None if from.bytes().all(|byte| byte.is_ascii_digit()) => Ok(None),
            None => Ok(Some(self.image(from, plan.source.auth.as_ref()).await?.0)),
        }
    }

    /// An unused source, for files that are part of the Dockerfile itself.
    fn no_context(&self) -> Result<Source, StepError> {
        let view = View::of_directory(&self.sandboxes.templates_directory());
        let view = view.map_err(|error| StepError::internal("open the layers", error))?;
        Ok(Source::of(view))
    }

    fn context(&self, source: &DockerfileSource, exclude: &[String]) -> Result<Source, StepError> {
        let failed = |error| StepError::invalid(format!("could not read the context: {error}"));
        let context = source.context.as_ref().ok_or_else(|| StepError::invalid(NO_CONTEXT))?;
        let view = View::of_directory(context).map_err(failed)?;
        let own = Path::new(&source.name).file_name().map(|name| name.to_string_lossy().into_owned());
        let own = own.map(|name| view.read_small(&format!("{name}.dockerignore"))).unwrap_or_default();
        let text = if own.is_empty() { view.read_small(".dockerignore") } else { own };
        let ignore =
            IgnoreRules::parse(&text).map_err(|error| StepError::invalid(format!(".dockerignore: {error}")))?;
        Ok(Source { ignore, exclude: excluded(exclude)?, ..Source::of(view) })
    }
}

struct CopyRequest {
    flags: CopyFlags,
    sources: Vec<String>,
    inline: Vec<Inline>,
    destination: String,
    is_add: bool,
}

/// The parts of the key of a COPY: everything that determines its result.
pub(super) fn copy_words(
    to: &CopyTo,
    owner: &str,
    names: &[String],
    inline: &[Inline],
    digest: &str,
    exclude: &[String],
) -> Vec<String> {
    let mode = to.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
    let inline = digest_of(inline.iter().flat_map(|file| [&file.name, &file.body]));
    let form = format!("{} {}", to.is_directory, to.with_parents);
    let destination = to.destination.to_string_lossy().into_owned();
    let fixed = [COPY.to_owned(), destination, form, owner.to_owned(), mode, inline, digest.to_owned()];
    fixed.into_iter().chain(names.iter().cloned()).chain(exclude.iter().cloned()).collect()
}

/// The stages that the target needs, in order.
fn needed_stages(file: &Dockerfile, target: usize) -> Vec<usize> {
    let mut needed = BTreeSet::new();
    let mut todo = vec![target];
    while let Some(index) = todo.pop() {
        if !needed.insert(index) {
            continue;
        }
        let stage = &file.stages[index];
        let froms = stage.instructions.iter().filter_map(|located| match &located.instruction {
            Instruction::Copy { flags, .. } => flags.from.as_deref(),
            _ => None,
        });
        let before = |name: &str| file.stage(Some(name)).filter(|found| *found < index);
        // A number refers to a stage only in COPY.
        let base = Some(stage.image.as_str()).filter(|image| image.parse::<usize>().is_err());
        todo.extend(base.into_iter().chain(froms).filter_map(before));
    }
    needed.into_iter().collect()
}

fn earlier_stage(plan: &Plan<'_>, stage: &Stage, image: &str) -> Option<(Stack, Settings)> {
    let lower = image.to_lowercase();
    let own = plan.file.stages.iter().position(|other| other == stage)?;
    let index = plan.file.stages[..own].iter().rposition(|other| other.name.as_deref() == Some(&lower))?;
    plan.results[index].clone()
}

fn declare(plan: &Plan<'_>, state: &mut StageState, variable: &Variable) -> Result<(), StepError> {
    let default = match &variable.value {
        Some(value) => Some(expanded(value, plan.file.escape, &|name| state.lookup(name))?),
        None => plan.globals.get(&variable.name).cloned(),
    };
    let value = plan.source.args.get(&variable.name).cloned().or(default);
    state.args.extend(value.map(|value| (variable.name.clone(), value)));
    Ok(())
}

fn run_of(state: &StageState, command: &Command, heredocs: &[Heredoc]) -> Run {
    let settings = &state.settings;
    let mut env = state.args.clone();
    env.extend(settings.env.clone());
    let shell = |line: String| settings.shell.iter().cloned().chain([line]).collect();
    let (command, script) = match (command, heredocs) {
        (Command::Exec(words), _) => (words.clone(), None),
        (Command::Shell(line), []) => (shell(line.clone()), None),
        (Command::Shell(line), [only])
            if line.trim_start().starts_with("<<") && line.split_whitespace().count() == 1 =>
        {
            match only.body.starts_with("#!") {
                true => (["/bin/sh", "-c", "exec \"$0\""].map(str::to_owned).to_vec(), Some(only.body.clone())),
                false => (shell(only.body.clone()), None),
            }
        }
        // The shell handles here-documents itself.
        (Command::Shell(line), heredocs) => {
            let bodies = heredocs.iter().map(|heredoc| format!("\n{}{}", heredoc.body, heredoc.name));
            (shell(format!("{line}{}\n", bodies.collect::<String>())), None)
        }
    };
    Run { command, env, user: settings.user.clone(), cwd: settings.workdir.clone(), is_sdk: false, script }
}

fn inline(heredoc: &Heredoc, escape: char, state: &StageState) -> Result<Inline, StepError> {
    let body = match heredoc.expands {
        // Quotes are part of the text here, so only variables are expanded.
        true => expand_body(&heredoc.body, escape, state)?,
        false => heredoc.body.clone(),
    };
    Ok(Inline { name: heredoc.name.clone(), body })
}

fn expand_body(body: &str, escape: char, state: &StageState) -> Result<String, StepError> {
    let quoted = body.replace('\'', "\u{1}").replace('"', "\u{2}");
    let text = expanded(&quoted, escape, &|name| state.lookup(name))?;
    Ok(text.replace('\u{1}', "'").replace('\u{2}', "\""))
}

fn expand_flags(flags: &CopyFlags, escape: char, state: &StageState) -> Result<CopyFlags, StepError> {
    let one = |text: &Option<String>| {
        text.as_deref().map(|text| expanded(text, escape, &|name| state.lookup(name))).transpose()
    };
    Ok(CopyFlags {
        from: one(&flags.from)?,
        chown: one(&flags.chown)?,
        chmod: one(&flags.chmod)?,
        checksum: one(&flags.checksum)?,
        ..flags.clone()
    })
}

fn expanded(text: &str, escape: char, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, StepError> {
    expand(text, escape, lookup).map_err(|error| StepError::invalid(error.to_string()))
}

fn parse_mode(text: &str) -> Result<u32, StepError> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(StepError::invalid(format!("--chmod={text} is not a mode such as 0755"))),
    }
}

fn parse_checksum(text: &str, many: bool, links: &[String]) -> Result<Digest, StepError> {
    if many || links.is_empty() {
        return Err(StepError::invalid("--checksum needs a single source, which must be a URL"));
    }
    text.parse().map_err(|_| StepError::invalid(format!("--checksum={text} is not sha256:<64 hex digits>")))
}

fn is_url(text: &str) -> bool {
    ["http://", "https://", "git://", "git@", "ssh://"].iter().any(|scheme| text.starts_with(scheme))
}

fn is_own_platform(platform: &str) -> bool {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    platform.is_empty() || platform.strip_prefix("linux/").unwrap_or(platform).starts_with(architecture)
}

/// Whether ADD unpacks the file: it must be a tar archive, by its magic number.
fn is_archive(source: &Source, path: &Path) -> bool {
    let Ok(file) = source.open_file(path) else { return false };
    let Ok(stream) = decompress(file) else { return false };
    let mut head = Vec::new();
    stream.take(512).read_to_end(&mut head).is_ok() && head.get(257..262) == Some(b"ustar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stages_that_are_needed_are_built() {
        let text =
            "FROM a AS one\nFROM b AS two\nFROM c AS three\nCOPY --from=one /x /\nFROM three\nCOPY --from=0 /y /";
        let file = Dockerfile::parse(text).unwrap();
        assert_eq!(needed_stages(&file, 3), [0, 2, 3]);
        assert_eq!(needed_stages(&file, 1), [1]);
    }

    #[test]
    fn platforms_of_other_machines_are_told_apart() {
        assert!(is_own_platform("") && !is_own_platform("linux/mips"));
    }
}
