//! The tool calls of an agent's run, through a server and with real sandboxes: what is kept, what goes in, what comes out.

use crate::common::{self, raw};
use crate::served;

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_testkit::{Finished, StateDir};
use raw::{Answer, ask};
use serde_json::{Value, json};
use served::{BINARY, Served, host};

const TEMPLATE: &str = "code-interpreter-v1";
const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

struct Rig {
    server: Served,
}

impl Rig {
    fn start(state: &StateDir) -> Self {
        state.isopod().run(&["template", "build", TEMPLATE]).ok();
        let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "1"]);
        command
            .args(["--pool-prepared", "1", "--prepare", TEMPLATE, "--api-key", KEY])
            .env_remove("REDIS_URL")
            .env_remove("RFS_BASE");
        Self { server: Served::start_command(state, command) }
    }

    async fn call(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let headers = [("x-api-key", KEY), ("content-type", "application/json")];
        ask(self.server.port().parse().unwrap(), method, path, &headers, body).await
    }

    async fn execute(&self, run: &str, body: Value) -> Value {
        let answer = self.call("POST", &format!("/runtime/{run}/execute"), body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    async fn python(&self, run: &str, code: &str) -> Value {
        self.execute(run, json!({ "code": code })).await
    }

    async fn put(&self, run: &str, path: &str, contents: &str) {
        let answer = self.call("PUT", &format!("/runtime/{run}/files/{path}"), contents.as_bytes()).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }

    async fn read(&self, run: &str, path: &str) -> String {
        self.call("GET", &format!("/runtime/{run}/files/{path}"), b"").await.body
    }

    /// The bytes of a file, which need not be text.
    fn download(&self, run: &str, path: &str) -> Vec<u8> {
        let url = format!("http://127.0.0.1:{}/runtime/{run}/files/{path}", self.server.port());
        let done = host("curl", &["--silent", "--fail", "--header", &format!("x-api-key: {KEY}"), &url]);
        assert!(done.status.success(), "{path}: {done:?}");
        done.stdout
    }

    async fn cleanup(&self, run: &str) -> Value {
        self.call("DELETE", &format!("/runtime/{run}/cleanup"), b"").await.json()
    }

    /// A verb of the command line, against this server.
    fn verb(&self, arguments: &[&str]) -> String {
        let done: Finished = self.server.command(arguments).env("E2B_API_KEY", KEY).output().unwrap().into();
        done.ok().to_owned()
    }

    fn finish(self, state: &StateDir) {
        assert_eq!(self.verb(&["ls", "--json"]).trim(), "[]", "a sandbox is left");
        self.server.stop();
        state.assert_nothing_left();
    }
}

/// Through our own REST: one agent installs, another imports, the end leaves nothing.
#[tokio::test]
async fn what_one_agent_installs_another_imports_until_the_run_is_cleaned_up() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state);
    let wheel = "import zipfile\nwith zipfile.ZipFile('tiny-1.0-py3-none-any.whl', 'w') as z:\n z.writestr('tiny.py', 'answer = 42')\n z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')\n z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n z.writestr('tiny-1.0.dist-info/RECORD', '')";
    let made = rig.python("flow", wheel).await;
    assert_eq!(made["files_generated"], json!(["tiny-1.0-py3-none-any.whl"]), "{made}");
    let install = json!({ "command": "pip install --no-index ./tiny-1.0-py3-none-any.whl", "agent_id": "agent-1" });
    let installed = rig.execute("flow", install).await;
    assert_eq!((&installed["success"], &installed["output"]["exit_code"]), (&json!(true), &json!(0)), "{installed}");
    let imported = rig.execute("flow", json!({ "code": "import tiny; tiny.answer", "agent_id": "agent-2" })).await;
    assert_eq!(imported["output"]["results"][0]["text"], "42", "{imported}");
    assert_eq!(imported["sandbox_id"], made["sandbox_id"]);
    assert_eq!(rig.cleanup("flow").await["killed"], true);
    assert_eq!(rig.cleanup("flow").await["killed"], false);
    rig.finish(&state);
}

