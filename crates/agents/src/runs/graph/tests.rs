//! Tests the rules on generated graphs.

use std::collections::HashSet;

use isopod_store::NodeState;
use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;

use super::Strategy;
use super::splice::SpliceError;
use super::*;

fn node(id: &str, depends_on: &[&str]) -> GraphNode {
    let depends_on = depends_on.iter().map(|on| (*on).to_owned()).collect();
    GraphNode { id: id.to_owned(), depends_on, state: NodeState::Pending }
}

fn graph(nodes: &[(&str, &[&str])]) -> Graph {
    Graph::new(nodes.iter().map(|(id, on)| node(id, on)).collect()).unwrap()
}

fn request(parent: &str, strategy: Strategy, new_nodes: &[(&str, &[&str])], prune: &[&str]) -> SpliceRequest {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    SpliceRequest {
        parent: parent.to_owned(),
        strategy,
        new_nodes: new_nodes.iter().map(|(id, on)| ((*id).to_owned(), owned(on))).collect(),
        prune: owned(prune),
    }
}

fn depends(graph: &Graph, id: &str) -> Vec<String> {
    graph.get(id).unwrap().depends_on.clone()
}

fn suffix() -> String {
    "0123abcd".to_owned()
}

#[test]
fn what_is_no_graph_is_refused_by_name() {
    let of = |nodes: &[(&str, &[&str])]| Graph::new(nodes.iter().map(|(id, on)| node(id, on)).collect()).unwrap_err();
    assert_eq!(of(&[("a", &[]), ("a", &[])]), GraphError::Duplicate("a".into()));
    let unknown = GraphError::UnknownDependency { node: "a".into(), on: "x".into() };
    assert_eq!(of(&[("a", &["x"])]), unknown);
    assert_eq!(of(&[("a", &["a"])]), GraphError::Cycle(vec!["a".into(), "a".into()]));
    let GraphError::Cycle(circle) = of(&[("s", &[]), ("a", &["s", "c"]), ("b", &["a"]), ("c", &["b"]), ("t", &["c"])])
    else {
        panic!("a circle of three")
    };
    assert_eq!((circle.len(), circle.first()), (4, circle.last()));
    assert!(circle.iter().all(|id| ["a", "b", "c"].contains(&id.as_str())), "{circle:?}");
    let many = (0..=MAX_NODES).map(|number| node(&number.to_string(), &[])).collect();
    assert_eq!(Graph::new(many).unwrap_err(), GraphError::TooMany(MAX_NODES + 1));
}

#[test]
fn siblings_are_ready_together_and_in_their_order() {
    let mut graph = graph(&[("z", &[]), ("c", &["z"]), ("a", &["z"]), ("end", &["a", "c", "c"])]);
    assert_eq!(graph.ready().collect::<Vec<_>>(), ["z"]);
    graph.set("z", NodeState::Running);
    assert_eq!(graph.ready().count(), 0);
    graph.set("z", NodeState::Done);
    assert_eq!(graph.ready().collect::<Vec<_>>(), ["c", "a"]);
    graph.set("c", NodeState::Done);
    graph.set("a", NodeState::Done);
    assert_eq!(graph.ready().collect::<Vec<_>>(), ["end"]);
    graph.set("end", NodeState::Done);
    assert_eq!(graph.verdict(), Verdict::Completed);
}

#[test]
fn what_is_stuck_behind_a_failure_is_blocked_and_not_completed() {
    let mut graph = graph(&[("a", &[]), ("b", &["a"]), ("c", &[])]);
    graph.set("c", NodeState::Done);
    graph.set("a", NodeState::Failed);
    assert_eq!(graph.verdict(), Verdict::Blocked(vec!["a".into(), "b".into()]));
}

#[test]
fn children_come_between_the_parent_and_what_waited_for_it() {
    let mut graph = graph(&[("p", &[]), ("old", &["p"])]);
    graph.set("p", NodeState::Running);
    let done = graph.splice(&request("p", Strategy::Child, &[("x", &[]), ("y", &["x"])], &[]), suffix).unwrap();
    assert_eq!((done.added, done.rewired), (vec!["x".to_owned(), "y".to_owned()], vec!["old".to_owned()]));
    assert_eq!((depends(&graph, "x"), depends(&graph, "y")), (vec!["p".to_owned()], vec!["x".to_owned()]));
    assert_eq!(depends(&graph, "old"), ["p", "y"]);
}

