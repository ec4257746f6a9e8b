//! The code interpreter as its users meet it: through a server, with a zygote, and on the command line.

use crate::served;

use std::fs;
use std::time::{Duration, Instant};

use isopod_client::interpreter::{Executed, RunCode};
use isopod_client::{Client, ClientConfig, NewSandbox, Sandbox};
use isopod_testkit::StateDir;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use served::{BINARY, Served};

const TEMPLATE: &str = "code-interpreter-v1";
/// A template that is not there yet is built first.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);

struct Rig {
    server: Served,
    client: Client,
}

impl Rig {
    async fn start(state: &StateDir) -> Self {
        build_template(state);
        let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "2"]);
        command.args(["--pool-prepared", "1", "--prepare", TEMPLATE]);
        Self::on(Served::start_command(state, command))
    }

    fn on(server: Served) -> Self {
        let client = Client::new(ClientConfig {
            api_url: server.export("E2B_API_URL").to_owned(),
            api_key: server.export("E2B_API_KEY").to_owned(),
            sandbox_url: Some(server.export("E2B_SANDBOX_URL").to_owned()),
            domain: None,
        });
        Self { server, client: client.unwrap() }
    }

    async fn create(&self) -> Sandbox {
        self.client.create(NewSandbox::new(TEMPLATE)).await.unwrap()
    }

    async fn create_warm(&self) -> Sandbox {
        self.create_warm_of(TEMPLATE).await
    }

    /// A sandbox whose interpreter came from the template's zygote.
    async fn create_warm_of(&self, template: &str) -> Sandbox {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let sandbox = self.client.create(NewSandbox::new(template)).await.unwrap();
            let text = run(&sandbox, "open('/proc/self/cmdline').read()").await.results[0].text.clone().unwrap();
            if text.contains("zygote") {
                return sandbox;
            }
            assert!(Instant::now() < deadline, "no warm interpreter comes");
            sandbox.kill().await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn finish(self, state: &StateDir) {
        self.server.run(&["kill", "--all"]).ok();
        self.server.stop();
        state.assert_nothing_left();
    }
}

fn build_template(state: &StateDir) {
    let began = Instant::now();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    assert!(began.elapsed() < BUILD_DEADLINE);
}

async fn run(sandbox: &Sandbox, code: &str) -> Executed {
    sandbox.interpreter().run(code).await.unwrap().collect().await.unwrap()
}

/// What Python says about itself, as JSON.
async fn facts(sandbox: &Sandbox, code: &str) -> Value {
    let executed = run(sandbox, &format!("import json\n{code}\nprint(json.dumps(facts))")).await;
    serde_json::from_str(&executed.stdout).unwrap_or_else(|_| panic!("{executed:?}"))
}

