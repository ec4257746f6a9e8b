//! Lists live sandboxes from the snapshots of their controllers. The store is not used, because it may lag behind, and
//! reading a page of a hundred rows would cost more than the rest of the request.

use std::cmp::Ordering;
use std::sync::Arc;

use isopod_store::clock::Timestamp;
use isopod_store::{SandboxRow, TeamId};
use isopod_wire::SandboxId;

use super::fleet::Fleet;
use super::handle::View;

/// Which sandboxes to list.
#[derive(Clone, Debug)]
pub(crate) struct ListQuery {
    pub(crate) team: TeamId,
    pub(crate) running: bool,
    pub(crate) paused: bool,
    pub(crate) metadata: Vec<(String, String)>,
    pub(crate) template: Option<String>,
    /// Started at this time or later.
    pub(crate) started_after: Option<Timestamp>,
    pub(crate) order: Order,
    pub(crate) after: Option<Cursor>,
    pub(crate) limit: usize,
}

/// Sorted by start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Ascending,
    Descending,
}

/// The last sandbox of the previous page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) started_at: Timestamp,
    pub(crate) id: SandboxId,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) sandboxes: Vec<Arc<View>>,
    /// Whether there are more.
    pub(crate) more: bool,
    /// How many running sandboxes match the filter on all pages.
    pub(crate) running: usize,
}

impl Fleet {
    /// Returns one page of a team's sandboxes.
    pub(crate) fn list(&self, wanted: &ListQuery) -> Page {
        let of_team = self.all().into_iter().filter(|sandbox| *sandbox.team() == wanted.team);
        let mut found: Vec<Arc<View>> =
            of_team.map(|sandbox| sandbox.view()).filter(|view| wanted.matches(&view.row)).collect();
        let running = found.iter().filter(|view| view.row.state.shown() == Some("running")).count();
        found.retain(|view| wanted.is_shown(&view.row) && wanted.is_after_cursor(&view.row));
        found.sort_unstable_by(|left, right| wanted.compare(key(&left.row), key(&right.row)));
        let more = found.len() > wanted.limit;
        found.truncate(wanted.limit);
        Page { sandboxes: found, more, running }
    }
}

fn key(row: &SandboxRow) -> (Timestamp, &str) {
    (row.started_at, row.id.as_str())
}

impl ListQuery {
    /// Checks all filters except state and page.
    fn matches(&self, row: &SandboxRow) -> bool {
        let has = |(key, value): &(String, String)| row.metadata.get(key) == Some(value);
        self.metadata.iter().all(has)
            && self.template.as_ref().is_none_or(|name| *name == row.template || Some(name) == row.alias.as_ref())
            && self.started_after.is_none_or(|after| row.started_at >= after)
    }

    fn is_shown(&self, row: &SandboxRow) -> bool {
        match row.state.shown() {
            Some("running") => self.running,
            Some(_) => self.paused,
            None => false,
        }
    }

    fn is_after_cursor(&self, row: &SandboxRow) -> bool {
        let is_after = |cursor: &Cursor| self.compare((cursor.started_at, cursor.id.as_str()), key(row)).is_lt();
        self.after.as_ref().is_none_or(is_after)
    }

    fn compare(&self, left: (Timestamp, &str), right: (Timestamp, &str)) -> Ordering {
        match self.order {
            Order::Ascending => left.cmp(&right),
            Order::Descending => right.cmp(&left),
        }
    }
}
