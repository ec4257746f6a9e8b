//! Finds a cycle among nodes, to show it to the author.

use super::GraphNode;

/// The ids along one cycle, with the first one repeated at the end. `None` if there is no cycle.
pub(super) fn find(nodes: &[GraphNode], children: &[Vec<usize>]) -> Option<Vec<String>> {
    let left = unresolvable(nodes.len(), children);
    let start = left.iter().position(|is_left| *is_left)?;
    Some(walk_back(start, nodes, children, &left))
}

/// Removes nodes without dependencies until none can be removed. What is left is on a cycle or behind one.
fn unresolvable(count: usize, children: &[Vec<usize>]) -> Vec<bool> {
    let mut waits_for = vec![0_usize; count];
    children.iter().flatten().for_each(|child| waits_for[*child] += 1);
    let mut free: Vec<usize> = (0..count).filter(|place| waits_for[*place] == 0).collect();
    let mut left = vec![true; count];
    while let Some(place) = free.pop() {
        left[place] = false;
        for child in &children[place] {
            waits_for[*child] -= 1;
            if waits_for[*child] == 0 {
                free.push(*child);
            }
        }
    }
    left
}

/// Each remaining node depends on another remaining one, so walking back must return to a visited node.
fn walk_back(start: usize, nodes: &[GraphNode], children: &[Vec<usize>], left: &[bool]) -> Vec<String> {
    let mut parent_of = vec![None; nodes.len()];
    for (parent, its_children) in children.iter().enumerate().filter(|(place, _)| left[*place]) {
        for child in its_children {
            parent_of[*child] = Some(parent);
        }
    }
    let mut seen_at = vec![None; nodes.len()];
    let mut path = Vec::new();
    let mut here = start;
    while seen_at[here].is_none() {
        seen_at[here] = Some(path.len());
        path.push(here);
        let Some(parent) = parent_of[here] else { break };
        here = parent;
    }
    let mut cycle: Vec<String> =
        path[seen_at[here].unwrap_or(0)..].iter().rev().map(|place| nodes[*place].id.clone()).collect();
    cycle.extend(cycle.first().cloned());
    cycle
}
