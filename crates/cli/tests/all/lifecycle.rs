//! The life of a sandbox on a node with real isolation: limits that bite, pause and resume, ends and their reasons.

use std::time::Duration;

use isopod_client::guest::{Event, StartProcess};
use isopod_node::PoolSize;
use isopod_testkit::{Platform, spec};
use isopod_wire::node::{
    CreateError, DialError, EndReason, NodeApi, NodeError, NodeEvent, NodeState, PauseMode, SandboxSpec, Target,
};
use isopod_wire::{Bytes, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let platform = Platform::start(BINARY).await;
    let unknown = platform.node.create(SandboxSpec { template: "nosuch".to_owned(), ..spec() }).await;
    assert!(matches!(unknown, Err(CreateError::UnknownTemplate(name)) if name == "nosuch"));
    let tiny = Limits { memory: Bytes(4096), ..Limits::default() };
    let refused = platform.node.create(SandboxSpec { limits: tiny, ..spec() }).await;
    assert!(matches!(refused, Err(CreateError::Limits(_))));
    let first = spec();
    platform.node.create(first.clone()).await.unwrap();
    assert!(matches!(platform.node.create(first).await, Err(CreateError::Exists(_))));
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_inside_see_the_sandboxs_own_limits() {
    let platform = Platform::start(BINARY).await;
    let limits = Limits { cpu_millis: 1000, memory: Bytes::mib(512), ..Limits::default() };
    let sandbox = platform.sandbox_of(SandboxSpec { limits, ..spec() }).await;
    assert_eq!(sandbox.sh("nproc").await.ok(), "1\n");
    assert_eq!(sandbox.sh("free -m | awk '/Mem:/{print $2}'").await.ok(), "512\n");
    assert_eq!(sandbox.sh("grep -c ^processor /proc/cpuinfo").await.ok(), "1\n");
    assert_eq!(sandbox.sh("cat /sys/devices/system/cpu/online").await.ok(), "0\n");
    assert_eq!(sandbox.sh("python3 -c 'import os; print(os.cpu_count())'").await.ok(), "1\n");
    assert_eq!(sandbox.sh("hostname; id -un; echo $HOME; sudo id -un").await.ok(), "isopod\nuser\n/home/user\nroot\n");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_pids_and_disk_limits_bite_inside_and_the_sandbox_lives_on() {
    let platform = Platform::start(BINARY).await;
    let limits = Limits { memory: Bytes::mib(128), pids: 64, disk: Some(Bytes::mib(32)), ..Limits::default() };
    let sandbox = platform.sandbox_of(SandboxSpec { limits, ..spec() }).await;
    let neighbour = platform.sandbox().await;

    let hungry = sandbox.sh("python3 -c 'x = bytearray(400 << 20); print(len(x))'").await;
    assert_ne!(hungry.code(), 0, "{}", hungry.stdout());
    let forks = "python3 -c '
import os, time
pids = []
try:
    while len(pids) < 500:
        pid = os.fork()
        if pid == 0: time.sleep(60)
        pids.append(pid)
except OSError as error:
    print(len(pids), error.errno)
for pid in pids: os.kill(pid, 9)'";
    let forked = sandbox.sh(forks).await.ok();
    let count: u32 = forked.split(' ').next().unwrap().parse().unwrap();
    assert!(count < 64, "{forked}");
    let full = sandbox
        .sh("dd if=/dev/zero of=/home/user/big bs=1M count=64 2>&1; sync; stat -c %s /home/user/big")
        .await
        .stdout();
    assert!(full.contains("No space left") || full.contains("quota exceeded"), "{full}");

    assert_eq!(sandbox.sh("rm -f /home/user/big; echo alive").await.ok(), "alive\n");
    assert_eq!(neighbour.sh("dd if=/dev/zero of=f bs=1M count=64 2>/dev/null && echo fine").await.ok(), "fine\n");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_with_memory_keeps_processes_and_a_second_is_refused() {
    let platform = Platform::start(BINARY).await;
    let sandbox = platform.sandbox().await;
    let mut process = sandbox.guest.start(StartProcess::new("cat").with_stdin()).await.unwrap();
    let node = &platform.node;
    node.pause(&sandbox.incarnation, PauseMode::Memory).await.unwrap();
    assert!(matches!(
        node.pause(&sandbox.incarnation, PauseMode::Memory).await,
        Err(NodeError::WrongState { state: NodeState::Frozen, .. })
    ));
    assert!(matches!(node.dial(&sandbox.incarnation, Target::Guest).await, Err(DialError::Paused(_))));
    assert_eq!(node.list().await[0].state, NodeState::Frozen);

    assert_eq!(node.resume(&sandbox.incarnation).await.unwrap(), sandbox.incarnation);
    process.handle().send_stdin("still here\n").await.unwrap();
    loop {
        match process.next().await.unwrap() {
            Some(Event::Stdout(bytes)) => break assert_eq!(&bytes[..], b"still here\n"),
            Some(_) => {}
            None => panic!("the process is gone"),
        }
    }
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_the_files_ends_processes_and_keeps_what_was_written() {
    let platform = Platform::start(BINARY).await;
    let before = platform.sandbox().await;
    before.sh("echo kept > a; sudo sh -c 'echo root > /etc/b; echo usr > /usr/c'").await.ok();
    platform.node.pause(&before.incarnation, PauseMode::Filesystem).await.unwrap();
    assert!(matches!(platform.node.dial(&before.incarnation, Target::Guest).await, Err(DialError::Paused(_))));

    let incarnation = platform.node.resume(&before.incarnation).await.unwrap();
    assert_eq!(incarnation.sandbox, before.incarnation.sandbox);
    assert_ne!(incarnation.execution, before.incarnation.execution, "a new life has a new name");
    let after = platform.find(&incarnation);
    assert_eq!(after.sh("cat a /etc/b /usr/c").await.ok(), "kept\nroot\nusr\n");
    assert!(matches!(platform.node.pause(&before.incarnation, PauseMode::Memory).await, Err(NodeError::NotFound(_))));
    // A late kill that means the earlier life does not hit this one.
    platform.node.kill(&before.incarnation).await.unwrap();
    after.sh("true").await.ok();
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_id_belongs_to_one_boot_of_one_sandbox() {
    const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
    let platform = Platform::start(BINARY).await;
    let (one, other) = (platform.sandbox().await, platform.sandbox().await);
    let first = one.sh(BOOT_ID).await.ok();
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!((first.len(), first.matches('-').count()), (host.len(), 4), "{first}");
    assert_ne!(first, host);
    assert_ne!(first, other.sh(BOOT_ID).await.ok());

    let node = &platform.node;
    node.pause(&one.incarnation, PauseMode::Memory).await.unwrap();
    let same = platform.find(&node.resume(&one.incarnation).await.unwrap());
    assert_eq!(same.sh(BOOT_ID).await.ok(), first, "a pause with memory is no boot");
    node.pause(&same.incarnation, PauseMode::Filesystem).await.unwrap();
    let booted = platform.find(&node.resume(&same.incarnation).await.unwrap());
    assert_ne!(booted.sh(BOOT_ID).await.ok(), first);
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uptime_and_the_start_times_of_processes_agree() {
    const TIMES: &str = "date +%s; cut -d. -f1 /proc/uptime; awk '/btime/{print $2}' /proc/stat; \
        ps -o etimes= -p $$; ps -o etimes= -p 1; date -d \"$(ps -o lstart= -p $$)\" +%s; \
        python3 -c 'import time; print(int(time.clock_gettime(time.CLOCK_BOOTTIME)), int(time.monotonic()))'";
    let platform = Platform::start(BINARY).await;
    let sandbox = platform.sandbox().await;
    let told = sandbox.sh(&format!("sleep 1; {TIMES}")).await.ok();
    let numbers: Vec<i64> = told.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [now, uptime, boot, shell_age, init_age, shell_start, boot_clock, monotonic] = numbers[..] else {
        panic!("{told}")
    };
    let near = |one: i64, other: i64| (one - other).abs() <= 2 * SLOW_HOST_SECONDS;
    let host = std::fs::read_to_string("/proc/uptime").unwrap();
    let host: f64 = host.split(' ').next().unwrap().parse().unwrap();
    assert!((1..host as i64).contains(&uptime), "{told}");
    assert!(near(now - uptime, boot) && near(uptime, init_age) && near(uptime, boot_clock), "{told}");
    assert!((1..=uptime).contains(&shell_age) && near(now - shell_age, shell_start), "{told}");
    assert!(near(monotonic, host as i64), "timers stay comparable on one boot of the host: {told}");
    platform.finish().await;
}

/// How far apart two programs in one command line may run on a busy host.
const SLOW_HOST_SECONDS: i64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_sandbox_can_be_stopped_and_keeps_its_files() {
    let platform = Platform::start(BINARY).await;
    let before = platform.sandbox().await;
    before.sh("echo kept > a; (sleep 1000 >/dev/null 2>&1 &)").await.ok();
    platform.node.pause(&before.incarnation, PauseMode::Memory).await.unwrap();
    platform.node.pause(&before.incarnation, PauseMode::Filesystem).await.unwrap();
    assert_eq!(platform.node.list().await[0].state, NodeState::Stopped);
    let incarnation = platform.node.resume(&before.incarnation).await.unwrap();
    assert_ne!(incarnation.execution, before.incarnation.execution);
    let after = platform.find(&incarnation);
    assert_eq!(after.sh("cat a; pgrep -c sleep").await.stdout(), "kept\n0\n");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_nobody_asked_for_is_told_with_its_reason() {
    let platform = Platform::start(BINARY).await;
    let sandbox = platform.sandbox().await;
    let stream = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.try_sh_as("user", "sleep 1000").await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let pid = rustix::process::Pid::from_raw(sandbox.init_pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(stream.await.unwrap().is_err(), "a stream of a dead sandbox ends with an error");
    let event = platform.node.next_event().await.unwrap();
    assert_eq!(event, NodeEvent::Ended { incarnation: sandbox.incarnation, reason: EndReason::GuestDied });
    assert!(platform.node.list().await.is_empty());
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_on_the_sandboxs_loopback_are_reached_from_outside() {
    let platform = Platform::start(BINARY).await;
    let sandbox = platform.sandbox().await;
    let refused = platform.node.dial(&sandbox.incarnation, Target::Port(8000)).await;
    assert!(matches!(refused, Err(DialError::Refused { port: 8000, .. })));
    sandbox.sh("echo hello > index.html; (python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &) ; for i in $(seq 200); do python3 -c \"import socket; socket.create_connection(('127.0.0.1',8000))\" 2>/dev/null && break; done").await.ok();
    let mut stream = platform.node.dial(&sandbox.incarnation, Target::Port(8000)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.ends_with("hello\n"), "{reply}");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_serves_many_at_once_and_each_is_its_own() {
    let size = PoolSize { ready: 4, prepared: 4 };
    let platform = Platform::start_with(BINARY, size).await;
    platform.node.wait_for_pool(size).await;
    let made = futures_join((0..12).map(|_| platform.node.create(spec()))).await;
    let incarnations: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    for (index, incarnation) in incarnations.iter().enumerate() {
        platform.find(incarnation).sh(&format!("echo {index} > mine")).await.ok();
    }
    for (index, incarnation) in incarnations.iter().enumerate() {
        assert_eq!(platform.find(incarnation).sh("cat mine; ls | wc -l").await.ok(), format!("{index}\n1\n"));
    }
    let usage = platform.node.usage(&incarnations[0]).await.unwrap();
    assert!(usage.memory > 0 && usage.cpu_micros > 0 && usage.pids > 0, "{usage:?}");
    platform.finish().await;
}

async fn futures_join<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pinned: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, slot) in pinned.iter_mut().zip(&mut done).filter(|(_, slot)| slot.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *slot = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
