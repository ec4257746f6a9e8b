//! Has a kernel fork copies of itself. Each becomes a kernel of its own, with the same variables.
//!
//! The kernel runs user code, so it may do anything but what it is asked: fork nothing, answer for a copy, or never answer.
//! The guest therefore makes the stream and pipes of each copy, and takes as the copy the process that the operating system
//! names as the sender of the first message. It refuses one that is a kernel already, because the end of one context would
//! end the other. The driver's `copies.py` is the other side.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use rustix::process::Pid;
use tokio::time::{Instant, timeout_at};

use super::Interpreter;
use super::contexts::random_bytes;
use super::ends::KernelEnds;
use super::kernel::{Command, Kernel, KernelConnection, KernelKind};
use super::start::StartError;

/// How long the kernel may take for all copies. A fork of several gigabytes takes less than a second.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("cannot create the copy's pipes: {0}")]
    Connection(io::Error),
    #[error("the kernel died before it was forked")]
    Died,
    #[error("the kernel does not read its commands and was ended")]
    NotSent,
    #[error(
        "the copy exited before it was ready{0}. If the template was built by an earlier version of Isopod, build it again"
    )]
    Closed(String),
    #[error("the copy was not ready after {} s", TIMEOUT.as_secs())]
    TimedOut,
    #[error("another process answered in the copy's place")]
    OtherProcess,
    #[error("{0}")]
    Start(StartError),
    #[error("the context was restarted")]
    Restarted,
}

/// Makes copies of a kernel that has begun. An error is about all of them. After [`CopyError::Died`] and
/// [`CopyError::NotSent`], the kernel cannot be used any more.
pub(super) async fn fork(
    interpreter: &Interpreter,
    kernel: &mut Kernel,
    count: usize,
) -> Result<Vec<Result<Kernel, CopyError>>, CopyError> {
    let deadline = Instant::now() + TIMEOUT;
    let made: io::Result<Vec<_>> = (0..count).map(|_| KernelConnection::with_senders()).collect();
    let (connections, ends): (Vec<_>, Vec<_>) = made.map_err(CopyError::Connection)?.into_iter().unzip();
    request(kernel, ends, deadline).await?;
    let source = kernel.pid();
    tokio::select! {
        copies = admit_all(interpreter, connections, source, deadline) => Ok(copies),
        never = drain(kernel) => match never {},
    }
}

async fn request(kernel: &mut Kernel, ends: Vec<KernelEnds>, deadline: Instant) -> Result<(), CopyError> {
    let seeds: Vec<String> = ends.iter().map(|_| hex::encode(random_bytes::<32>())).collect();
    match timeout_at(deadline, kernel.send_with_ends(&Command::Fork { seeds: &seeds }, ends)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(CopyError::Died),
        Err(_) => Err(CopyError::NotSent),
    }
}

/// Reads what the kernel's threads print. Otherwise one of them could wait for the guest while the fork waits for it.
async fn drain(kernel: &mut Kernel) -> Infallible {
    kernel.idle().await;
    // It is gone. Copies that it has made are not.
    std::future::pending().await
}

async fn admit_all(
    interpreter: &Interpreter,
    connections: Vec<KernelConnection>,
    source: Pid,
    deadline: Instant,
) -> Vec<Result<Kernel, CopyError>> {
    let mut known = vec![source];
    let mut copies = Vec::new();
    for connection in connections {
        let copy = timeout_at(deadline, admit(connection, &known)).await.unwrap_or(Err(CopyError::TimedOut));
        copies.push(copy.map(|mut copy| {
            known.push(copy.pid());
            copy.link().set_begun();
            copy.exit_from_wait = Some(interpreter.processes.watch_exit(copy.pid()));
            copy
        }));
    }
    copies
}

/// Waits for a copy's hello. A dropped [`Kernel`] kills its process, so there must be none of a process that is not the copy.
async fn admit(mut connection: KernelConnection, known: &[Pid]) -> Result<Kernel, CopyError> {
    let sender = connection.first_sender().await.map_err(CopyError::Connection)?;
    let pid = connection.hello().await.map_err(not_started)?;
    if sender != Some(pid) || known.contains(&pid) {
        return Err(CopyError::OtherProcess);
    }
    connection.into_kernel(pid, KernelKind::Forked).map_err(not_started)
}

fn not_started(error: StartError) -> CopyError {
    match error {
        StartError::Closed(last_line) => CopyError::Closed(last_line),
        other => CopyError::Start(other),
    }
}
