//! Turning the writable layer of a stopped sandbox into a layer that others stand on.
//!
//! It is copied, not moved: the writable layers live on a file system with limits, committed ones beside the state. What
//! was written there was written by programs that nobody trusts, so no link is followed, depth, number and bytes have
//! limits, and of the marks that overlays understand only those come along that hide files of the layers below.

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

/// Why a layer was not kept. Nothing is left.
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
    #[error("its files are too much for a layer: {0}")]
    Quota(#[from] QuotaError),
    #[error("its directories are nested more than {0} deep")]
    Depth(usize),
    #[error("the names of its files take more than {0} bytes")]
    Names(usize),
}

impl CommitError {
    /// Whether it is for what is in the layer, and not for something on this side.
    pub(crate) fn is_about_the_files(&self) -> bool {
        matches!(self, Self::Quota(_) | Self::Depth(_) | Self::Names(_))
    }
}

/// How many files a step may change or leave.
const MAX_ENTRIES: u64 = 1_000_000;

/// What a writable layer may hold: as much as its sandbox may write.
pub(crate) fn layer_bounds(disk: Option<Bytes>) -> Bounds {
    Bounds { bytes: disk.map_or(Bounds::default().bytes, |disk| disk.0), entries: MAX_ENTRIES }
}

/// Made anew in every sandbox, or gone when it ends.
const LEFT_OUT: &[&str] = &["etc/resolv.conf", "tmp", "run", "dev", "proc", "sys"];

/// What to do with a layer of the same name that is there when a new one is finished.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Existing {
    /// Use it: somebody else built the same at the same time, and sandboxes may stand on it.
    Take,
    /// Put the new one in its place.
    Replace,
}

/// Copies a writable layer and gives the copy a name. When somebody else has made it meanwhile, theirs is taken.
pub(crate) fn commit_area(
    area: &Path,
    templates: &Path,
    id: &str,
    existing: Existing,
    quota: &Quota,
) -> Result<Layer, CommitError> {
    let making = begin_making(templates, id, quota)?;
    let copied = ["root", "usr"].into_iter().try_for_each(|part| {
        let left_out = if part == "root" { LEFT_OUT } else { &[] };
        copy_tree(&area.join(part), &making.directory.join(part), left_out, &Names::default(), quota).map(drop)
    });
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

/// Set when a sandbox of a build is made, or gone when it ends.
const LEFT_OUT_OF_BUILDS: &[&str] = &["etc/resolv.conf", "etc/isopod", "dev", "proc", "sys"];

/// Copies what has changed in a writable layer since `before`, which is brought up to date, and gives the copy a name.
/// None when nothing has. The sandbox may still be there, but nothing in it may run.
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
