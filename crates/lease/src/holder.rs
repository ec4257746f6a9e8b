//! What a lease needs to know about its holder.

use isopod_store::TeamId;
use isopod_wire::SandboxId;

/// Identifies a holder. A team never has two live sandboxes leased under the same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseName {
    pub team: TeamId,
    pub key: String,
}

/// A sandbox that its holder may use now.
#[derive(Clone, Debug)]
pub struct Leased<S> {
    pub sandbox: S,
    /// The sandbox that this one replaces. Set only for the call that replaced it.
    pub replaced: Option<SandboxId>,
    /// How often the holder's sandbox has been replaced.
    pub restarts: u32,
}

/// What the records say about a holder.
#[derive(Debug)]
pub struct Opened<R, S> {
    /// The open record, which the next steps use.
    pub record: R,
    /// The holder's sandbox, if it is alive and usable.
    pub live: Option<S>,
    /// The sandbox on record, alive or not.
    pub recorded: Option<SandboxId>,
    pub restarts: u32,
}

/// Why a call that waited for its sandbox gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnded {
    /// Another call ended the lease in the meantime.
    Meanwhile,
    /// The task that does the work panicked or was cancelled.
    Aborted,
}

/// Holds a lease. One value stands for one call, with the sandbox that the call asks for.
///
/// Between `open` and `close` there is only one caller at a time for each name.
pub trait Holder: Send + Sync + Sized + 'static {
    /// What stays open between [`Holder::open`] and [`Holder::close`], for example a row or a lock.
    type Record: Send + Sync;
    type Sandbox: Send + Sync + 'static;
    type Error: Send + 'static;

    /// Whether to remember the sandbox until the lease ends and to return it without reading the records again. Set
    /// this only for holders that end their lease ([`EndLease`]), because nothing else clears the memory.
    const IS_REMEMBERED: bool = false;

    fn name(&self) -> LeaseName;

    fn id(sandbox: &Self::Sandbox) -> &SandboxId;

    /// The error for a call whose lease ended while it waited.
    fn ended(&self, why: LeaseEnded) -> Self::Error;

    /// The remembered sandbox, if it can still be used.
    fn reuse(&self, _: &SandboxId) -> impl Future<Output = Result<Option<Self::Sandbox>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// Opens the record and finds the live sandbox.
    fn open(&self) -> impl Future<Output = Result<Opened<Self::Record, Self::Sandbox>, Self::Error>> + Send;

    fn create(&self, record: &Self::Record) -> impl Future<Output = Result<Self::Sandbox, Self::Error>> + Send;

    /// Records that the sandbox is the holder's. On an error, a sandbox that was just created is discarded.
    fn record(
        &self,
        _: &Self::Record,
        _: &Leased<Self::Sandbox>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        async { Ok(()) }
    }

    /// Removes a sandbox that could not be recorded.
    fn discard(&self, _: Self::Sandbox) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Called after the last step on the record, whether or not that step succeeded.
    fn close(&self, _: Self::Record) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A holder that ends its lease.
pub trait EndLease: Holder {
    /// Says which sandboxes there were.
    type Ended: Send + 'static;

    /// Removes everything that the holder has. Must be idempotent. Nothing creates a sandbox for the holder while this
    /// runs.
    fn end(&self) -> impl Future<Output = Result<Self::Ended, Self::Error>> + Send;
}
