//! Cases 3 to 5: what a process is born with, and what it can do to the guest that bore it.

use isopod_client::guest::{GuestError, PtySize, StartProcess};

use crate::arena::Arena;
use crate::table::Who;

const PTY: PtySize = PtySize { cols: 80, rows: 24 };

#[tokio::test]
async fn case_04_no_descriptor_of_the_guest_or_server_leaks_into_a_process() {
    let arena = Arena::start("4 Working directory through /proc, inherited descriptors").await;
    for who in Who::BOTH {
        for number in 0..24 {
            no_way_out(&arena, who, &format!("/proc/self/fd/{number}")).await;
            no_way_out(&arena, who, &format!("/proc/1/fd/{number}")).await;
        }
        for path in ["/proc/1/root", "/proc/1/cwd", "/proc/1/task/1/root"] {
            no_way_out(&arena, who, path).await;
        }
        arena.table.held("start with cwd /proc/self/fd/N, /proc/1/fd/N, /proc/1/root", who, "refused");
        arena.table.held("start in a terminal with the same directories", who, "refused");
        let descriptors = "python3 -c 'import os; print(sorted(os.listdir(\"/proc/self/fd\"), key=int)[:-1])'";
        assert_eq!(arena.attacker.sh_as(who.name(), descriptors).await.ok(), "['0', '1', '2']\n");
        arena.table.held("look for inherited descriptors", who, "only 0, 1 and 2");
        let environment = arena.attacker.sh_as(who.name(), "tr '\\0' '\\n' < /proc/self/environ; env").await.ok();
        for secret in ["CARGO_", "SSH_", "TOKEN", "SECRET"] {
            let leaked =
                environment.lines().find(|line| line.split('=').next().is_some_and(|name| name.contains(secret)));
            assert_eq!(leaked, None, "a variable of the server");
        }
        arena.table.held("look for variables of the server", who, "none");
    }
    arena.finish().await;
}

/// A process is not started there, with pipes or with a terminal.
async fn no_way_out(arena: &Arena, who: Who, cwd: &str) {
    let guest = arena.attacker.guest.clone().with_user(who.name());
    for start in [StartProcess::new("/bin/ls").cwd(cwd), StartProcess::new("/bin/ls").cwd(cwd).pty(PTY)] {
        match guest.run(start).await {
            Err(GuestError::Refused { .. }) => {}
            other => panic!("started in {cwd} as {}: {other:?}", who.name()),
        }
    }
}

#[tokio::test]
async fn case_05_the_guest_cannot_be_read_traced_changed_or_killed() {
    let arena = Arena::start("5 Overwriting, tracing, reading or killing the guest").await;
    arena.probe(include_str!("probes/guest.py")).await;
    arena.finish().await;
}

#[tokio::test]
async fn case_03_the_guest_writes_to_procfs_and_nothing_else() {
    let arena = Arena::start("3 Our own writes to procfs, inside").await;
    for who in Who::BOTH {
        let adjustment = arena.attacker.sh_as(who.name(), "cat /proc/self/oom_score_adj; stat -f -c %T /proc").await;
        assert_eq!(adjustment.ok(), "500\nproc\n");
        arena.table.held("guest's write of oom_score_adj", who, "arrives in procfs");
        let over = "mkdir -p ~/fake && mount --bind ~/fake /proc || mount -t tmpfs none /proc || ln -sfn ~/fake /proc || mv /proc /gone";
        assert_ne!(arena.attacker.sh_as(who.name(), over).await.code(), 0);
        arena.table.held("put something else over /proc", who, "refused");
    }
    arena.finish().await;
}
