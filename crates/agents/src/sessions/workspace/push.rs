//! Sends files into the sandbox: what is new or changed in the run's input, in one request. A sandbox that has not been
//! listed yet also gets the run's earlier output.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryFutureExt as _;
use isopod_files::pieces_of;
use isopod_guest_client::guest::{Guest, Upload};
use isopod_guest_client::{GuestError, TransportError};
use isopod_store::{FileFacts, FileHash};

use super::facts::is_fresh;
use super::known::{Known, Seen};
use super::pull::{facts_of, list_home};
use super::rel_path::RelPath;
use super::tree::{Hashed, HostTree, Walked};
use super::{RunFiles, Skipped, SyncCaps, WorkspaceError};
use crate::sessions::tool::SyncReport;

/// Small files stay in memory between hashing and sending.
const KEEP_FILE: u64 = 1 << 20;
const KEEP_ALL: u64 = 64 << 20;
/// Up to this many files are listed by name. Their names must fit into a URL.
const FEW: usize = 16;
/// The limit on the total length of their paths, for the same reason.
const FEW_BYTES: usize = 16 << 10;

/// MD5 of inputs by their paths, for readers of the map.
pub(in crate::sessions) type Hashes = Vec<(String, Option<String>)>;

/// Brings the sandbox up to date. Returns the inputs that changed.
pub(in crate::sessions) async fn push(
    guest: &Guest,
    files: &RunFiles,
    known: &mut Known,
    caps: SyncCaps,
    report: &mut SyncReport,
) -> Result<Hashes, WorkspaceError> {
    let is_new = known.is_new();
    let plan = plan(files, known, caps, is_new).await?;
    report.unchanged += plan.unchanged;
    report.skipped.extend(plan.skipped);
    let mut hashes = Hashes::new();
    for path in plan.gone {
        known.input_is_gone(&path);
        hashes.push((path, None));
    }
    for (path, seen) in plan.touched {
        known.input_is(&path, seen);
    }
    if plan.uploads.is_empty() && !is_new {
        return Ok(hashes);
    }
    let sent = send(guest, plan.uploads, report).await?;
    record_sent(guest, known, &sent, caps).await?;
    for sent in sent.into_iter().filter(|sent| sent.is_input) {
        hashes.push((sent.path.as_str().to_owned(), Some(sent.md5)));
        known.input_is(sent.path.as_str(), sent.seen);
    }
    Ok(hashes)
}

/// What to do, after scanning the directories.
#[derive(Debug, Default)]
struct Plan {
    uploads: Vec<Planned>,
    unchanged: u64,
    /// The metadata changed but the contents did not.
    touched: Vec<(String, Seen)>,
    gone: Vec<String>,
    skipped: Vec<Skipped>,
    kept: u64,
    total: u64,
}

#[derive(Debug)]
struct Planned {
    path: RelPath,
    is_input: bool,
    seen: Seen,
    md5: String,
    contents: Contents,
}

#[derive(Clone, Debug)]
enum Contents {
    Memory(Bytes),
    File(Arc<HostTree>),
}

async fn plan(files: &RunFiles, known: &Known, caps: SyncCaps, is_new: bool) -> Result<Plan, WorkspaceError> {
    let (files, inputs) = (files.clone(), Arc::clone(&known.inputs));
    let planning = tokio::task::spawn_blocking(move || plan_now(&files, &inputs, caps, is_new));
    let planned = planning.await.map_err(|error| host("scan", io::Error::other(error)))?;
    planned.map_err(|error| host("scan", error))
}

fn host(what: &'static str, source: io::Error) -> WorkspaceError {
    WorkspaceError::Host { what, path: "the run's files".into(), source }
}

fn plan_now(files: &RunFiles, inputs: &HashMap<String, Seen>, caps: SyncCaps, is_new: bool) -> io::Result<Plan> {
    let mut plan = Plan::default();
    let walked = files.input.walk(caps.files)?;
    plan.add_skipped(&walked, caps);
    let mut present = HashSet::new();
    // The output of a run is newer than the input of the same name.
    if is_new {
        let put_out = files.output.walk(caps.files)?;
        plan.add_skipped(&put_out, caps);
        for (path, facts) in put_out.files {
            present.insert(path.as_str().to_owned());
            plan.consider(&files.output, path, facts, None, false, caps);
        }
    }
    for (path, facts) in walked.files {
        let before = inputs.get(path.as_str());
        if is_new && present.contains(path.as_str()) {
            continue;
        }
        present.insert(path.as_str().to_owned());
        if before.is_some_and(|before| before.facts == facts && !before.recheck) {
            plan.unchanged += 1;
            continue;
        }
        plan.consider(&files.input, path, facts, before, true, caps);
    }
    if !walked.truncated {
        plan.gone = inputs.keys().filter(|path| !present.contains(path.as_str())).cloned().collect();
    }
    Ok(plan)
}

