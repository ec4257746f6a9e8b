//! Removes what no living process claims: homes of commands that are gone, unassigned sandboxes of a server that was killed, and
//! things on the host that carry this state directory's tag but have no record.
//!
//! Where a server lives, things without a record are its business: some of them it has in hand. It looks now and then.

use std::collections::BTreeSet;
use std::io;

use isopod_disk::DiskOptions;
use isopod_network::NetworkConfig;
use isopod_wire::ExecutionId;

use crate::disposal::{Remains, dispose};
use crate::home::{Home, HomeKind, all_executions, all_records};
use crate::host::{Host, HostError};
use crate::record::Record;
use crate::slot::Slot;
use crate::state::StateRoot;

/// What a sweep found and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Homes of commands that were killed.
    pub homes: usize,
    /// Executions, with or without a record.
    pub executions: usize,
}

/// Why nothing could be swept.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The host lacks something.
    #[error(transparent)]
    Host(#[from] HostError),
    /// What is left could not be looked at.
    #[error("could not look at what an earlier process left")]
    Inspect(#[source] io::Error),
}

/// Sweeps everything that is nobody's, without being a node oneself.
pub fn sweep_abandoned(state: StateRoot, disk: &DiskOptions) -> Result<SweepReport, SweepError> {
    let network = NetworkConfig::new(state.tag().parse().map_err(HostError::from)?);
    let host = Host::open(state, network, disk)?;
    let report = sweep(&host, Sweeper::Other).map_err(SweepError::Inspect);
    host.close();
    report
}

/// Who sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweeper {
    /// The server of the state directory.
    Server,
    /// A command, beside the server or without one.
    Other,
}

/// Sweeps everything that is nobody's. May run while sandboxes are made and removed.
pub(crate) fn sweep(host: &Host, sweeper: Sweeper) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    for home in Home::abandoned(&host.state)? {
        report.homes += 1;
        report.executions += sweep_home(host, home)?;
    }
    if sweeper == Sweeper::Other && Home::server_lives(&host.state) {
        return Ok(report);
    }
    for remains in strays(host)? {
        report.executions += 1;
        dispose(host, &remains);
    }
    Ok(report)
}

/// Removes everything in a home, and the home.
fn sweep_home(host: &Host, home: Home) -> io::Result<usize> {
    debug_assert!(*home.kind() != HomeKind::Server, "sandboxes of a server are adopted, not swept");
    let executions = home.executions()?;
    for execution in &executions {
        let remains = remains_of(&home, execution);
        dispose(host, &remains);
    }
    home.remove();
    Ok(executions.len())
}

/// By the record where there is one.
pub(crate) fn remains_of(home: &Home, execution: &ExecutionId) -> Remains {
    match Record::load(&home.execution_directory(execution)) {
        Ok(record) => Remains::of(&record, home),
        Err(_) => Remains::unknown(execution.clone(), home),
    }
}

/// Executions that have something on the host but a record nowhere. A record is written before anything is made and
/// goes last, so the things are looked at first. A slot is recycled before its record goes, so those are looked at
/// last.
///
/// The name of an earlier life may still name the writable layer of a later one. Its cgroups and its slot are strays all
/// the same; the layer is not.
fn strays(host: &Host) -> io::Result<Vec<Remains>> {
    let mut found: BTreeSet<String> = host.cgroups.list()?.into_iter().collect();
    let claims = host.claimed_slots()?;
    let areas: BTreeSet<String> = host.disk.area_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let known: BTreeSet<String> = all_executions(&host.state)?.into_iter().map(String::from).collect();
    // Twice: a layer that goes from one life of its sandbox to the next in between may be missed once, not two times.
    let areas_in_use = match (areas_in_use(host), areas_in_use(host)) {
        (Ok(once), Ok(again)) => &once | &again,
        // Any of them may be the one that the record means.
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "no files are swept");
            areas.clone()
        }
    };
    found.extend(areas.difference(&areas_in_use).cloned());
    let in_hand = host.held_slots();
    // Slots of zygotes that are gone, and whose sandboxes are not. A record that cannot be read may name any of them.
    let owners: BTreeSet<Slot> = match all_records(&host.state.homes()) {
        Ok(records) => records.iter().filter_map(|record| record.owner).collect(),
        Err(_) => claims.iter().map(|(slot, _)| *slot).collect(),
    };
    let is_free = |(slot, _): &(Slot, String)| !in_hand.contains(slot) && !owners.contains(slot);
    found.extend(claims.into_iter().filter(is_free).map(|(_, execution)| execution));
    let as_remains = |name: &String| {
        let execution = name.parse::<ExecutionId>().ok()?;
        Some(Remains::stray(execution, !areas_in_use.contains(name)))
    };
    Ok(found.difference(&known).filter_map(as_remains).collect())
}

/// A sandbox that was stopped and started again works on the layer of its first life.
fn areas_in_use(host: &Host) -> io::Result<BTreeSet<String>> {
    Ok(all_records(&host.state.homes())?.into_iter().filter_map(|record| record.area).collect())
}
