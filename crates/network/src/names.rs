//! The names of a node's objects on the host: its tag, its slots, and their interfaces, chains and addresses. The name
//! of an interface or a table shows which node it belongs to.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use isopod_wire::Cidr;

/// The first two addresses of a pool stay unused, so that nothing answers on the network's own address.
const FIRST_ADDRESS: u32 = 2;

/// Four hexadecimal digits that identify a node on its host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag([u8; 4]);

/// The number of one sandbox in the network of its node, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// The text is not a tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a tag of four lowercase hexadecimal digits")]
pub struct NotATag(String);

impl FromStr for Tag {
    type Err = NotATag;

    fn from_str(text: &str) -> Result<Self, NotATag> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match <[u8; 4]>::try_from(text.as_bytes()) {
            Ok(bytes) if bytes.iter().all(is_digit) => Ok(Self(bytes)),
            _ => Err(NotATag(text.to_owned())),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Tag {
    /// The prefix of the names of this node's host interfaces.
    pub(super) fn interface_prefix(self) -> String {
        format!("i{self}-")
    }

    /// The name of the host end of a slot's veth pair.
    pub(super) fn interface(self, slot: Slot) -> String {
        format!("i{self}-{slot}")
    }

    /// The slot that a host interface belongs to, if it is one of this node's.
    pub(super) fn slot_of_interface(self, name: &str) -> Option<Slot> {
        parse_slot(name.strip_prefix(&self.interface_prefix())?)
    }

    /// The name of the node's nftables table.
    pub(super) fn table(self) -> String {
        format!("isopod-{self}")
    }
}

impl Slot {
    /// The name of the chain with the slot's own rules.
    pub(super) fn chain(self) -> String {
        format!("s{self}")
    }

    /// The slot that a chain belongs to, if it is the chain of a slot.
    pub(super) fn of_chain(name: &str) -> Option<Self> {
        parse_slot(name.strip_prefix('s')?)
    }

    /// The slot's address, or `None` if the pool is too small.
    pub(super) fn address(self, pool: Cidr) -> Option<Ipv4Addr> {
        let bits = pool.first().to_bits().checked_add(FIRST_ADDRESS)?.checked_add(self.0)?;
        (bits < pool.last().to_bits()).then(|| Ipv4Addr::from_bits(bits))
    }
}

/// Whether a table belongs to a node: this one or another.
pub(super) fn is_node_table(name: &str) -> bool {
    name.strip_prefix("isopod-").is_some_and(|tag| tag.parse::<Tag>().is_ok())
}

/// Whether an interface is the host end of a slot, of this node or another one.
pub(super) fn is_node_interface(name: &str) -> bool {
    let parts = name.strip_prefix('i').and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(tag, slot)| tag.parse::<Tag>().is_ok() && parse_slot(slot).is_some())
}

/// Accepts only the spelling that we write ourselves.
fn parse_slot(digits: &str) -> Option<Slot> {
    let slot = Slot(digits.parse().ok()?);
    (slot.to_string() == digits).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_four_lowercase_digits_are_a_tag() {
        for bad in ["", "abc", "abcde", "ABCD", "g000", "ab-1", "äb"] {
            assert!(bad.parse::<Tag>().is_err(), "{bad:?} was accepted");
        }
        assert_eq!("0a9f".parse::<Tag>().unwrap().to_string(), "0a9f");
    }

    #[test]
    fn an_interface_names_its_slot_and_no_other() {
        let tag: Tag = "ab12".parse().unwrap();
        assert_eq!(tag.slot_of_interface(&tag.interface(Slot(17))), Some(Slot(17)));
        for other in ["iab12-", "iab12-01", "iab12-+1", "iab12-x", "iab13-1", "eth0", "iab12-99999999999"] {
            assert_eq!(tag.slot_of_interface(other), None, "{other}");
        }
        assert!(tag.interface(Slot(999_999_999)).len() <= 15);
        assert_eq!((Slot::of_chain("s4"), Slot::of_chain("state")), (Some(Slot(4)), None));
    }

    #[test]
    fn addresses_stay_inside_the_pool() {
        let pool: Cidr = "10.200.0.0/29".parse().unwrap();
        let found: Vec<_> = (0..8).filter_map(|slot| Slot(slot).address(pool)).map(|a| a.octets()[3]).collect();
        assert_eq!(found, [2, 3, 4, 5, 6]);
        assert_eq!(Slot(u32::MAX).address(pool), None);
        assert_eq!(Slot(0).address("255.255.255.255".parse().unwrap()), None);
    }
}
