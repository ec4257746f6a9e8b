//! `isopod env`: the variables that it prints, and programs that find the server under names of E2B's.

use crate::served;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use isopod_testkit::StateDir;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use served::{BINARY, Served, host, text};

const TIMEOUT: Duration = Duration::from_secs(20);

fn start(state: &StateDir, options: &[&str]) -> Served {
    Served::start(state, &[&["--listen", "127.0.0.1:0", "--prepare", "none"], options].concat())
}

/// `isopod env` by root, who has neither a key nor an address.
fn env(state: &StateDir, arguments: &[&str]) -> Command {
    let mut command = state.isopod().command(&[&["env"], arguments].concat());
    for name in ["E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN", "ISOPOD_CA_FILE", "SHELL"] {
        command.env_remove(name);
    }
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `isopod env -- sh -c SCRIPT`, which must succeed.
fn in_env(state: &StateDir, script: &str) -> String {
    let done = output(env(state, &["--", "sh", "-c", script]));
    assert!(done.status.success(), "{script}: {}{}", text(&done), errors(&done));
    text(&done)
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TIMEOUT, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_a_server_it_says_so_and_how_to_start_one() {
    let state = StateDir::new(BINARY);
    let none = output(env(&state, &[]));
    assert_eq!(none.status.code(), Some(125));
    assert!(errors(&none).contains("start one with: isopod serve"), "{}", errors(&none));

    let server = start(&state, &[]);
    let url = server.export("E2B_API_URL").to_owned();
    server.stop();
    assert!(!state.path().join("env/server.json").exists(), "a server that has stopped is not found");
    let mut gone = env(&state, &["--", "true"]);
    gone.env("E2B_API_URL", url);
    let gone = output(gone);
    assert_eq!(gone.status.code(), Some(125));
    assert!(errors(&gone).contains("is it running? isopod serve starts one"), "{}", errors(&gone));
    state.assert_nothing_left();
}

#[test]
fn variables_are_printed_as_each_shell_and_program_reads_them() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let print = |options: &[&str]| {
        let printed = output(env(&state, options));
        assert!(printed.status.success(), "{options:?}: {}", errors(&printed));
        text(&printed)
    };
    let json: Value = serde_json::from_str(&print(&["--json"])).unwrap();
    let (key, url) = (json["E2B_API_KEY"].as_str().unwrap(), json["E2B_API_URL"].as_str().unwrap());
    assert_eq!(url, server.export("E2B_API_URL"));
    assert_eq!((&json["E2B_SANDBOX_URL"], &json["E2B_VOLUME_API_URL"]), (&json["E2B_API_URL"], &json["E2B_API_URL"]));
    for shell in ["bash", "zsh", "sh"] {
        assert!(print(&["--shell", shell]).contains(&format!("export E2B_API_KEY={key}\nexport E2B_API_URL={url}\n")));
    }
    assert!(print(&["--shell", "fish"]).contains(&format!("set -gx E2B_API_KEY {key}\n")));
    assert!(
        print(&["--dotenv"]).contains(&format!("E2B_API_KEY={key}\nE2B_API_URL={url}\n")),
        "the key stays the same"
    );
    let mut by_shell = env(&state, &[]);
    by_shell.env("SHELL", "/usr/bin/fish");
    assert!(text(&output(by_shell)).starts_with("set -gx "));

    // As people use it, with a program that reads nothing else.
    let script = format!("eval \"$({BINARY} env)\" && {BINARY} ls --json", BINARY = BINARY);
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &script])
        .env("ISOPOD_STATE_DIR", state.path())
        .env_remove("E2B_API_KEY")
        .env_remove("E2B_API_URL");
    let listed = output(shell);
    assert_eq!(text(&listed), "[]\n", "{}", errors(&listed));

    let kept = fs::metadata(state.path().join("env/key")).unwrap();
    assert_eq!(kept.permissions().mode() & 0o777, 0o600);
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_key_that_the_server_does_not_know_is_replaced_for_root_alone() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let mut strange = env(&state, &["--json"]);
    strange.env("E2B_API_KEY", "e2b_of_the_cloud");
    let answered = output(strange);
    assert!(errors(&answered).contains("E2B_API_KEY is no key of this server"), "{}", errors(&answered));
    assert!(!text(&answered).contains("e2b_of_the_cloud"));

    let mut known = env(&state, &["--json"]);
    known.env("E2B_API_KEY", server.export("E2B_API_KEY"));
    assert!(text(&output(known)).contains(server.export("E2B_API_KEY")), "a key that is known stays");

    let refused = as_nobody(&server, Some("e2b_of_the_cloud"), &["env"]);
    assert_eq!(refused.status.code(), Some(125));
    let refused = as_nobody(&server, None, &["env"]);
    assert!(errors(&refused).contains("set E2B_API_KEY"), "{}", errors(&refused));
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_command_finds_the_server_under_e2bs_names_and_nobody_else_does() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let before = machine();
    let seen = in_env(
        &state,
        "getent ahostsv4 api.e2b.app | head -1; curl -sS -o /dev/null -w '%{http_code} %{http_version}\n' \
         https://api.e2b.app/health; curl -sS -H \"X-API-Key: $E2B_API_KEY\" https://api.e2b.app/teams; \
         echo; echo $E2B_API_URL$E2B_DOMAIN",
    );
    let lines: Vec<&str> = seen.lines().collect();
    let address = fs::read_to_string(state.path().join("env/address")).unwrap();
    assert!(lines[0].starts_with(address.trim()) && address.starts_with("127."), "{seen}");
    assert_eq!((lines[1], lines[3]), ("200 2", "e2b.app"), "{seen}");
    assert!(lines[2].contains("teamID"), "{seen}");
    // IPv6 is answered with nothing, at once: an error would be taken for both.
    let no_ipv6 = in_env(&state, "getent ahostsv6 49983-iabc.e2b.app || echo none; getent hosts 49983-iabc.e2b.app");
    assert!(no_ipv6.contains(address.trim()), "{no_ipv6}");

    // From outside, the port is there, with a certificate that nobody trusts.
    let outside = format!("api.e2b.app:443:{}", address.trim());
    let stranger = host("curl", &["-sS", "--resolve", &outside, "https://api.e2b.app/health"]);
    assert!(!stranger.status.success() && errors(&stranger).contains("certificate"), "{}", errors(&stranger));
    assert_eq!(machine(), before);
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn the_authority_can_certify_the_domains_and_nothing_else() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &["--env-domains", "e2b.app,box.example"]);
    let path = |name: &str| state.path().join("env").join(name);
    let shown = host("openssl", &["x509", "-in", path("ca.pem").to_str().unwrap(), "-noout", "-text"]);
    let constraints: Vec<String> =
        text(&shown).lines().filter(|line| line.contains("DNS:") || line.contains("IP:")).map(str::to_owned).collect();
    assert_eq!(constraints.iter().map(|line| line.trim()).collect::<Vec<_>>(), ["DNS:box.example", "DNS:e2b.app"]);
    for name in ["ca.key", "server.key"] {
        assert_eq!(fs::metadata(path(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    // The machine's own authority, which people may trust everywhere, knows nothing of these domains.
    let own = state.path().join("tls/server.pem");
    let own = text(&host("openssl", &["x509", "-in", own.to_str().unwrap(), "-noout", "-text"]));
    assert!(own.contains("DNS:isopod.localhost") && !own.contains("e2b.app"), "{own}");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn another_domain_can_be_chosen_if_the_server_answers_for_it() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &["--env-domains", "box.example"]);
    let script = "echo $E2B_DOMAIN; curl -sS -o /dev/null -w '%{http_code}' https://api.$E2B_DOMAIN/health";
    assert_eq!(in_env(&state, script), "box.example\n200");
    assert!(output(env(&state, &["--as", "BOX.example", "--", "true"])).status.success());
    let refused = output(env(&state, &["--as", "e2b.app", "--", "true"]));
    assert_eq!(refused.status.code(), Some(125));
    assert!(errors(&refused).contains("--env-domains box.example,e2b.app"), "{}", errors(&refused));
    server.stop();

    let server = start(&state, &["--env-domains", "none"]);
    let refused = output(env(&state, &["--", "true"]));
    assert!(errors(&refused).contains("see --env-domains"), "{}", errors(&refused));
    assert!(output(env(&state, &[])).status.success(), "variables are printed all the same");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_port_that_is_taken_costs_the_names_and_not_the_server() {
    let state = StateDir::new(BINARY);
    // In a network of the server's own, so that nobody else's port is in the way.
    let script = format!(
        "ip link set lo up; \
         python3 -c 'import socket,time; s=socket.socket(); s.bind((\"0.0.0.0\",443)); s.listen(); time.sleep(60)' & other=$!; \
         while [ -z \"$(ss -Hltn sport = 443)\" ]; do sleep 0.05; done; \
         {BINARY} serve --listen 127.0.0.1:3000 --prepare none --pool-ready 0 --pool-prepared 0 > {log} 2>&1 & server=$!; \
         for i in $(seq 1200); do grep -q 'is ready' {log} && break; sleep 0.05; done; \
         {BINARY} env -- true; echo $?; kill $server $other; wait $server",
        log = state.path().join("log").display()
    );
    let mut command = Command::new("unshare");
    command.args(["-n", "bash", "-c", &script]).env("ISOPOD_STATE_DIR", state.path());
    command.env_remove("E2B_API_KEY").env_remove("E2B_API_URL");
    let done = output(command);
    assert_eq!(text(&done), "125\n", "{}", errors(&done));
    assert!(errors(&done).contains("port 443") && errors(&done).contains("all addresses"), "{}", errors(&done));
    state.assert_nothing_left();
}

#[test]
fn exit_status_and_signals_go_through() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let code = |command: &[&str]| output(env(&state, &[&["--"], command].concat())).status.code();
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["/is/not/there"]), Some(127));
    assert_eq!(code(&["/etc/passwd"]), Some(126));
    let killed = output(env(&state, &["--", "sh", "-c", "kill -KILL $$"])).status;
    assert_eq!(killed.signal(), Some(9));

    let place = tempfile::tempdir().unwrap();
    let ready = place.path().join("ready");
    let start = |script: &str| -> Child {
        let _ = fs::remove_file(&ready);
        let script = format!("{script}; touch {}; while :; do sleep 0.05; done", ready.display());
        let mut command = env(&state, &["--", "sh", "-c", &script]);
        let child = command.env("TMPDIR", place.path()).stdout(Stdio::piped()).spawn().unwrap();
        wait_for("the command", || ready.exists());
        child
    };
    let send = |child: &Child, signal| kill_process(Pid::from_child(child), signal).unwrap();
    // Whoever runs this test may ignore HUP and INT, and a shell cannot trap what it was started to ignore.
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        let child = start(&format!("trap 'echo got it; exit 3' {name}"));
        send(&child, signal);
        let ended = child.wait_with_output().unwrap();
        assert_eq!((text(&ended).as_str(), ended.status.code()), ("got it\n", Some(3)), "{name}");
    }
    let child = start("true");
    send(&child, Signal::TERM);
    assert_eq!(child.wait_with_output().unwrap().status.signal(), Some(15));

    // Nobody is left to keep the command's view, so the command ends, too.
    let pid = place.path().join("pid");
    let mut child = start(&format!("echo $$ > {}", pid.display()));
    let command = PathBuf::from(format!("/proc/{}", fs::read_to_string(&pid).unwrap().trim()));
    send(&child, Signal::KILL);
    child.wait().unwrap();
    wait_for("the end of the command", || !command.exists() || is_zombie(&command));
    // The others have left nothing, and this one an empty directory.
    let left = fs::read_dir(place.path()).unwrap().filter_map(Result::ok).map(|entry| entry.path());
    let left: Vec<PathBuf> = left.filter(|path| path.is_dir()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(fs::read_dir(&left[0]).unwrap().count(), 0);
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_user_without_rights_gets_none_and_needs_none() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let key = server.export("E2B_API_KEY").to_owned();
    let script = "id -u; grep -E 'Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u; \
                  curl -sS -o /dev/null -w '%{http_code}\n' https://api.e2b.app/health; mount -t tmpfs x /mnt 2>&1 || true";
    let done = as_nobody(&server, Some(&key), &["env", "--", "sh", "-c", script]);
    let seen = text(&done);
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[..3], ["65534", "0000000000000000", "200"], "{seen}{}", errors(&done));
    assert!(lines.len() > 3, "the mount was refused");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn without_docker_the_command_has_a_stand_in_that_says_what_it_is() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    // A PATH that has a shell, and later a docker.
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", place.path().join("sh")).unwrap();
    let run = |options: &[&str], script: &str| {
        let mut command = env(&state, &[options, &["--", "sh", "-c", script]].concat());
        command.env("PATH", place.path());
        output(command)
    };
    let login = run(&[], "echo token | docker login docker.e2b.app -u _e2b_access_token --password-stdin; echo $?");
    assert_eq!(text(&login), "0\n", "{}", errors(&login));
    assert_eq!(text(&run(&[], "docker tag a b && docker push b; echo $?")), "0\n");
    for other in ["docker ps", "docker --version", "docker run debian:12", "docker"] {
        let refused = run(&[], other);
        assert_eq!(refused.status.code(), Some(1), "{other}: {}", errors(&refused));
        assert!(errors(&refused).contains("Isopod's stand-in"), "{other}: {}", errors(&refused));
    }
    let image = run(&[], "docker build -t mine:1 .");
    assert!(errors(&image).contains("does not name a build of a template"), "{}", errors(&image));
    let unknown = "docker build -f e2b.Dockerfile --pull --platform linux/amd64 \
                   -t docker.e2b.app/e2b/custom-envs/abc:0f9c -q .";
    assert!(errors(&run(&[], unknown)).contains("'-q'"), "{}", errors(&run(&[], unknown)));
    let empty = tempfile::tempdir().unwrap();
    let none = run(&[], &format!("docker build -t docker.e2b.app/e2b/custom-envs/abc:0f9c {}", empty.path().display()));
    assert!(!none.status.success() && errors(&none).contains("'abc' not found"), "{}", errors(&none));

    let real = place.path().join("docker");
    fs::write(&real, "#!/bin/sh\necho the real one\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(text(&run(&[], "docker ps")), "the real one\n", "it stays");
    assert!(errors(&run(&["--docker"], "docker ps")).contains("Isopod's stand-in"), "unless it is asked for");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_command_that_goes_on_keeps_no_disk_of_a_server_in_use() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let ready = tempfile::tempdir().unwrap();
    let script = format!("touch {}/now; exec sleep 30", ready.path().display());
    let mut command = env(&state, &["--", "sh", "-c", &script]).spawn().unwrap();
    wait_for("the command", || ready.path().join("now").exists());
    server.stop();
    state.assert_nothing_left();
    kill_process(Pid::from_child(&command), Signal::TERM).unwrap();
    command.wait().unwrap();
}

