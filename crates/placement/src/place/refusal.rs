//! Which servers can't take a sandbox, and why, in words for its caller.

use std::collections::BTreeMap;
use std::fmt;

use super::node::{Node, Wanted};
use crate::membership::Standing;

/// Why one server can't take a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Unreachable,
    Cordoned,
    LacksLabel { label: String, value: String },
    OtherTier,
    LacksTemplate,
    Full,
}

/// No server can take the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoPlace {
    reasons: BTreeMap<Reason, u32>,
}

impl NoPlace {
    pub(super) fn add(&mut self, reason: Reason) {
        *self.reasons.entry(reason).or_default() += 1;
    }

    /// How many servers have each reason.
    pub fn reasons(&self) -> &BTreeMap<Reason, u32> {
        &self.reasons
    }

    /// Whether the same request may succeed later without a change by an operator.
    pub fn is_temporary(&self) -> bool {
        self.reasons.keys().any(|reason| matches!(reason, Reason::Full | Reason::Unreachable | Reason::Cordoned))
    }
}

/// The first reason that applies. A server that is unreachable has no others, because what is known about it is old.
pub(super) fn why_not(node: &Node, wanted: &Wanted) -> Option<Reason> {
    if node.standing != Standing::Present {
        return Some(Reason::Unreachable);
    }
    if node.is_cordoned {
        return Some(Reason::Cordoned);
    }
    let has = |label: &str, value: &str| node.labels.get(label).is_some_and(|found| value.is_empty() || found == value);
    if let Some((label, value)) = wanted.labels.iter().find(|(label, value)| !has(label, value)) {
        return Some(Reason::LacksLabel { label: label.clone(), value: value.clone() });
    }
    if !node.tiers.is_empty() && !wanted.tier.as_ref().is_some_and(|tier| node.tiers.contains(tier)) {
        return Some(Reason::OtherTier);
    }
    if node.templates.as_ref().is_some_and(|there| !there.contains(&wanted.template)) {
        return Some(Reason::LacksTemplate);
    }
    let fits = node.taken.sandboxes < node.capacity.sandboxes
        && node.taken.cpus.saturating_add(wanted.cpus) <= node.capacity.cpus
        && node.taken.memory.saturating_add(wanted.memory) <= node.capacity.memory;
    (!fits).then_some(Reason::Full)
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u32 = self.reasons.values().sum();
        write!(f, "{count} node{}", if count == 1 { "" } else { "s" })?;
        for (index, (reason, count)) in self.reasons.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { ", " })?;
            write!(f, "{count} ")?;
            write_reason(f, reason, *count)?;
        }
        Ok(())
    }
}

fn write_reason(f: &mut fmt::Formatter<'_>, reason: &Reason, count: u32) -> fmt::Result {
    let lacks = if count == 1 { "lacks" } else { "lack" };
    match reason {
        Reason::Unreachable => f.write_str("unreachable"),
        Reason::Cordoned => f.write_str("cordoned"),
        Reason::LacksLabel { label, value } if value.is_empty() => write!(f, "{lacks} label {label}"),
        Reason::LacksLabel { label, value } => write!(f, "{lacks} label {label}={value}"),
        Reason::OtherTier => f.write_str("reserved for other tiers"),
        Reason::LacksTemplate => write!(f, "{lacks} the template"),
        Reason::Full => f.write_str("full"),
    }
}

impl std::error::Error for NoPlace {}
