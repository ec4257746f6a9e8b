//! The sandbox service on real sandboxes, asked as a person would with curl, and the verbs around it.

use crate::served;

use std::time::{Duration, Instant};

use isopod_testkit::StateDir;
use serde_json::{Value, json};
use served::{BINARY, Served, host, text};

const LISTEN: [&str; 4] = ["--listen", "127.0.0.1:0", "--prepare", "none"];

struct Api<'a> {
    server: &'a Served,
    key: String,
}

impl Api<'_> {
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let url = format!("{}{path}", self.server.export("E2B_API_URL"));
        let key = format!("X-API-Key: {}", self.key);
        let body = body.map(ToString::to_string);
        let mut arguments = vec!["-s", "-X", method, "-w", "\n%{http_code}", "-H", &key, &url];
        if let Some(body) = &body {
            arguments.extend(["-H", "content-type: application/json", "-d", body]);
        }
        let answer = text(&host("curl", &arguments));
        let (body, status) = answer.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.call("POST", path, Some(body));
        assert!(status < 300, "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    fn get(&self, path: &str) -> Value {
        let (status, text) = self.call("GET", path, None);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    fn run(&self, id: &str, line: &str) -> Value {
        self.post(&format!("/api/v1/sandboxes/{id}/execute"), &json!({ "command": line }))
    }

    /// Creates a sandbox of this template and returns its id.
    fn create(&self, template: &str) -> String {
        self.post("/api/v1/sandboxes", &json!({ "template": template }))["id"].as_str().unwrap().to_owned()
    }

    /// Sends a file into a sandbox, or fetches one from it, by curl's options. Nobody holds it in memory.
    fn transfer(&self, id: &str, path: &str, options: &[&str]) {
        let url = format!("{}/api/v1/sandboxes/{id}/files?path={path}", self.server.export("E2B_API_URL"));
        let key = format!("X-API-Key: {}", self.key);
        let done = host("curl", &[&["-sS", "--fail-with-body", "-H", &key, &url], options].concat());
        assert!(done.status.success(), "{options:?}: {done:?}");
    }

    fn remove(&self, id: &str) {
        assert_eq!(self.call("DELETE", &format!("/api/v1/sandboxes/{id}"), None).0, 204);
    }
}

/// A task on a real sandbox: it is assigned, gets its sandbox in far less than five seconds, works with files and git
/// (clone, branch, commit, push, history), and ends.
#[test]
fn a_task_works_in_a_real_sandbox_and_leaves_nothing() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    let api = Api { server: &server, key: server.export("E2B_API_KEY").to_owned() };
    api.post("/api/v1/agents", &json!({ "id": "ada", "name": "Ada" }));
    api.post("/api/v1/tasks", &json!({ "id": "t1", "title": "try git" }));
    // The template is made by the first sandbox; the second shows what a create takes.
    let first = api.post("/api/v1/sandboxes", &json!({}));
    let started = Instant::now();
    let begun = api.post("/api/v1/agents/ada/start-task", &json!({ "task_id": "t1" }));
    assert!(started.elapsed().as_secs() < 5, "a create took {:?}", started.elapsed());
    let id = begun["sandbox"]["id"].as_str().unwrap();

    let done = api.run(id, "echo out; echo err >&2; exit 3");
    assert_eq!((&done["stdout"], &done["stderr"], &done["exit_code"]), (&json!("out\n"), &json!("err\n"), &json!(3)));
    let late = api.post(&format!("/api/v1/sandboxes/{id}/execute"), &json!({ "argv": ["sleep", "60"], "timeout": 1 }));
    assert_eq!((&late["timed_out"], &late["exit_code"]), (&json!(true), &json!(-1)));
    let files = format!("/api/v1/sandboxes/{id}/files?path=/home/user/a%20b.txt");
    assert_eq!(api.call("PUT", &files, Some(&json!("text"))).0, 200);
    assert_eq!(api.call("GET", &files, None), (200, "\"text\"".to_owned()));
    let (_, streamed) = api.call(
        "POST",
        &format!("/api/v1/sandboxes/{id}/execute/stream"),
        Some(&json!({ "command": "echo one; echo two >&2" })),
    );
    for part in ["event: started", "one\\n", "two\\n", "event: end", "\"exit_code\":0"] {
        assert!(streamed.contains(part), "{part} is missing in {streamed}");
    }

    // The template has the host's programs, but for those in /usr/local.
    let versions = "/usr/bin/git --version; /usr/bin/node --version";
    assert_eq!(api.run(id, versions)["stdout"], text(&host("sh", &["-c", versions])));

    git_from_nothing(&api, id);
    git(&api, id);

    // Pause and resume keep what is inside.
    assert_eq!(api.post(&format!("/api/v1/sandboxes/{id}/pause"), &json!({}))["status"], "paused");
    assert_eq!(
        api.call("POST", &format!("/api/v1/sandboxes/{id}/execute"), Some(&json!({ "command": "true" }))).0,
        409
    );
    assert_eq!(api.post(&format!("/api/v1/sandboxes/{id}/resume"), &json!({}))["status"], "running");
    api.run(id, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");

    assert_eq!(api.post("/api/v1/tasks/t1/finish", &json!({}))["status"], "completed");
    let gone = api.get(&format!("/api/v1/sandboxes/{id}"));
    assert_eq!((&gone["status"], &gone["reason"]), (&json!("stopped"), &json!("task_completed")));
    let usage = api.get("/api/v1/usage?group_by=task");
    let of_task = usage["usage"].as_array().unwrap().iter().find(|row| row["task_id"] == "t1").unwrap();
    assert!(of_task["cpu_seconds"].as_f64().unwrap() > 0.05, "{usage}");
    let first = first["id"].as_str().unwrap();
    assert_eq!(api.call("DELETE", &format!("/api/v1/sandboxes/{first}"), None).0, 204);
    server.stop();
    state.assert_nothing_left();
}

