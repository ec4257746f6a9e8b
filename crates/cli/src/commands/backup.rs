//! `isopod backup`: one file with what a server must not lose: records, keys, certificates, templates, images, files of
//! runs. Servers go on working meanwhile.
//!
//! The archive is a tar: layers of templates have owners, devices and attributes that mean something to overlays, and the
//! system's `tar` keeps them all.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use isopod_store::Store;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::DATABASE;
use super::show::{mebibytes, moment};
use crate::args::BackupArgs;
use crate::failure::Hint;

/// Says in the archive what it is.
pub(super) const DESCRIPTION: &str = "isopod-backup.json";
/// Grows when an older version cannot restore it.
pub(super) const FORMAT: u32 = 1;

/// What is kept besides the database. Sandboxes are not: they belong to the processes of this machine.
const PARTS: &[&str] = &["tls", "env", "templates", "images", "sessions"];
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
    if args.file.exists() {
        return Err(Hint::new(format!("{} exists already", args.file.display()), "give another name, or remove it"));
    }
    let unfinished = Unfinished::begin(&state_dir, &args.file)?;
    let has_records = copy_records(&state_dir, &unfinished.scratch).await?;
    describe(&unfinished.scratch)?;
    archive(&state_dir, &unfinished, has_records)?;
    let size = fs::metadata(&unfinished.archive)?.len();
    unfinished.finish(&args.file)?;
    tell(&state_dir, &args.file, size, has_records);
    Ok(ExitCode::SUCCESS)
}

/// Removed unless it is finished.
struct Unfinished {
    archive: PathBuf,
    /// For what is written to be archived, in the state directory, because it has keys in it.
    scratch: PathBuf,
}

impl Unfinished {
    fn begin(state_dir: &Path, file: &Path) -> anyhow::Result<Self> {
        let mut archive = file.as_os_str().to_owned();
        archive.push(".unfinished");
        let scratch = state_dir.join(format!("backup-{}", std::process::id()));
        let unfinished = Self { archive: archive.into(), scratch };
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished.archive);
        made.with_context(|| format!("could not write {}", unfinished.archive.display()))?;
        let made = DirBuilder::new().mode(0o700).create(&unfinished.scratch);
        made.with_context(|| format!("could not make {}", unfinished.scratch.display()))?;
        Ok(unfinished)
    }

    fn finish(&self, file: &Path) -> anyhow::Result<()> {
        let synced = fs::File::open(&self.archive).and_then(|archive| archive.sync_all());
        synced
            .and_then(|()| fs::rename(&self.archive, file))
            .with_context(|| format!("could not write {}", file.display()))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What cannot be removed is no reason to fail; its name says what it is.
        let _ = fs::remove_file(&self.archive);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Whether there are records in the state directory, and not in PostgreSQL.
async fn copy_records(state_dir: &Path, scratch: &Path) -> anyhow::Result<bool> {
    let path = state_dir.join(DATABASE);
    if !path.exists() {
        return Ok(false);
    }
    let store = Store::open(path).await.context("could not open the database")?;
    let copied = store.copy_to(&scratch.join(DATABASE)).await;
    store.close().await;
    copied.context("could not copy the database")
}

fn describe(scratch: &Path) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let description = Description { format: FORMAT, version, created_at: OffsetDateTime::now_utc() };
    let path = scratch.join(DESCRIPTION);
    fs::write(&path, serde_json::to_vec(&description)?).with_context(|| format!("could not write {}", path.display()))
}

fn archive(state_dir: &Path, unfinished: &Unfinished, has_records: bool) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file"]).arg(&unfinished.archive).args(AS_IT_IS);
    tar.args(["--anchored", "--no-wildcards-match-slash"]);
    tar.args(LEFT_OUT.iter().map(|pattern| format!("--exclude={pattern}")));
    tar.arg("--directory").arg(&unfinished.scratch).arg(DESCRIPTION).args(has_records.then_some(DATABASE));
    tar.arg("--directory").arg(state_dir).args(PARTS.iter().filter(|part| is_own_directory(&state_dir.join(part))));
    run_tar(&mut tar).context("could not write the backup")
}

/// A link leads to what several state directories share.
fn is_own_directory(path: &Path) -> bool {
    path.is_dir() && !path.is_symlink()
}

pub(super) fn run_tar(tar: &mut Command) -> anyhow::Result<()> {
    let status = tar.env("LC_ALL", "C").status().context("could not run tar")?;
    if !status.success() {
        bail!("tar failed ({status})");
    }
    Ok(())
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
    if state_dir.join("templates").is_symlink() {
        say!("note: it has no templates, because `templates` is a link to a shared directory");
    }
}
