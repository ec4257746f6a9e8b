//! The files of a run, for clients outside its sandbox: list, read, write, and copy from the team's library.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use isopod_store::clock::Timestamp;
use isopod_store::{ArtifactInfo, Owner, Promotion, Resource, TeamId};
use serde::Serialize;
use utoipa::ToSchema;

use super::workspace::{HostTree, RelPath, RunFiles, WorkspaceError, content_type};
use super::{SessionError, Sessions};

/// How much of a file an agent is shown.
const MAX_TEXT: usize = 50_000;
const TRUNCATED: &str = "...[TRUNCATED]...";
/// More than anybody reads in a list.
const MAX_LISTED: usize = 100_000;
/// The client whose library is shared: other clients of the team read from it if they have no file of that name.
pub(crate) const PUBLIC: &str = "public";

/// A file of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunFile)]
pub(crate) struct ListedFile {
    pub(crate) filename: String,
    /// `output` or `input`.
    pub(crate) origin: String,
    pub(crate) size_bytes: u64,
    pub(crate) content_type: &'static str,
}

/// A file of a library. Those that were promoted say where they came from and when they expire; for those that were
/// uploaded, all of that is null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct LibraryFile {
    filename: String,
    /// The client whose library it is in.
    origin: String,
    size_bytes: u64,
    content_type: &'static str,
    run_id: Option<String>,
    /// The agent or node that made it.
    agent_id: Option<String>,
    generated_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

