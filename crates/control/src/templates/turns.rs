//! Whose build is next. Teams take turns, and one team alone never has all places: builds may take an hour.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use isopod_store::TeamId;
use tokio::sync::oneshot;

/// The places for builds.
#[derive(Debug)]
pub(super) struct Turns {
    at_once: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Only teams that have some.
    under_way: HashMap<TeamId, usize>,
    /// Teams that wait, the next one first, each with its builds in their order.
    waiting: VecDeque<(TeamId, VecDeque<oneshot::Sender<Turn>>)>,
    /// Nothing begins for now.
    is_closed: bool,
}

/// A place for a build of a team's, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    team: TeamId,
}

/// Until this is dropped no build is under way.
#[derive(Debug)]
pub(super) struct Alone(Arc<Turns>);

impl Turns {
    pub(super) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self { at_once: at_once.max(1), state: Mutex::default() })
    }

    /// Waits for a place. Whoever gives up waiting gives up the turn.
    pub(super) async fn turn(self: &Arc<Self>, team: &TeamId) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        self.lock().wait(team, sender);
        self.go_on();
        turn.await.ok()
    }

    /// If nothing is under way, nothing is until this is dropped.
    pub(super) fn alone(self: &Arc<Self>) -> Option<Alone> {
        let mut state = self.lock();
        if !state.under_way.is_empty() || state.is_closed {
            return None;
        }
        state.is_closed = true;
        Some(Alone(Arc::clone(self)))
    }

    /// Gives out the places that are free.
    fn go_on(self: &Arc<Self>) {
        loop {
            // Not under the lock: a turn that nobody takes any more is dropped here, which gives it back.
            let Some((team, next)) = self.lock().next(self.at_once) else { return };
            let _ = next.send(Turn { turns: Arc::clone(self), team });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, team: &TeamId, sender: oneshot::Sender<Turn>) {
        match self.waiting.iter_mut().find(|(waiting, _)| waiting == team) {
            Some((_, builds)) => builds.push_back(sender),
            None => self.waiting.push_back((team.clone(), VecDeque::from([sender]))),
        }
    }

    /// Who begins now; it counts as under way.
    fn next(&mut self, at_once: usize) -> Option<(TeamId, oneshot::Sender<Turn>)> {
        for (_, builds) in &mut self.waiting {
            builds.retain(|build| !build.is_closed());
        }
        self.waiting.retain(|(_, builds)| !builds.is_empty());
        if self.is_closed || self.under_way.values().sum::<usize>() >= at_once {
            return None;
        }
        let most = at_once.saturating_sub(1).max(1);
        let may = |team: &TeamId| self.under_way.get(team).is_none_or(|count| *count < most);
        let place = self.waiting.iter().position(|(team, _)| may(team))?;
        let (team, mut builds) = self.waiting.remove(place)?;
        let next = builds.pop_front()?;
        if !builds.is_empty() {
            self.waiting.push_back((team.clone(), builds));
        }
        *self.under_way.entry(team.clone()).or_default() += 1;
        Some((team, next))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        match state.under_way.get_mut(&self.team) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(state.under_way.remove(&self.team)),
        }
        drop(state);
        self.turns.go_on();
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.lock().is_closed = false;
        self.0.go_on();
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

    /// A wait that has begun; it is asked again by `granted`.
    fn begun(turns: &Arc<Turns>, name: &str) -> BoxFuture<'static, Option<Turn>> {
        let (turns, team) = (Arc::clone(turns), team(name));
        let mut waiting = async move { turns.turn(&team).await }.boxed();
        match (&mut waiting).now_or_never() {
            Some(turn) => futures::future::ready(turn).boxed(),
            None => waiting,
        }
    }

    fn granted(waiting: &mut BoxFuture<'static, Option<Turn>>) -> Option<Turn> {
        waiting.now_or_never().flatten()
    }

    #[test]
    fn teams_take_turns_and_none_has_all_places() {
        let turns = Turns::new(3);
        let mut many: Vec<_> = (0..50).map(|_| begun(&turns, "a")).collect();
        let mut held: Vec<_> = many.iter_mut().take(2).map(|one| granted(one).unwrap()).collect();
        assert!(many[2..].iter_mut().all(|one| granted(one).is_none()), "one place is for other teams");
        let mut b = [begun(&turns, "b"), begun(&turns, "b")];
        let of_b = granted(&mut b[0]).unwrap();
        let mut c = begun(&turns, "c");
        assert!(granted(&mut b[1]).is_none() && granted(&mut c).is_none());
        // As places become free it is everybody's turn, whoever has waited for longest.
        drop(held.pop());
        held.push(granted(&mut many[2]).expect("a was first in the row"));
        drop(of_b);
        let of_b = granted(&mut b[1]).unwrap();
        drop(held.pop());
        let of_c = granted(&mut c).unwrap();
        drop((of_b, of_c, held));
        assert_eq!(turns.lock().under_way, HashMap::from([(team("a"), 2)]), "and then the rest of them");
    }

    #[test]
    fn a_single_place_is_given_to_whoever_comes() {
        let turns = Turns::new(1);
        let mut a = [begun(&turns, "a"), begun(&turns, "a")];
        let mut b = begun(&turns, "b");
        let first = granted(&mut a[0]).unwrap();
        assert!(granted(&mut a[1]).is_none() && granted(&mut b).is_none());
        drop(first);
        let second = granted(&mut a[1]).or_else(|| granted(&mut b)).unwrap();
        drop(second);
        assert_eq!(turns.lock().under_way.len(), 1);
    }

    #[test]
    fn who_gives_up_does_not_hold_up_the_others() {
        let turns = Turns::new(1);
        let mut first = begun(&turns, "a");
        let held = granted(&mut first).unwrap();
        let given_up: Vec<_> = (0..10).map(|_| begun(&turns, "b")).collect();
        let mut last = begun(&turns, "c");
        drop(given_up);
        drop(held);
        assert!(granted(&mut last).is_some());
        assert!(turns.lock().waiting.is_empty());
    }

    #[test]
    fn nothing_begins_while_somebody_wants_to_be_alone() {
        let turns = Turns::new(2);
        let alone = turns.alone().unwrap();
        let mut waiting = begun(&turns, "a");
        assert!(granted(&mut waiting).is_none() && turns.alone().is_none());
        drop(alone);
        let held = granted(&mut waiting).unwrap();
        assert!(turns.alone().is_none());
        drop(held);
        assert!(turns.alone().is_some());
    }
}
