//! What is known about the files of one sandbox: the inputs that it has, and the last known state of its home
//! directory.

use std::collections::HashMap;
use std::sync::Arc;

use isopod_store::{FileFacts, FileHash, FileRecord, Side};

/// The files of one sandbox.
#[derive(Debug, Default)]
pub(in crate::sessions) struct Known {
    /// Inputs that were sent, as they are on the host.
    pub(super) inputs: Arc<HashMap<String, Seen>>,
    /// The home directory. `None` if it has not been listed yet.
    pub(super) inside: Option<HashMap<String, Seen>>,
    /// The inputs that the sandbox had at its checkpoints.
    checkpoints: HashMap<String, Arc<HashMap<String, Seen>>>,
    /// What has not been saved to the store yet.
    unsaved: Vec<FileRecord>,
}

/// A file when it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) facts: FileFacts,
    pub(super) hash: Option<FileHash>,
    /// The metadata alone cannot show that it has not changed since.
    pub(super) recheck: bool,
}

impl Known {
    /// From the records in the store.
    pub(in crate::sessions) fn from_records(records: Vec<FileRecord>) -> Self {
        let mut known = Self::default();
        for FileRecord { side, path, facts, hash } in records {
            let Some(facts) = facts else { continue };
            let seen = Seen { facts, hash, recheck: side == Side::Input };
            match side {
                Side::Input => Arc::make_mut(&mut known.inputs).insert(path, seen),
                Side::Inside => known.inside.get_or_insert_default().insert(path, seen),
            };
        }
        known
    }

    /// The inputs that the sandbox has.
    pub(in crate::sessions) fn input_paths(&self) -> Vec<String> {
        self.inputs.keys().cloned().collect()
    }

    /// The sandbox has a checkpoint of this name now.
    pub(in crate::sessions) fn keep_at(&mut self, checkpoint: &str) {
        self.checkpoints.insert(checkpoint.to_owned(), Arc::clone(&self.inputs));
    }

    /// The sandbox was put back: it has the inputs that it had then. Returns those that it has no more, or `None` if this
    /// server does not know the checkpoint. What is inside, the next listing shows.
    pub(in crate::sessions) fn go_back_to(&mut self, checkpoint: &str) -> Option<Vec<String>> {
        let before = self.checkpoints.get(checkpoint).cloned()?;
        let gone = self.forget_inputs(|path| !before.contains_key(path));
        before.iter().for_each(|(path, seen)| self.input_is(path, *seen));
        Some(gone)
    }

    /// Forgets that these inputs were sent, so that they are sent again. Returns their paths.
    pub(in crate::sessions) fn forget_inputs(&mut self, is_gone: impl Fn(&str) -> bool) -> Vec<String> {
        let gone: Vec<String> = self.inputs.keys().filter(|path| is_gone(path)).cloned().collect();
        gone.iter().for_each(|path| self.input_is_gone(path));
        gone
    }

    /// Forgets checkpoints whose names begin like this.
    pub(in crate::sessions) fn forget_checkpoints(&mut self, beginning: &str) {
        self.checkpoints.retain(|name, _| !name.starts_with(beginning));
    }

    /// Takes the unsaved records. A caller that fails to save them returns them with [`Known::keep_unsaved`].
    pub(in crate::sessions) fn take_unsaved(&mut self) -> Vec<FileRecord> {
        std::mem::take(&mut self.unsaved)
    }

    pub(in crate::sessions) fn keep_unsaved(&mut self, mut records: Vec<FileRecord>) {
        records.append(&mut self.unsaved);
        self.unsaved = records;
    }

    /// Whether this sandbox has not been listed yet.
    pub(super) fn is_new(&self) -> bool {
        self.inside.is_none()
    }

    pub(super) fn input_is(&mut self, path: &str, seen: Seen) {
        let before = Arc::make_mut(&mut self.inputs).insert(path.to_owned(), seen);
        if before.is_none_or(|before| (before.facts, before.hash) != (seen.facts, seen.hash)) {
            self.record(Side::Input, path, Some(seen));
        }
    }

    pub(super) fn inside_is(&mut self, path: &str, seen: Seen) {
        self.inside.get_or_insert_default().insert(path.to_owned(), seen);
        self.record(Side::Inside, path, Some(seen));
    }

    pub(super) fn input_is_gone(&mut self, path: &str) {
        if Arc::make_mut(&mut self.inputs).remove(path).is_some() {
            self.record(Side::Input, path, None);
        }
    }

    pub(super) fn inside_is_gone(&mut self, path: &str) {
        if self.inside.as_mut().and_then(|inside| inside.remove(path)).is_some() {
            self.record(Side::Inside, path, None);
        }
    }

    fn record(&mut self, side: Side, path: &str, seen: Option<Seen>) {
        let (facts, hash) = (seen.map(|seen| seen.facts), seen.and_then(|seen| seen.hash));
        self.unsaved.push(FileRecord { side, path: path.to_owned(), facts, hash });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(size: u64) -> Seen {
        Seen { facts: FileFacts { size, ..FileFacts::default() }, hash: None, recheck: false }
    }

    #[test]
    fn a_rollback_takes_back_which_inputs_were_sent() {
        let mut known = Known::default();
        known.input_is("kept", seen(1));
        known.input_is("changed", seen(1));
        known.keep_at("one");
        known.input_is("changed", seen(2));
        known.input_is("new", seen(1));
        known.take_unsaved();
        assert_eq!(known.go_back_to("one").unwrap(), ["new"]);
        assert_eq!(known.inputs.len(), 2);
        assert_eq!(known.inputs["changed"], seen(1));
        assert_eq!(known.take_unsaved().len(), 2, "what has changed is saved");
        assert_eq!(known.go_back_to("unknown"), None);
        assert_eq!(known.forget_inputs(|path| path == "kept"), ["kept"]);
        known.forget_checkpoints("on");
        assert_eq!(known.go_back_to("one"), None);
    }
}
