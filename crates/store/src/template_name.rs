//! Names of templates and their versions: `name`, `name:tag`, `namespace/name:tag`.

/// The tag if none is given.
pub const DEFAULT_TAG: &str = "default";

const MAX_LENGTH: usize = 128;

/// A template as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The team that it belongs to, by name or id.
    pub namespace: Option<String>,
    /// A name or an id.
    pub name: String,
    /// A tag, or the id of a build.
    pub tag: Option<String>,
}

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(
        "{0:?} is not a template name: use a-z, 0-9, -, _ and ., at most {MAX_LENGTH} characters, and start with a letter or digit"
    )]
    Name(String),
    #[error("{0:?} is not a tag: use a-z, 0-9, -, _ and ., at most {MAX_LENGTH} characters, and not a build id")]
    Tag(String),
}

impl Reference {
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (path, tag) = match text.split_once(':') {
            Some((path, build)) if is_build_id(build) => (path, Some(build.to_owned())),
            Some((path, tag)) => (path, Some(parse_tag(tag)?)),
            None => (text, None),
        };
        let (namespace, name) = match path.split_once('/') {
            Some((space, name)) => (Some(parse_name(space)?), name),
            None => (None, path),
        };
        Ok(Self { namespace, name: parse_name(name)?, tag })
    }

    /// Returns its tag, or the default tag.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }
}

/// Converts to lower case, as E2B does. Unlike E2B, allows dots, because people put versions into names.
pub fn parse_name(text: &str) -> Result<String, NameError> {
    let name = text.trim().to_ascii_lowercase();
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !begins_well || name.len() > MAX_LENGTH || !name.bytes().all(is_name_byte) {
        return Err(NameError::Name(shortened(text)));
    }
    Ok(name)
}

pub fn parse_tag(text: &str) -> Result<String, NameError> {
    let tag = text.trim().to_ascii_lowercase();
    if tag.is_empty() || tag.len() > MAX_LENGTH || !tag.bytes().all(is_name_byte) || is_build_id(&tag) {
        return Err(NameError::Tag(shortened(text)));
    }
    Ok(tag)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte)
}

/// Whether this is a build id. Build ids are UUIDs, and tags cannot look like one.
pub fn is_build_id(text: &str) -> bool {
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart() {
        let parsed = |text: &str| {
            let reference = Reference::parse(text).unwrap();
            (reference.namespace.clone(), reference.name.clone(), reference.tag().to_owned())
        };
        assert_eq!(parsed("Web"), (None, "web".to_owned(), "default".to_owned()));
        assert_eq!(parsed("web:v1.2"), (None, "web".to_owned(), "v1.2".to_owned()));
        assert_eq!(parsed("prod-v1.0.0"), (None, "prod-v1.0.0".to_owned(), "default".to_owned()));
        assert_eq!(parsed("my-team/web:x"), (Some("my-team".to_owned()), "web".to_owned(), "x".to_owned()));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in
            ["", ":", "web:", "/web", "a/b/c", "we b", "../etc", ".web", "-web", "web:v/1", "wéb", &"x".repeat(129)]
        {
            assert!(Reference::parse(bad).is_err(), "{bad:?}");
        }
        let build = "01234567-89ab-4cde-8f01-23456789abcd";
        assert!(parse_tag(build).is_err());
        assert_eq!(Reference::parse(&format!("web:{build}")).unwrap().tag(), build);
    }
}
