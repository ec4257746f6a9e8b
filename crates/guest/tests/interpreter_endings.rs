//! How cells, kernels and forkservers end, on purpose or not, and that the next cell works.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::interpreter::{Cell, Sandbox};
use common::wait_until;
use serde_json::json;

/// On the command line of the forkserver and of the kernels it forks. The mode is named so for drivers of earlier versions.
const FORKSERVER: &str = "run.py mother";

/// Starts a cell that prints its pid and then sleeps.
fn sleeper(sandbox: &Sandbox) -> (Cell, String) {
    let code = "import os, time; kept = 1; print(os.getpid()); time.sleep(1000)";
    let mut cell = sandbox.start(&json!({"code": code}));
    let pid = cell.printed().trim().to_owned();
    (cell, pid)
}

#[test]
fn a_client_that_disconnects_interrupts_its_cell_and_the_context_stays() {
    let sandbox = Sandbox::new();
    let (cell, _) = sleeper(&sandbox);
    drop(cell);
    assert_eq!(sandbox.run("kept").value(), "1");
}

#[test]
fn a_client_that_disconnects_at_once_interrupts_its_cell_too() {
    let sandbox = Sandbox::new();
    sandbox.run("1");
    for _ in 0..10 {
        drop(sandbox.start(&json!({"code": "import time; time.sleep(1000)"})));
    }
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn a_flood_that_is_not_read_ends_with_its_client() {
    let sandbox = Sandbox::new();
    let mut cell = sandbox.start(&json!({"code": "while True: print('x' * 1000)"}));
    cell.printed();
    // The kernel is held back now or soon: the guest buffers only a little.
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
    // It stops long before it has printed everything.
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
    // The guest has noticed that the client is gone.
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
fn the_last_output_of_a_kernel_that_exits_arrives() {
    let sandbox = Sandbox::new();
    let executed = sandbox.run("import os; print('last words', flush=True); os._exit(3)");
    assert_eq!(executed.stdout, "last words\n");
    assert!(executed.failure().1.contains("exit status 3"), "{executed:?}");
    // The same if a child holds all its descriptors.
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
    // The same if it dies at the moment of the next cell.
    for _ in 0..20 {
        let pid = sandbox.run("import os; os.getpid()").value().to_owned();
        sandbox.kill(&pid);
        assert_eq!(sandbox.run("os").failure().0, "NameError");
    }
}

#[test]
fn a_killed_forkserver_leaves_its_kernels_alive_and_is_replaced() {
    let sandbox = Sandbox::new();
    let (cell, kernel) = sleeper(&sandbox);
    let processes = sandbox.processes(FORKSERVER);
    let forkserver = processes.iter().find(|pid| **pid != kernel).unwrap().clone();
    sandbox.kill(&forkserver);
    wait_until(|| !sandbox.processes(FORKSERVER).contains(&forkserver));
    let other = sandbox.create(&json!({}));
    assert_eq!(sandbox.run_in(&other, "1+1").value(), "2");
    drop(cell);
    assert_eq!(sandbox.run("kept").value(), "1");
    // Only the guest can know how an orphan ended.
    let (cell, _) = sleeper(&sandbox);
    sandbox.kill(&kernel);
    assert!(cell.finish().failure().1.contains("signal 9"));
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn a_restart_ends_the_running_cell_and_waiting_ones_still_run() {
    let sandbox = Sandbox::new();
    let (running, pid) = sleeper(&sandbox);
    let waiting = sandbox.start(&json!({"code": "'kept' in globals()"}));
    let id = sandbox.request("GET", "/contexts", &[], "").json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "").status, 200);
    assert_eq!(running.finish().failure().0, "ContextRestarting");
    assert_eq!(waiting.finish().value(), "False");
    assert!(!sandbox.processes(FORKSERVER).contains(&pid));
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
    wait_until(|| !sandbox.processes(FORKSERVER).contains(&pid));
}

#[test]
fn garbage_on_the_kernels_stream_is_dropped() {
    let sandbox = Sandbox::new();
    // The stream is the kernel's descriptor 3.
    let executed = sandbox.run("import os; os.write(3, b'garbage\\n\\n{}\\n[1]\\n'); 5");
    assert_eq!(executed.value(), "5");
    assert_eq!(executed.events, ["number_of_executions", "result", "end_of_execution"]);
    assert_eq!(sandbox.run("6").value(), "6");
    // If a kernel closes its standard streams, the guest must neither spin nor fail.
    assert_eq!(sandbox.run("os.close(1); os.close(2); 7").value(), "7");
    assert_eq!(sandbox.run("8").value(), "8");
}

#[test]
fn a_cell_that_stops_its_own_kernel_continues() {
    let sandbox = Sandbox::new();
    let stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('on it goes'); 7";
    let executed = sandbox.run(stop);
    assert_eq!((executed.stdout.as_str(), executed.value()), ("on it goes\n", "7"));
    // Between two cells, and during one whose client disconnects.
    let pid = sandbox.run("os.getpid()").value().to_owned();
    sandbox.signal(&pid, rustix::process::Signal::STOP);
    assert_eq!(sandbox.run("8").value(), "8");
    let mut cell = sandbox.start(&json!({"code": "print('go', flush=True)\nwhile True: os.kill(os.getpid(), 19)"}));
    cell.printed();
    drop(cell);
    assert_eq!(sandbox.run("9").value(), "9");
}

#[test]
fn what_a_cell_replaces_or_closes_does_not_cost_the_next_one_its_output() {
    let sandbox = Sandbox::new();
    let cells = [
        "import json; json.dumps = json.loads = lambda *_, **__: 'nonsense'",
        "import os; os.closerange(0, 3)",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import builtins; builtins.len = builtins.isinstance = None",
        // The kernel has no streams left: another kernel runs the next cell.
        "import os, sys; fds = [1, 2, sys.stdout.fileno(), sys.stderr.fileno()]; [os.close(fd) for fd in fds]",
        "import os; os.closerange(0, 4096)",
        "import os, threading; threading.Thread(target=os._exit, args=(3,)).start(); threading.Event().wait()",
    ];
    for code in cells {
        let executed = sandbox.run(code);
        assert_eq!(executed.events.last().unwrap(), "end_of_execution", "{code}");
        let executed = sandbox.run("print('heard'); 6 * 7");
        assert_eq!((executed.stdout.as_str(), executed.value()), ("heard\n", "42"), "{code}");
    }
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
    // One forkserver and one kernel are left.
    wait_until(|| sandbox.processes(FORKSERVER).len() == 2);
}
