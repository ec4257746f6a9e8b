//! `isopod backup`: one file with what a server must not lose: records, keys, certificates, templates, images, files of
//! runs. Servers go on working meanwhile.
//!
//! The archive is a tar: layers of templates have owners, devices and attributes that mean something to overlays, and the
//! system's `tar` keeps them all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use isopod_store::Store;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::DATABASE;
use super::show::{mebibytes, moment};
use crate::args::BackupArgs;
use crate::failure::Hint;

/// Says in the archive what it is.
pub(super) const DESCRIPTION: &str = "isopod-backup.json";
/// The last member, from [`FIRST_WITH_END`] on. An archive that was cut between two members is a valid tar.
pub(super) const END: &str = "isopod-backup-end";
pub(super) const FIRST_WITH_END: u32 = 2;
/// Grows when an older version cannot restore it.
pub(super) const FORMAT: u32 = 2;

/// What is kept besides the database. Sandboxes are not: they belong to the processes of this machine.
pub(super) const PARTS: &[&str] = &["tls", "env", "recipes", "templates", "images", "sessions"];
/// What is being made, locks, and where the running server is.
const LEFT_OUT: &[&str] = &["templates/.*", "images/.*", "images/partial/*", "env/server.json"];

/// How tar keeps a layer as it is. Both directions need it.
pub(super) const AS_IT_IS: &[&str] = &["--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls"];

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) format: u32,
    /// Of the program that wrote it.
    pub(super) version: String,
    #[serde(with = "time::serde::rfc3339")]
    pub(super) created_at: OffsetDateTime,
}

pub(super) async fn run(state_dir: &Path, args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let state_dir = state_dir.canonicalize().with_context(|| format!("could not find {}", state_dir.display()))?;
    let exists = || Hint::new(format!("{} exists already", args.file.display()), "give another name, or remove it");
    if args.file.symlink_metadata().is_ok() {
        return Err(exists());
    }
    remove_abandoned(&state_dir);
    let mut unfinished = Unfinished::begin(&state_dir, &args.file)?;
    let has_records = copy_records(&state_dir, &unfinished.scratch).await?;
    describe(&unfinished.scratch)?;
    archive(&state_dir, &unfinished, has_records)?;
    let size = unfinished.archive.metadata()?.len();
    if !unfinished.finish(&args.file)? {
        return Err(exists());
    }
    tell(&state_dir, &args.file, size, has_records);
    Ok(ExitCode::SUCCESS)
}

/// Removed unless it is finished.
struct Unfinished {
    archive: File,
    path: PathBuf,
    /// For what is written to be archived, in the state directory, because it has keys in it.
    scratch: PathBuf,
}

/// The prefix of the scratch directory. The id of its process follows.
const SCRATCH: &str = "backup-";

impl Unfinished {
    fn begin(state_dir: &Path, file: &Path) -> anyhow::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let mut path = file.as_os_str().to_owned();
        path.push(format!(".{}.unfinished", hex::encode(random)));
        let path = PathBuf::from(path);
        // It must be a new file: the owner of an existing one could read the keys in it.
        let archive = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let archive = archive.with_context(|| format!("could not write {}", path.display()))?;
        let scratch = state_dir.join(format!("{SCRATCH}{}", std::process::id()));
        let unfinished = Self { archive, path, scratch };
        let made = DirBuilder::new().mode(0o700).create(&unfinished.scratch);
        made.with_context(|| format!("could not make {}", unfinished.scratch.display()))?;
        Ok(unfinished)
    }

    /// Returns false if there is such a file by now.
    fn finish(&mut self, file: &Path) -> anyhow::Result<bool> {
        let failed = || format!("could not write {}", file.display());
        self.archive.sync_all().with_context(failed)?;
        match renameat_with(CWD, &self.path, CWD, file, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error).with_context(failed),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What cannot be removed is no reason to fail; its name says what it is.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Removes what backups left that were killed: it has keys in it.
fn remove_abandoned(state_dir: &Path) {
    for entry in fs::read_dir(state_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether there are records in the state directory, and not in PostgreSQL.
async fn copy_records(state_dir: &Path, scratch: &Path) -> anyhow::Result<bool> {
    let path = state_dir.join(DATABASE);
    if !path.exists() {
        return Ok(false);
    }
    Store::copy_file(&path, &scratch.join(DATABASE)).await.context("could not copy the database")?;
    Ok(true)
}

fn describe(scratch: &Path) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let description = Description { format: FORMAT, version, created_at: OffsetDateTime::now_utc() };
    for (name, contents) in [(DESCRIPTION, serde_json::to_vec(&description)?), (END, Vec::new())] {
        let path = scratch.join(name);
        fs::write(&path, contents).with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(())
}

fn archive(state_dir: &Path, unfinished: &Unfinished, has_records: bool) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file=-"]).stdout(unfinished.archive.try_clone()?).args(AS_IT_IS);
    tar.args(["--anchored", "--no-wildcards-match-slash"]);
    tar.args(LEFT_OUT.iter().map(|pattern| format!("--exclude={pattern}")));
    tar.arg("--directory").arg(&unfinished.scratch).arg(DESCRIPTION).args(has_records.then_some(DATABASE));
    tar.arg("--directory").arg(state_dir).args(PARTS.iter().filter(|part| is_own_directory(&state_dir.join(part))));
    tar.arg("--directory").arg(&unfinished.scratch).arg(END);
    let status = tar.env("LC_ALL", "C").status().context("could not run tar")?;
    match status.code() {
        Some(0) => Ok(()),
        // A file changed or went while it was read: somebody is working.
        Some(1) => {
            say!(
                "note: some files changed meanwhile; the backup may have them as they were before, after, or in between"
            );
            Ok(())
        }
        _ => bail!("could not write the backup: tar failed ({status})"),
    }
}

/// A link leads to what several state directories share.
fn is_own_directory(path: &Path) -> bool {
    path.is_dir() && !path.is_symlink()
}

fn tell(state_dir: &Path, file: &Path, size: u64, has_records: bool) {
    say!(
        "{} has the backup of {} at {} ({})",
        file.display(),
        state_dir.display(),
        moment(OffsetDateTime::now_utc()),
        mebibytes(size)
    );
    if !has_records {
        say!("note: it has no records; those of a server with --database are in PostgreSQL (see pg_dump)");
    }
    if state_dir.join("storage/bucket").exists() {
        say!(
            "note: it has no files of the workspace; stop the server and copy {}/storage for them",
            state_dir.display()
        );
    }
    if state_dir.join("templates").is_symlink() {
        say!("note: it has no templates, because `templates` is a link to a shared directory");
    }
}
