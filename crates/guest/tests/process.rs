//! Processes, tested with the real binary: events, output, deadlines, late readers, signals, input and terminals.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use common::{Channel, Events, Guest, envelope, shell, wait_until};
use isopod_positions::{Positions, Slot};
use isopod_wire::delivery::Report;
use serde_json::json;

#[test]
fn a_command_that_cannot_start_is_refused_with_the_reason() {
    let guest = Guest::new();
    let refused = |process: serde_json::Value| {
        let error = guest.stream("process.Process/Start", &[], &json!({"process": process})).finish().error;
        (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
    };
    let expect = |process, message: &str| assert_eq!(refused(process), ("invalid_argument".into(), message.into()));
    expect(json!({"cmd": "/bin/true", "cwd": "/no/such"}), "cwd '/no/such' does not exist");
    expect(json!({"cmd": "no-such"}), "error starting process 'no-such': executable file not found in $PATH");
    expect(json!({"cmd": ""}), "cmd is empty");
    let no_directory = "error starting process '/bin/true -x': chdir /etc/passwd: not a directory";
    expect(json!({"cmd": "/bin/true", "args": ["-x"], "cwd": "/etc/passwd"}), no_directory);
    let long =
        format!("error starting process '/bin/true {}…': fork/exec /bin/true: argument list too long", "x".repeat(190));
    expect(json!({"cmd": "/bin/true", "args": ["x".repeat(200_000)]}), &long);
    let no_program = "error starting process '/etc/passwd': fork/exec /etc/passwd: permission denied";
    expect(json!({"cmd": "/etc/passwd"}), no_program);
    expect(json!({"cmd": "/bin/true", "envs": {"A=B": "1"}}), "invalid environment variable name 'A=B'");
    expect(
        json!({"cmd": "/bin/true", "cwd": "~x"}),
        "failed to expand path '~x' for user 'root': cannot expand user-specific home dir",
    );
}

#[test]
fn unknown_users_are_refused() {
    let guest = Guest::new();
    // `ghost:`
    let headers = [("Authorization", "Basic Z2hvc3Q6")];
    let error = guest.stream("process.Process/Start", &headers, &shell("true")).finish().error;
    assert_eq!(error, json!({"code": "unauthenticated", "message": "invalid username: 'ghost'"}));
}

#[test]
fn output_and_result_arrive_in_order() {
    let guest = Guest::new();
    let outcome = guest.run("echo out; echo err >&2; echo $SANDBOX $HOME $USER; exit 7");
    assert_eq!(outcome.text(), "out\nyes /root root\n");
    assert_eq!(outcome.stderr, b"err\n");
    assert_eq!(
        outcome.end,
        json!({"exitCode": 7, "exited": true, "status": "exit status 7", "error": "exit status 7"})
    );
    assert!(outcome.error.is_null());
}

#[test]
fn a_process_runs_as_the_named_user() {
    let guest = Guest::new();
    // `nobody:`
    let headers = [("Authorization", "Basic bm9ib2R5Og==")];
    let mut request = shell("id -un; id -gn; pwd");
    request["process"]["cwd"] = json!("/");
    let outcome = guest.stream("process.Process/Start", &headers, &request).finish();
    assert_eq!(outcome.text(), "nobody\nnogroup\n/\n");
}

#[test]
fn a_killed_process_ends_with_its_signal() {
    let guest = Guest::new();
    let outcome = guest.run("kill -9 $$");
    assert_eq!(outcome.end, json!({"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}));
}

#[test]
fn the_deadline_kills_the_whole_group() {
    let guest = Guest::new();
    let marker = guest.path("late");
    let script = format!("(sleep 2; touch {}) & echo before; sleep 60", marker.display());
    let started = Instant::now();
    let outcome = guest.stream("process.Process/Start", &[("Connect-Timeout-Ms", "300")], &shell(&script)).finish();
    assert_eq!(outcome.error["code"], "deadline_exceeded");
    assert_eq!(outcome.text(), "before\n");
    assert!(started.elapsed() < Duration::from_secs(2));
    std::thread::sleep(Duration::from_millis(2200));
    assert!(!marker.exists(), "a child of the killed command went on");
}

#[test]
fn a_process_survives_its_client_and_a_later_one_gets_the_rest() {
    let guest = Guest::new();
    let go = guest.path("go");
    let script = format!("echo first; while ! test -e {}; do sleep 0.05; done; echo second; exit 3", go.display());
    let mut events = guest.start(&script);
    let pid = events.pid();
    events.next().unwrap();
    drop(events);
    std::fs::write(&go, "").unwrap();
    wait_until(|| guest.call("process.Process/List", &json!({})).json().get("processes").is_none());
    let outcome = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}})).finish();
    assert_eq!((outcome.text().as_str(), outcome.pid, &outcome.end["exitCode"]), ("second\n", pid, &json!(3)));
    let error = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": 999999}})).finish().error;
    assert_eq!(error, json!({"code": "not_found", "message": "process with pid 999999 not found"}));
}