/// A create takes a sandbox that was made in advance, so it takes what `docs/bench/results.md` has for the ready pool.
#[test]
fn creates_are_served_from_the_pool() {
    let state = StateDir::new(BINARY);
    let options =
        ["serve", "--listen", "127.0.0.1:0", "--prepare", "none", "--pool-ready", "1", "--pool-prepared", "0"];
    let server = Served::start_command(&state, state.isopod().command(&options));
    let admin = server.run(&["key", "create", "--local", "--scope", "admin"]).ok().trim().to_owned();
    let api = Api { server: &server, key: server.export("E2B_API_KEY").to_owned() };
    let mut made = vec![api.post("/api/v1/sandboxes", &json!({}))];
    for _ in 0..10 {
        pool_is_full(&server, &admin);
        let waiting: Vec<Value> = records(&state).into_iter().filter(|record| record["spec"].is_null()).collect();
        assert_eq!(waiting.len(), 1, "{waiting:?}");
        let sandbox = api.post("/api/v1/sandboxes", &json!({}));
        let own = records(&state).into_iter().find(|record| record["spec"]["sandbox"] == sandbox["sandbox_id"]);
        let own = own.unwrap_or_else(|| panic!("no record of {sandbox}"));
        assert_eq!(own["execution"], waiting[0]["execution"], "it was made for this create: {sandbox}");
        made.push(sandbox);
    }
    for sandbox in made {
        let path = format!("/api/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
        assert_eq!(api.call("DELETE", &path, None).0, 204);
    }
    server.stop();
    state.assert_nothing_left();
}

/// Waits until the pool has as many sandboxes as it should.
fn pool_is_full(server: &Served, admin: &str) {
    let bearer = format!("Authorization: Bearer {admin}");
    let url = format!("http://{}/metrics", server.address());
    for _ in 0..600 {
        let metrics = text(&host("curl", &["-s", "-H", &bearer, &url]));
        if metrics.contains("isopod_pool_sandboxes{template=\"base\",stage=\"ready\"} 1") {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the pool stays empty");
}

/// What the server has recorded about its sandboxes, those of the pool too.
fn records(state: &StateDir) -> Vec<Value> {
    let boxes = std::fs::read_dir(state.path().join("homes/serve/boxes")).unwrap();
    let texts = boxes.filter_map(|entry| std::fs::read(entry.unwrap().path().join("record.json")).ok());
    texts.map(|text| serde_json::from_slice(&text).unwrap()).collect()
}

/// A repository without a commit is cloned, and gets its first one. A clone that fails leaves nothing.
fn git_from_nothing(api: &Api, id: &str) {
    assert_eq!(api.run(id, "git init -q --bare -b trunk /tmp/empty.git")["exit_code"], 0);
    let clone = |url: &str| json!({ "sandbox_id": id, "repo_url": url });
    let (status, why) = api.call("POST", "/api/v1/git/clone", Some(&clone("file:///tmp/missing.git")));
    assert_eq!(status, 422, "{why}");
    assert_eq!(api.run(id, "ls -A /workspace")["stdout"], "");
    let cloned = api.post("/api/v1/git/clone", &clone("file:///tmp/empty.git"));
    assert_eq!((&cloned["branch"], &cloned["commit_sha"]), (&json!("trunk"), &json!(null)));
    assert_eq!(api.run(id, "ls -A /workspace")["stdout"], "repo\n");
    assert_eq!(api.get(&format!("/api/v1/git/{id}/history"))["commits"], json!([]));
    api.run(id, "echo 1 > /workspace/repo/f");
    // What is there is not replaced.
    let (status, why) = api.call("POST", "/api/v1/git/clone", Some(&clone("file:///tmp/empty.git")));
    assert!(status == 422 && why.contains("already exists"), "{status} {why}");
    assert_eq!(api.run(id, "ls -A /workspace; cat /workspace/repo/f")["stdout"], "repo\n1\n");
    let commit = api.post("/api/v1/git/commit", &json!({ "sandbox_id": id, "message": "feat: first" }));
    assert_eq!(api.post("/api/v1/git/push", &json!({ "sandbox_id": id }))["commit_sha"], commit["commit_sha"]);
    assert_eq!(api.get(&format!("/api/v1/git/{id}/history"))["commits"].as_array().unwrap().len(), 1);
    // A tag is checked out without a branch.
    api.run(id, "git -C /tmp/empty.git tag v1 trunk; rm -rf /workspace/repo");
    let mut tagged = clone("file:///tmp/empty.git");
    tagged["branch"] = json!("v1");
    assert_eq!(api.post("/api/v1/git/clone", &tagged)["branch"], "HEAD");
    api.run(id, "rm -rf /workspace/repo");
}

fn git(api: &Api, id: &str) {
    let made = api.run(
        id,
        "set -e; git init -q --bare /tmp/origin.git; git clone -q /tmp/origin.git /tmp/w; cd /tmp/w; \
         git config user.email a@b; git config user.name n; echo 1 > f; git add f; git commit -qm 'chore: first'; \
         git push -q origin HEAD; git -C /tmp/origin.git symbolic-ref HEAD refs/heads/$(git branch --show-current)",
    );
    assert_eq!(made["exit_code"], 0, "{made}");
    let body = json!({ "sandbox_id": id, "repo_url": "file:///tmp/origin.git", "token": "ghp_neverseen" });
    assert_eq!(api.post("/api/v1/git/clone", &body)["path"], "/workspace/repo");
    assert_eq!(api.post("/api/v1/git/branch", &json!({ "sandbox_id": id }))["branch"], "task-t1");
    let again = api.post("/api/v1/git/branch", &json!({ "sandbox_id": id }));
    assert!(again["branch"].as_str().unwrap().starts_with("task-t1-"), "{again}");
    api.run(id, "echo 2 > /workspace/repo/g");
    let wrong = json!({ "sandbox_id": id, "message": "did things" });
    assert_eq!(api.call("POST", "/api/v1/git/commit", Some(&wrong)).0, 400);
    let commit = api.post("/api/v1/git/commit", &json!({ "sandbox_id": id, "message": "feat(x): second" }));
    let pushed = api.post("/api/v1/git/push", &json!({ "sandbox_id": id, "token": "ghp_neverseen" }));
    assert_eq!(pushed["commit_sha"], commit["commit_sha"]);
    let history = api.get(&format!("/api/v1/git/{id}/history"));
    assert_eq!(history["commits"][0]["message"], "feat(x): second");
    assert_eq!(history["commits"][0]["author"], "Agent Squad Bot");
    assert_eq!(history["commits"].as_array().unwrap().len(), 2);
    let kept = api.run(
        id,
        "cat /workspace/repo/.git/config ~/.gitconfig 2>/dev/null; git -C /tmp/origin.git log --all --format=%s",
    );
    let kept = kept["stdout"].as_str().unwrap();
    assert!(kept.contains("feat(x): second") && !kept.contains("neverseen") && !kept.contains("Basic"), "{kept}");
}

/// The templates that come with the server and need no download, and the interpreter's, which other tests build too.
const SHIPPED: [&str; 3] = ["base", "nodejs", "code-interpreter-v1"];

#[test]
fn the_templates_that_come_with_the_server_have_the_node_and_git_of_the_host() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", "code-interpreter-v1"]).ok();
    let server = Served::start(&state, &LISTEN);
    let api = Api { server: &server, key: server.export("E2B_API_KEY").to_owned() };
    let listed = api.get("/templates");
    let listed: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["templateID"].as_str().unwrap()).collect();
    for program in ["node", "git"] {
        // Programs in /usr/local are the host's own affair.
        let on_host = host("env", &["PATH=/usr/bin:/bin", program, "--version"]);
        for template in SHIPPED {
            assert!(listed.contains(&template), "{template} is not in {listed:?}");
            let id = api.create(template);
            let inside = api.run(&id, &format!("{program} --version"));
            let found = (inside["exit_code"] == 0, inside["stdout"].as_str().unwrap());
            assert_eq!(found, (on_host.status.success(), &*text(&on_host)), "{program} in {template}: {inside}");
            api.remove(&id);
        }
    }
    server.stop();
    state.assert_nothing_left();
}

const MIB: u64 = 1 << 20;

/// A file of half a gibibyte with `ISOPOD_FULL`. The limit on memory is a quarter of it either way, so that a server
/// that collects the file is found.
fn large_file_bytes() -> u64 {
    if std::env::var_os("ISOPOD_FULL").is_some() { 512 * MIB } else { 64 * MIB }
}

#[test]
fn a_large_file_goes_in_and_out_unchanged_and_the_server_does_not_hold_it() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    let api = Api { server: &server, key: server.export("E2B_API_KEY").to_owned() };
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    let (small, large, back) = (path("small"), path("large"), path("back"));
    write_random(&small, MIB);
    write_random(&large, large_file_bytes());
    let id = api.create("base");
    // What the first transfer of any size takes.
    api.transfer(&id, "/home/user/small", &["-T", &small]);
    api.transfer(&id, "/home/user/small", &["-o", &back]);
    let before = reset_peak_memory(&server);

    api.transfer(&id, "/home/user/large", &["-T", &large]);
    let inside = api.run(&id, "sha256sum /home/user/large");
    api.transfer(&id, "/home/user/large", &["-o", &back]);
    let sent = sha256(&large);
    assert_eq!(inside["stdout"].as_str().unwrap().split_whitespace().next(), Some(&*sent), "{inside}");
    assert_eq!((sha256(&back), std::fs::metadata(&back).unwrap().len()), (sent, large_file_bytes()));
    let grown = peak_memory(&server).saturating_sub(before);
    assert!(grown < large_file_bytes() / 4, "the server grew by {} MiB", grown / MIB);
    api.remove(&id);
    server.stop();
    state.assert_nothing_left();
}

