//! Strongly connected components: the sets of modules that can all reach each other.

use std::collections::{BTreeMap, BTreeSet};

/// The successors of each node.
pub(crate) type Arrows<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Returns all components with more than one node, sorted by their first names.
///
/// Two nodes are in the same component if each reaches the other. This is cubic at worst, but a crate has only a few
/// dozen modules.
pub(crate) fn cycles<'a>(arrows: &Arrows<'a>) -> Vec<BTreeSet<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|from| (*from, reach(arrows, from))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains(to));
    let component = |node: &'a str| -> BTreeSet<&'a str> {
        arrows
            .keys()
            .copied()
            .filter(|other| *other == node || (reaches(node, other) && reaches(other, node)))
            .collect()
    };
    let components: BTreeSet<BTreeSet<&str>> = arrows.keys().map(|node| component(node)).collect();
    components.into_iter().filter(|component| component.len() > 1).collect()
}

/// Returns everything that can be reached from `start` in one step or more.
fn reach<'a>(arrows: &Arrows<'a>, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(node) = waiting.pop() {
        for next in arrows.get(node).into_iter().flatten() {
            if reached.insert(*next) {
                waiting.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `"a>b b>c"` as arrows.
    fn arrows(text: &str) -> Arrows<'_> {
        let mut arrows = Arrows::new();
        for (from, to) in text.split(' ').filter_map(|arrow| arrow.split_once('>')) {
            arrows.entry(from).or_default().insert(to);
            arrows.entry(to).or_default();
        }
        arrows
    }

    fn found(text: &str) -> Vec<String> {
        cycles(&arrows(text)).iter().map(|cycle| cycle.iter().copied().collect()).collect()
    }

    #[test]
    fn a_graph_without_a_way_back_has_no_cycles() {
        assert_eq!(found("a>b a>c b>d c>d d>e"), [""; 0]);
    }

    #[test]
    fn a_module_that_names_itself_is_not_a_cycle() {
        assert_eq!(found("a>a a>b"), [""; 0]);
    }

    #[test]
    fn cycles_that_share_a_module_are_one() {
        assert_eq!(found("a>b b>a b>c c>b c>d d>e"), ["abc"]);
    }

    #[test]
    fn cycles_joined_one_way_stay_two() {
        assert_eq!(found("a>b b>a b>x x>y y>z z>x z>q"), ["ab", "xyz"]);
    }
}
