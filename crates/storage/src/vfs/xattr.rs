//! Extended attributes. They are in the metadata of the object, so there is little space, and only those with `user.`
//! are kept.

use super::node::{Ino, ROOT};
use super::{Caller, Change, FsError, Vfs};
use crate::attributes::Attributes;

/// What to do if the attribute exists, or does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrMode {
    pub create_only: bool,
    pub replace_only: bool,
}

impl Vfs {
    pub async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        // The kernel asks for it at every write. Only `user.` attributes can exist.
        let name = user_name(name).map_err(|_| FsError::NoAttribute)?;
        self.learn(ino).await?;
        self.core().tree.get(ino)?.attributes.xattrs.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    pub async fn xattr_names(&self, ino: Ino) -> Result<Vec<String>, FsError> {
        self.learn(ino).await?;
        Ok(self.core().tree.get(ino)?.attributes.xattrs.keys().cloned().collect())
    }

    pub async fn set_xattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        let name = user_name(name)?;
        self.change_xattrs(caller, ino, |xattrs| {
            if mode.create_only && xattrs.contains_key(name) {
                return Err(FsError::Exists);
            }
            if mode.replace_only && !xattrs.contains_key(name) {
                return Err(FsError::NoAttribute);
            }
            xattrs.insert(name.to_owned(), value.to_vec());
            if Attributes::xattrs_fit(xattrs) { Ok(()) } else { Err(FsError::NoRoom) }
        })
        .await
    }

    pub async fn remove_xattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let name = user_name(name).map_err(|_| FsError::NoAttribute)?;
        self.change_xattrs(caller, ino, |xattrs| xattrs.remove(name).map(drop).ok_or(FsError::NoAttribute)).await
    }

    async fn change_xattrs(
        &self,
        caller: Caller,
        ino: Ino,
        change: impl FnOnce(&mut std::collections::BTreeMap<String, Vec<u8>>) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        if ino == ROOT {
            // The root of a bucket has no object for them.
            return Err(FsError::NotPermitted);
        }
        self.learn(ino).await?;
        {
            let mut core = self.core();
            let mut xattrs = core.tree.get(ino)?.attributes.xattrs.clone();
            change(&mut xattrs)?;
            core.tree.get_mut(ino)?.attributes.xattrs = xattrs;
            if core.tree.get(ino)?.linked {
                core.mark(ino, false, self.settings.upload_delay)?;
                let record = core.record(ino)?;
                core.commit(&[record])?;
                self.work.notify_one();
            }
        }
        self.announce(caller.mount, &[Change::Attributes(ino)]).await;
        Ok(())
    }
}

fn user_name(name: &[u8]) -> Result<&str, FsError> {
    let text = std::str::from_utf8(name).map_err(|_| FsError::Unsupported)?;
    if text.starts_with("user.") && text.len() > 5 { Ok(text) } else { Err(FsError::Unsupported) }
}
