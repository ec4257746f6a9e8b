//! One side of a copy, as people write it.

use std::path::PathBuf;

use anyhow::{Context, bail};
use isopod_client::SandboxId;

/// Where something is or goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `-`
    Stream,
    /// On this machine.
    Here(PathBuf),
    /// `ID:PATH`
    Inside(SandboxId, String),
}

impl Place {
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "-" {
            return Ok(Self::Stream);
        }
        // A path with a colon in it is written with a slash before the colon, such as ./a:b.
        let Some((id, path)) = text.split_once(':').filter(|(before, _)| !before.contains('/')) else {
            if text.is_empty() {
                bail!("a path is empty");
            }
            return Ok(Self::Here(text.into()));
        };
        let sandbox = id.parse().with_context(|| format!("{text:?} is not ID:PATH, for {id:?} is no sandbox id"))?;
        if path.is_empty() {
            bail!("{text:?} names no path inside the sandbox; its user's home is {id}:.");
        }
        Ok(Self::Inside(sandbox, path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        let inside = |path: &str| Place::Inside("iabc".parse().unwrap(), path.to_owned());
        assert_eq!(Place::parse("iabc:/tmp/a:b").unwrap(), inside("/tmp/a:b"));
        assert_eq!(Place::parse("iabc:notes.txt").unwrap(), inside("notes.txt"));
        assert_eq!(Place::parse("./a:b").unwrap(), Place::Here("./a:b".into()));
        assert_eq!(Place::parse("/x/i:b").unwrap(), Place::Here("/x/i:b".into()));
        assert_eq!(Place::parse("-").unwrap(), Place::Stream);
        for bad in ["", "iabc:", "NOT:/x", ":/x"] {
            assert!(Place::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
