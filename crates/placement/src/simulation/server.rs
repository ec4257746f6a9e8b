//! A server and its machine. The machine keeps its sandboxes when the server's process dies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::database::{Answer, Reason, Request, State};
use super::{Mutant, world::Send};
use crate::membership::{Epoch, NextStep, OwnLease, ServerTime, Terms};

#[derive(Debug)]
pub(super) struct Server {
    number: usize,
    terms: Terms,
    mutant: Mutant,
    /// Its clock is slower or faster than the database's, by this many parts of a million.
    pub(super) drift: i64,
    /// Counts the processes. Events of an earlier one are dropped.
    pub(super) process: u32,
    pub(super) is_running: bool,
    pub(super) own: OwnLease,
    /// What runs on the machine.
    pub(super) machine: BTreeSet<usize>,
    /// What the process knows, with the session.
    pub(super) known: BTreeMap<usize, Option<u32>>,
    creating: BTreeMap<usize, Option<u32>>,
    /// Creates whose row may be there, for all that the process knows.
    inserting: u32,
    /// Rows without a sandbox in the last comparison.
    suspects: BTreeSet<usize>,
    last_epoch: Epoch,
    pub(super) removed_on_return: u32,
}

/// What a step of a server leads to.
#[derive(Debug)]
pub(super) enum Effect {
    Send(Send),
    /// The caller is told that it has this sandbox.
    Acknowledge {
        sandbox: usize,
    },
    /// The session's sandbox is on another server.
    Ask {
        server: usize,
        sandbox: usize,
    },
}

impl Server {
    pub(super) fn new(number: usize, terms: Terms, drift: i64, mutant: Mutant) -> Self {
        Self {
            number,
            terms,
            mutant,
            drift,
            process: 0,
            is_running: true,
            own: OwnLease::new(terms),
            machine: BTreeSet::new(),
            known: BTreeMap::new(),
            creating: BTreeMap::new(),
            inserting: 0,
            suspects: BTreeSet::new(),
            last_epoch: Epoch(0),
            removed_on_return: 0,
        }
    }

    pub(super) fn clock(&self, now: i64) -> ServerTime {
        let own = now + now * self.drift / 1_000_000;
        ServerTime(Duration::from_millis(own.unsigned_abs()))
    }

    pub(super) fn start(&mut self) {
        self.process += 1;
        self.is_running = true;
        self.own = OwnLease::new(self.terms);
        self.known.clear();
        self.creating.clear();
        self.suspects.clear();
        (self.inserting, self.last_epoch) = (0, Epoch(0));
    }

    pub(super) fn serves(&self, now: i64) -> bool {
        self.is_running
            && match self.mutant {
                Mutant::ServesForEver => true,
                _ => self.own.serves(self.clock(now)),
            }
    }

    /// The membership's turn, at its pace.
    pub(super) fn tick(&self, now: i64, checks_rows: bool) -> Vec<Effect> {
        let sent_at = self.clock(now);
        let send = |epoch, request| Effect::Send(self.send(epoch, request, sent_at));
        let mut effects = match self.own.next_step() {
            NextStep::Join => vec![send(Epoch(0), Request::ReadEpoch)],
            NextStep::Settle(epoch) => vec![send(epoch, Request::Renew), send(epoch, Request::ReadOwn)],
            NextStep::Renew(epoch) => vec![send(epoch, Request::Renew)],
        };
        if let Some(epoch) = self.own.decides_as(sent_at) {
            effects.push(send(epoch, Request::GiveUpOthers));
            effects.extend(checks_rows.then(|| send(epoch, Request::ReadOwn)));
        }
        effects
    }

    pub(super) fn create(&mut self, session: Option<u32>, now: i64) -> Vec<Effect> {
        let sent_at = self.clock(now);
        let Some(epoch) = self.own.decides_as(sent_at) else { return Vec::new() };
        self.inserting += 1;
        vec![Effect::Send(self.send(epoch, Request::Insert { session }, sent_at))]
    }

    /// Another server asks for a session's sandbox in the name of its caller.
    pub(super) fn asked_for(&self, sandbox: usize, now: i64) -> Vec<Effect> {
        let has = self.known.contains_key(&sandbox) && self.machine.contains(&sandbox);
        if has && self.serves(now) { vec![Effect::Acknowledge { sandbox }] } else { Vec::new() }
    }

    pub(super) fn kill(&mut self, sandbox: usize, now: i64) -> Vec<Effect> {
        let sent_at = self.clock(now);
        let Some(epoch) = self.own.decides_as(sent_at).filter(|_| self.known.contains_key(&sandbox)) else {
            return Vec::new();
        };
        self.known.remove(&sandbox);
        self.machine.remove(&sandbox);
        vec![Effect::Send(self.send(epoch, Request::End { sandbox, reason: Reason::Killed }, sent_at))]
    }

