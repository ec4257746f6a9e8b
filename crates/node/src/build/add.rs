//! `ADD` of a URL. The server fetches the file outside the sandbox and copies it like any other. The layer depends on
//! the file's hash, so an unchanged file gives the same layer.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_image::Digest;
use isopod_image::unpack::Bounds;

use super::Build;
use super::copy::CopyTo;
use super::dockerfile::copy_words;
use super::source::Source;
use super::stack::Stack;
use super::step::{Action, Copy, CopyFrom};
use super::step_error::{StepError, chain};
use super::view::View;
use crate::template::Scratch;

/// As in Docker.
const MODE: u32 = 0o600;

impl Build<'_> {
    pub(super) async fn add_link(
        &mut self,
        stack: &mut Stack,
        url: &str,
        checksum: Option<&Digest>,
        to: &CopyTo,
        owner: &str,
    ) -> Result<(), StepError> {
        if is_git(url) {
            return Err(StepError::invalid(format!("{url} is a git repository; use RUN git clone")));
        }
        let to = CopyTo { mode: to.mode.or(Some(MODE)), ..to.clone() };
        let name = name_of(url);
        let name = match (&name, to.is_directory) {
            (Some(name), _) => name.as_str(),
            (None, false) => "file",
            (None, true) => {
                return Err(StepError::invalid(format!("{url} has no file name; name the target file")));
            }
        };
        let max_bytes = self.limits.disk.map_or(Bounds::default().bytes, |disk| disk.0);
        let team = self.spec.cache_scope.as_deref();
        let fetched = self.shared.images.fetch(url, checksum, max_bytes, team).await;
        let fetched = fetched.map_err(|error| StepError::step(format!("could not fetch {url}: {}", chain(&error))))?;
        let words = copy_words(&to, owner, &[name.to_owned()], &[], fetched.digest.as_str(), &[]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let scratch = self.scratch_with(fetched.path, name).await?;
        let view = View::of_directory(scratch.path()).map_err(|error| StepError::internal("read the file", error))?;
        let from = CopyFrom::Files {
            source: Arc::new(Source::of(view)),
            paths: vec![PathBuf::from(name)],
            inline: Vec::new(),
            _scratch: Some(Arc::new(scratch)),
        };
        let copy = Copy { from, to, owner: Some(owner.to_owned()) };
        self.step(stack, &words, false, Action::Copy(copy)).await
    }

    /// Creates a directory that holds the file under its own name.
    async fn scratch_with(&self, file: PathBuf, name: &str) -> Result<Scratch, StepError> {
        let (templates, name) = (self.sandboxes.templates_directory(), name.to_owned());
        let placed = move || {
            let scratch = Scratch::unique(&templates, "files");
            let scratch = scratch.map_err(|error| StepError::internal("create a directory for the file", error))?;
            let target = scratch.path().join(name);
            let placed = fs::hard_link(&file, &target).or_else(|_| fs::copy(&file, &target).map(drop));
            placed.map_err(|error| StepError::internal("create a directory for the file", error))?;
            Ok(scratch)
        };
        self.work.run(placed).await
    }
}

/// The file name in a URL.
fn name_of(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let (_, path) = rest.split(['?', '#']).next()?.split_once('/')?;
    let name = path.rsplit('/').next().filter(|name| !name.is_empty() && !matches!(*name, "." | ".."))?;
    Path::new(name).file_name().map(|name| name.to_string_lossy().into_owned())
}

fn is_git(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.ends_with(".git") || !(url.starts_with("http://") || url.starts_with("https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_as_its_address_ends() {
        assert_eq!(name_of("https://a.example/b/c.tar?x=/y#z").as_deref(), Some("c.tar"));
        for none in ["https://a.example", "https://a.example/", "https://a.example/b/", "https://a.example/.."] {
            assert_eq!(name_of(none), None, "{none}");
        }
        assert!(is_git("https://a.example/x.git#main") && is_git("git@a.example:x") && !is_git("https://a.example/x"));
    }
}
