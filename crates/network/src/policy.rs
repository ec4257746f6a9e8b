//! A sandbox's own network policy, as the chain of its slot: first allow, then deny, then the rest. It is replaced in
//! one transaction, so there is no moment with half a policy.
//!
//! The policy comes from the user who created the sandbox, but private networks belong to the operator. Whenever a
//! policy is applied, the private networks that the operator did not open are removed from its allowed networks, so
//! they never bypass the common rules.

use std::net::Ipv4Addr;

use isopod_wire::{Cidr, NetworkPolicy, PRIVATE_NETWORKS};

use super::names::{Slot, Tag};
use super::nft::{Expression as E, Meta, Range, Transaction, Verdict};
use super::ranges::{merge, subtract};
use super::rules::{ADMITTED, DNS_PORT, POLICIES, TCP, UDP};

/// Whether the policy adds nothing to the rules for all sandboxes.
pub(super) fn is_default(policy: &NetworkPolicy) -> bool {
    !policy.deny_internet && policy.allow_out.is_empty() && policy.deny_out.is_empty()
}

/// The destinations that a policy allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    /// Reachable on every port.
    pub(super) networks: Vec<Range>,
    /// DNS servers in closed private networks. They are reachable only for DNS, as they are without a policy.
    pub(super) resolvers: Vec<Range>,
}

impl Allowed {
    /// The destinations that the policy names, without the private networks that are not in `opened`.
    pub(super) fn of(policy: &NetworkPolicy, opened: &[Cidr], resolvers: &[Ipv4Addr]) -> Self {
        let closed = subtract(&merge(PRIVATE_NETWORKS.iter()), &merge(opened.iter()));
        let named = merge(policy.allow_out.iter());
        let networks = subtract(&named, &closed);
        let resolvers: Vec<Cidr> = resolvers.iter().map(|address| Cidr::new(*address, 32)).collect();
        let not_named = subtract(&[(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)], &named);
        let resolvers = subtract(&subtract(&merge(resolvers.iter()), &not_named), &networks);
        Self { networks, resolvers }
    }
}

/// Applies the policy, also to open flows.
pub(super) fn replace(
    transaction: &mut Transaction<'_>,
    tag: Tag,
    slot: Slot,
    policy: &NetworkPolicy,
    allowed: &Allowed,
) {
    let chain = slot.chain();
    transaction.ensure_chain(&chain, None);
    transaction.flush_chain(&chain);
    dialled(transaction, &chain, &allowed.networks, &[], Verdict::Goto(ADMITTED));
    for transport in [UDP, TCP] {
        let (is_transport, port) = ([transport], DNS_PORT.to_be_bytes());
        let is_dns = [E::Load(Meta::Transport), E::Equal(&is_transport), E::LoadPort, E::Equal(&port)];
        dialled(transaction, &chain, &allowed.resolvers, &is_dns, Verdict::Goto(ADMITTED));
    }
    dialled(transaction, &chain, &merge(policy.deny_out.iter()), &[], Verdict::Drop);
    if policy.deny_internet {
        transaction.rule(&chain, &[E::Then(Verdict::Drop)]);
    }
    transaction.add_verdict(POLICIES, &tag.interface(slot), Verdict::Jump(&chain));
}

/// Removes the slot's chain, even if it does not exist: the transaction creates it first, so removing always succeeds.
pub(super) fn remove(transaction: &mut Transaction<'_>, tag: Tag, slot: Slot) {
    let (chain, interface) = (slot.chain(), tag.interface(slot));
    transaction.ensure_chain(&chain, None);
    transaction.add_verdict(POLICIES, &interface, Verdict::Jump(&chain));
    transaction.delete_interface(POLICIES, &interface);
    transaction.flush_chain(&chain);
    transaction.delete_chain(&chain);
}

/// Adds a rule for flows that were opened to these networks and that match the other expressions.
fn dialled(transaction: &mut Transaction<'_>, chain: &str, networks: &[Range], and: &[E<'_>], verdict: Verdict<'_>) {
    if networks.is_empty() {
        return;
    }
    let set = transaction.address_set(networks);
    transaction.rule(chain, &[&[E::LoadDialled, E::In(set)], and, &[E::Then(verdict)]].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn allowed(allow: &[&str], opened: &[&str], resolvers: &[Ipv4Addr]) -> Allowed {
        let policy = NetworkPolicy { allow_out: networks(allow), ..NetworkPolicy::default() };
        Allowed::of(&policy, &networks(opened), resolvers)
    }

    #[test]
    fn private_networks_are_allowed_only_where_the_operator_opened_them() {
        let holds = |allowed: &Allowed, text: &str| {
            let address: Ipv4Addr = text.parse().unwrap();
            allowed.networks.iter().any(|(first, last)| *first <= address && address <= *last)
        };
        let private = ["10.0.0.0", "10.255.255.255", "100.64.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"];
        let public =
            ["0.0.0.1", "9.255.255.255", "11.0.0.0", "100.128.0.0", "172.32.0.0", "192.169.0.0", "255.255.255.255"];
        let everything = allowed(&["0.0.0.0/0"], &[], &[]);
        for address in private {
            assert!(!holds(&everything, address), "{address}");
            assert!(holds(
                &allowed(&["0.0.0.0/0"], &["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"], &[]),
                address
            ));
        }
        for address in public {
            assert!(holds(&everything, address), "{address}");
        }
        assert_eq!(allowed(&["10.1.0.0/16", "192.168.0.0/24"], &[], &[]).networks, []);
        let opened = allowed(&["10.0.0.0/8"], &["10.1.0.0/16"], &[]);
        assert_eq!(opened.networks, [(Ipv4Addr::new(10, 1, 0, 0), Ipv4Addr::new(10, 1, 255, 255))]);
    }

    #[test]
    fn a_resolver_in_a_closed_network_stays_a_resolver_for_those_who_name_it() {
        let (private, public) = (Ipv4Addr::new(10, 9, 9, 9), Ipv4Addr::new(9, 9, 9, 9));
        let only = vec![(private, private)];
        assert_eq!(allowed(&["0.0.0.0/0"], &[], &[private, public]).resolvers, only);
        assert_eq!(allowed(&["10.9.9.9"], &[], &[private, public]).resolvers, only);
        assert_eq!(allowed(&["10.9.9.9"], &["10.0.0.0/8"], &[private]).resolvers, [], "it is among the networks");
        assert_eq!(allowed(&["1.1.1.1"], &[], &[private]).resolvers, []);
    }
}
