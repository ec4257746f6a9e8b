//! Names of images as people write them: `debian`, `ghcr.io/a/b:1`, `localhost:5000/x@sha256:…`.

use std::fmt;
use std::str::FromStr;

/// The registry if a name contains none.
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_TAG: &str = "latest";
/// The maximum length of the full form, with registry and tag.
const MAX_LENGTH: usize = 512;

/// A name that says where an image is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The SHA-256 hash of some content, which is also its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// Why a text is not a valid image name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is empty or too long.
    #[error("an image name has 1 to {MAX_LENGTH} characters, including its registry and tag")]
    Length,
    /// The registry is not a valid host.
    #[error("{0:?} is not a valid registry")]
    Registry(String),
    /// The path is not a valid repository.
    #[error("{0:?} is not a valid repository: use lowercase letters and digits, with single . _ - between them")]
    Repository(String),
    #[error("{0:?} is not a valid tag")]
    Tag(String),
    /// The digest is not a SHA-256 digest.
    #[error("{0:?} is not a valid digest: use sha256: and 64 hexadecimal digits")]
    Digest(String),
}

impl Digest {
    /// Computes the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self::from_hash(sha2::Sha256::digest(bytes).as_slice())
    }

    /// From the bytes of a SHA-256 hash.
    pub fn from_hash(hash: &[u8]) -> Self {
        Self(format!("sha256:{}", hex::encode(hash)))
    }

    /// The digest with its prefix `sha256:`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hexadecimal digits.
    pub fn digits(&self) -> &str {
        &self.0["sha256:".len()..]
    }
}

impl FromStr for Digest {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let digits = text.strip_prefix("sha256:").unwrap_or_default();
        let is_hash = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if is_hash { Ok(Self(text.to_owned())) } else { Err(ReferenceError::Digest(text.to_owned())) }
    }
}

impl TryFrom<String> for Digest {
    type Error = ReferenceError;

    fn try_from(text: String) -> Result<Self, ReferenceError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Reference {
    /// The host of the registry, with its port if it has one. `docker.io` if the name contains none.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path in the registry. `library/…` for the short names of Docker's registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag. `latest` if the name has neither a tag nor a digest.
    pub fn tag(&self) -> Option<&str> {
        match (&self.tag, &self.digest) {
            (None, None) => Some(DEFAULT_TAG),
            (tag, _) => tag.as_deref(),
        }
    }

    /// The digest, which has priority over the tag.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The tag or digest to request from a registry.
    pub fn version(&self) -> &str {
        self.digest.as_ref().map_or_else(|| self.tag().unwrap_or(DEFAULT_TAG), Digest::as_str)
    }

    /// The same image in another place.
    pub fn moved_to(&self, registry: &str, repository: &str) -> Self {
        Self { registry: registry.to_owned(), repository: repository.to_owned(), ..self.clone() }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() || text.len() > MAX_LENGTH {
            return Err(ReferenceError::Length);
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse()?)),
            None => (text, None),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            // A colon before a slash belongs to a port.
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag.to_owned())),
            _ => (rest, None),
        };
        let (registry, repository) = match path.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
            Some(_) => (DEFAULT_REGISTRY, path.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{path}")),
        };
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        check_registry(registry)?;
        check_repository(&repository)?;
        if let Some(tag) = &tag {
            check_tag(tag)?;
        }
        let reference = Self { registry: registry.to_owned(), repository, tag, digest };
        // The full form is longer. It is the form that is stored and parsed again, so it must fit.
        if reference.to_string().len() > MAX_LENGTH { Err(ReferenceError::Length) } else { Ok(reference) }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = self.tag() {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

fn check_registry(text: &str) -> Result<(), ReferenceError> {
    let (host, port) = text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_host = !host.is_empty()
        && !host.starts_with(['-', '.'])
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    if is_host && is_port { Ok(()) } else { Err(ReferenceError::Registry(text.to_owned())) }
}

fn check_repository(text: &str) -> Result<(), ReferenceError> {
    let is_part = |part: &str| {
        let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        part.bytes().next().is_some_and(letters)
            && part.bytes().last().is_some_and(letters)
            && part.bytes().all(|byte| letters(byte) || b"._-".contains(&byte))
            && !part.contains("..")
    };
    if text.split('/').all(is_part) { Ok(()) } else { Err(ReferenceError::Repository(text.to_owned())) }
}

fn check_tag(text: &str) -> Result<(), ReferenceError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_tag = text.len() <= 128
        && text.bytes().next().is_some_and(is_letter)
        && text.bytes().all(|byte| is_letter(byte) || b".-".contains(&byte));
    if is_tag { Ok(()) } else { Err(ReferenceError::Tag(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_is_too_long_with_its_registry_and_tag_is_refused() {
        // The full form adds `docker.io/` before it and `:latest` after it.
        let longest = format!("a/{}", "b".repeat(MAX_LENGTH - 2 - 17));
        let reference: Reference = longest.parse().unwrap();
        assert_eq!(reference.to_string().len(), MAX_LENGTH);
        assert_eq!(reference.to_string().parse::<Reference>().unwrap().to_string(), reference.to_string());
        assert_eq!(format!("{longest}b").parse::<Reference>(), Err(ReferenceError::Length));
    }

    #[test]
    fn names_that_could_mean_something_else_are_refused() {
        let long = "a".repeat(513);
        for bad in [
            "",
            "A",
            "a//b",
            "a/../b",
            "../a",
            "a:",
            "a:b c",
            "a@sha256:12",
            "-x.y/a",
            "x.y:99999/a",
            "a b",
            "a\n",
            &long,
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn short_names_mean_dockers_registry() {
        for (text, whole) in [
            ("debian", "docker.io/library/debian:latest"),
            ("e2bdev/base", "docker.io/e2bdev/base:latest"),
            ("node:21-slim", "docker.io/library/node:21-slim"),
            ("localhost:5000/x/y:1", "localhost:5000/x/y:1"),
            ("ghcr.io/a/b", "ghcr.io/a/b:latest"),
            ("index.docker.io/a/b", "docker.io/a/b:latest"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), whole);
        }
        let digest = Digest::of(b"x");
        let by_digest: Reference = format!("a@{digest}").parse().unwrap();
        assert_eq!((by_digest.tag(), by_digest.version()), (None, digest.as_str()));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(text in "[a-z0-9.:/@_-]{1,40}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(reference.to_string().parse::<Reference>().unwrap().to_string(), reference.to_string());
            }
        }
    }
}
