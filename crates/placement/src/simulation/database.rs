//! The database: the rows of servers and of sandboxes. Each request is one transaction.

use super::Mutant;
use crate::membership::{DatabaseTime, Epoch, LeaseLost, Member, Terms};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Creating,
    Running,
    Ended(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Killed,
    /// Not on the machine.
    Lost,
    NodeLost,
}

/// Its number is its place in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) server: usize,
    pub(super) session: Option<u32>,
    pub(super) state: State,
}

impl Row {
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.state, State::Ended(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    ReadEpoch,
    /// After the epoch that the message names.
    Join,
    Renew,
    /// The live rows of the server.
    ReadOwn,
    Insert {
        session: Option<u32>,
    },
    MarkRunning {
        sandbox: usize,
    },
    End {
        sandbox: usize,
        reason: Reason,
    },
    GiveUpOthers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Epoch(Epoch),
    Joined(Result<Epoch, LeaseLost>),
    Renewed(Result<(), LeaseLost>),
    Own(Vec<(usize, State)>),
    Inserted(usize),
    /// The session has a live sandbox on this server.
    Taken {
        server: usize,
        sandbox: usize,
    },
    Done,
    /// The epoch is over, or the row has ended.
    Refused,
    /// No answer.
    Lost,
}

#[derive(Debug)]
pub(super) struct Database {
    pub(super) members: Vec<Member>,
    pub(super) rows: Vec<Row>,
    /// When each server was last heard, kept apart from the rules, for the checks.
    pub(super) heard: Vec<Option<i64>>,
    /// The first thing that a rule allowed and should not have.
    pub(super) violation: Option<String>,
    pub(super) given_up: u32,
    pub(super) refused_writes: u32,
    terms: Terms,
    mutant: Mutant,
}

impl Database {
    pub(super) fn new(servers: usize, terms: Terms, mutant: Mutant) -> Self {
        Self {
            members: vec![Member::new(terms, DatabaseTime(0)); servers],
            rows: Vec::new(),
            heard: vec![None; servers],
            violation: None,
            given_up: 0,
            refused_writes: 0,
            terms,
            mutant,
        }
    }

    pub(super) fn handle(&mut self, from: usize, epoch: Epoch, request: Request, now: i64) -> Answer {
        match request {
            Request::ReadEpoch => Answer::Epoch(self.members[from].epoch),
            Request::Join => {
                let joined = self.members[from].join(epoch, DatabaseTime(now));
                if joined.is_ok() {
                    self.heard[from] = Some(now);
                }
                Answer::Joined(joined)
            }
            Request::Renew => Answer::Renewed(self.renew(from, epoch, now)),
            _ if !self.may_write(from, epoch, now) => {
                self.refused_writes += 1;
                Answer::Refused
            }
            Request::ReadOwn => Answer::Own(self.live_of(from)),
            Request::Insert { session } => self.insert(from, session),
            Request::MarkRunning { sandbox } => self.change(from, sandbox, State::Running),
            Request::End { sandbox, reason } => self.change(from, sandbox, State::Ended(reason)),
            Request::GiveUpOthers => self.give_up_others(from, now),
        }
    }

    fn renew(&mut self, from: usize, epoch: Epoch, now: i64) -> Result<(), LeaseLost> {
        let member = &mut self.members[from];
        if self.mutant == Mutant::RenewsAfterLoss {
            member.is_given_up = false;
            member.epoch = epoch;
            member.lease_until = DatabaseTime(now);
        }
        member.renew(epoch, DatabaseTime(now))?;
        self.heard[from] = Some(now);
        Ok(())
    }

    fn may_write(&mut self, from: usize, epoch: Epoch, now: i64) -> bool {
        let is_allowed = self.mutant == Mutant::TakesAnyEpoch || self.members[from].allows(epoch, DatabaseTime(now));
        let lease = i64::try_from(self.terms.lease.as_millis()).unwrap();
        let is_right = self.members[from].epoch == epoch && self.heard[from].is_some_and(|at| now <= at + lease);
        if is_allowed && !is_right {
            self.violation.get_or_insert_with(|| format!("server {from} wrote without a lease, in epoch {}", epoch.0));
        }
        is_allowed
    }

    fn live_of(&self, server: usize) -> Vec<(usize, State)> {
        let own = |(_, row): &(usize, &Row)| row.server == server && row.is_live();
        self.rows.iter().enumerate().filter(own).map(|(sandbox, row)| (sandbox, row.state)).collect()
    }

    fn insert(&mut self, server: usize, session: Option<u32>) -> Answer {
        let taken = self.rows.iter().position(|row| row.is_live() && session.is_some() && row.session == session);
        if let Some(sandbox) = taken {
            return Answer::Taken { server: self.rows[sandbox].server, sandbox };
        }
        self.rows.push(Row { server, session, state: State::Creating });
        Answer::Inserted(self.rows.len() - 1)
    }

    fn change(&mut self, from: usize, sandbox: usize, state: State) -> Answer {
        let row = &mut self.rows[sandbox];
        if row.server != from || !row.is_live() {
            self.refused_writes += 1;
            return Answer::Refused;
        }
        row.state = state;
        Answer::Done
    }

    fn give_up_others(&mut self, from: usize, now: i64) -> Answer {
        for other in (0..self.members.len()).filter(|other| *other != from) {
            let mut at = DatabaseTime(now);
            if self.mutant == Mutant::HasNoGrace {
                at = at.plus(self.terms.grace);
            }
            if self.members[other].give_up(at).is_err() {
                continue;
            }
            let absence = i64::try_from((self.terms.lease + self.terms.grace).as_millis()).unwrap();
            if self.heard[other].is_some_and(|heard| now <= heard + absence) {
                self.violation.get_or_insert_with(|| format!("server {other} was given up too early"));
            }
            for row in self.rows.iter_mut().filter(|row| row.server == other && row.is_live()) {
                row.state = State::Ended(Reason::NodeLost);
                self.given_up += 1;
            }
        }
        Answer::Done
    }
}