const SELF: &str = "
import os
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
facts = {name: status[name] for name in ('Uid', 'Gid', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')}
facts['namespaces'] = {name: os.readlink('/proc/self/ns/' + name) for name in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup', 'time')}
facts['cgroup'] = open('/proc/self/cgroup').read()
facts['root'] = sorted(os.listdir('/'))
";

/// The same of an ordinary process of the sandbox's root.
async fn facts_of_a_command(sandbox: &Sandbox) -> Value {
    sandbox
        .guest()
        .write_file("/tmp/facts.py", format!("import json\n{SELF}\nprint(json.dumps(facts))"))
        .await
        .unwrap();
    let root = sandbox.guest().clone().with_user("root");
    let output = root.run("python3 /tmp/facts.py").await.unwrap();
    serde_json::from_str(&output.text()).unwrap()
}

#[tokio::test]
async fn a_warm_interpreter_is_a_process_of_the_sandbox_like_any_other() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let sandbox = rig.create_warm().await;
    assert_eq!(facts(&sandbox, SELF).await, facts_of_a_command(&sandbox).await);

    // It holds nothing from outside: its own stream, pipes and /dev/null, and no descriptor of another file system.
    let open = "import os; facts = sorted({os.readlink('/proc/self/fd/' + fd).split(':')[0] for fd in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + fd)})";
    for kind in facts(&sandbox, open).await.as_array().unwrap() {
        let kind = kind.as_str().unwrap();
        let is_own =
            ["pipe", "socket", "anon_inode", "/dev/null", "/dev/urandom"].contains(&kind) || kind.starts_with("/proc/");
        assert!(is_own, "{kind}");
    }
    // sudo needs that no_new_privs was never set.
    assert_eq!(run(&sandbox, "!sudo -n id -u").await.stdout.trim(), "0");
    // Nothing of the host's processes, environment or network.
    let outside = facts(
        &sandbox,
        "import os; facts = {'environ': sorted(os.environ), 'parents': open('/proc/self/stat').read().split()[3]}",
    );
    let environ = outside.await["environ"].to_string();
    for name in ["ISOPOD", "CARGO", "SSH", "API_KEY"] {
        assert!(!environ.contains(name), "{environ}");
    }
    sandbox.kill().await.unwrap();
    rig.finish(&state);
}

#[tokio::test]
async fn two_sandboxes_of_one_zygote_share_no_random_numbers_and_no_state() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let (one, two) = (rig.create_warm().await, rig.create_warm().await);
    let numbers = "import random, uuid, numpy, secrets\nfacts = [random.random(), numpy.random.rand(), str(uuid.uuid4()), secrets.token_hex(8), str(numpy.random.default_rng().random())]";
    let (of_one, of_two) = (facts(&one, numbers).await, facts(&two, numbers).await);
    for (a, b) in of_one.as_array().unwrap().iter().zip(of_two.as_array().unwrap()) {
        assert_ne!(a, b);
    }
    run(&one, "x = 'of one'").await;
    let error = run(&two, "x").await.error.unwrap();
    assert_eq!(error.name, "NameError");
    one.kill().await.unwrap();
    two.kill().await.unwrap();
    rig.finish(&state);
}

#[tokio::test]
async fn memory_that_code_takes_counts_against_its_sandbox() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let sandbox = rig.create_warm().await;
    // More than the sandbox has: its kernel is ended, and nothing else is.
    let executed = run(&sandbox, "x = bytearray(8 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1").await;
    let error = executed.error.unwrap();
    assert!(["UnexpectedEndOfExecution", "MemoryError"].contains(&error.name.as_str()), "{error:?}");
    assert_eq!(run(&sandbox, "1 + 1").await.results[0].text.as_deref(), Some("2"));
    sandbox.kill().await.unwrap();
    rig.finish(&state);
}

#[tokio::test]
async fn without_its_zygote_a_template_goes_on() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let before = rig.create_warm().await;
    run(&before, "x = 41").await;
    let zygote = zygote_pid(&state);
    let running = before.interpreter().run("import time; time.sleep(1); x").await.unwrap();
    kill_process(zygote, Signal::KILL).unwrap();

    // What runs goes on, and what is made meanwhile works.
    assert_eq!(running.collect().await.unwrap().results[0].text.as_deref(), Some("41"));
    assert_eq!(run(&before, "x + 1").await.results[0].text.as_deref(), Some("42"));
    let meanwhile = rig.create().await;
    assert_eq!(run(&meanwhile, "6 * 7").await.results[0].text.as_deref(), Some("42"));
    meanwhile.kill().await.unwrap();
    // Another one comes. Sandboxes of the pool may be warm from the first one, so that alone does not say so.
    let after = rig.create_warm().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while zygote_pids(&state).first().is_none_or(|pid| *pid == zygote.as_raw_nonzero().get()) {
        assert!(Instant::now() < deadline, "no other zygote was started");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    after.kill().await.unwrap();
    before.kill().await.unwrap();
    rig.finish(&state);
}

/// Ends the zygote right after it has said that it is ready.
const ENDS_WHEN_READY: &str = "
import os, selectors, sys