impl Plan {
    fn add_skipped(&mut self, walked: &Walked, caps: SyncCaps) {
        self.skipped.extend(walked.others.iter().map(|(path, reason)| Skipped::new(path.clone(), *reason)));
        if walked.truncated {
            self.skipped.push(Skipped::new("…", format!("there are more than {} files", caps.files)));
        }
    }

    /// Considers a file for sending. An unreadable one is reported and does not block the others.
    fn consider(
        &mut self,
        tree: &Arc<HostTree>,
        path: RelPath,
        facts: FileFacts,
        before: Option<&Seen>,
        is_input: bool,
        caps: SyncCaps,
    ) {
        if facts.size > caps.file_bytes {
            let reason = format!("it has {} bytes, but the limit is {}", facts.size, caps.file_bytes);
            return self.skipped.push(Skipped::new(path.as_str(), reason));
        }
        let keep = if self.kept + facts.size <= KEEP_ALL { KEEP_FILE } else { 0 };
        let Hashed { hash, md5, contents, facts } = match tree.hash(&path, keep) {
            Ok(hashed) => hashed,
            Err(error) => return self.skipped.push(Skipped::new(path.as_str(), format!("cannot be read: {error}"))),
        };
        let seen = Seen { facts, hash: Some(hash), recheck: is_fresh(&facts) };
        if before.is_some_and(|before| before.hash == Some(hash)) {
            self.unchanged += 1;
            return self.touched.push((path.as_str().to_owned(), seen));
        }
        if self.total + facts.size > caps.total_bytes {
            let reason = format!("more than {} bytes would be sent at once", caps.total_bytes);
            return self.skipped.push(Skipped::new(path.as_str(), reason));
        }
        self.total += facts.size;
        self.kept += contents.as_ref().map_or(0, |contents| contents.len() as u64);
        let contents = contents.map_or_else(|| Contents::File(Arc::clone(tree)), Contents::Memory);
        self.uploads.push(Planned { path, is_input, seen, md5, contents });
    }
}

/// A file that was sent.
struct Sent {
    path: RelPath,
    is_input: bool,
    seen: Seen,
    md5: String,
}

impl From<Planned> for Sent {
    fn from(Planned { path, is_input, seen, md5, .. }: Planned) -> Self {
        Self { path, is_input, seen, md5 }
    }
}