/// Why a file of the host is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("there is no file {0:?}")]
    NotFound(String),
    #[error("{0:?} cannot be written: something else is in the way")]
    InTheWay(String),
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Sessions {
    /// The run's files on the host. Output files hide input files of the same name.
    pub(crate) async fn list_files(&self, team: &TeamId, owner: &Owner) -> Result<Vec<ListedFile>, SessionError> {
        let Some(files) = self.existing_files(team, owner).await? else { return Ok(Vec::new()) };
        on_host("list", "the run's files", move || {
            let mut listed = list(&files.output, "output")?;
            let inputs = list(&files.input, "input")?;
            let hidden: HashSet<_> = listed.iter().map(|file| file.filename.clone()).collect();
            listed.extend(inputs.into_iter().filter(|file| !hidden.contains(&file.filename)));
            listed.sort_unstable_by(|a, b| a.filename.cmp(&b.filename));
            Ok(listed)
        })
        .await
    }

    /// The directory that has a file of the run: its output, then its input.
    pub(crate) async fn find_file(
        &self,
        team: &TeamId,
        owner: &Owner,
        path: &RelPath,
    ) -> Result<Arc<HostTree>, FileError> {
        let not_found = || FileError::NotFound(path.as_str().to_owned());
        let files = self.existing_files(team, owner).await?.ok_or_else(not_found)?;
        let wanted = path.clone();
        let found = on_host("look for", path.as_str(), move || {
            Ok([files.output, files.input].into_iter().find(|tree| tree.facts(&wanted).is_ok()))
        });
        found.await?.ok_or_else(not_found)
    }

    /// A file as text, truncated for an agent.
    pub(crate) async fn read_text(&self, team: &TeamId, owner: &Owner, path: &RelPath) -> Result<String, FileError> {
        let tree = self.find_file(team, owner, path).await?;
        let wanted = path.clone();
        let bytes = on_host("read", path.as_str(), move || {
            use std::io::Read as _;
            let mut bytes = Vec::new();
            // A character has at most four bytes.
            tree.read(&wanted)?.0.take(4 * MAX_TEXT as u64 + 4).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        Ok(truncated(&String::from_utf8_lossy(&bytes.await?)))
    }

    /// Writes an agent's file: into the output for readers, and into the input, from where it gets into the sandbox at
    /// the next call.
    pub(crate) async fn write_text(
        &self,
        team: &TeamId,
        owner: &Owner,
        path: &RelPath,
        contents: String,
        agent: Option<String>,
    ) -> Result<ArtifactInfo, FileError> {
        let files = self.files_of(team, owner).await?;
        let (target, size) = (path.clone(), contents.len() as u64);
        let written = on_host("write", path.as_str(), move || {
            let written = files.output.write_bytes(&target, true, contents.as_bytes());
            Ok(written.and_then(|_| files.input.write_bytes(&target, true, contents.as_bytes())))
        });
        if written.await?.is_err() {
            return Err(FileError::InTheWay(path.as_str().to_owned()));
        }
        let artifact = ArtifactInfo {
            filename: path.as_str().to_owned(),
            agent_id: agent,
            generated_at: Timestamp::now(),
            size_bytes: size,
            content_type: content_type(path.as_str()).to_owned(),
        };
        let recorded = self.store.save_artifacts(team, owner.id(), std::slice::from_ref(&artifact)).await;
        recorded.map_err(SessionError::from)?;
        Ok(artifact)
    }

    /// The library of a client, together with public files whose names the client does not have.
    pub(crate) async fn list_library(&self, team: &TeamId, client: &str) -> Result<Vec<LibraryFile>, SessionError> {
        let mut promotions = HashMap::new();
        for client in [client, PUBLIC] {
            for one in self.store.promotions_of(team, client).await? {
                promotions.entry((client.to_owned(), one.artifact.filename.clone())).or_insert(one);
            }
        }
        let places = self.library_places(team, client);
        on_host("list", "the library", move || {
            let mut listed = BTreeMap::new();
            for Shelf { client, is_promoted, place } in places {
                for file in list_if_there(&place, &client)? {
                    let name = file.filename.clone();
                    let promotion = is_promoted.then(|| promotions.get(&(client.clone(), name.clone()))).flatten();
                    listed.entry(name).or_insert_with(|| LibraryFile::new(file, promotion));
                }
            }
            Ok(listed.into_values().collect())
        })
        .await
    }

    /// Where the files of a client's library are. The first directory that has a name wins.
    fn library_places(&self, team: &TeamId, client: &str) -> Vec<Shelf> {
        let shelves = |client: &str| {
            let promoted = Shelf::new(client, true, self.directories.promoted(team, client));
            [promoted, Shelf::new(client, false, self.directories.library(team, client))]
        };
        let mut places = Vec::from(shelves(client));
        if client != PUBLIC {
            places.extend(shelves(PUBLIC));
        }
        places
    }

    /// The directory that has a file of the library: the client's, then the public one.
    pub(crate) async fn find_in_library(
        &self,
        team: &TeamId,
        client: &str,
        path: &RelPath,
    ) -> Result<Arc<HostTree>, FileError> {
        let places = self.library_places(team, client);
        let wanted = path.clone();
        let found = on_host("look for", path.as_str(), move || {
            let trees = places.iter().filter_map(|shelf| HostTree::open(&shelf.place).ok());
            Ok(trees.into_iter().find(|tree| tree.facts(&wanted).is_ok()).map(Arc::new))
        });
        found.await?.ok_or_else(|| FileError::NotFound(path.as_str().to_owned()))
    }

    /// The directory for uploads to the client's library. Creates it if necessary.
    pub(crate) async fn ensure_library(&self, team: &TeamId, client: &str) -> Result<Arc<HostTree>, SessionError> {
        let place = self.directories.library(team, client);
        on_host("open", "the library", move || HostTree::ensure(&place).map(Arc::new)).await
    }

    /// Copies files of the library into the input of a run.
    pub(crate) async fn attach_library(
        &self,
        team: &TeamId,
        owner: &Owner,
        client: &str,
        paths: &[RelPath],
    ) -> Result<(), FileError> {
        let files = self.files_of(team, owner).await?;
        for path in paths {
            let tree = self.find_in_library(team, client, path).await?;
            copy(tree, path, Arc::clone(&files.input), path).await?;
        }
        Ok(())
    }

    /// The output of a run that has this file.
    pub(crate) async fn find_artifact(
        &self,
        team: &TeamId,
        owner: &Owner,
        path: &RelPath,
    ) -> Result<Arc<HostTree>, FileError> {
        let not_found = || FileError::NotFound(path.as_str().to_owned());
        let output = self.existing_files(team, owner).await?.ok_or_else(not_found)?.output;
        let (tree, wanted) = (Arc::clone(&output), path.clone());
        let is_there = on_host("look for", path.as_str(), move || Ok(tree.facts(&wanted).is_ok())).await?;
        if is_there { Ok(output) } else { Err(not_found()) }
    }

    /// Removes a file from the input. Returns whether it existed.
    pub(crate) async fn remove_input(&self, team: &TeamId, owner: &Owner, path: &RelPath) -> Result<bool, FileError> {
        let Some(files) = self.existing_files(team, owner).await? else { return Ok(false) };
        remove(files.input, path).await
    }

    /// Removes a file from the client's own library. Returns whether it existed.
    pub(crate) async fn remove_from_library(
        &self,
        team: &TeamId,
        client: &str,
        path: &RelPath,
    ) -> Result<bool, FileError> {
        let was_promoted = self.unpromote(team, client, path).await?;
        let place = self.directories.library(team, client);
        let was_uploaded = match HostTree::open(&place) {
            Ok(tree) => remove(Arc::new(tree), path).await?,
            Err(_) => false,
        };
        Ok(was_promoted || was_uploaded)
    }

    /// Removes the output and artifacts of a run. Returns the number of artifacts.
    pub(crate) async fn remove_artifacts(&self, team: &TeamId, owner: &Owner) -> Result<u64, SessionError> {
        self.store.check_here(Resource::Artifacts(team, owner.id())).await?;
        if let Some(files) = self.existing_files(team, owner).await? {
            on_host("remove", "the run's output", move || {
                for (path, _) in files.output.walk(MAX_LISTED)?.files {
                    files.output.remove(&path)?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(self.store.forget_artifacts(team, owner.id()).await?)
    }

    /// `None` if the run never had any files. Reading must neither create nor claim directories.
    async fn existing_files(&self, team: &TeamId, owner: &Owner) -> Result<Option<RunFiles>, SessionError> {
        let directory = self.directories.of(team, owner).join("input");
        let is_there = tokio::task::spawn_blocking(move || directory.is_dir()).await.unwrap_or(false);
        match is_there {
            true => self.files_of(team, owner).await.map(Some),
            false => Ok(None),
        }
    }
}

/// A directory with files of a library.
#[derive(Debug)]
struct Shelf {
    client: String,
    /// Whether the files in it were promoted, and not uploaded.
    is_promoted: bool,
    place: PathBuf,
}

impl Shelf {
    fn new(client: &str, is_promoted: bool, place: PathBuf) -> Self {
        Self { client: client.to_owned(), is_promoted, place }
    }
}

impl LibraryFile {
    fn new(file: ListedFile, promotion: Option<&Promotion>) -> Self {
        let ListedFile { filename, origin, size_bytes, content_type } = file;
        Self {
            filename,
            origin,
            size_bytes,
            content_type,
            run_id: promotion.map(|one| one.run.clone()),
            agent_id: promotion.and_then(|one| one.artifact.agent_id.clone()),
            generated_at: promotion.map(|one| one.artifact.generated_at),
            expires_at: promotion.map(|one| one.expires_at),
        }
    }
}

/// Copies a file of the host from one directory to another.
async fn copy(from: Arc<HostTree>, source: &RelPath, to: Arc<HostTree>, target: &RelPath) -> Result<(), FileError> {
    let (read, write, shown) = (source.clone(), target.clone(), target.as_str().to_owned());
    let copied = on_host("copy", source.as_str(), move || {
        let file = from.read(&read)?.0;
        Ok(to.write_from(&write, file).is_ok())
    });
    if copied.await? { Ok(()) } else { Err(FileError::InTheWay(shown)) }
}

/// Removes a file. A directory is not a file, and nothing exists below a file or a link.
async fn remove(tree: Arc<HostTree>, path: &RelPath) -> Result<bool, FileError> {
    let target = path.clone();
    let removed = on_host("remove", path.as_str(), move || {
        if tree.facts(&target).is_err() {
            return Ok(false);
        }
        tree.remove(&target)
    });
    Ok(removed.await?)
}

pub(super) async fn on_host<T: Send + 'static>(
    what: &'static str,
    path: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, SessionError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| SessionError::Aborted)?;
    done.map_err(|source| WorkspaceError::Host { what, path: path.into(), source }.into())
}

fn list(tree: &HostTree, origin: &str) -> io::Result<Vec<ListedFile>> {
    let walked = tree.walk(MAX_LISTED)?;
    let listed = walked.files.into_iter().map(|(path, facts)| ListedFile {
        filename: path.as_str().to_owned(),
        origin: origin.to_owned(),
        size_bytes: facts.size,
        content_type: content_type(path.as_str()),
    });
    Ok(listed.collect())
}

fn list_if_there(place: &std::path::Path, origin: &str) -> io::Result<Vec<ListedFile>> {
    match HostTree::open(place) {
        Ok(tree) => list(&tree, origin),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn truncated(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((at, _)) => format!("{}{TRUNCATED}", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_after_fifty_thousand_characters_and_says_so() {
        let exact = "é".repeat(MAX_TEXT);
        assert_eq!(truncated(&exact), exact);
        let cut = truncated(&format!("{exact}x"));
        assert_eq!(cut, format!("{exact}...[TRUNCATED]..."));
    }
}
