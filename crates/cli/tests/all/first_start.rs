//! The first start of a server: its template is not there yet, and "ready" means that creates work.

use crate::pty;
use crate::served;

use std::fs;
use std::process::Command;

use isopod_testkit::StateDir;
use pty::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use served::{BINARY, Served};

const TEMPLATE: &str = "code-interpreter-v1";

/// A server that builds its template, which does not take long where nothing can be installed: without its packages it has
/// the Python of this machine.
fn serve(state: &StateDir) -> Command {
    let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--prepare", TEMPLATE]);
    command.env("PIP_INDEX_URL", "http://index.invalid/simple").env("PIP_DEFAULT_TIMEOUT", "1");
    command
}

#[test]
fn a_server_says_that_it_is_ready_when_its_template_is() {
    let state = StateDir::empty(BINARY);
    let mut server = Served::start_command(&state, serve(&state));
    assert_eq!(server.lines[0], "Isopod is starting. Paste this where your E2B code runs:");
    // It answers meanwhile.
    let early = server.create(&["--template", "base"]);
    let listed = server.run(&["template", "ls"]).ok();
    assert!(listed.contains(TEMPLATE) && !listed.contains("1970"), "a template that isn't built has no date: {listed}");
    server.read_until("Isopod is ready.");
    assert!(server.log().contains("Looking for Python"), "{}", server.log());
    let listed = server.run(&["template", "ls"]).ok();
    assert!(!listed.contains("1970"), "{listed}");
    let ours = listed.lines().find(|line| line.contains(TEMPLATE)).unwrap_or_else(|| panic!("{listed}"));
    assert!(ours.contains(" ready "), "{listed}");
    let sandbox = server.create(&["--template", TEMPLATE]);
    server.read_until("could not be built, so its sandboxes have only the Python of this machine");
    server.run(&["kill", &early, &sandbox]).ok();
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_server_whose_template_is_there_says_so_at_once() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    let server = Served::start_command(&state, serve(&state));
    assert_eq!(server.lines[0], "Isopod is ready. Paste this where your E2B code runs:");
    server.stop();
    state.assert_nothing_left();
}

/// Stops the server in between, so that the next one finds only the core. A build on top of the template waits for the
/// rest.
#[test]
fn a_template_is_usable_with_its_core_and_the_rest_follows() {
    let state = StateDir::new(BINARY);
    let own = state.path().join("recipes").join(TEMPLATE);
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("packages.txt"), "ipython>=8.18,<10 jupyter_client>=8,<9\n[more]\ntabulate==0.9.0\n").unwrap();
    let layers = || -> Vec<String> {
        let entries = state.path().join("templates").read_dir().unwrap().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| name.starts_with(TEMPLATE)).collect();
        names.sort();
        names
    };
    let has_rest = |server: &Served, id: &str| {
        let looked = server.run(&[
            "exec",
            id,
            "--",
            "python3",
            "-c",
            "import IPython, importlib.util as u; print(u.find_spec('tabulate'))",
        ]);
        looked.ok().contains("tabulate")
    };
    let doctors_finding = || -> Option<serde_json::Value> {
        let findings: Vec<serde_json::Value> =
            serde_json::from_str(&state.isopod().run(&["doctor", "--json"]).ok()).unwrap();
        findings.into_iter().find(|finding| finding["what"] == "interpreter")
    };
    let options = ["--listen", "127.0.0.1:0", "--prepare", TEMPLATE];
    let mut server = Served::start(&state, &options);
    server.read_until("Isopod is ready.");
    let early = server.create(&["--template", TEMPLATE]);
    assert!(!has_rest(&server, &early));
    let key = server.export("E2B_API_KEY").to_owned();
    server.stop();
    assert_eq!(layers().len(), 1, "{:?}", layers());
    assert_eq!(doctors_finding(), None, "its packages are known when it is complete");

    let mut server = Served::start(&state, &options);
    assert_eq!(server.lines[0], "Isopod is ready. Paste this where your E2B code runs:");
    server.use_key(&key);
    let context = tempfile::tempdir().unwrap();
    let built_from = format!("FROM {TEMPLATE}\nRUN python3 -c 'import tabulate, IPython'\n");
    fs::write(context.path().join("Dockerfile"), built_from).unwrap();
    let build = ["template", "build", context.path().to_str().unwrap(), "--name", "mine"];
    server.run(&build).ok();
    assert_eq!(layers().len(), 2, "{:?}", layers());
    let late = server.create(&["--template", TEMPLATE]);
    assert!(has_rest(&server, &late) && !has_rest(&server, &early), "a sandbox keeps the files that it began with");

    // Both layers stay while a sandbox uses them, with a server or without one.
    server.run(&["pause", "--filesystem-only", &late]).ok();
    server.stop();
    let finding = doctors_finding().expect("the template is complete");
    let detail = finding["detail"].as_str().unwrap();
    assert_eq!(finding["verdict"], "warn", "{finding}");
    // Tabulate is in both lists, and E2B has no certain version of it.
    assert!(detail.contains("no pandas (E2B: 2.2.3)") && !detail.contains("tabulate"), "{detail}");
    state.isopod().run(&["prune", "--all"]).ok();
    assert_eq!(layers().len(), 2, "{:?}", layers());
    let mut server = Served::start(&state, &options);
    server.use_key(&key);
    server.run(&["resume", &late]).ok();
    assert!(has_rest(&server, &late));
    server.run(&["kill", &early, &late]).ok();
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_terminal_shows_a_bar_until_the_server_is_ready() {
    let state = StateDir::new(BINARY);
    let mut terminal = Terminal::new(24, 80);
    let mut child = terminal.spawn(&mut serve(&state));
    terminal.wait_for("\r\u{1b}[K░░░░");
    terminal.wait_for("Looking for Python (");
    terminal.wait_for("Isopod is ready.");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(terminal.watch(&mut child), Some(0));
    assert!(!terminal.seen.contains("total"), "the log tells the steps too: {}", terminal.seen);
    state.assert_nothing_left();
}
