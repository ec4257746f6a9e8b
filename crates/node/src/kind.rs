//! The templates that are in use on a node, each with a pool of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use isopod_wire::node::{Shelf, TemplateInfo, TemplateState};
use tokio::sync::Notify;

use crate::pool::Pool;
use crate::template::{BASE, Recipe, Step, Template, recipes};

/// A template in use.
#[derive(Debug)]
pub(crate) struct Kind {
    /// What it is found by: its name, and whose it is where the interpreters of each team come from their own place.
    pub(crate) key: String,
    template: Mutex<Arc<Template>>,
    pub(crate) pool: Pool,
    /// Why it lacks what its recipe installs.
    pub(crate) reduced: Option<String>,
    /// When it was first asked for.
    pub(crate) opened_at: Instant,
}

impl Kind {
    pub(crate) fn new(key: &str, template: Arc<Template>, pool: Pool, reduced: Option<String>) -> Arc<Self> {
        let (key, template) = (key.to_owned(), Mutex::new(template));
        Arc::new(Self { key, template, pool, reduced, opened_at: Instant::now() })
    }

    pub(crate) fn template(&self) -> Arc<Template> {
        Arc::clone(&self.template.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses another generation from now on. Running sandboxes keep theirs.
    pub(crate) fn replace(&self, template: Arc<Template>) {
        *self.template.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&template);
        self.pool.replace_template(template);
    }
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Set when the node ends: what is still being built or warmed then is not wanted any more.
    is_closed: AtomicBool,
    /// Told whenever an entry changes.
    pub(crate) changed: Notify,
}

#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Open(Arc<Kind>),
    Building(Step),
}

impl Kinds {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Entry> {
        self.entries().get(name).cloned()
    }

    pub(crate) fn open_kinds(&self) -> Vec<Arc<Kind>> {
        let open = |entry: &Entry| if let Entry::Open(kind) = entry { Some(Arc::clone(kind)) } else { None };
        self.entries().values().filter_map(open).collect()
    }

    /// What waits in the pools.
    pub(crate) fn shelves(&self) -> Vec<Shelf> {
        let open = |(name, entry): (&String, &Entry)| match entry {
            Entry::Open(kind) => Some(kind.pool.shelf(name)),
            Entry::Building(_) => None,
        };
        self.entries().iter().filter_map(open).collect()
    }

    /// The base, which every node has.
    ///
    /// # Panics
    /// Never after the node has been opened.
    pub(crate) fn base(&self) -> Arc<Kind> {
        match self.get(BASE) {
            Some(Entry::Open(kind)) => kind,
            _ => unreachable!("a node is opened with its base"),
        }
    }

    pub(crate) fn set(&self, name: &str, entry: Entry) {
        self.entries().insert(name.to_owned(), entry);
        self.changed.notify_waiters();
    }

    /// Enters a template, unless somebody was quicker: then theirs is taken.
    pub(crate) fn open_once(&self, name: &str, kind: Arc<Kind>) -> Arc<Kind> {
        let mut entries = self.entries();
        match entries.get(name) {
            Some(Entry::Open(first)) => Arc::clone(first),
            _ => {
                entries.insert(name.to_owned(), Entry::Open(Arc::clone(&kind)));
                kind
            }
        }
    }

    pub(crate) fn forget(&self, name: &str) {
        self.entries().remove(name);
        self.changed.notify_waiters();
    }

    /// Whether the caller is the one who builds it now.
    pub(crate) fn begin_building(&self, name: &str) -> bool {
        let mut entries = self.entries();
        if entries.contains_key(name) {
            return false;
        }
        entries.insert(name.to_owned(), Entry::Building(Step { done: 0, total: 0, message: "starting".to_owned() }));
        true
    }

    /// Opens nothing from now on and forgets all but the base. The caller closes their pools.
    pub(crate) fn close(&self) -> Vec<Arc<Kind>> {
        self.is_closed.store(true, Ordering::Release);
        let kinds = self.open_kinds();
        self.entries().retain(|name, _| name == BASE);
        self.changed.notify_waiters();
        kinds
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn infos(&self) -> Vec<TemplateInfo> {
        let made_at = self.base().template().made_at();
        let base = TemplateInfo {
            made_at,
            name: BASE.to_owned(),
            aliases: Vec::new(),
            summary: "What this machine has: its programs, Python and Node.js where it has them".to_owned(),
            state: TemplateState::Ready,
        };
        let entries = self.entries();
        let made = recipes().iter().map(|recipe| info(recipe, entries.get(recipe.name)));
        std::iter::once(base).chain(made).collect()
    }
}

fn info(recipe: &Recipe, entry: Option<&Entry>) -> TemplateInfo {
    let state = match entry {
        None => TemplateState::NotBuilt,
        Some(Entry::Building(Step { done, total, message })) => {
            TemplateState::Building { done: *done, total: *total, message: message.clone() }
        }
        Some(Entry::Open(kind)) => match &kind.reduced {
            Some(reason) => TemplateState::Reduced { reason: reason.clone() },
            None => TemplateState::Ready,
        },
    };
    let made_at = match entry {
        Some(Entry::Open(kind)) => kind.template().made_at(),
        _ => None,
    };
    TemplateInfo {
        made_at,
        name: recipe.name.to_owned(),
        aliases: recipe.aliases.iter().map(ToString::to_string).collect(),
        summary: recipe.summary.to_owned(),
        state,
    }
}