original = selectors.DefaultSelector

def select(*arguments):
    # The zygote makes one when it begins to wait for orders.
    if sys._getframe(1).f_globals.get('__name__') == 'isopod_driver.zygote':
        os._exit(3)
    return original(*arguments)

if 'zygote' in sys.orig_argv:
    selectors.DefaultSelector = select
";

#[tokio::test]
async fn a_zygote_that_ends_as_soon_as_it_is_ready_is_started_again_ever_more_rarely() {
    let state = StateDir::new(BINARY).with_shared_templates();
    build_template(&state);
    let mut generations = fs::read_dir(state.path().join("layers")).unwrap().flatten().map(|entry| entry.path());
    let usr = generations.find(|path| path.join("usr").is_dir()).unwrap().join("usr");
    let packages = usr.join("lib/python3/dist-packages");
    fs::create_dir_all(&packages).unwrap();
    fs::write(packages.join("zz_ends.pth"), "import zz_ends\n").unwrap();
    fs::write(packages.join("zz_ends.py"), ENDS_WHEN_READY).unwrap();
    let rig = Rig::start(&state).await;
    let ends = || rig.server.log().lines().filter(|line| line.contains("the zygote is gone")).count();
    wait_until(|| ends() > 0);
    // A zygote takes seconds to be ready, longer on a busy machine.
    let until = Instant::now() + Duration::from_secs(120);
    while ends() < 3 && Instant::now() < until {
        // The template works meanwhile.
        let sandbox = rig.create().await;
        assert_eq!(run(&sandbox, "6 * 7").await.results[0].text.as_deref(), Some("42"));
        sandbox.kill().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let log = rig.server.log();
    assert!(ends() >= 3, "{log}");
    let waits: Vec<&str> =
        log.lines().filter_map(|line| line.split("wait=").nth(1)?.split_whitespace().next()).collect();
    assert!(waits.len() >= 2, "{log}");
    assert_eq!(waits, ["1", "2", "4", "8"][..waits.len()], "{log}");
    rig.finish(&state);
}

/// What a user's template does when Python starts runs inside its sandboxes only, with their rights: no zygote runs it.
#[tokio::test]
async fn code_of_a_built_template_runs_only_inside_with_the_rights_of_its_sandbox() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let context = tempfile::tempdir().unwrap();
    fs::write(context.path().join("spy.pth"), "import spy\n").unwrap();
    let spy = "import os\nanswer = 42\nopen('/tmp/starts', 'a').write(open('/proc/self/status').read() + 'End\\n')\n";
    fs::write(context.path().join("spy.py"), spy).unwrap();
    let place = "/usr/lib/python3/dist-packages/";
    let dockerfile = format!(
        "FROM {TEMPLATE}\nUSER root\nCOPY spy.pth {place}\nCOPY spy.py {place}\nRUN chmod 1777 /tmp\nUSER user\n"
    );
    fs::write(context.path().join("Dockerfile"), dockerfile).unwrap();
    rig.server.run(&["template", "build", context.path().to_str().unwrap(), "--name", "mine"]).ok();

    let common = rig.create_warm().await;
    let zygotes = zygote_pids(&state);
    for _ in 0..3 {
        let own = rig.client.create(NewSandbox::new("mine")).await.unwrap();
        assert_eq!(run(&own, "import spy, numpy; spy.answer").await.results[0].text.as_deref(), Some("42"));
        let seen = run(&own, "print(open('/tmp/starts').read())").await.stdout;
        let starts: Vec<&str> = seen.split("End\n").filter(|start| start.contains("Uid:")).collect();
        assert!(!starts.is_empty(), "{seen}");
        for start in starts {
            let field = |name: &str| start.lines().find_map(|line| line.strip_prefix(&format!("{name}:\t"))).unwrap();
            let kept =
                format!("{:016x}", isopod_isolation::kept_capabilities().fold(0u64, |set, number| set | 1 << number));
            for name in ["CapEff", "CapPrm", "CapBnd"] {
                assert_eq!(field(name), kept, "{name} in {start}");
            }
            assert_eq!((field("CapInh"), field("CapAmb")), ("0000000000000000", "0000000000000000"), "{start}");
            assert_eq!((field("Seccomp"), field("Uid")), ("2", "0\t0\t0\t0"));
        }
        assert!(
            !run(&own, "open('/proc/self/cmdline').read()").await.results[0].text.as_ref().unwrap().contains("zygote")
        );
        own.kill().await.unwrap();
    }
    assert_eq!(run(&common, "import spy").await.error.unwrap().name, "ModuleNotFoundError");
    assert_eq!(zygote_pids(&state), zygotes, "no zygote was started for it");
    common.kill().await.unwrap();
    rig.server.run(&["template", "rm", "mine"]).ok();
    rig.finish(&state);
}