#[test]
fn siblings_come_after_what_the_parent_came_after_and_nobody_waits_for_them() {
    let mut graph = graph(&[("first", &[]), ("p", &["first"]), ("old", &["p"])]);
    graph.set("first", NodeState::Done);
    graph.set("p", NodeState::Running);
    graph.splice(&request("p", Strategy::Sibling, &[("x", &[])], &[]), suffix).unwrap();
    assert_eq!((depends(&graph, "x"), depends(&graph, "old")), (vec!["first".to_owned()], vec!["p".to_owned()]));
    assert_eq!(graph.ready().collect::<Vec<_>>(), ["x"]);
}

#[test]
fn only_pending_nodes_are_pruned_and_their_orphans_are_adopted() {
    let mut graph = graph(&[("p", &[]), ("other", &[]), ("gone", &["p"]), ("orphan", &["gone"])]);
    graph.set("p", NodeState::Running);
    graph.set("other", NodeState::Done);
    let mut empty = graph.clone();
    let with_new = request("p", Strategy::Child, &[("x", &[])], &["gone", "other", "nobody"]);
    let done = graph.splice(&with_new, suffix).unwrap();
    assert_eq!((done.pruned, done.kept), (vec!["gone".to_owned()], vec!["other".to_owned(), "nobody".to_owned()]));
    assert_eq!(depends(&graph, "orphan"), ["x"]);
    empty.splice(&request("p", Strategy::Child, &[], &["gone"]), suffix).unwrap();
    assert_eq!(depends(&empty, "orphan"), ["p"]);
}

#[test]
fn a_taken_name_is_overwritten_while_pending_and_renamed_once_it_began() {
    let mut graph = graph(&[("p", &[]), ("q", &[]), ("later", &["q"])]);
    graph.set("p", NodeState::Running);
    graph.set("q", NodeState::Done);
    let new: &[(&str, &[&str])] = &[("q", &[]), ("later", &["q"])];
    let done = graph.splice(&request("p", Strategy::Child, new, &[]), suffix).unwrap();
    assert_eq!(done.added, ["q_0123abcd", "later"]);
    assert_eq!(depends(&graph, "later"), ["q_0123abcd"], "the new node is meant, not the old one");
    assert_eq!(graph.nodes().len(), 4);
}

#[test]
fn a_splice_that_makes_a_circle_changes_nothing() {
    let mut graph = graph(&[("p", &[]), ("old", &["p"])]);
    graph.set("p", NodeState::Running);
    let before = graph.nodes().to_vec();
    let circle = request("p", Strategy::Child, &[("x", &["old"])], &[]);
    assert!(matches!(graph.splice(&circle, suffix), Err(SpliceError::Graph(GraphError::Cycle(_)))));
    let unknown = request("p", Strategy::Child, &[("x", &["nobody"])], &[]);
    assert!(graph.splice(&unknown, suffix).is_err());
    assert!(graph.splice(&request("nobody", Strategy::Child, &[], &[]), suffix).is_err());
    let twice = request("p", Strategy::Child, &[("x", &[]), ("x", &[])], &[]);
    assert_eq!(graph.splice(&twice, suffix), Err(SpliceError::Twice("x".into())));
    assert_eq!(graph.nodes(), before);
}

/// Any list of nodes. Most are not a graph.
fn any_nodes() -> impl Generator<Value = Vec<GraphNode>> {
    let deps = proptest::collection::vec(0..12_usize, 0..4);
    proptest::collection::vec((0..12_usize, deps), 0..12).prop_map(|nodes| {
        let name = |number: usize| format!("n{number}");
        let build = |(id, on): (usize, Vec<usize>)| GraphNode {
            id: name(id),
            depends_on: on.into_iter().map(name).collect(),
            state: NodeState::Pending,
        };
        nodes.into_iter().map(build).collect()
    })
}

/// A graph in which each node depends on earlier ones only.
fn any_graph() -> impl Generator<Value = Graph> {
    proptest::collection::vec(proptest::collection::vec(any::<prop::sample::Index>(), 0..4), 1..14).prop_map(|nodes| {
        let build = |(place, on): (usize, Vec<prop::sample::Index>)| GraphNode {
            id: format!("n{place}"),
            depends_on: on.iter().filter(|_| place > 0).map(|on| format!("n{}", on.index(place))).collect(),
            state: NodeState::Pending,
        };
        Graph::new(nodes.into_iter().enumerate().map(build).collect()).unwrap()
    })
}

