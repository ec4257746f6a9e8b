//! Builds the code interpreter's template from nothing: how long a first start of `isopod serve` takes until sandboxes of it work.
//!
//! The program's progress lines say when each step begins. Packages come from the machine's index; a build before the measured ones
//! warms whatever caches lie on the way there.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use isopod_testkit::StateDir;

use crate::report::{Bound, Report, Table};
use crate::samples::Samples;
use crate::scale::Scale;
use crate::stage::abandon_if_held;

const TEMPLATE: &str = "code-interpreter-v1";
/// Both layers begin with this step.
const FIRST_STEP: &str = "Looking for Python";
/// Until sandboxes of the template work.
const TARGET_SECONDS: f64 = 40.0;

/// The parts of the first layer's build, each with the step that begins it.
const PARTS: [(&str, Option<&str>); 5] = [
    ("base template and a sandbox", None),
    ("fetch the installer", Some(FIRST_STEP)),
    ("fetch and unpack the packages", Some("Looking for packages")),
    ("compile them", Some("Compiling packages")),
    ("register kernels, commit the layer", Some("Registering kernels")),
];

pub(crate) fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    build(binary)?;
    let (mut parts, mut core, mut more) =
        ([(); PARTS.len()].map(|()| Samples::default()), Samples::default(), Samples::default());
    for _ in 0..scale.template_builds {
        let times = build(binary)?;
        for (samples, taken) in parts.iter_mut().zip(times.parts) {
            samples.push(taken);
        }
        core.push(times.core);
        more.push(times.more);
    }
    let columns = ["step", "n", "p50 s", "target p50"];
    let mut table = Table::new(&format!("Building {TEMPLATE} from nothing"), &columns);
    let mut row = |name: &str, samples: &Samples, target: String| {
        table.row(&[
            name.to_owned(),
            samples.len().to_string(),
            format!("{:.1}", samples.median().as_secs_f64()),
            target,
        ]);
    };
    for ((name, _), samples) in PARTS.iter().zip(&parts) {
        row(name, samples, String::new());
    }
    row("all of these: sandboxes work", &core, Bound::AtMost(TARGET_SECONDS).verdict(core.median().as_secs_f64()));
    row("the second layer, in the background of a server", &more, String::new());
    report.add(&table);
    Ok(())
}

/// How long one build took.
#[derive(Debug)]
struct Times {
    parts: [Duration; PARTS.len()],
    core: Duration,
    more: Duration,
}

/// Builds both layers in a new state directory.
fn build(binary: &Path) -> anyhow::Result<Times> {
    let state = StateDir::new(binary);
    let mut command = Command::new(binary);
    command.arg("--state-dir").arg(state.path()).args(["template", "build", TEMPLATE]);
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let progress = BufReader::new(child.stderr.take().context("its standard error is piped")?);
    let mut steps = Vec::new();
    let mut output = Vec::new();
    for line in progress.lines() {
        let line = line?;
        steps.extend(step(&line).map(|name| (name.to_owned(), start.elapsed())));
        output.push(line);
    }
    let status = child.wait()?;
    let end = start.elapsed();
    abandon_if_held(state);
    ensure!(status.success(), "building {TEMPLATE} failed:\n{}", output.join("\n"));
    split(&steps, end).with_context(|| format!("unexpected progress:\n{}", output.join("\n")))
}

/// `Compiling packages` of `85/88 Compiling packages`.
fn step(line: &str) -> Option<&str> {
    let (count, name) = line.split_once(' ')?;
    let (done, total) = count.split_once('/')?;
    (done.parse::<u32>().is_ok() && total.parse::<u32>().is_ok()).then_some(name)
}

/// Assigns the time between steps to the parts of the first layer. Returns `None` if steps are missing.
fn split(steps: &[(String, Duration)], end: Duration) -> Option<Times> {
    let begins = |name: &str, after: Duration| Some(steps.iter().find(|(step, at)| step == name && *at > after)?.1);
    let first = begins(FIRST_STEP, Duration::ZERO)?;
    // The second layer's build begins when the first one is committed.
    let core = begins(FIRST_STEP, first)?;
    let mut bounds = [Duration::ZERO; PARTS.len() + 1];
    for (bound, (_, step)) in bounds.iter_mut().zip(PARTS) {
        *bound = step.map_or(Some(Duration::ZERO), |name| begins(name, Duration::ZERO))?;
    }
    bounds[PARTS.len()] = core;
    bounds.is_sorted().then(|| Times {
        parts: std::array::from_fn(|index| bounds[index + 1] - bounds[index]),
        core,
        more: end.saturating_sub(core),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(lines: &[(&str, u64)]) -> Vec<(String, Duration)> {
        let steps = lines.iter().filter_map(|(line, at)| Some((step(line)?.to_owned(), Duration::from_secs(*at))));
        steps.collect()
    }

    #[test]
    fn time_between_steps_belongs_to_the_part_that_it_began() {
        let lines = [
            ("0/35 Looking for Python", 3),
            ("1/35 Fetching the installer", 4),
            ("a line of pip", 5),
            ("2/35 Looking for packages", 7),
            ("2/88 Installing packages (0 of 83)", 8),
            ("85/88 Compiling packages", 13),
            ("86/88 Registering kernels", 22),
            ("88/88 Done", 23),
            ("88/105 Looking for Python", 25),
            ("147/150 Compiling packages", 40),
            ("150/150 Done", 44),
        ];
        let times = split(&progress(&lines), Duration::from_secs(46)).unwrap();
        assert_eq!(times.parts.map(|part| part.as_secs()), [3, 4, 6, 9, 3]);
        assert_eq!((times.core.as_secs(), times.more.as_secs()), (25, 21));
        assert!(split(&progress(&lines[..8]), Duration::from_secs(46)).is_none(), "the second layer was not built");
        assert!(split(&progress(&lines[5..]), Duration::from_secs(46)).is_none(), "steps are missing");
    }
}
