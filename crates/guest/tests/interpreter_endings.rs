//! How cells, kernels and mothers end, wanted or not, and that the next cell works.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::interpreter::{Cell, Sandbox};
use common::wait_until;
use serde_json::json;

/// Starts a cell that says its pid and then sleeps.
fn sleeper(sandbox: &Sandbox) -> (Cell, String) {
    let code = "import os, time; kept = 1; print(os.getpid()); time.sleep(1000)";
    let mut cell = sandbox.start(&json!({"code": code}));
    let pid = cell.printed().trim().to_owned();
    (cell, pid)
}

#[test]
fn a_client_that_goes_away_interrupts_its_cell_and_the_context_stays() {
    let sandbox = Sandbox::new();
    let (cell, _) = sleeper(&sandbox);
    drop(cell);
    assert_eq!(sandbox.run("kept").value(), "1");
}

#[test]
fn a_client_that_goes_away_at_once_interrupts_too() {
    let sandbox = Sandbox::new();
    sandbox.run("1");
    for _ in 0..10 {
        drop(sandbox.start(&json!({"code": "import time; time.sleep(1000)"})));
    }
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn a_flood_that_nobody_reads_ends_with_its_client() {
    let sandbox = Sandbox::new();
    let mut cell = sandbox.start(&json!({"code": "while True: print('x' * 1000)"}));
    cell.printed();
    // The kernel is held back by now or soon: nobody takes more than a few buffers.
    drop(cell);
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn a_slow_client_holds_the_kernel_back_and_loses_nothing() {
    let sandbox = Sandbox::new();
    let code = "
for number in range(200):
    print('%03d' % number + 'x' * 999996)
    open('/home/user/printed', 'w').write(str(number))";
    let mut cell = sandbox.start(&json!({"code": code}));
    let first = cell.printed();
    // It stops by itself, long before it has printed everything.
    let mut last = String::new();
    wait_until(|| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = sandbox.read("/home/user/printed");
        !now.is_empty() && std::mem::replace(&mut last, now.clone()) == now
    });
    assert!(last.parse::<u32>().unwrap() < 100, "{last}");
    let status = sandbox.read("/proc/1/status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    assert!(resident.trim().trim_end_matches(" kB").parse::<u32>().unwrap() < 48 << 10, "{resident}");
    let rest = cell.finish();
    assert_eq!(first.len() + rest.stdout.len(), 200_000_000);
    assert!(rest.stdout.contains("\n199xxx"));
}

#[test]
fn a_command_that_the_cell_waits_for_is_interrupted_with_it() {
    let sandbox = Sandbox::new();
    let mut cell = sandbox.start(&json!({"code": "import os; print('go'); os.system('sleep 1000')"}));
    cell.printed();
    wait_until(|| !sandbox.processes("sleep 1000").is_empty());
    drop(cell);
    assert_eq!(sandbox.run("1+1").value(), "2");
    wait_until(|| sandbox.processes("sleep 1000").is_empty());
}

#[test]
fn a_waiting_cell_whose_client_left_is_never_run() {
    let sandbox = Sandbox::new();
    sandbox.run("ran = False");
    let code = "import os, time\nprint(1)\nwhile not os.path.exists('/home/user/go'): time.sleep(0.01)";
    let mut first = sandbox.start(&json!({"code": code}));
    first.printed();
    let before = sandbox.descriptors();
    drop(sandbox.start(&json!({"code": "ran = True"})));
    // The guest has noticed.
    wait_until(|| sandbox.descriptors() <= before);
    sandbox.write("/home/user/go", "");
    first.finish();
    assert_eq!(sandbox.run("ran").value(), "False");
}

#[test]
fn a_killed_kernel_is_an_error_and_the_next_cell_works() {
    let sandbox = Sandbox::new();
    let (cell, pid) = sleeper(&sandbox);
    sandbox.kill(&pid);
    let executed = cell.finish();
    let (name, value) = executed.failure();
    assert_eq!(name, "UnexpectedEndOfExecution");
    assert!(value.contains("kernel died (signal 9)"), "{value}");
    assert_eq!(executed.events[executed.events.len() - 2..], ["error", "end_of_execution"]);
    assert_eq!(sandbox.run("'kept' in globals()").value(), "False");
}

#[test]
fn a_kernel_that_ends_itself_says_its_last_words_first() {
    let sandbox = Sandbox::new();
    let executed = sandbox.run("import os; print('last words', flush=True); os._exit(3)");
    assert_eq!(executed.stdout, "last words\n");
    assert!(executed.failure().1.contains("exit status 3"), "{executed:?}");
    // Also when its child holds all its descriptors.
    let code = "
import os, time, ctypes
print('go', flush=True)
if ctypes.CDLL(None).fork() == 0:
    time.sleep(1000)
os.kill(os.getpid(), 9)";
    let executed = sandbox.run(code);
    assert!(executed.failure().1.contains("signal 9"), "{executed:?}");
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn a_kernel_that_dies_between_cells_is_replaced() {
    let sandbox = Sandbox::new();
    // Also when it dies in the very moment of the next cell.
    for _ in 0..20 {
        let pid = sandbox.run("import os; os.getpid()").value().to_owned();
        sandbox.kill(&pid);
        assert_eq!(sandbox.run("os").failure().0, "NameError");
    }
}

#[test]
fn a_killed_mother_leaves_her_kernels_alive_and_is_replaced() {
    let sandbox = Sandbox::new();
    let (cell, kernel) = sleeper(&sandbox);
    let mothers = sandbox.processes("run.py mother");
    let mother = mothers.iter().find(|pid| **pid != kernel).unwrap().clone();
    sandbox.kill(&mother);
    wait_until(|| !sandbox.processes("run.py mother").contains(&mother));
    let other = sandbox.create(&json!({}));
    assert_eq!(sandbox.run_in(&other, "1+1").value(), "2");
    drop(cell);
    assert_eq!(sandbox.run("kept").value(), "1");
    // Nobody but the guest can tell how an orphan ended.
    let (cell, _) = sleeper(&sandbox);
    sandbox.kill(&kernel);
    assert!(cell.finish().failure().1.contains("signal 9"));
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn a_restart_ends_the_running_cell_and_waiting_ones_go_on() {
    let sandbox = Sandbox::new();
    let (running, pid) = sleeper(&sandbox);
    let waiting = sandbox.start(&json!({"code": "'kept' in globals()"}));
    let id = sandbox.request("GET", "/contexts", &[], "").json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "").status, 200);
    assert_eq!(running.finish().failure().0, "ContextRestarting");
    assert_eq!(waiting.finish().value(), "False");
    assert!(!sandbox.processes("run.py mother").contains(&pid));
}

#[test]
fn a_restart_ends_a_cell_that_ignores_interrupts() {
    let sandbox = Sandbox::new();
    let code = "
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('deaf')
while True: time.sleep(1)";
    let mut cell = sandbox.start(&json!({"code": code}));
    cell.printed();
    drop(cell);
    let id = sandbox.request("GET", "/contexts", &[], "").json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "").status, 200);
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn restarts_at_the_same_time_all_succeed() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let reply = sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "");
                assert_eq!(reply.status, 200, "{}", reply.text());
            });
        }
    });
    assert_eq!(sandbox.run_in(&id, "1+1").value(), "2");
}

