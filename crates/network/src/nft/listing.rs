//! Lists the kernel's tables: those of other programs, for advice, and our own, to take them over after a crash.

use super::super::netlink::{NetlinkError, Socket, attribute, attributes, text};
use super::{
    DATA_VALUE, FAMILY_ANY, FAMILY_INET, GET_CHAIN, GET_ELEMENT, GET_TABLE, NEW_CHAIN, NEW_ELEMENT, NEW_TABLE,
    family_header,
};

/// A chain of any table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Chain {
    pub(in super::super) family: u8,
    pub(in super::super) table: String,
    pub(in super::super) name: String,
    /// The number of the hook, for a base chain.
    pub(in super::super) hook: Option<u32>,
    pub(in super::super) drops_by_default: bool,
}

/// The chains of all tables in all families.
pub(in super::super) fn chains(socket: &mut Socket) -> Result<Vec<Chain>, NetlinkError> {
    socket.dump("list nftables chains", GET_CHAIN, &family_header(FAMILY_ANY), |_| {}, parse_chain)
}

/// The names of the tables in family inet.
pub(in super::super) fn tables(socket: &mut Socket) -> Result<Vec<String>, NetlinkError> {
    let name = |kind, payload: &[u8]| {
        let (_, body) = body_of(NEW_TABLE, kind, payload)?;
        Some(text(attribute(body, 1)?).to_owned())
    };
    socket.dump("list nftables tables", GET_TABLE, &family_header(FAMILY_INET), |_| {}, name)
}

/// The interface names in a set. Empty if the set does not exist.
pub(in super::super) fn interfaces_in(
    socket: &mut Socket,
    table: &str,
    set: &str,
) -> Result<Vec<String>, NetlinkError> {
    let fill = |request: &mut super::super::netlink::Attributes<'_>| {
        request.text(1, table);
        request.text(2, set);
    };
    match socket.dump("list an nftables set", GET_ELEMENT, &family_header(FAMILY_INET), fill, parse_names) {
        Err(error) if error.refusal() == Some(rustix::io::Errno::NOENT) => Ok(Vec::new()),
        other => Ok(other?.concat()),
    }
}

/// The family and the attributes of a reply, if it has the wanted kind.
fn body_of(wanted: u16, kind: u16, payload: &[u8]) -> Option<(u8, &[u8])> {
    (kind == wanted).then_some((*payload.first()?, payload.get(4..)?))
}

fn parse_chain(kind: u16, payload: &[u8]) -> Option<Chain> {
    let (family, body) = body_of(NEW_CHAIN, kind, payload)?;
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
    Some(Chain {
        family,
        table: text(attribute(body, 1)?).to_owned(),
        name: text(attribute(body, 3)?).to_owned(),
        hook: attribute(body, 4).and_then(|hook| attribute(hook, 1)).and_then(number),
        drops_by_default: attribute(body, 5).and_then(number) == Some(0),
    })
}

fn parse_names(kind: u16, payload: &[u8]) -> Option<Vec<String>> {
    let (_, body) = body_of(NEW_ELEMENT, kind, payload)?;
    let keys = attributes(attribute(body, 3)?).filter_map(|(_, element)| attribute(attribute(element, 1)?, DATA_VALUE));
    Some(keys.map(|key| text(key).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_without_harm(bytes: Vec<u8>) {
            let _ = parse_chain(NEW_CHAIN, &bytes);
            let _ = parse_names(NEW_ELEMENT, &bytes);
        }
    }
}