/// Sends all files in one request. If the guest refuses one of them, each is sent separately, and failures are
/// reported.
async fn send(guest: &Guest, uploads: Vec<Planned>, report: &mut SyncReport) -> Result<Vec<Sent>, WorkspaceError> {
    if uploads.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |source| WorkspaceError::Guest { what: "send", source };
    match guest.write_files(uploads.iter().map(part).collect()).await {
        Ok(_) => {
            report.uploaded += uploads.len() as u64;
            return Ok(uploads.into_iter().map(Sent::from).collect());
        }
        Err(error) if !is_about_one_file(&error) => return Err(failed(error)),
        Err(_) => {}
    }
    let mut sent = Vec::new();
    for upload in uploads {
        match guest.write_files(vec![part(&upload)]).await {
            Ok(_) => sent.push(upload.into()),
            Err(error) if is_about_one_file(&error) => {
                report.skipped.push(Skipped::new(upload.path.as_str(), format!("could not be sent: {error}")));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    report.uploaded += sent.len() as u64;
    Ok(sent)
}

fn is_about_one_file(error: &GuestError) -> bool {
    matches!(error, GuestError::Refused { .. } | GuestError::Transport(TransportError::Source { .. }))
}

fn part(upload: &Planned) -> (String, Upload) {
    let contents = match &upload.contents {
        Contents::Memory(bytes) => Upload::from(bytes.clone()),
        Contents::File(tree) => read_slowly(Arc::clone(tree), upload.path.clone()),
    };
    (inside(&upload.path), contents)
}

/// The path of a file in the run's sandbox.
pub(super) fn inside(path: &RelPath) -> String {
    format!("~/{path}")
}

/// Reads a large file only when it is sent.
fn read_slowly(tree: Arc<HostTree>, path: RelPath) -> Upload {
    let opening = async move {
        let opened = tokio::task::spawn_blocking(move || tree.read(&path)).await;
        opened?.map(|(file, _)| pieces_of(file))
    };
    Upload::stream(opening.try_flatten_stream())
}

/// Records how sent files look in the sandbox, so that they are not mistaken for output of the run. In a new sandbox,
/// everything that exists counts as seen.
async fn record_sent(guest: &Guest, known: &mut Known, sent: &[Sent], caps: SyncCaps) -> Result<(), WorkspaceError> {
    let hashes: HashMap<&str, Option<FileHash>> =
        sent.iter().map(|sent| (sent.path.as_str(), sent.seen.hash)).collect();
    let is_new = known.is_new();
    known.inside.get_or_insert_default();
    // A home directory has thousands of files, and usually few are sent.
    let is_few = sent.len() <= FEW && sent.iter().map(|sent| sent.path.as_str().len()).sum::<usize>() <= FEW_BYTES;
    let few: Vec<&str> = if !is_new && is_few { hashes.keys().copied().collect() } else { Vec::new() };
    for entry in list_home(guest, caps, &few).await?.entries {
        let hash = hashes.get(entry.path.as_str());
        if is_new || hash.is_some() {
            let seen = Seen { facts: facts_of(&entry), hash: hash.copied().flatten(), recheck: false };
            known.inside_is(&entry.path, seen);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_files(dir: &std::path::Path) -> RunFiles {
        let open = |name: &str| Arc::new(HostTree::ensure(&dir.join(name)).unwrap());
        RunFiles { input: open("input"), output: open("output") }
    }

    fn write(tree: &HostTree, path: &str, contents: &[u8]) {
        tree.write_bytes(&RelPath::parse(path).unwrap(), false, contents).unwrap();
    }

    fn names(plan: &Plan) -> Vec<&str> {
        plan.uploads.iter().map(|upload| upload.path.as_str()).collect()
    }

    /// The state after everything was sent.
    fn sent(plan: &Plan) -> HashMap<String, Seen> {
        let settled = |seen: Seen| Seen { recheck: false, ..seen };
        plan.uploads.iter().map(|upload| (upload.path.as_str().to_owned(), settled(upload.seen))).collect()
    }

    #[test]
    fn contents_decide_and_not_times() {
        let dir = tempfile::tempdir().unwrap();
        let files = run_files(dir.path());
        write(&files.input, "a", b"1");
        write(&files.input, "b", b"2");
        let first = plan_now(&files, &HashMap::new(), SyncCaps::default(), false).unwrap();
        assert_eq!(names(&first), ["a", "b"]);
        let known = sent(&first);
        assert_eq!(plan_now(&files, &known, SyncCaps::default(), false).unwrap().unchanged, 2);
        write(&files.input, "a", b"1");
        write(&files.input, "b", b"3");
        let second = plan_now(&files, &known, SyncCaps::default(), false).unwrap();
        assert_eq!((names(&second), second.unchanged, second.touched.len()), (vec!["b"], 1, 1));
        files.input.remove(&RelPath::parse("a").unwrap()).unwrap();
        assert_eq!(plan_now(&files, &known, SyncCaps::default(), false).unwrap().gone, ["a"]);
    }

    /// A file that was written in the same instant as it was last scanned is scanned again.
    #[test]
    fn a_file_that_is_too_young_is_hashed_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = run_files(dir.path());
        write(&files.input, "a", b"1");
        let mut known = sent(&plan_now(&files, &HashMap::new(), SyncCaps::default(), false).unwrap());
        known.get_mut("a").unwrap().recheck = true;
        known.get_mut("a").unwrap().hash = Some([0; 32]);
        assert_eq!(names(&plan_now(&files, &known, SyncCaps::default(), false).unwrap()), ["a"]);
    }

    /// A new sandbox gets the earlier output, which is newer than the input of the same name.
    #[test]
    fn a_new_sandbox_gets_the_output_too() {
        let dir = tempfile::tempdir().unwrap();
        let files = run_files(dir.path());
        write(&files.input, "a", b"in");
        write(&files.output, "a", b"out");
        write(&files.output, "b", b"out");
        let plan = plan_now(&files, &HashMap::new(), SyncCaps::default(), true).unwrap();
        assert_eq!(names(&plan), ["a", "b"]);
        assert!(plan.uploads.iter().all(|upload| !upload.is_input));
    }

    #[test]
    fn what_exceeds_a_cap_is_left_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let files = run_files(dir.path());
        for (path, size) in [("a", 5), ("b", 50), ("c", 8), ("d", 1)] {
            write(&files.input, path, &vec![0; size]);
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("input/link")).unwrap();
        let caps = SyncCaps { files: 100, file_bytes: 10, total_bytes: 12 };
        let plan = plan_now(&files, &HashMap::new(), caps, false).unwrap();
        assert_eq!(names(&plan), ["a", "d"]);
        let mut told: Vec<&str> = plan.skipped.iter().map(|skipped| skipped.path.as_str()).collect();
        told.sort_unstable();
        assert_eq!(told, ["b", "c", "link"]);
        let caps = SyncCaps { files: 2, ..SyncCaps::default() };
        let plan = plan_now(&files, &HashMap::new(), caps, false).unwrap();
        assert!(plan.uploads.len() == 2 && plan.skipped.iter().any(|skipped| skipped.path == "…"), "{plan:?}");
    }
}
