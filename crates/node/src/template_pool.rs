//! The open templates of a node, each with its own pool.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_wire::node::{TemplateInfo, TemplatePoolStatus, TemplateState};
use tokio::sync::Notify;

use crate::pool::Pool;
use crate::template::{BASE, Recipe, Step, Template, recipes};

/// If a zygote ran this long, the next failure counts as the first.
const ZYGOTE_MIN_UPTIME: Duration = Duration::from_secs(60);
/// The wait before another zygote after the first failure. It doubles with each further one.
const ZYGOTE_BACKOFF: Duration = Duration::from_secs(1);
const ZYGOTE_MAX_BACKOFF: Duration = Duration::from_secs(300);

fn backoff_after(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    ZYGOTE_BACKOFF.saturating_mul(factor).min(ZYGOTE_MAX_BACKOFF)
}

/// The number of consecutive zygotes that failed to start or ended early.
#[derive(Debug, Default)]
struct ZygoteFailures(AtomicU32);

impl ZygoteFailures {
    /// How long to wait after the end of a zygote that ran this long.
    fn backoff(&self, lived: Duration) -> Duration {
        if lived >= ZYGOTE_MIN_UPTIME {
            self.0.store(0, Ordering::Relaxed);
        }
        backoff_after(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// The second layer of a template's recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SecondLayerState {
    /// It is part of the template, or the recipe has none.
    #[default]
    Complete,
    Building,
    Failed(String),
}

/// An open template and its pool.
#[derive(Debug)]
pub(crate) struct TemplatePool {
    /// The key in [`TemplatePools`].
    pub(crate) key: String,
    template: Mutex<Arc<Template>>,
    pub(crate) pool: Pool,
    /// Why it lacks what its recipe installs.
    pub(crate) reduced: Option<String>,
    more: Mutex<SecondLayerState>,
    /// When it was first requested.
    pub(crate) opened_at: Instant,
    zygote_failures: ZygoteFailures,
}

impl TemplatePool {
    pub(crate) fn new(key: &str, template: Arc<Template>, pool: Pool, reduced: Option<String>) -> Arc<Self> {
        let (key, template) = (key.to_owned(), Mutex::new(template));
        let zygote_failures = ZygoteFailures::default();
        let more = Mutex::default();
        Arc::new(Self { key, template, pool, reduced, more, opened_at: Instant::now(), zygote_failures })
    }

    pub(crate) fn more(&self) -> SecondLayerState {
        self.more.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_more(&self, more: SecondLayerState) {
        *self.more.lock().unwrap_or_else(PoisonError::into_inner) = more;
    }

    /// How long to wait before starting another zygote, after the end of one that ran this long.
    pub(crate) fn zygote_backoff(&self, lived: Duration) -> Duration {
        self.zygote_failures.backoff(lived)
    }

    pub(crate) fn template(&self) -> Arc<Template> {
        Arc::clone(&self.template.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Switches to another generation. Running sandboxes keep theirs.
    pub(crate) fn replace(&self, template: Arc<Template>) {
        *self.template.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&template);
        self.pool.replace_template(template);
    }
}

/// The open templates by name.
#[derive(Debug, Default)]
pub(crate) struct TemplatePools {
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Set when the node closes. Templates and zygotes that are still being built are then dropped.
    is_closed: AtomicBool,
    /// Notified whenever an entry changes.
    pub(crate) changed: Notify,
}

#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Open(Arc<TemplatePool>),
    Building(Step),
}

impl TemplatePools {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Entry> {
        self.entries().get(name).cloned()
    }

    pub(crate) fn open_pools(&self) -> Vec<Arc<TemplatePool>> {
        let open =
            |entry: &Entry| if let Entry::Open(template_pool) = entry { Some(Arc::clone(template_pool)) } else { None };
        self.entries().values().filter_map(open).collect()
    }

    /// The sizes of the pools.
    pub(crate) fn statuses(&self) -> Vec<TemplatePoolStatus> {
        let open = |(name, entry): (&String, &Entry)| match entry {
            Entry::Open(template_pool) => Some(template_pool.pool.status(name)),
            Entry::Building(_) => None,
        };
        self.entries().iter().filter_map(open).collect()
    }

    /// The base, which every node has.
    ///
    /// # Panics Before the node has been opened.
    pub(crate) fn base(&self) -> Arc<TemplatePool> {
        match self.get(BASE) {
            Some(Entry::Open(template_pool)) => template_pool,
            _ => unreachable!("opening a node opens its base"),
        }
    }

    pub(crate) fn set(&self, name: &str, entry: Entry) {
        self.entries().insert(name.to_owned(), entry);
        self.changed.notify_waiters();
    }

    /// Adds a template and returns it. If the template is already open, returns that one instead.
    pub(crate) fn open_once(&self, name: &str, template_pool: Arc<TemplatePool>) -> Arc<TemplatePool> {
        let mut entries = self.entries();
        match entries.get(name) {
            Some(Entry::Open(first)) => Arc::clone(first),
            _ => {
                entries.insert(name.to_owned(), Entry::Open(Arc::clone(&template_pool)));
                template_pool
            }
        }
    }

    pub(crate) fn forget(&self, name: &str) {
        self.entries().remove(name);
        self.changed.notify_waiters();
    }

    /// Returns true if the caller must build it now.
    pub(crate) fn begin_building(&self, name: &str) -> bool {
        let mut entries = self.entries();
        if entries.contains_key(name) {
            return false;
        }
        entries.insert(name.to_owned(), Entry::Building(Step { done: 0, total: 0, message: "starting".to_owned() }));
        true
    }

    /// Stops opening templates and removes all but the base. The caller closes the pools.
    pub(crate) fn close(&self) -> Vec<Arc<TemplatePool>> {
        self.is_closed.store(true, Ordering::Release);
        let template_pools = self.open_pools();
        self.entries().retain(|name, _| name == BASE);
        self.changed.notify_waiters();
        template_pools
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
            summary: "The programs of this machine, with its Python and Node.js if installed".to_owned(),
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
        Some(Entry::Open(template_pool)) => match &template_pool.reduced {
            Some(reason) => TemplateState::Reduced { reason: reason.clone() },
            None => TemplateState::Ready,
        },
    };
    let made_at = match entry {
        Some(Entry::Open(template_pool)) => template_pool.template().made_at(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_a_zygote_doubles_the_wait_up_to_a_bound() {
        let waits: Vec<u64> = (0..12).map(|failures| backoff_after(failures).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(backoff_after(u32::MAX), ZYGOTE_MAX_BACKOFF);
    }

    #[test]
    fn zygotes_that_die_young_are_waited_for_ever_longer_and_a_good_life_begins_anew() {
        let failures = ZygoteFailures::default();
        let after = |seconds: &[u64]| -> Vec<u64> {
            seconds.iter().map(|lived| failures.backoff(Duration::from_secs(*lived)).as_secs()).collect()
        };
        assert_eq!(after(&[0, 0, 5, 59]), [1, 2, 4, 8]);
        assert_eq!(after(&[60, 0, 1]), [1, 2, 4]);
        assert_eq!(after(&[3600, 3600, 0]), [1, 1, 2]);
    }
}