#[test]
fn output_that_did_not_reach_the_client_is_kept_for_the_next_one() {
    let guest = Guest::new();
    let mut channel = Channel::open(&guest);
    let (go, printed) = (guest.path("go"), guest.path("printed"));
    let script = format!(
        "echo first; until test -e {}; do sleep 0.02; done; echo second; touch {}; sleep 60",
        go.display(),
        printed.display()
    );
    let mut events = guest.stream("process.Process/Start", &[("X-Isopod-Delivery", &channel.name)], &shell(&script));
    let stream = events.header("x-isopod-stream").parse().unwrap();
    let pid = events.pid();
    events.next().unwrap();
    let first = events.received();
    std::fs::write(&go, "").unwrap();
    wait_until(|| printed.exists());
    events.next().unwrap();
    // The edge forwarded both lines, and then learned that only the first one had arrived.
    channel.report(Report { stream, bytes: events.received(), last: false });
    channel.report(Report { stream, bytes: first, last: true });
    drop(events);
    let headers = [("X-Isopod-Delivery", channel.name.as_str()), ("X-Isopod-Reports", "2")];
    let mut again = guest.stream("process.Process/Connect", &headers, &json!({"process": {"pid": pid}}));
    again.pid();
    assert_eq!(again.next_text(), "second\n");
    guest.call("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
    assert_eq!(again.finish().text(), "");
}

#[test]
fn a_channel_that_breaks_leaves_the_last_report_in_force() {
    let guest = Guest::new();
    let mut channel = Channel::open(&guest);
    let go = guest.path("go");
    let script = format!("echo one; until test -e {}; do sleep 0.02; done; echo two", go.display());
    let mut events = guest.stream("process.Process/Start", &[("X-Isopod-Delivery", &channel.name)], &shell(&script));
    let stream = events.header("x-isopod-stream").parse().unwrap();
    let pid = events.pid();
    events.next().unwrap();
    channel.report(Report { stream, bytes: events.received(), last: false });
    std::fs::write(&go, "").unwrap();
    // The server is killed: output that it got but did not report counts as not sent.
    events.next().unwrap();
    drop(channel);
    drop(events);
    wait_until(|| guest.call("process.Process/List", &json!({})).json().get("processes").is_none());
    let outcome = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}})).finish();
    assert_eq!(outcome.text(), "two\n");
    let outcome = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}})).finish();
    assert_eq!(outcome.text(), "");
}

#[test]
fn a_channel_that_breaks_leaves_the_last_position_in_force() {
    let guest = Guest::new();
    let (positions, memory) = Positions::create().unwrap();
    let channel = Channel::open_with(&guest, memory);
    let go = guest.path("go");
    let script = format!("echo one; until test -e {}; do sleep 0.02; done; echo two", go.display());
    let mut events = guest.stream("process.Process/Start", &[("X-Isopod-Delivery", &channel.name)], &shell(&script));
    let slot = slot_of(&events);
    let pid = events.pid();
    events.next().unwrap();
    positions.set(slot, events.received());
    std::fs::write(&go, "").unwrap();
    // The server is killed: output that it got but did not announce counts as not sent.
    events.next().unwrap();
    drop((channel, events));
    wait_until(|| guest.call("process.Process/List", &json!({})).json().get("processes").is_none());
    let outcome = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}})).finish();
    assert_eq!(outcome.text(), "two\n");
}

#[test]
fn the_place_of_a_stream_is_free_after_its_last_report() {
    let guest = Guest::new();
    let (positions, memory) = Positions::create().unwrap();
    let mut channel = Channel::open_with(&guest, memory);
    let headers = [("X-Isopod-Delivery", channel.name.clone())];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let first = guest.stream("process.Process/Start", &headers, &shell("echo first"));
    let slot = slot_of(&first);
    positions.set(slot, 1 << 20);
    let stream = first.header("x-isopod-stream").parse().unwrap();
    channel.report(Report { stream, bytes: 1 << 20, last: true });
    let mut second = guest.stream("process.Process/Start", &headers, &shell("echo second"));
    assert_eq!(slot_of(&second), slot);
    let pid = second.pid();
    // Nothing of the second stream is announced, whatever the first one has left in its place.
    assert_eq!(second.finish().text(), "second\n");
    drop(channel);
    let outcome = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}})).finish();
    assert_eq!(outcome.text(), "second\n");
}

