//! Templates through a real server: killed in the middle of a build, start commands in sandboxes that wait, and
//! interpreters of a team's own templates, and case 18 for builds.

use crate::builds;
use crate::common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use isopod_client::sandbox::NewSandbox;
use isopod_testkit::{Finished, StateDir};

use builds::context;
use common::{KEY, Server};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

fn serve(state: &StateDir, options: &[&str]) -> Server {
    let words = [&["serve", "--pool-ready", "1", "--pool-prepared", "1"], options].concat();
    Server::start(state.isopod().command(&words))
}

fn command(state: &StateDir, server: &Server, words: &[&str]) -> Command {
    let url = format!("http://127.0.0.1:{}", server.port());
    let mut command = state.isopod().command(words);
    command.env("E2B_API_KEY", KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
    command
}

fn cli(state: &StateDir, server: &Server, words: &[&str]) -> Finished {
    command(state, server, words).output().unwrap().into()
}

/// Case 18 for builds: no half template, nothing left, and what was good is used again.
#[tokio::test(flavor = "multi_thread")]
async fn case_18_a_server_killed_in_mid_build_fails_it_and_the_next_build_goes_on() {
    let state = StateDir::new(BINARY);
    let good = "FROM debian\nCOPY f /f\nRUN echo good > /good\n";
    let (_keep, directory) = context(&[
        ("f", "1"),
        ("slow.Dockerfile", &format!("{good}RUN echo so-far > /so-far; echo it-has-begun; sleep 1000\n")),
        ("quick.Dockerfile", &format!("{good}RUN cat /good > /last\n")),
    ]);
    let directory = directory.to_str().unwrap();
    let build = |file: &'static str| ["template", "build", directory, "--name", "mine", "--dockerfile", file];
    let server = serve(&state, &["--prepare", "none"]);
    // What is there before stays as it is.
    cli(&state, &server, &build("quick.Dockerfile")).ok();
    let mut building = command(&state, &server, &build("slow.Dockerfile"));
    let mut building = building.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(building.stderr.take().unwrap()).lines();
    assert!(told.any(|line| line.unwrap().contains("] it-has-begun")), "the build never came that far");
    server.kill();
    assert!(!building.wait().unwrap().success(), "whoever waits for it is told");

    let server = serve(&state, &["--prepare", "none"]);
    let shown = cli(&state, &server, &["template", "show", "mine", "--json"]).ok();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let builds = shown["builds"].as_array().unwrap();
    let failed = builds.iter().find(|build| build["status"] == "error").unwrap_or_else(|| panic!("{shown}"));
    assert!(failed["reason"].as_str().unwrap().contains("server stopped during the build"), "{failed}");
    assert_eq!(builds.iter().filter(|build| build["status"] == "ready").count(), 1, "{shown}");
    let left = |prefix: &str| {
        let entries = state.path().join("templates").read_dir().unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
    };
    assert_eq!((left(".tmp-"), left("tpl-")), (0, 1), "half a layer or half a template");
    assert!(server.client().list(Default::default()).collect().await.unwrap().is_empty());

    let again = cli(&state, &server, &build("quick.Dockerfile"));
    again.ok();
    assert_eq!(again.stderr().matches("CACHED").count(), 3, "{}", again.stderr());
    let sandbox = server.client().create(NewSandbox::new("mine")).await.unwrap();
    let output = sandbox.guest().run("cat /f /last; ls /so-far").await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1good\n");
    sandbox.kill().await.unwrap();
    server.stop();
    state.assert_nothing_left();
}

/// The service runs before somebody asks for the sandbox, so a create does not wait for it.
/// The template is made ready once and used again (template cache).
#[tokio::test(flavor = "multi_thread")]
async fn a_create_finds_the_start_command_already_running() {
    let state = StateDir::new(BINARY);
    let (_keep, directory) = context(&[("e2b.Dockerfile", "FROM debian\nRUN touch /made\n")]);
    let server = serve(&state, &["--prepare", "none"]);
    // Slow to come up: whoever waited for it would be seen to.
    let start = "date +%s.%N > /tmp/began; sleep 3; date +%s.%N > /tmp/up; sleep 100000";
    let words = ["template", "build", directory.to_str().unwrap(), "--name", "service", "--cmd", start];
    cli(&state, &server, &[&words[..], &["--ready-cmd", "test -s /tmp/up"]].concat()).ok();
    let client = server.client();
    // The first create opens the template; from then on one waits, with its service up.
    client.create(NewSandbox::new("service")).await.unwrap().kill().await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let asked = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let sandbox = client.create(NewSandbox::new("service")).await.unwrap();
        let output = sandbox.guest().run("cat /tmp/up; echo $E2B_TEMPLATE_ID").await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (up, template) = text.trim().split_once('\n').unwrap_or_else(|| panic!("{text:?}"));
        let info = client.info(sandbox.id()).await.unwrap();
        assert_eq!(template, info.info.template_id, "the id that clients know");
        sandbox.kill().await.unwrap();
        if up.parse::<f64>().unwrap() < asked {
            break;
        }
        assert!(Instant::now() < deadline, "no sandbox waits with its service up");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // With what its sandboxes start from.
    cli(&state, &server, &["template", "rm", "service"]).ok();
    server.stop();
    state.assert_nothing_left();
}

/// A team's own template on the interpreter's has code run in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_of_ones_own_has_an_interpreter_and_its_own_packages() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", "code-interpreter-v1"]).ok();
    let text = "FROM e2bdev/code-interpreter\nRUN mkdir -p /opt/own && echo 'ANSWER = 42' > /opt/own/own_module.py\n\
                ENV PYTHONPATH=/opt/own COLOUR=blue\nUSER user\nWORKDIR /home/user\n";
    let (_keep, directory) = context(&[("e2b.Dockerfile", text)]);
    let server = serve(&state, &["--prepare", "none", "--registry-mirror", "offline"]);
    cli(&state, &server, &["template", "build", directory.to_str().unwrap(), "--name", "own"]).ok();
    let client = server.client();
    let sandbox = client.create(NewSandbox::new("own")).await.unwrap();
    let code = "import os, sys\nsys.path.append('/opt/own')\nimport own_module\n\
                print(own_module.ANSWER, os.environ['COLOUR'])";
    let executed = sandbox.interpreter().run(code).await.unwrap().collect().await.unwrap();
    assert_eq!(executed.stdout, "42 blue\n", "{executed:?}");
    sandbox.kill().await.unwrap();
    cli(&state, &server, &["template", "rm", "own"]).ok();
    server.stop();
    state.assert_nothing_left();
}
