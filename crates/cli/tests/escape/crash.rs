//! Case 19: the end of the guest, from inside and from outside.

use std::time::{Duration, Instant};

use isopod_client::guest::Event;
use isopod_wire::node::{EndReason, NodeApi, NodeEvent};
use rustix::process::{Pid, Signal, kill_process};

use crate::arena::Arena;
use crate::table::Who;

#[tokio::test]
async fn case_19_a_killed_guest_ends_its_streams_and_the_node_says_why() {
    let arena = Arena::start("19 kill -9 of the guest, which is the sandbox's init").await;
    for who in Who::BOTH {
        let inside = arena.attacker.sh_as(who.name(), "kill -9 1; kill -9 -1; true").await;
        assert!(inside.code() == 0 || inside.code() == -1, "{inside:?}");
        arena.assert_alive().await;
        arena.table.held("kill -9 1 and kill -9 -1 from inside", who, "the guest lives");
    }
    for who in Who::BOTH {
        let mut in_time = 0;
        for _ in 0..VICTIMS {
            in_time += u32::from(kill_from_outside(&arena, who).await);
        }
        arena.assert_alive().await;
        arena.table.held(
            "a stream of a guest that is killed from outside",
            who,
            format!("ends with an error, {in_time} of {VICTIMS} within a second; reason: guest died"),
        );
    }
    arena.finish().await;
}

/// How many guests are killed. How many streams end within a second is counted and published; on a machine that does
/// something else it says nothing about us, so it is not insisted on.
const VICTIMS: u32 = 10;

/// True when the stream ended within a second.
async fn kill_from_outside(arena: &Arena, who: Who) -> bool {
    let victim = arena.platform.sandbox().await;
    let mut stream = victim.guest.clone().with_user(who.name()).start("echo up; sleep 1000").await.expect("it starts");
    while !matches!(stream.next().await.expect("it goes on"), Some(Event::Stdout(_))) {}
    let init = Pid::from_raw(victim.init_pid.cast_signed()).expect("a pid");
    kill_process(init, Signal::KILL).expect("the host may");
    let killed = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("the stream ends soon");
    let in_time = killed.elapsed() < Duration::from_secs(1);
    ended.expect_err("with an error");
    let event = tokio::time::timeout(Duration::from_secs(10), arena.platform.node.next_event()).await;
    let wanted = NodeEvent::Ended { incarnation: victim.incarnation.clone(), reason: EndReason::GuestDied };
    assert_eq!(event.expect("the node notices"), Some(wanted));
    victim.try_sh_as(who.name(), "true").await.expect_err("it is gone");
    assert!(arena.platform.node.list().await.iter().all(|found| found.incarnation != victim.incarnation));
    in_time
}
