//! Properties of placements, and the words of refusals.

use proptest::prelude::*;

use super::*;
use crate::membership::Standing;

fn node(id: u32) -> Node {
    Node {
        id: NodeId(format!("n{id}")),
        name: format!("node-{id}"),
        standing: Standing::Present,
        is_cordoned: false,
        labels: Labels::new(),
        tiers: std::collections::BTreeSet::new(),
        capacity: Room { sandboxes: 10, cpus: 8000, memory: 8192 },
        taken: Room::default(),
        templates: None,
        warm: std::collections::BTreeMap::new(),
        of_team: 0,
    }
}

fn small() -> Wanted {
    Wanted { template: "base".to_owned(), cpus: 1000, memory: 512, ..Wanted::default() }
}

prop_compose! {
    fn any_node(id: u32)(
        standing in prop_oneof![4 => Just(Standing::Present), 1 => Just(Standing::Unreachable), 1 => Just(Standing::GivenUp)],
        is_cordoned in proptest::bool::weighted(0.1),
        has_gpu in proptest::bool::weighted(0.3),
        is_reserved in proptest::bool::weighted(0.2),
        has_template in proptest::bool::weighted(0.8),
        taken in (0..12_u32, 0..9000_u64, 0..9000_u64),
        warm in 0..2_u32,
        of_team in 0..30_u32,
    ) -> Node {
        let mut node = node(id);
        (node.standing, node.is_cordoned, node.of_team) = (standing, is_cordoned, of_team);
        if has_gpu {
            node.labels.insert("gpu".to_owned(), "a100".to_owned());
        }
        if is_reserved {
            node.tiers.insert("pro".to_owned());
        }
        if !has_template {
            node.templates = Some(std::collections::BTreeSet::new());
        }
        node.taken = Room { sandboxes: taken.0, cpus: taken.1, memory: taken.2 };
        node.warm.insert("base".to_owned(), warm);
        node
    }
}

fn any_nodes() -> impl Strategy<Value = Vec<Node>> {
    (0..8_u32).prop_flat_map(|count| (0..count).map(any_node).collect::<Vec<_>>())
}

prop_compose! {
    fn any_wanted()(gpu in proptest::option::of(prop_oneof![Just("a100"), Just(""), Just("h100")]), pro: bool, session in 0..8_u32) -> Wanted {
        let mut wanted = small();
        wanted.labels.extend(gpu.map(|gpu| ("gpu".to_owned(), gpu.to_owned())));
        wanted.tier = pro.then(|| "pro".to_owned());
        wanted.session_on = Some(NodeId(format!("n{session}")));
        wanted
    }
}

/// What a chosen server must be, written independently of the filters.
fn can_take(node: &Node, wanted: &Wanted) -> bool {
    let labels = wanted.labels.iter().all(|(label, value)| match node.labels.get(label) {
        Some(found) => value.is_empty() || found == value,
        None => false,
    });
    let tier = node.tiers.is_empty() || wanted.tier.iter().any(|tier| node.tiers.contains(tier));
    let template = node.templates.iter().all(|there| there.contains(&wanted.template));
    let left = node.capacity.cpus.checked_sub(node.taken.cpus).is_some_and(|left| left >= wanted.cpus)
        && node.capacity.memory.checked_sub(node.taken.memory).is_some_and(|left| left >= wanted.memory)
        && node.capacity.sandboxes > node.taken.sandboxes;
    node.standing == Standing::Present && !node.is_cordoned && labels && tier && template && left
}