fn write_random(path: &str, bytes: u64) {
    use std::io::Read as _;
    let source = std::fs::File::open("/dev/urandom").unwrap();
    let copied = std::io::copy(&mut source.take(bytes), &mut std::fs::File::create(path).unwrap());
    assert_eq!(copied.unwrap(), bytes);
}

fn sha256(path: &str) -> String {
    text(&host("sha256sum", &[path])).split_whitespace().next().unwrap().to_owned()
}

/// Makes the kernel forget the server's peak, and returns what it has now.
fn reset_peak_memory(server: &Served) -> u64 {
    std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").unwrap();
    peak_memory(server)
}

/// The most that the server had resident.
fn peak_memory(server: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Keys with scopes from the command line, and an audit that can be exported and verified from outside.
#[test]
fn keys_are_rotated_and_the_audit_verified_by_the_command_line() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    assert_eq!(server.run(&["key", "create", "--agent", "x"]).code(), 125);
    assert_eq!(server.run(&["key", "create", "--scope", "agent"]).code(), 2);
    let made = server.run(&["key", "create", "--local", "--scope", "admin", "--json"]).ok();
    let made: Value = serde_json::from_str(&made).unwrap();
    let admin = Api { server: &server, key: made["key"].as_str().unwrap().to_owned() };
    assert_eq!(admin.get("/api/v1/sandboxes")["sandboxes"], json!([]));
    let reader = server.run(&["key", "create", "--scope", "read-only", "--expires-days", "1", "--json"]).ok();
    let reader: Value = serde_json::from_str(&reader).unwrap();
    let old = Api { server: &server, key: reader["key"].as_str().unwrap().to_owned() };
    assert_eq!(old.call("POST", "/api/v1/tasks", Some(&json!({ "title": "x" }))).0, 403);
    let new = server.run(&["key", "rotate", reader["id"].as_str().unwrap(), "--overlap-hours", "0"]).ok();
    assert_eq!(old.call("GET", "/api/v1/tasks", None).0, 401);
    assert_eq!(Api { server: &server, key: new.trim().to_owned() }.call("GET", "/api/v1/tasks", None).0, 200);
    assert!(server.run(&["key", "list"]).ok().contains("read_only"));

    let bearer = format!("Authorization: Bearer {}", admin.key);
    let metrics = host("curl", &["-s", "-H", &bearer, &format!("http://{}/metrics", server.address())]);
    let metrics = text(&metrics);
    for line in ["isopod_pool_size{template=\"base\",stage=\"ready\"} 1", "isopod_pool_sandboxes{template=\"base\""] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(metrics.contains("isopod_node_free_slots "), "{metrics}");

    let verified = server.run(&["audit", "verify", "--json"]).ok();
    let verified: Value = serde_json::from_str(&verified).unwrap();
    // Three through the service, and the two that made and replaced a key.
    assert_eq!((&verified["broken_at"], &verified["lines"]), (&json!(null), &json!(5)));
    let head = verified["head"].as_str().unwrap();
    admin.get("/api/v1/tasks");
    assert_eq!(server.run(&["audit", "verify", "--contains", head]).code(), 0);
    assert_eq!(server.run(&["audit", "verify", "--contains", &"0".repeat(64)]).code(), 1);
    let exported = server.run(&["audit", "export"]).ok();
    assert_eq!(exported.lines().count(), 6);
    assert!(exported.contains("api_key.create") && exported.contains("api_key.rotate"), "{exported}");
    assert!(server.run(&["audit", "ls"]).ok().contains("sandbox.list"));
    server.stop();
    state.assert_nothing_left();
}

