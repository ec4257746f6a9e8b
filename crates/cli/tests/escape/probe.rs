//! Running a list of attempts, written in Python, inside a sandbox.

use isopod_client::Interpreter;
use isopod_client::guest::{Guest, StartProcess};
use isopod_client::interpreter::RunCode;
use isopod_testkit::TestSandbox;

use crate::arena::Arena;
use crate::table::{Table, Who};

pub(crate) const PRELUDE: &str = include_str!("probes/prelude.py");
/// The last line of every probe, so that one which stopped half-way is noticed.
const END: &str = "\nsay('end', 'held', '')\n";

impl Arena {
    /// Runs a probe as both users and insists that every attempt of it was held off.
    pub(crate) async fn probe(&self, script: &str) {
        for who in Who::BOTH {
            probe_as(&self.table, &self.attacker, who, script).await;
            self.assert_alive().await;
        }
    }
}

/// Runs a probe in a sandbox as one user.
pub(crate) async fn probe_as(table: &Table, sandbox: &TestSandbox, who: Who, script: &str) {
    probe_guest(table, &sandbox.guest, who, script).await;
}

/// The same, in a sandbox that only its guest is known of.
pub(crate) async fn probe_guest(table: &Table, guest: &Guest, who: Who, script: &str) {
    let path = format!("/tmp/probe-{}.py", who.name());
    let guest = guest.clone().with_user(who.name());
    guest.write_file(&path, whole(script)).await.expect("the probe can be written");
    let run = StartProcess::shell(format!("python3 {path}"));
    let finished = guest.run(run).await.expect("the probe can be started");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, errors) = (said(&finished.stdout), said(&finished.stderr));
    assert_eq!(finished.ended.exit_code, 0, "as {}: {output}\n{errors}", who.name());
    judge(table, who, "", &output);
}

/// Runs a probe in a cell of the code interpreter, whose kernel may have come from outside.
pub(crate) async fn probe_cell(table: &Table, interpreter: &Interpreter, script: &str) {
    let running = interpreter.run(RunCode::new(whole(script))).await.expect("the cell can be started");
    let executed = running.collect().await.expect("the cell ends");
    assert!(executed.error.is_none(), "{executed:?}");
    judge(table, Who::Root, "in a cell: ", &executed.stdout);
}

fn whole(script: &str) -> String {
    format!("{PRELUDE}\n{script}{END}")
}

/// Insists that every attempt was held off and that the probe came to its end.
fn judge(table: &Table, who: Who, place: &str, output: &str) {
    let mut broken = Vec::new();
    let mut ended = false;
    for line in output.lines() {
        match *line.split('\t').collect::<Vec<_>>() {
            ["end", "held", ""] => ended = true,
            [name, "held", how] => table.held(format!("{place}{name}"), who, how),
            _ => broken.push(line),
        }
    }
    assert!(broken.is_empty(), "{place}as {}: {broken:#?}", who.name());
    assert!(ended, "the probe stopped half-way as {}: {output}", who.name());
}