#[tokio::test]
async fn errors_and_endless_code_are_results_and_the_state_stays() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state);
    let first = rig.python("r", "x = 41\nprint('hello')\nimport sys; print('oops', file=sys.stderr)").await;
    assert_eq!(first["result"], "STDOUT:\nhello\n\nSTDERR:\noops\n", "{first}");
    let failed = rig.python("r", "print('before'); 1/0").await;
    assert_eq!((&failed["success"], &failed["logs"]), (&json!(false), &json!("STDOUT:\nbefore\n")), "{failed}");
    let error = failed["error"].as_str().unwrap();
    assert!(error.starts_with("RUNTIME ERROR: ZeroDivisionError: division by zero\n"), "{error}");
    let endless = rig.execute("r", json!({ "code": "print('on', flush=True)\nwhile True: pass", "timeout": 1 })).await;
    assert!(endless["error"].as_str().unwrap().starts_with("RUNTIME ERROR: TimeoutError"), "{endless}");
    assert_eq!(endless["logs"], "STDOUT:\non\n", "{endless}");
    let command = rig.execute("r", json!({ "command": "echo out; exit 3" })).await;
    assert_eq!((&command["success"], &command["output"]["exit_code"]), (&json!(false), &json!(3)), "{command}");
    // The bytes of one character, one after the other.
    let halves = json!({ "command": r"printf 'caf\303' >&2; sleep 0.3; printf '\251\n' >&2; exit 1" });
    assert_eq!(rig.execute("r", halves).await["output"]["stderr"], "café\n");
    assert_eq!(rig.execute("r", json!({ "command": "sleep 60", "timeout": 0.5 })).await["success"], false);
    let unknown = rig.execute("r", json!({ "code": "1", "language": "klingon" })).await;
    assert_eq!(unknown["success"], false, "{unknown}");
    let value = rig.python("r", "x + 1").await;
    assert_eq!(value["output"]["results"][0]["text"], "42", "{value}");
    rig.cleanup("r").await;
    rig.finish(&state);
}

#[tokio::test]
async fn only_what_changed_goes_in_and_only_what_is_new_comes_out() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state);
    rig.put("r", "a/x.csv", "one").await;
    rig.put("r", "b/x.csv", "two").await;
    let first = rig.python("r", "print(open('a/x.csv').read(), open('/home/user/b/x.csv').read())").await;
    assert_eq!(first["result"], "STDOUT:\none two\n", "{first}");
    assert_eq!((&first["sync"]["uploaded"], &first["files_generated"]), (&json!(2), &json!([])), "{first}");

    let code = "import os\nos.makedirs('out/deep/__pycache__'); os.makedirs('.cache', exist_ok=True)\nopen('out/deep/r.txt', 'w').write('r')\n\
        for hidden in ('.cache/x', '.y', 'out/deep/__pycache__/z'): open(hidden, 'w').write('no')\nos.symlink('/etc/passwd', 'link')";
    let made = rig.execute("r", json!({ "code": code, "agent_id": "me" })).await;
    assert_eq!(made["files_generated"], json!(["out/deep/r.txt"]), "{made}");
    assert_eq!((&made["sync"]["uploaded"], &made["sync"]["unchanged"]), (&json!(0), &json!(2)), "{made}");
    assert_eq!(made["artifacts"][0]["agent_id"], "me");
    assert!(made["result"].as_str().unwrap().contains("['out/deep/r.txt']"), "{made}");
    assert_eq!(made["sync"]["skipped"][0]["path"], "link", "{made}");
    assert_eq!(rig.read("r", "out/deep/r.txt").await, "r");
    let quiet = rig.python("r", "pass").await;
    assert_eq!((&quiet["files_generated"], &quiet["sync"]["skipped"]), (&json!([]), &json!([])), "told once: {quiet}");

    // The same length, a moment later: contents count, not times and sizes.
    rig.put("r", "a/x.csv", "six").await;
    let changed = rig.python("r", "print(open('a/x.csv').read())").await;
    assert_eq!((&changed["result"], &changed["sync"]["uploaded"]), (&json!("STDOUT:\nsix\n"), &json!(1)), "{changed}");
    assert_eq!(changed["files_generated"], json!([]));
    let edited = rig.python("r", "open('a/x.csv', 'a').write('!'); open('b/x.csv', 'w').write('two')").await;
    assert_eq!(edited["files_generated"], json!(["a/x.csv"]), "b has the same contents: {edited}");
    assert_eq!(rig.read("r", "a/x.csv").await, "six!", "output before input");
    let inline = json!({ "code": "print(open('in.bin', 'rb').read())",
        "files": [{ "path": "in.bin", "content": "AP8=", "encoding": "base64" }] });
    assert_eq!(rig.execute("r", inline).await["result"], "STDOUT:\nb'\\x00\\xff'\n");

    // A directory in the way of an input is said, and the rest goes on.
    rig.python("r", "import os; os.makedirs('blocked/x')").await;
    rig.put("r", "blocked", "file").await;
    rig.put("r", "fine", "file").await;
    let blocked = rig.python("r", "print(open('fine').read())").await;
    assert_eq!(blocked["success"], true, "{blocked}");
    assert_eq!(blocked["sync"]["skipped"][0]["path"], "blocked", "{blocked}");
    assert!(blocked["result"].as_str().unwrap().contains("File 'blocked' was not transferred"), "{blocked}");
    rig.cleanup("r").await;
    rig.finish(&state);
}

