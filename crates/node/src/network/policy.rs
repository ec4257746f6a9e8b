//! A sandbox's own network policy as a chain of its slot: allow, then deny, then the rest. Replaced as a whole in one
//! transaction, so that there is no moment with half a policy.

use std::net::Ipv4Addr;

use isopod_wire::{Cidr, NetworkPolicy};

use super::names::{Slot, Tag};
use super::nft::{Expression as E, Range, Transaction, Verdict};
use super::rules::{ADMITTED, POLICIES};

/// Whether the policy asks for more than what holds for every sandbox.
pub(super) fn is_default(policy: &NetworkPolicy) -> bool {
    !policy.deny_internet && policy.allow_out.is_empty() && policy.deny_out.is_empty()
}

/// Puts the policy in force, also for flows that are already open.
pub(super) fn replace(transaction: &mut Transaction<'_>, tag: Tag, slot: Slot, policy: &NetworkPolicy) {
    let chain = slot.chain();
    transaction.ensure_chain(&chain, None);
    transaction.flush_chain(&chain);
    dialled(transaction, &chain, &policy.allow_out, Verdict::Goto(ADMITTED));
    dialled(transaction, &chain, &policy.deny_out, Verdict::Drop);
    if policy.deny_internet {
        transaction.rule(&chain, &[E::Then(Verdict::Drop)]);
    }
    transaction.add_verdict(POLICIES, &tag.interface(slot), Verdict::Jump(&chain));
}

/// Takes the slot's chain away, whether or not it is there: what is first made can always be removed.
pub(super) fn remove(transaction: &mut Transaction<'_>, tag: Tag, slot: Slot) {
    let (chain, interface) = (slot.chain(), tag.interface(slot));
    transaction.ensure_chain(&chain, None);
    transaction.add_verdict(POLICIES, &interface, Verdict::Jump(&chain));
    transaction.delete_interface(POLICIES, &interface);
    transaction.flush_chain(&chain);
    transaction.delete_chain(&chain);
}

/// A rule for flows that were opened to these networks.
fn dialled(transaction: &mut Transaction<'_>, chain: &str, networks: &[Cidr], verdict: Verdict<'_>) {
    if networks.is_empty() {
        return;
    }
    let set = transaction.address_set(&merge(networks.iter()));
    transaction.rule(chain, &[E::LoadDialled, E::In(set), E::Then(verdict)]);
}

/// The networks as sorted ranges that neither overlap nor touch, which is what a kernel set takes.
pub(super) fn merge<'c>(networks: impl Iterator<Item = &'c Cidr>) -> Vec<Range> {
    let mut ranges: Vec<Range> = networks.map(|network| (network.first(), network.last())).collect();
    ranges.sort_unstable();
    let mut merged: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(previous) if touches(previous.1, first) => previous.1 = previous.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn touches(last: Ipv4Addr, first: Ipv4Addr) -> bool {
    first.to_bits() <= last.to_bits().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_and_overlaps_become_one_range() {
        let networks: Vec<Cidr> =
            ["10.0.1.0/24", "10.0.0.0/24", "10.0.0.7", "9.0.0.0/8"].map(|text| text.parse().unwrap()).into();
        assert_eq!(merge(networks.iter()), [(Ipv4Addr::new(9, 0, 0, 0), Ipv4Addr::new(10, 0, 1, 255))]);
        assert_eq!(merge([Cidr::ALL].iter()), [(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)]);
    }

    proptest! {
        #[test]
        fn merged_ranges_hold_the_same_addresses(
            networks in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..20),
            probe: u32,
        ) {
            let networks: Vec<_> = networks.into_iter().map(|(a, p)| Cidr::new(Ipv4Addr::from_bits(a), p)).collect();
            let ranges = merge(networks.iter());
            let apart = |pair: &[Range]| pair[0].1.to_bits() + 1 < pair[1].0.to_bits();
            prop_assert!(ranges.windows(2).all(apart));
            let probes = networks.iter().flat_map(|n| [n.first(), n.last()]).chain([Ipv4Addr::from_bits(probe)]);
            for probe in probes {
                let before = networks.iter().any(|n| n.first() <= probe && probe <= n.last());
                prop_assert_eq!(before, ranges.iter().any(|r| r.0 <= probe && probe <= r.1));
            }
        }
    }
}
