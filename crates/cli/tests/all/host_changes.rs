//! A server on a host that changes while it runs: in a mount namespace of its own, so that only this server sees it.

use crate::served;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use isopod_client::{Client, ClientConfig, NewSandbox, Sandbox};
use isopod_testkit::StateDir;
use served::{BINARY, Served, host};

const TEMPLATE: &str = "code-interpreter-v1";

/// What a sandbox with a warm interpreter says about this expression.
async fn ask_warm(client: &Client, expression: &str) -> Option<String> {
    let sandbox: Sandbox = client.create(NewSandbox::new(TEMPLATE)).await.unwrap();
    let code = format!("(open('/proc/self/cmdline').read(), {expression})");
    let executed = sandbox.interpreter().run(code.as_str()).await.unwrap().collect().await.unwrap();
    sandbox.kill().await.unwrap();
    let text = executed.results.first().unwrap_or_else(|| panic!("{executed:?}")).text.clone();
    text.filter(|text| text.contains("zygote"))
}

async fn until_warm_and(client: &Client, expression: &str, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !ask_warm(client, expression).await.is_some_and(|text| text.contains(words)) {
        assert!(Instant::now() < deadline, "no warm interpreter says {words:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_new_base_replaces_warm_interpreters_and_nothing_is_said_to_have_failed() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    // The command unmounts the disk as its last user. If the server had begun to use it, only its own namespace's mount
    // would go.
    state.assert_nothing_left();
    let mut command = Command::new("unshare");
    command.args(["-m", BINARY, "--state-dir"]).arg(state.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--prepare", TEMPLATE, "--pool-ready", "1"]);
    let server = Served::start_command(&state, command);
    let client = Client::new(ClientConfig {
        api_url: server.export("E2B_API_URL").to_owned(),
        api_key: server.export("E2B_API_KEY").to_owned(),
        sandbox_url: Some(server.export("E2B_SANDBOX_URL").to_owned()),
        domain: None,
    })
    .unwrap();
    until_warm_and(&client, "'here'", "here").await;

    let issue = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(issue.path(), "another system\n").unwrap();
    // What only root can read does not enter sandboxes.
    std::fs::set_permissions(issue.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let pid = server.pid().to_string();
    let mounted = host("nsenter", &["-t", &pid, "-m", "mount", "--bind", issue.path().to_str().unwrap(), "/etc/issue"]);
    assert!(mounted.status.success(), "{mounted:?}");
    until_warm_and(&client, "open('/etc/issue').read()", "another system").await;

    let log = server.log();
    assert!(log.contains("the host has changed; using a new base"), "{log}");
    let wrong: Vec<&str> = log.lines().filter(|line| line.contains("zygote")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    server.stop();
    state.assert_nothing_left();
}
