//! Examples of the documentation, run as they stand there.

use std::path::Path;
use std::process::Command;

use isopod_testkit::StateDir;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// A `$ command` line and the output that the page shows below it.
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
            line => match (line.strip_prefix("$ "), examples.last_mut()) {
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
    let state = StateDir::new(BINARY);
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(BINARY, bin.join("isopod")).unwrap();
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/run.md")).unwrap();
    let examples = examples(&page);
    assert!(examples.len() >= 10, "the page has lost its examples");
    for Example { command, expected } in examples {
        let output = Command::new("bash")
            .args(["-c", &command])
            .current_dir(directory.path())
            .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
            .env("ISOPOD_STATE_DIR", state.path())
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(stdout.trim_end(), expected.trim_end(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    state.assert_nothing_left();
}