    pub(super) fn answered(&mut self, sent: &Send, answer: Answer, now: i64) -> Vec<Effect> {
        let sent_at = if self.mutant == Mutant::CountsFromAnswer { self.clock(now) } else { sent.sent_at };
        if matches!(sent.request, Request::Insert { .. }) {
            self.inserting -= 1;
        }
        match (sent.request, answer) {
            (Request::ReadEpoch, Answer::Epoch(epoch)) if self.own.next_step() == NextStep::Join => {
                self.own.asks_to_join(epoch);
                return vec![Effect::Send(self.send(epoch, Request::Join, self.clock(now)))];
            }
            (Request::Join, Answer::Joined(Ok(epoch))) => {
                self.joined(epoch, sent_at);
                return vec![Effect::Send(self.send(epoch, Request::ReadOwn, self.clock(now)))];
            }
            (Request::Renew, Answer::Renewed(answer)) => self.own.renewed(sent.epoch, answer, sent_at),
            (Request::ReadOwn, Answer::Own(rows)) => return self.compare(sent, &rows, now),
            (Request::Insert { session }, Answer::Inserted(sandbox)) => return self.begin(sandbox, session, now),
            (Request::Insert { .. }, Answer::Taken { server, sandbox }) => {
                return vec![Effect::Ask { server, sandbox }];
            }
            (Request::MarkRunning { sandbox }, answer) => return self.marked(sandbox, answer == Answer::Done),
            _ => {}
        }
        Vec::new()
    }

    fn joined(&mut self, epoch: Epoch, sent_at: ServerTime) {
        if self.mutant == Mutant::IgnoresGap {
            // As if every number in between had been told.
            for missed in self.last_epoch.0 + 1..epoch.0 {
                self.own.asks_to_join(Epoch(missed - 1));
                self.own.joined(Epoch(missed), sent_at);
            }
            self.own.asks_to_join(Epoch(epoch.0 - 1));
        }
        self.own.joined(epoch, sent_at);
        self.last_epoch = epoch;
    }

    /// The row is there; now the sandbox.
    fn begin(&mut self, sandbox: usize, session: Option<u32>, now: i64) -> Vec<Effect> {
        let sent_at = self.clock(now);
        let Some(epoch) = self.own.writes_as(sent_at) else { return Vec::new() };
        self.machine.insert(sandbox);
        self.creating.insert(sandbox, session);
        vec![Effect::Send(self.send(epoch, Request::MarkRunning { sandbox }, sent_at))]
    }

    fn marked(&mut self, sandbox: usize, is_done: bool) -> Vec<Effect> {
        let Some(session) = self.creating.remove(&sandbox) else { return Vec::new() };
        if !is_done || !self.machine.contains(&sandbox) {
            self.machine.remove(&sandbox);
            return Vec::new();
        }
        self.known.insert(sandbox, session);
        vec![Effect::Acknowledge { sandbox }]
    }

    /// Makes the machine and the rows agree, as they were when the rows were asked for.
    fn compare(&mut self, sent: &Send, rows: &[(usize, State)], now: i64) -> Vec<Effect> {
        let at = self.clock(now);
        if self.own.writes_as(at) != Some(sent.epoch) {
            return Vec::new();
        }
        let is_settling = self.own.next_step() == NextStep::Settle(sent.epoch);
        let live = |sandbox: &usize| rows.iter().any(|(live, _)| live == sandbox);
        let gone: Vec<usize> = sent.machine.iter().copied().filter(|sandbox| !live(sandbox)).collect();
        if !(is_settling && self.mutant == Mutant::SettlesWithoutRemoving) {
            for sandbox in &gone {
                self.removed_on_return += u32::from(is_settling && self.machine.remove(sandbox));
                self.machine.remove(sandbox);
                self.known.remove(sandbox);
            }
        }
        let mut effects = Vec::new();
        let before = std::mem::take(&mut self.suspects);
        for (sandbox, state) in rows.iter().filter(|(sandbox, _)| !self.creating.contains_key(sandbox)) {
            let is_there = self.machine.contains(sandbox) && *state == State::Running;
            if is_there {
                // The session is read from the row.
                self.known.entry(*sandbox).or_insert(None);
            } else if is_settling || (before.contains(sandbox) && self.inserting == 0) {
                self.machine.remove(sandbox);
                let request = Request::End { sandbox: *sandbox, reason: Reason::Lost };
                effects.push(Effect::Send(self.send(sent.epoch, request, at)));
            } else {
                self.suspects.insert(*sandbox);
            }
        }
        self.own.settled(sent.epoch);
        effects
    }

    fn send(&self, epoch: Epoch, request: Request, sent_at: ServerTime) -> Send {
        let machine = if request == Request::ReadOwn { self.machine.clone() } else { BTreeSet::new() };
        Send { from: self.number, process: self.process, epoch, request, sent_at, machine }
    }
}
