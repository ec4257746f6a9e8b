//! The gate through which everything passes that starts, signals or sends something to a process of the sandbox. A checkpoint
//! closes it: whatever comes then waits until it opens again.
//!
//! Reading is not gated. What the guest reads from a process was written before the process was stopped, and the state of a
//! checkpoint is taken after that.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};

#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<RwLock<()>>);

/// The right to act on processes. The gate does not close while one exists.
///
/// A task must not ask for a second one: if the gate is about to close, both would wait.
#[derive(Debug)]
pub(crate) struct Pass<'a>(#[expect(dead_code, reason = "it is held, not read")] RwLockReadGuard<'a, ()>);

/// The gate is closed until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed(#[expect(dead_code, reason = "it is held, not read")] OwnedRwLockWriteGuard<()>);

impl Gate {
    /// Waits while the gate is closed.
    pub(crate) async fn pass(&self) -> Pass<'_> {
        Pass(self.0.read().await)
    }

    /// Waits until nobody is inside and closes the gate. `None` if that takes too long.
    pub(crate) async fn close(&self, timeout: Duration) -> Option<Closed> {
        let closed = tokio::time::timeout(timeout, Arc::clone(&self.0).write_owned()).await;
        closed.ok().map(Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn nobody_passes_a_closed_gate() {
        let gate = Gate::default();
        let closed = gate.close(SOON).await.unwrap();
        assert!(tokio::time::timeout(SOON, gate.pass()).await.is_err());
        assert!(gate.close(SOON).await.is_none());
        drop(closed);
        gate.pass().await;
    }

    #[tokio::test]
    async fn it_does_not_close_on_somebody_and_opens_after_the_attempt() {
        let gate = Gate::default();
        let pass = gate.pass().await;
        assert!(gate.close(SOON).await.is_none());
        gate.pass().await;
        drop(pass);
        assert!(gate.close(SOON).await.is_some());
    }
}
