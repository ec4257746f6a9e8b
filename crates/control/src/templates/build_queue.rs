//! Decides which build runs next. Teams take turns, and no team uses all slots, because builds may take an hour.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use isopod_store::TeamId;
use tokio::sync::oneshot;

/// The queue of builds and its slots.
#[derive(Debug)]
pub(super) struct BuildQueue {
    at_once: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Only teams with running builds.
    running: HashMap<TeamId, usize>,
    /// Waiting teams, the next one first, each with its builds in order.
    waiting: VecDeque<(TeamId, VecDeque<oneshot::Sender<BuildSlot>>)>,
    /// Whether no build may start now.
    is_closed: bool,
}

/// The slot of a running build. Released when dropped.
#[derive(Debug)]
pub(super) struct BuildSlot {
    queue: Arc<BuildQueue>,
    team: TeamId,
}

/// While this exists, no build runs.
#[derive(Debug)]
pub(super) struct Exclusive(Arc<BuildQueue>);

impl BuildQueue {
    pub(super) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self { at_once: at_once.max(1), state: Mutex::default() })
    }

    /// Waits for a slot. If the future is dropped, the build leaves the queue.
    pub(super) async fn acquire(self: &Arc<Self>, team: &TeamId) -> Option<BuildSlot> {
        let (sender, slot) = oneshot::channel();
        self.lock().wait(team, sender);
        self.assign_slots();
        slot.await.ok()
    }

    /// If no build is running, prevents builds from starting until the result is dropped.
    pub(super) fn try_exclusive(self: &Arc<Self>) -> Option<Exclusive> {
        let mut state = self.lock();
        if !state.running.is_empty() || state.is_closed {
            return None;
        }
        state.is_closed = true;
        Some(Exclusive(Arc::clone(self)))
    }

    /// Assigns the free slots.
    fn assign_slots(self: &Arc<Self>) {
        loop {
            // Not under the lock: if the waiting task is gone, the slot is dropped here, which locks again to release
            // it.
            let Some((team, next)) = self.lock().next(self.at_once) else { return };
            let _ = next.send(BuildSlot { queue: Arc::clone(self), team });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, team: &TeamId, sender: oneshot::Sender<BuildSlot>) {
        match self.waiting.iter_mut().find(|(waiting, _)| waiting == team) {
            Some((_, builds)) => builds.push_back(sender),
            None => self.waiting.push_back((team.clone(), VecDeque::from([sender]))),
        }
    }

    /// Returns the build that starts now and counts it as running.
    fn next(&mut self, at_once: usize) -> Option<(TeamId, oneshot::Sender<BuildSlot>)> {
        for (_, builds) in &mut self.waiting {
            builds.retain(|build| !build.is_closed());
        }
        self.waiting.retain(|(_, builds)| !builds.is_empty());
        if self.is_closed || self.running.values().sum::<usize>() >= at_once {
            return None;
        }
        let most = at_once.saturating_sub(1).max(1);
        let may = |team: &TeamId| self.running.get(team).is_none_or(|count| *count < most);
        let place = self.waiting.iter().position(|(team, _)| may(team))?;
        let (team, mut builds) = self.waiting.remove(place)?;
        let next = builds.pop_front()?;
        if !builds.is_empty() {
            self.waiting.push_back((team.clone(), builds));
        }
        *self.running.entry(team.clone()).or_default() += 1;
        Some((team, next))
    }
}

impl Drop for BuildSlot {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        match state.running.get_mut(&self.team) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(state.running.remove(&self.team)),
        }
        drop(state);
        self.queue.assign_slots();
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.lock().is_closed = false;
        self.0.assign_slots();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::*;

    fn team(name: &str) -> TeamId {
        TeamId(name.to_owned())
    }

    /// A wait that has started. `granted` polls it again.
    fn begun(queue: &Arc<BuildQueue>, name: &str) -> BoxFuture<'static, Option<BuildSlot>> {
        let (queue, team) = (Arc::clone(queue), team(name));
        let mut waiting = async move { queue.acquire(&team).await }.boxed();
        match (&mut waiting).now_or_never() {
            Some(slot) => futures::future::ready(slot).boxed(),
            None => waiting,
        }
    }

    fn granted(waiting: &mut BoxFuture<'static, Option<BuildSlot>>) -> Option<BuildSlot> {
        waiting.now_or_never().flatten()
    }

    #[test]
    fn teams_take_turns_and_none_has_all_places() {
        let queue = BuildQueue::new(3);
        let mut many: Vec<_> = (0..50).map(|_| begun(&queue, "a")).collect();
        let mut held: Vec<_> = many.iter_mut().take(2).map(|one| granted(one).unwrap()).collect();
        assert!(many[2..].iter_mut().all(|one| granted(one).is_none()), "one place is for other teams");
        let mut b = [begun(&queue, "b"), begun(&queue, "b")];
        let of_b = granted(&mut b[0]).unwrap();
        let mut c = begun(&queue, "c");
        assert!(granted(&mut b[1]).is_none() && granted(&mut c).is_none());
        // As slots become free, teams take turns, whichever has waited longest.
        drop(held.pop());
        held.push(granted(&mut many[2]).expect("a was first in the row"));
        drop(of_b);
        let of_b = granted(&mut b[1]).unwrap();
        drop(held.pop());
        let of_c = granted(&mut c).unwrap();
        drop((of_b, of_c, held));
        assert_eq!(queue.lock().running, HashMap::from([(team("a"), 2)]), "and then the rest of them");
    }

    #[test]
    fn a_single_place_is_given_to_whoever_comes() {
        let queue = BuildQueue::new(1);
        let mut a = [begun(&queue, "a"), begun(&queue, "a")];
        let mut b = begun(&queue, "b");
        let first = granted(&mut a[0]).unwrap();
        assert!(granted(&mut a[1]).is_none() && granted(&mut b).is_none());
        drop(first);
        let second = granted(&mut a[1]).or_else(|| granted(&mut b)).unwrap();
        drop(second);
        assert_eq!(queue.lock().running.len(), 1);
    }

    #[test]
    fn who_gives_up_does_not_hold_up_the_others() {
        let queue = BuildQueue::new(1);
        let mut first = begun(&queue, "a");
        let held = granted(&mut first).unwrap();
        let given_up: Vec<_> = (0..10).map(|_| begun(&queue, "b")).collect();
        let mut last = begun(&queue, "c");
        drop(given_up);
        drop(held);
        assert!(granted(&mut last).is_some());
        assert!(queue.lock().waiting.is_empty());
    }

    #[test]
    fn nothing_begins_while_somebody_wants_to_be_alone() {
        let queue = BuildQueue::new(2);
        let exclusive = queue.try_exclusive().unwrap();
        let mut waiting = begun(&queue, "a");
        assert!(granted(&mut waiting).is_none() && queue.try_exclusive().is_none());
        drop(exclusive);
        let held = granted(&mut waiting).unwrap();
        assert!(queue.try_exclusive().is_none());
        drop(held);
        assert!(queue.try_exclusive().is_some());
    }
}