#[test]
fn removing_a_context_ends_its_cells_and_its_kernel() {
    let sandbox = Sandbox::new();
    let (running, pid) = sleeper(&sandbox);
    let waiting = sandbox.start(&json!({"code": "1"}));
    let id = sandbox.request("GET", "/contexts", &[], "").json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.request("DELETE", &format!("/contexts/{id}"), &[], "").status, 200);
    for cell in [running, waiting] {
        let executed = cell.finish();
        assert_eq!(executed.failure(), ("UnexpectedEndOfExecution", "the context was removed"));
    }
    wait_until(|| !sandbox.processes("run.py mother").contains(&pid));
}

#[test]
fn nonsense_on_the_kernels_stream_reaches_nobody() {
    let sandbox = Sandbox::new();
    // The stream is the kernel's descriptor 3.
    let executed = sandbox.run("import os; os.write(3, b'garbage\\n\\n{}\\n[1]\\n'); 5");
    assert_eq!(executed.value(), "5");
    assert_eq!(executed.events, ["number_of_executions", "result", "end_of_execution"]);
    assert_eq!(sandbox.run("6").value(), "6");
    // A kernel that closes what it prints to is not a reason to spin or to fail.
    assert_eq!(sandbox.run("os.close(1); os.close(2); 7").value(), "7");
    assert_eq!(sandbox.run("8").value(), "8");
}

#[test]
fn the_guest_keeps_no_descriptor_of_contexts_that_are_gone() {
    let sandbox = Sandbox::new();
    sandbox.run("1");
    let before = sandbox.descriptors();
    for _ in 0..10 {
        let id = sandbox.create(&json!({}));
        sandbox.run_in(&id, "1");
        sandbox.request("DELETE", &format!("/contexts/{id}"), &[], "");
    }
    wait_until(|| sandbox.descriptors() <= before);
    // One mother and one kernel are left.
    wait_until(|| sandbox.processes("run.py mother").len() == 2);
}