#[test]
fn streams_without_a_place_get_reports() {
    let guest = Guest::new();
    let (_positions, memory) = Positions::create().unwrap();
    // What is not sealed memory is not mapped.
    let (_, pipe) = std::io::pipe().unwrap();
    for (mut channel, places) in [(Channel::open_with(&guest, memory), 512), (Channel::open_with(&guest, pipe), 0)] {
        let headers = [("X-Isopod-Delivery", channel.name.clone())];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let mut sleeper = guest.start("sleep 60");
        let sleeper = json!({"process": {"pid": sleeper.pid()}});
        let taken: Vec<_> = (0..places).map(|_| guest.stream("process.Process/Connect", &headers, &sleeper)).collect();
        assert!(taken.iter().all(|stream| stream.has_header("x-isopod-slot")));
        let mut events = guest.stream("process.Process/Start", &headers, &shell("echo one; sleep 60"));
        assert!(!events.has_header("x-isopod-slot"));
        let stream = events.header("x-isopod-stream").parse().unwrap();
        let pid = events.pid();
        events.next().unwrap();
        channel.report(Report { stream, bytes: events.received(), last: true });
        let headers = [headers[0], ("X-Isopod-Reports", "1")];
        let again = guest.stream("process.Process/Connect", &headers, &json!({"process": {"pid": pid}}));
        guest.call("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
        assert_eq!(again.finish().text(), "");
    }
}

fn slot_of(events: &Events) -> Slot {
    Slot::new(events.header("x-isopod-slot").parse().unwrap()).unwrap()
}

#[test]
fn only_the_host_opens_a_channel() {
    let guest = Guest::new();
    assert_eq!(guest.request("POST", "/delivery", &[], b"").status, 404);
    assert_eq!(guest.request("POST", "/delivery", &[("X-Isopod-Control", "1")], b"").status, 426);
}

#[test]
fn a_slow_reader_holds_the_process_back_and_loses_nothing() {
    let guest = Guest::new();
    let mut events = guest.start("head -c 40000000 /dev/zero; echo done");
    events.pid();
    std::thread::sleep(Duration::from_millis(300));
    let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let rss: u64 =
        status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(rss < 24_000, "{rss} kB");
    let outcome = events.finish();
    assert_eq!(outcome.stdout.len(), 40_000_005);
    assert!(outcome.longest <= 32 << 10);
}

#[test]
fn without_a_reader_a_process_is_not_held_back() {
    let guest = Guest::new();
    let marker = guest.path("marker");
    let mut events =
        guest.start(&format!("sleep 0.2; head -c 5000000 /dev/zero; touch {}; sleep 0.1; echo end", marker.display()));
    let pid = events.pid();
    drop(events);
    wait_until(|| marker.exists());
    let outcome = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}})).finish();
    assert!(outcome.stdout.len() <= (1 << 20) + 100 && outcome.stdout.ends_with(b"end\n"), "{}", outcome.stdout.len());
}

#[test]
fn two_readers_get_the_same_output() {
    let guest = Guest::new();
    let go = guest.path("go");
    let mut first = guest.start(&format!("while ! test -e {}; do sleep 0.02; done; seq 20000", go.display()));
    let pid = first.pid();
    let mut second = guest.stream("process.Process/Connect", &[], &json!({"process": {"pid": pid}}));
    second.pid();
    std::fs::write(&go, "").unwrap();
    let reading = std::thread::spawn(move || second.finish());
    let (first, second) = (first.finish(), reading.join().unwrap());
    assert_eq!(first.stdout.len(), 108_894);
    assert_eq!(first.stdout, second.stdout);
}

#[test]
fn a_background_child_delays_nothing_and_survives() {
    let guest = Guest::new();
    let marker = guest.path("alive");
    let started = Instant::now();
    let outcome = guest.run(&format!("(sleep 1; echo noise; touch {}) & echo fast", marker.display()));
    assert_eq!(outcome.text(), "fast\n");
    assert!(started.elapsed() < Duration::from_millis(800));
    wait_until(|| marker.exists());
}

