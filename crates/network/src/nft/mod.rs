//! nftables as netlink messages. A transaction is one atomic batch of changes to one table in family inet.

mod expression;
mod listing;

use std::net::Ipv4Addr;

use self::expression::put_verdict;
pub(super) use self::expression::{Expression, Meta, SetId, Verdict};
pub(super) use self::listing::{Chain, chains, interfaces_in, tables};
use super::netlink::{ACK, APPEND, Attributes, Batch, CREATE, NetlinkError, Socket};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const DEL_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const DEL_CHAIN: u16 = SUBSYSTEM | 5;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const DEL_RULE: u16 = SUBSYSTEM | 8;
const NEW_SET: u16 = SUBSYSTEM | 9;
const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
const GET_ELEMENT: u16 = SUBSYSTEM | 13;
const DEL_ELEMENT: u16 = SUBSYSTEM | 14;

const FAMILY_ANY: u8 = 0;
/// IPv4 and IPv6 in one table.
pub(super) const FAMILY_INET: u8 = 1;
/// IPv4 only; also the value of `meta nfproto` for an IPv4 packet.
pub(super) const FAMILY_IPV4: u8 = 2;
/// The value of `meta nfproto` for an IPv6 packet.
pub(super) const FAMILY_IPV6: u8 = 10;

const LIST_ELEMENT: u16 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const NAME_LENGTH: usize = 16;
/// An attribute must be smaller than 64 KiB, and a network takes 44 bytes.
const ELEMENTS_PER_MESSAGE: usize = 1000;
/// These numbers tell `nft list` how to print a key. The kernel ignores them.
const TYPE_IPV4: u32 = 7;
const TYPE_INTERFACE: u32 = 41;
const TYPE_VERDICT: u32 = 0xffff_ff00;

const SET_ANONYMOUS: u32 = 0x01;
const SET_CONSTANT: u32 = 0x02;
const SET_INTERVAL: u32 = 0x04;
const SET_MAP: u32 = 0x08;
const SET_DYNAMIC: u32 = 0x20;
const ELEMENT_INTERVAL_END: u32 = 1;

/// Connection states, as bits.
pub(super) const STATE_ESTABLISHED: u32 = 2;
pub(super) const STATE_RELATED: u32 = 4;
pub(super) const STATE_NEW: u32 = 8;

/// The status bit of a connection whose destination was rewritten.
pub(super) const STATUS_REDIRECTED: u32 = 0x20;

/// Where in the path of a packet a base chain runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Postrouting = 4,
}

/// Makes a chain a base chain, which the kernel calls by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) kind: &'static str,
    pub(super) hook: Hook,
    pub(super) priority: i32,
}

/// A range of addresses. Both ends are included.
pub(super) type Range = (Ipv4Addr, Ipv4Addr);

/// A batch of changes to one table that takes effect completely or not at all.
#[derive(Debug)]
pub(super) struct Transaction<'t> {
    table: &'t str,
    batch: Batch,
    sets: u32,
}

impl<'t> Transaction<'t> {
    pub(super) fn new(table: &'t str) -> Self {
        let mut batch = Batch::default();
        batch.push("begin a change of nftables", BATCH_BEGIN, 0, &batch_header(), |_| {});
        Self { table, batch, sets: 0 }
    }

    /// Sends the batch.
    pub(super) fn commit(mut self, socket: &mut Socket) -> Result<(), NetlinkError> {
        // The kernel always reports errors. An acknowledgement also shows that it processed the batch at all. The end
        // message can request one only since 6.10, so a change without effect does.
        self.push("confirm a change of nftables", NEW_TABLE, CREATE | ACK, |_| {});
        self.finish(socket)
    }

    /// Sends the batch and removes the table.
    pub(super) fn commit_without_table(mut self, socket: &mut Socket) -> Result<(), NetlinkError> {
        self.push("remove an nftables table", DEL_TABLE, ACK, |_| {});
        self.finish(socket)
    }

