//! The interfaces through which sandboxes reach the outside. Replies arrive on them and must be forwarded. The kernel
//! allows this per interface, and the host's global setting stays as it is.

use super::names::{Tag, is_node_table};
use super::netlink::{NetlinkError, Socket};
use super::nft::{self, Transaction};
use super::route::Link;
use super::rules::SWITCHED;
use super::sysctl::{self, SysctlError, forwarding};

/// The name of the setting for the whole host.
const EVERYWHERE: &str = "all";

/// Forwarding could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A kernel setting could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// Enables forwarding on these interfaces. The interfaces on which it was off are recorded in the node's table first. A
/// rule there also prevents the host from routing for others through them.
pub(super) fn switch_on(socket: &mut Socket, tag: Tag, uplinks: &[Link]) -> Result<(), UplinkError> {
    let mut off = Vec::new();
    for link in uplinks {
        // An interface may disappear in the meantime. Then it needs no forwarding.
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

/// If something has made the host a router since (as Docker does), forwarding is wanted. Then we no longer restrict or
/// undo it.
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

/// Removes the node's table and restores the uplinks' settings, or leaves that duty to another node's table.
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
