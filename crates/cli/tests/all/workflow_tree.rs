//! The tree that `isopod run-workflow` draws, on a real pseudo-terminal and with a real server.

use crate::pty;
use crate::served;

use std::path::Path;

use isopod_testkit::StateDir;
use pty::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use served::{BINARY, Served};

const TEMPLATE: &str = "code-interpreter-v1";
const COLUMNS: u16 = 90;

fn state() -> StateDir {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    state
}

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/workflows").join(name);
    path.to_str().unwrap().to_owned()
}

/// Without the times, which differ.
fn words(line: &str) -> String {
    let is_time = |word: &&str| !word.parse::<f64>().is_ok_and(|_| word.contains('.')) && *word != "s";
    let indent = line.len() - line.trim_start().len();
    format!("{}{}", &line[..indent], line.split_whitespace().filter(is_time).collect::<Vec<_>>().join(" "))
}

#[test]
fn a_workflow_is_a_tree_on_a_terminal_which_is_left_as_it_was() {
    let state = state();
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--prepare", TEMPLATE]);

    let mut terminal = Terminal::new(30, COLUMNS);
    let before = terminal.settings();
    let mut child = terminal.spawn(&mut server.command(&["run-workflow", &example("report.yaml")]));
    // Before it ends, the nodes that wait are there already.
    terminal.wait_for("· write");
    terminal.wait_for("running");
    assert_eq!(terminal.watch(&mut child), Some(0), "{}", terminal.seen);
    let after = terminal.settings();
    assert_eq!((before.local_modes, before.output_modes), (after.local_modes, after.output_modes));
    let raw = &terminal.seen;
    let screen = terminal.screen(COLUMNS.into());
    assert!(screen[0].starts_with("run "), "{screen:#?}");
    let tree: Vec<String> = screen[1..].iter().map(|line| words(line)).collect();
    let expected = [
        "✓ collect → ages.csv",
        "  ✓ average 3 people, years on average",
        "    ✓ write → report.txt",
        "  ✓ oldest grace,45",
        "completed, 4 of 4 nodes done",
    ];
    assert_eq!(tree, expected);
    assert!(raw.ends_with('\n'), "whoever writes next does it beside the tree");
    assert_eq!(raw.matches("\u{1b}[?25l").count(), raw.matches("\u{1b}[?25h").count(), "the cursor is gone");

    // What is tried again and what waits for a person is marked while it does.
    let cases: [(&str, &[&str], &str, &str); 2] = [
        ("retries.yaml", &[], "↻ flaky", "  ✓ after it took 3 tries"),
        ("approval.yaml", &["--approve-all"], "⏸ publish", "  ✓ publish → published.txt"),
    ];
    for (file, options, while_it_runs, at_the_end) in cases {
        let mut terminal = Terminal::new(30, COLUMNS);
        let path = example(file);
        let mut arguments = vec!["run-workflow", path.as_str()];
        arguments.extend(options);
        let mut child = terminal.spawn(&mut server.command(&arguments));
        assert_eq!(terminal.watch(&mut child), Some(0), "{}", terminal.seen);
        assert!(terminal.seen.contains(while_it_runs), "{file}: {}", terminal.seen);
        let screen = terminal.screen(COLUMNS.into());
        assert!(screen.iter().any(|line| words(line) == at_the_end), "{file}: {screen:#?}");
        assert_eq!(screen.last().unwrap(), "completed, 2 of 2 nodes done");
    }

    // Ctrl-C stops the run, and the tree says so.
    let sleeper = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        sleeper.path(),
        "nodes: [{id: sleeper, command: 'echo first; echo second; sleep 600'}, {id: next, command: x, depends_on: [sleeper]}]",
    )
    .unwrap();
    let mut terminal = Terminal::new(30, COLUMNS);
    let mut child = terminal.spawn(&mut server.command(&["run-workflow", sleeper.path().to_str().unwrap()]));
    terminal.wait_for("1 running");
    // The last line that it has printed is beside it, and those before are above the tree.
    terminal.wait_for("sleeper │ first");
    terminal.wait_for("sleeper  second");
    // The terminal is not the child's own, so what a key would do is done by hand.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(terminal.watch(&mut child), Some(1), "{}", terminal.seen);
    let screen = terminal.screen(COLUMNS.into());
    assert!(screen.last().unwrap().starts_with("failed, 0 of 2 nodes done"), "{screen:#?}");

    // A screen that is too small for all nodes shows some and counts the others.
    let many = tempfile::NamedTempFile::new().unwrap();
    let nodes: Vec<String> = (0..12).map(|number| format!("{{id: n{number}, command: echo {number}}}")).collect();
    std::fs::write(many.path(), format!("nodes: [{}]", nodes.join(", "))).unwrap();
    let mut terminal = Terminal::new(8, COLUMNS);
    let mut child = terminal.spawn(&mut server.command(&["run-workflow", many.path().to_str().unwrap()]));
    assert_eq!(terminal.watch(&mut child), Some(0), "{}", terminal.seen);
    let screen = terminal.screen(COLUMNS.into());
    assert_eq!(screen.len(), 8, "{screen:#?}");
    assert_eq!(screen.last().unwrap(), "completed, 12 of 12 nodes done (6 not shown)");

    // A terminal that cannot draw gets lines.
    let mut terminal = Terminal::new(30, COLUMNS);
    let mut child =
        terminal.spawn(server.command(&["run-workflow", many.path().to_str().unwrap()]).env("TERM", "dumb"));
    assert_eq!(terminal.watch(&mut child), Some(0), "{}", terminal.seen);
    assert!(terminal.seen.contains("RunStarted") && !terminal.seen.contains('\u{1b}'), "{}", terminal.seen);
    server.stop();
    state.assert_nothing_left();
}