/// A writable layer that comes back is its owner's work: nothing that has rights for a moment may read from it.
#[tokio::test]
async fn a_sandbox_that_resumes_from_its_files_starts_its_interpreter_inside() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let sandbox = rig.create_warm().await;
    run(&sandbox, "open('/home/user/kept', 'w').write('kept')").await;
    rig.server.run(&["pause", "--filesystem-only", sandbox.id().as_str()]).ok();
    rig.server.run(&["resume", sandbox.id().as_str()]).ok();
    let sandbox = rig.client.connect(sandbox.id(), None).await.unwrap();
    let text = run(&sandbox, "open('/home/user/kept').read() + open('/proc/self/cmdline').read()").await;
    let text = text.results[0].text.clone().unwrap();
    assert!(text.contains("kept") && !text.contains("zygote"), "{text}");
    sandbox.kill().await.unwrap();
    rig.finish(&state);
}

fn zygote_pid(state: &StateDir) -> Pid {
    Pid::from_raw(*zygote_pids(state).first().expect("there is a zygote")).unwrap()
}

/// Its arguments say what it is. A fork of it on its way into a sandbox is none.
fn zygote_pids(state: &StateDir) -> Vec<i32> {
    let tag = fs::read_to_string(state.path().join("tag")).unwrap();
    let group = format!("isopod-{}", tag.trim());
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_zygote = |pid: &i32| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let is_outside = fs::read_link(format!("/proc/{pid}/ns/pid")).ok() == fs::read_link("/proc/self/ns/pid").ok();
        read("cmdline").contains("run.py\0zygote") && read("cgroup").contains(&group) && is_outside
    };
    let found: Vec<i32> = pids.filter(is_zygote).collect();
    let parent = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("PPid:\t")?.parse::<i32>().ok())
    };
    let mut first: Vec<i32> =
        found.iter().copied().filter(|pid| parent(pid).is_some_and(|parent| !found.contains(&parent))).collect();
    first.sort_unstable();
    first
}

#[tokio::test]
async fn the_zygote_has_no_rights_on_the_host() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let sandbox = rig.create_warm().await;
    let pid = zygote_pid(&state).as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(&format!("{name}:\t"))).unwrap();
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(name), "0000000000000000", "{name}");
    }
    assert_eq!((field("Seccomp"), field("Threads")), ("2", "1"));
    assert!(field("Uid").split('\t').all(|id| id.parse::<u32>().unwrap() > 65_535), "{}", field("Uid"));
    // Its root is the template's, without the host's processes; its network has nothing but loopback.
    let root = format!("/proc/{pid}/root");
    assert_eq!(fs::read_dir(format!("{root}/proc")).unwrap().count(), 0);
    assert!(fs::metadata(format!("{root}/home/user")).is_ok());
    let devices = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let names: Vec<&str> = devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    assert_eq!(names, ["lo"]);
    sandbox.kill().await.unwrap();
    rig.finish(&state);
}