#[test]
fn a_resolver_file_that_is_replaced_outside_is_covered_again_and_a_cache_of_names_is_out_of_sight() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &["--env-domains", "box.example"]);
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    // An /etc that is this test's own, and the same for the command and for the one who replaces files in it.
    let inside = format!(
        "ls -A /var/run/nscd | wc -l; touch {}; while [ ! -e {} ]; do sleep 0.05; done; \
         for i in $(seq 100); do getent hosts api.box.example && exit 0; sleep 0.05; done; exit 1",
        path("ready"),
        path("go")
    );
    let script = format!(
        "mkdir {etc} && mount -t tmpfs etc {etc} && cp -a /etc/. {etc}/ && rm -f {etc}/resolv.conf && \
         echo nameserver 127.0.0.1 > {etc}/resolv.conf && mount --bind {etc} /etc && \
         mount -t tmpfs run /run && mkdir /run/nscd && touch /run/nscd/socket && \
         {{ {BINARY} env -- sh -c '{inside}' & }} && while [ ! -e {ready} ]; do sleep 0.05; done; \
         echo nameserver 127.0.0.2 > /etc/other && mv /etc/other /etc/resolv.conf && touch {go}; \
         cat /etc/resolv.conf; wait $!",
        etc = path("etc"),
        ready = path("ready"),
        go = path("go")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "bash", "-c", &script]).env("ISOPOD_STATE_DIR", state.path());
    command.env_remove("E2B_API_KEY").env_remove("E2B_API_URL");
    let done = output(command);
    assert!(done.status.success(), "{}{}", text(&done), errors(&done));
    let said = text(&done);
    assert!(said.starts_with("0\n"), "nscd would know nothing of our names: {said}");
    assert!(said.contains("nameserver 127.0.0.2\n"), "outside, it is the new file: {said}");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn previews_open_over_https_beside_http_on_the_same_port() {
    let state = StateDir::new(BINARY);
    let server = start(&state, &[]);
    let (url, port) = (server.export("E2B_API_URL").to_owned(), server.port().to_owned());
    assert!(url.starts_with("http://"), "{url}");
    let id = server.create(&[]);
    server
        .run(&[
            "exec",
            &id,
            "--",
            "sh",
            "-c",
            "cd /tmp && echo a preview > page && (setsid python3 -m http.server 8000 >/dev/null 2>&1 &)",
        ])
        .ok();
    let authority = state.path().join("tls/ca.pem");
    let name = format!("8000-{id}.isopod.localhost");
    let resolve = format!("{name}:{port}:127.0.0.1");
    let get = |scheme: &str| {
        let url = format!("{scheme}://{name}:{port}/page");
        let authority = authority.to_str().unwrap();
        text(&host("curl", &["-sS", "--cacert", authority, "--resolve", &resolve, &url]))
    };
    wait_for("the preview", || get("http") == "a preview\n");
    assert_eq!(get("https"), "a preview\n");
    server.run(&["kill", &id]).ok();
    server.stop();
    state.assert_nothing_left();
}

/// With a copy of the program that everybody may run, and neither root's files nor root's variables.
fn as_nobody(server: &Served, key: Option<&str>, arguments: &[&str]) -> Output {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("isopod");
    fs::copy(BINARY, &program).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program).args(arguments);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("E2B_API_URL", server.export("E2B_API_URL"));
    if let Some(key) = key {
        command.env("E2B_API_KEY", key);
    }
    output(command)
}

/// What no command may change for others.
fn machine() -> Vec<String> {
    let files = ["/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"];
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = mounts.lines().filter(|line| line.contains(" /etc") || line.contains("isopod-env"));
    files.iter().filter_map(|path| fs::read_to_string(path).ok()).chain(ours.map(str::to_owned)).collect()
}

fn is_zombie(process: &Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}