    /// Has the kernel validate the batch without applying it: a batch without an end message is never applied.
    pub(super) fn rehearse(mut self, socket: &mut Socket) -> Result<(), NetlinkError> {
        self.push("rehearse a change of nftables", NEW_TABLE, CREATE | ACK, |_| {});
        socket.transact(&self.batch)
    }

    fn finish(mut self, socket: &mut Socket) -> Result<(), NetlinkError> {
        self.batch.push("end a change of nftables", BATCH_END, 0, &batch_header(), |_| {});
        socket.transact(&self.batch)
    }

    /// Every nftables message starts with the name of the table.
    fn push(&mut self, what: &'static str, kind: u16, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let table = self.table;
        self.batch.push(what, kind, flags, &family_header(FAMILY_INET), |attributes| {
            attributes.text(1, table);
            fill(attributes);
        });
    }

    pub(super) fn ensure_table(&mut self) {
        self.push("make an nftables table", NEW_TABLE, CREATE, |_| {});
    }

    pub(super) fn ensure_chain(&mut self, name: &str, base: Option<Base>) {
        self.push("make an nftables chain", NEW_CHAIN, CREATE, |chain| {
            chain.text(3, name);
            if let Some(base) = base {
                chain.nest(4, |hook| {
                    hook.network_u32(1, base.hook as u32);
                    hook.network_u32(2, base.priority.cast_unsigned());
                });
                chain.text(7, base.kind);
            }
        });
    }

    /// Removes all rules of the chain.
    pub(super) fn flush_chain(&mut self, name: &str) {
        self.push("empty an nftables chain", DEL_RULE, 0, |rule| rule.text(2, name));
    }

    pub(super) fn delete_chain(&mut self, name: &str) {
        self.push("remove an nftables chain", DEL_CHAIN, 0, |chain| chain.text(3, name));
    }