/// Asserts that the counters match the states of the nodes.
fn check(graph: &Graph) {
    let done: HashSet<&str> =
        graph.nodes().iter().filter(|node| node.state == NodeState::Done).map(|node| node.id.as_str()).collect();
    let ready: Vec<&str> = graph
        .nodes()
        .iter()
        .filter(|node| node.state == NodeState::Pending)
        .filter(|node| node.depends_on.iter().all(|on| done.contains(on.as_str())))
        .map(|node| node.id.as_str())
        .collect();
    assert_eq!(graph.ready().collect::<Vec<_>>(), ready);
    let count = |state| graph.nodes().iter().filter(|node| node.state == state).count();
    assert_eq!((graph.running(), graph.waiting()), (count(NodeState::Running), count(NodeState::Waiting)));
    // Built again from its nodes, it is still valid: it has no cycle and no unknown dependency.
    assert!(Graph::new(graph.nodes().to_vec()).is_ok());
}

proptest! {
    #[test]
    fn any_list_is_a_graph_or_refused(nodes in any_nodes()) {
        if let Ok(graph) = Graph::new(nodes) {
            check(&graph);
        }
    }

    /// In whatever order nodes end, all of them run, each after its dependencies.
    #[test]
    fn every_node_runs_once_after_its_dependencies(
        mut graph in any_graph(),
        picks in proptest::collection::vec(any::<prop::sample::Index>(), 14),
    ) {
        let mut order: Vec<String> = Vec::new();
        for pick in picks {
            let ready: Vec<String> = graph.ready().map(str::to_owned).collect();
            if ready.is_empty() {
                break;
            }
            let id = pick.get(&ready).clone();
            graph.set(&id, NodeState::Running);
            graph.set(&id, NodeState::Done);
            check(&graph);
            order.push(id);
        }
        prop_assert_eq!(graph.verdict(), Verdict::Completed);
        prop_assert_eq!(order.iter().collect::<HashSet<_>>().len(), graph.nodes().len());
        for node in graph.nodes() {
            let at = |id: &String| order.iter().position(|done| done == id);
            prop_assert!(node.depends_on.iter().all(|on| at(on) < at(&node.id)));
        }
    }

    /// A refused splice leaves no trace. Otherwise the result is a graph that can run to its end.
    #[test]
    fn a_splice_leaves_a_graph(
        mut graph in any_graph(),
        done in 0..6_usize,
        sibling in any::<bool>(),
        new in any_nodes(),
        prune in proptest::collection::vec(0..14_usize, 0..4),
    ) {
        for _ in 0..done {
            let Some(id) = graph.ready().next().map(str::to_owned) else { break };
            graph.set(&id, NodeState::Done);
        }
        let Some(parent) = graph.ready().next().map(str::to_owned) else { return Ok(()) };
        graph.set(&parent, NodeState::Running);
        let before = graph.clone();
        let wanted = SpliceRequest {
            parent: parent.clone(),
            strategy: if sibling { Strategy::Sibling } else { Strategy::Child },
            new_nodes: new.into_iter().map(|node| (node.id, node.depends_on)).collect(),
            prune: prune.iter().map(|number| format!("n{number}")).collect(),
        };
        let mut number = 0;
        let spliced = graph.splice(&wanted, || { number += 1; format!("{number:08x}") });
        check(&graph);
        match spliced {
            Err(_) => prop_assert_eq!(graph.nodes(), before.nodes()),
            Ok(splice) => {
                for node in before.nodes().iter().filter(|node| node.state != NodeState::Pending) {
                    prop_assert_eq!(graph.get(&node.id), Some(node), "what began stays as it is");
                }
                prop_assert!(splice.added.iter().all(|id| graph.get(id).is_some()));
                prop_assert!(splice.pruned.iter().all(|id| graph.get(id).is_none()));
                graph.set(&parent, NodeState::Done);
                for _ in 0..graph.nodes().len() {
                    let Some(id) = graph.ready().next().map(str::to_owned) else { break };
                    graph.set(&id, NodeState::Done);
                }
                prop_assert_eq!(graph.verdict(), Verdict::Completed);
            }
        }
    }
}