#[tokio::test]
async fn what_code_shows_is_saved_under_names_that_never_clash() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state);
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let code = format!(
        "from IPython.display import display, Image, HTML, SVG\nimport base64\n\
         for _ in range(2): display(Image(data=base64.b64decode('{png}'), format='png'))\ndisplay(HTML('<b>x</b>'))"
    );
    let (one, two) = tokio::join!(rig.python("r", &code), rig.python("r", &code));
    let mut names: Vec<String> = [&one, &two]
        .iter()
        .flat_map(|shown| shown["files_generated"].as_array().unwrap())
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names.len(), 6, "{one} {two}");
    assert!(one["result"].as_str().unwrap().contains("[SYSTEM: Generated Image saved to 'plot_r_"), "{one}");
    let plots: Vec<_> = names.iter().filter(|name| name.starts_with("plot_r_") && name.ends_with(".png")).collect();
    assert_eq!(plots.len(), 4, "{names:?}");
    for plot in plots {
        assert_eq!(rig.download("r", plot), STANDARD.decode(png).unwrap(), "{plot} is not what the code showed");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 6, "{names:?}");
    rig.cleanup("r").await;
    rig.finish(&state);
}

#[tokio::test]
async fn a_sandbox_that_takes_anothers_place_gets_all_files_again() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state);
    rig.put("r", "in.txt", "in").await;
    let first = rig.python("r", "open('out.txt', 'w').write('out')").await;
    rig.verb(&["kill", first["sandbox_id"].as_str().unwrap()]);
    let second = rig.python("r", "print(open('in.txt').read(), open('out.txt').read())").await;
    assert_eq!(second["result"], "STDOUT:\nin out\n", "{second}");
    assert_eq!((&second["restarted"], &second["previous_sandbox_id"]), (&json!(true), &first["sandbox_id"]));
    rig.cleanup("r").await;
    rig.finish(&state);
}

/// A server that was killed finds sandbox, variables and files of a run again, and moves nothing twice.
#[tokio::test]
async fn a_run_goes_on_after_its_server_was_killed() {
    let state = StateDir::new(BINARY).with_shared_templates();
    let rig = Rig::start(&state);
    rig.put("r", "in.txt", "in").await;
    let first = rig.python("r", "x = 1; open('out.txt', 'w').write('out')").await;
    drop(rig);
    let rig = Rig::start(&state);
    let second = rig.python("r", "x").await;
    assert_eq!((&second["sandbox_id"], &second["restarted"]), (&first["sandbox_id"], &json!(false)), "{second}");
    assert_eq!(second["output"]["results"][0]["text"], "1");
    assert_eq!((&second["sync"]["uploaded"], &second["files_generated"]), (&json!(0), &json!([])), "{second}");
    rig.cleanup("r").await;
    rig.finish(&state);
}