/// Tiers from the settings file, given to a team by an admin's command, and kept by a server that starts again.
#[test]
fn teams_get_tiers_and_limits_by_the_command_line() {
    let state = StateDir::new(BINARY);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("isopod.toml");
    std::fs::write(&path, "[quotas.tiers.free]\nconcurrent = 1\n[quotas.tiers.pro]\nconcurrent = 2\n").unwrap();
    let options = [&LISTEN[..], &["--config", path.to_str().unwrap()]].concat();
    let server = Served::start(&state, &options);
    let first_key = server.export("E2B_API_KEY").to_owned();
    let api = Api { server: &server, key: first_key.clone() };
    let team = api.get("/api/v1/quota")["team_id"].as_str().unwrap().to_owned();

    let refused = server.run(&["quota", "ls"]);
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr().contains("hint: set E2B_API_KEY to an admin key"), "{}", refused.stderr());
    let key = server.run(&["key", "create", "--local", "--scope", "admin"]).ok().trim().to_owned();
    let run_as = |server: &Served, key: &str, arguments: &[&str]| -> isopod_testkit::Finished {
        server.command(arguments).env("E2B_API_KEY", key).output().unwrap().into()
    };
    let quota = |server: &Served, arguments: &[&str]| run_as(server, &key, &[&["quota"], arguments].concat());
    let tiers = quota(&server, &["tiers"]).ok();
    assert!(tiers.lines().nth(1).unwrap().starts_with("free  1           unlimited"), "{tiers}");
    for (arguments, code, reason) in [
        (&["set", &team][..], 2, "required"),
        (&["set", &team, "--concurrent", "-1"], 2, "--concurrent"),
        (&["set", &team, "--tier", "gold"], 125, "there is no tier \"gold\""),
        (&["set", "nobody", "--tier", "free"], 125, "hint: isopod quota ls lists the teams"),
    ] {
        let refused = quota(&server, arguments);
        assert_eq!(refused.code(), code, "{arguments:?}");
        assert!(refused.stderr().contains(reason), "{arguments:?}: {}", refused.stderr());
    }

    let set = quota(&server, &["set", &team, "--tier", "free", "--json"]).ok();
    let set: Value = serde_json::from_str(&set).unwrap();
    assert_eq!((&set["tier"], &set["limits"]["concurrent"]), (&json!("free"), &json!(1)));
    server.create(&[]);
    let full = server.run(&["create", "--detach"]);
    assert!(full.stderr().contains("maximum number of concurrent sandboxes (1)"), "{}", full.stderr());
    server.stop();

    // A server that starts again does not print the key.
    let server = Served::start(&state, &options);
    let own = |arguments: &[&str]| run_as(&server, &first_key, arguments);
    let table = own(&["quota", "show"]).ok();
    assert_eq!(table.lines().nth(1).unwrap().split_whitespace().nth(1), Some("free"), "{table}");
    assert_eq!(own(&["create", "--detach"]).code(), 125);
    let raised = quota(&server, &["set", &team, "--concurrent", "3"]).ok();
    assert!(raised.contains("free"), "the tier stays: {raised}");
    own(&["create", "--detach"]).ok();
    let reset = quota(&server, &["reset", &team, "--json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&reset).unwrap()["tier"], json!(null));
    let lines = server.run(&["audit", "ls"]).ok();
    assert!(lines.contains("team.set_quota") && lines.contains("team.reset_quota"), "{lines}");
    own(&["kill", "--all"]).ok();
    server.stop();
    state.assert_nothing_left();
}
