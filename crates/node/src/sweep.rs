//! Removes what no running process claims: homes of commands that are gone, unassigned sandboxes of a server that was
//! killed, and objects on the host that have this state directory's tag but no record.
//!
//! While a server runs, only the server removes objects without a record, because it may be working on some of them. It
//! sweeps regularly.

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

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Homes of commands that were killed.
    pub homes: usize,
    /// Executions, with or without a record.
    pub executions: usize,
}

/// Why a sweep failed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The host lacks something.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The leftovers could not be listed.
    #[error("could not read what an earlier process left")]
    Inspect(#[source] io::Error),
}

/// Sweeps without opening a node.
pub fn sweep_abandoned(state: StateRoot, disk: &DiskOptions) -> Result<SweepReport, SweepError> {
    let network = NetworkConfig::new(state.tag().parse().map_err(HostError::from)?);
    let host = Host::open(state, network, disk)?;
    let report = sweep(&host, Sweeper::Other).map_err(SweepError::Inspect);
    host.close();
    report
}

/// The process that sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweeper {
    /// The server of the state directory.
    Server,
    /// A command, with or without a running server.
    Other,
}

/// Sweeps everything that nothing claims. May run while sandboxes are created and removed.
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

/// The remains of an execution, from its record if there is one.
pub(crate) fn remains_of(home: &Home, execution: &ExecutionId) -> Remains {
    match Record::load(&home.execution_directory(execution)) {
        Ok(record) => Remains::of(&record, home),
        Err(_) => Remains::unknown(execution.clone(), home, is_layer_of_another(home, execution)),
    }
}

/// Whether another execution uses the writable layer with this name, or may use it.
fn is_layer_of_another(home: &Home, execution: &ExecutionId) -> bool {
    let uses = |other: &ExecutionId| match Record::load(&home.execution_directory(other)) {
        Ok(record) => record.area.as_deref() == Some(execution.as_str()),
        Err(_) => home.execution_directory(other).exists(),
    };
    home.executions().map_or(true, |all| all.iter().filter(|other| *other != execution).any(uses))
}

/// Executions that have something on the host but no record. A record is written first and removed last, so the objects
/// are listed before the records. A slot is recycled before its record is removed, so held slots are read last.
///
/// The name of an earlier execution may still name the writable layer of a later one. Its cgroups and its slot are
/// strays all the same, but the layer is not.
fn strays(host: &Host) -> io::Result<Vec<Remains>> {
    let mut found: BTreeSet<String> = host.cgroups.list()?.into_iter().collect();
    let claims = host.claimed_slots()?;
    let areas: BTreeSet<String> = host.disk.area_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let known: BTreeSet<String> = all_executions(&host.state)?.into_iter().map(String::from).collect();
    // Read twice: a layer that moves from one execution to the next in between may be missed once, but not twice.
    let areas_in_use = match (areas_in_use(host), areas_in_use(host)) {
        (Ok(once), Ok(again)) => &once | &again,
        // The unreadable record may name any of them.
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "cannot read all records; sweeping no files");
            areas.clone()
        }
    };
    found.extend(areas.difference(&areas_in_use).cloned());
    let in_hand = host.held_slots();
    // Slots of zygotes that are gone while their sandboxes are not. An unreadable record may name any of them.
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

/// The layers that records name. A sandbox that was stopped and resumed uses the layer of its first execution.
fn areas_in_use(host: &Host) -> io::Result<BTreeSet<String>> {
    Ok(all_records(&host.state.homes())?.into_iter().filter_map(|record| record.area).collect())
}
