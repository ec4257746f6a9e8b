//! Case 13: what a sandbox may do to its own network, which is nothing, and what it learns of the host through it. In a
//! plain sandbox, whose network belongs to the host, and in one with a warm interpreter, whose network belongs to the
//! sandbox's own user namespace.

use std::time::{Duration, Instant};

use isopod_client::{NewSandbox, Sandbox};
use isopod_testkit::StateDir;

use crate::BINARY;
use crate::arena::Arena;
use crate::common::Server;
use crate::network::{HostServices, own_address, serve_inside};
use crate::probe::{probe_cell, probe_guest};
use crate::table::{Table, Who};

const INTERPRETER: &str = "code-interpreter-v1";
const RIGHTS: &str = include_str!("probes/network_rights.py");
const GUEST: &str = include_str!("probes/guest.py");
const HOST_IDS: &str = include_str!("probes/host_ids.py");

#[tokio::test]
async fn case_13_no_sandbox_changes_its_network() {
    let arena = Arena::start("13 Network rights: routing messages, raw sockets, capabilities").await;
    arena.probe(RIGHTS).await;
    arena.finish().await;
}

#[tokio::test]
async fn case_12_no_process_id_of_the_host_is_seen_inside() {
    let arena = Arena::start("12 Process ids of the host").await;
    arena.probe(HOST_IDS).await;
    arena.finish().await;
}

#[tokio::test]
async fn case_13_no_interpreter_changes_its_network_or_sees_process_ids_of_the_host() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", INTERPRETER]).ok();
    let options = ["serve", "--pool-ready", "1", "--pool-prepared", "1", "--prepare", INTERPRETER];
    let server = Server::start(state.isopod().command(&options));
    let sandbox = create_warm(&server).await;
    let rights = Table::new("13 Network rights: routing messages, raw sockets, capabilities, in the code interpreter");
    let host_ids = Table::new("12 Process ids of the host, in the code interpreter");
    for (table, script) in [(rights, RIGHTS), (host_ids, HOST_IDS)] {
        for who in Who::BOTH {
            probe_guest(&table, sandbox.guest(), who, script).await;
        }
        probe_cell(&table, sandbox.interpreter(), script).await;
    }
    sandbox.kill().await.expect("it can be ended");
    server.stop();
    state.isopod().run(&["uninstall", "--yes"]).ok();
    state.assert_nothing_left();
}

/// What holds for a plain sandbox holds for one whose network belongs to its own user namespace, and for its kernel, which
/// came from outside.
#[tokio::test(flavor = "multi_thread")]
async fn case_13_no_interpreter_reaches_the_host_or_takes_hold_of_its_guest() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", INTERPRETER]).ok();
    let options = ["serve", "--pool-ready", "1", "--pool-prepared", "1", "--prepare", INTERPRETER];
    let server = Server::start(state.isopod().command(&options));
    let (sandbox, neighbour) = (create_warm(&server).await, create_warm(&server).await);
    let host = HostServices::start();
    let address = own_address(neighbour.guest()).await;
    serve_inside(neighbour.guest(), 7777).await;
    let network = Table::new("13 Network: the host, neighbours and spoofing, in the code interpreter");
    let guest = Table::new("5 Overwriting, tracing, reading or killing the guest, in the code interpreter");
    for (table, script) in [(network, host.probe(address, 7777).as_str()), (guest, GUEST)] {
        for who in Who::BOTH {
            probe_guest(&table, sandbox.guest(), who, script).await;
        }
        probe_cell(&table, sandbox.interpreter(), script).await;
        host.assert_nobody_came();
    }
    for sandbox in [sandbox, neighbour] {
        sandbox.kill().await.expect("it can be ended");
    }
    server.stop();
    state.isopod().run(&["uninstall", "--yes"]).ok();
    state.assert_nothing_left();
}

/// A sandbox whose interpreter came from the template's zygote.
async fn create_warm(server: &Server) -> Sandbox {
    let client = server.client();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let sandbox = client.create(NewSandbox::new(INTERPRETER)).await.expect("a sandbox");
        let running = sandbox.interpreter().run("print(open('/proc/self/cmdline').read())").await.expect("a cell");
        if running.collect().await.expect("it ends").stdout.contains("zygote") {
            return sandbox;
        }
        assert!(Instant::now() < deadline, "no warm interpreter comes");
        sandbox.kill().await.expect("it can be ended");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
