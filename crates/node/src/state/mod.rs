//! The state directory: its layout, and the tag that marks everything created for it.

mod template_users;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(crate) use template_users::{add_template_user, remove_template_user, template_users};

/// The directory of claims that are valid until the next reboot: tags of state directories and slots of sandboxes.
pub(crate) const RUN_DIR: &str = "/run/isopod";

/// An open state directory.
#[derive(Clone, Debug)]
pub struct StateRoot {
    path: PathBuf,
    tag: String,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A directory or file in it could not be created or read.
    #[error("could not {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel returned no random numbers.
    #[error("could not get random numbers")]
    Random(#[source] io::Error),
}

impl StateError {
    pub(crate) fn on(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

impl StateRoot {
    /// Opens a state directory. Creates it if it does not exist. Only its owner may access it, because it contains
    /// tokens and set-uid programs for sandboxes.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        make_private_directory(path)?;
        let path = path.canonicalize().map_err(StateError::on("find", path))?;
        for part in ["homes", "layers", "templates"] {
            make_private_directory(&path.join(part))?;
        }
        let tag = read_or_make_tag(&path)?;
        let templates = path.join("templates");
        add_template_user(&path, &templates).map_err(StateError::on("register the state directory in", &templates))?;
        Ok(Self { path, tag })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Four characters in the names of everything that is created outside the directory.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    pub(crate) fn homes(&self) -> PathBuf {
        self.path.join("homes")
    }

    /// Layers of built templates. It may be a link to a directory that several state directories share.
    pub fn templates(&self) -> PathBuf {
        self.path.join("templates")
    }

    /// Generations of the base, for everything that uses this state directory.
    pub fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }
}

pub(crate) fn make_private_directory(path: &Path) -> Result<(), StateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StateError::on("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(StateError::on("set the permissions of", path))
}

fn read_or_make_tag(path: &Path) -> Result<String, StateError> {
    let file = path.join("tag");
    match fs::read_to_string(&file) {
        Ok(tag) if is_tag(tag.trim()) => {
            let tag = tag.trim().to_owned();
            // A reboot removes the claim, so renew it.
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
            Err(error) => return Err(StateError::on("create", &claim)(error)),
            Ok(()) => {
                fs::write(file, &tag).map_err(StateError::on("write", file))?;
                return Ok(tag);
            }
        }
    }
}

impl StateRoot {
    /// Releases the tag. Call it when nothing of this directory is left.
    pub fn forget_tag(&self) {
        // A claim that stays costs one of 65,536 tags until the next reboot.
        let _ = fs::remove_dir(tags().join(&self.tag));
    }
}