#[test]
fn a_signal_reaches_the_command_and_its_children() {
    let guest = Guest::new();
    let mut events = guest.start("sleep 100; true");
    let pid = events.pid();
    let signal =
        |name: &str| guest.call("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": name}));
    assert_eq!(signal("SIGNAL_UNSPECIFIED").status, 501);
    assert_eq!(signal("SIGNAL_SIGTERM").status, 200);
    assert_eq!(events.finish().end["status"], "signal: terminated");
    assert_eq!(signal("SIGNAL_SIGKILL").rpc_error().0, "not_found");
}

/// Kills with a signal that cannot be ignored.
fn kill(guest: &Guest, pid: u64) {
    let request = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    let reply = guest.call("process.Process/SendSignal", &request);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// A guest that adopts orphans, as in a sandbox, but whose processes have the pids that this test sees.
fn adopting_guest() -> Guest {
    let wrapper = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])";
    let guest = Guest::bare(&["python3", "-c", wrapper]);
    guest.init(&json!({"defaultUser": "root"}));
    guest
}

#[test]
fn what_was_killed_is_gone_with_its_children() {
    let guest = adopting_guest();
    let command = shell("sleep 100 & sleep 100 & (sleep 100 & sleep 100) & echo up; wait");
    let mut terminal = command.clone();
    terminal["pty"] = json!({"size": {"cols": 80, "rows": 24}});
    for round in 0..40 {
        let mut events = guest.stream("process.Process/Start", &[], if round % 2 == 0 { &command } else { &terminal });
        let pid = events.pid();
        events.next().unwrap();
        kill(&guest, pid);
        let group = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        assert_eq!(rustix::process::test_kill_process(group), Err(rustix::io::Errno::SRCH), "round {round}");
        assert_eq!(rustix::process::test_kill_process_group(group), Err(rustix::io::Errno::SRCH), "round {round}");
        assert!(guest.call("process.Process/List", &json!({})).json().get("processes").is_none());
        assert_eq!(events.finish().end["status"], "signal: killed");
    }
}

/// An interactive shell gives each job a process group of its own. This one ignores that its terminal hangs up.
#[test]
fn a_killed_terminal_is_gone_with_what_runs_in_front_of_it() {
    use base64::Engine as _;
    let guest = adopting_guest();
    let shell = json!({"cmd": "/bin/bash", "args": ["--norc", "-i"]});
    let request = json!({"process": shell, "pty": {"size": {"cols": 80, "rows": 24}}});
    let mut events = guest.stream("process.Process/Start", &[], &request);
    let pid = events.pid();
    let told = guest.path("job");
    let at = told.display();
    let job = format!("sh -c 'trap \"\" HUP; sleep 100 & echo $$ $! > {at}.new; mv {at}.new {at}; wait'\n");
    let typed = base64::engine::general_purpose::STANDARD.encode(job);
    let input = json!({"process": {"pid": pid}, "input": {"pty": typed}});
    assert_eq!(guest.call("process.Process/SendInput", &input).status, 200);
    wait_until(|| told.exists());
    kill(&guest, pid);
    for job in std::fs::read_to_string(told).unwrap().split_whitespace() {
        let job = rustix::process::Pid::from_raw(job.parse().unwrap()).unwrap();
        assert_eq!(rustix::process::test_kill_process(job), Err(rustix::io::Errno::SRCH));
    }
}

#[test]
fn a_kill_does_not_wait_forever_for_what_stays() {
    let guest = adopting_guest();
    // A killed child whose parent has left the group and does not wait for it: it stays as a zombie.
    let script = r#"exec python3 -c '
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(100)
    os.setsid()
    print(os.getpid(), flush=True)
time.sleep(100)
'"#;
    let mut events = guest.start(script);
    let pid = events.pid();
    let parent = events.next_text();
    let started = Instant::now();
    kill(&guest, pid);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(events.finish().end["status"], "signal: killed");
    guest.run(&format!("kill -9 {parent}"));
}

#[test]
fn input_is_written_and_closed() {
    let guest = Guest::new();
    let mut events = guest.stream("process.Process/Start", &[], &json!({"process": {"cmd": "cat"}, "tag": "the-cat"}));
    events.pid();
    let process = json!({"tag": "the-cat"});
    let send =
        |input: &str| guest.call("process.Process/SendInput", &json!({"process": process, "input": {"stdin": input}}));
    assert_eq!(send("aGVsbG8K").status, 200);
    assert_eq!(
        guest.call("process.Process/SendInput", &json!({"process": process, "input": {"pty": "aGk="}})).status,
        400
    );
    let mut frames = envelope(&json!({"start": {"process": process}}));
    frames.extend(envelope(&json!({"keepalive": {}})));
    frames.extend(envelope(&json!({"data": {"input": {"stdin": "d29ybGQK"}}})));
    let headers = [("Content-Type", "application/connect+json")];
    let reply = guest.request("POST", "/process.Process/StreamInput", &headers, &frames);
    assert_eq!(reply.body, [&[0, 0, 0, 0, 2][..], b"{}", &[2, 0, 0, 0, 2], b"{}"].concat());
    assert_eq!(guest.call("process.Process/CloseStdin", &json!({"process": process})).status, 200);
    assert_eq!(events.finish().text(), "hello\nworld\n");
}

