//! Where each node of a graph stands in a tree: below the one it waits for longest, one step further in.

use std::collections::HashMap;

use serde_json::Value;

/// A node and how far in it stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: String,
    pub(super) depth: usize,
}

/// All nodes of a run's state, each after the one that it hangs on. No recursion: a chain may have ten thousand nodes.
pub(super) fn places(nodes: &[Value]) -> Vec<Place> {
    let ids: Vec<&str> = nodes.iter().map(|node| node["id"].as_str().unwrap_or_default()).collect();
    let numbers: HashMap<&str, usize> = ids.iter().enumerate().map(|(number, id)| (*id, number)).collect();
    let parents: Vec<Vec<usize>> = nodes.iter().map(|node| parents_of(node, &numbers)).collect();
    let depths = depths(&parents);
    let mut children = vec![Vec::new(); nodes.len()];
    let mut open = Vec::new();
    for (number, parents) in parents.iter().enumerate() {
        // The first of the deepest.
        match parents.iter().copied().min_by_key(|parent| std::cmp::Reverse(depths[*parent])) {
            Some(parent) if depths[number] > 0 => children[parent].push(number),
            _ => open.push(number),
        }
    }
    open.reverse();
    let mut places = Vec::with_capacity(nodes.len());
    while let Some(number) = open.pop() {
        places.push(Place { id: ids[number].to_owned(), depth: depths[number] });
        open.extend(children[number].iter().rev());
    }
    places
}

fn parents_of(node: &Value, numbers: &HashMap<&str, usize>) -> Vec<usize> {
    let names = node["depends_on"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|name| numbers.get(name).copied()).collect()
}

/// How many steps lead to each node at most. One in a circle, which no server accepts, stands at the edge.
fn depths(parents: &[Vec<usize>]) -> Vec<usize> {
    let mut children = vec![Vec::new(); parents.len()];
    let mut missing: Vec<usize> = parents.iter().map(Vec::len).collect();
    for (number, parents) in parents.iter().enumerate() {
        parents.iter().for_each(|parent| children[*parent].push(number));
    }
    let mut depths = vec![0; parents.len()];
    let mut ready: Vec<usize> = (0..parents.len()).filter(|number| missing[*number] == 0).collect();
    while let Some(number) = ready.pop() {
        for child in &children[number] {
            depths[*child] = depths[*child].max(depths[number] + 1);
            missing[*child] -= 1;
            if missing[*child] == 0 {
                ready.push(*child);
            }
        }
    }
    for (depth, missing) in depths.iter_mut().zip(missing) {
        if missing > 0 {
            *depth = 0;
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(nodes: &[Value]) -> Vec<String> {
        places(nodes).iter().map(|place| format!("{}{}", " ".repeat(place.depth), place.id)).collect()
    }

    fn node(id: &str, on: &[&str]) -> Value {
        json!({ "id": id, "depends_on": on })
    }

    #[test]
    fn a_node_stands_below_what_it_waits_for_longest_however_they_are_listed() {
        let nodes = [
            node("write", &["oldest", "average"]),
            node("collect", &[]),
            node("average", &["clean"]),
            node("clean", &["collect"]),
            node("oldest", &["collect"]),
            node("alone", &[]),
        ];
        let expected = ["collect", " clean", "  average", "   write", " oldest", "alone"];
        assert_eq!(shown(&nodes), expected);
    }

    #[test]
    fn every_node_has_one_place_also_where_the_graph_makes_no_sense() {
        let nodes = [node("a", &["b"]), node("b", &["a"]), node("c", &["nobody", "c"]), node("d", &[])];
        let mut found = shown(&nodes);
        found.sort_unstable();
        assert_eq!(found, ["a", "b", "c", "d"]);
        let chain: Vec<Value> = (0..10_000).map(|n| node(&n.to_string(), &[&(n - 1).to_string()])).collect();
        assert_eq!(places(&chain).last().map(|place| place.depth), Some(9999));
    }
}
