//! The contexts of the sandbox, and the default ones for clients that name only a language, or nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Interpreter;
use super::context::{Context, KernelView};
use super::language::Language;
use super::saved::{SavedContext, SavedContexts};
use super::start;

#[derive(Debug, Default)]
pub(super) struct Contexts {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// The order of E2B's list: first the default contexts that E2B's sandboxes have from the start, then the others by
    /// their creation.
    pub(super) all: Vec<Arc<Context>>,
    /// How many of them are of the first kind.
    pub(super) first: usize,
    /// The ids of the default contexts, by language.
    pub(super) defaults: HashMap<String, String>,
    /// Languages that have ever had a default context.
    pub(super) ever_created: HashSet<String>,
}

impl Contexts {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Context>> {
        self.table().get(id)
    }

    pub(super) fn all(&self) -> Vec<Arc<Context>> {
        self.table().all.clone()
    }

    pub(super) fn count(&self) -> usize {
        self.table().all.len()
    }

    pub(super) fn add(&self, context: Arc<Context>) {
        self.table().all.push(context);
    }

    pub(super) fn remove(&self, id: &str) -> Option<Arc<Context>> {
        let mut table = self.table();
        let at = table.all.iter().position(|context| context.view.id == id)?;
        table.defaults.retain(|_, default| default != id);
        table.first -= usize::from(at < table.first);
        Some(table.all.remove(at))
    }

    /// The kernels of all contexts.
    pub(super) fn kernels(&self) -> Vec<KernelView> {
        self.table().all.iter().filter_map(|context| context.kernel()).collect()
    }

    pub(super) fn save(&self, save: impl Fn(&Context) -> SavedContext) -> SavedContexts {
        let table = self.table();
        SavedContexts {
            all: table.all.iter().map(|context| save(context)).collect(),
            first: table.first,
            defaults: table.defaults.clone().into_iter().collect(),
            ever_created: table.ever_created.iter().cloned().collect(),
        }
    }

    pub(super) fn replace(&self, table: Table) {
        *self.table() = table;
    }

    /// The default context of a language, if there is one.
    pub(super) fn default_of(&self, language: &str) -> Option<Arc<Context>> {
        let table = self.table();
        table.get(table.defaults.get(language)?)
    }

    /// Creates a default context unless the language ever had one: a removed one does not come back by itself.
    pub(super) fn ensure_first(&self, interpreter: &Arc<Interpreter>, language: &Language) {
        let ever_created = self.table().ever_created.contains(&language.name);
        if !ever_created {
            self.ensure_default(interpreter, language);
        }
    }

    /// The default context of a language; creates it if there is none. Its kernel starts with its first cell.
    pub(super) fn ensure_default(&self, interpreter: &Arc<Interpreter>, language: &Language) -> Arc<Context> {
        if let Some(context) = self.default_of(&language.name) {
            return context;
        }
        let context = Arc::new(Context::new(interpreter, language.clone(), start::home(interpreter)));
        self.table().insert_default(language, Arc::clone(&context));
        context
    }
}

impl Table {
    fn insert_default(&mut self, language: &Language, context: Arc<Context>) {
        let is_new = self.ever_created.insert(language.name.clone());
        self.defaults.insert(language.name.clone(), context.view.id.clone());
        if is_new && language.is_there_from_the_start() {
            self.all.insert(self.first, context);
            self.first += 1;
        } else {
            self.all.push(context);
        }
    }

    fn get(&self, id: &str) -> Option<Arc<Context>> {
        self.all.iter().find(|context| context.view.id == id).cloned()
    }
}

/// A random UUID, as E2B names its contexts.
pub(super) fn random_id() -> String {
    let mut bytes = random_bytes::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

pub(super) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(error) => assert!(error == rustix::io::Errno::INTR, "the kernel has no random bytes: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let (a, b) = (random_id(), random_id());
        assert_ne!(a, b);
        let groups: Vec<usize> = a.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert!(a[14..].starts_with('4') && "89ab".contains(&a[19..20]), "{a}");
    }
}
