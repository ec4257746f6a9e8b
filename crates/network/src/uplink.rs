//! The interfaces by which sandboxes reach the world. Answers come in on them and must be forwarded, which the kernel
//! allows per interface; the host's global switch stays as it is.

use super::names::{Tag, is_node_table};
use super::netlink::{NetlinkError, Socket};
use super::nft::{self, Transaction};
use super::route::Link;
use super::rules::SWITCHED;
use super::sysctl::{self, SysctlError, forwarding};

/// What holds for the host as a whole.
const EVERYWHERE: &str = "all";

/// Forwarding could not be arranged.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// A request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A setting failed.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// Makes these interfaces forward. Which ones did not before is recorded in the node's table first, where a rule also
/// keeps the host from routing for others by them.
pub(super) fn switch_on(socket: &mut Socket, tag: Tag, uplinks: &[Link]) -> Result<(), UplinkError> {
    let mut off = Vec::new();
    for link in uplinks {
        // One may go while we look; then nobody needs it.
        if sysctl::is_on_if_present(&forwarding(&link.name))? == Some(false) {
            off.push(link.name.as_str());
        }
    }
    if off.is_empty() {
        return Ok(());
    }
    let table = tag.table();
    let mut transaction = Transaction::new(&table);
    off.iter().for_each(|name| transaction.add_interface(SWITCHED, name));
    transaction.commit(socket)?;
    for name in off {
        sysctl::write_if_present(&forwarding(name), "1")?;
    }
    Ok(())
}

/// Somebody has since made the host a router (Docker does): then that is wanted, and no longer ours to guard or undo.
pub(super) fn yield_to_routing_host(socket: &mut Socket, tag: Tag) -> Result<(), UplinkError> {
    if !sysctl::is_on(&forwarding(EVERYWHERE))? {
        return Ok(());
    }
    let table = tag.table();
    let names = nft::interfaces_in(socket, &table, SWITCHED)?;
    if names.is_empty() {
        return Ok(());
    }
    let mut transaction = Transaction::new(&table);
    names.iter().for_each(|name| transaction.delete_interface(SWITCHED, name));
    Ok(transaction.commit(socket)?)
}

/// Removes the node's table and gives the uplinks back as they were, or hands that duty to another node's table.
pub(super) fn remove_table(socket: &mut Socket, tag: Tag) -> Result<(), UplinkError> {
    let table = tag.table();
    yield_to_routing_host(socket, tag)?;
    let switched = nft::interfaces_in(socket, &table, SWITCHED)?;
    let heir = nft::tables(socket)?.into_iter().find(|name| is_node_table(name) && *name != table);
    if let Some(heir) = &heir
        && !switched.is_empty()
    {
        let mut transaction = Transaction::new(heir);
        switched.iter().for_each(|name| transaction.add_interface(SWITCHED, name));
        transaction.commit(socket)?;
    }
    if heir.is_none() {
        for name in &switched {
            sysctl::write_if_present(&forwarding(name), "0")?;
        }
    }
    let mut transaction = Transaction::new(&table);
    transaction.ensure_table();
    Ok(transaction.commit_without_table(socket)?)
}
