//! Keeps the map in line with the store and the sandboxes. The entry of a running sandbox expires a little after the
//! sandbox. While a sandbox is paused, which has no time limit, its entry does not expire.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::Sandbox;
use isopod_store::clock::Timestamp;
use isopod_store::{Owner, TeamId, TeamOwner};
use isopod_wire::SandboxId;

use super::Sessions;
use super::map::Entry;

/// A sandbox is paused at the end of its time. Its entry must not expire before it is updated.
const SLACK: Duration = Duration::from_secs(90);
/// A later expiry is written only if it differs by at least this much.
const WORTH_A_WRITE: Duration = Duration::from_secs(5);

/// What was last written for an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirrored {
    sandbox: SandboxId,
    until: Option<Timestamp>,
    /// The map's gaps at that time.
    gaps: u64,
}

impl Sessions {
    /// When the map's entry for this sandbox expires.
    pub(super) fn entry_expiry(&self, sandbox: &Sandbox) -> Option<Timestamp> {
        let view = sandbox.view();
        (view.row.state.shown() == Some("running")).then(|| view.row.ends_at.plus(SLACK))
    }

    /// Writes the entry if it is missing or out of date.
    pub(super) async fn mirror(&self, owner: &Owner, sandbox: &Sandbox) {
        let gaps = self.map.gaps();
        let now = Mirrored { sandbox: sandbox.id().clone(), until: self.entry_expiry(sandbox), gaps };
        let owner = TeamOwner::new(sandbox.team(), owner);
        if self.with_mirrored(|all| all.get(&owner).is_some_and(|before| is_good_enough(before, &now))) {
            return;
        }
        let entry = Entry { sandbox: now.sandbox.as_str().to_owned(), server: Some(self.server.clone()) };
        self.map.put(&owner, &entry, now.until).await;
        // A failure has increased the gaps, so the next check writes again.
        self.with_mirrored(|all| all.insert(owner, now));
    }

    /// As [`Sessions::mirror`], in the background.
    pub(super) fn mirror_later(self: &Arc<Self>, owner: &Owner, sandbox: &Arc<Sandbox>) {
        let now = Mirrored { sandbox: sandbox.id().clone(), until: self.entry_expiry(sandbox), gaps: self.map.gaps() };
        let key = TeamOwner::new(sandbox.team(), owner);
        if self.with_mirrored(|all| all.get(&key).is_some_and(|before| is_good_enough(before, &now))) {
            return;
        }
        let (sessions, owner, sandbox) = (Arc::clone(self), owner.clone(), Arc::clone(sandbox));
        tokio::spawn(async move { sessions.mirror(&owner, &sandbox).await });
    }

    /// Removes the entry of an owner whose sandbox is gone.
    pub(super) async fn unmirror(&self, team: &TeamId, owner: &Owner, sandbox: &SandboxId) {
        let owner = TeamOwner::new(team, owner);
        self.with_mirrored(|all| all.remove(&owner));
        self.map.remove(&owner, &self.server, Some(sandbox.as_str())).await;
    }

    /// Drops what is known about the files of a sandbox that is gone, here and in the map.
    pub(super) async fn forget_files(&self, team: &TeamId, owner: &Owner, sandbox: &SandboxId) {
        let known = self.with_known(|all| all.remove(sandbox));
        if !self.map.wants_hashes() {
            return;
        }
        let paths = match known {
            Some(known) => known.lock().await.input_paths(),
            None => self.store.session_files(sandbox).await.map(super::workspace::input_paths).unwrap_or_default(),
        };
        let gone: Vec<_> = paths.into_iter().map(|path| (path, None)).collect();
        self.map.put_hashes(&TeamOwner::new(team, owner), &gone, None).await;
    }
}

fn is_good_enough(before: &Mirrored, now: &Mirrored) -> bool {
    let ends_well = match (before.until, now.until) {
        (None, None) => true,
        // Not earlier, and not much later.
        (Some(before), Some(now)) => before <= now && before.until(now) < WORTH_A_WRITE,
        _ => false,
    };
    before.sandbox == now.sandbox && before.gaps == now.gaps && ends_well
}
