//! A node with two sandboxes: one that attacks and one that must not notice.

use isopod_testkit::{Platform, TestSandbox, spec};
use isopod_wire::Limits;
use isopod_wire::node::NodeApi;

use crate::BINARY;
use crate::table::{Table, Who};

/// Where an attack happens.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) platform: Platform,
    pub(crate) attacker: TestSandbox,
    pub(crate) neighbour: TestSandbox,
    pub(crate) table: Table,
}

impl Arena {
    /// Two sandboxes with the usual limits.
    pub(crate) async fn start(case: &'static str) -> Self {
        Self::start_with(case, Limits::default()).await
    }

    /// An attacker with these limits, a neighbour with the usual ones.
    pub(crate) async fn start_with(case: &'static str, limits: Limits) -> Self {
        let platform = Platform::start(BINARY).await;
        let attacker = platform.sandbox_of(isopod_wire::node::SandboxSpec { limits, ..spec() }).await;
        let neighbour = platform.sandbox().await;
        neighbour.sh("echo untouched > ~/mine").await.ok();
        Self { platform, attacker, neighbour, table: Table::new(case) }
    }

    /// The attacker's own sandbox, the neighbour and the node still do all they should.
    pub(crate) async fn assert_alive(&self) {
        for who in Who::BOTH {
            let said = self.attacker.sh_as(who.name(), "echo alive > ~/alive && cat ~/alive && id -u").await.ok();
            assert_eq!(said, format!("alive\n{}\n", if who == Who::Root { 0 } else { 1000 }));
        }
        self.assert_others_alive().await;
    }

    /// The neighbour and the node still do all they should.
    pub(crate) async fn assert_others_alive(&self) {
        assert_eq!(self.neighbour.sh("cat ~/mine").await.ok(), "untouched\n");
        let fresh = self.platform.sandbox().await;
        assert_eq!(fresh.sh("echo new").await.ok(), "new\n");
        self.platform.node.kill(&fresh.incarnation).await.expect("the node ends a sandbox");
    }

    /// Everybody lives, everything goes, nothing is left.
    pub(crate) async fn finish(self) {
        self.assert_alive().await;
        self.platform.finish().await;
    }
}