#[test]
fn a_full_pipe_delays_only_its_writer() {
    let guest = Guest::new();
    let mut events = guest.stream("process.Process/Start", &[], &json!({"process": {"cmd": "sleep", "args": ["100"]}}));
    let pid = events.pid();
    let message = json!({"process": {"pid": pid}, "input": {"stdin": "A".repeat(400_000)}}).to_string();
    let headers = [("Content-Type", "application/json")];
    let impatient = [headers[0], ("Connect-Timeout-Ms", "200")];
    let reply = guest.request("POST", "/process.Process/SendInput", &impatient, message.as_bytes());
    assert_eq!(reply.rpc_error().0, "deadline_exceeded");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| guest.request("POST", "/process.Process/SendInput", &headers, message.as_bytes()));
        assert_eq!(guest.run("echo meanwhile").text(), "meanwhile\n");
        let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
        assert_eq!(guest.call("process.Process/SendSignal", &kill).status, 200);
        // The process ended while the writer waited, or before.
        assert!(["internal", "not_found"].contains(&writer.join().unwrap().rpc_error().0.as_str()));
    });
    assert_eq!(events.finish().end["status"], "signal: killed");
}

#[test]
fn a_terminal_echoes_resizes_and_ends() {
    let guest = Guest::new();
    let size = |cols: u32, rows: u32| json!({"size": {"cols": cols, "rows": rows}});
    let request = json!({"process": {"cmd": "/bin/sh"}, "pty": size(80, 24)});
    let mut events = guest.stream("process.Process/Start", &[], &request);
    let pid = events.pid();
    let process = json!({"pid": pid});
    assert_eq!(guest.call("process.Process/Update", &json!({"process": process, "pty": size(101, 55)})).status, 200);
    // `stty size; tty; exit 5` and a line feed
    let input = json!({"process": process, "input": {"pty": "c3R0eSBzaXplOyB0dHk7IGV4aXQgNQo="}});
    assert_eq!(guest.call("process.Process/SendInput", &input).status, 200);
    let outcome = events.finish();
    let text = String::from_utf8_lossy(&outcome.pty).into_owned();
    assert!(text.contains("stty size; tty") && text.contains("55 101") && text.contains("/dev/pts/"), "{text}");
    assert_eq!(outcome.end["exitCode"], 5);
    assert_eq!(guest.call("process.Process/Update", &json!({"process": process})).rpc_error().0, "not_found");
}

#[test]
fn a_silent_stream_sends_keepalives() {
    let guest = Guest::new();
    let outcome =
        guest.stream("process.Process/Start", &[("Keepalive-Ping-Interval", "1")], &shell("sleep 2.5")).finish();
    assert_eq!(outcome.keepalives, 2);
}

#[test]
fn the_guest_cannot_be_reached_through_its_children() {
    let guest = Guest::new();
    let outcome = guest.run("ls /proc/self/fd | tr '\\n' ' '");
    assert_eq!(outcome.text(), "0 1 2 3 ");
    // `ls` itself has the directory open as 3. There is no descriptor of the guest.
    for number in 3..12 {
        let mut request = shell("pwd");
        request["process"]["cwd"] = json!(format!("/proc/self/fd/{number}"));
        let error = guest.stream("process.Process/Start", &[], &request).finish().error;
        assert_eq!(error["code"], "invalid_argument", "{error}");
    }
}

#[test]
fn as_pid_one_it_reaps_orphans() {
    // Its mounts are copies of the host's, which would keep the disks of other servers and tests busy.
    let alone = r#"awk '$1 ~ "^/dev/loop" && $2 != "/" { print $2 }' /proc/self/mounts | tac | xargs -r -n 1 umount -l
        exec "$0" "$@""#;
    let guest = Guest::bare(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", alone]);
    guest.init(&json!({"defaultUser": "root"}));
    for _ in 0..5 {
        guest.run("(sleep 0.05 &) ; (sh -c 'sleep 0.01; exit 1' &)");
    }
    wait_until(|| guest.run("cat /proc/[0-9]*/stat").text().matches(") Z ").count() == 0);
}
