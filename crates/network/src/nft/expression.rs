//! The few expressions that our rules consist of. All of them work on register 1.

use super::super::netlink::Attributes;
use super::{DATA_VALUE, DATA_VERDICT, LIST_ELEMENT};

const REGISTER_VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;

/// What happens to a packet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Verdict<'a> {
    Drop,
    Accept,
    /// Continues in that chain and returns.
    Jump(&'a str),
    /// Continues in that chain and does not return.
    Goto(&'a str),
}

/// A property of a packet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Meta {
    InputName = 6,
    OutputName = 7,
    /// IPv4 or IPv6.
    Family = 15,
    /// TCP, UDP, …
    Transport = 16,
}

/// A set that is created in the same transaction.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SetId(pub(super) u32);

/// One step of a rule. If a comparison fails, the rule ends.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Expression<'a> {
    Load(Meta),
    /// The source address of an IPv4 packet.
    LoadSource,
    /// The destination address of an IPv4 packet.
    LoadDestination,
    /// The destination port of a TCP or UDP packet.
    LoadPort,
    LoadState,
    /// What connection tracking did to the connection, as bits.
    LoadStatus,
    /// The address that the connection was opened to. It is the same in both directions.
    LoadDialled,
    /// The interface through which this host would reply to the sender. Zero if the packet came in on another
    /// interface.
    LoadWayBack,
    Mask(&'a [u8]),
    Equal(&'a [u8]),
    NotEqual(&'a [u8]),
    In(SetId),
    InNamed(&'a str),
    /// Applies the verdict that the map holds for the loaded value, or continues if there is none.
    Map(&'a str),
    /// Counts the connections per loaded value, and continues only if there are more than the limit.
    MoreConnectionsThan(&'a str, u32),
    Masquerade,
    Then(Verdict<'a>),
}

impl Expression<'_> {
    pub(super) fn encode(&self, list: &mut Attributes<'_>) {
        match *self {
            Self::Load(meta) => put(list, "meta", |data| {
                data.network_u32(1, REGISTER_1);
                data.network_u32(2, meta as u32);
            }),
            Self::LoadSource => put_payload(list, 1, 12, 4),
            Self::LoadDestination => put_payload(list, 1, 16, 4),
            Self::LoadPort => put_payload(list, 2, 2, 2),
            Self::LoadState => put_connection(list, 0),
            Self::LoadStatus => put_connection(list, 2),
            Self::LoadDialled => put(list, "ct", |data| {
                data.network_u32(1, REGISTER_1);
                data.network_u32(2, 20);
                data.bytes(3, &[0]);
            }),
            Self::LoadWayBack => put(list, "fib", |data| {
                data.network_u32(1, REGISTER_1);
                data.network_u32(2, 1);
                data.network_u32(3, 0b1001);
            }),
            Self::Mask(mask) => put_mask(list, mask),
            Self::Equal(value) => put_comparison(list, 0, value),
            Self::NotEqual(value) => put_comparison(list, 1, value),
            Self::In(set) => put_lookup(list, "__set%d", Some(set), None),
            Self::InNamed(name) => put_lookup(list, name, None, None),
            Self::Map(name) => put_lookup(list, name, None, Some(REGISTER_VERDICT)),
            Self::MoreConnectionsThan(set, limit) => put_count(list, set, limit),
            Self::Masquerade => put(list, "masq", |_| {}),
            Self::Then(verdict) => put(list, "immediate", |data| {
                data.network_u32(1, REGISTER_VERDICT);
                data.nest(2, |value| put_verdict(value, verdict));
            }),
        }
    }
}

fn put(list: &mut Attributes<'_>, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
    list.nest(LIST_ELEMENT, |expression| put_named(expression, name, fill));
}

fn put_named(expression: &mut Attributes<'_>, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
    expression.text(1, name);
    expression.nest(2, fill);
}

fn put_connection(list: &mut Attributes<'_>, key: u32) {
    put(list, "ct", |data| {
        data.network_u32(1, REGISTER_1);
        data.network_u32(2, key);
    });
}

fn put_payload(list: &mut Attributes<'_>, base: u32, offset: u32, length: u32) {
    put(list, "payload", |data| {
        data.network_u32(1, REGISTER_1);
        data.network_u32(2, base);
        data.network_u32(3, offset);
        data.network_u32(4, length);
    });
}

fn put_mask(list: &mut Attributes<'_>, mask: &[u8]) {
    put(list, "bitwise", |data| {
        data.network_u32(1, REGISTER_1);
        data.network_u32(2, REGISTER_1);
        data.network_u32(3, u32::try_from(mask.len()).expect("a mask has at most 16 bytes"));
        data.nest(4, |value| value.bytes(DATA_VALUE, mask));
        data.nest(5, |value| value.bytes(DATA_VALUE, &vec![0; mask.len()]));
    });
}

fn put_comparison(list: &mut Attributes<'_>, operator: u32, value: &[u8]) {
    put(list, "cmp", |data| {
        data.network_u32(1, REGISTER_1);
        data.network_u32(2, operator);
        data.nest(3, |inner| inner.bytes(DATA_VALUE, value));
    });
}

fn put_lookup(list: &mut Attributes<'_>, name: &str, id: Option<SetId>, result: Option<u32>) {
    put(list, "lookup", |data| {
        data.text(1, name);
        data.network_u32(2, REGISTER_1);
        if let Some(register) = result {
            data.network_u32(3, register);
        }
        if let Some(SetId(id)) = id {
            data.network_u32(4, id);
        }
    });
}

fn put_count(list: &mut Attributes<'_>, set: &str, limit: u32) {
    put(list, "dynset", |data| {
        data.text(1, set);
        data.network_u32(3, 0);
        data.network_u32(4, REGISTER_1);
        data.nest(7, |counter| {
            put_named(counter, "connlimit", |inner| {
                inner.network_u32(1, limit);
                inner.network_u32(2, 1);
            });
        });
    });
}

pub(super) fn put_verdict(value: &mut Attributes<'_>, verdict: Verdict<'_>) {
    let (code, chain): (i32, _) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
    };
    value.nest(DATA_VERDICT, |inner| {
        inner.network_u32(1, code.cast_unsigned());
        if let Some(chain) = chain {
            inner.text(2, chain);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::netlink::{Batch, attribute, attributes, text};
    use super::*;

    #[test]
    fn a_rule_is_a_list_of_named_expressions() {
        let mut batch = Batch::default();
        let rule = [Expression::Load(Meta::InputName), Expression::Equal(b"iab12-"), Expression::Then(Verdict::Drop)];
        batch.push("x", 0, 0, &[], |list| rule.iter().for_each(|expression| expression.encode(list)));
        let names: Vec<_> = attributes(&batch.bytes()[16..]).map(|(_, e)| text(attribute(e, 1).unwrap())).collect();
        assert_eq!(names, ["meta", "cmp", "immediate"]);
    }
}
