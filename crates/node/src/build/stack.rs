//! The state of a build: layers, and the settings that instructions change.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use isopod_isolation::launch::takes_many_layers;
use sha2::{Digest, Sha256};

use super::cache::Found;
use crate::template::{Container, Layer};

/// The limit on kernels that need all layers in one mount option.
const MAX_AT_ONCE: usize = 100;
/// The limit on other kernels. They take 500 layers, some of which are the base\'s.
const MAX_ONE_BY_ONE: usize = 450;

/// How many layers a template may have on this machine.
pub(super) fn max_layers() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| if takes_many_layers() { MAX_ONE_BY_ONE } else { MAX_AT_ONCE })
}

/// Layers, and a hash of everything they were made from.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    /// Whether the host's own files are below them.
    pub(super) on_host: bool,
    /// Whether the base has a code interpreter.
    pub(super) has_interpreter: bool,
    /// Lowest first.
    pub(super) layers: Vec<Arc<Layer>>,
    pub(super) bytes: u64,
    /// Equal for the same base and the same steps.
    pub(super) chain: String,
    /// Whether layers of another team's template are among them.
    pub(super) has_others_layers: bool,
}

impl Stack {
    /// The cache key of a step on this stack.
    pub(super) fn key(&self, step: &[&str]) -> String {
        let mut hash = Sha256::new();
        for part in std::iter::once(self.chain.as_str()).chain(step.iter().copied()) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hex::encode(&hash.finalize()[..12])
    }

    /// Adds the result of a step.
    pub(super) fn push(&mut self, key: &str, found: &Found) {
        let id = match found {
            Found::Layer(layer, bytes) => {
                self.bytes += bytes;
                self.layers.push(Arc::clone(layer));
                layer.id()
            }
            Found::Nothing => "",
        };
        self.chain = hex::encode(&Sha256::digest(format!("{key} {id}").as_bytes())[..16]);
    }

    /// The layers, topmost first, as templates need them.
    pub(super) fn topmost_first(&self) -> Vec<Arc<Layer>> {
        self.layers.iter().rev().cloned().collect()
    }
}

/// The default `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What instructions set for later ones, and finally for sandboxes.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: String,
    pub(super) workdir: String,
    pub(super) shell: Vec<String>,
    pub(super) onbuild: Vec<String>,
    /// For images that the template is exported as.
    pub(super) container: Container,
    /// Whether the Dockerfile sets it.
    pub(super) has_user: bool,
    pub(super) has_workdir: bool,
    pub(super) has_cmd: bool,
}

impl Settings {
    /// Docker's defaults.
    pub(super) fn of_docker() -> Self {
        Self {
            env: BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]),
            user: "root".to_owned(),
            workdir: "/".to_owned(),
            shell: vec!["/bin/sh".to_owned(), "-c".to_owned()],
            onbuild: Vec::new(),
            container: Container::default(),
            has_user: false,
            has_workdir: false,
            has_cmd: false,
        }
    }

    /// Resolves a path against the working directory and removes `.` and `..`.
    pub(super) fn resolve(&self, path: &str) -> String {
        let mut parts: Vec<&str> = Vec::new();
        let from = if path.starts_with('/') { "" } else { self.workdir.as_str() };
        for part in from.split('/').chain(path.split('/')) {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_steps_have_the_same_key_and_others_do_not() {
        let mut stack = Stack {
            on_host: true,
            has_interpreter: false,
            layers: Vec::new(),
            bytes: 0,
            chain: "x".to_owned(),
            has_others_layers: false,
        };
        let key = stack.key(&["RUN", "a"]);
        assert_eq!(stack.key(&["RUN", "a"]), key);
        assert_ne!(stack.key(&["RUNa"]), key);
        assert_ne!(stack.key(&["RU", "Na"]), key);
        stack.push(&key, &Found::Nothing);
        assert_ne!(stack.key(&["RUN", "a"]), key);
    }

    #[test]
    fn paths_are_against_the_working_directory() {
        let settings = Settings { workdir: "/a/b".to_owned(), ..Settings::of_docker() };
        for (path, wanted) in
            [("c", "/a/b/c"), ("../c/", "/a/c"), ("/x/./y", "/x/y"), ("../../../..", "/"), (".", "/a/b")]
        {
            assert_eq!(settings.resolve(path), wanted, "{path}");
        }
    }
}