proptest! {
    #[test]
    fn a_sandbox_goes_where_it_can_go_and_every_such_server_is_an_alternative(
        nodes in any_nodes(), wanted in any_wanted(), draw: (u64, u64)
    ) {
        let able: Vec<&Node> = nodes.iter().filter(|node| can_take(node, &wanted)).collect();
        match place(&nodes, &wanted, Draw(draw.0, draw.1)) {
            Ok(placed) => {
                prop_assert!(can_take(placed.first, &wanted));
                let mut all: Vec<&NodeId> = placed.then.iter().chain([&placed.first]).map(|node| &node.id).collect();
                all.sort();
                all.dedup();
                prop_assert_eq!(all.len(), able.len());
                prop_assert!(placed.then.iter().all(|node| can_take(node, &wanted)));
            }
            Err(refused) => {
                prop_assert!(able.is_empty());
                let count: u32 = refused.reasons().values().sum();
                prop_assert_eq!(count as usize, nodes.len());
            }
        }
    }

    #[test]
    fn the_server_of_the_session_wins_if_it_can_take_the_sandbox(
        nodes in any_nodes(), wanted in any_wanted(), draw: (u64, u64)
    ) {
        let of_session = nodes.iter().find(|node| Some(&node.id) == wanted.session_on.as_ref());
        if let (Some(node), Ok(placed)) = (of_session.filter(|node| can_take(node, &wanted)), place(&nodes, &wanted, Draw(draw.0, draw.1))) {
            prop_assert_eq!(&placed.first.id, &node.id);
        }
    }

    /// With two draws, the worst server is taken only if it was drawn against itself, which never happens.
    #[test]
    fn the_fullest_of_several_servers_is_never_chosen(count in 2..6_u32, draw: (u64, u64)) {
        let mut nodes: Vec<Node> = (0..count).map(node).collect();
        nodes[0].taken.cpus = 6000;
        let wanted = small();
        let placed = place(&nodes, &wanted, Draw(draw.0, draw.1)).unwrap();
        prop_assert_ne!(&placed.first.id, &nodes[0].id);
        prop_assert_eq!(&placed.then.last().unwrap().id, &nodes[0].id);
    }
}

/// A generator of numbers for the test below.
fn drawn(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn sandboxes_and_teams_spread_over_the_servers() {
    let mut nodes: Vec<Node> = (0..4).map(node).collect();
    let mut seed = 1;
    for _ in 0..32 {
        let draw = Draw(drawn(&mut seed), drawn(&mut seed));
        let id = place(&nodes, &small(), draw).unwrap().first.id.clone();
        let node = nodes.iter_mut().find(|node| node.id == id).unwrap();
        (node.taken.sandboxes, node.taken.cpus, node.of_team) =
            (node.taken.sandboxes + 1, node.taken.cpus + 1000, node.of_team + 1);
    }
    assert_eq!(nodes.iter().map(|node| node.taken.cpus).collect::<Vec<_>>(), [8000; 4], "all of them are full");
    assert!(place(&nodes, &small(), Draw(0, 0)).unwrap_err().is_temporary());
}

#[test]
fn a_warm_sandbox_counts_more_than_a_little_load() {
    let mut nodes: Vec<Node> = (0..2).map(node).collect();
    nodes[1].warm.insert("base".to_owned(), 1);
    nodes[1].taken.cpus = 1000;
    for draw in 0..4 {
        assert_eq!(place(&nodes, &small(), Draw(draw, draw)).unwrap().first.id, nodes[1].id);
    }
    nodes[1].taken.cpus = 7000;
    assert_eq!(place(&nodes, &small(), Draw(0, 0)).unwrap().first.id, nodes[0].id);
}

#[test]
fn a_refusal_says_what_is_missing_where() {
    let mut nodes: Vec<Node> = (0..3).map(node).collect();
    nodes[0].taken.sandboxes = 10;
    nodes[1].taken.memory = 8192;
    let mut wanted = small();
    wanted.labels.insert("gpu".to_owned(), "a100".to_owned());
    for node in &mut nodes[..2] {
        node.labels.insert("gpu".to_owned(), "a100".to_owned());
    }
    let refused = place(&nodes, &wanted, Draw(0, 0)).unwrap_err();
    assert_eq!(refused.to_string(), "3 nodes: 1 lacks label gpu=a100, 2 full");
    assert!(refused.is_temporary());
    nodes.truncate(1);
    nodes[0].templates = Some(std::collections::BTreeSet::new());
    let refused = place(&nodes, &wanted, Draw(0, 0)).unwrap_err();
    assert_eq!((refused.to_string().as_str(), refused.is_temporary()), ("1 node: 1 lacks the template", false));
    assert_eq!(place(&[], &wanted, Draw(0, 0)).unwrap_err().to_string(), "0 nodes");
}
