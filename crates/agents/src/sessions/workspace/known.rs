//! What is known of the files of one sandbox: which inputs it has, and what its home looked like when last seen.

use std::collections::HashMap;
use std::sync::Arc;

use isopod_store::{FileFacts, FileHash, FileRecord, Side};

/// The files of one sandbox.
#[derive(Debug, Default)]
pub(in crate::sessions) struct Known {
    /// Inputs that were sent, as they are on the host.
    pub(super) inputs: Arc<HashMap<String, Seen>>,
    /// The home; none when nobody has looked yet.
    pub(super) inside: Option<HashMap<String, Seen>>,
    /// What the store does not know yet.
    unsaved: Vec<FileRecord>,
}

/// A file when it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) facts: FileFacts,
    pub(super) hash: Option<FileHash>,
    /// The facts alone cannot show that it did not change since.
    pub(super) look_again: bool,
}

impl Known {
    /// As the store has it.
    pub(in crate::sessions) fn from_records(records: Vec<FileRecord>) -> Self {
        let mut known = Self::default();
        for FileRecord { side, path, facts, hash } in records {
            let Some(facts) = facts else { continue };
            let seen = Seen { facts, hash, look_again: side == Side::Input };
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

    /// What is to be saved. Who fails to save it gives it back.
    pub(in crate::sessions) fn take_unsaved(&mut self) -> Vec<FileRecord> {
        std::mem::take(&mut self.unsaved)
    }

    pub(in crate::sessions) fn keep_unsaved(&mut self, mut records: Vec<FileRecord>) {
        records.append(&mut self.unsaved);
        self.unsaved = records;
    }

    /// Nobody has looked into this sandbox yet.
    pub(super) fn is_new(&self) -> bool {
        self.inside.is_none()
    }

    pub(super) fn input_is(&mut self, path: &str, seen: Seen) {
        let before = Arc::make_mut(&mut self.inputs).insert(path.to_owned(), seen);
        if before.is_none_or(|before| (before.facts, before.hash) != (seen.facts, seen.hash)) {
            self.note(Side::Input, path, Some(seen));
        }
    }

    pub(super) fn inside_is(&mut self, path: &str, seen: Seen) {
        self.inside.get_or_insert_default().insert(path.to_owned(), seen);
        self.note(Side::Inside, path, Some(seen));
    }

    pub(super) fn input_is_gone(&mut self, path: &str) {
        if Arc::make_mut(&mut self.inputs).remove(path).is_some() {
            self.note(Side::Input, path, None);
        }
    }

    pub(super) fn inside_is_gone(&mut self, path: &str) {
        if self.inside.as_mut().and_then(|inside| inside.remove(path)).is_some() {
            self.note(Side::Inside, path, None);
        }
    }

    fn note(&mut self, side: Side, path: &str, seen: Option<Seen>) {
        let (facts, hash) = (seen.map(|seen| seen.facts), seen.and_then(|seen| seen.hash));
        self.unsaved.push(FileRecord { side, path: path.to_owned(), facts, hash });
    }
}
