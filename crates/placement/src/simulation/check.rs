//! What must hold after every step.

use std::collections::BTreeMap;

use super::database::{Reason, State};
use super::world::World;
use crate::membership::DatabaseTime;

impl World {
    /// The first rule that doesn't hold.
    pub(super) fn check(&self) -> Option<String> {
        self.database
            .violation
            .clone()
            .or_else(|| self.check_leases())
            .or_else(|| self.check_machines())
            .or_else(|| self.check_sessions())
            .or_else(|| self.check_acknowledged())
    }

    /// Who believes in a lease has one.
    fn check_leases(&self) -> Option<String> {
        self.servers.iter().enumerate().filter(|(_, server)| server.is_running).find_map(|(number, server)| {
            let epoch = server.own.writes_as(server.clock(self.now))?;
            let is_held = self.database.members[number].allows(epoch, DatabaseTime(self.now));
            (!is_held).then(|| format!("server {number} believes in a lease that it doesn't hold, epoch {}", epoch.0))
        })
    }

    /// A server that decides has removed what was given up in its name.
    fn check_machines(&self) -> Option<String> {
        self.servers.iter().enumerate().filter(|(_, server)| server.is_running).find_map(|(number, server)| {
            server.own.decides_as(server.clock(self.now))?;
            let is_given_up = |sandbox: &&usize| self.database.rows[**sandbox].state == State::Ended(Reason::NodeLost);
            let left = server.machine.iter().find(is_given_up)?;
            Some(format!("sandbox {left} was given up and is still on server {number}"))
        })
    }

    /// Callers of a session reach at most one sandbox, whichever server they ask.
    fn check_sessions(&self) -> Option<String> {
        let mut reached: BTreeMap<u32, usize> = BTreeMap::new();
        for server in self.servers.iter().filter(|server| server.serves(self.now)) {
            for sandbox in server.known.keys().filter(|sandbox| server.machine.contains(sandbox)) {
                let Some(session) = self.database.rows[*sandbox].session else { continue };
                if let Some(other) = reached.insert(session, *sandbox) {
                    return Some(format!("session {session} has two sandboxes, {other} and {sandbox}"));
                }
            }
        }
        None
    }

    /// A sandbox that somebody was told of ends only for a reason.
    fn check_acknowledged(&self) -> Option<String> {
        self.acknowledged.iter().find_map(|sandbox| {
            let row = self.database.rows.get(*sandbox);
            let is_explained = match row.map(|row| row.state) {
                None => false,
                Some(State::Ended(Reason::Lost)) => self.gone_rightly.contains(sandbox),
                Some(_) => true,
            };
            (!is_explained).then(|| format!("sandbox {sandbox} was acknowledged and vanished: {row:?}"))
        })
    }

    /// After everything was repaired and some time has passed.
    pub(super) fn check_at_rest(&self) -> Option<String> {
        for (number, server) in self.servers.iter().enumerate() {
            if server.own.decides_as(server.clock(self.now)).is_none() {
                return Some(format!("server {number} has not come back"));
            }
            let live = |sandbox: usize| {
                let row = &self.database.rows[sandbox];
                row.server == number && row.state == State::Running
            };
            if let Some(left) = server.machine.iter().find(|sandbox| !live(**sandbox)) {
                return Some(format!("sandbox {left} is left on server {number}"));
            }
            let missing = (0..self.database.rows.len()).find(|row| live(*row) && !server.machine.contains(row));
            if let Some(missing) = missing {
                return Some(format!("sandbox {missing} has a row and is not on server {number}"));
            }
        }
        let creating = self.database.rows.iter().position(|row| row.state == State::Creating);
        creating.map(|sandbox| format!("sandbox {sandbox} is being created for ever"))
    }
}
