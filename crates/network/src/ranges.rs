//! Sets of addresses, as ranges.

use std::net::Ipv4Addr;

use isopod_wire::Cidr;

use super::nft::Range;

/// The networks as sorted ranges that neither overlap nor touch, which is the form that a kernel set needs.
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

/// The addresses of `ranges` that are in none of `removed`. Both must have the form that [`merge`] returns.
pub(super) fn subtract(ranges: &[Range], removed: &[Range]) -> Vec<Range> {
    let mut left = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        // Use 64 bits, because `next` may be one past the last address.
        let (mut next, last) = (u64::from(first.to_bits()), u64::from(last.to_bits()));
        for (gap_first, gap_last) in removed.iter().map(|(a, b)| (u64::from(a.to_bits()), u64::from(b.to_bits()))) {
            if gap_last < next || gap_first > last {
                continue;
            }
            push(&mut left, next, gap_first.wrapping_sub(1));
            next = gap_last + 1;
        }
        push(&mut left, next, last);
    }
    left
}

/// Appends a range unless it is empty.
fn push(ranges: &mut Vec<Range>, first: u64, last: u64) {
    let (Ok(first_bits), Ok(last_bits)) = (u32::try_from(first), u32::try_from(last)) else { return };
    if first_bits <= last_bits {
        ranges.push((Ipv4Addr::from_bits(first_bits), Ipv4Addr::from_bits(last_bits)));
    }
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
        fn what_is_subtracted_is_gone_and_nothing_else(
            from in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..8),
            removed in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..8),
            probe: u32,
        ) {
            let list = |pairs: Vec<(u32, u8)>| -> Vec<Cidr> {
                pairs.into_iter().map(|(a, p)| Cidr::new(Ipv4Addr::from_bits(a), p)).collect()
            };
            let (from, removed) = (list(from), list(removed));
            let left = subtract(&merge(from.iter()), &merge(removed.iter()));
            let edges = from.iter().chain(&removed).flat_map(|n| [n.first().to_bits(), n.last().to_bits()]);
            let probes = edges.flat_map(|edge| [edge.wrapping_sub(1), edge, edge.wrapping_add(1)]).chain([probe]);
            for probe in probes.map(Ipv4Addr::from_bits) {
                let is_in = |list: &[Cidr]| list.iter().any(|n| n.first() <= probe && probe <= n.last());
                let expected = is_in(&from) && !is_in(&removed);
                prop_assert_eq!(expected, left.iter().any(|r| r.0 <= probe && probe <= r.1), "{}", probe);
            }
        }

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
