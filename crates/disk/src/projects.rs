//! Areas as directories with a project id, on ext4 and xfs mounted with `prjquota`.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use isopod_wire::Bytes;
use rustix::fs::{FlockOperation, Mode};

use super::error::{Context, DiskError, NoLimit};
use super::folder;
use super::name::AreaName;
use super::places::{Areas, Places};
use super::trash::DeletionHook;
use super::tree;
use super::usage::Usage;
use isopod_isolation::sys::project_quota::{self, ProjectQuota};

/// Our ids start here. Administrators number their own projects from 1.
const FIRST: u32 = 0x6000_0000;
const LAST: u32 = 0x7fff_ffff;

/// The file in the state directory that holds the next id.
pub(super) const IDS_FILE: &str = "disk.projects";

pub(super) struct Projects {
    ids: ProjectIds,
}

/// Whether the file system of this directory enforces project quotas, and we may assign project ids.
pub(super) fn is_available(directory: BorrowedFd<'_>) -> bool {
    project_quota::project_quota(directory) == ProjectQuota::Enforced && project_quota::project_of(directory).is_ok()
}

impl Projects {
    /// `state_dir` holds the number of the next project. `areas` and `trash` below `root` show which ids are in use.
    /// Call this before anything empties the trash.
    pub(super) fn open(state_dir: &Path, root: &Path) -> Result<Self, DiskError> {
        let path = state_dir.join(IDS_FILE);
        let in_use = |name| highest_in_use(&root.join(name)).doing("read the project ids in", root.join(name));
        let highest = in_use("areas")?.max(in_use("trash")?);
        let ids = ProjectIds::open(&path, highest).doing("open", path)?;
        Ok(Self { ids })
    }
}

impl Areas for Projects {
    fn create(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        let project = self.ids.next().doing_area("number", name.as_str())?;
        rustix::fs::mkdirat(places.areas(), name.as_str(), Mode::RWXU).doing_area("make", name.as_str())?;
        let prepared = prepare(places, name, project, limit);
        if prepared.is_err() {
            // The caller gets the reason. If the directory cannot be removed, it stays as an area that can be removed
            // later.
            rustix::fs::unlinkat(places.areas(), name.as_str(), rustix::fs::AtFlags::REMOVEDIR).ok();
        }
        prepared
    }

    fn set_limit(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        let project = own_project(places.open_area(name)?.as_fd()).doing_area("look at", name.as_str())?;
        // Project 0 is everything else on this disk and must never be limited.
        let refused = || DiskError::CannotLimit { area: name.to_string(), reason: NoLimit::OlderArea };
        let limit = limit.map(|limit| limit.0);
        project_quota::limit_project(places.areas(), project.ok_or_else(refused)?, limit)
            .doing_area("limit", name.as_str())
    }

    fn usage(&self, places: &Places, name: &AreaName) -> Result<Usage, DiskError> {
        let project = own_project(places.open_area(name)?.as_fd()).doing_area("look at", name.as_str())?;
        let Some(project) = project else { return Ok(Usage { used: None, limit: None }) };
        let figures =
            project_quota::project_figures(places.areas(), project).doing_area("read the usage of", name.as_str())?;
        Ok(Usage { used: Some(Bytes(figures.used)), limit: figures.limit.map(Bytes) })
    }

    fn remove(&self, places: &Places, name: &AreaName) -> Result<(), DiskError> {
        places.discard(name)
    }

    fn no_limit(&self) -> Option<&NoLimit> {
        None
    }
}

fn prepare(places: &Places, name: &AreaName, project: u32, limit: Option<Bytes>) -> Result<(), DiskError> {
    // Set the limit first, so that it applies from the moment the directory has the project.
    if let Some(limit) = limit {
        project_quota::limit_project(places.areas(), project, Some(limit.0)).doing_area("limit", name.as_str())?;
    }
    let area = places.open_area(name)?;
    project_quota::set_project(area.as_fd(), project).doing_area("give a project id to", name.as_str())
}

/// The project of a directory, if it is one of ours.
fn own_project(directory: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let project = project_quota::project_of(directory)?;
    Ok((FIRST..=LAST).contains(&project).then_some(project))
}

fn highest_in_use(parent: &Path) -> io::Result<Option<u32>> {
    let parent = match folder::open_path(parent) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut highest = None;
    for name in tree::names(&parent)? {
        if let Ok(directory) = folder::open_below(&parent, name.as_c_str()) {
            highest = highest.max(own_project(directory.as_fd())?);
        }
    }
    Ok(highest)
}

/// Assigns each id once, across all processes with the same state directory.
struct ProjectIds {
    /// Holds the next id as text. The mutex is for threads, the lock on the file for processes.
    file: Mutex<File>,
}

impl ProjectIds {
    /// `highest` is the highest id in use, which the file may have lost in a power failure.
    fn open(path: &Path, highest: Option<u32>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
        let ids = Self { file: Mutex::new(file) };
        ids.update(|next| next.max(highest.map_or(FIRST, after)))?;
        Ok(ids)
    }

    fn next(&self) -> io::Result<u32> {
        self.update(after)
    }

    /// Returns the previous number.
    fn update(&self, change: impl FnOnce(u32) -> u32) -> io::Result<u32> {
        let file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        rustix::fs::flock(&*file, FlockOperation::LockExclusive)?;
        let mut text = [0; 10];
        let length = file.read_at(&mut text, 0)?;
        let now = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.parse().ok());
        let now = now.filter(|id| (FIRST..=LAST).contains(id)).unwrap_or(FIRST);
        let written = file.write_all_at(format!("{:010}", change(now)).as_bytes(), 0);
        rustix::fs::flock(&*file, FlockOperation::Unlock)?;
        written.map(|()| now)
    }
}

/// After half a billion areas, the ids start again.
fn after(id: u32) -> u32 {
    if id >= LAST { FIRST } else { id + 1 }
}

/// Removes the limit of a project after its last file is deleted, so that the quota file does not grow.
pub(super) struct LiftLimit {
    pub(super) areas: Arc<OwnedFd>,
}

impl DeletionHook for LiftLimit {
    fn before(&self, trash: BorrowedFd<'_>, name: &CStr) -> Option<u32> {
        let directory = folder::open_below(trash, name).ok()?;
        own_project(directory.as_fd()).ok().flatten()
    }

    fn after(&self, project: u32) {
        if let Err(error) = project_quota::limit_project(self.areas.as_fd(), project, None) {
            tracing::warn!(%error, project, "could not remove the quota of a deleted area's project");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_never_given_out_twice() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ids");
        let (one, two) = (ProjectIds::open(&path, None).unwrap(), ProjectIds::open(&path, None).unwrap());
        let ids = [one.next(), two.next(), one.next()].map(Result::unwrap);
        assert_eq!(ids, [FIRST, FIRST + 1, FIRST + 2]);
        let later = ProjectIds::open(&path, Some(FIRST + 40)).unwrap();
        assert_eq!(later.next().unwrap(), FIRST + 41);
    }

    #[test]
    fn a_damaged_file_of_ids_begins_after_the_highest_in_use() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ids");
        std::fs::write(&path, "nonsense and more").unwrap();
        assert_eq!(ProjectIds::open(&path, Some(FIRST + 7)).unwrap().next().unwrap(), FIRST + 8);
    }

    #[test]
    fn ids_begin_anew_after_the_last() {
        assert_eq!(after(LAST), FIRST);
    }
}
