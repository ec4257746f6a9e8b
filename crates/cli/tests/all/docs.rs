//! Examples of the documentation, run as they stand there.

use crate::served;

use std::path::Path;
use std::process::Command;

use isopod_testkit::StateDir;
use served::{BINARY, Served};

/// A `$ command` or `# command` line and the output that the page shows below it.
struct Example {
    command: String,
    expected: String,
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            line => match (line.strip_prefix("$ ").or(line.strip_prefix("# ")), examples.last_mut()) {
                (Some(command), _) => examples.push(Example { command: command.to_owned(), expected: String::new() }),
                (None, Some(example)) => example.expected.push_str(&format!("{line}\n")),
                (None, None) => {}
            },
        }
    }
    examples
}

#[test]
fn the_examples_of_the_run_page_work_as_shown() {
    try_examples("run.md", 10, StateDir::new(BINARY));
}

#[test]
fn the_examples_of_the_templates_page_work_as_shown() {
    try_examples("templates.md", 2, StateDir::new(BINARY));
}

#[test]
fn the_examples_of_the_interpreter_page_work_as_shown() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", "code-interpreter-v1"]).ok();
    try_examples("interpreter.md", 3, state);
}

#[test]
fn the_examples_of_the_env_page_work_as_shown() {
    try_examples_beside_a_server("env.md", 3);
}

#[test]
fn the_examples_of_the_quick_start_work_as_shown() {
    try_examples_beside_a_server("quick-start.md", 9);
}

#[test]
fn the_examples_of_the_page_for_users_of_e2b_work_as_shown() {
    try_examples_beside_a_server("move-from-e2b.md", 4);
}

#[test]
fn the_examples_of_the_api_page_work_as_shown() {
    try_examples_beside_a_server("api.md", 8);
}

#[test]
fn the_examples_of_the_server_page_work_as_shown() {
    try_examples_beside_a_server("server.md", 6);
}

#[test]
fn the_examples_of_the_backup_page_work_as_shown() {
    try_examples_beside_a_server("backup.md", 6);
}

fn try_examples_beside_a_server(page: &str, least: usize) {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--prepare", "none"]);
    run_examples(page, least, &state);
    server.stop();
    state.assert_nothing_left();
}

fn try_examples(page: &str, least: usize, state: StateDir) {
    run_examples(page, least, &state);
    state.assert_nothing_left();
}

fn run_examples(page: &str, least: usize, state: &StateDir) {
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(BINARY, bin.join("isopod")).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let examples = examples(&std::fs::read_to_string(path).unwrap());
    assert!(examples.len() >= least, "the page has lost its examples");
    let output = Command::new("bash")
        .args(["-c", &as_script(&examples)])
        .current_dir(directory.path())
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
        .env("ISOPOD_STATE_DIR", state.path())
        .env_remove("E2B_API_KEY")
        .env_remove("E2B_API_URL")
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut parts = stdout.split('\0');
    for Example { command, expected } in examples {
        let (printed, status) = (parts.next().unwrap_or_default(), parts.next());
        assert_eq!(printed.trim_end(), expected.trim_end(), "{command}\n{stderr}");
        assert_eq!(status, Some("0"), "{command}\n{stderr}");
    }
}

/// All examples of a page in one shell, as a reader pastes them. Each is followed by its exit status.
fn as_script(examples: &[Example]) -> String {
    let report = r"printf '\0%s\0' $?";
    examples.iter().map(|example| format!("{}\n{report}\n", example.command)).collect()
}
