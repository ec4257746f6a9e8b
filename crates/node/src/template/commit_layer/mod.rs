//! Turns the writable layer of a stopped sandbox into a layer for others.
//!
//! It is copied and not moved, because writable layers are on a file system with limits and committed ones are in the
//! state directory. Untrusted programs wrote the files. So no link is followed, and depth, number and bytes are
//! limited. Of the overlay attributes, only those that hide files of lower layers are copied.

mod copy;
mod stamps;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

use isopod_image::unpack::{Bounds, Quota, QuotaError};
use isopod_wire::Bytes;

use super::layer::{Layer, LayerError, begin_making};
use copy::copy_tree;
use stamps::Names;
pub(crate) use stamps::Stamps;

/// Why a layer was not committed. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("could not copy {path}")]
    Copy {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("its files exceed the limits of a layer: {0}")]
    Quota(#[from] QuotaError),
    #[error("its directories are nested more than {0} deep")]
    Depth(usize),
    #[error("the names of its files take more than {0} bytes")]
    Names(usize),
}

impl CommitError {
    /// Whether the contents of the layer are the cause, and not a problem on the host.
    pub(crate) fn is_about_the_files(&self) -> bool {
        matches!(self, Self::Quota(_) | Self::Depth(_) | Self::Names(_))
    }
}

/// How many files a step may change or leave.
const MAX_ENTRIES: u64 = 1_000_000;

/// The bounds of a writable layer: as much as its sandbox may write.
pub(crate) fn layer_bounds(disk: Option<Bytes>) -> Bounds {
    Bounds { bytes: disk.map_or(Bounds::default().bytes, |disk| disk.0), entries: MAX_ENTRIES }
}

/// Paths that are recreated in every sandbox or vanish when it ends.
const LEFT_OUT: &[&str] = &["etc/resolv.conf", "tmp", "run", "dev", "proc", "sys"];

/// What to do if a layer of the same name already exists when a new one is finished.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Existing {
    /// Use it: another process built the same layer, and sandboxes may use it.
    Take,
    /// Replace it with the new one.
    Replace,
}

/// Copies a writable layer and publishes the copy under `id`. It depends on the layer `below`, if there is one.
pub(crate) fn commit_area(
    area: &Path,
    templates: &Path,
    id: &str,
    below: Option<&str>,
    existing: Existing,
    quota: &Quota,
) -> Result<Layer, CommitError> {
    let making = begin_making(templates, id, quota)?;
    let copied = ["root", "usr"].into_iter().try_for_each(|part| {
        let left_out = if part == "root" { LEFT_OUT } else { &[] };
        copy_tree(&area.join(part), &making.directory.join(part), left_out, &Names::default(), quota).map(drop)
    });
    let copied = copied.and_then(|()| Ok(below.map_or(Ok(()), |below| making.set_below(below))?));
    match copied {
        Ok(()) => match existing {
            Existing::Take => Ok(making.publish_or_take(templates, id)?),
            Existing::Replace => Ok(making.publish(templates, id)?),
        },
        Err(error) => {
            making.give_up();
            Err(error)
        }
    }
}

/// Paths that are set when a sandbox of a build is created, or vanish when it ends.
const LEFT_OUT_OF_BUILDS: &[&str] = &["etc/resolv.conf", "etc/isopod", "dev", "proc", "sys"];

/// Copies what has changed in a writable layer since `before`, updates `before`, and publishes the copy. Returns `None`
/// if nothing has changed. The sandbox may still exist, but nothing in it may run.
pub(crate) fn commit_changes(
    area: &Path,
    before: &mut Stamps,
    templates: &Path,
    id: &str,
    quota: &Quota,
) -> Result<Option<(Layer, u64)>, CommitError> {
    let making = begin_making(templates, id, quota)?;
    let copy = |part: &str, left_out, before| {
        copy_tree(&area.join(part), &making.directory.join(part), left_out, before, quota)
    };
    let copied = copy("root", LEFT_OUT_OF_BUILDS, &before.root)
        .and_then(|root| copy("usr", &[], &before.usr).map(|usr| (root, usr)));
    match copied {
        Ok((root, usr)) => {
            let bytes = root.bytes + usr.bytes;
            let has_changed = root.has_changed || usr.has_changed;
            *before = Stamps { root: root.names, usr: usr.names };
            if !has_changed {
                making.give_up();
                return Ok(None);
            }
            Ok(Some((making.publish_or_take(templates, id)?, bytes)))
        }
        Err(error) => {
            making.give_up();
            Err(error)
        }
    }
}