#[tokio::test]
async fn a_guest_that_is_killed_in_mid_cell_ends_the_call_and_the_sandbox() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state).await;
    let sandbox = rig.create_warm().await;
    let running = sandbox.interpreter().run(RunCode::new("import time; time.sleep(600)")).await.unwrap();
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of_this = |pid: &i32| {
        let environ = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        environ.starts_with("isopod-guest\0init") && is_in(&state, *pid)
    };
    let record = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mine = own_cgroup(&state, &sandbox);
    let guest = pids.filter(of_this).find(|pid| record(*pid).contains(&mine)).unwrap();
    kill_process(Pid::from_raw(guest).unwrap(), Signal::KILL).unwrap();
    assert!(running.collect().await.is_err(), "the call must not look like a success");
    // Gone, and said so.
    let gone = sandbox.interpreter().run("1").await;
    assert!(gone.is_err());
    rig.finish(&state);
}

fn is_in(state: &StateDir, pid: i32) -> bool {
    let tag = fs::read_to_string(state.path().join("tag")).unwrap();
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroup.contains(&format!("isopod-{}", tag.trim()))
}

/// The execution whose record names this sandbox.
fn own_cgroup(state: &StateDir, sandbox: &Sandbox) -> String {
    let boxes = fs::read_dir(state.path().join("homes/serve/boxes")).unwrap().flatten();
    let is_own = |path: &std::path::PathBuf| {
        let record = fs::read_to_string(path.join("record.json")).unwrap_or_default();
        let record: Value = serde_json::from_str(&record).unwrap_or_default();
        record["spec"]["sandbox"] == json!(sandbox.id().as_str())
    };
    let found = boxes.map(|entry| entry.path()).find(is_own).unwrap();
    found.file_name().unwrap().to_str().unwrap().to_owned()
}

#[tokio::test]
async fn where_nothing_can_be_installed_there_is_still_python() {
    let state = StateDir::new(BINARY);
    let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--prepare", TEMPLATE]);
    // An index that does not exist.
    command.env("PIP_INDEX_URL", "http://index.invalid/simple").env("PIP_DEFAULT_TIMEOUT", "1");
    let rig = Rig::on(Served::start_command(&state, command));
    let sandbox = rig.create().await;
    let executed = run(&sandbox, "import sys\nprint('IPython' in sys.modules)\nsum(range(10))").await;
    assert_eq!((executed.stdout.as_str(), executed.results[0].text.as_deref()), ("False\n", Some("45")));
    sandbox.kill().await.unwrap();
    rig.finish(&state);
}

#[test]
fn a_server_that_is_stopped_while_it_builds_or_warms_leaves_nothing() {
    let start = |state: &StateDir| {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--prepare", TEMPLATE];
        Served::start_command(state, state.isopod().command(&arguments))
    };
    let building = StateDir::new(BINARY);
    let server = start(&building);
    // The recipe has begun when its sandbox is there.
    let boxes = building.path().join("homes/serve/boxes");
    let is_building = || {
        let records = fs::read_dir(&boxes).into_iter().flatten().flatten();
        records
            .map(|entry| entry.path().join("record.json"))
            .any(|path| fs::read_to_string(path).is_ok_and(|record| record.contains("isopod.build")))
    };
    wait_until(is_building);
    server.stop();
    building.assert_nothing_left();

    let warming = StateDir::new(BINARY).with_shared_templates();
    build_template(&warming);
    start(&warming).stop();
    warming.assert_nothing_left();
}

fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn code_can_be_piped_into_a_repl() {
    let state = StateDir::new(BINARY).with_shared_templates();
    build_template(&state);
    let said = state.isopod().run_with_input(&["repl"], b"x = 20\nprint('on its way')\nx * 2 + 2\n");
    assert_eq!(said.ok(), "on its way\n42\n");
    let failed = state.isopod().run_with_input(&["repl"], b"1 / 0\n");
    assert!(failed.code() == 1 && failed.stderr().contains("ZeroDivisionError"), "{}", failed.stderr());
    let bash = state.isopod().run_with_input(&["repl", "--language", "bash"], b"echo $((6 * 7))\n");
    assert_eq!(bash.ok().trim(), "42");
    let unknown = state.isopod().run_with_input(&["repl", "--language", "cobol"], b"x\n");
    assert!(unknown.code() == 125 && unknown.stderr().contains("cobol"), "{}", unknown.stderr());
    state.assert_nothing_left();
}

