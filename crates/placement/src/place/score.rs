//! How well a server suits a sandbox. Lower is better.

use super::node::{Node, Wanted};

/// A whole server, in the units of a score.
const WHOLE: u64 = 1000;
/// A sandbox that waits in a pool is worth this much load: a warm start on a busier server beats a cold one.
const WARM: u64 = 250;
/// Each sandbox of the same team counts as this much load, so that a team loses only a part of them with a server.
const OF_TEAM: u64 = 20;
/// The most that a team's sandboxes count.
const MAX_OF_TEAM: u64 = 400;

pub(super) fn score(node: &Node, wanted: &Wanted) -> u64 {
    let is_warm = node.warm.get(&wanted.template).is_some_and(|count| *count > 0);
    let cold = if is_warm { 0 } else { WARM };
    let of_team = u64::from(node.of_team).saturating_mul(OF_TEAM).min(MAX_OF_TEAM);
    load(node, wanted) + cold + of_team
}

/// How full the server would be, by what would be nearest to its end.
fn load(node: &Node, wanted: &Wanted) -> u64 {
    let (taken, capacity) = (node.taken, node.capacity);
    let sandboxes = part(u64::from(taken.sandboxes) + 1, u64::from(capacity.sandboxes));
    let cpus = part(taken.cpus.saturating_add(wanted.cpus), capacity.cpus);
    let memory = part(taken.memory.saturating_add(wanted.memory), capacity.memory);
    sandboxes.max(cpus).max(memory)
}

fn part(taken: u64, capacity: u64) -> u64 {
    taken.saturating_mul(WHOLE).checked_div(capacity).map_or(WHOLE, |part| part.min(WHOLE))
}