    pub(super) fn rule(&mut self, chain: &str, expressions: &[Expression<'_>]) {
        self.push("add an nftables rule", NEW_RULE, CREATE | APPEND, |rule| {
            rule.text(2, chain);
            rule.nest(4, |list| expressions.iter().for_each(|expression| expression.encode(list)));
        });
    }

    /// Creates a map from interface names to verdicts.
    pub(super) fn ensure_verdict_map(&mut self, name: &str) {
        self.ensure_set(name, SET_MAP, TYPE_INTERFACE, NAME_LENGTH, |set| set.network_u32(6, TYPE_VERDICT));
    }

    /// Creates a set of interface names.
    pub(super) fn ensure_interface_set(&mut self, name: &str) {
        self.ensure_set(name, 0, TYPE_INTERFACE, NAME_LENGTH, |_| {});
    }

    /// Creates a set of interface names to which rules add while packets pass.
    pub(super) fn ensure_counting_set(&mut self, name: &str, size: u32) {
        self.ensure_set(name, SET_DYNAMIC, TYPE_INTERFACE, NAME_LENGTH, |set| {
            set.nest(9, |description| description.network_u32(1, size));
        });
    }

    /// Creates an anonymous set of addresses for the rule that follows. The ranges must be sorted and must not touch.
    pub(super) fn address_set(&mut self, ranges: &[Range]) -> SetId {
        let flags = SET_ANONYMOUS | SET_CONSTANT | SET_INTERVAL;
        let id = self.ensure_set("__set%d", flags, TYPE_IPV4, size_of::<u32>(), |_| {});
        for part in ranges.chunks(ELEMENTS_PER_MESSAGE / 2) {
            self.push("fill an nftables set", NEW_ELEMENT, CREATE, |elements| {
                elements.text(2, "__set%d");
                elements.network_u32(4, id.0);
                elements.nest(3, |list| part.iter().for_each(|range| put_range(list, *range)));
            });
        }
        id
    }

    pub(super) fn add_interface(&mut self, set: &str, interface: &str) {
        self.push("add to an nftables set", NEW_ELEMENT, CREATE, |elements| {
            elements.text(2, set);
            put_name_element(elements, interface, None);
        });
    }

    pub(super) fn add_verdict(&mut self, map: &str, interface: &str, verdict: Verdict<'_>) {
        self.push("add to an nftables map", NEW_ELEMENT, CREATE, |elements| {
            elements.text(2, map);
            put_name_element(elements, interface, Some(verdict));
        });
    }

    pub(super) fn delete_interface(&mut self, set: &str, interface: &str) {
        self.push("remove from an nftables set", DEL_ELEMENT, 0, |elements| {
            elements.text(2, set);
            put_name_element(elements, interface, None);
        });
    }

    fn ensure_set(
        &mut self,
        name: &str,
        flags: u32,
        key_type: u32,
        key_length: usize,
        fill: impl FnOnce(&mut Attributes<'_>),
    ) -> SetId {
        self.sets += 1;
        let id = self.sets;
        self.push("make an nftables set", NEW_SET, CREATE, |set| {
            set.text(2, name);
            set.network_u32(3, flags);
            set.network_u32(4, key_type);
            set.network_u32(5, u32::try_from(key_length).expect("a key has at most 64 bytes"));
            set.network_u32(10, id);
            set.bytes(13, &print_hint(key_type));
            fill(set);
        });
        SetId(id)
    }
}

fn put_range(list: &mut Attributes<'_>, (first, last): Range) {
    list.nest(LIST_ELEMENT, |element| element.nest(1, |key| key.bytes(DATA_VALUE, &first.octets())));
    // The end of a range is the first address after it. A range up to the very last address has no end element.
    if let Some(after) = last.to_bits().checked_add(1) {
        list.nest(LIST_ELEMENT, |element| {
            element.nest(1, |key| key.bytes(DATA_VALUE, &after.to_be_bytes()));
            element.network_u32(3, ELEMENT_INTERVAL_END);
        });
    }
}

fn put_name_element(elements: &mut Attributes<'_>, interface: &str, verdict: Option<Verdict<'_>>) {
    elements.nest(3, |list| {
        list.nest(LIST_ELEMENT, |element| {
            element.nest(1, |key| key.bytes(DATA_VALUE, &interface_key(interface)));
            if let Some(verdict) = verdict {
                element.nest(2, |value| put_verdict(value, verdict));
            }
        });
    });
}

/// Tells `nft list` the byte order of a set's keys, without which it prints no interface names. It is one attribute of
/// kind 0 and length 4 whose value is 1 for host order and 2 for network order. The kernel only stores it.
fn print_hint(key_type: u32) -> [u8; 6] {
    let order: u32 = if key_type == TYPE_INTERFACE { 1 } else { 2 };
    let [a, b, c, d] = order.to_ne_bytes();
    [0, 4, a, b, c, d]
}

/// An interface's name in the form that a register holds.
fn interface_key(name: &str) -> [u8; NAME_LENGTH] {
    let mut key = [0; NAME_LENGTH];
    for (slot, byte) in key.iter_mut().zip(name.bytes().take(NAME_LENGTH - 1)) {
        *slot = byte;
    }
    key
}

fn family_header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

/// The resource id of a batch names the subsystem that it is for.
fn batch_header() -> [u8; 4] {
    [0, 0, 0, 10]
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{attribute, attributes};
    use super::*;

    #[test]
    fn a_range_has_a_start_and_the_first_address_after_it() {
        let mut batch = Batch::default();
        batch.push("x", 0, 0, &[], |list| {
            put_range(list, (Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(10, 255, 255, 255)));
            put_range(list, (Ipv4Addr::new(240, 0, 0, 0), Ipv4Addr::BROADCAST));
        });
        let key = |element| attribute(attribute(element, 1).unwrap(), 1).unwrap();
        let keys: Vec<_> = attributes(&batch.bytes()[16..])
            .map(|(_, element)| (key(element), attribute(element, 3).is_some()))
            .collect();
        assert_eq!(keys, [(&[10, 0, 0, 0][..], false), (&[11, 0, 0, 0], true), (&[240, 0, 0, 0], false)]);
    }

    #[test]
    fn interface_names_are_padded_and_never_overflow() {
        assert_eq!(&interface_key("eth0")[..5], b"eth0\0");
        assert_eq!(interface_key("a-name-much-too-long-for-linux")[15], 0);
    }
}