#[test]
fn a_notebook_is_run_and_its_outputs_are_written_back() {
    let state = StateDir::new(BINARY).with_shared_templates();
    build_template(&state);
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("x.ipynb");
    let cell = |source: &str| json!({ "cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": null });
    let write = |cells: Value| {
        fs::write(&path, json!({ "nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells }).to_string())
            .unwrap();
    };
    let read = || serde_json::from_str::<Value>(&fs::read_to_string(&path).unwrap()).unwrap();
    let name = path.to_str().unwrap();

    write(
        json!([cell("x = 6"), { "cell_type": "markdown", "source": "text", "metadata": {} }, cell("print('hi')\nx * 7")]),
    );
    state.isopod().run(&["run", "--notebook", name]).ok();
    let outputs = &read()["cells"][2]["outputs"];
    assert_eq!(outputs[0]["text"], json!(["hi\n"]));
    assert_eq!(outputs[1]["data"]["text/plain"], json!(["42"]));
    assert_eq!(read()["cells"][2]["execution_count"], 2);

    write(json!([cell("1/0"), cell("print('after')")]));
    let failed = state.isopod().run(&["run", "--notebook", name]);
    assert_eq!(failed.code(), 1);
    assert_eq!(read()["cells"][0]["outputs"][0]["ename"], "ZeroDivisionError");
    assert_eq!(read()["cells"][1]["outputs"], json!([]));
    let beside = scratch.path().join("out.ipynb");
    state.isopod().run(&["run", "--notebook", name, "--allow-errors", "--output", beside.to_str().unwrap()]);
    assert!(fs::read_to_string(beside).unwrap().contains("after"));

    fs::write(&path, "no notebook").unwrap();
    let refused = state.isopod().run(&["run", "--notebook", name]);
    assert!(refused.code() == 125 && refused.stderr().contains("no notebook"), "{}", refused.stderr());
    state.assert_nothing_left();
}

#[test]
fn templates_are_listed_and_names_are_checked() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let list: Value = serde_json::from_str(&state.isopod().run(&["template", "ls", "--json"]).ok()).unwrap();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["base", TEMPLATE, "code-interpreter-full", "desktop", "nodejs"]);
    let unknown = state.isopod().run(&["template", "build", "cobol"]);
    assert!(unknown.code() == 125 && unknown.stderr().contains("template ls"), "{}", unknown.stderr());
    let run = state.isopod().run(&["run", "--template", "nope", "--", "true"]);
    assert!(run.code() == 125 && run.stderr().contains("there is no template"), "{}", run.stderr());
    let version = state.isopod().run(&["run", "--template", "nodejs", "--", "node", "--version"]);
    assert!(version.ok().starts_with('v'));
    state.assert_nothing_left();
}

#[test]
fn javascript_runs_in_the_template_nodejs() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let repl = |language: &str, code: &[u8]| {
        state.isopod().run_with_input(&["repl", "--template", "nodejs", "--language", language], code)
    };
    let said =
        repl("javascript", b"const os = require('os'); console.log(os.platform()); await Promise.resolve(6 * 7)\n");
    assert_eq!(said.ok(), "linux\n42\n");
    let failed = repl("js", b"throw new RangeError('far')\n");
    assert!(failed.code() == 1 && failed.stderr().contains("RangeError: far"), "{}", failed.stderr());
    let missing = repl("typescript", b"1\n");
    assert!(missing.stderr().contains("Available languages: ") && missing.stderr().contains("javascript"));
    state.assert_nothing_left();
}
