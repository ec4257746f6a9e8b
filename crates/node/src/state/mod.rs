//! The state directory: what is kept where, and the tag by which everything made for it is recognised.

mod template_users;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(crate) use template_users::{add_template_user, remove_template_user, template_users};

/// Where claims that are valid until the next reboot stand: tags of state directories and slots of sandboxes.
pub(crate) const RUN_DIR: &str = "/run/isopod";

/// A state directory that has been opened.
#[derive(Clone, Debug)]
pub struct StateRoot {
    path: PathBuf,
    tag: String,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A directory or file in it could not be made or read.
    #[error("could not {what} {path}")]
    Io {
        /// Make, read, write.
        what: &'static str,
        /// Of which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel gave no random numbers.
    #[error("could not get random numbers")]
    Random(#[source] io::Error),
}

impl StateError {
    pub(crate) fn on(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

impl StateRoot {
    /// Opens a state directory, making it when it is not there. Only its owner may look into it: it holds tokens and
    /// set-uid programs that mean something inside sandboxes only.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        make_private_directory(path)?;
        let path = path.canonicalize().map_err(StateError::on("find", path))?;
        for part in ["homes", "layers", "templates"] {
            make_private_directory(&path.join(part))?;
        }
        let tag = read_or_make_tag(&path)?;
        let templates = path.join("templates");
        add_template_user(&path, &templates).map_err(StateError::on("enter the state directory in", &templates))?;
        Ok(Self { path, tag })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Four characters that stand in the names of all that is made outside the directory.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    pub(crate) fn homes(&self) -> PathBuf {
        self.path.join("homes")
    }

    /// Layers of built templates. It may be a link to a directory that state directories share.
    pub fn templates(&self) -> PathBuf {
        self.path.join("templates")
    }

    /// Generations of the base, shared by everything that uses this state directory.
    pub fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }
}

pub(crate) fn make_private_directory(path: &Path) -> Result<(), StateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StateError::on("make", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(StateError::on("close to others", path))
}

fn read_or_make_tag(path: &Path) -> Result<String, StateError> {
    let file = path.join("tag");
    match fs::read_to_string(&file) {
        Ok(tag) if is_tag(tag.trim()) => {
            let tag = tag.trim().to_owned();
            // After a reboot the claim is gone, and this renews it.
            make_private_directory(&tags().join(&tag))?;
            Ok(tag)
        }
        _ => make_tag(&file),
    }
}

fn is_tag(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn tags() -> PathBuf {
    Path::new(RUN_DIR).join("tags")
}

fn make_tag(file: &Path) -> Result<String, StateError> {
    make_private_directory(&tags())?;
    loop {
        let mut bytes = [0; 2];
        getrandom::fill(&mut bytes).map_err(|error| StateError::Random(error.into()))?;
        let tag = hex::encode(bytes);
        let claim = tags().join(&tag);
        match fs::create_dir(&claim) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StateError::on("make", &claim)(error)),
            Ok(()) => {
                fs::write(file, &tag).map_err(StateError::on("write", file))?;
                return Ok(tag);
            }
        }
    }
}

impl StateRoot {
    /// Gives the tag back, when nothing of this directory is left.
    pub fn forget_tag(&self) {
        // A claim that stays behind costs one of 65,536 tags until the next reboot.
        let _ = fs::remove_dir(tags().join(&self.tag));
    }
}
