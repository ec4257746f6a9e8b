//! Running a list of attempts, written in Python, inside a sandbox.

use isopod_testkit::TestSandbox;

use crate::arena::Arena;
use crate::table::{Table, Who};

const PRELUDE: &str = include_str!("probes/prelude.py");
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
    let output = run_script(sandbox, who, script).await;
    let mut broken = Vec::new();
    let mut ended = false;
    for line in output.lines() {
        match *line.split('\t').collect::<Vec<_>>() {
            ["end", "held", ""] => ended = true,
            [name, "held", how] => table.held(name, who, how),
            _ => broken.push(line),
        }
    }
    assert!(broken.is_empty(), "as {}: {broken:#?}", who.name());
    assert!(ended, "the probe stopped half-way as {}: {output}", who.name());
}

async fn run_script(sandbox: &TestSandbox, who: Who, script: &str) -> String {
    let path = format!("/tmp/probe-{}.py", who.name());
    let guest = sandbox.guest.clone().with_user(who.name());
    guest.write_file(&path, format!("{PRELUDE}\n{script}{END}")).await.expect("the probe can be written");
    let finished = sandbox.sh_as(who.name(), &format!("python3 {path}")).await;
    assert_eq!(finished.code(), 0, "as {}: {}\n{}", who.name(), finished.stdout(), finished.stderr());
    finished.stdout()
}
