//! `isopod doctor` on a machine where sandboxes work: it has tried every limit, and leaves nothing.

use std::process::{Command, Stdio};

use isopod_testkit::{Finished, StateDir};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[test]
fn every_limit_was_tried_in_a_sandbox_and_bites() {
    let state = StateDir::new(BINARY);
    // As a shell starts it.
    let doctor = state.isopod().command(&["doctor", "--json"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 1024 && exec \"$0\" \"$@\""]).arg(doctor.get_program()).args(doctor.get_args());
    command.envs(doctor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished: Finished = command.output().unwrap().into();
    let findings: Vec<serde_json::Value> = serde_json::from_str(&finished.ok()).unwrap();
    let verdict_of = |what: &str| {
        let found = findings.iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("nothing about {what}: {findings:#?}"))["verdict"].clone()
    };
    for what in ["kernel", "cgroups", "boot clock", "sandbox", "memory limit", "cpu limit", "pids limit"] {
        assert_eq!(verdict_of(what), "ok", "{what}: {findings:#?}");
    }
    if isopod_testkit::criu().is_ok() {
        assert_eq!(verdict_of("saved memory"), "ok", "{findings:#?}");
    }
    // A host without btrfs tools says so instead.
    if verdict_of("disk") == "ok" {
        assert_eq!(verdict_of("disk limit"), "ok", "{findings:#?}");
    }
    state.assert_nothing_left();
}

/// A kernel without `CONFIG_TIME_NS` returns `EINVAL` when a process asks for a time namespace. A filter on the program under
/// test, which everything that it starts inherits, does the same.
const WITHOUT_TIME_NAMESPACES: &str = "
import ctypes, os, sys
class Line(ctypes.Structure):
    _fields_ = [('code', ctypes.c_ushort), ('then', ctypes.c_ubyte), ('otherwise', ctypes.c_ubyte), ('k', ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('lines', ctypes.POINTER(Line))]
lines = [
    (0x20, 0, 0, 0),           # load the number of the system call
    (0x15, 0, 3, 272),         # unshare?
    (0x20, 0, 0, 16),          # load its flags
    (0x45, 0, 1, 0x80),        # CLONE_NEWTIME?
    (0x06, 0, 0, 0x00050016),  # return EINVAL
    (0x06, 0, 0, 0x7fff0000),  # allow
]
program = Program(len(lines), (Line * len(lines))(*lines))
PR_SET_SECCOMP, MODE_FILTER = 22, 2
assert ctypes.CDLL(None).prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn without_time_namespaces_sandboxes_work_and_doctor_warns() {
    let state = StateDir::new(BINARY);
    let run = |arguments: &[&str]| {
        let plain = state.isopod().command(arguments);
        let mut filtered = Command::new("python3");
        filtered.args(["-c", WITHOUT_TIME_NAMESPACES]).arg(plain.get_program()).args(plain.get_args());
        Finished::from(filtered.stdin(Stdio::null()).output().unwrap()).ok()
    };
    let findings: Vec<serde_json::Value> = serde_json::from_str(&run(&["doctor", "--json"])).unwrap();
    for (what, verdict) in [("boot clock", "warn"), ("sandbox", "ok"), ("memory limit", "ok"), ("pids limit", "ok")] {
        let found = findings.iter().find(|finding| finding["what"] == what);
        assert_eq!(found.map(|finding| &finding["verdict"]), Some(&verdict.into()), "{what}: {findings:#?}");
    }
    let shown = run(&["run", "--", "sh", "-c", "readlink /proc/self/ns/time; cut -d. -f1 /proc/uptime"]);
    let (clock, uptime) = shown.trim().split_once('\n').unwrap();
    let host = std::fs::read_link("/proc/self/ns/time").unwrap();
    assert_eq!(clock, host.to_str().unwrap(), "the filter is at work");
    let hosts_uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds = |text: &str| text.split('.').next().unwrap().parse::<u64>().unwrap();
    assert!(seconds(uptime) < seconds(&hosts_uptime), "{uptime} of {hosts_uptime}");
    state.assert_nothing_left();
}

#[test]
fn people_get_a_line_for_each() {
    let state = StateDir::new(BINARY);
    let told = state.isopod().run(&["doctor"]).ok();
    for line in ["ok    memory limit bites: 128M of memory and no more", "ok    cpu limit    bites: a quarter of a CPU"]
    {
        assert!(told.contains(line), "{told}");
    }
    state.assert_nothing_left();
}