/// strace sees what the server does between a call and its answer: the contents reach the disk before the file has its
/// name, and the name before the caller knows of it.
#[tokio::test]
async fn what_a_tool_writes_is_on_disk_when_the_call_returns() {
    let state = StateDir::new(BINARY);
    let trace = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-y", "-e", "trace=mkdirat,fsync,fdatasync,renameat,renameat2", "-o"]);
    command.arg(trace.path()).arg(BINARY).arg("--state-dir").arg(state.path());
    command.args(["serve", "--prepare", "none", "--pool-ready", "0", "--pool-prepared", "0"]);
    command.env_remove("REDIS_URL").env_remove("RFS_BASE");
    let server = common::Server::start(command);
    let headers = [("x-api-key", common::KEY), ("content-type", "application/json")];
    let body = json!({ "filename": "deep/note.txt", "content": "kept" }).to_string();
    let written = ask(server.port(), "POST", "/runtime/traced-run/tools/write_file", &headers, body.as_bytes()).await;
    assert_eq!((written.status, &written.json()["success"]), (200, &json!(true)), "{written:?}");
    server.stop_traced();

    let calls = Traced::read(trace.path());
    let writer = calls.iter().find(|call| call.line.contains("\"note.txt\"")).expect("the file gets its name").thread;
    // By descriptor: the same thread may have created the run's own directories before, by path.
    let of_writer = calls.iter().filter(|call| call.thread == writer && call.directory().contains(OF_RUN));
    let steps: Vec<String> = of_writer.map(Traced::step).collect();
    let of_tree = |tree: &str| {
        ["mkdirat TREE", "fsync TREE", "fsync TREE/deep/NEW", "renameat TREE/deep", "fsync TREE/deep"]
            .map(|step| step.replace("TREE", tree))
    };
    assert_eq!(steps, [of_tree("output"), of_tree("input")].concat());
    state.assert_nothing_left();
}

/// What the paths of the run's directories contain.
const OF_RUN: &str = "/traced-run/";

/// A system call that succeeded.
struct Traced {
    thread: u32,
    line: String,
}

impl Traced {
    /// The calls that strace wrote, with the two halves of interrupted lines put together.
    fn read(trace: &Path) -> Vec<Self> {
        let text = std::fs::read_to_string(trace).unwrap();
        let mut calls: Vec<Self> = Vec::new();
        for line in text.lines() {
            let (thread, line) = line.split_once(' ').unwrap();
            let (thread, line) = (thread.parse().unwrap(), line.trim_start());
            let rest = line.strip_prefix("<... ").and_then(|line| line.split_once("resumed>"));
            match rest {
                Some((_, rest)) => {
                    let begun = calls.iter_mut().rfind(|call| call.thread == thread).expect("it was interrupted");
                    begun.line = begun.line.replace(" <unfinished ...>", rest);
                }
                None => calls.push(Self { thread, line: line.to_owned() }),
            }
        }
        calls.retain(|call| call.line.ends_with("= 0"));
        calls
    }

    /// The path behind its first descriptor.
    fn directory(&self) -> &str {
        self.line.split(['<', '>']).nth(1).unwrap()
    }

    /// Its name and the path behind its first descriptor, below the directory of the run.
    fn step(&self) -> String {
        let name = self.line.split('(').next().unwrap();
        let path = self.directory();
        let path = path.split_once(OF_RUN).map_or(path, |(_, below)| below);
        let path = path.split_once("/.isopod-").map_or(path.to_owned(), |(directory, _)| format!("{directory}/NEW"));
        format!("{name} {path}")
    }
}
