//! What a lease has to know of the one who holds it.

use isopod_store::TeamId;
use isopod_wire::SandboxId;

/// Tells holders apart. No two live sandboxes of a team are leased under one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseName {
    pub team: TeamId,
    pub key: String,
}

/// A sandbox that its holder may use now.
#[derive(Clone, Debug)]
pub struct Leased<S> {
    pub sandbox: S,
    /// The sandbox that this one replaces; only the call that replaced it is told.
    pub replaced: Option<SandboxId>,
    /// How often the holder's sandbox was replaced.
    pub restarts: u32,
}

/// What the records say of a holder.
#[derive(Debug)]
pub struct Opened<R, S> {
    /// The open record, for the steps that follow.
    pub record: R,
    /// A sandbox of the holder's that lives and can be used.
    pub live: Option<S>,
    /// The sandbox on record, alive or not.
    pub recorded: Option<SandboxId>,
    pub restarts: u32,
}

/// Why a call that waited for its sandbox gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnded {
    /// Somebody ended the lease in the meantime.
    Meanwhile,
    /// The task that does the work did not finish.
    Aborted,
}

/// Somebody who holds a lease. One value stands for one call, with what that call asks for.
///
/// From `open` to `close` there is one caller at a time for each name.
pub trait Holder: Send + Sync + Sized + 'static {
    /// What is open from [`Holder::open`] to [`Holder::close`]: a row, a lock.
    type Record: Send + Sync;
    type Sandbox: Send + Sync + 'static;
    type Error: Send + 'static;

    /// Whether the sandbox is remembered until the lease is ended, and given out again without a look at the records. Only
    /// for holders that end their lease ([`EndLease`]): nothing else makes the memory go.
    const IS_REMEMBERED: bool = false;

    fn name(&self) -> LeaseName;

    fn id(sandbox: &Self::Sandbox) -> &SandboxId;

    /// The error of a call whose lease ended while it waited.
    fn ended(&self, why: LeaseEnded) -> Self::Error;

    /// The remembered sandbox, if it can still be used.
    fn reuse(&self, _: &SandboxId) -> impl Future<Output = Result<Option<Self::Sandbox>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// Opens the record, and finds the sandbox that lives.
    fn open(&self) -> impl Future<Output = Result<Opened<Self::Record, Self::Sandbox>, Self::Error>> + Send;

    fn create(&self, record: &Self::Record) -> impl Future<Output = Result<Self::Sandbox, Self::Error>> + Send;

    /// Records whose sandbox this is. On an error the sandbox is discarded if it was created just now.
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

    /// Called after the last step on the record, however that went.
    fn close(&self, _: Self::Record) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A holder that ends its lease.
pub trait EndLease: Holder {
    /// Removes everything that the holder has. True if there was a sandbox. May be called again and again; nobody makes a
    /// sandbox for the holder meanwhile.
    fn end(&self) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}
