//! On which server a new sandbox goes.
//!
//! Filters first: a server must be present, take new sandboxes, have the template, the labels and the tier, and room. Among
//! those that are left, the server of the session wins. Otherwise two are drawn, and the better of the two is taken: drawing keeps
//! many placers, who all see the same slightly old figures, from choosing the same server. The rest follow in the order of
//! their scores, for when the chosen one refuses after all.

mod node;
mod refusal;
mod score;

pub use node::{Labels, Node, NodeId, Room, Wanted};
pub use refusal::{NoPlace, Reason};

/// Where a sandbox goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<'n> {
    pub first: &'n Node,
    /// Where to try next if the first refuses, in this order.
    pub then: Vec<&'n Node>,
}

/// Two numbers that the caller has drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw(pub u64, pub u64);

/// Chooses a server. The result depends on the arguments only.
///
/// # Errors
/// If no server can take the sandbox, with the reason for each.
pub fn place<'n>(nodes: &'n [Node], wanted: &Wanted, draw: Draw) -> Result<Placed<'n>, NoPlace> {
    let mut refused = NoPlace::default();
    let mut able = Vec::new();
    for node in nodes {
        match refusal::why_not(node, wanted) {
            None => able.push(node),
            Some(reason) => refused.add(reason),
        }
    }
    let Some(first) = choose(&able, wanted, draw) else { return Err(refused) };
    let mut then: Vec<&Node> = able.into_iter().filter(|node| node.id != first.id).collect();
    then.sort_by_key(|node| (score::score(node, wanted), &node.id));
    Ok(Placed { first, then })
}

fn choose<'n>(able: &[&'n Node], wanted: &Wanted, Draw(one, other): Draw) -> Option<&'n Node> {
    if let Some(node) = able.iter().find(|node| wanted.session_on.as_ref() == Some(&node.id)) {
        return Some(node);
    }
    let count = u64::try_from(able.len()).ok().filter(|count| *count > 0)?;
    let first = able.get(usize::try_from(one % count).ok()?)?;
    if count == 1 {
        return Some(first);
    }
    // Another one than the first.
    let step = 1 + other % (count - 1);
    let second = able.get(usize::try_from((one % count + step) % count).ok()?)?;
    Some(if score::score(second, wanted) < score::score(first, wanted) { second } else { first })
}

#[cfg(test)]
mod tests;
